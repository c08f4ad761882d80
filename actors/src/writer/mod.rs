//! Carries backups out: host pages from the allocator, copies by the ranks, and word to the index when every
//! owner has everything, or when nothing came of it and nothing writes any more.
//!
//! Invariants: an op is complete only when every owner rank has acknowledged every layer; slots go back only
//! when no rank can still write them; every op of the index is answered in the end.
//! Not here: which pages are backed up and kept (prefix_index); bytes (ranks).

mod admission;
mod conversation;
mod op;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use crate::calls::Calls;
use crate::copy_ack::LayerBits;
use crate::ended::{ENDED_MAX, ENDED_MS, Ended};
use crate::faults::Faults;
use crate::lives::RankLives;
use crate::machine::{Effect, Machine, Sender, Trace};
use crate::makers::{Maker, MakerIds};
use crate::protocol::{Address, Incarnation, IndexNews, Manifest, OpId, Outgoing, Time, WriterIn};
use op::{Op, Outcome, PagesEnd, State};

/// What a writer is built with.
#[derive(Clone, Debug)]
pub struct WriterConfig {
    /// Ranks of the group.
    pub cp_size: u8,
    /// What an acknowledgement has to name.
    pub layers: LayerBits,
    /// Most backups at a time.
    pub backups_max: usize,
    /// Most pages of one backup.
    pub pages_max: usize,
    /// How long an outcome is kept for repeats.
    pub ended_ms: u64,
    /// How many outcomes are kept for repeats.
    pub ended_max: usize,
    /// The planted fault.
    pub faults: Faults,
}

impl WriterConfig {
    /// The defaults for a group with this manifest.
    pub fn new(manifest: &Manifest) -> Self {
        Self {
            cp_size: manifest.cp_size,
            layers: LayerBits::of(manifest),
            backups_max: 1_024,
            pages_max: 16_384,
            ended_ms: ENDED_MS,
            ended_max: ENDED_MAX,
            faults: Faults::NONE,
        }
    }
}

/// The writer of one group.
#[derive(Debug)]
pub struct Writer {
    config: WriterConfig,
    ids: MakerIds,
    calls: Calls,
    lives: RankLives,
    /// Backups that run, by the op of the index.
    ops: BTreeMap<OpId, Op>,
    /// The op under which each backup talks to the allocator: whose it is.
    parents: BTreeMap<OpId, OpId>,
    ended: Ended<Outcome>,
    ended_pages: Ended<PagesEnd>,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    backups: u64,
    settled: u64,
    refused: u64,
    failed: u64,
    duplicates: u64,
    stale: u64,
    foreign: u64,
    late: u64,
    rejected: u64,
    kept_pages: u64,
    forfeited_pages: u64,
    all_layers_at_end: u64,
}

impl Writer {
    /// A writer that has heard of no rank yet.
    pub fn new(config: WriterConfig, incarnation: Incarnation, seed: u64) -> Self {
        Self {
            ids: MakerIds::new(incarnation, Maker::Writer),
            calls: Calls::new(seed),
            lives: RankLives::new(config.cp_size),
            ops: BTreeMap::new(),
            parents: BTreeMap::new(),
            ended: Ended::new(config.ended_ms, config.ended_max),
            // Longer than the outcome: the allocator asks about pages a whole minute after it gave them.
            ended_pages: Ended::new(config.ended_ms.saturating_mul(4), config.ended_max.saturating_mul(4)),
            counts: Counts::default(),
            config,
        }
    }
}

impl Machine for Writer {
    type In = WriterIn;

    fn handle(&mut self, now: Time, from: &Sender, msg: WriterIn, out: &mut Vec<Effect>) {
        if !self.admits(from, &msg) {
            return;
        }
        match msg {
            WriterIn::Backup(msg) => self.backup(now, from, msg, out),
            WriterIn::BackupVerdict(msg) => self.verdict(now, from, msg, out),
            WriterIn::RankIs(msg) => self.rank_is(now, from, &msg, out),
            WriterIn::Reserved(msg) => self.reserved(now, from.op, msg, out),
            WriterIn::Short(msg) => self.short(now, from.op, msg, out),
            WriterIn::Freed(_) => self.freed(now, from.op, out),
            WriterIn::Whose(_) => self.whose(from, out),
            WriterIn::CopyAck(msg) => self.copy_ack(now, from.op, &msg, out),
            WriterIn::Sealed(msg) => self.sealed(now, from.op, msg.rank, out),
            WriterIn::Rejected(msg) => self.rejected(now, from, &msg.refusal, out),
        }
    }

    fn wake(&mut self, now: Time, out: &mut Vec<Effect>) {
        self.calls.wake(now, out);
        self.ended.wake(now);
        self.ended_pages.wake(now);
    }

    fn next_deadline(&self) -> Option<(Time, &'static str)> {
        let repeat = self.calls.next_deadline().map(|at| (at, "repeat"));
        let ended = self.ended.next_deadline().map(|at| (at, "ended op"));
        let pages = self.ended_pages.next_deadline().map(|at| (at, "ended pages"));
        [repeat, ended, pages].into_iter().flatten().min()
    }

    fn resync(&mut self, now: Time, peer: Address, out: &mut Vec<Effect>) {
        self.calls.resync(now, peer, out);
        if peer != Address::Index {
            return;
        }
        for (op, running) in &self.ops {
            if let State::Complete { .. } = running.state {
                tell(*op, running.complete(), &running.trace, out);
            }
        }
    }

    fn check_invariants(&self) {
        assert!(self.ops.len() <= self.config.backups_max);
        assert_eq!(self.parents.len(), self.ops.len(), "each backup talks to the allocator under one op");
        let mut calls = 0;
        for (op, running) in &self.ops {
            assert_eq!(self.parents.get(&running.pages_op), Some(op));
            assert!(self.ended.get(*op).is_none(), "{op:?} runs and has ended");
            calls += running.check_invariants(*op, &self.calls);
        }
        assert_eq!(self.calls.len(), calls, "a call that no op waits for");
        self.ended.check_invariants();
        self.ended_pages.check_invariants();
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let counts = &self.counts;
        vec![
            ("writer.running", self.ops.len() as u64),
            ("writer.backups", counts.backups),
            ("writer.settled", counts.settled),
            ("writer.refused", counts.refused),
            ("writer.failed", counts.failed),
            ("writer.duplicates", counts.duplicates),
            ("writer.stale", counts.stale),
            ("writer.foreign", counts.foreign),
            ("writer.late", counts.late),
            ("writer.rejected", counts.rejected),
            ("writer.kept_pages", counts.kept_pages),
            ("writer.forfeited_pages", counts.forfeited_pages),
            ("writer.all_layers_at_end", counts.all_layers_at_end),
            ("writer.crowded_out", self.ended.crowded_out()),
            ("writer.repeats", self.calls.repeats()),
            ("writer.ended", self.ended.len() as u64),
        ]
    }
}

/// Says `news` about `op` to the index.
fn tell(op: OpId, news: IndexNews, trace: &Trace, out: &mut Vec<Effect>) {
    out.push(Effect::Send { to: Outgoing::Index(news), op, trace: trace.clone() });
}
