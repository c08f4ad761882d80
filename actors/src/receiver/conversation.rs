//! A transfer on its way in: expected and offered, accepted, filled and checked.

use super::op::{ACCEPT, End, Offered, Op, Outcome, PeerLife, REPORT, REVOKE, State};
use super::{Alarm, RANK, Receiver, tell, tell_peer};
use crate::attempts::Standing;
use crate::lives::Learnt;
use crate::machine::{Effect, Sender};
use crate::protocol::{
    Accepting, Busy, Cease, Expect, Finished, Landed, Malformed, Offer, OpId, OpSettled, Outgoing, RankIs, Received,
    Refusal, Report, Revoke, Time, Unknown, WrongState, same,
};

impl Receiver {
    /// The index expects a transfer, or says so again.
    pub(super) fn expect(&mut self, now: Time, from: &Sender, msg: Expect, out: &mut Vec<Effect>) {
        match self.standing(from.op, msg.attempt) {
            Standing::New => match self.check_expect(&msg) {
                Ok(()) => self.begin(now, from, msg, out),
                Err(refusal) => self.refuse(from, refusal, out),
            },
            Standing::Running => {
                self.counts.duplicates += 1;
                if let Some(running) = self.ops.get(&from.op) {
                    running.tell_expected(from.op, &from.trace, out);
                }
            }
            // The new one begins with a repeat, after the index has taken in the end of this one.
            Standing::Above => self.fail(now, from.op, "a higher attempt is expected".to_owned(), out),
            Standing::Over => self.say_ended(from, msg.attempt, out),
            Standing::Stale => self.say_superseded(from, msg.attempt, out),
        }
    }

    /// A peer has pages of a transfer, or says so again.
    pub(super) fn offer(&mut self, now: Time, from: &Sender, msg: &Offer, out: &mut Vec<Effect>) {
        let Some(group) = self.speaks_for(from).cloned() else { return };
        let peer = PeerLife { group, incarnation: from.incarnation };
        let (attempt, tokens) = (msg.attempt, msg.tokens);
        let offer = Offered { attempt, tokens, peer, trace: from.trace.clone() };
        match self.standing(from.op, attempt) {
            Standing::New => self.keep(from, offer, out),
            Standing::Running => self.offered_again(now, from, offer, out),
            Standing::Above => {
                self.lower_is_over(now, from, "a higher attempt is offered", out);
                self.keep(from, offer, out);
            }
            Standing::Over => match self.ended.get(from.op).map(|outcome| outcome.failure.clone()) {
                Some(Some(cause)) => self.turn_away(from, &offer, &cause, out),
                Some(None) | None => self.counts.duplicates += 1,
            },
            Standing::Stale => {
                self.counts.stale += 1;
                self.turn_away(from, &offer, SUPERSEDED, out);
            }
        }
    }

    /// The rank lets bytes land: the peer is told where.
    pub(super) fn accepting(&mut self, op: OpId, msg: Accepting, out: &mut Vec<Effect>) {
        let Some(running) = self.ops.get_mut(&op) else { return };
        let State::Accepting { peer } = &running.state else {
            self.counts.late += 1;
            return;
        };
        let peer = peer.clone();
        self.calls.answered((op, ACCEPT));
        let wanted = running.wanted(msg.endpoint, msg.grant, self.config.manifest.cp_size);
        tell_peer(&peer.group, op, wanted.clone().into(), &running.trace, out);
        running.state = State::Filling { peer, wanted };
    }

    /// The peer has sent everything, or says so again.
    pub(super) fn finished(&mut self, now: Time, from: &Sender, msg: Finished, out: &mut Vec<Effect>) {
        let Some(group) = self.speaks_for(from).cloned() else { return };
        let attempt = msg.attempt;
        let (is_received, cause) = match self.standing(from.op, attempt) {
            Standing::Running => match self.ops.get(&from.op) {
                Some(running) if running.is_sent_by(from.incarnation) => return self.all_sent(now, from, msg, out),
                Some(_) | None => (false, "it is not taken from this sender".to_owned()),
            },
            Standing::New => return self.refuse_peer(&group, from, Unknown::new("transfer", from.op), out),
            Standing::Over => match self.ended.get(from.op) {
                Some(Outcome { failure: Some(cause), .. }) => (false, cause.clone()),
                Some(Outcome { failure: None, .. }) | None => (true, String::new()),
            },
            Standing::Above | Standing::Stale => (false, SUPERSEDED.to_owned()),
        };
        self.counts.duplicates += 1;
        let answer = if is_received { Received { attempt }.into() } else { Cease { attempt, cause }.into() };
        tell_peer(&group, from.op, answer, &from.trace, out);
    }

    /// The rank says what has landed: it is all there, or it is a failure.
    pub(super) fn landed(&mut self, now: Time, op: OpId, msg: &Landed, out: &mut Vec<Effect>) {
        let Some(running) = self.ops.get_mut(&op) else { return };
        let State::Checking { peer, end } = &running.state else {
            self.counts.late += 1;
            return;
        };
        let buffers = self.peers.get(&peer.group).map_or(0, |peer| peer.buffers);
        self.counts.refused = self.counts.refused.saturating_add(msg.figures.refused);
        running.landed = Some((msg.figures.clone(), buffers));
        if let Err(cause) = end.check(running.first, msg, self.config.faults) {
            return self.fail(now, op, cause, out);
        }
        let (peer, end) = (peer.clone(), end.clone());
        self.calls.answered((op, REPORT));
        self.alarms.clear(&Alarm::Wait(op));
        let revoke = Outgoing::Rank(RANK, Revoke { attempt: running.attempt, drained: true }.into());
        self.calls.call(now, (op, REVOKE), revoke, &running.trace, out);
        running.state = State::Sealing { peer, end };
    }

    /// The index says which life the rank is in. What an older one had let in is given up; whether nothing writes
    /// there any more, only the new one can say.
    pub(super) fn rank_is(&mut self, now: Time, from: &Sender, msg: &RankIs, out: &mut Vec<Effect>) {
        match self.lives.learn(from.op, msg.rank, msg.incarnation) {
            Learnt::Changed => {
                let granted: Vec<OpId> =
                    self.ops.iter().filter(|(_, op)| op.waits_for().is_some()).map(|(op, _)| *op).collect();
                for op in granted {
                    self.fail(now, op, format!("rank {} died", msg.rank.0), out);
                }
            }
            Learnt::Same => {}
            Learnt::Overtaken => self.counts.stale += 1,
            Learnt::NoSuchRank => {
                let limit = self.config.manifest.cp_size;
                return self.refuse(from, Malformed::new("rank", msg.rank.0, limit), out);
            }
        }
        tell(from.op, OpSettled {}.into(), &from.trace, out);
    }

    fn begin(&mut self, now: Time, from: &Sender, msg: Expect, out: &mut Vec<Effect>) {
        self.counts.transfers += 1;
        let (op, attempt) = (from.op, msg.attempt);
        let running = Op {
            attempt,
            tokens: msg.tokens,
            first: msg.first,
            pages: msg.pages.0,
            trace: from.trace.clone(),
            offered_by: None,
            began: now,
            landed: None,
            components: Vec::new(),
            state: State::Expected,
        };
        running.tell_expected(op, &from.trace, out);
        self.ops.insert(op, running);
        self.alarms.set(Alarm::Wait(op), now.plus_ms(self.config.wait_ms_max));
        if let Some(gone) = self.gone.get(op).filter(|gone| gone.attempt >= attempt) {
            let cause = if gone.attempt == attempt { gone.cause.clone() } else { SUPERSEDED.to_owned() };
            return self.fail(now, op, cause, out);
        }
        match self.offers.get(&op).map(|offer| offer.attempt) {
            Some(offered) if offered > attempt => {
                self.fail(now, op, format!("attempt {offered} is offered"), out);
            }
            Some(offered) => {
                let Some(offer) = self.offers.remove(&op) else { return };
                if offered == attempt {
                    return self.take(now, op, offer, out);
                }
                let cease = Cease { attempt: offered, cause: SUPERSEDED.to_owned() };
                tell_peer(&offer.peer.group, op, cease.into(), &offer.trace, out);
            }
            None => {}
        }
    }

    /// What is expected has been offered: the rank is asked to let it in.
    fn take(&mut self, now: Time, op: OpId, offer: Offered, out: &mut Vec<Effect>) {
        let Some(running) = self.ops.get_mut(&op) else { return };
        let is_alive = self.lives.alive().contains(RANK);
        let wrong = match same("tokens", offer.tokens, running.tokens) {
            Err(refusal) => Some(refusal.cause()),
            Ok(()) => (!is_alive).then(|| format!("rank {} is gone", RANK.0)),
        };
        if let Some(cause) = wrong {
            let cease = Cease { attempt: offer.attempt, cause: cause.clone() };
            tell_peer(&offer.peer.group, op, cease.into(), &offer.trace, out);
            return self.fail(now, op, cause, out);
        }
        running.offered_by = offer.trace;
        running.components = self.peers.get(&offer.peer.group).map(|peer| peer.common.clone()).unwrap_or_default();
        let accept = Outgoing::Rank(RANK, running.accept(self.lives.list()).into());
        self.calls.call(now, (op, ACCEPT), accept, &running.trace, out);
        running.state = State::Accepting { peer: offer.peer };
    }

    /// An offer of the attempt that is expected.
    fn offered_again(&mut self, now: Time, from: &Sender, offer: Offered, out: &mut Vec<Effect>) {
        let Some(running) = self.ops.get(&from.op) else { return };
        let cause = match &running.state {
            State::Expected => return self.take(now, from.op, offer, out),
            State::Filling { peer, wanted } if *peer == offer.peer => {
                self.counts.duplicates += 1;
                return tell_peer(&peer.group, from.op, wanted.clone().into(), &from.trace, out);
            }
            State::Accepting { peer }
            | State::Filling { peer, .. }
            | State::Checking { peer, .. }
            | State::Sealing { peer, .. }
            | State::Complete { peer }
            | State::Draining { peer, .. } => {
                if *peer == offer.peer {
                    self.counts.duplicates += 1;
                    return;
                }
                format!("{} sends it", peer.group)
            }
            State::Fencing { cause } | State::NotArriving { cause } => cause.clone(),
        };
        self.turn_away(from, &offer, &cause, out);
    }

    /// Keeps an offer until it is expected.
    fn keep(&mut self, from: &Sender, offer: Offered, out: &mut Vec<Effect>) {
        if self.gone.get(from.op).is_some_and(|gone| gone.attempt >= offer.attempt) {
            self.counts.stale += 1;
            return;
        }
        match self.offers.get(&from.op) {
            Some(known) if known.attempt > offer.attempt => {
                self.counts.stale += 1;
                return self.turn_away(from, &offer, SUPERSEDED, out);
            }
            Some(known) if known.attempt == offer.attempt && known.peer == offer.peer => {
                self.counts.duplicates += 1;
                return;
            }
            Some(known) if known.attempt == offer.attempt => {
                let cause = format!("{} offers it", known.peer.group);
                return self.turn_away(from, &offer, &cause, out);
            }
            None if self.offers.len() >= self.config.offers_max => {
                let bound = self.config.offers_max as u64;
                let busy: Refusal =
                    Busy { queue: "offers".to_owned(), bound, retry_ms: super::admission::RETRY_MS }.into();
                return self.refuse_peer(&offer.peer.group, from, busy, out);
            }
            Some(_) | None => {}
        }
        self.offers.insert(from.op, offer);
    }

    /// Tells a peer that what it offers is not taken; it answers that nothing of it is written.
    fn turn_away(&mut self, from: &Sender, offer: &Offered, cause: &str, out: &mut Vec<Effect>) {
        self.counts.rejected += 1;
        let cease = Cease { attempt: offer.attempt, cause: cause.to_owned() };
        tell_peer(&offer.peer.group, from.op, cease.into(), &from.trace, out);
    }

    /// The peer that sends the attempt that runs has sent everything.
    fn all_sent(&mut self, now: Time, from: &Sender, msg: Finished, out: &mut Vec<Effect>) {
        let Some(running) = self.ops.get(&from.op) else { return };
        let peer = match &running.state {
            State::Filling { peer, .. } => peer.clone(),
            State::Complete { peer } => {
                self.counts.duplicates += 1;
                let received = Received { attempt: running.attempt };
                return tell_peer(&peer.group, from.op, received.into(), &from.trace, out);
            }
            State::Accepting { peer } => {
                let group = peer.group.clone();
                return self.refuse_peer(&group, from, WrongState::new(from.op, "nothing was wanted"), out);
            }
            State::Expected
            | State::Checking { .. }
            | State::Sealing { .. }
            | State::Draining { .. }
            | State::Fencing { .. }
            | State::NotArriving { .. } => {
                self.counts.duplicates += 1;
                return;
            }
        };
        if let Err(refusal) = self.check_finished(&msg, running.tokens, running.pages.len()) {
            return self.refuse_peer(&peer.group, from, refusal, out);
        }
        let Some(running) = self.ops.get_mut(&from.op) else { return };
        running.state = State::Checking { peer, end: End::of(msg) };
        let report = Outgoing::Rank(RANK, Report { attempt: running.attempt }.into());
        self.calls.call(now, (from.op, REPORT), report, &running.trace, out);
    }
}

/// What became of an attempt below one that is known.
pub(super) const SUPERSEDED: &str = "a higher attempt is known";
