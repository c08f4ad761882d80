//! That every op of a recorded trace says once what it was: no span is lost and none comes twice, whatever happens.

use std::collections::{BTreeMap, BTreeSet};

use hicached_actors::host::{Dest, Parcel};
use hicached_actors::machine::Trace;
use hicached_actors::protocol::{Address, Envelope, Incarnation, OpId};
use hicached_actors::span::{Sampling, Span, TraceContext};

use crate::checks::Violation;
use crate::net::Message;

/// What has been said of the ops of one control incarnation.
#[derive(Debug, Default)]
pub(crate) struct SpanChecks {
    delivered: u64,
    /// Ops that began, with how many spans each has.
    ops: BTreeMap<(&'static str, OpId), u32>,
    /// Every span there was, by trace and id.
    ids: BTreeSet<([u8; 16], [u8; 8])>,
}

impl SpanChecks {
    /// The context in which `message` is handled: a span of its own in its trace. What an engine asks is a trace of
    /// its own. Only what a member of the control incarnation `life` asks begins an op.
    pub(crate) fn handled(&mut self, to: Address, message: &Message, life: Incarnation) -> Trace {
        let envelope = Envelope::decode(&message.bytes).ok()?;
        let trace_id = match (&message.trace, message.from) {
            (Some(context), _) => context.trace_id,
            (None, Address::Engine) => envelope.op.0,
            (None, _) => return None,
        };
        if message.from != Address::Engine
            && envelope.incarnation == life
            && let Some(name) = begins(to, &envelope.kind)
        {
            self.ops.entry((name, envelope.op)).or_default();
        }
        self.delivered += 1;
        let span_id = self.delivered.to_be_bytes();
        Some(TraceContext { trace_id, span_id, sampling: Sampling::Sampled })
    }

    /// A machine says something: what it refuses has not begun, and a session that is opened ends.
    pub(crate) fn look(&mut self, from: Address, parcel: &Parcel) {
        let Ok(Envelope { kind, op, .. }) = Envelope::decode(&parcel.bytes) else { return };
        match (from, &parcel.to, kind.as_str()) {
            (Address::Index, Dest::Reply(_), "opened") => {
                self.ops.entry(("session", op)).or_default();
            }
            (Address::Allocator, _, "rejected") => self.not_begun("reserve", op),
            (Address::Writer, _, "rejected") => self.not_begun("backup", op),
            (Address::Loader, _, "rejected" | "load_busy") => self.not_begun("load", op),
            _ => {}
        }
    }

    /// Ops are over.
    ///
    /// # Errors
    /// One that was over already, or an id that another span has.
    pub(crate) fn said(&mut self, from: Address, spans: &[Span]) -> Result<(), Violation> {
        for span in spans {
            let context = span.context();
            if !self.ids.insert((context.trace_id, context.span_id)) {
                let detail = format!("{from} says twice what {} of {:?} was", span.name, span.op);
                return Err(Violation { checker: "D6", detail });
            }
            if span.began > span.ended {
                let detail = format!("{from}: {} of {:?} ends before it began", span.name, span.op);
                return Err(Violation { checker: "D6", detail });
            }
            let Some(spans) = self.ops.get_mut(&(span.name, span.op)) else { continue };
            *spans += 1;
            if *spans > 1 {
                let detail = format!("{from} has two spans {} of {:?}", span.name, span.op);
                return Err(Violation { checker: "D6", detail });
            }
        }
        Ok(())
    }

    /// Nothing runs any more: every op has said what it was.
    ///
    /// # Errors
    /// One that has not.
    pub(crate) fn all_said(&self) -> Result<(), Violation> {
        match self.ops.iter().find(|(_, spans)| **spans == 0) {
            None => Ok(()),
            Some(((name, op), _)) => {
                Err(Violation { checker: "D6", detail: format!("nobody says what {name} of {op:?} was") })
            }
        }
    }

    fn not_begun(&mut self, name: &'static str, op: OpId) {
        if self.ops.get(&(name, op)) == Some(&0) {
            self.ops.remove(&(name, op));
        }
    }
}

/// The span in which an op ends that begins with a message of this kind.
fn begins(to: Address, kind: &str) -> Option<&'static str> {
    match (to, kind) {
        (Address::Allocator, "reserve") => Some("reserve"),
        (Address::Writer, "backup") => Some("backup"),
        (Address::Loader, "load") => Some("load"),
        (Address::Evictor, "make_room") | (Address::Index, "evict") => Some("evict"),
        _ => None,
    }
}
