//! Spans of traces of which it is not known yet whether anybody wants them.
//!
//! Invariants: never more than `spans_max` spans; the oldest trace goes first; a trace that is kept has no spans
//! here, what comes later goes straight out.

use std::collections::{HashMap, HashSet, VecDeque};

use super::outbox::Record;

/// A trace.
pub(super) type TraceId = [u8; 16];

/// The store.
#[derive(Debug)]
pub(super) struct LateStore {
    spans_max: usize,
    traces: HashMap<TraceId, Vec<Record>>,
    /// In the order in which they began here; a trace that is kept leaves its place empty.
    order: VecDeque<TraceId>,
    spans: usize,
    dropped: u64,
    kept: HashSet<TraceId>,
    kept_order: VecDeque<TraceId>,
}

impl LateStore {
    /// An empty store of at most `spans_max` spans.
    pub(super) fn new(spans_max: usize) -> Self {
        Self {
            spans_max,
            traces: HashMap::new(),
            order: VecDeque::new(),
            spans: 0,
            dropped: 0,
            kept: HashSet::new(),
            kept_order: VecDeque::new(),
        }
    }

    /// Stores `record`, making room by dropping the oldest traces. Gives it back when its trace is kept.
    pub(super) fn put(&mut self, trace: TraceId, record: Record) -> Option<Record> {
        if self.kept.contains(&trace) {
            return Some(record);
        }
        let spans = self.traces.entry(trace).or_insert_with(|| {
            self.order.push_back(trace);
            Vec::new()
        });
        spans.push(record);
        self.spans += 1;
        while self.spans > self.spans_max {
            let Some(oldest) = self.order.pop_front() else { break };
            let spans = self.traces.remove(&oldest).map_or(0, |spans| spans.len());
            self.spans -= spans;
            self.dropped += spans as u64;
        }
        None
    }

    /// From now on `trace` is kept: what is stored of it. `None` when it is kept already.
    pub(super) fn keep(&mut self, trace: TraceId) -> Option<Vec<Record>> {
        if !self.kept.insert(trace) {
            return None;
        }
        self.kept_order.push_back(trace);
        if self.kept_order.len() > KEPT_MAX
            && let Some(oldest) = self.kept_order.pop_front()
        {
            self.kept.remove(&oldest);
        }
        let spans = self.traces.remove(&trace).unwrap_or_default();
        self.spans -= spans.len();
        // Places of traces that are gone are swept when they outnumber the others: never more than twice as many.
        if self.order.len() > 2 * self.traces.len() + ORDER_SLACK {
            self.order.retain(|trace| self.traces.contains_key(trace));
        }
        Some(spans)
    }

    /// Spans stored.
    pub(super) fn spans(&self) -> u64 {
        self.spans as u64
    }

    /// Spans dropped with their traces, unwanted so far.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }
}

/// Traces remembered as kept: the spans of a request come within seconds of each other.
const KEPT_MAX: usize = 4_096;
/// Sweeping a short list is not worth it.
const ORDER_SLACK: usize = 64;

#[cfg(test)]
mod tests {
    use hicached_actors::protocol::{Address, OpId, Time};
    use hicached_actors::span::{Sampling, Span, TraceContext};

    use super::*;

    fn record(trace: TraceId) -> Record {
        let parent = TraceContext { trace_id: trace, span_id: [1; 8], sampling: Sampling::Late };
        let span = Span::new("open", OpId::default(), parent, Time { ns: 0 }, Time { ns: 1 });
        Record::Machine { actor: Address::Index, span: Box::new(span) }
    }

    #[test]
    fn the_oldest_trace_makes_room_and_is_counted() {
        let mut store = LateStore::new(4);
        for trace in [[1; 16], [1; 16], [2; 16], [3; 16], [3; 16]] {
            assert_eq!(store.put(trace, record(trace)), None);
        }
        assert_eq!((store.spans(), store.dropped()), (3, 2));
        assert_eq!(store.keep([1; 16]).map(|spans| spans.len()), Some(0));
        assert_eq!(store.keep([3; 16]).map(|spans| spans.len()), Some(2));
        assert_eq!(store.spans(), 1);
    }

    #[test]
    fn a_kept_trace_is_told_once_and_its_later_spans_come_back() {
        let mut store = LateStore::new(4);
        store.put([1; 16], record([1; 16]));
        assert_eq!(store.keep([1; 16]).map(|spans| spans.len()), Some(1));
        assert_eq!(store.keep([1; 16]), None);
        assert_eq!(store.put([1; 16], record([1; 16])), Some(record([1; 16])));
        assert_eq!(store.spans(), 0);
    }

    #[test]
    fn one_trace_cannot_outgrow_the_store() {
        let mut store = LateStore::new(4);
        for _ in 0..1_000 {
            store.put([1; 16], record([1; 16]));
        }
        assert!(store.spans() <= 4, "{}", store.spans());
        for trace in 0..1_000_u128 {
            store.put(trace.to_be_bytes(), record(trace.to_be_bytes()));
            store.keep(trace.to_be_bytes());
        }
        assert!(store.order.len() <= ORDER_SLACK + 2 * store.traces.len() + 1, "{}", store.order.len());
    }
}
