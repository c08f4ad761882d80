//! Spans on their way to the exporter: a bounded list that is emptied as a whole.
//!
//! Whoever fills it never wakes the exporter for a single span: that would cost more than the span. The exporter
//! looks at intervals, and is woken when a batch is full.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hicached_actors::protocol::{Address, OpId, Time};
use hicached_actors::span::{Span, TraceContext};
use hicached_client::spans::ClientSpan;
use tokio::sync::Notify;

/// A span that is over, in the words of whoever told of it: it is written out by the exporter.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Record {
    /// A message was handled.
    Handled(Box<Handled>),
    /// A machine told of an op.
    Machine {
        /// Whose op.
        actor: Address,
        /// What it said.
        span: Box<Span>,
    },
    /// A client or an engine told of a call or request.
    Client(Box<ClientSpan>),
}

/// One handled message.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Handled {
    /// The span.
    pub(super) context: TraceContext,
    /// The sender's span; `None` when the trace began here.
    pub(super) parent: Option<[u8; 8]>,
    /// Who handled it.
    pub(super) actor: Address,
    /// Where it came.
    pub(super) subject: std::sync::Arc<str>,
    /// Its kind, cut to a bound.
    pub(super) kind: String,
    /// Whether the actor knew the kind.
    pub(super) kind_is_known: bool,
    /// Its id.
    pub(super) message: OpId,
    /// The op it spoke of.
    pub(super) op: OpId,
    /// Who sent it.
    pub(super) sender: String,
    /// Its payload.
    pub(super) bytes: usize,
    /// When handling began.
    pub(super) began: Time,
    /// When it was over.
    pub(super) ended: Time,
    /// Other traces it served.
    pub(super) links: Vec<TraceContext>,
    /// Code of the refusal it was answered with.
    pub(super) fault: Option<String>,
}

impl Record {
    /// Its place in its trace.
    pub(super) fn context(&self) -> TraceContext {
        match self {
            Self::Handled(handled) => handled.context.clone(),
            Self::Machine { span, .. } => span.context(),
            Self::Client(span) => span.context.clone(),
        }
    }

    /// Whether it failed.
    pub(super) fn is_fault(&self) -> bool {
        match self {
            Self::Handled(handled) => handled.fault.is_some(),
            Self::Machine { span, .. } => span.fault.is_some(),
            Self::Client(span) => span.fault.is_some(),
        }
    }

    /// How long it took.
    pub(super) fn took_ns(&self) -> u64 {
        let (began, ended) = match self {
            Self::Handled(handled) => (handled.began, handled.ended),
            Self::Machine { span, .. } => (span.began, span.ended),
            Self::Client(span) => (span.began, span.ended),
        };
        ended.ns.saturating_sub(began.ns)
    }
}

/// The list.
#[derive(Debug)]
pub(super) struct Outbox {
    waiting: Mutex<Vec<Record>>,
    bound: usize,
    batch: usize,
    full: Notify,
    lost: AtomicU64,
}

impl Outbox {
    /// An empty list of at most `bound` spans that wakes its reader at every `batch`.
    pub(super) fn new(bound: usize, batch: usize) -> Self {
        Self { waiting: Mutex::default(), bound, batch, full: Notify::new(), lost: AtomicU64::new(0) }
    }

    /// Takes spans in, without waiting; what finds no room is counted.
    pub(super) fn put(&self, records: impl IntoIterator<Item = Record>) {
        let mut waiting = self.lock();
        for record in records {
            if waiting.len() >= self.bound {
                self.lost.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            waiting.push(record);
            if waiting.len().is_multiple_of(self.batch) {
                self.full.notify_one();
            }
        }
    }

    /// Everything that waits.
    pub(super) fn take(&self) -> Vec<Record> {
        std::mem::take(&mut *self.lock())
    }

    /// Resolves when a batch is full.
    pub(super) async fn full(&self) {
        self.full.notified().await;
    }

    /// Spans that found no room.
    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Record>> {
        // A list stays a list, wherever a panic left it.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
