//! Traces as machines see them: a context that is kept with an op and passed on, and what is said of an op when it
//! is over.
//!
//! A machine never makes a context and never reads one. It keeps the one its op began with, sends it along with
//! every message of the op, and at the end emits one [`Span`] with explicit times. Who handles messages makes a short
//! span for each of them and gives the machine that one's context, so whatever a message caused hangs on it.
//! An op without a context is not recorded: a machine builds no span for it.
//!
//! Not here: sampling, ids, export (the shell).

use std::fmt;

use crate::protocol::{OpId, Time};

/// A trace of its own and one span in it, as W3C trace context has them. Neither id is all zero.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TraceContext {
    /// The trace.
    pub trace_id: [u8; 16],
    /// The span that others hang on.
    pub span_id: [u8; 8],
    /// Whether its spans are exported.
    pub sampling: Sampling,
}

/// Whether the spans of a trace are exported. A trace that is certainly not has no context at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Sampling {
    /// All of them.
    Sampled,
    /// Kept for a while, and exported if the conversation turns out to be slow or to fail.
    Late,
}

/// What W3C trace context says of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parent {
    /// Nothing, or nothing that can be read: a new trace begins.
    None,
    /// It belongs to a trace that nobody records.
    NotSampled,
    /// It hangs on this span.
    Context(TraceContext),
}

/// What is said of an op, or of a part of one, when it is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// What was done: `reserve`, `backup`.
    pub name: &'static str,
    /// The op.
    pub op: OpId,
    /// Which of several spans that an op has under one name: the rank, the step, the first position; 0 of an only one.
    pub nth: u64,
    /// What it hangs on: the context its op began with.
    pub parent: TraceContext,
    /// When it began.
    pub began: Time,
    /// When it ended.
    pub ended: Time,
    /// What explains it, in a fixed order.
    pub facts: Vec<(&'static str, Fact)>,
    /// Other spans it has to do with.
    pub links: Vec<TraceContext>,
    /// Code of the refusal or failure with which it ended.
    pub fault: Option<String>,
    /// Parts of it that are spans of their own.
    pub parts: Vec<SpanPart>,
}

/// A part of a span that is shown only where somebody wants that much: one layer of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpanPart {
    /// What was done.
    pub name: &'static str,
    /// When it began.
    pub began: Time,
    /// When it ended.
    pub ended: Time,
    /// What explains it.
    pub facts: Vec<(&'static str, Fact)>,
}

/// One value of a span.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// A number; its unit is the end of its name.
    Count(u64),
    /// A row of numbers: one per layer, rank or lane, as the name says.
    Counts(Vec<u64>),
    /// A name or an id.
    Text(String),
    /// Yes or no.
    Flag(bool),
}

impl TraceContext {
    /// Reads the headers `traceparent` and `tracestate`. What cannot be read is as good as missing, as W3C trace
    /// context wants it.
    pub fn parse(traceparent: Option<&str>, tracestate: Option<&str>) -> Parent {
        let Some(fields) = traceparent.and_then(fields) else { return Parent::None };
        let (trace_id, span_id, flags) = fields;
        let is_late = tracestate.is_some_and(|state| state.split(',').any(|entry| entry.trim() == LATE));
        let sampling = match (flags & SAMPLED != 0, is_late) {
            (true, _) => Sampling::Sampled,
            (false, true) => Sampling::Late,
            (false, false) => return Parent::NotSampled,
        };
        Parent::Context(Self { trace_id, span_id, sampling })
    }

    /// The value of the header `traceparent`.
    pub fn traceparent(&self) -> String {
        let flags = match self.sampling {
            Sampling::Sampled => SAMPLED,
            Sampling::Late => 0,
        };
        let (trace, span) = (u128::from_be_bytes(self.trace_id), u64::from_be_bytes(self.span_id));
        format!("00-{trace:032x}-{span:016x}-{flags:02x}")
    }

    /// The value of the header `tracestate`; none is needed for a sampled trace.
    pub fn tracestate(&self) -> Option<&'static str> {
        match self.sampling {
            Sampling::Sampled => None,
            Sampling::Late => Some(LATE),
        }
    }

    /// The `nth` span that the op `op` gets under `name` when it hangs on this one: its id follows from all four, so
    /// that it can be linked to before it is written.
    pub fn of_op(&self, op: OpId, name: &str, nth: u64) -> Self {
        Self { span_id: span_id(self.span_id, op, name, nth), ..self.clone() }
    }
}

impl Span {
    /// A span of `op` under `parent` that began at `began` and ends at `ended`, with nothing to explain it yet.
    pub fn new(name: &'static str, op: OpId, parent: TraceContext, began: Time, ended: Time) -> Self {
        let (facts, links, parts) = (Vec::new(), Vec::new(), Vec::new());
        Self { name, op, nth: 0, parent, began, ended, facts, links, fault: None, parts }
    }

    /// As one of several of this name.
    #[must_use]
    pub fn nth(mut self, nth: u64) -> Self {
        self.nth = nth;
        self
    }

    /// With the time from `from` to `to`, in microseconds.
    #[must_use]
    pub fn micros(self, name: &'static str, from: Time, to: Time) -> Self {
        self.count(name, from.us_until(to))
    }

    /// With a link to another span, if there is one.
    #[must_use]
    pub fn link(mut self, to: Option<TraceContext>) -> Self {
        self.links.extend(to);
        self
    }

    /// With what went wrong, if anything did.
    #[must_use]
    pub fn fault(mut self, code: Option<impl fmt::Display>) -> Self {
        self.fault = code.map(|code| code.to_string());
        self
    }

    /// With a number.
    #[must_use]
    pub fn count(mut self, name: &'static str, value: impl Into<u64>) -> Self {
        self.facts.push((name, Fact::Count(value.into())));
        self
    }

    /// With a row of numbers.
    #[must_use]
    pub fn counts(mut self, name: &'static str, values: impl IntoIterator<Item = impl Into<u64>>) -> Self {
        self.facts.push((name, Fact::Counts(values.into_iter().map(Into::into).collect())));
        self
    }

    /// With a name or an id.
    #[must_use]
    pub fn text(mut self, name: &'static str, value: impl fmt::Display) -> Self {
        self.facts.push((name, Fact::Text(value.to_string())));
        self
    }

    /// With yes or no.
    #[must_use]
    pub fn flag(mut self, name: &'static str, value: bool) -> Self {
        self.facts.push((name, Fact::Flag(value)));
        self
    }

    /// Its own place in its trace.
    pub fn context(&self) -> TraceContext {
        self.parent.of_op(self.op, self.name, self.nth)
    }
}

impl fmt::Debug for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.traceparent())
    }
}

/// Trace id, span id and flags of a `traceparent`. Versions above 00 may have more behind the flags.
fn fields(header: &str) -> Option<([u8; 16], [u8; 8], u8)> {
    let mut parts = header.trim().split('-');
    let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let is_known = version.len() == 2 && version != "ff" && (version != "00" || parts.next().is_none());
    let is_sized = trace.len() == 32 && span.len() == 16 && flags.len() == 2;
    let is_lower = header.trim().bytes().all(|byte| !byte.is_ascii_uppercase() && byte != b'+');
    if !is_known || !is_sized || !is_lower {
        return None;
    }
    u8::from_str_radix(version, 16).ok()?;
    let trace = u128::from_str_radix(trace, 16).ok().filter(|id| *id != 0)?;
    let span = u64::from_str_radix(span, 16).ok().filter(|id| *id != 0)?;
    Some((trace.to_be_bytes(), span.to_be_bytes(), u8::from_str_radix(flags, 16).ok()?))
}

/// FNV-1a of all of them, never zero.
fn span_id(parent: [u8; 8], op: OpId, name: &str, nth: u64) -> [u8; 8] {
    let nth = nth.to_be_bytes();
    let bytes = parent.iter().chain(&op.0).chain(&nth).chain(name.as_bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(FNV_PRIME));
    (hash | 1).to_be_bytes()
}

/// The entry in `tracestate` of a trace that is recorded before it is known whether anybody wants it.
const LATE: &str = "hicached=late";
const SAMPLED: u8 = 1;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn what_is_written_is_read_back() {
        for sampling in [Sampling::Sampled, Sampling::Late] {
            let Parent::Context(read) = TraceContext::parse(Some(PARENT), None) else { panic!("a context") };
            let context = TraceContext { sampling, ..read };
            let again = TraceContext::parse(Some(&context.traceparent()), context.tracestate());
            assert_eq!(again, Parent::Context(context));
        }
    }

    #[test]
    fn the_spans_of_an_op_have_ids_of_their_own_that_follow_from_what_they_are() {
        let Parent::Context(parent) = TraceContext::parse(Some(PARENT), None) else { panic!("a context") };
        let other = TraceContext { span_id: [7; 8], ..parent.clone() };
        let (one, two) = (OpId([1; 16]), OpId([2; 16]));
        let all = [
            parent.of_op(one, "load", 0),
            parent.of_op(two, "load", 0),
            parent.of_op(one, "commit", 0),
            parent.of_op(one, "load", 1),
            other.of_op(one, "load", 0),
        ];
        let ids: std::collections::BTreeSet<_> = all.iter().map(|context| context.span_id).collect();
        assert_eq!(ids.len(), all.len());
        let span = Span::new("load", one, parent, Time::ZERO, Time::ZERO).nth(1);
        assert_eq!(span.context(), all[3]);
    }

    #[test]
    fn a_header_that_cannot_be_read_is_as_good_as_missing() {
        let malformed = [
            "",
            "00",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319-b7ad6b7169203331-01",
            "00-+af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "zz-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ];
        for header in malformed {
            assert_eq!(TraceContext::parse(Some(header), None), Parent::None, "{header}");
        }
        assert_eq!(TraceContext::parse(None, Some("hicached=late")), Parent::None);
    }

    #[test]
    fn a_trace_marked_not_sampled_is_recorded_only_where_it_may_be_late() {
        let header = PARENT.replace("-01", "-00");
        assert_eq!(TraceContext::parse(Some(&header), Some("other=1")), Parent::NotSampled);
        let late = TraceContext::parse(Some(&header), Some("other=1, hicached=late"));
        assert!(matches!(late, Parent::Context(TraceContext { sampling: Sampling::Late, .. })), "{late:?}");
        let newer = format!("01{}-more", &PARENT[2..]);
        assert!(matches!(TraceContext::parse(Some(&newer), None), Parent::Context(_)), "a later version");
    }
}
