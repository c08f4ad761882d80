//! Makes room: asks the index for whole pages from leaf tails, batch by batch, until the lanes that are short
//! have what they want.
//!
//! Invariants: never asks for more than is still wanted; one batch of an op is out at a time; every
//! `make_room` is answered, at a bound with nothing freed.
//! Not here: which pages go (prefix_index); taking them back (allocator); when room is wanted (allocator).

mod round;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use crate::calls::{CallId, Calls};
use crate::ended::{ENDED_MAX, ENDED_MS, Ended};
use crate::machine::{Effect, Machine, Sender, Trace};
use crate::makers::{Maker, MakerIds};
use crate::protocol::{
    Address, Answer, Evict, Evicted, EvictorIn, Flushed, Incarnation, IndexNews, MakeRoom, Malformed, OpId, Outgoing,
    Refusal, RoomMade, Time,
};
use round::{Made, Requester, Round};

/// What an evictor is built with.
#[derive(Clone, Debug)]
pub struct EvictorConfig {
    /// Ranks of the group.
    pub cp_size: u8,
    /// Most pages of one `evict` message: bounded work for the index.
    pub batch_pages_max: u32,
    /// Most batches of one op.
    pub rounds_max: u32,
    /// Most ops at a time.
    pub ops_max: usize,
    /// How long an answer is kept for repeats.
    pub ended_ms: u64,
    /// How many answers are kept for repeats.
    pub ended_max: usize,
}

impl EvictorConfig {
    /// The defaults for a group of `cp_size` ranks.
    pub const fn new(cp_size: u8) -> Self {
        Self { cp_size, batch_pages_max: 256, rounds_max: 64, ops_max: 64, ended_ms: ENDED_MS, ended_max: ENDED_MAX }
    }
}

/// The evictor of one group. It holds nothing but the ops that run.
#[derive(Debug)]
pub struct Evictor {
    config: EvictorConfig,
    ids: MakerIds,
    calls: Calls,
    /// Ops that run, by the op of the `make_room`.
    rounds: BTreeMap<OpId, Round>,
    /// Batches that are out: whose they are.
    parents: BTreeMap<OpId, OpId>,
    ended: Ended<Made>,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    ops: u64,
    rounds: u64,
    freed_pages: u64,
    collateral_pages: u64,
    pending_pages: u64,
    duplicates: u64,
    foreign: u64,
    refused: u64,
    late: u64,
}

impl Evictor {
    /// An evictor with nothing to do.
    ///
    /// # Panics
    /// When a bound of `config` is 0.
    pub fn new(config: EvictorConfig, incarnation: Incarnation, seed: u64) -> Self {
        assert!(config.batch_pages_max > 0, "a batch of no pages ends nothing");
        assert!(config.rounds_max > 0, "an op of no rounds ends nothing");
        Self {
            ids: MakerIds::new(incarnation, Maker::Evictor),
            calls: Calls::new(seed),
            rounds: BTreeMap::new(),
            parents: BTreeMap::new(),
            ended: Ended::new(config.ended_ms, config.ended_max),
            counts: Counts::default(),
            config,
        }
    }

    fn make_room(&mut self, now: Time, from: &Sender, msg: MakeRoom, out: &mut Vec<Effect>) {
        let requester = match (from.address, &from.reply) {
            (Address::Allocator, _) => Requester::Allocator,
            (Address::Engine, Some(reply)) => Requester::Outside(reply.clone()),
            (Address::Engine, None)
            | (
                Address::Index
                | Address::Evictor
                | Address::Writer
                | Address::Loader
                | Address::Sender
                | Address::Receiver
                | Address::Rank(_),
                _,
            ) => {
                self.counts.foreign += 1;
                return;
            }
        };
        if self.rounds.contains_key(&from.op) {
            self.counts.duplicates += 1;
            return;
        }
        if let Some(made) = self.ended.get(from.op) {
            self.counts.duplicates += 1;
            return answer(&requester, from.op, made, &from.trace, out);
        }
        if let Err(refusal) = self.check(&msg) {
            self.counts.refused += 1;
            return match requester {
                Requester::Outside(to) => out.push(Effect::Reply { to, op: from.op, answer: refusal.into() }),
                Requester::Allocator => {
                    let nothing = Made::nothing(msg.tier, self.config.cp_size);
                    answer(&Requester::Allocator, from.op, &nothing, &from.trace, out);
                }
            };
        }
        self.counts.ops += 1;
        self.rounds.insert(from.op, Round::new(now, requester, msg, from.trace.clone()));
        self.next_batch(now, from.op, out);
    }

    /// What can be wrong with a `make_room`; the bound is answered like it, with nothing freed.
    fn check(&self, msg: &MakeRoom) -> Result<(), Refusal> {
        if !(1..=2).contains(&msg.tier) {
            return Err(Malformed::new("tier", msg.tier, "1 or 2").into());
        }
        if msg.wants.len() != usize::from(self.config.cp_size) {
            return Err(Malformed::new("wants", msg.wants.len(), self.config.cp_size).into());
        }
        if self.rounds.len() >= self.config.ops_max {
            let bound = self.config.ops_max as u64;
            return Err(crate::protocol::Busy { queue: "evictions".to_owned(), bound, retry_ms: RETRY_MS }.into());
        }
        Ok(())
    }

    /// Asks the index for the next batch, or ends the op.
    fn next_batch(&mut self, now: Time, op: OpId, out: &mut Vec<Effect>) {
        let Some(round) = self.rounds.get_mut(&op) else { return };
        let wants = round.next_batch(self.config.batch_pages_max);
        if wants.iter().all(|pages| *pages == 0) || round.batches >= self.config.rounds_max {
            return self.end(now, op, out);
        }
        round.batches += 1;
        self.counts.rounds += 1;
        let batch = self.ids.draw();
        self.parents.insert(batch, op);
        let ask = Outgoing::Index(IndexNews::Evict(Evict { tier: round.made.tier, wants }));
        self.calls.call(now, (batch, EVICT), ask, &round.trace, out);
    }

    fn evicted(&mut self, now: Time, from: &Sender, msg: Evicted, out: &mut Vec<Effect>) {
        if from.address != Address::Index {
            self.counts.foreign += 1;
            return;
        }
        let batch: CallId = (from.op, EVICT);
        let Some(op) = self.parents.remove(&from.op) else {
            self.counts.late += 1;
            return;
        };
        self.calls.answered(batch);
        let Some(round) = self.rounds.get_mut(&op) else { return };
        self.counts.collateral_pages += u64::from(msg.collateral);
        self.counts.pending_pages += u64::from(msg.pending);
        let freed = round.take(&msg);
        self.counts.freed_pages += freed;
        // A round that frees nothing will not free more when it is asked again.
        if freed == 0 || round.is_met() { self.end(now, op, out) } else { self.next_batch(now, op, out) }
    }

    fn end(&mut self, now: Time, op: OpId, out: &mut Vec<Effect>) {
        let Some(round) = self.rounds.remove(&op) else { return };
        answer(&round.requester, op, &round.made, &round.trace, out);
        for (name, value) in [
            ("evict.rounds", u64::from(round.batches)),
            ("evict.freed", round.made.freed.iter().copied().map(u64::from).sum()),
            ("evict.collateral", u64::from(round.collateral)),
            ("evict.pending", u64::from(round.made.pending)),
            ("evict.wait_ms", round.began.ms_until(now)),
        ] {
            out.push(Effect::Mark { op, name, value });
        }
        out.extend(round.span(now, op).map(Effect::span));
        self.ended.note(now, op, round.made);
    }
}

fn answer(to: &Requester, op: OpId, made: &Made, trace: &Trace, out: &mut Vec<Effect>) {
    match to {
        Requester::Allocator => {
            let room = RoomMade { freed: made.freed.clone(), pending: made.pending };
            let to = Outgoing::Allocator(room.into());
            out.push(Effect::Send { to, op, trace: trace.clone() });
        }
        Requester::Outside(to) => {
            let freed = made.freed.iter().fold(0u32, |sum, pages| sum.saturating_add(*pages));
            let (l1, l2) = if made.tier == 1 { (freed, 0) } else { (0, freed) };
            let answer: Answer = Flushed { l1, l2, l1_kept: 0, l2_kept: 0, in_flight: 0 }.into();
            out.push(Effect::Reply { to: to.clone(), op, answer });
        }
    }
}

impl Machine for Evictor {
    type In = EvictorIn;

    fn handle(&mut self, now: Time, from: &Sender, msg: EvictorIn, out: &mut Vec<Effect>) {
        match msg {
            EvictorIn::MakeRoom(msg) => self.make_room(now, from, msg, out),
            EvictorIn::Evicted(msg) => self.evicted(now, from, msg, out),
        }
    }

    fn wake(&mut self, now: Time, out: &mut Vec<Effect>) {
        self.calls.wake(now, out);
        self.ended.wake(now);
    }

    fn next_deadline(&self) -> Option<(Time, &'static str)> {
        let repeat = self.calls.next_deadline().map(|at| (at, "repeat"));
        let ended = self.ended.next_deadline().map(|at| (at, "ended op"));
        [repeat, ended].into_iter().flatten().min()
    }

    fn resync(&mut self, now: Time, peer: Address, out: &mut Vec<Effect>) {
        self.calls.resync(now, peer, out);
    }

    fn check_invariants(&self) {
        assert!(self.rounds.len() <= self.config.ops_max);
        assert_eq!(self.parents.len(), self.rounds.len(), "each op has one batch out");
        assert_eq!(self.calls.len(), self.parents.len(), "each batch is one open call");
        for (batch, op) in &self.parents {
            assert!(self.calls.is_open((*batch, EVICT)), "{batch:?}");
            let round = self.rounds.get(op).expect("the op of a batch runs");
            round.check_invariants(self.config.rounds_max);
        }
        self.ended.check_invariants();
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let counts = &self.counts;
        vec![
            ("evictor.running", self.rounds.len() as u64),
            ("evictor.ops", counts.ops),
            ("evictor.rounds", counts.rounds),
            ("evictor.freed_pages", counts.freed_pages),
            ("evictor.collateral_pages", counts.collateral_pages),
            ("evictor.pending_pages", counts.pending_pages),
            ("evictor.duplicates", counts.duplicates),
            ("evictor.foreign", counts.foreign),
            ("evictor.refused", counts.refused),
            ("evictor.late", counts.late),
            ("evictor.repeats", self.calls.repeats()),
            ("evictor.ended", self.ended.len() as u64),
        ]
    }
}

/// The only request of a batch.
const EVICT: u16 = 0;
/// An eviction takes a few round trips.
const RETRY_MS: u32 = 50;
