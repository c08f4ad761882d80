//! Reads recorded requests: one JSON object a line, `.jsonl` or `.jsonl.gz`, block size in the file name.
//!
//! Invariants: what is returned has non-decreasing timestamps and, per request, an id for each block of the
//! prompt, the last partial one included or left out. A line that is not so is refused with its number, the
//! field and its value. Not here: pages (`pages`), when to send what (the replay itself).

#[cfg(test)]
mod tests;

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use serde::Deserialize;
use serde_json::Value;

/// A trace as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// What `hash_ids` cut the prompts into, in the trace's unit (tokens; bytes in some traces).
    pub block_units: u64,
    /// In the order of arrival.
    pub requests: Vec<Request>,
}

/// One recorded request.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Arrival since the start of the trace, in ms.
    #[serde(rename = "timestamp")]
    pub timestamp_ms: u64,
    /// Length of the prompt, in the trace's unit.
    pub input_length: u64,
    /// Length of the answer, in tokens.
    pub output_length: u64,
    /// One id per block: equal ids are equal prompts from the start to the end of that block.
    pub hash_ids: Vec<u64>,
    /// The conversation it belongs to, if the trace says.
    #[serde(default)]
    pub session: Option<String>,
    /// The worker that served it when it was recorded, if the trace says.
    #[serde(default)]
    pub worker: Option<String>,
    /// Prompt tokens that worker found cached, if the trace says.
    #[serde(default)]
    pub cached_tokens: Option<u64>,
}

/// Why a trace cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The name says no block size.
    #[error("{path}: the name has no part like `.b512.` or `.b64bytes.` that says the block size")]
    Name {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be opened.
    #[error("{path}: {source}")]
    Open {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is packed and its name does not say so.
    #[error("{path}: looks like gzip: name it .jsonl.gz")]
    Packed {
        /// The file.
        path: PathBuf,
    },
    /// There is no request in it.
    #[error("{path}: has no request")]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be read.
    #[error("{path}, line {line}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The line that was to be read next.
        line: u64,
        /// What the system said.
        source: io::Error,
    },
    /// A line is no request.
    #[error("{path}, line {line}: {field} = {value}: {problem}")]
    Line {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: u64,
        /// The field, `line` for the line as a whole.
        field: String,
        /// Its value, cut to 80 characters.
        value: String,
        /// What is wrong with it.
        problem: Problem,
    },
    /// There are more requests than a replay holds.
    #[error("{path}: more than {limit} requests")]
    TooManyRequests {
        /// The file.
        path: PathBuf,
        /// The limit.
        limit: usize,
    },
}

/// What is wrong with a field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The line is no JSON object.
    #[error("not a JSON object")]
    NotAnObject,
    /// The line is longer than any request.
    #[error("longer than {limit} bytes")]
    TooLong {
        /// The limit.
        limit: usize,
    },
    /// The field is missing or holds something else.
    #[error("expected {expected}")]
    Expected {
        /// What it should hold.
        expected: &'static str,
    },
    /// Nobody knows the field.
    #[error("unknown field")]
    UnknownField,
    /// The field stands there twice.
    #[error("repeated field")]
    RepeatedField,
    /// An earlier request has a later timestamp.
    #[error("below {previous} of the request before")]
    Decreasing {
        /// That timestamp.
        previous: u64,
    },
    /// The number is too large.
    #[error("above {limit}")]
    Above {
        /// The limit.
        limit: u64,
    },
    /// The ids are not those of the blocks.
    #[error("expected {whole} ids, or {with_partial} with the partial block")]
    IdCount {
        /// Whole blocks of the prompt.
        whole: u64,
        /// Blocks, a partial last one included.
        with_partial: u64,
    },
}

impl Trace {
    /// Reads the trace at `path`.
    ///
    /// # Errors
    /// The first thing that is wrong with it.
    pub fn open(path: &Path) -> Result<Self, TraceError> {
        let block_units = block_units(path).ok_or_else(|| TraceError::Name { path: path.into() })?;
        let file = File::open(path).map_err(|source| TraceError::Open { path: path.into(), source })?;
        let is_packed = path.extension().is_some_and(|extension| extension == "gz");
        let bytes: Box<dyn Read> = if is_packed { Box::new(MultiGzDecoder::new(file)) } else { Box::new(file) };
        Self::read(BufReader::with_capacity(1 << 18, bytes), block_units, path)
    }

    /// Reads lines that stand at `path`.
    fn read(mut from: impl BufRead, block_units: u64, path: &Path) -> Result<Self, TraceError> {
        let mut requests: Vec<Request> = Vec::new();
        let mut line = Vec::new();
        for number in 1.. {
            line.clear();
            let mut limited = (&mut from).take(LINE_BYTES_MAX as u64 + 1);
            if limited.read_until(b'\n', &mut line).map_err(|source| TraceError::Io {
                path: path.into(),
                line: number,
                source,
            })? == 0
            {
                break;
            }
            if number == 1 && line.starts_with(&GZIP_MAGIC) {
                return Err(TraceError::Packed { path: path.into() });
            }
            if requests.len() == REQUESTS_MAX {
                return Err(TraceError::TooManyRequests { path: path.into(), limit: REQUESTS_MAX });
            }
            let previous_ms = requests.last().map_or(0, |request| request.timestamp_ms);
            let request = parse(&line, block_units, previous_ms).map_err(|bad| bad.at(path, number))?;
            requests.push(request);
        }
        if requests.is_empty() {
            return Err(TraceError::Empty { path: path.into() });
        }
        Ok(Self { block_units, requests })
    }
}

/// The block size that a file name states: `x.b512.jsonl.gz` and `x.b64bytes.jsonl` do.
fn block_units(path: &Path) -> Option<u64> {
    let name = path.file_name()?.to_str()?;
    let mut stated = name.split('.').filter_map(|part| {
        let digits = part.strip_prefix('b')?;
        digits.strip_suffix("bytes").unwrap_or(digits).parse::<u64>().ok()
    });
    stated.next_back().filter(|units| (1..=BLOCK_UNITS_MAX).contains(units))
}

/// A refused field, before its line number is known.
#[derive(Debug, PartialEq, Eq)]
struct Bad {
    field: String,
    value: String,
    problem: Problem,
}

impl Bad {
    fn new(field: &str, value: impl fmt::Display, problem: Problem) -> Self {
        let value = value.to_string().chars().take(80).collect();
        Self { field: field.into(), value, problem }
    }

    fn at(self, path: &Path, line: u64) -> TraceError {
        TraceError::Line { path: path.into(), line, field: self.field, value: self.value, problem: self.problem }
    }
}

fn parse(line: &[u8], block_units: u64, previous_ms: u64) -> Result<Request, Bad> {
    if line.len() > LINE_BYTES_MAX {
        return Err(Bad::new("line", "", Problem::TooLong { limit: LINE_BYTES_MAX }));
    }
    let request: Request = serde_json::from_slice(line).map_err(|error| explain(line, &error))?;
    if request.timestamp_ms < previous_ms {
        return Err(Bad::new("timestamp", request.timestamp_ms, Problem::Decreasing { previous: previous_ms }));
    }
    for (field, length) in [("input_length", request.input_length), ("output_length", request.output_length)] {
        if length > LENGTH_MAX {
            return Err(Bad::new(field, length, Problem::Above { limit: LENGTH_MAX }));
        }
    }
    let ids = request.hash_ids.len();
    if ids > IDS_MAX {
        return Err(Bad::new("hash_ids", format_args!("{ids} ids"), Problem::Above { limit: IDS_MAX as u64 }));
    }
    let whole = request.input_length / block_units;
    let with_partial = request.input_length.div_ceil(block_units);
    if ids as u64 != whole && ids as u64 != with_partial {
        return Err(Bad::new("hash_ids", format_args!("{ids} ids"), Problem::IdCount { whole, with_partial }));
    }
    match request.hash_ids.iter().find(|id| **id > HASH_ID_MAX) {
        Some(id) => Err(Bad::new("hash_ids", id, Problem::Above { limit: HASH_ID_MAX })),
        None => Ok(request),
    }
}

/// Finds the field that keeps a line from being a request: the slow second look at a line that was refused.
fn explain(line: &[u8], error: &serde_json::Error) -> Bad {
    let Ok(Value::Object(fields)) = serde_json::from_slice(line) else {
        let value = String::from_utf8_lossy(&line[..line.len().min(320)]).trim_end().to_owned();
        return Bad::new("line", value, Problem::NotAnObject);
    };
    let optional =
        |field, fits: fn(&Value) -> bool| fields.get(field).is_none_or(|value| value.is_null() || fits(value));
    let number = |field| fields.get(field).is_some_and(Value::is_u64);
    let expected = |field: &str, expected| {
        let value = fields.get(field).map_or("missing".to_owned(), ToString::to_string);
        Bad::new(field, value, Problem::Expected { expected })
    };
    for field in ["timestamp", "input_length", "output_length"] {
        if !number(field) {
            return expected(field, "a whole number from 0 on");
        }
    }
    match fields.get("hash_ids") {
        Some(Value::Array(ids)) => {
            if let Some(id) = ids.iter().find(|id| !id.is_u64()) {
                return Bad::new("hash_ids", id, Problem::Expected { expected: "whole numbers from 0 on" });
            }
        }
        Some(_) | None => return expected("hash_ids", "a list of whole numbers"),
    }
    for field in ["session", "worker"] {
        if !optional(field, Value::is_string) {
            return expected(field, "a string");
        }
    }
    if !optional("cached_tokens", Value::is_u64) {
        return expected("cached_tokens", "a whole number from 0 on");
    }
    match fields.iter().find(|(field, _)| !FIELDS.contains(&field.as_str())) {
        Some((field, value)) => Bad::new(field, value, Problem::UnknownField),
        // A JSON object read loosely keeps the last of two equal fields; nothing else is left to be wrong.
        None => Bad::new("line", error, Problem::RepeatedField),
    }
}

const FIELDS: [&str; 7] =
    ["timestamp", "input_length", "output_length", "hash_ids", "session", "worker", "cached_tokens"];

/// What a gzip file begins with.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// Longest line: a million ids of 12 digits.
const LINE_BYTES_MAX: usize = 16 << 20;

/// Most ids of one request: 16 million tokens in blocks of 16.
const IDS_MAX: usize = 1 << 20;

/// Most requests of one trace: a week at 27 a second.
const REQUESTS_MAX: usize = 1 << 24;

/// Longest prompt or answer.
const LENGTH_MAX: u64 = 1 << 32;

/// Largest block.
const BLOCK_UNITS_MAX: u64 = 1 << 20;

/// Largest id: an id times the pages of a block stays below 2^64, since a block has at most 2^20 units.
pub const HASH_ID_MAX: u64 = (1 << 44) - 1;
