//! What every machine is: time and a message in, effects out.

use std::sync::Arc;

use crate::protocol::{Address, Answer, Incarnation, Malformed, OpId, Outgoing, Time};
use crate::span::{Span, TraceContext};

/// The trace an op belongs to, kept with it and passed on; `None` when nobody records it.
pub type Trace = Option<TraceContext>;

/// Where an answer goes: the reply subject of the request, opaque to machines.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReplyTo(pub Arc<str>);

/// Who sent a message, and what its envelope said.
#[derive(Clone, Debug)]
pub struct Sender {
    /// The member of the group, or an engine.
    pub address: Address,
    /// Its life.
    pub incarnation: Incarnation,
    /// The control incarnation it means; all zero when it knows none.
    pub control: Incarnation,
    /// The op or session of the message.
    pub op: OpId,
    /// Where an answer goes, when one is waited for.
    pub reply: Option<ReplyTo>,
    /// How long it is waited for.
    pub remaining_ms: u32,
    /// Its trace context.
    pub trace: Trace,
}

/// What a machine wants done. Effects run in order per destination; each may be repeated by its op.
#[derive(Clone, Debug)]
pub enum Effect {
    /// A message to a member of the group.
    Send {
        /// To whom, and what.
        to: Outgoing,
        /// The op it speaks of.
        op: OpId,
        /// The op's trace context.
        trace: Trace,
    },
    /// The answer to a request from outside.
    Reply {
        /// The request's reply subject.
        to: ReplyTo,
        /// The op or session.
        op: OpId,
        /// What it gets.
        answer: Answer,
    },
    /// A number for the span of an op, or for a counter when the op is all zero.
    Mark {
        /// The op.
        op: OpId,
        /// What is counted.
        name: &'static str,
        /// How much.
        value: u64,
    },
    /// An op of a recorded trace, or a part of one, is over.
    Span(Box<Span>),
    /// The message being handled serves this trace, too: its span gets a link.
    Link(TraceContext),
}

impl Effect {
    /// An op of a recorded trace is over.
    pub fn span(span: Span) -> Self {
        Self::Span(Box::new(span))
    }
}

/// A message type that one inbox takes.
pub trait Inbound: Sized {
    /// Reads the body of `kind`; `None` when this inbox does not know the kind.
    fn decode_body(kind: &str, body: &[u8]) -> Option<Result<Self, Malformed>>;
}

/// A pure actor.
pub trait Machine {
    /// Its typed inbox.
    type In: Inbound;

    /// Takes one message.
    fn handle(&mut self, now: Time, from: &Sender, msg: Self::In, out: &mut Vec<Effect>);

    /// Acts on every deadline that has come; the only place that acts on time.
    fn wake(&mut self, now: Time, out: &mut Vec<Effect>);

    /// The earliest deadline and what it is for.
    fn next_deadline(&self) -> Option<(Time, &'static str)>;

    /// A peer misses messages of this machine: say again what is open between the two.
    fn resync(&mut self, now: Time, peer: Address, out: &mut Vec<Effect>);

    /// Whether this life of the machine is over although its process lives: whoever hosts it ends it and hosts another
    /// one under a new incarnation. It refuses every request from then on.
    fn is_over(&self) -> bool {
        false
    }

    /// Panics when the machine contradicts itself; run after every simulated step.
    fn check_invariants(&self);

    /// Named figures in a fixed order.
    fn counters(&self) -> Vec<(&'static str, u64)>;

    /// Figures of each rank apart, whose names tell the rank.
    fn rank_counters(&self) -> Vec<(String, u64)> {
        Vec::new()
    }
}

macro_rules! inbound {
    ($($ty:ty),*) => {$(
        impl Inbound for $ty {
            fn decode_body(kind: &str, body: &[u8]) -> Option<Result<Self, Malformed>> {
                <$ty>::decode_body(kind, body)
            }
        }
    )*};
}
inbound!(
    crate::protocol::IndexIn,
    crate::protocol::AllocatorIn,
    crate::protocol::EvictorIn,
    crate::protocol::WriterIn,
    crate::protocol::LoaderIn,
    crate::protocol::SenderIn,
    crate::protocol::ReceiverIn,
    crate::protocol::RankIn
);

impl Outgoing {
    /// The member it goes to, or the counterpart in another group; `None` for an event.
    pub fn address(&self) -> Option<Address> {
        Some(match self {
            Self::Index(_) => Address::Index,
            Self::Allocator(_) => Address::Allocator,
            Self::Evictor(_) => Address::Evictor,
            Self::Writer(_) => Address::Writer,
            Self::Loader(_) => Address::Loader,
            Self::Sender(_) | Self::PeerSender(..) => Address::Sender,
            Self::Receiver(_) | Self::PeerReceiver(..) => Address::Receiver,
            Self::Rank(rank, _) => Address::Rank(*rank),
            Self::Event(_) => return None,
        })
    }

    /// Kind and body for an envelope.
    pub fn encode_body(&self) -> (&'static str, Vec<u8>) {
        match self {
            Self::Index(msg) => (msg.code(), msg.encode_body()),
            Self::Allocator(msg) => (msg.code(), msg.encode_body()),
            Self::Evictor(msg) => (msg.code(), msg.encode_body()),
            Self::Writer(msg) => (msg.code(), msg.encode_body()),
            Self::Loader(msg) => (msg.code(), msg.encode_body()),
            Self::Sender(msg) | Self::PeerSender(_, msg) => (msg.code(), msg.encode_body()),
            Self::Receiver(msg) | Self::PeerReceiver(_, msg) => (msg.code(), msg.encode_body()),
            Self::Rank(_, msg) => (msg.code(), msg.encode_body()),
            Self::Event(event) => ("event", crate::protocol::encode(event)),
        }
    }
}

/// Whether messages of this kind ride with what frees, before what takes.
pub fn is_urgent(kind: &str) -> bool {
    matches!(
        kind,
        "free"
            | "freed"
            | "room_made"
            | "evicted"
            | "copy_ack"
            | "sealed"
            | "stop"
            | "passed"
            | "backup_complete"
            | "backup_failed"
            | "backup_verdict"
            // In front of the end of the same load, which would overtake it in another class.
            | "load_started"
            | "load_ended"
            | "op_settled"
            | "release_slot"
            | "rank_hello"
            | "rank_is"
            | "adopt"
            | "abort"
            | "heartbeat"
            | "resync"
            | "whose"
            | "whose_is"
            | "send_stop"
            | "send_over"
            | "unexpect"
            | "arrived"
            | "not_arriving"
            | "handover_settled"
            | "meet"
            | "met"
            | "received"
            | "cease"
            | "ceased"
            | "ceased_heard"
            | "revoke"
            | "revoked"
            | "pushed"
            | "stop_push"
            | "push_stopped"
    )
}
