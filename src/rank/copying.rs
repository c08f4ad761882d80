//! Backups, loads and stops: from a checked message to a job, and from its end to an acknowledgement.

use hicached_actors::machine::{Effect, Sender, Trace};
use hicached_actors::protocol::{
    Address, BackupCopy, CopyAck, LoadCopy, LoaderIn, OpId, Outgoing, Refusal, Stop, Time, Unknown, WriterIn,
    WrongState,
};
use hicached_client::shm::{LoadState, SlotTaken};

use super::claims::Claim;
use super::copies::{Check, End, Job, JobId, JobKind};
use super::layout::layer_bits;
use super::machine::{RankMachine, Running};
use super::ops::{Op, OpKind};
use super::orders::{BackupRows, Order, RingUse};
use crate::crash::{self, Inside};

impl RankMachine {
    /// Copies this rank's pages of a backup, each layer when its track has finished it.
    pub(super) fn backup_copy(&mut self, now: Time, from: &Sender, msg: &BackupCopy, out: &mut Vec<Effect>) {
        if self.is_answered(OpKind::Backup, from, msg.attempt, out) {
            return;
        }
        let order = match self.lane().backup(msg) {
            Ok(order) => order,
            Err(refusal) => return self.end_unbegun(now, OpKind::Backup, from, msg.attempt, Some(refusal), out),
        };
        if order.l1.is_empty() {
            return self.end_unbegun(now, OpKind::Backup, from, msg.attempt, None, out);
        }
        let claim = match self.room().and_then(|()| self.claims.down(&order.l1, &order.l2)) {
            Ok(claim) => claim,
            Err(refusal) => return self.end_unbegun(now, OpKind::Backup, from, msg.attempt, Some(refusal), out),
        };
        // Seals go before the first new byte of any of the records.
        let generations: Vec<u32> = order.l2.iter().map(|slot| self.pool.table().reserve(*slot)).collect();
        crash::reach(Inside::SealCleared);
        let rows = BackupRows::of(msg, &order, &generations);
        let kind = JobKind::Backup { step: msg.step, sums: self.fingerprints };
        let job = self.start(now, OpKind::Backup, from, msg.attempt, kind, order, rows, Vec::new(), claim);
        match (msg.step, msg.all_layers_at_end) {
            (0, _) => self.copies.submit(&job),
            (step, true) => {
                tracing::warn!(op = ?from.op, step, "a backup copies all layers at the end of its step, as it was told to");
                self.counts.all_layers_at_end += 1;
                self.copies.submit_behind(self.watch_id, &job, step, true);
            }
            (step, false) => self.copies.submit_behind(self.watch_id, &job, step, false),
        }
    }

    /// Copies this rank's pages of a load; the load slot tells the engine layer by layer.
    pub(super) fn load_copy(&mut self, now: Time, from: &Sender, msg: &LoadCopy, out: &mut Vec<Effect>) {
        let ring_use = match RingUse::of(msg, self.layers.total()) {
            Ok(ring_use) => ring_use,
            Err(refusal) => {
                if !self.is_answered(OpKind::Load, from, msg.attempt, out) {
                    self.end_unbegun(now, OpKind::Load, from, msg.attempt, Some(refusal), out);
                }
                return;
            }
        };
        if self.is_answered(OpKind::Load, from, msg.attempt, out) {
            // A try that was stopped before it came: its engine waits for a word that no job will move.
            if matches!(self.ops.get(from.op), Some(Op::Ended { ack, .. }) if !ack.complete) {
                self.give_slot_up(ring_use);
            }
            return;
        }
        let order = match self.room().and_then(|()| self.lane().load(msg)) {
            Ok(order) => order,
            Err(refusal) => {
                self.give_slot_up(ring_use);
                return self.end_unbegun(now, OpKind::Load, from, msg.attempt, Some(refusal), out);
            }
        };
        let (claim, checks) = match self.claim_load(now, &order, out) {
            Ok(claimed) => claimed,
            Err(refusal) => {
                self.give_slot_up(ring_use);
                return self.end_unbegun(now, OpKind::Load, from, msg.attempt, Some(refusal), out);
            }
        };
        if let Err(refusal) = self.begin_slot(ring_use) {
            self.claims.give_back(claim);
            return self.end_unbegun(now, OpKind::Load, from, msg.attempt, Some(refusal), out);
        }
        let RingUse { slot, use_count, base, end } = ring_use;
        if order.l1.is_empty() {
            self.claims.give_back(claim);
            let failed = self.pool.ring().finish(slot, use_count).err().map(|taken| slot_taken(slot, taken));
            self.pool.ring().advance(slot, end);
            return self.end_unbegun(now, OpKind::Load, from, msg.attempt, failed, out);
        }
        let kind = JobKind::Load { slot, use_count, base };
        let rows = BackupRows::default();
        let job = self.start(now, OpKind::Load, from, msg.attempt, kind, order, rows, checks, claim);
        self.copies.submit(&job);
    }

    /// The pages and slots of a load, and what its records have to be.
    fn claim_load(&mut self, now: Time, order: &Order, out: &mut Vec<Effect>) -> Result<(Claim, Vec<Check>), Refusal> {
        let claim = self.claims.up(&order.l1, &order.l2)?;
        match self.checks(now, &order.l2, out) {
            Ok(checks) => Ok((claim, checks)),
            Err(refusal) => {
                self.claims.give_back(claim);
                Err(refusal)
            }
        }
    }

    /// A load of an older life of this rank: nothing will come, and its engine must not wait.
    pub(super) fn disown_slot(&mut self, now: Time, from: &Sender, msg: &LoadCopy, out: &mut Vec<Effect>) {
        if let Ok(ring_use) = RingUse::of(msg, self.layers.total()) {
            self.give_slot_up(ring_use);
        }
        if !self.is_answered(OpKind::Load, from, msg.attempt, out) {
            let refusal = WrongState::new(from.op, "of an older life").into();
            self.end_unbegun(now, OpKind::Load, from, msg.attempt, Some(refusal), out);
        }
    }

    /// Ends a try; the answer comes when nothing of it reads or writes any more.
    pub(super) fn stop(&mut self, now: Time, from: &Sender, msg: &Stop, out: &mut Vec<Effect>) {
        let kind = if from.address == Address::Loader { OpKind::Load } else { OpKind::Backup };
        match self.ops.get(from.op) {
            Some(Op::Running { attempt, job, .. }) if *attempt == msg.attempt => {
                let job = *job;
                self.copies.forget_job(self.watch_id, job);
                if let Some(running) = self.jobs.get(&job) {
                    running.job.stop(WrongState::new(from.op, "stopped").into());
                }
            }
            Some(Op::Whole { ack, .. }) if ack.attempt == msg.attempt => {
                // Another rank failed: no verdict will come, and a tombstone answers from here on.
                let ack = ack.clone();
                self.ops.end(from.op, OpKind::Backup, ack.clone(), false);
                self.acknowledge(OpKind::Backup, from.op, ack, &from.trace, out);
            }
            Some(Op::Running { .. } | Op::Whole { .. } | Op::Ended { .. }) => {
                self.is_answered(kind, from, msg.attempt, out);
            }
            None => self.end_unbegun(now, kind, from, msg.attempt, Some(Unknown::new("op", from.op).into()), out),
        }
    }

    /// A job has ended: says so, unless its control incarnation has.
    pub(super) fn job_ended(&mut self, now: Time, id: JobId, end: End, out: &mut Vec<Effect>) {
        let Some(running) = self.jobs.remove(&id) else { return };
        self.copies.forget_job(self.watch_id, id);
        out.extend(self.copy_span(now, &running, &end).map(Effect::span));
        let Running { op, attempt, kind, old, job, mut rows, claim, trace, began: _ } = running;
        self.claims.give_back(claim);
        self.tally(op, kind, &job, &end, out);
        for (slot, component) in &end.damaged {
            self.report_damaged(now, *slot, component.name(), out);
        }
        if old {
            if self.jobs.values().all(|job| !job.old) {
                self.hello(now, OpId::default(), out);
            }
            return;
        }
        let done = job.done();
        let complete = end.failed.is_none();
        let layers = layer_bits(&self.layout, |index| done[index as usize]);
        let failed = end.failed.into_iter().collect();
        let ack = CopyAck { attempt, rank: self.rank, layers, complete, failed };
        if complete && kind == OpKind::Backup {
            crash::reach(Inside::Copied);
            rows.set_sums(&end.sums);
            self.ops.whole(op, ack.clone(), rows);
        } else {
            self.ops.end(op, kind, ack.clone(), false);
        }
        self.acknowledge(kind, op, ack, &trace, out);
    }

    /// Tells the writer or the loader the fate of a try.
    pub(super) fn acknowledge(&mut self, kind: OpKind, op: OpId, ack: CopyAck, trace: &Trace, out: &mut Vec<Effect>) {
        let to = match kind {
            OpKind::Backup => Outgoing::Writer(WriterIn::CopyAck(ack)),
            OpKind::Load => Outgoing::Loader(LoaderIn::CopyAck(ack)),
        };
        out.push(Effect::Send { to, op, trace: trace.clone() });
    }

    /// Answers a message of an op that is known, or was; whether it did.
    fn is_answered(&mut self, kind: OpKind, from: &Sender, attempt: u32, out: &mut Vec<Effect>) -> bool {
        let ack = match self.ops.get(from.op) {
            None if self.ops.is_forgotten(kind, from.op) => self.failed(attempt, Unknown::new("op", from.op).into()),
            None => return false,
            Some(op) if op.kind() != kind => {
                let state = format!("a {:?}", op.kind());
                self.failed(attempt, WrongState::new(from.op, &state).into())
            }
            Some(Op::Running { attempt: running, job, .. }) if *running == attempt => {
                let done = self.jobs.get(job).map(|running| running.job.done()).unwrap_or_default();
                let layers = layer_bits(&self.layout, |index| done.get(index as usize) == Some(&true));
                CopyAck { attempt, rank: self.rank, layers, complete: false, failed: Vec::new() }
            }
            Some(Op::Running { attempt: running, .. }) => {
                let state = format!("try {running} runs");
                self.failed(attempt, WrongState::new(from.op, &state).into())
            }
            Some(Op::Whole { ack, .. } | Op::Ended { ack, .. }) if ack.attempt == attempt => ack.clone(),
            // A failed try may be followed by a new one; a complete one has nothing left to try.
            Some(Op::Ended { ack, .. }) if ack.attempt < attempt && !ack.complete => return false,
            Some(Op::Whole { ack, .. } | Op::Ended { ack, .. }) => {
                let state = format!("try {} has ended", ack.attempt);
                self.failed(attempt, WrongState::new(from.op, &state).into())
            }
        };
        self.acknowledge(kind, from.op, ack, &from.trace, out);
        true
    }

    /// Ends a try without a job: refused, stopped before it came, or without a page of this rank.
    fn end_unbegun(
        &mut self,
        now: Time,
        kind: OpKind,
        from: &Sender,
        attempt: u32,
        failed: Option<Refusal>,
        out: &mut Vec<Effect>,
    ) {
        let ack = match failed {
            Some(refusal) => {
                self.counts.refused += 1;
                out.extend(self.refused_span(now, kind, from, attempt, &refusal).map(Effect::span));
                self.failed(attempt, refusal)
            }
            None => {
                let layers = layer_bits(&self.layout, |_| true);
                CopyAck { attempt, rank: self.rank, layers, complete: true, failed: Vec::new() }
            }
        };
        self.ops.end(from.op, kind, ack.clone(), false);
        self.acknowledge(kind, from.op, ack, &from.trace, out);
    }

    fn failed(&self, attempt: u32, refusal: Refusal) -> CopyAck {
        let layers = layer_bits(&self.layout, |_| false);
        CopyAck { attempt, rank: self.rank, layers, complete: false, failed: vec![refusal] }
    }

    /// Whether another op fits, and no new engine is waiting for the copies to end.
    pub(super) fn room(&self) -> Result<(), Refusal> {
        if self.attaching.is_some() {
            return Err(WrongState { what: format!("{:?}", self.rank), state: "its engine changes".to_owned() }.into());
        }
        if self.jobs.len() >= JOBS_MAX { Err(super::busy("copies", JOBS_MAX)) } else { Ok(()) }
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of one job, used once each by two callers")]
    fn start(
        &mut self,
        now: Time,
        kind: OpKind,
        from: &Sender,
        attempt: u32,
        job_kind: JobKind,
        order: Order,
        rows: BackupRows,
        checks: Vec<Check>,
        claim: Claim,
    ) -> std::sync::Arc<Job> {
        self.next_job += 1;
        let id = JobId(self.next_job);
        let ground = self.ground().expect("pages were checked against the attached pool");
        let job = Job::new(id, job_kind, order.runs, checks, ground, self.events.clone(), from.trace.is_some());
        let (op, trace, handle) = (from.op, from.trace.clone(), job.clone());
        self.jobs.insert(id, Running { op, attempt, kind, old: false, job, rows, claim, trace, began: now });
        self.ops.running(op, kind, attempt, id);
        handle
    }

    /// Begins the use of a load slot for a load of the control incarnation.
    fn begin_slot(&mut self, ring_use: RingUse) -> Result<(), Refusal> {
        let RingUse { slot, use_count, base, .. } = ring_use;
        let newest = self.ring_uses.get(&slot).copied();
        if newest.is_some_and(|newest| newest >= use_count) || self.is_slot_busy(slot) {
            return Err(
                WrongState { what: format!("load slot {slot}"), state: "in a later or equal use".into() }.into()
            );
        }
        match (self.pool.ring().begin(slot, use_count), newest) {
            (Ok(()), _) => {}
            // Left behind by an older control incarnation, whose loader had counted further.
            (Err(SlotTaken { state: LoadState::Superseded | LoadState::Done }), None) => {
                self.pool.ring().begin_anew(slot, use_count, base);
            }
            (Err(taken), _) => {
                self.ring_uses.insert(slot, use_count);
                self.give_slot_up(ring_use);
                return Err(slot_taken(slot, taken));
            }
        }
        self.ring_uses.insert(slot, use_count);
        Ok(())
    }

    /// Fails a use of a load slot that no job has: its engine must not wait on.
    fn give_slot_up(&mut self, ring_use: RingUse) {
        if !self.is_slot_busy(ring_use.slot) {
            // Lost when the client has failed it already, which is as good.
            self.pool.ring().fail(ring_use.slot, ring_use.use_count, ring_use.end).ok();
        }
    }

    fn is_slot_busy(&self, slot: u32) -> bool {
        self.jobs.values().any(|running| matches!(running.job.kind(), JobKind::Load { slot: of, .. } if *of == slot))
    }

    fn tally(&mut self, op: OpId, kind: OpKind, job: &Job, end: &End, out: &mut Vec<Effect>) {
        let (copy_us, wait_us) = (end.tally.copying.as_micros() as u64, end.tally.waiting.as_micros() as u64);
        let (bytes, runs) = (end.tally.bytes, job.runs().run_count() as u64);
        let counts = &mut self.counts;
        let names = match kind {
            OpKind::Backup => {
                counts.backups += 1;
                counts.bytes_down += bytes;
                ["backup.bytes", "backup.runs", "backup.pages", "backup.copy_us", "backup.wait_us"]
            }
            OpKind::Load => {
                counts.loads += 1;
                counts.bytes_up += bytes;
                ["load.bytes", "load.runs", "load.pages", "load.copy_us", "load.wait_us"]
            }
        };
        counts.failed += u64::from(end.failed.is_some());
        counts.verified += u64::from(end.checked);
        counts.runs += runs;
        counts.copy_us += copy_us;
        counts.wait_us += wait_us;
        let values = [bytes, runs, u64::from(job.runs().pages()), copy_us, wait_us];
        out.extend(names.into_iter().zip(values).map(|(name, value)| Effect::Mark { op, name, value }));
    }
}

fn slot_taken(slot: u32, taken: SlotTaken) -> Refusal {
    WrongState { what: format!("load slot {slot}"), state: format!("{:?}", taken.state) }.into()
}

/// Copies that may run on one rank at a time.
const JOBS_MAX: usize = 4_096;
