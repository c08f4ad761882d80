//! Requests of an engine: said again until answered, each answered once.

use std::sync::Arc;

use hicached_actors::protocol::{
    Address, Answer, Bin, Envelope, HEADER_BYTES_MAX, OpId, Request, Time, VERSION, encode,
};

use super::Engine;
use crate::net::{Message, Net, To};

/// What a request was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// A rank joins.
    Register(u8),
    /// Session of that number opens.
    Open(u64),
    /// It wants more pages.
    Extend(u64),
    /// The step of that number.
    Step(u64),
    /// Session of that number ends.
    Close(u64),
    /// Session of that number is given up.
    Abort(u64),
    /// Session of that number waits for its pages.
    Handover(u64),
    /// Sent at that instant.
    Heartbeat(Time),
    /// Anything whose answer a script or the end of a run reads.
    Plain,
}

/// A request without its answer.
#[derive(Clone, Debug)]
pub struct Pending {
    /// What it was for.
    pub ask: Ask,
    op: OpId,
    request: Request,
    due: Time,
    tries: u32,
    /// When it was first sent.
    pub since: Time,
}

impl Engine {
    /// Sends `request` and repeats it until it is answered; its number.
    pub fn ask(&mut self, net: &mut Net, ask: Ask, op: OpId, request: Request) -> u64 {
        self.requests_made += 1;
        let number = self.requests_made;
        let due = Self::due(net, 0);
        self.post(net, number, op, &request);
        self.pending.insert(number, Pending { ask, op, request, due, tries: 0, since: net.now });
        number
    }

    /// Repeats what is due.
    pub fn repeat_due(&mut self, net: &mut Net) {
        let due: Vec<u64> =
            self.pending.iter().filter(|(_, pending)| pending.due <= net.now).map(|(number, _)| *number).collect();
        for number in due {
            let Some(pending) = self.pending.get_mut(&number) else { continue };
            pending.tries += 1;
            pending.due = Self::due(net, pending.tries);
            if let Request::Register(register) = &mut pending.request
                && self.tells_launched
            {
                register.last_step = self.launched;
            }
            let (op, request) = (pending.op, pending.request.clone());
            self.post(net, number, op, &request);
        }
    }

    /// Lets a refused request be sent again after `ms`.
    pub fn ask_again(&mut self, net: &mut Net, number: u64, mut pending: Pending, ms: u64) {
        pending.due = net.now.plus_ms(ms.max(1));
        self.pending.insert(number, pending);
    }

    /// Sends the step that is expected at once, when it is still unanswered.
    pub fn hurry_step(&mut self, net: &Net, step: u64) {
        if let Some(pending) = self.pending.values_mut().find(|pending| pending.ask == Ask::Step(step)) {
            pending.due = pending.due.min(net.now);
        }
    }

    /// Takes the first answer to a request; `None` when it was answered before.
    pub fn answered(&mut self, bytes: &[u8], number: u64) -> Option<(Pending, Answer, Envelope)> {
        let envelope = Envelope::decode(bytes).ok()?;
        let answer = Answer::decode_body(&envelope.kind, &envelope.body.0)?.ok()?;
        let pending = self.pending.remove(&number);
        if pending.is_none() {
            self.late_answers += 1;
        }
        Some((pending?, answer, envelope))
    }

    fn due(net: &mut Net, tries: u32) -> Time {
        let pause_ms = (300_u64 << tries.min(4)).min(4_000);
        net.now.plus_ms(net.chance.within(pause_ms * 3 / 4, pause_ms))
    }

    fn post(&mut self, net: &mut Net, number: u64, op: OpId, request: &Request) {
        let kind = request.code();
        let urgent = hicached_actors::machine::is_urgent(kind);
        let envelope = Envelope {
            version: VERSION,
            kind: kind.to_owned(),
            id: self.ids.draw(),
            op,
            sender: Address::Engine.to_string(),
            incarnation: self.lives[0],
            control: self.control,
            seq: 0,
            urgent,
            remaining_ms: 10_000,
            body: Bin(request.encode_body()),
        };
        let bytes = encode(&envelope);
        if bytes.len() + HEADER_BYTES_MAX > self.payload_bytes_max {
            // The client library refuses it with both sizes; nothing goes out and nothing is repeated.
            self.pending.remove(&number);
            return;
        }
        let reply: Arc<str> = number.to_string().into();
        let message = Message {
            from: Address::Engine,
            to: To::Actor(Address::Index),
            bytes: bytes.into(),
            reply: Some(reply),
            trace: None,
        };
        net.send(message, urgent);
    }
}
