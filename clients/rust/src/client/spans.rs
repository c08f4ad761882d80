//! The span of one call: from its first try to its answer, with every try hanging on it.

use std::sync::Arc;

use hicached_actors::machine::Trace;
use hicached_actors::protocol::{Address, OpId};
use hicached_actors::span::Fact;

use super::{Client, ClientError};
use crate::spans::{OpenSpan, Role, begins_a_trace};

impl Client {
    /// Begins the span of a message of `kind` that waits for an answer; `None` when nobody records it.
    pub(super) fn begin_call(&self, to: Address, op: OpId, kind: &'static str) -> Option<OpenSpan> {
        self.begin_span(to, op, kind, |subject| Role::Call { kind, subject })
    }

    /// Begins the span of a message of `kind` that waits for nothing; `None` when nobody records it.
    pub(super) fn begin_tell(&self, to: Address, op: OpId, kind: &'static str) -> Option<OpenSpan> {
        self.begin_span(to, op, kind, |subject| Role::Tell { kind, subject })
    }

    fn begin_span(&self, to: Address, op: OpId, kind: &str, role: impl FnOnce(Arc<str>) -> Role) -> Option<OpenSpan> {
        let config = &self.shared.config;
        let role = || role(to.subject(&config.group).into());
        match &self.trace {
            Some(parent) => OpenSpan::below(&config.spans, parent, op, role),
            None if begins_a_trace(kind) => OpenSpan::root(&config.spans, op, role),
            None => None,
        }
    }

    /// What a message carries in its headers: its own span, or without one what the client was given.
    pub(super) fn trace_of(&self, span: Option<&OpenSpan>) -> Trace {
        span.map(OpenSpan::context).or_else(|| self.trace())
    }
}

/// The call is over, after `repeats` tries that were not answered.
pub(super) fn end_call(span: Option<OpenSpan>, repeats: u32, error: Option<&ClientError>) {
    if let Some(span) = span {
        span.end(vec![("repeats", Fact::Count(repeats.into()))], error.map(ClientError::code));
    }
}
