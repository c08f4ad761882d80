//! A build without traces: there is never a recorder, and whatever would use one is not built.

use std::convert::Infallible;

use hicached_actors::host::Output;
use hicached_actors::machine::Trace;
use hicached_actors::protocol::{Address, Time};
use hicached_actors::span::{Span, TraceContext};
use hicached_client::spans::{ClientSpan, SpanSink};

use crate::bus::Frame;

/// Nobody.
#[derive(Debug)]
pub struct Recorder(Infallible);

/// No message is handled with a span.
#[derive(Debug)]
pub struct Handling(Infallible);

impl Handling {
    /// Never called.
    pub fn trace(&self) -> Trace {
        match self.0 {}
    }
}

impl Recorder {
    /// Never called.
    pub fn begin(&self, _: Address, _: &Frame, _: Time) -> Option<Handling> {
        match self.0 {}
    }

    /// Never called.
    pub fn end(&self, _: Handling, _: &mut Output, _: Time) {
        match self.0 {}
    }

    /// Never called.
    pub fn told(&self, _: Address, _: impl Iterator<Item = Span>) {
        match self.0 {}
    }
}

impl SpanSink for Recorder {
    fn now(&self) -> Time {
        match self.0 {}
    }

    fn root(&self) -> Trace {
        match self.0 {}
    }

    fn child(&self, _: &TraceContext) -> TraceContext {
        match self.0 {}
    }

    fn record(&self, _: ClientSpan) {
        match self.0 {}
    }
}
