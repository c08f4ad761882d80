//! Look-ups and inserts of the prefix tree, alone, on the pages of a recorded trace.
//!
//! Reading the trace and making keys is not measured. Times are per page, over a whole pass through the trace in
//! its order, so that caches are as warm as that order makes them.

use std::fmt;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use hicached_actors::prefix_index::tree::{Match, NodeId, PathError, PrefixTree, SaltId, Victim};
use hicached_actors::protocol::{Key, PageId, Tier};
use serde::Serialize;

use crate::replay::pages::PageSizeError;
use crate::replay::trace::{Trace, TraceError};

/// What to measure the index on.
#[derive(Args, Clone, Debug)]
pub struct IndexArgs {
    /// Trace with block ids, `.jsonl` or `.jsonl.gz`.
    #[arg(long)]
    pub trace: PathBuf,
    /// Page size in the trace's unit.
    #[arg(long, default_value_t = 64)]
    pub page: u64,
    /// Passes through the trace; medians over them are reported.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,
    /// One JSON object in place of the table.
    #[arg(long)]
    pub json: bool,
}

/// Why there is nothing to measure.
#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    /// The trace cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The trace cannot be cut into such pages.
    #[error(transparent)]
    PageSize(#[from] PageSizeError),
    /// The trace gives one id to different prompts.
    #[error("request {request}: {source}")]
    Path {
        /// Its number, from 0.
        request: usize,
        /// The key and where it was before.
        source: PathError,
    },
    /// No request has a page that another one had before.
    #[error("{trace}: no page is hit, so there is nothing to measure")]
    NoHits {
        /// The trace.
        trace: PathBuf,
    },
}

/// What was measured; all times are medians over the runs.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The trace's file name.
    pub trace: String,
    /// Page size in the trace's unit.
    pub page_units: u64,
    /// Passes through the trace.
    pub runs: u32,
    /// Requests of a pass.
    pub requests: usize,
    /// Pages of these.
    pub pages: u64,
    /// Of these, found stored by an earlier request.
    pub hit_pages: u64,
    /// The others, each stored once.
    pub inserted_pages: u64,
    /// Matching a request as the trace arrives, the failing look-up at its end included, per page hit.
    pub ns_per_page_hit: f64,
    /// Matching all requests again when all pages are stored.
    pub ns_per_page_resident: f64,
    /// Marking matched pages as used.
    pub ns_per_page_touched: f64,
    /// Checking new keys against all known ones.
    pub ns_per_page_validated: f64,
    /// Storing a new page with an L1 copy.
    pub ns_per_page_inserted: f64,
    /// Evicting pages one by one from the tails until none is left.
    pub ns_per_page_evicted: f64,
    /// Entries, key table and eviction order when all pages are stored, with room set aside for just these.
    pub bytes_per_page: f64,
    #[serde(skip)]
    is_json: bool,
}

/// Measures as `args` say.
///
/// # Errors
/// When the trace cannot be used.
pub fn run(args: &IndexArgs) -> Result<Report, IndexError> {
    let paths = Paths::read(&args.trace, args.page)?;
    let passes = (0..args.runs).map(|_| paths.pass()).collect::<Result<Vec<_>, _>>()?;
    let first = &passes[0];
    if first.hit_pages == 0 {
        return Err(IndexError::NoHits { trace: args.trace.clone() });
    }
    let pages = paths.keys.len() as u64;
    let median = |time: fn(&Pass) -> Duration, pages: u64| {
        let mut ns = passes.iter().map(|pass| time(pass).as_nanos() as f64 / pages as f64).collect::<Vec<_>>();
        ns.sort_by(f64::total_cmp);
        ns[ns.len() / 2]
    };
    let name = args.trace.file_name().unwrap_or_default().to_string_lossy();
    Ok(Report {
        trace: name.into_owned(),
        page_units: args.page,
        runs: args.runs,
        requests: paths.ends.len(),
        pages,
        hit_pages: first.hit_pages,
        inserted_pages: first.inserted_pages,
        ns_per_page_hit: median(|pass| pass.matching, first.hit_pages),
        ns_per_page_resident: median(|pass| pass.resident, pages),
        ns_per_page_touched: median(|pass| pass.touching, first.hit_pages),
        ns_per_page_validated: median(|pass| pass.validating, first.inserted_pages),
        ns_per_page_inserted: median(|pass| pass.inserting, first.inserted_pages),
        ns_per_page_evicted: median(|pass| pass.evicting, first.inserted_pages),
        bytes_per_page: first.bytes as f64 / first.inserted_pages as f64,
        is_json: args.json,
    })
}

/// The keys of all requests, one after another.
struct Paths {
    keys: Vec<Key>,
    /// Where each request's keys end.
    ends: Vec<usize>,
    unique_pages: usize,
}

/// One pass through the trace.
#[derive(Default)]
struct Pass {
    hit_pages: u64,
    inserted_pages: u64,
    matching: Duration,
    resident: Duration,
    touching: Duration,
    validating: Duration,
    inserting: Duration,
    evicting: Duration,
    bytes: usize,
}

impl Paths {
    fn read(path: &Path, page_units: u64) -> Result<Self, IndexError> {
        let trace = Trace::open(path)?;
        let split = trace.split(page_units)?;
        let mut paths = Self { keys: Vec::new(), ends: Vec::new(), unique_pages: 0 };
        for request in &trace.requests {
            paths.keys.extend(split.keys(request));
            paths.ends.push(paths.keys.len());
        }
        let mut unique = paths.keys.clone();
        unique.sort_unstable();
        unique.dedup();
        paths.unique_pages = unique.len();
        Ok(paths)
    }

    fn requests(&self) -> impl Iterator<Item = &[Key]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.keys[start..*end])
    }

    fn pass(&self) -> Result<Pass, IndexError> {
        let mut tree = PrefixTree::new(1, self.unique_pages);
        let mut pass = Pass::default();
        let mut nodes: Vec<NodeId> = Vec::new();
        for (request, keys) in self.requests().enumerate() {
            nodes.clear();
            let tick = request as u64;
            let found = timed(&mut pass.matching, || tree.match_into(SALT, keys, &mut nodes));
            timed(&mut pass.touching, || nodes.iter().for_each(|node| tree.touch(*node, tick)));
            let missing = &keys[found.l1 as usize..];
            let stored = timed(&mut pass.validating, || tree.validate_path(SALT, found.last, missing))
                .and_then(|()| timed(&mut pass.inserting, || store(&mut tree, found, missing, tick)));
            stored.map_err(|source| IndexError::Path { request, source })?;
            pass.hit_pages += u64::from(found.l1);
            pass.inserted_pages += missing.len() as u64;
        }
        pass.bytes = tree.memory_bytes();
        timed(&mut pass.resident, || {
            for keys in self.requests() {
                black_box(tree.match_prefix(SALT, black_box(keys)));
            }
        });
        let mut victims: Vec<Victim> = Vec::with_capacity(BATCH_PAGES as usize);
        while !tree.is_empty() {
            victims.clear();
            let mut wants = [BATCH_PAGES];
            timed(&mut pass.evicting, || tree.victims(Tier::L1, &mut wants, BATCH_PAGES, &mut victims));
        }
        Ok(pass)
    }
}

fn store(tree: &mut PrefixTree, found: Match, keys: &[Key], tick: u64) -> Result<(), PathError> {
    let mut parent = found.last;
    for key in keys {
        let node = tree.insert(parent, *key, SALT, tick)?;
        tree.set_l1(node, PageId(node.index() as u32 + 1));
        parent = Some(node);
    }
    Ok(())
}

fn timed<T>(total: &mut Duration, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let done = work();
    *total += start.elapsed();
    done
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_json {
            return f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?);
        }
        let Self { trace, page_units, requests, pages, hit_pages, inserted_pages, runs, .. } = self;
        writeln!(f, "{trace}: {requests} requests, {pages} pages of {page_units}, {hit_pages} hit, median of {runs}")?;
        let rows = [
            ("match, per page hit", self.ns_per_page_hit, "ns"),
            ("match, all resident, per page", self.ns_per_page_resident, "ns"),
            ("touch, per page", self.ns_per_page_touched, "ns"),
            ("validate, per new page", self.ns_per_page_validated, "ns"),
            ("insert, per new page", self.ns_per_page_inserted, "ns"),
            ("evict, per page", self.ns_per_page_evicted, "ns"),
            ("memory, per page", self.bytes_per_page, "bytes"),
        ];
        for (what, value, unit) in rows {
            writeln!(f, "{what:<32}{value:>8.1} {unit}")?;
        }
        write!(f, "{inserted_pages} pages stored")
    }
}

/// All requests of a trace are one namespace.
const SALT: SaltId = SaltId(0);

/// Pages of one eviction.
const BATCH_PAGES: u32 = 1024;

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_small_trace_is_counted_and_reported_both_ways() {
        let folder = std::env::temp_dir().join(format!("hicached-bench-index-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a writable folder");
        let trace = folder.join("small.b128.jsonl");
        let lines = "{\"timestamp\":0,\"input_length\":256,\"output_length\":1,\"hash_ids\":[1,2]}\n\
                     {\"timestamp\":0,\"input_length\":300,\"output_length\":1,\"hash_ids\":[1,3]}\n";
        fs::write(&trace, lines).expect("a writable folder");
        let args = IndexArgs { trace, page: 64, runs: 2, json: true };
        let report = run(&args).expect("a trace");
        assert_eq!((report.pages, report.hit_pages, report.inserted_pages), (8, 2, 6));
        assert!(report.to_string().starts_with("{\"trace\":\"small.b128.jsonl\",\"page_units\":64,"), "{report}");
        let table = run(&IndexArgs { json: false, ..args }).expect("a trace").to_string();
        assert!(table.contains("match, per page hit"), "{table}");
        fs::remove_dir_all(&folder).expect("made above");
    }
}
