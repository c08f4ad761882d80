//! Bytes around a machine: decodes what comes, numbers and encodes what goes. The shell and the
//! simulator both drive machines through this, so that both carry the same bytes.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::link::Link;
use crate::machine::{Effect, Inbound, Machine, ReplyTo, Sender, Trace, is_urgent};
use crate::protocol::{
    Address, Answer, Envelope, Figures, Incarnation, OpIds, Outgoing, Refusal, Resync, StatusIs, Time, Unsupported,
    VERSION, decode, encode,
};
use crate::span::{Span, TraceContext};

/// A machine with its numbers and its name.
#[derive(Debug)]
pub struct Host<M> {
    /// The machine.
    pub machine: M,
    address: Address,
    /// Its own life; of a control machine, that of the control group.
    incarnation: Incarnation,
    control: Incarnation,
    link: Link,
    ids: OpIds,
    payload_bytes_max: usize,
    effects: Vec<Effect>,
    counts: Counts,
    /// Sums of `Mark` effects.
    marked: BTreeMap<&'static str, u64>,
    beside: Option<Beside>,
}

/// Figures of what a host shares with others: how it sends, and what becomes of its spans.
#[derive(Clone)]
pub struct Beside(pub Arc<dyn Fn() -> Vec<(&'static str, u64)> + Send + Sync>);

impl std::fmt::Debug for Beside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries((self.0)()).finish()
    }
}

/// Messages a host did not hand on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Bytes that are no envelope, or a body that does not follow its schema.
    pub malformed: u64,
    /// Unknown kinds and versions.
    pub unsupported: u64,
    /// From another control incarnation.
    pub stale: u64,
    /// Larger than the bus carries.
    pub oversize: u64,
}

/// Where bytes go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dest {
    /// A member of the group.
    Actor(Address),
    /// The sender or receiver of another group.
    Peer(crate::protocol::GroupName, Address),
    /// A reply subject.
    Reply(ReplyTo),
    /// Whoever listens to the group's events.
    Events,
}

/// Bytes on their way.
#[derive(Clone, Debug)]
pub struct Parcel {
    /// Where to.
    pub to: Dest,
    /// Whether it rides with what frees.
    pub urgent: bool,
    /// The envelope.
    pub bytes: Vec<u8>,
    /// Trace context for the headers.
    pub trace: Trace,
}

/// What a host produced: bytes to send and numbers to record.
#[derive(Debug, Default)]
pub struct Output {
    /// In order per destination.
    pub parcels: Vec<Parcel>,
    /// `Mark` effects.
    pub marks: Vec<(crate::protocol::OpId, &'static str, u64)>,
    /// Spans that are over.
    pub spans: Vec<Span>,
    /// Further traces that the message just handled serves.
    pub links: Vec<TraceContext>,
}

impl<M: Machine> Host<M> {
    /// Hosts `machine` under `address` in the control incarnation `control`; `incarnation` is its own life.
    pub fn new(
        machine: M,
        address: Address,
        incarnation: Incarnation,
        control: Incarnation,
        payload_bytes_max: usize,
    ) -> Self {
        Self {
            machine,
            address,
            incarnation,
            control,
            link: Link::new(GAP_MS),
            ids: OpIds::new(incarnation),
            payload_bytes_max,
            effects: Vec::new(),
            counts: Counts::default(),
            marked: BTreeMap::new(),
            beside: None,
        }
    }

    /// Tells these figures with its own.
    pub fn set_beside(&mut self, figures: Beside) {
        self.beside = Some(figures);
    }

    /// Takes the bytes of one message.
    pub fn deliver(&mut self, now: Time, bytes: &[u8], reply: Option<Arc<str>>, trace: Trace, out: &mut Output) {
        let reply = reply.map(ReplyTo);
        let envelope = match Envelope::decode(bytes) {
            Ok(envelope) => envelope,
            Err(refusal) => return self.refuse(reply, None, refusal, out),
        };
        let address = match Address::parse(&envelope.sender) {
            Ok(address) => address,
            Err(malformed) => return self.refuse(reply, Some(&envelope), malformed.into(), out),
        };
        if self.is_stale(address, &envelope) {
            self.counts.stale += 1;
            return;
        }
        if address != Address::Engine && !self.is_peer(address) {
            self.link.saw(now, (address, envelope.urgent), envelope.incarnation, envelope.seq);
        }
        if envelope.kind == "resync" {
            return match decode::<Resync>(&envelope.body.0) {
                Ok(_) => {
                    self.machine.resync(now, address, &mut self.effects);
                    self.send_effects(out);
                }
                Err(malformed) => self.refuse(reply, Some(&envelope), malformed.into(), out),
            };
        }
        if envelope.kind == FIGURES {
            return match (decode::<Figures>(&envelope.body.0), reply) {
                (Ok(_), Some(to)) => self.tell_figures(to, envelope.op, out),
                // Nobody waits for them.
                (Ok(_), None) => {}
                (Err(malformed), reply) => self.refuse(reply, Some(&envelope), malformed.into(), out),
            };
        }
        let msg = match M::In::decode_body(&envelope.kind, &envelope.body.0) {
            Some(Ok(msg)) => msg,
            Some(Err(malformed)) => return self.refuse(reply, Some(&envelope), malformed.into(), out),
            None => {
                let unknown = Unsupported {
                    field: "kind".to_owned(),
                    value: envelope.kind.chars().take(64).collect(),
                    limit: format!("a kind of {}", self.address),
                };
                return self.refuse(reply, Some(&envelope), unknown.into(), out);
            }
        };
        let sender = Sender {
            address,
            incarnation: envelope.incarnation,
            control: envelope.control,
            op: envelope.op,
            reply,
            remaining_ms: envelope.remaining_ms,
            trace,
        };
        self.machine.handle(now, &sender, msg, &mut self.effects);
        self.send_effects(out);
    }

    /// Acts on time.
    pub fn wake(&mut self, now: Time, out: &mut Output) {
        for (peer, expected) in self.link.wake(now) {
            let body = encode(&Resync { expected });
            self.send(Dest::Actor(peer), "resync", crate::protocol::OpId::default(), body, None, out);
        }
        self.machine.wake(now, &mut self.effects);
        self.send_effects(out);
    }

    /// The earliest deadline and what it is for.
    pub fn next_deadline(&self) -> Option<(Time, &'static str)> {
        let gap = self.link.next_deadline().map(|at| (at, "gap"));
        [self.machine.next_deadline(), gap].into_iter().flatten().min()
    }

    /// Named figures: the machine's, the link's, the host's own, the sum of every mark and what is told beside them.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut all = self.machine.counters();
        all.extend(self.link.counters());
        let Counts { malformed, unsupported, stale, oversize } = self.counts;
        all.extend([
            ("host.malformed", malformed),
            ("host.unsupported", unsupported),
            ("host.stale", stale),
            ("host.oversize", oversize),
        ]);
        all.extend(self.marked.iter().map(|(name, value)| (*name, *value)));
        all.extend(self.beside.iter().flat_map(|beside| (beside.0)()));
        all
    }

    /// The control incarnation is `control` from now on: for a rank, which obeys one after the other.
    pub fn set_control(&mut self, control: Incarnation) {
        self.control = control;
    }

    /// Runs `act` on the machine and sends what comes of it: how a shell starts a machine.
    pub fn with(&mut self, out: &mut Output, act: impl FnOnce(&mut M, &mut Vec<Effect>)) {
        act(&mut self.machine, &mut self.effects);
        self.send_effects(out);
    }

    /// Between machines of a control group only its own incarnation counts; ranks and engines are judged
    /// by the machine that knows their lives.
    fn is_stale(&self, sender: Address, envelope: &Envelope) -> bool {
        match sender {
            Address::Index | Address::Allocator | Address::Evictor | Address::Writer | Address::Loader => {
                // Only a rank knows `adopt`: a new control incarnation begins with it.
                envelope.incarnation != self.control && envelope.kind != "adopt"
            }
            // The machine knows the lives of its peers.
            Address::Sender | Address::Receiver if self.is_peer(sender) => false,
            Address::Sender | Address::Receiver => envelope.incarnation != self.control,
            Address::Rank(_) => envelope.control != self.control && envelope.kind != "rank_hello",
            Address::Engine => false,
        }
    }

    /// Whether `sender` is the counterpart of this member in another group: the two of one group never talk.
    fn is_peer(&self, sender: Address) -> bool {
        matches!((self.address, sender), (Address::Sender, Address::Receiver) | (Address::Receiver, Address::Sender))
    }

    fn refuse(&mut self, reply: Option<ReplyTo>, of: Option<&Envelope>, refusal: Refusal, out: &mut Output) {
        match &refusal {
            Refusal::Unsupported(_) => self.counts.unsupported += 1,
            _ => self.counts.malformed += 1,
        }
        if let Some(to) = reply {
            let answer = Answer::Refused(refusal);
            let op = of.map(|envelope| envelope.op).unwrap_or_default();
            self.send(Dest::Reply(to), answer.code(), op, answer.encode_body(), None, out);
        }
    }

    fn tell_figures(&mut self, to: ReplyTo, op: crate::protocol::OpId, out: &mut Output) {
        let counters = self.counters().into_iter().map(|(name, value)| (name.to_owned(), value));
        let counters = counters.chain(self.machine.rank_counters()).collect();
        let answer = Answer::StatusIs(StatusIs { counters });
        self.send(Dest::Reply(to), answer.code(), op, answer.encode_body(), None, out);
    }

    fn send_effects(&mut self, out: &mut Output) {
        let mut effects = std::mem::take(&mut self.effects);
        for effect in effects.drain(..) {
            match effect {
                Effect::Send { to, op, trace } => {
                    let (kind, body) = to.encode_body();
                    let dest = match &to {
                        Outgoing::PeerSender(group, _) => Dest::Peer(group.clone(), Address::Sender),
                        Outgoing::PeerReceiver(group, _) => Dest::Peer(group.clone(), Address::Receiver),
                        _ => to.address().map_or(Dest::Events, Dest::Actor),
                    };
                    self.send(dest, kind, op, body, trace, out);
                }
                Effect::Reply { to, op, answer } => {
                    self.send(Dest::Reply(to), answer.code(), op, answer.encode_body(), None, out);
                }
                Effect::Mark { op, name, value } => {
                    *self.marked.entry(name).or_insert(0) += value;
                    out.marks.push((op, name, value));
                }
                Effect::Span(span) => out.spans.push(*span),
                Effect::Link(to) => out.links.push(to),
            }
        }
        self.effects = effects;
    }

    fn send(&mut self, to: Dest, kind: &str, op: crate::protocol::OpId, body: Vec<u8>, trace: Trace, out: &mut Output) {
        let urgent = is_urgent(kind);
        let seq = match &to {
            Dest::Actor(address) => self.link.give(*address, urgent),
            // Between groups nothing is numbered: one member there talks to many here, and every request is repeated.
            Dest::Peer(..) | Dest::Reply(_) | Dest::Events => 0,
        };
        let envelope = Envelope {
            version: VERSION,
            kind: kind.to_owned(),
            id: self.ids.draw(),
            op,
            sender: self.address.to_string(),
            incarnation: self.incarnation,
            control: self.control,
            seq,
            urgent,
            remaining_ms: 0,
            body: crate::protocol::Bin(body),
        };
        match envelope.encode(self.payload_bytes_max) {
            Ok(bytes) => out.parcels.push(Parcel { to, urgent, bytes, trace }),
            Err(too_large) => {
                self.counts.oversize += 1;
                if let Dest::Reply(_) = to {
                    let answer = Answer::Refused(too_large.into());
                    let body = crate::protocol::Bin(answer.encode_body());
                    let envelope = Envelope { kind: answer.code().to_owned(), body, ..envelope };
                    out.parcels.push(Parcel { to, urgent, bytes: encode(&envelope), trace });
                }
            }
        }
    }
}

/// The kind of [`Figures`], which every host answers beside what its machine understands.
pub const FIGURES: &str = "figures";
/// How long numbers may be missing before the sender is asked (requirement D3).
pub const GAP_MS: u64 = 100;
