//! Takes spans in: draws ids, decides which traces are exported, and hands their spans to the exporter.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use hicached_actors::calls::draw;
use hicached_actors::machine::Trace;
use hicached_actors::protocol::{Address, Time};
use hicached_actors::span::{Sampling, Span, TraceContext};
use hicached_client::spans::{ClientSpan, SpanSink};

use super::keep::Peers;
use super::late::{LateStore, TraceId};
use super::outbox::{Outbox, Record};
use super::{Origin, TraceFigures};
use crate::config::TraceConfig;
use crate::shell::Clock;

/// The recorder of one process.
#[derive(Debug)]
pub struct Recorder {
    clock: Clock,
    pub(super) origin: Origin,
    ratio_permille: u64,
    slow_ns: u64,
    ids: AtomicU64,
    pub(super) outbox: Outbox,
    late: Mutex<LateStore>,
    /// Traces that were kept here, for the other processes of the group.
    kept_here: Mutex<Vec<TraceId>>,
    pub(super) peers: OnceLock<Peers>,
    pub(super) exported: AtomicU64,
    pub(super) failed: AtomicU64,
    untold: AtomicU64,
}

impl Recorder {
    /// A recorder without an exporter yet; its times are those of `clock`.
    pub(super) fn new(config: &TraceConfig, origin: Origin, clock: Clock) -> Self {
        let seed = uuid::Uuid::new_v4().as_u64_pair().0;
        Self {
            clock,
            origin,
            ratio_permille: u64::from(config.ratio_permille),
            slow_ns: config.slow_ms.saturating_mul(1_000_000),
            ids: AtomicU64::new(seed),
            outbox: Outbox::new(OUTBOX_SPANS, BATCH_SPANS),
            late: Mutex::new(LateStore::new(LATE_SPANS)),
            kept_here: Mutex::default(),
            peers: OnceLock::new(),
            exported: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            untold: AtomicU64::new(0),
        }
    }

    /// The clock of this process.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Machines told of ops that are over.
    pub fn told(&self, actor: Address, spans: impl Iterator<Item = Span>) {
        for span in spans {
            self.take(Record::Machine { actor, span: Box::new(span) });
        }
    }

    /// What became of the spans so far.
    pub fn figures(&self) -> TraceFigures {
        let late = self.late();
        TraceFigures {
            exported: self.exported.load(Ordering::Relaxed),
            lost: self.outbox.lost() + self.failed.load(Ordering::Relaxed),
            stored: late.spans(),
            late_dropped: late.dropped(),
            untold: self.untold.load(Ordering::Relaxed),
        }
    }

    /// Takes one span in.
    pub(super) fn take(&self, record: Record) {
        let TraceContext { trace_id, sampling, .. } = record.context();
        if sampling == Sampling::Sampled {
            return self.outbox.put([record]);
        }
        let is_kept = record.is_fault() || record.took_ns() > self.slow_ns;
        let mut late = self.late();
        // One order for all spans of a trace: what is stored goes out before what comes later.
        self.outbox.put(late.put(trace_id, record));
        if is_kept && let Some(stored) = late.keep(trace_id) {
            self.outbox.put(stored);
            drop(late);
            self.tell(trace_id);
        }
    }

    /// Other processes keep these traces.
    pub(super) fn kept_elsewhere(&self, traces: impl Iterator<Item = TraceId>) {
        let mut late = self.late();
        for trace in traces {
            self.outbox.put(late.keep(trace).into_iter().flatten());
        }
    }

    /// Traces kept here of which the other processes have not heard, at most `most` of them.
    pub(super) fn take_kept(&self, most: usize) -> Vec<TraceId> {
        let mut kept = self.kept();
        let at = kept.len().saturating_sub(most);
        kept.split_off(at)
    }

    /// They did not hear of `traces` traces.
    pub(super) fn count_untold(&self, traces: usize) {
        self.untold.fetch_add(traces as u64, Ordering::Relaxed);
    }

    /// A context that nobody else has.
    pub(super) fn begin_trace(&self) -> TraceContext {
        let trace_id = uuid::Uuid::new_v4().into_bytes();
        let sampled = self.draw() % 1_000 < self.ratio_permille;
        let sampling = if sampled { Sampling::Sampled } else { Sampling::Late };
        TraceContext { trace_id, span_id: self.span_id(), sampling }
    }

    /// An id of a span. Zero is no id.
    pub(super) fn span_id(&self) -> [u8; 8] {
        (self.draw() | 1).to_be_bytes()
    }

    fn draw(&self) -> u64 {
        let mut state = self.ids.fetch_add(IDS_STEP, Ordering::Relaxed);
        draw(&mut state)
    }

    fn tell(&self, trace: TraceId) {
        let mut kept = self.kept();
        if kept.len() < KEPT_WAITING_MAX {
            kept.push(trace);
        } else {
            self.count_untold(1);
        }
    }

    fn late(&self) -> MutexGuard<'_, LateStore> {
        // Whatever a panic left there is worth less than the spans to come.
        self.late.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kept(&self) -> MutexGuard<'_, Vec<TraceId>> {
        self.kept_here.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SpanSink for Recorder {
    fn now(&self) -> Time {
        self.clock.now()
    }

    fn root(&self) -> Trace {
        Some(self.begin_trace())
    }

    fn child(&self, parent: &TraceContext) -> TraceContext {
        TraceContext { span_id: self.span_id(), ..parent.clone() }
    }

    fn record(&self, span: ClientSpan) {
        self.take(Record::Client(Box::new(span)));
    }
}

/// Spans waiting for the exporter: a second of a busy process.
const OUTBOX_SPANS: usize = 32_768;
/// Spans of one export.
pub(super) const BATCH_SPANS: usize = 512;
/// Spans of late traces: tens of megabytes.
const LATE_SPANS: usize = 32_768;
/// Kept traces that wait for the next message.
const KEPT_WAITING_MAX: usize = 4_096;
/// The increment of [`draw`]: every id is drawn from a state of its own.
const IDS_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests {
    use hicached_actors::protocol::OpId;

    use super::*;
    use crate::config::BusKind;

    fn recorder(ratio_permille: u32) -> Recorder {
        let config = TraceConfig { ratio_permille, slow_ms: 10, ..TraceConfig::default() };
        let origin = Origin { group: "g".to_owned(), actors: Vec::new(), bus: BusKind::Memory };
        Recorder::new(&config, origin, Clock::start())
    }

    fn span(of: &TraceContext, ended_ms: u64, fault: Option<&str>) -> Span {
        let mut span =
            Span::new("open", OpId::default(), of.clone(), Time { ns: 0 }, Time::default().plus_ms(ended_ms));
        span.fault = fault.map(str::to_owned);
        span
    }

    #[test]
    fn a_late_trace_goes_out_whole_once_a_span_of_it_is_slow_or_failed() {
        for (ended_ms, fault) in [(11, None), (1, Some("busy"))] {
            let recorder = recorder(0);
            let (wanted, other) = (recorder.begin_trace(), recorder.begin_trace());
            for of in [&wanted, &other, &wanted] {
                recorder.told(Address::Index, [span(of, 1, None)].into_iter());
            }
            assert_eq!(recorder.outbox.take(), Vec::new());
            recorder.told(Address::Index, [span(&wanted, ended_ms, fault)].into_iter());
            recorder.told(Address::Index, [span(&wanted, 1, None)].into_iter());
            let out = recorder.outbox.take();
            assert_eq!(out.len(), 4, "{ended_ms} ms, {fault:?}");
            assert!(out.iter().all(|record| record.context().trace_id == wanted.trace_id));
            assert_eq!(recorder.take_kept(8), [wanted.trace_id]);
            assert_eq!(recorder.figures().stored, 1);
        }
    }

    #[test]
    fn what_another_process_keeps_goes_out_here_and_is_not_told_again() {
        let recorder = recorder(0);
        let trace = recorder.begin_trace();
        recorder.told(Address::Index, [span(&trace, 1, None)].into_iter());
        recorder.kept_elsewhere([trace.trace_id, [9; 16]].into_iter());
        assert_eq!(recorder.outbox.take().len(), 1);
        recorder.told(Address::Index, [span(&trace, 1, Some("busy"))].into_iter());
        assert_eq!(recorder.outbox.take().len(), 1);
        assert_eq!(recorder.take_kept(8), Vec::<TraceId>::new());
    }

    #[test]
    fn the_ratio_decides_which_traces_are_sampled() {
        for (ratio_permille, at_least, at_most) in [(0, 0, 0), (1_000, 1_000, 1_000), (100, 50, 170)] {
            let recorder = recorder(ratio_permille);
            let traces = (0..1_000).map(|_| recorder.begin_trace());
            let sampled = traces.filter(|trace| trace.sampling == Sampling::Sampled).count();
            assert!((at_least..=at_most).contains(&sampled), "{sampled} of 1000 at {ratio_permille} permille");
        }
    }

    #[test]
    fn a_full_outbox_loses_and_counts() {
        let recorder = recorder(1_000);
        let trace = recorder.begin_trace();
        for _ in 0..OUTBOX_SPANS + 3 {
            recorder.told(Address::Index, [span(&trace, 1, None)].into_iter());
        }
        assert_eq!(recorder.figures().lost, 3);
    }
}
