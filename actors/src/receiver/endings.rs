//! How a transfer ends: complete, or given up, and then only when it is proven that nothing can land any more.

use super::conversation::SUPERSEDED;
use super::op::{ACCEPT, CEASE, END, Gone, Outcome, REPORT, REVOKE, State};
use super::{Alarm, RANK, Receiver, tell, tell_peer};
use crate::attempts::Standing;
use crate::faults::Fault;
use crate::machine::{Effect, Sender};
use crate::protocol::{
    Address, Cease, Ceased, CeasedHeard, NotArriving, OpId, Outgoing, Received, Refusal, Revoke, Time, Unexpect, brief,
};

impl Receiver {
    /// The index gives an attempt up.
    pub(super) fn unexpect(&mut self, now: Time, from: &Sender, msg: &Unexpect, out: &mut Vec<Effect>) {
        match self.standing(from.op, msg.attempt) {
            Standing::New => {
                // A request to begin it may still be on its way.
                let failure = "it had not begun";
                say_not_arriving(from, msg.attempt, failure, out);
                self.ended.note(now, from.op, Outcome { attempt: msg.attempt, failure: Some(failure.to_owned()) });
                if let Some(offer) = self.offers.get(&from.op).filter(|offer| offer.attempt <= msg.attempt) {
                    let cease = Cease { attempt: offer.attempt, cause: brief(&msg.cause) };
                    tell_peer(&offer.peer.group, from.op, cease.into(), &offer.trace, out);
                    self.offers.remove(&from.op);
                }
            }
            // The one it means must not begin: it is answered when the one that runs is settled.
            Standing::Running | Standing::Above => self.fail(now, from.op, brief(&msg.cause), out),
            Standing::Over => self.say_ended(from, msg.attempt, out),
            Standing::Stale => self.say_superseded(from, msg.attempt, out),
        }
    }

    /// Tells the index again of an attempt that it has settled: that it failed. It knows what arrived.
    pub(super) fn say_ended(&mut self, from: &Sender, attempt: u32, out: &mut Vec<Effect>) {
        self.counts.duplicates += 1;
        if let Some(cause) = self.ended.get(from.op).and_then(|outcome| outcome.failure.as_deref()) {
            say_not_arriving(from, attempt, cause, out);
        }
    }

    /// Tells the index of an attempt below one that is known. A refusal would not say which of them it means.
    pub(super) fn say_superseded(&mut self, from: &Sender, attempt: u32, out: &mut Vec<Effect>) {
        self.counts.stale += 1;
        say_not_arriving(from, attempt, SUPERSEDED, out);
    }

    /// The index has taken the end in.
    pub(super) fn settled(&mut self, now: Time, op: OpId) {
        let Some(running) = self.ops.get(&op) else { return };
        let failure = match &running.state {
            State::Complete { .. } => None,
            State::NotArriving { cause } => Some(cause.clone()),
            State::Expected
            | State::Accepting { .. }
            | State::Filling { .. }
            | State::Checking { .. }
            | State::Sealing { .. }
            | State::Draining { .. }
            | State::Fencing { .. } => {
                self.counts.late += 1;
                return;
            }
        };
        let attempt = running.attempt;
        self.calls.answered((op, END));
        self.ops.remove(&op);
        self.ended.note(now, op, Outcome { attempt, failure });
    }

    /// The peer says that nothing of an attempt is written any more, because it was asked or because it gave up.
    pub(super) fn ceased(&mut self, now: Time, from: &Sender, msg: &Ceased, out: &mut Vec<Effect>) {
        let Some(group) = self.speaks_for(from).cloned() else { return };
        tell_peer(&group, from.op, CeasedHeard { attempt: msg.attempt }.into(), &from.trace, out);
        let cause = format!("sender: {}", brief(&msg.cause));
        match self.standing(from.op, msg.attempt) {
            Standing::New => self.gave_up(now, from, msg.attempt, cause),
            Standing::Above => {
                self.gave_up(now, from, msg.attempt, cause);
                self.lower_is_over(now, from, "a higher attempt was offered", out);
            }
            Standing::Running => match self.ops.get(&from.op).map(|running| &running.state) {
                Some(State::Expected) => self.fail(now, from.op, cause, out),
                Some(
                    State::Accepting { .. }
                    | State::Filling { .. }
                    | State::Checking { .. }
                    | State::Sealing { .. }
                    | State::Complete { .. }
                    | State::Draining { .. }
                    | State::Fencing { .. }
                    | State::NotArriving { .. },
                )
                | None => self.drained(now, from, cause, out),
            },
            Standing::Over | Standing::Stale => self.counts.duplicates += 1,
        }
    }

    /// The rank has taken a grant back: nothing can land any more.
    pub(super) fn revoked(&mut self, now: Time, op: OpId, out: &mut Vec<Effect>) {
        let Some(running) = self.ops.get_mut(&op) else { return };
        match &mut running.state {
            State::Sealing { peer, end } => {
                let (peer, end) = (peer.clone(), end.clone());
                self.calls.answered((op, REVOKE));
                let arrived = Outgoing::Index(running.arrived(&end).into());
                self.calls.call(now, (op, END), arrived, &running.trace, out);
                tell_peer(&peer.group, op, Received { attempt: running.attempt }.into(), &running.trace, out);
                self.counts.arrived += 1;
                self.counts.pages += running.pages.len() as u64;
                let bytes = running.landed.as_ref().map_or(0, |(figures, _)| figures.bytes);
                self.counts.bytes = self.counts.bytes.saturating_add(bytes);
                out.extend(running.span(now, op, &self.config, Ok(&end)).map(Effect::span));
                running.state = State::Complete { peer };
            }
            State::Fencing { cause } => {
                let cause = std::mem::take(cause);
                self.calls.answered((op, REVOKE));
                self.not_arriving(now, op, cause, out);
            }
            State::Expected
            | State::Accepting { .. }
            | State::Filling { .. }
            | State::Checking { .. }
            | State::Complete { .. }
            | State::Draining { .. }
            | State::NotArriving { .. } => self.counts.late += 1,
        }
    }

    /// Somebody refuses a request of the receiver.
    pub(super) fn rejected(&mut self, now: Time, from: &Sender, refusal: &Refusal, out: &mut Vec<Effect>) {
        self.counts.rejected += 1;
        let is_asked = self.calls.is_open((from.op, ACCEPT)) || self.calls.is_open((from.op, REPORT));
        match from.address {
            // That it takes a grant back is proven by its own word alone.
            Address::Rank(rank) if is_asked => {
                self.fail(now, from.op, format!("rank {}: {}", rank.0, refusal.cause()), out);
            }
            Address::Rank(_) => self.counts.late += 1,
            Address::Sender => self.fail(now, from.op, format!("sender: {}", refusal.cause()), out),
            Address::Index => {
                // The index knows nothing of it: nobody else will take its end in.
                self.fail(now, from.op, format!("index: {}", refusal.cause()), out);
                self.settled(now, from.op);
            }
            Address::Allocator
            | Address::Evictor
            | Address::Writer
            | Address::Loader
            | Address::Receiver
            | Address::Engine => {}
        }
    }

    /// A transfer's time is over: it is given up, which frees nothing.
    pub(super) fn took_too_long(&mut self, now: Time, op: OpId, out: &mut Vec<Effect>) {
        let cause = format!("not there after {} ms", self.config.wait_ms_max);
        if self.config.faults.is(Fault::TransferFreedByTimer) {
            return self.not_arriving(now, op, cause, out);
        }
        self.fail(now, op, cause, out);
    }

    /// Gives a transfer up: the peer that was told of a grant is asked to stop.
    pub(super) fn fail(&mut self, now: Time, op: OpId, cause: String, out: &mut Vec<Effect>) {
        let Some(running) = self.ops.get_mut(&op) else { return };
        let peer = match &running.state {
            State::Expected => return self.not_arriving(now, op, cause, out),
            State::Accepting { peer } | State::Filling { peer, .. } | State::Checking { peer, .. } => peer.clone(),
            State::Sealing { .. }
            | State::Complete { .. }
            | State::Draining { .. }
            | State::Fencing { .. }
            | State::NotArriving { .. } => return,
        };
        self.alarms.clear(&Alarm::Wait(op));
        self.calls.answered((op, ACCEPT));
        self.calls.answered((op, REPORT));
        let cease = Cease { attempt: running.attempt, cause: cause.clone() };
        let to = Outgoing::PeerSender(peer.group.clone(), cease.into());
        self.calls.call(now, (op, CEASE), to, &running.trace, out);
        running.state = State::Draining { peer, cause };
    }

    /// The peer has stopped (`drained`), or is dead: the rank takes the grant back, and lets nothing land that is
    /// still on its way.
    pub(super) fn fence(&mut self, now: Time, op: OpId, cause: String, drained: bool, out: &mut Vec<Effect>) {
        let Some(running) = self.ops.get_mut(&op) else { return };
        self.alarms.clear(&Alarm::Wait(op));
        for topic in [ACCEPT, REPORT, CEASE] {
            self.calls.answered((op, topic));
        }
        if drained {
            self.counts.drained += 1;
        } else {
            self.counts.fenced += 1;
        }
        let revoke = Outgoing::Rank(RANK, Revoke { attempt: running.attempt, drained }.into());
        self.calls.call(now, (op, REVOKE), revoke, &running.trace, out);
        running.state = State::Fencing { cause };
    }

    /// A higher attempt than the one that runs is known to its sender. If it is the same sender, it began that one
    /// when nothing of the lower was read or written any more.
    pub(super) fn lower_is_over(&mut self, now: Time, from: &Sender, cause: &str, out: &mut Vec<Effect>) {
        let is_same = self.ops.get(&from.op).is_some_and(|running| running.is_sent_by(from.incarnation));
        if is_same {
            self.drained(now, from, cause.to_owned(), out);
        } else {
            self.fail(now, from.op, cause.to_owned(), out);
        }
    }

    /// The peer of an attempt has proven that it writes nothing any more.
    fn drained(&mut self, now: Time, from: &Sender, cause: String, out: &mut Vec<Effect>) {
        let Some(running) = self.ops.get_mut(&from.op) else { return };
        if !running.is_sent_by(from.incarnation) {
            self.counts.late += 1;
            return;
        }
        let cause = match &mut running.state {
            State::Accepting { .. } | State::Filling { .. } | State::Checking { .. } => cause,
            State::Draining { cause, .. } => std::mem::take(cause),
            State::Expected
            | State::Sealing { .. }
            | State::Complete { .. }
            | State::Fencing { .. }
            | State::NotArriving { .. } => {
                self.counts.late += 1;
                return;
            }
        };
        self.fence(now, from.op, cause, true, out);
    }

    /// A sender gave an attempt up that nobody here expects yet.
    fn gave_up(&mut self, now: Time, from: &Sender, attempt: u32, cause: String) {
        if self.offers.get(&from.op).is_some_and(|offer| offer.attempt <= attempt) {
            self.offers.remove(&from.op);
        }
        if self.gone.get(from.op).is_none_or(|gone| gone.attempt < attempt) {
            self.gone.note(now, from.op, Gone { attempt, cause });
        }
    }

    /// Nothing can land any more: the index is told until it has taken that in.
    fn not_arriving(&mut self, now: Time, op: OpId, cause: String, out: &mut Vec<Effect>) {
        let Some(running) = self.ops.get_mut(&op) else { return };
        self.alarms.clear(&Alarm::Wait(op));
        self.calls.answered((op, ACCEPT));
        self.calls.answered((op, REPORT));
        self.counts.failed += 1;
        let news = Outgoing::Index(running.not_arriving(&cause).into());
        self.calls.call(now, (op, END), news, &running.trace, out);
        out.extend(running.span(now, op, &self.config, Err(&cause)).map(Effect::span));
        running.state = State::NotArriving { cause };
    }
}

fn say_not_arriving(from: &Sender, attempt: u32, cause: &str, out: &mut Vec<Effect>) {
    tell(from.op, NotArriving { attempt, cause: cause.to_owned() }.into(), &from.trace, out);
}
