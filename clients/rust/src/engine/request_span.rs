//! The span of one request of the engine: the root of its trace, on which every call for it hangs.

use hicached_actors::protocol::OpId;
use hicached_actors::span::Fact;

use super::{Ended, EngineError};
use crate::spans::{OpenSpan, Role, Spans};

/// Begins a trace; `None` when nobody records it.
pub(super) fn begin(spans: &Spans) -> Option<OpenSpan> {
    OpenSpan::root(spans, OpId::default(), || Role::Request)
}

/// The request is over.
pub(super) fn end(span: OpenSpan, ended: &Ended, error: Option<&EngineError>) {
    let facts = vec![
        ("request", Fact::Count(ended.number as u64)),
        ("full_pages", Fact::Count(ended.full_pages.into())),
        ("l1_hit_pages", Fact::Count(ended.hit.l1.into())),
        ("l2_hit_pages", Fact::Count(ended.hit.l2.into())),
        ("sessions", Fact::Count(ended.sessions.into())),
        ("how", Fact::Text(ended.how.name().to_owned())),
    ];
    let fault = error.map(|error| match error {
        EngineError::Client(error) => error.code(),
        EngineError::Shm(_) => "shared_memory",
        EngineError::Config { .. } => "config",
    });
    span.end(facts, fault);
}
