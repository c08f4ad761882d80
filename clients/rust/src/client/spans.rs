//! The span of one call: from its first try to its answer, with every try hanging on it.

use std::sync::Arc;

use hicached_actors::machine::Trace;
use hicached_actors::protocol::{OpId, Time};
use hicached_actors::span::{Fact, TraceContext};

use super::{Client, ClientError};
use crate::spans::{ClientSpan, Role, SpanSink, begins_a_trace};

/// A call whose span is yet to be written.
pub(super) struct OpenSpan {
    sink: Arc<dyn SpanSink>,
    context: TraceContext,
    parent: Option<[u8; 8]>,
    op: OpId,
    began: Time,
}

impl Client {
    /// Begins the span of a message of `kind`; `None` when nobody records it.
    pub(super) fn begin_span(&self, op: OpId, kind: &str) -> Option<OpenSpan> {
        let sink = self.shared.config.spans.as_ref()?;
        let (context, parent) = match &self.trace {
            Some(parent) => (sink.child(parent), Some(parent.span_id)),
            None if begins_a_trace(kind) => (sink.root()?, None),
            None => return None,
        };
        Some(OpenSpan { sink: sink.clone(), context, parent, op, began: sink.now() })
    }

    /// What a message carries in its headers: its own span, or without one what the client was given.
    pub(super) fn trace_of(&self, span: Option<&OpenSpan>) -> Trace {
        span.map(|span| span.context.clone()).or_else(|| self.trace.clone())
    }
}

impl OpenSpan {
    /// It is over, after `repeats` tries that were not answered.
    pub(super) fn end(self, role: Role, repeats: u32, error: Option<&ClientError>) {
        let Self { sink, context, parent, op, began } = self;
        let facts = match role {
            Role::Call { .. } => vec![("repeats", Fact::Count(u64::from(repeats)))],
            Role::Tell { .. } | Role::Request => Vec::new(),
        };
        let fault = error.map(ClientError::code);
        sink.record(ClientSpan { context, parent, role, op, began, ended: sink.now(), facts, fault });
    }
}
