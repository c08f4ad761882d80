//! What a client says of its calls to whoever records traces: one span per call, and one per request of an engine.
//!
//! A client without a [`SpanSink`] still passes on the trace context it was given ([`crate::client::Client::within`])
//! and builds nothing.
//! Not here: sampling, ids, export (the sink).

use std::sync::Arc;

use hicached_actors::machine::Trace;
use hicached_actors::protocol::{OpId, Time};
use hicached_actors::span::{Fact, TraceContext};

/// Takes spans that are over. Nothing of it waits.
pub trait SpanSink: std::fmt::Debug + Send + Sync {
    /// The clock that spans are timed by.
    fn now(&self) -> Time;

    /// The root of a trace of its own; `None` when nobody records it.
    fn root(&self) -> Trace;

    /// A span below `parent` that is yet to be written.
    fn child(&self, parent: &TraceContext) -> TraceContext;

    /// A span is over.
    fn record(&self, span: ClientSpan);
}

/// Where spans go; `None` when nobody wants any.
pub type Spans = Option<Arc<dyn SpanSink>>;

/// One span of a client or an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientSpan {
    /// Its own place in its trace.
    pub context: TraceContext,
    /// What it hangs on; `None` for a root.
    pub parent: Option<[u8; 8]>,
    /// What kind of thing it was.
    pub role: Role,
    /// The call or request.
    pub op: OpId,
    /// When it began.
    pub began: Time,
    /// When it ended.
    pub ended: Time,
    /// What explains it.
    pub facts: Vec<(&'static str, Fact)>,
    /// Code of the refusal or failure with which it ended.
    pub fault: Option<&'static str>,
}

/// What a client does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// Serves one request of its user, from before `open` until it is over.
    Request,
    /// Sends a message of this kind to this subject and waits for its answer.
    Call {
        /// The kind.
        kind: &'static str,
        /// Where to.
        subject: Arc<str>,
    },
    /// Sends a message of this kind to this subject and waits for nothing.
    Tell {
        /// The kind.
        kind: &'static str,
        /// Where to.
        subject: Arc<str>,
    },
}

/// A span that is yet to be written: it is when this is dropped, so that whatever hangs on it is never without it.
pub(crate) struct OpenSpan {
    sink: Arc<dyn SpanSink>,
    context: TraceContext,
    parent: Option<[u8; 8]>,
    role: Role,
    op: OpId,
    began: Time,
    facts: Vec<(&'static str, Fact)>,
    fault: Option<&'static str>,
}

impl OpenSpan {
    /// Begins the root of a trace; `None` when nobody records it.
    pub(crate) fn root(spans: &Spans, op: OpId, role: impl FnOnce() -> Role) -> Option<Self> {
        let sink = spans.as_ref()?;
        let context = sink.root()?;
        Some(Self::begin(sink, context, None, op, role()))
    }

    /// Begins a span below `parent`; `None` when nobody records it.
    pub(crate) fn below(spans: &Spans, parent: &TraceContext, op: OpId, role: impl FnOnce() -> Role) -> Option<Self> {
        let sink = spans.as_ref()?;
        let context = sink.child(parent);
        Some(Self::begin(sink, context, Some(parent.span_id), op, role()))
    }

    fn begin(sink: &Arc<dyn SpanSink>, context: TraceContext, parent: Option<[u8; 8]>, op: OpId, role: Role) -> Self {
        let (began, facts, fault) = (sink.now(), Vec::new(), Some(GIVEN_UP));
        Self { sink: sink.clone(), context, parent, role, op, began, facts, fault }
    }

    /// What others hang on it.
    pub(crate) fn context(&self) -> TraceContext {
        self.context.clone()
    }

    /// It is over.
    pub(crate) fn end(mut self, facts: Vec<(&'static str, Fact)>, fault: Option<&'static str>) {
        (self.facts, self.fault) = (facts, fault);
    }
}

impl Drop for OpenSpan {
    fn drop(&mut self) {
        self.sink.record(ClientSpan {
            context: self.context.clone(),
            parent: self.parent,
            role: self.role.clone(),
            op: self.op,
            began: self.began,
            ended: self.sink.now(),
            facts: std::mem::take(&mut self.facts),
            fault: self.fault,
        });
    }
}

/// Nobody waited for the end of it.
const GIVEN_UP: &str = "given_up";

/// Whether a request of this kind begins a trace where none is given: what an engine does for a request of its user,
/// and what an operator does. Registrations, heartbeats and questions for figures come all the time and explain
/// nothing.
pub fn begins_a_trace(kind: &str) -> bool {
    matches!(kind, "open" | "extend" | "step" | "close" | "abort" | "probe" | "flush" | "pin" | "drain" | "handover")
}
