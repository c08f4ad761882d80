//! The steps of a backup: each takes the op from one state to the next.

use super::op::{ATTEMPT, FREE, Op, Outcome, PagesEnd, RESERVE, State, copy_call, owners_of, seal_call, stop_call};
use super::{Writer, tell};
use crate::copy_ack::Fate;
use crate::course::Course;
use crate::faults::Fault;
use crate::lives::{Learnt, RankSet};
use crate::machine::{Effect, Sender};
use crate::protocol::{
    Address, Backup, BackupCopy, BackupVerdict, Bin, CopyAck, HostSlot, Malformed, OpId, OpSettled, Outgoing, Owners,
    Rank, RankIn, RankIs, Refusal, Reserve, Reserved, Seal, Short, Slots, Stop, Time, Unknown, WrongState,
};

impl Writer {
    /// The index asks for a backup, or asks again.
    pub(super) fn backup(&mut self, now: Time, from: &Sender, msg: Backup, out: &mut Vec<Effect>) {
        if let Some(running) = self.ops.get(&from.op) {
            self.counts.duplicates += 1;
            return match &running.state {
                State::Complete { .. } | State::Sealing { .. } | State::Forfeiting { .. } => {
                    tell(from.op, running.complete(), &from.trace, out);
                }
                State::Reserving | State::Copying { .. } | State::Stopping { .. } | State::GivingBack { .. } => {}
            };
        }
        if let Some(outcome) = self.ended.get(from.op) {
            self.counts.duplicates += 1;
            return tell(from.op, outcome.news(), &from.trace, out);
        }
        if let Err(refusal) = self.check(&msg) {
            return self.refuse(from, refusal, out);
        }
        self.counts.backups += 1;
        self.counts.all_layers_at_end += u64::from(msg.all_layers_at_end);
        let (owners, owner_ranks) = owners_of(&msg, self.config.cp_size);
        let gone = owner_ranks.without(self.lives.alive());
        let mut op = Op {
            backup: msg,
            owners,
            owner_ranks,
            pages_op: OpId::default(),
            trace: from.trace.clone(),
            began: now,
            course: Course::default(),
            kept_pages: 0,
            state: State::Reserving,
        };
        if !gone.is_empty() {
            let outcome = Outcome::Failed { cause: gone_text(gone) };
            self.counts.failed += 1;
            tell(from.op, outcome.news(), &from.trace, out);
            out.extend(op.span(now, from.op, &outcome).map(Effect::span));
            return self.ended.note(now, from.op, outcome);
        }
        op.pages_op = self.ids.draw();
        let reserve = Reserve { tier: 2, owners: Owners(op.owners.clone()) };
        self.calls.call(now, (op.pages_op, RESERVE), Outgoing::Allocator(reserve.into()), &from.trace, out);
        self.parents.insert(op.pages_op, from.op);
        self.ops.insert(from.op, op);
    }

    /// The allocator gives host pages: the ranks are told to copy.
    pub(super) fn reserved(&mut self, now: Time, pages_op: OpId, msg: Reserved, out: &mut Vec<Effect>) {
        let Some(op) = self.answered(pages_op, RESERVE) else { return };
        let Some(running) = self.ops.get_mut(&op) else { return };
        running.course.reserved(now);
        let slots: Vec<HostSlot> = msg.pages.0.iter().map(|page| HostSlot(page.0)).collect();
        if slots.len() != running.owners.len() {
            // Which slot is whose cannot be told: the allocator takes them back when it asks for their owner.
            let cause = format!("{} slots for {} pages", slots.len(), running.owners.len());
            return self.end(now, op, Outcome::Failed { cause }, PagesEnd::Gone, out);
        }
        let gone = running.owner_ranks.without(self.lives.alive());
        if !gone.is_empty() {
            return self.give_back(now, op, &slots, gone_text(gone), out);
        }
        self.order_copies(now, op, slots, out);
    }

    /// The allocator has too few host pages: nothing was reserved.
    pub(super) fn short(&mut self, now: Time, pages_op: OpId, msg: Short, out: &mut Vec<Effect>) {
        let Some(op) = self.answered(pages_op, RESERVE) else { return };
        if let Some(running) = self.ops.get_mut(&op) {
            running.course.reserved(now);
        }
        self.end(now, op, Outcome::Refused { short: msg.short }, PagesEnd::Gone, out);
    }

    /// Slots are free.
    pub(super) fn freed(&mut self, now: Time, pages_op: OpId, out: &mut Vec<Effect>) {
        let Some(op) = self.answered(pages_op, FREE) else { return };
        self.after_free(now, op, out);
    }

    /// A rank says how its copy went.
    pub(super) fn copy_ack(&mut self, now: Time, op: OpId, ack: &CopyAck, out: &mut Vec<Effect>) {
        match self.config.layers.fate(ack, self.config.faults) {
            Fate::Running => {}
            Fate::Complete => self.copy_ended(now, op, ack.rank, None, out),
            Fate::Failed(code) => self.copy_ended(now, op, ack.rank, Some(code), out),
        }
    }

    /// A rank has sealed what is kept.
    pub(super) fn sealed(&mut self, now: Time, op: OpId, rank: Rank, out: &mut Vec<Effect>) {
        if !self.calls.answered(seal_call(op, rank)) {
            self.counts.late += 1;
            return;
        }
        let Some(running) = self.ops.get_mut(&op) else { return };
        let State::Sealing { waiting, .. } = &mut running.state else { return };
        waiting.remove(rank);
        if waiting.is_empty() {
            self.after_seals(now, op, out);
        }
    }

    /// The index decides which pages of a complete backup are kept.
    pub(super) fn verdict(&mut self, now: Time, from: &Sender, msg: BackupVerdict, out: &mut Vec<Effect>) {
        let Some(running) = self.ops.get(&from.op) else {
            return match self.ended.get(from.op) {
                Some(outcome) => {
                    self.counts.duplicates += 1;
                    tell(from.op, outcome.news(), &from.trace, out);
                }
                None => self.refuse(from, Unknown::new("backup", from.op), out),
            };
        };
        match &running.state {
            State::Complete { slots, .. } if slots.len() == msg.kept.0.len() => {
                self.decide(now, from.op, msg.kept.0, out);
            }
            State::Complete { slots, .. } => {
                let wrong = Malformed::new("kept", msg.kept.0.len(), slots.len());
                self.refuse(from, wrong, out);
            }
            State::Sealing { kept, .. } | State::Forfeiting { kept, .. } if *kept == msg.kept.0 => {
                self.counts.duplicates += 1;
            }
            State::Reserving
            | State::Copying { .. }
            | State::Sealing { .. }
            | State::Forfeiting { .. }
            | State::Stopping { .. }
            | State::GivingBack { .. } => {
                let wrong = WrongState::new(from.op, running.state.name());
                self.refuse(from, wrong, out);
            }
        }
    }

    /// The index says which life a rank is in; what an older one ran is over.
    pub(super) fn rank_is(&mut self, now: Time, from: &Sender, msg: &RankIs, out: &mut Vec<Effect>) {
        match self.lives.learn(from.op, msg.rank, msg.incarnation) {
            Learnt::Changed => {
                let owns = |op: &&Op| op.owner_ranks.contains(msg.rank);
                let hit: Vec<OpId> = self.ops.iter().filter(|(_, op)| owns(op)).map(|(id, _)| *id).collect();
                for op in hit {
                    self.rank_lost(now, op, msg.rank, out);
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

    /// Somebody refuses a request of the writer.
    pub(super) fn rejected(&mut self, now: Time, from: &Sender, refusal: &Refusal, out: &mut Vec<Effect>) {
        self.counts.rejected += 1;
        match from.address {
            Address::Allocator => {
                let cause = format!("allocator: {}", refusal.code());
                if self.calls.is_open((from.op, RESERVE)) {
                    let Some(op) = self.answered(from.op, RESERVE) else { return };
                    self.end(now, op, Outcome::Failed { cause }, PagesEnd::Gone, out);
                } else if let Some(op) = self.answered(from.op, FREE) {
                    self.after_free(now, op, out);
                }
            }
            Address::Rank(rank) if self.calls.is_open(seal_call(from.op, rank)) => {
                // Its records are gone with an op it no longer knows: they are misses after the next inventory.
                out.push(Effect::Mark { op: from.op, name: "error.seal_refused", value: 1 });
                self.sealed(now, from.op, rank, out);
            }
            Address::Rank(rank) => self.copy_ended(now, from.op, rank, Some(refusal.code()), out),
            Address::Index => {
                // The index knows nothing of a complete backup: nobody will ever decide on it.
                let running = self.ops.get(&from.op);
                if let Some(State::Complete { slots, .. }) = running.map(|running| &running.state) {
                    self.decide(now, from.op, vec![0; slots.len()], out);
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

    fn order_copies(&mut self, now: Time, op: OpId, slots: Vec<HostSlot>, out: &mut Vec<Effect>) {
        let Some(running) = self.ops.get_mut(&op) else { return };
        let backup = &running.backup;
        let copy = BackupCopy {
            attempt: ATTEMPT,
            step: backup.step,
            pages: backup.pages.clone(),
            slots: Slots(slots.clone()),
            keys: backup.keys.clone(),
            parent: backup.parent,
            first: backup.first,
            salt: backup.salt,
            all_layers_at_end: backup.all_layers_at_end,
            lives: self.lives.list(),
        };
        for rank in RankSet::all(self.config.cp_size).iter() {
            let to = Outgoing::Rank(rank, RankIn::BackupCopy(copy.clone()));
            if running.owner_ranks.contains(rank) {
                self.calls.call(now, copy_call(op, rank), to, &running.trace, out);
            } else if self.lives.alive().contains(rank) {
                // A rank without pages is told once, so that it sees every backup, and not waited for.
                out.push(Effect::Send { to, op, trace: running.trace.clone() });
            }
        }
        running.state = State::Copying { slots, waiting: running.owner_ranks };
        self.after_copies(op, out);
    }

    /// The copy of one rank has ended, completely or with `failure`.
    fn copy_ended(&mut self, now: Time, op: OpId, rank: Rank, failure: Option<&'static str>, out: &mut Vec<Effect>) {
        let Some(running) = self.ops.get_mut(&op) else {
            self.counts.late += 1;
            return;
        };
        match (&mut running.state, failure) {
            (State::Copying { waiting, .. }, None) if waiting.contains(rank) => {
                running.course.acknowledged(now, rank);
                waiting.remove(rank);
                self.calls.answered(copy_call(op, rank));
                self.after_copies(op, out);
            }
            (State::Copying { waiting, .. }, Some(code)) if waiting.contains(rank) => {
                self.stop(now, op, rank, format!("rank {}: {code}", rank.0), out);
            }
            (State::Stopping { waiting, .. }, _) if waiting.contains(rank) => self.stopped(now, op, rank, out),
            (
                State::Reserving
                | State::Copying { .. }
                | State::Complete { .. }
                | State::Sealing { .. }
                | State::Forfeiting { .. }
                | State::Stopping { .. }
                | State::GivingBack { .. },
                _,
            ) => self.counts.duplicates += 1,
        }
    }

    fn after_copies(&mut self, op: OpId, out: &mut Vec<Effect>) {
        let Some(running) = self.ops.get_mut(&op) else { return };
        let State::Copying { slots, waiting } = &mut running.state else { return };
        if self.config.faults.is(Fault::VisibleBeforeLastAck) && waiting.len() == 1 {
            for rank in std::mem::take(waiting).iter() {
                self.calls.answered(copy_call(op, rank));
            }
        }
        if waiting.is_empty() {
            running.state = State::Complete { slots: std::mem::take(slots), lost: RankSet::EMPTY };
            tell(op, running.complete(), &running.trace, out);
        }
    }

    /// The copy of `failed` came to nothing; whoever still copies is stopped.
    fn stop(&mut self, now: Time, op: OpId, failed: Rank, cause: String, out: &mut Vec<Effect>) {
        let Some(running) = self.ops.get_mut(&op) else { return };
        let State::Copying { slots, waiting } = &mut running.state else { return };
        let (slots, mut waiting) = (std::mem::take(slots), *waiting);
        for rank in waiting.iter() {
            self.calls.answered(copy_call(op, rank));
        }
        waiting.remove(failed);
        if waiting.is_empty() || self.config.faults.is(Fault::FreedWhileCopyCanStillWrite) {
            return self.give_back(now, op, &slots, cause, out);
        }
        for rank in waiting.iter() {
            let stop = Outgoing::Rank(rank, Stop { attempt: ATTEMPT }.into());
            self.calls.call(now, stop_call(op, rank), stop, &running.trace, out);
        }
        running.state = State::Stopping { slots, cause, waiting };
    }

    /// Nothing of `rank` writes any more, because it says so or because it is dead.
    fn stopped(&mut self, now: Time, op: OpId, rank: Rank, out: &mut Vec<Effect>) {
        let Some(running) = self.ops.get_mut(&op) else { return };
        let State::Stopping { slots, cause, waiting } = &mut running.state else { return };
        waiting.remove(rank);
        self.calls.answered(stop_call(op, rank));
        if waiting.is_empty() {
            let (slots, cause) = (std::mem::take(slots), std::mem::take(cause));
            self.give_back(now, op, &slots, cause, out);
        }
    }

    fn give_back(&mut self, now: Time, op: OpId, slots: &[HostSlot], cause: String, out: &mut Vec<Effect>) {
        let Some(running) = self.ops.get_mut(&op) else { return };
        let free = Outgoing::Allocator(running.free_of(slots, None).into());
        self.calls.call(now, (running.pages_op, FREE), free, &running.trace, out);
        running.state = State::GivingBack { cause };
    }

    /// Carries the verdict out: seals first, so that nothing of a rank still names a slot that goes back.
    fn decide(&mut self, now: Time, op: OpId, kept: Vec<u8>, out: &mut Vec<Effect>) {
        let Some(running) = self.ops.get_mut(&op) else { return };
        let State::Complete { slots, lost } = &mut running.state else { return };
        let (slots, waiting) = (std::mem::take(slots), running.owner_ranks.without(*lost));
        let seal =
            Seal { kept: Bin(kept.clone()), slots: Slots(slots.clone()), owners: Owners(running.owners.clone()) };
        for rank in waiting.iter() {
            let to = Outgoing::Rank(rank, seal.clone().into());
            self.calls.call(now, seal_call(op, rank), to, &running.trace, out);
        }
        running.state = State::Sealing { slots, kept, waiting };
        if waiting.is_empty() {
            self.after_seals(now, op, out);
        }
    }

    fn after_seals(&mut self, now: Time, op: OpId, out: &mut Vec<Effect>) {
        let Some(running) = self.ops.get_mut(&op) else { return };
        let State::Sealing { slots, kept, .. } = &mut running.state else { return };
        let (slots, kept) = (std::mem::take(slots), std::mem::take(kept));
        let forfeited = kept.iter().filter(|byte| **byte == 0).count();
        running.kept_pages = (kept.len() - forfeited) as u64;
        self.counts.forfeited_pages += forfeited as u64;
        self.counts.kept_pages += (kept.len() - forfeited) as u64;
        if forfeited == 0 {
            return self.end(now, op, Outcome::Settled, PagesEnd::HandedOver, out);
        }
        let free = Outgoing::Allocator(running.free_of(&slots, Some(&kept)).into());
        self.calls.call(now, (running.pages_op, FREE), free, &running.trace, out);
        running.state = State::Forfeiting { slots, kept };
    }

    fn after_free(&mut self, now: Time, op: OpId, out: &mut Vec<Effect>) {
        let Some(running) = self.ops.get_mut(&op) else { return };
        match &mut running.state {
            State::GivingBack { cause } => {
                let cause = std::mem::take(cause);
                self.end(now, op, Outcome::Failed { cause }, PagesEnd::Gone, out);
            }
            State::Forfeiting { .. } => self.end(now, op, Outcome::Settled, PagesEnd::HandedOver, out),
            State::Reserving
            | State::Copying { .. }
            | State::Complete { .. }
            | State::Sealing { .. }
            | State::Stopping { .. } => {}
        }
    }

    /// `rank` is dead or in a new life: nothing of its old one writes or answers any more.
    fn rank_lost(&mut self, now: Time, op: OpId, rank: Rank, out: &mut Vec<Effect>) {
        let Some(running) = self.ops.get_mut(&op) else { return };
        match &mut running.state {
            State::Copying { .. } => self.stop(now, op, rank, format!("rank {} died", rank.0), out),
            State::Complete { lost, .. } => lost.insert(rank),
            State::Sealing { waiting, .. } if waiting.contains(rank) => self.sealed(now, op, rank, out),
            State::Stopping { waiting, .. } if waiting.contains(rank) => self.stopped(now, op, rank, out),
            State::Reserving
            | State::Sealing { .. }
            | State::Stopping { .. }
            | State::Forfeiting { .. }
            | State::GivingBack { .. } => {}
        }
    }

    fn end(&mut self, now: Time, op: OpId, outcome: Outcome, pages: PagesEnd, out: &mut Vec<Effect>) {
        let Some(running) = self.ops.remove(&op) else { return };
        self.parents.remove(&running.pages_op);
        match &outcome {
            Outcome::Refused { .. } => self.counts.refused += 1,
            Outcome::Failed { .. } => self.counts.failed += 1,
            Outcome::Settled => self.counts.settled += 1,
        }
        tell(op, outcome.news(), &running.trace, out);
        for (name, value) in [
            ("backup.pages", running.owners.len() as u64),
            ("backup.ranks", u64::from(running.owner_ranks.len())),
            ("backup.attempts", u64::from(ATTEMPT)),
            ("backup.wait_ms", running.began.ms_until(now)),
        ] {
            out.push(Effect::Mark { op, name, value });
        }
        out.extend(running.span(now, op, &outcome).map(Effect::span));
        self.ended.note(now, op, outcome);
        self.ended_pages.note(now, running.pages_op, pages);
    }

    /// Ends a call to the allocator; the backup it was for, when it was open.
    fn answered(&mut self, pages_op: OpId, topic: u16) -> Option<OpId> {
        if !self.calls.answered((pages_op, topic)) {
            self.counts.late += 1;
            return None;
        }
        self.parents.get(&pages_op).copied()
    }
}

fn gone_text(gone: RankSet) -> String {
    let ranks: Vec<String> = gone.iter().map(|rank| rank.0.to_string()).collect();
    format!("gone: rank {}", ranks.join(", "))
}
