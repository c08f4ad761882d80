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

/// Whether a request of this kind begins a trace where none is given: what an engine does for a request of its user,
/// and what an operator does. Registrations, heartbeats and questions for figures come all the time and explain
/// nothing.
pub fn begins_a_trace(kind: &str) -> bool {
    matches!(kind, "open" | "extend" | "step" | "close" | "abort" | "probe" | "flush" | "pin" | "drain" | "handover")
}
