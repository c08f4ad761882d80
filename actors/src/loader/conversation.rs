//! The steps of a load: each takes the op from one state to the next.

use super::op::{ATTEMPT, End, FREE, Op, Outcome, PagesEnd, Place, RESERVE, State, copy_call, disown_call, stop_call};
use super::{Loader, RING_SLOTS, tell};
use crate::copy_ack::Fate;
use crate::course::Course;
use crate::faults::Fault;
use crate::lives::{Learnt, RankSet};
use crate::machine::{Effect, Sender};
use crate::protocol::{
    Address, CopyAck, Free, Incarnation, Load, LoadBusy, LoadEnded, Malformed, OpId, OpSettled, Outgoing, Owners,
    PageId, Pages, Rank, RankIn, RankIs, Refusal, Reserve, Reserved, Short, Slots, Stop, Time,
};

impl Loader {
    /// The index asks for a load, or asks again.
    pub(super) fn load(&mut self, now: Time, from: &Sender, msg: Load, out: &mut Vec<Effect>) {
        if let Some(running) = self.ops.get(&from.op) {
            self.counts.duplicates += 1;
            return running.tell_again(from.op, &from.trace, out);
        }
        if let Some(outcome) = self.ended.get(from.op) {
            self.counts.duplicates += 1;
            return tell(from.op, outcome.news(), &from.trace, out);
        }
        if let Err(refusal) = self.check(&msg) {
            return self.refuse(from, refusal, out);
        }
        let mut op = Op {
            load: msg,
            slot: 0,
            pages_op: OpId::default(),
            trace: from.trace.clone(),
            began: now,
            course: Course::default(),
            cause: None,
            disowning: RankSet::EMPTY,
            state: State::Reserving,
        };
        if self.lives.alive() != RankSet::all(self.config.cp_size) {
            // An engine whose rank is gone would wait for a word that nobody writes.
            let outcome = self.missed_by_none();
            self.counts.missed += 1;
            tell(from.op, outcome.news(), &from.trace, out);
            op.cause = Some(A_RANK_IS_GONE.to_owned());
            self.say_missed(now, from.op, &op, &outcome, out);
            return self.ended.note(now, from.op, outcome);
        }
        let Some(slot) = self.ring.take(from.op) else {
            self.counts.busy += 1;
            return tell(from.op, LoadBusy { bound: RING_SLOTS }.into(), &from.trace, out);
        };
        self.counts.loads += 1;
        (op.slot, op.pages_op) = (slot, self.ids.draw());
        let mut owners = op.owners();
        if self.config.faults.is(Fault::OwnersRotatedByOne) {
            owners[..op.load.owners.0.len()].rotate_left(1);
        }
        let reserve = Reserve { tier: 1, owners: Owners(owners) };
        self.calls.call(now, (op.pages_op, RESERVE), Outgoing::Allocator(reserve.into()), &op.trace, out);
        self.parents.insert(op.pages_op, from.op);
        self.ops.insert(from.op, op);
    }

    /// The allocator gives pages: the ranks are told to copy, and the index where.
    pub(super) fn reserved(&mut self, now: Time, pages_op: OpId, msg: Reserved, out: &mut Vec<Effect>) {
        let Some(op) = self.answered(pages_op, RESERVE) else { return };
        let Some(running) = self.ops.get_mut(&op) else { return };
        running.course.reserved(now);
        let cp_size = self.config.cp_size;
        let owners: Vec<u8> = msg.pages.0.iter().map(|page| page.owner(cp_size).0).collect();
        let right = owners == running.owners() || self.config.faults.is(Fault::OwnersRotatedByOne);
        self.counts.wrong_owners += u64::from(!right);
        if !right || self.lives.alive() != RankSet::all(cp_size) {
            running.cause = Some(if right { A_RANK_IS_GONE } else { "pages of other owners" }.to_owned());
            let then = self.missed_by_none();
            return self.give_back(now, op, msg.pages.0, then, out);
        }
        self.order_copies(now, op, msg.pages.0, out);
    }

    /// Too few pages, also after room was made: there is no fallback to other owners.
    pub(super) fn short(&mut self, now: Time, pages_op: OpId, msg: Short, out: &mut Vec<Effect>) {
        let Some(op) = self.answered(pages_op, RESERVE) else { return };
        if let Some(running) = self.ops.get_mut(&op) {
            running.course.reserved(now);
        }
        self.end(now, op, Outcome::Missed { short: msg.short }, PagesEnd::Gone, out);
    }

    /// Pages are free.
    pub(super) fn freed(&mut self, now: Time, pages_op: OpId, out: &mut Vec<Effect>) {
        let Some(op) = self.answered(pages_op, FREE) else { return };
        let Some(running) = self.ops.get(&op) else { return };
        let State::GivingBack { then } = &running.state else { return };
        let then = then.clone();
        self.end(now, op, then, PagesEnd::Gone, out);
    }

    /// A rank says how its copy went; one without pages only says that its engine may go on.
    pub(super) fn copy_ack(&mut self, now: Time, op: OpId, ack: &CopyAck, out: &mut Vec<Effect>) {
        let copies = self.ops.get(&op).is_some_and(|running| running.owner_ranks().contains(ack.rank));
        let fate = match self.config.layers.fate(ack, self.config.faults) {
            Fate::Failed(_) if !copies && ack.complete && ack.failed.is_empty() => Fate::Complete,
            fate => fate,
        };
        match fate {
            Fate::Running => {}
            Fate::Complete => self.copy_ended(now, op, ack.rank, None, out),
            Fate::Failed(code) => self.copy_ended(now, op, ack.rank, Some(code), out),
        }
    }

    /// The engine has read the slot: it can be used again. While the load runs nothing is said, and the index
    /// asks again.
    pub(super) fn release_slot(&mut self, now: Time, from: &Sender, out: &mut Vec<Effect>) {
        match self.ops.get(&from.op).map(|running| &running.state) {
            Some(State::Over { .. }) => self.end(now, from.op, Outcome::Released, PagesEnd::HandedOver, out),
            Some(State::Reserving | State::Copying { .. } | State::Stopping { .. } | State::GivingBack { .. }) => {
                self.counts.early_releases += 1
            }
            None => tell(from.op, OpSettled {}.into(), &from.trace, out),
        }
    }

    /// The index says which life a rank is in; what an older one ran is over.
    pub(super) fn rank_is(&mut self, now: Time, from: &Sender, msg: &RankIs, out: &mut Vec<Effect>) {
        match self.lives.learn(from.op, msg.rank, msg.incarnation) {
            Learnt::Changed => {
                let all: Vec<OpId> = self.ops.keys().copied().collect();
                for op in all {
                    self.rank_lost(now, op, msg.rank, out);
                    self.disown_slot(now, op, msg.rank, msg.incarnation, out);
                }
            }
            Learnt::Same => {}
            Learnt::Overtaken => self.counts.stale += 1,
            Learnt::NoSuchRank => {
                return self.refuse(from, Malformed::new("rank", msg.rank.0, self.config.cp_size), out);
            }
        }
        tell(from.op, OpSettled {}.into(), &from.trace, out);
    }

    /// Somebody refuses a request of the loader.
    pub(super) fn rejected(&mut self, now: Time, from: &Sender, refusal: &Refusal, out: &mut Vec<Effect>) {
        self.counts.rejected += 1;
        match from.address {
            Address::Allocator if self.calls.is_open((from.op, RESERVE)) => {
                let short = vec![0; usize::from(self.config.cp_size)];
                self.short(now, from.op, Short { short }, out);
            }
            Address::Allocator => self.freed(now, from.op, out),
            Address::Rank(rank) => self.copy_ended(now, from.op, rank, Some(refusal.code()), out),
            Address::Index => {
                // The index knows nothing of a load that is over: nobody else gives its pages back.
                let Some(running) = self.ops.get_mut(&from.op) else { return };
                if let State::Over { place, .. } = &mut running.state {
                    let pages = std::mem::take(&mut place.pages);
                    self.give_back(now, from.op, pages, Outcome::Released, out);
                }
            }
            Address::Evictor
            | Address::Writer
            | Address::Loader
            | Address::Sender
            | Address::Receiver
            | Address::Engine => {}
        }
    }

    fn order_copies(&mut self, now: Time, op: OpId, pages: Vec<PageId>, out: &mut Vec<Effect>) {
        let Some(running) = self.ops.get_mut(&op) else { return };
        // The word counts layers from `base` on; the next use begins one above the last value of this one.
        let base = self.ring.begin_use(running.slot) * (self.config.layers.layers() + 1);
        let place = Place { pages, base, lives: self.lives.list() };
        let copy = running.copy(&place);
        let waiting = RankSet::all(self.config.cp_size);
        for rank in waiting.iter() {
            let to = Outgoing::Rank(rank, RankIn::LoadCopy(copy.clone()));
            self.calls.call(now, copy_call(op, rank), to, &running.trace, out);
        }
        running.state = State::Copying { place, waiting };
        running.tell_again(op, &running.trace, out);
    }

    /// The copy of one rank has ended, completely or with `failure`.
    fn copy_ended(&mut self, now: Time, op: OpId, rank: Rank, failure: Option<&str>, out: &mut Vec<Effect>) {
        let Some(running) = self.ops.get_mut(&op) else {
            self.counts.late += 1;
            return;
        };
        if running.disowning.remove(rank) {
            self.calls.answered(disown_call(op, rank));
        }
        match (&mut running.state, failure) {
            (State::Copying { place, waiting }, None) if waiting.contains(rank) => {
                running.course.acknowledged(now, rank);
                waiting.remove(rank);
                self.calls.answered(copy_call(op, rank));
                if waiting.is_empty() {
                    let place = std::mem::take(place);
                    self.over(now, op, place, true, out);
                }
            }
            (State::Copying { waiting, .. }, Some(code)) if waiting.contains(rank) => {
                self.stop(now, op, rank, code, out)
            }
            (State::Stopping { place, waiting }, _) if waiting.contains(rank) => {
                waiting.remove(rank);
                self.calls.answered(stop_call(op, rank));
                if waiting.is_empty() {
                    let place = std::mem::take(place);
                    self.over(now, op, place, false, out);
                }
            }
            (
                State::Reserving
                | State::Copying { .. }
                | State::Stopping { .. }
                | State::Over { .. }
                | State::GivingBack { .. },
                _,
            ) => self.counts.duplicates += 1,
        }
    }

    /// The copy of `failed` came to nothing; whoever still copies is stopped.
    fn stop(&mut self, now: Time, op: OpId, failed: Rank, why: &str, out: &mut Vec<Effect>) {
        let Some(running) = self.ops.get_mut(&op) else { return };
        let State::Copying { place, waiting } = &mut running.state else { return };
        running.cause = Some(format!("rank {}: {why}", failed.0));
        let (place, mut waiting) = (std::mem::take(place), *waiting);
        for rank in waiting.iter() {
            self.calls.answered(copy_call(op, rank));
        }
        waiting.remove(failed);
        if waiting.is_empty() {
            return self.over(now, op, place, false, out);
        }
        for rank in waiting.iter() {
            let stop = Outgoing::Rank(rank, Stop { attempt: ATTEMPT }.into());
            self.calls.call(now, stop_call(op, rank), stop, &running.trace, out);
        }
        running.state = State::Stopping { place, waiting };
    }

    /// Nothing of the load writes any more.
    fn over(&mut self, now: Time, op: OpId, place: Place, ok: bool, out: &mut Vec<Effect>) {
        let Some(running) = self.ops.get_mut(&op) else { return };
        running.state = State::Over { place, ok };
        tell(op, LoadEnded { ok }.into(), &running.trace, out);
        let pages = running.load.owners.0.len() as u64;
        if ok {
            self.counts.arrived += 1;
            self.counts.loaded_pages += pages;
        } else {
            self.counts.failed += 1;
        }
        for (name, value) in [
            ("load.pages", pages),
            ("load.ranks", u64::from(running.owner_ranks().len())),
            ("load.attempts", u64::from(ATTEMPT)),
            ("load.ok", u64::from(ok)),
            ("load.wait_ms", running.began.ms_until(now)),
        ] {
            out.push(Effect::Mark { op, name, value });
        }
        let end = if ok { End::Arrived } else { End::Failed };
        out.extend(running.span(now, op, self.config.layers.layers(), end).map(Effect::span));
    }

    /// `rank` is dead or in a new life: nothing of its old one writes or answers any more.
    fn rank_lost(&mut self, now: Time, op: OpId, rank: Rank, out: &mut Vec<Effect>) {
        let Some(running) = self.ops.get(&op) else { return };
        match &running.state {
            // Also when its own part is done: the load of its engine is void with the rank that serves it.
            State::Copying { .. } => self.stop(now, op, rank, DIED, out),
            State::Stopping { waiting, .. } if waiting.contains(rank) => {
                self.copy_ended(now, op, rank, Some(DIED), out);
            }
            State::Reserving | State::Stopping { .. } | State::Over { .. } | State::GivingBack { .. } => {}
        }
    }

    /// Has the new life of `rank` end the use of the load slot that its old one left behind: the engine waits there,
    /// and nobody else is left to say that nothing will come. No life: whoever was asked is gone, too.
    fn disown_slot(&mut self, now: Time, op: OpId, rank: Rank, life: Incarnation, out: &mut Vec<Effect>) {
        let Some(running) = self.ops.get_mut(&op) else { return };
        let call = disown_call(op, rank);
        match &running.state {
            State::Stopping { place, .. } | State::Over { place, ok: false } if life != Incarnation::default() => {
                // It names the old life, so the new one copies nothing.
                let to = Outgoing::Rank(rank, RankIn::LoadCopy(running.copy(place)));
                self.calls.call(now, call, to, &running.trace, out);
                running.disowning.insert(rank);
            }
            State::Reserving
            | State::Copying { .. }
            | State::Stopping { .. }
            | State::Over { .. }
            | State::GivingBack { .. } => {
                self.calls.answered(call);
                running.disowning.remove(rank);
            }
        }
    }

    fn give_back(&mut self, now: Time, op: OpId, pages: Vec<PageId>, then: Outcome, out: &mut Vec<Effect>) {
        let Some(running) = self.ops.get_mut(&op) else { return };
        let free = Free { l1: Pages(pages), l2_owners: Owners::default(), l2: Slots::default() };
        self.calls.call(now, (running.pages_op, FREE), Outgoing::Allocator(free.into()), &running.trace, out);
        running.state = State::GivingBack { then };
    }

    fn end(&mut self, now: Time, op: OpId, outcome: Outcome, pages: PagesEnd, out: &mut Vec<Effect>) {
        let Some(running) = self.ops.remove(&op) else { return };
        for rank in running.disowning.iter() {
            self.calls.answered(disown_call(op, rank));
        }
        self.parents.remove(&running.pages_op);
        self.ring.release(running.slot, op);
        self.counts.missed += u64::from(matches!(outcome, Outcome::Missed { .. }));
        tell(op, outcome.news(), &running.trace, out);
        self.say_missed(now, op, &running, &outcome, out);
        self.ended.note(now, op, outcome);
        self.ended_pages.note(now, running.pages_op, pages);
    }

    /// The span of a load that is a miss; one that ran has said what it was when it was over.
    fn say_missed(&self, now: Time, op: OpId, missed: &Op, outcome: &Outcome, out: &mut Vec<Effect>) {
        match outcome {
            Outcome::Missed { short } => {
                let span = missed.span(now, op, self.config.layers.layers(), End::Missed { short });
                out.extend(span.map(Effect::span));
            }
            Outcome::Released => {}
        }
    }

    /// A miss that no lane is to blame for.
    fn missed_by_none(&self) -> Outcome {
        Outcome::Missed { short: vec![0; usize::from(self.config.cp_size)] }
    }

    /// Ends a call to the allocator; the load it was for, when it was open.
    fn answered(&mut self, pages_op: OpId, topic: u16) -> Option<OpId> {
        if !self.calls.answered((pages_op, topic)) {
            self.counts.late += 1;
            return None;
        }
        self.parents.get(&pages_op).copied()
    }
}

/// Why a load is a miss that finds room.
const A_RANK_IS_GONE: &str = "a rank is gone";
/// What became of a rank that answers nothing any more.
const DIED: &str = "died";
