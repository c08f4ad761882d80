//! Carries loads out: L1 pages with exactly the owners of the host copies, copies by all ranks, and word to
//! the index when the last layer is there everywhere, or when nothing writes any more.
//!
//! Invariants: pages have the owners that were asked for, in order, or the load is a miss; a ring slot belongs
//! to one load until it is released; use numbers of a slot never fall.
//! Not here: what is loaded (prefix_index); making room (allocator); bytes and words (ranks).

mod admission;
mod conversation;
mod op;
mod ring;
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
use crate::protocol::{Address, Incarnation, IndexNews, LoaderIn, Manifest, OpId, Outgoing, Time};
use op::{Op, Outcome, PagesEnd};
pub use ring::RING_SLOTS;
use ring::Ring;

/// What a loader is built with.
#[derive(Clone, Debug)]
pub struct LoaderConfig {
    /// Ranks of the group.
    pub cp_size: u8,
    /// What an acknowledgement has to name, and how many layers a load word counts.
    pub layers: LayerBits,
    /// Number of the first use of every ring slot. Words outlive the loader and never fall, so this is above
    /// every use of the incarnations before it on the same ranks; 0 when there were none.
    pub first_use: u64,
    /// Most pages of one load, those behind it included.
    pub pages_max: usize,
    /// How long an outcome is kept for repeats.
    pub ended_ms: u64,
    /// How many outcomes are kept for repeats.
    pub ended_max: usize,
    /// The planted fault.
    pub faults: Faults,
}

impl LoaderConfig {
    /// The defaults for a group with this manifest.
    pub fn new(manifest: &Manifest) -> Self {
        Self {
            cp_size: manifest.cp_size,
            layers: LayerBits::of(manifest),
            first_use: 0,
            pages_max: 65_536,
            ended_ms: ENDED_MS,
            ended_max: ENDED_MAX,
            faults: Faults::NONE,
        }
    }
}

/// The loader of one group.
#[derive(Debug)]
pub struct Loader {
    config: LoaderConfig,
    ids: MakerIds,
    calls: Calls,
    lives: RankLives,
    ring: Ring,
    /// Loads that run or whose slot is not released, by the op of the index.
    ops: BTreeMap<OpId, Op>,
    /// The op under which each load talks to the allocator: whose it is.
    parents: BTreeMap<OpId, OpId>,
    ended: Ended<Outcome>,
    ended_pages: Ended<PagesEnd>,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    loads: u64,
    arrived: u64,
    failed: u64,
    missed: u64,
    busy: u64,
    duplicates: u64,
    stale: u64,
    foreign: u64,
    late: u64,
    early_releases: u64,
    rejected: u64,
    wrong_owners: u64,
    loaded_pages: u64,
}

impl Loader {
    /// A loader that has heard of no rank yet.
    pub fn new(config: LoaderConfig, incarnation: Incarnation, seed: u64) -> Self {
        Self {
            ids: MakerIds::new(incarnation, Maker::Loader),
            calls: Calls::new(seed),
            lives: RankLives::new(config.cp_size),
            ring: Ring::new(config.first_use),
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

impl Machine for Loader {
    type In = LoaderIn;

    fn handle(&mut self, now: Time, from: &Sender, msg: LoaderIn, out: &mut Vec<Effect>) {
        if !self.admits(from, &msg) {
            return;
        }
        match msg {
            LoaderIn::Load(msg) => self.load(now, from, msg, out),
            LoaderIn::ReleaseSlot(_) => self.release_slot(now, from, out),
            LoaderIn::RankIs(msg) => self.rank_is(now, from, &msg, out),
            LoaderIn::Reserved(msg) => self.reserved(now, from.op, msg, out),
            LoaderIn::Short(msg) => self.short(now, from.op, msg, out),
            LoaderIn::Freed(_) => self.freed(now, from.op, out),
            LoaderIn::Whose(_) => self.whose(from, out),
            LoaderIn::CopyAck(msg) => self.copy_ack(now, from.op, &msg, out),
            LoaderIn::Rejected(msg) => self.rejected(now, from, &msg.refusal, out),
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
        if peer == Address::Index {
            for (op, running) in &self.ops {
                running.tell_again(*op, &running.trace, out);
            }
        }
    }

    fn check_invariants(&self) {
        assert_eq!(self.ring.used(), self.ops.len(), "each load uses one slot");
        assert_eq!(self.parents.len(), self.ops.len(), "each load talks to the allocator under one op");
        self.ring.check_invariants();
        let mut calls = 0;
        for (op, running) in &self.ops {
            assert_eq!(self.ring.user(running.slot), Some(*op), "{op:?} uses a slot of another load");
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
            ("loader.slots_used", self.ring.used() as u64),
            ("loader.loads", counts.loads),
            ("loader.arrived", counts.arrived),
            ("loader.failed", counts.failed),
            ("loader.missed", counts.missed),
            ("loader.busy", counts.busy),
            ("loader.duplicates", counts.duplicates),
            ("loader.stale", counts.stale),
            ("loader.foreign", counts.foreign),
            ("loader.late", counts.late),
            ("loader.early_releases", counts.early_releases),
            ("loader.rejected", counts.rejected),
            ("loader.wrong_owners", counts.wrong_owners),
            ("loader.loaded_pages", counts.loaded_pages),
            ("loader.crowded_out", self.ended.crowded_out()),
            ("loader.repeats", self.calls.repeats()),
            ("loader.ended", self.ended.len() as u64),
        ]
    }
}

/// Says `news` about `op` to the index.
fn tell(op: OpId, news: IndexNews, trace: &Trace, out: &mut Vec<Effect>) {
    out.push(Effect::Send { to: Outgoing::Index(news), op, trace: trace.clone() });
}
