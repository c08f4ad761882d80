//! The consumer span of one handled message.
//!
//! The machine gets the span's own context, so that whatever it sends for the message, at once or later, hangs on it.

use hicached_actors::host::{Dest, Output};
use hicached_actors::machine::Trace;
use hicached_actors::protocol::{Address, Answer, Envelope, Refusal, Time};
use hicached_actors::span::{Parent, TraceContext};
use hicached_client::spans::begins_a_trace;

use super::outbox::{Handled, Record};
use super::recorder::Recorder;
use crate::bus::Frame;

/// A message that is being handled.
#[derive(Debug)]
pub struct Handling(Box<Handled>);

impl Handling {
    /// What the message's own effects hang on.
    pub fn trace(&self) -> Trace {
        Some(self.0.context.clone())
    }
}

impl Recorder {
    /// Begins the span of a message that `actor` is about to handle. A request of an engine without a context that
    /// can be read begins a trace; any other message without one, and what its sender does not record, has no span.
    pub fn begin(&self, actor: Address, frame: &Frame, now: Time) -> Option<Handling> {
        let parent = match frame.headers.trace_parent() {
            Parent::NotSampled => return None,
            Parent::Context(parent) => Some(parent),
            Parent::None => None,
        };
        let envelope = Envelope::decode(&frame.payload);
        let context = match (&parent, &envelope) {
            (Some(parent), _) => TraceContext { span_id: self.span_id(), ..parent.clone() },
            (None, Ok(envelope)) if envelope.sender == ENGINE && begins_a_trace(&envelope.kind) => self.begin_trace(),
            (None, _) => return None,
        };
        let (kind, message, op, sender) = match envelope {
            Ok(Envelope { kind, id, op, sender, .. }) => (kind, id, op, sender),
            Err(_) => Default::default(),
        };
        let cut =
            |text: String| if text.len() > NAME_CHARS_MAX { text.chars().take(NAME_CHARS_MAX).collect() } else { text };
        Some(Handling(Box::new(Handled {
            context,
            parent: parent.map(|parent| parent.span_id),
            actor,
            subject: frame.subject.clone(),
            kind: cut(kind),
            kind_is_known: true,
            message,
            op,
            sender: cut(sender),
            bytes: frame.payload.len(),
            began: now,
            ended: now,
            links: Vec::new(),
            fault: None,
        })))
    }

    /// The message was handled, with this result; further traces it served leave `out` for its span.
    pub fn end(&self, Handling(mut handled): Handling, out: &mut Output, now: Time) {
        handled.ended = now;
        for link in out.links.drain(..) {
            if !handled.links.contains(&link) {
                handled.links.push(link);
            }
        }
        let refusal = out
            .parcels
            .iter()
            .filter(|parcel| matches!(parcel.to, Dest::Reply(_)))
            .find_map(|parcel| refusal_in(&parcel.bytes));
        if let Some(refusal) = refusal {
            handled.kind_is_known = !matches!(refusal, Refusal::Unsupported(_) | Refusal::Malformed(_));
            handled.fault = Some(refusal.code().to_owned());
        }
        self.take(Record::Handled(handled));
    }
}

fn refusal_in(answer: &[u8]) -> Option<Refusal> {
    let envelope = Envelope::decode(answer).ok()?;
    if envelope.kind != REFUSED {
        return None;
    }
    match Answer::decode_body(&envelope.kind, &envelope.body.0)?.ok()? {
        Answer::Refused(refusal) => Some(refusal),
        _ => None,
    }
}

/// How an engine signs.
const ENGINE: &str = "engine";
/// Kind of an answer that says no.
const REFUSED: &str = "refused";
/// Names from outside are cut here: the longest of ours has less than half.
const NAME_CHARS_MAX: usize = 64;
