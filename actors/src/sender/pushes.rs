//! What the peer wants is pushed by the ranks that own it, part by part as the index names them.

use std::collections::{BTreeMap, BTreeSet};

use super::Sender;
use super::admission::check_wanted;
use super::op::{End, FINISHED, OFFER, Part, State, Way, push_call, stop_call};
use crate::lives::Learnt;
use crate::machine::{Effect, Sender as Speaker};
use crate::protocol::{
    Malformed, OpId, OpSettled, Outgoing, PageId, Pages, PeerPage, PeerPages, Position, Positions, Push, Pushed, Rank,
    RankIs, Time, Wanted,
};

impl Sender {
    /// The peer says what it wants, or says it again.
    pub(super) fn wanted(&mut self, now: Time, from: &Speaker, msg: Wanted, out: &mut Vec<Effect>) {
        let Some(running) = self.ops.get_mut(&from.op) else { return };
        match &mut running.state {
            State::Offered { peer, parts } => {
                let wanted = check_wanted(&msg, running.owners.len());
                if let Err(refusal) = wanted.and_then(|()| self.config.manifest.has_part(&msg.components)) {
                    let group = running.group.clone();
                    return self.refuse_peer(&group, from, refusal, out);
                }
                let (peer, parts) = (*peer, std::mem::take(parts));
                running.course.reserved(now);
                running.state = State::Sending { peer, way: Way::of(msg), open: BTreeSet::new() };
                self.calls.answered((from.op, OFFER));
                for part in &parts {
                    if let Err(cause) = self.push_part(now, from.op, part, out) {
                        return self.stop(now, from.op, &cause, out);
                    }
                }
                self.after_pushes(now, from.op, out);
            }
            State::Sending { way, .. } | State::Finishing { way, .. } if !way.is(&msg) => {
                // Which of the two the rank there obeys cannot be told.
                self.stop(now, from.op, "the receiver wants two different things", out);
            }
            State::Sending { .. } | State::Finishing { .. } | State::Stopping { .. } | State::Ceasing { .. } => {
                self.counts.duplicates += 1;
            }
            State::Opening { .. } => self.counts.late += 1,
        }
    }

    /// Has the ranks push what is wanted of a part.
    ///
    /// # Errors
    /// Why it cannot be pushed: a rank that owns some of it is gone.
    pub(super) fn push_part(&mut self, now: Time, op: OpId, part: &Part, out: &mut Vec<Effect>) -> Result<(), String> {
        let (cp_size, faults) = (self.config.manifest.cp_size, self.config.faults);
        let Some(running) = self.ops.get_mut(&op) else { return Ok(()) };
        let State::Sending { way, open, .. } = &mut running.state else { return Ok(()) };
        let mut of_ranks: BTreeMap<Rank, Vec<(Position, PageId, PeerPage)>> = BTreeMap::new();
        for (position, page) in (part.first..).map(Position).zip(&part.pages) {
            if let Some(slot) = way.slot(position, faults) {
                of_ranks.entry(page.owner(cp_size)).or_default().push((position, *page, slot));
            }
        }
        if let Some(rank) = of_ranks.keys().find(|rank| !self.lives.alive().contains(**rank)) {
            return Err(format!("rank {} is gone", rank.0));
        }
        for (rank, pages) in of_ranks {
            let push = Push {
                attempt: running.attempt,
                part: part.number,
                step: part.step,
                positions: Positions(pages.iter().map(|(position, ..)| *position).collect()),
                pages: Pages(pages.iter().map(|(_, page, _)| *page).collect()),
                slots: PeerPages(pages.iter().map(|(.., slot)| *slot).collect()),
                endpoint: way.endpoint.clone(),
                grant: way.grant.clone(),
                components: way.components.clone(),
                deadline_ms: self.config.deadline_ms,
                lives: self.lives.list(),
            };
            open.insert((part.number, rank));
            self.counts.pushes += 1;
            let to = Outgoing::Rank(rank, push.into());
            self.calls.call(now, push_call(op, part.number, rank), to, &running.trace, out);
        }
        Ok(())
    }

    /// A rank says how its push of a part went.
    pub(super) fn pushed(&mut self, now: Time, op: OpId, msg: &Pushed, out: &mut Vec<Effect>) {
        let Some(running) = self.ops.get_mut(&op) else { return };
        let open = match &mut running.state {
            State::Sending { open, .. } if open.contains(&(msg.part, msg.rank)) => open,
            State::Opening { .. }
            | State::Offered { .. }
            | State::Sending { .. }
            | State::Finishing { .. }
            | State::Stopping { .. }
            | State::Ceasing { .. } => {
                self.counts.late += 1;
                return;
            }
        };
        if !msg.complete && msg.failed.is_empty() {
            return;
        }
        open.remove(&(msg.part, msg.rank));
        self.calls.answered(push_call(op, msg.part, msg.rank));
        if let Some(figures) = running.figures.get_mut(usize::from(msg.rank.0)) {
            figures.add(&msg.figures);
        }
        self.counts.pushed.add(&msg.figures);
        match msg.failed.first() {
            Some(refusal) => {
                let cause = format!("rank {}: {}", msg.rank.0, refusal.cause());
                self.stop(now, op, &cause, out);
            }
            None => {
                running.course.acknowledged(now, msg.rank);
                self.after_pushes(now, op, out);
            }
        }
    }

    /// A rank reads nothing of an attempt any more.
    pub(super) fn push_stopped(&mut self, now: Time, op: OpId, rank: Rank, out: &mut Vec<Effect>) {
        let Some(running) = self.ops.get_mut(&op) else { return };
        match &mut running.state {
            State::Stopping { waiting, .. } if waiting.contains(rank) => {
                waiting.remove(rank);
                self.calls.answered(stop_call(op, rank));
                self.after_stops(now, op, out);
            }
            State::Opening { .. }
            | State::Offered { .. }
            | State::Sending { .. }
            | State::Finishing { .. }
            | State::Stopping { .. }
            | State::Ceasing { .. } => self.counts.late += 1,
        }
    }

    /// The index says which life a rank is in; what an older one pushed is over.
    pub(super) fn rank_is(&mut self, now: Time, from: &Speaker, msg: &RankIs, out: &mut Vec<Effect>) {
        match self.lives.learn(from.op, msg.rank, msg.incarnation) {
            Learnt::Changed => {
                let all: Vec<OpId> = self.ops.keys().copied().collect();
                for op in all {
                    self.rank_lost(now, op, msg.rank, out);
                }
            }
            Learnt::Same => {}
            Learnt::Overtaken => self.counts.stale += 1,
            Learnt::NoSuchRank => {
                let limit = self.config.manifest.cp_size;
                return self.refuse(from, Malformed::new("rank", msg.rank.0, limit), out);
            }
        }
        super::tell(from.op, OpSettled {}.into(), &from.trace, out);
    }

    /// When everything wanted is there and every page is named, the peer is told.
    pub(super) fn after_pushes(&mut self, now: Time, op: OpId, out: &mut Vec<Effect>) {
        let Some(running) = self.ops.get_mut(&op) else { return };
        let Some(end) = &running.end else { return };
        let State::Sending { peer, way, open } = &mut running.state else { return };
        if !open.is_empty() {
            return;
        }
        if let Some(position) = way.unnamed(&running.owners) {
            return self.stop(now, op, &format!("position {} was not named", position.0), out);
        }
        let (peer, way, end): (_, _, End) = (*peer, std::mem::take(way), end.clone());
        let finished = running.finished(&way, &end);
        self.counts.pages += way.pages() as u64;
        running.state = State::Finishing { peer, way };
        let to = Outgoing::PeerReceiver(running.group.clone(), finished.into());
        self.calls.call(now, (op, FINISHED), to, &running.trace, out);
    }

    /// `rank` is dead or in a new life: nothing of its old one reads or answers any more.
    fn rank_lost(&mut self, now: Time, op: OpId, rank: Rank, out: &mut Vec<Effect>) {
        let Some(running) = self.ops.get_mut(&op) else { return };
        match &mut running.state {
            State::Sending { open, .. } if open.iter().any(|(_, pushing)| *pushing == rank) => {
                let gone: Vec<(u32, Rank)> = open.iter().copied().filter(|(_, pushing)| *pushing == rank).collect();
                for (part, rank) in gone {
                    open.remove(&(part, rank));
                    self.calls.answered(push_call(op, part, rank));
                }
                self.stop(now, op, &format!("rank {} died", rank.0), out);
            }
            State::Stopping { waiting, .. } if waiting.contains(rank) => self.push_stopped(now, op, rank, out),
            State::Opening { .. }
            | State::Offered { .. }
            | State::Sending { .. }
            | State::Finishing { .. }
            | State::Stopping { .. }
            | State::Ceasing { .. } => {}
        }
    }
}
