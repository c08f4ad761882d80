//! Conversations as lists of steps: says messages to a machine, keeps what it answers, and checks it after
//! every step.

use crate::machine::{Effect, Machine, ReplyTo, Sender};
use crate::protocol::{Address, Answer, Incarnation, OpId, Outgoing, Rank, Time};
use crate::span::{Sampling, Span, TraceContext};

/// A machine and the time it lives in.
#[derive(Debug)]
pub(crate) struct Script<M> {
    pub(crate) machine: M,
    pub(crate) now: Time,
    pub(crate) marks: Vec<(OpId, &'static str, u64)>,
    pub(crate) spans: Vec<Span>,
    pub(crate) replies: Vec<Answer>,
}

/// What was sent: the op and the message.
pub(crate) type Sent = Vec<(OpId, Outgoing)>;

/// The control incarnation of every script.
pub(crate) const CONTROL: Incarnation = Incarnation([0xc0; 16]);

/// The trace of everything that is said, unless it is said in another.
pub(crate) const TRACE: TraceContext = TraceContext { trace_id: [1; 16], span_id: [2; 8], sampling: Sampling::Sampled };

/// The `n`-th op of the index.
pub(crate) fn op(n: u64) -> OpId {
    OpId::new(CONTROL, n)
}

/// The `nth` life of a rank.
pub(crate) fn life(rank: u8, nth: u8) -> Incarnation {
    Incarnation([rank + 1, nth, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1])
}

impl<M: Machine> Script<M> {
    pub(crate) fn new(machine: M) -> Self {
        Self { machine, now: Time::ZERO, marks: Vec::new(), spans: Vec::new(), replies: Vec::new() }
    }

    /// Says `msg`, ranks in their first life.
    pub(crate) fn say(&mut self, from: Address, op: OpId, msg: impl Into<M::In>) -> Sent {
        let incarnation = match from {
            Address::Rank(Rank(rank)) => life(rank, 1),
            Address::Index
            | Address::Allocator
            | Address::Evictor
            | Address::Writer
            | Address::Loader
            | Address::Sender
            | Address::Receiver
            | Address::Engine => CONTROL,
        };
        self.say_as(from, incarnation, op, msg)
    }

    pub(crate) fn say_as(&mut self, from: Address, incarnation: Incarnation, op: OpId, msg: impl Into<M::In>) -> Sent {
        let reply = (from == Address::Engine).then(|| ReplyTo("reply".into()));
        let trace = Some(TRACE);
        let sender = Sender { address: from, incarnation, control: CONTROL, op, reply, remaining_ms: 0, trace };
        self.step(|machine, now, out| machine.handle(now, &sender, msg.into(), out))
    }

    /// Goes to the next deadline, which must be for `reason`, and acts on it: it must be gone afterwards.
    pub(crate) fn wake(&mut self, reason: &str) -> Sent {
        let (at, why) = self.machine.next_deadline().expect("a deadline");
        assert_eq!(why, reason);
        assert!(at >= self.now, "{why} was not acted on");
        self.now = at;
        let sent = self.step(|machine, now, out| machine.wake(now, out));
        assert!(self.machine.next_deadline().is_none_or(|(next, _)| next > at), "{why} acts and moves on");
        sent
    }

    /// Acts on every deadline of the next `ms`.
    pub(crate) fn pass(&mut self, ms: u64) -> Sent {
        let end = self.now.plus_ms(ms);
        let mut sent = Vec::new();
        while let Some((at, why)) = self.machine.next_deadline().filter(|(at, _)| *at <= end) {
            self.now = at.max(self.now);
            sent.extend(self.step(|machine, now, out| machine.wake(now, out)));
            assert!(self.machine.next_deadline().is_none_or(|(next, _)| next > at), "{why} acts and moves on");
        }
        self.now = end;
        sent
    }

    /// What the machine waits for next.
    pub(crate) fn next_reason(&self) -> Option<&'static str> {
        self.machine.next_deadline().map(|(_, why)| why)
    }

    pub(crate) fn resync(&mut self, peer: Address) -> Sent {
        self.step(|machine, now, out| machine.resync(now, peer, out))
    }

    pub(crate) fn counter(&self, name: &str) -> u64 {
        let all = self.machine.counters();
        all.iter().find(|(known, _)| *known == name).unwrap_or_else(|| panic!("no counter {name}")).1
    }

    /// The spans that were emitted since this was last asked.
    pub(crate) fn take_spans(&mut self) -> Vec<Span> {
        std::mem::take(&mut self.spans)
    }

    pub(crate) fn mark(&self, op: OpId, name: &str) -> Option<u64> {
        self.marks.iter().find(|(of, known, _)| *of == op && *known == name).map(|(_, _, value)| *value)
    }

    /// Codes of the refusals that were replied.
    pub(crate) fn refusals(&self) -> Vec<&'static str> {
        let refused = self.replies.iter().filter_map(|answer| match answer {
            Answer::Refused(refusal) => Some(refusal.code()),
            _ => None,
        });
        refused.collect()
    }

    fn step(&mut self, act: impl FnOnce(&mut M, Time, &mut Vec<Effect>)) -> Sent {
        let mut out = Vec::new();
        act(&mut self.machine, self.now, &mut out);
        self.machine.check_invariants();
        let mut sent = Vec::new();
        for effect in out {
            match effect {
                Effect::Send { to, op, trace } => {
                    let traced = trace == Some(TRACE);
                    assert!(traced || self.machine.next_deadline().is_some(), "{to:?} lost its trace");
                    sent.push((op, to));
                }
                Effect::Reply { answer, .. } => self.replies.push(answer),
                Effect::Mark { op, name, value } => self.marks.push((op, name, value)),
                Effect::Span(span) => self.spans.push(*span),
                Effect::Link(_) => {}
            }
        }
        sent
    }
}
