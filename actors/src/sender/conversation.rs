//! What the index asks, and how a transfer ends.

use super::op::{CEASED, End, FINISHED, OFFER, Op, Outcome, Part, State, over, push_call, stop_call};
use super::{Alarm, Sender, tell, tell_peer};
use crate::attempts::Standing;
use crate::course::Course;
use crate::lives::RankSet;
use crate::machine::{Effect, Sender as Speaker};
use crate::protocol::{
    Address, Cease, Ceased, GroupName, NOBODY, OpId, Outgoing, PushFigures, Refusal, SendEnd, SendOpen, SendPart,
    SendStop, StopPush, Time, WrongState, brief,
};

impl Sender {
    /// The index has a session whose pages are for another group, or says so again.
    pub(super) fn send_open(&mut self, now: Time, from: &Speaker, msg: SendOpen, out: &mut Vec<Effect>) {
        match self.standing(from, msg.attempt) {
            Standing::New => self.open(now, from, msg, out),
            Standing::Running => self.say_again(from, out),
            Standing::Above => {
                // Its end is told; the new one begins with the next repeat, or at once when nothing is left of this.
                self.stop(now, from.op, "a higher attempt was opened", out);
                self.forget_ceasing(now, from.op);
                if !self.ops.contains_key(&from.op) {
                    self.open(now, from, msg, out);
                }
            }
            Standing::Over => self.say_outcome(from, out),
            Standing::Stale => self.say_superseded(from, msg.attempt, out),
        }
    }

    /// The index names pages.
    pub(super) fn send_part(&mut self, now: Time, from: &Speaker, msg: SendPart, out: &mut Vec<Effect>) {
        let running = match self.standing(from, msg.attempt) {
            Standing::New => return self.end_unopened(now, from, msg.attempt, out),
            Standing::Above => return self.stop(now, from.op, "a higher attempt was opened", out),
            Standing::Over => return self.say_outcome(from, out),
            Standing::Stale => return self.say_superseded(from, msg.attempt, out),
            Standing::Running => self.ops.get(&from.op),
        };
        let Some(running) = running else { return };
        match &running.state {
            State::Opening { .. } | State::Offered { .. } | State::Sending { .. } if msg.part == running.parts => {}
            State::Opening { .. } | State::Offered { .. } | State::Sending { .. } if msg.part > running.parts => {
                self.counts.early += 1;
                return running.tell_again(from.op, &from.trace, out);
            }
            State::Opening { .. }
            | State::Offered { .. }
            | State::Sending { .. }
            | State::Finishing { .. }
            | State::Stopping { .. }
            | State::Ceasing { .. } => return self.say_again(from, out),
        }
        if running.end.is_some() {
            return self.refuse(from, WrongState::new(from.op, "every page is named"), out);
        }
        match self.check_part(running, &msg) {
            Ok(()) => self.take_part(now, from, msg, out),
            Err(refusal) => self.refuse(from, refusal, out),
        }
    }

    /// The index has named every page.
    pub(super) fn send_end(&mut self, now: Time, from: &Speaker, msg: SendEnd, out: &mut Vec<Effect>) {
        let running = match self.standing(from, msg.attempt) {
            Standing::New => return self.end_unopened(now, from, msg.attempt, out),
            Standing::Above => return self.stop(now, from.op, "a higher attempt was opened", out),
            Standing::Over => return self.say_outcome(from, out),
            Standing::Stale => return self.say_superseded(from, msg.attempt, out),
            Standing::Running => self.ops.get(&from.op),
        };
        let Some(running) = running else { return };
        match (&running.state, &running.end) {
            (State::Opening { .. } | State::Offered { .. } | State::Sending { .. }, None) => {}
            (State::Ceasing { .. }, _) => return self.say_again(from, out),
            (
                State::Opening { .. }
                | State::Offered { .. }
                | State::Sending { .. }
                | State::Finishing { .. }
                | State::Stopping { .. },
                _,
            ) => {
                self.counts.duplicates += 1;
                return;
            }
        }
        if msg.parts > running.parts {
            self.counts.early += 1;
            return running.tell_again(from.op, &from.trace, out);
        }
        if let Err(refusal) = self.check_end(running, &msg) {
            return self.refuse(from, refusal, out);
        }
        if let Some(running) = self.ops.get_mut(&from.op) {
            running.end = Some(End { tokens: msg.tokens, blob: msg.blob });
        }
        self.after_pushes(now, from.op, out);
    }

    /// The index gives an attempt up.
    pub(super) fn send_stop(&mut self, now: Time, from: &Speaker, msg: &SendStop, out: &mut Vec<Effect>) {
        match self.standing(from, msg.attempt) {
            Standing::New => self.end_unopened(now, from, msg.attempt, out),
            Standing::Running => match self.ops.get(&from.op).map(|running| &running.state) {
                Some(State::Ceasing { .. }) => self.say_again(from, out),
                Some(State::Stopping { .. }) | None => self.counts.duplicates += 1,
                Some(
                    State::Opening { .. } | State::Offered { .. } | State::Sending { .. } | State::Finishing { .. },
                ) => self.stop(now, from.op, &brief(&msg.cause), out),
            },
            // The one it means has not begun and must not: it is answered when the one that runs is over.
            Standing::Above => {
                self.stop(now, from.op, "a higher attempt was stopped", out);
                self.forget_ceasing(now, from.op);
            }
            Standing::Over => self.say_outcome(from, out),
            Standing::Stale => self.say_superseded(from, msg.attempt, out),
        }
    }

    /// The peer has all of it.
    pub(super) fn received(&mut self, now: Time, op: OpId, out: &mut Vec<Effect>) {
        match self.ops.get(&op).map(|running| &running.state) {
            Some(State::Finishing { .. }) => {
                self.calls.answered((op, FINISHED));
                self.over(now, op, None, out);
                self.end(now, op, None);
            }
            // The index was told that it failed; the peer needs to hear nothing more.
            Some(State::Ceasing { .. }) => self.forget_ceasing(now, op),
            Some(State::Opening { .. } | State::Offered { .. } | State::Sending { .. } | State::Stopping { .. })
            | None => self.counts.late += 1,
        }
    }

    /// The peer gives an attempt up, and waits for the proof that nothing of it is written any more.
    pub(super) fn cease(&mut self, now: Time, from: &Speaker, msg: &Cease, out: &mut Vec<Effect>) {
        let is_over = match self.standing(from, msg.attempt) {
            Standing::Running => false,
            // Whatever is not running here writes nothing there.
            Standing::New | Standing::Over | Standing::Stale => true,
            Standing::Above => {
                self.counts.stale += 1;
                return;
            }
        };
        let Some(group) = self.group_of(from) else {
            self.counts.late += 1;
            return;
        };
        let running = self.ops.get(&from.op).filter(|_| !is_over).map(|running| &running.state);
        match running {
            None => {
                let cause = self.ended.get(from.op).and_then(|outcome| outcome.failure.clone());
                let ceased = Ceased { attempt: msg.attempt, cause: cause.unwrap_or_else(|| SUPERSEDED.to_owned()) };
                tell_peer(&group, from.op, ceased.into(), &from.trace, out);
            }
            Some(State::Ceasing { cause, .. }) => {
                self.counts.duplicates += 1;
                let ceased = Ceased { attempt: msg.attempt, cause: cause.clone() };
                tell_peer(&group, from.op, ceased.into(), &from.trace, out);
            }
            Some(State::Stopping { .. }) => self.counts.duplicates += 1,
            Some(State::Opening { .. } | State::Offered { .. } | State::Sending { .. } | State::Finishing { .. }) => {
                self.stop(now, from.op, &format!("receiver: {}", brief(&msg.cause)), out);
            }
        }
    }

    /// The peer has heard that nothing more comes.
    pub(super) fn ceased_heard(&mut self, now: Time, op: OpId) {
        match self.ops.get(&op).map(|running| &running.state) {
            Some(State::Ceasing { .. }) => self.forget_ceasing(now, op),
            Some(
                State::Opening { .. }
                | State::Offered { .. }
                | State::Sending { .. }
                | State::Finishing { .. }
                | State::Stopping { .. },
            )
            | None => self.counts.late += 1,
        }
    }

    /// Somebody refuses a request of the sender.
    pub(super) fn rejected(&mut self, now: Time, from: &Speaker, refusal: &Refusal, out: &mut Vec<Effect>) {
        self.counts.rejected += 1;
        let who = match from.address {
            Address::Rank(rank) => format!("rank {}", rank.0),
            Address::Index => "index".to_owned(),
            Address::Receiver => match (self.meets.get(&from.op).cloned(), refusal) {
                // There will be room; every request is repeated.
                (_, Refusal::Busy(_)) => return,
                (Some(group), _) => return self.not_met(now, &group, &refusal.cause(), out),
                (None, _) => "receiver".to_owned(),
            },
            Address::Allocator
            | Address::Evictor
            | Address::Writer
            | Address::Loader
            | Address::Sender
            | Address::Engine => return,
        };
        if from.address == Address::Receiver {
            self.forget_ceasing(now, from.op);
        }
        self.stop(now, from.op, &format!("{who}: {}", refusal.cause()), out);
    }

    /// A transfer's time is over. While a rank may read nothing ends: there is no timer then.
    pub(super) fn took_too_long(&mut self, now: Time, op: OpId, out: &mut Vec<Effect>) {
        let cause = format!("not over after {} ms", self.config.wait_ms_max);
        match self.ops.get(&op).map(|running| &running.state) {
            Some(State::Ceasing { .. }) => self.forget_ceasing(now, op),
            Some(
                State::Opening { .. }
                | State::Offered { .. }
                | State::Sending { .. }
                | State::Finishing { .. }
                | State::Stopping { .. },
            )
            | None => self.stop(now, op, &cause, out),
        }
    }

    /// The attempt came to nothing: whoever pushes is stopped first.
    pub(super) fn stop(&mut self, now: Time, op: OpId, cause: &str, out: &mut Vec<Effect>) {
        let Some(running) = self.ops.get_mut(&op) else { return };
        let (peer, open) = match &mut running.state {
            State::Opening { .. } => {
                self.over(now, op, Some(cause), out);
                return self.end(now, op, Some(cause.to_owned()));
            }
            State::Offered { peer, .. } | State::Finishing { peer, .. } => (*peer, None),
            State::Sending { peer, open, .. } => (*peer, Some(std::mem::take(open))),
            State::Stopping { .. } | State::Ceasing { .. } => return,
        };
        self.calls.answered((op, OFFER));
        self.calls.answered((op, FINISHED));
        let open = open.unwrap_or_default();
        for (part, rank) in &open {
            self.calls.answered(push_call(op, *part, *rank));
        }
        let pushing: RankSet = open.into_iter().map(|(_, rank)| rank).collect();
        // A rank that is gone reads nothing.
        let waiting = pushing.without(pushing.without(self.lives.alive()));
        for rank in waiting.iter() {
            let stop = Outgoing::Rank(rank, StopPush { attempt: running.attempt }.into());
            self.calls.call(now, stop_call(op, rank), stop, &running.trace, out);
        }
        self.alarms.clear(&Alarm::Wait(op));
        running.state = State::Stopping { peer, waiting, cause: cause.to_owned() };
        self.after_stops(now, op, out);
    }

    /// When nothing reads any more the index hears it, and then the peer.
    pub(super) fn after_stops(&mut self, now: Time, op: OpId, out: &mut Vec<Effect>) {
        let Some(running) = self.ops.get_mut(&op) else { return };
        let State::Stopping { peer, waiting, cause } = &mut running.state else { return };
        if !waiting.is_empty() {
            return;
        }
        let (peer, cause) = (*peer, std::mem::take(cause));
        let met = self.peers.get(&running.group).and_then(super::peers::Peer::incarnation);
        if met == Some(peer) {
            let ceased = Ceased { attempt: running.attempt, cause: cause.clone() };
            let to = Outgoing::PeerReceiver(running.group.clone(), ceased.into());
            self.calls.call(now, (op, CEASED), to, &running.trace, out);
            self.alarms.set(Alarm::Wait(op), now.plus_ms(self.config.wait_ms_max));
            running.state = State::Ceasing { peer, cause: cause.clone() };
            return self.over(now, op, Some(&cause), out);
        }
        self.over(now, op, Some(&cause), out);
        self.end(now, op, Some(cause));
    }

    /// Ends a transfer whose peer is still being told that nothing more comes.
    pub(super) fn forget_ceasing(&mut self, now: Time, op: OpId) {
        let Some(running) = self.ops.get_mut(&op) else { return };
        let State::Ceasing { cause, .. } = &mut running.state else { return };
        let cause = std::mem::take(cause);
        self.calls.answered((op, CEASED));
        self.end(now, op, Some(cause));
    }

    fn open(&mut self, now: Time, from: &Speaker, msg: SendOpen, out: &mut Vec<Effect>) {
        let group = match self.check_open(&msg) {
            Ok(group) => group,
            Err(refusal) => return self.refuse(from, refusal, out),
        };
        self.counts.transfers += 1;
        let running = Op {
            attempt: msg.attempt,
            group: group.clone(),
            session: msg.session,
            tokens: msg.tokens,
            trace: from.trace.clone(),
            began: now,
            course: Course::default(),
            parts: 0,
            owners: vec![NOBODY; self.positions_of(msg.tokens) as usize],
            end: None,
            figures: vec![PushFigures::NONE; usize::from(self.config.manifest.cp_size)],
            state: State::Opening { parts: Vec::new() },
        };
        tell(from.op, running.taken(), &from.trace, out);
        self.ops.insert(from.op, running);
        self.alarms.set(Alarm::Wait(from.op), now.plus_ms(self.config.wait_ms_max));
        self.join_peer(now, from.op, &group, out);
    }

    fn take_part(&mut self, now: Time, from: &Speaker, msg: SendPart, out: &mut Vec<Effect>) {
        let Some(running) = self.ops.get_mut(&from.op) else { return };
        let cp_size = self.config.manifest.cp_size;
        for (owner, page) in running.owners[msg.first as usize..].iter_mut().zip(&msg.pages.0) {
            *owner = page.owner(cp_size).0;
        }
        running.parts += 1;
        tell(from.op, running.taken(), &from.trace, out);
        let part = Part { number: msg.part, first: msg.first, pages: msg.pages.0, step: msg.step };
        match &mut running.state {
            State::Opening { parts } | State::Offered { parts, .. } => parts.push(part),
            State::Sending { .. } => {
                if let Err(cause) = self.push_part(now, from.op, &part, out) {
                    self.stop(now, from.op, &cause, out);
                }
            }
            State::Finishing { .. } | State::Stopping { .. } | State::Ceasing { .. } => {}
        }
    }

    /// What is told of an attempt that this sender has never begun; a request to begin it may still be on its way.
    fn end_unopened(&mut self, now: Time, from: &Speaker, attempt: u32, out: &mut Vec<Effect>) {
        let outcome = Outcome { attempt, failure: Some("it had not begun".to_owned()) };
        tell(from.op, outcome.news(), &from.trace, out);
        self.ended.note(now, from.op, outcome);
    }

    fn say_again(&mut self, from: &Speaker, out: &mut Vec<Effect>) {
        self.counts.duplicates += 1;
        if let Some(running) = self.ops.get(&from.op) {
            running.tell_again(from.op, &from.trace, out);
        }
    }

    fn say_outcome(&mut self, from: &Speaker, out: &mut Vec<Effect>) {
        self.counts.duplicates += 1;
        if let Some(outcome) = self.ended.get(from.op) {
            tell(from.op, outcome.news(), &from.trace, out);
        }
    }

    /// What is told of an attempt below one that is known. A refusal would not say which of them it means.
    fn say_superseded(&mut self, from: &Speaker, attempt: u32, out: &mut Vec<Effect>) {
        self.counts.stale += 1;
        tell(from.op, over(attempt, Some(SUPERSEDED)), &from.trace, out);
    }

    /// Where what a peer says of an attempt that does not run is answered to.
    fn group_of(&self, from: &Speaker) -> Option<GroupName> {
        let speaks = self.peers.iter().find(|(_, peer)| peer.incarnation() == Some(from.incarnation));
        speaks.map(|(group, _)| group.clone())
    }

    /// Nothing of the attempt reads any more: the index may use its pages for others.
    fn over(&mut self, now: Time, op: OpId, failure: Option<&str>, out: &mut Vec<Effect>) {
        let Some(running) = self.ops.get(&op) else { return };
        tell(op, over(running.attempt, failure), &running.trace, out);
        match failure {
            None => self.counts.received += 1,
            Some(_) => self.counts.failed += 1,
        }
        let sent = running.figures.iter().zip(&mut self.costs).filter(|(figures, _)| figures.bytes > 0);
        sent.for_each(|(figures, costs)| costs.add(figures));
        out.extend(running.span(now, op, &self.config, failure).map(Effect::span));
    }

    fn end(&mut self, now: Time, op: OpId, failure: Option<String>) {
        let Some(running) = self.ops.remove(&op) else { return };
        self.alarms.clear(&Alarm::Wait(op));
        self.ended.note(now, op, Outcome { attempt: running.attempt, failure });
        self.leave_peer(op, &running.group);
    }
}

/// What became of an attempt below one that is known.
const SUPERSEDED: &str = "a higher attempt is known";
