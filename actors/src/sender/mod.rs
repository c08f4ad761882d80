//! Carries transfers out where their pages are: offers them to a decode group, has the ranks push what is wanted
//! there, and says when the whole of it has been received, or when nothing reads the pages any more.
//!
//! Invariants: the index hears that a transfer is over only when no rank can read its pages; a page is pushed by the
//! rank that owns it, to the slot that was named for its position; what is finished is every wanted position.
//! Not here: which pages are sent (prefix_index); what decode lacks (the peer's receiver); bytes (ranks).

mod admission;
mod conversation;
mod op;
mod peers;
mod pushes;
mod ranks;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use crate::alarms::Alarms;
use crate::calls::Calls;
use crate::ended::{ENDED_MAX, ENDED_MS, Ended};
use crate::faults::Faults;
use crate::lives::RankLives;
use crate::machine::{Effect, Machine, Sender as Speaker, Trace};
use crate::makers::{Maker, MakerIds};
use crate::protocol::{
    Address, GroupName, Incarnation, IndexNews, Manifest, OpId, Outgoing, PushFigures, ReceiverIn, SenderIn, Time,
};
use op::{Op, Outcome};
use peers::Peer;
use ranks::RankCosts;

/// What a sender is built with.
#[derive(Clone, Debug)]
pub struct SenderConfig {
    /// The group's own name.
    pub group: GroupName,
    /// What it stores: a peer stores the same, or nothing is sent to it.
    pub manifest: Manifest,
    /// How long a peer may be silent while transfers to it run; it is asked three times as often. A peer that has
    /// answered says itself how long its own patience is.
    pub peer_lease_ms: u64,
    /// How long a transfer may take, from the first word of the index to the last of the peer.
    pub wait_ms_max: u64,
    /// How long one push may take on its rank, the time in its queue left out.
    pub deadline_ms: u64,
    /// Most transfers at a time.
    pub transfers_max: usize,
    /// Most parts of one transfer, [`PARTS_MAX`] or fewer.
    pub parts_max: u32,
    /// Most positions of one transfer.
    pub positions_max: u32,
    /// How long an outcome is kept for repeats.
    pub ended_ms: u64,
    /// How many outcomes are kept for repeats.
    pub ended_max: usize,
    /// The planted fault.
    pub faults: Faults,
}

impl SenderConfig {
    /// The defaults for the group `group` with this manifest.
    pub fn new(group: GroupName, manifest: &Manifest) -> Self {
        Self {
            group,
            manifest: manifest.clone(),
            peer_lease_ms: 2_000,
            wait_ms_max: 300_000,
            deadline_ms: 30_000,
            transfers_max: 1_024,
            parts_max: PARTS_MAX,
            positions_max: 65_536,
            ended_ms: ENDED_MS,
            ended_max: ENDED_MAX,
            faults: Faults::NONE,
        }
    }
}

/// Most parts that a transfer can have: each push of a part and a rank is a call of its own.
pub const PARTS_MAX: u32 = 1_000;

/// The transfer sender of one group.
#[derive(Debug)]
pub struct Sender {
    config: SenderConfig,
    ids: MakerIds,
    calls: Calls,
    lives: RankLives,
    /// Transfers that run, by the id that the router gave.
    ops: BTreeMap<OpId, Op>,
    /// Groups that transfers run to.
    peers: BTreeMap<GroupName, Peer>,
    /// The op under which each peer is met: whose it is.
    meets: BTreeMap<OpId, GroupName>,
    alarms: Alarms<Alarm>,
    ended: Ended<Outcome>,
    counts: Counts,
    /// One for each rank.
    costs: Vec<RankCosts>,
}

/// What the sender acts on by time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Alarm {
    /// A peer has to hear of this sender again.
    Meet(GroupName),
    /// A peer has been silent for too long.
    Lease(GroupName),
    /// A transfer has taken too long.
    Wait(OpId),
}

#[derive(Debug)]
struct Counts {
    transfers: u64,
    received: u64,
    failed: u64,
    duplicates: u64,
    stale: u64,
    foreign: u64,
    late: u64,
    early: u64,
    rejected: u64,
    pushes: u64,
    pages: u64,
    pushed: PushFigures,
    lost_peers: u64,
}

impl Sender {
    /// A sender that has heard of no rank yet.
    ///
    /// # Panics
    /// When the configuration allows more parts than [`PARTS_MAX`].
    pub fn new(config: SenderConfig, incarnation: Incarnation, seed: u64) -> Self {
        assert!(config.parts_max <= PARTS_MAX, "{} parts are more than {PARTS_MAX}", config.parts_max);
        Self {
            ids: MakerIds::new(incarnation, Maker::Sender),
            calls: Calls::new(seed),
            lives: RankLives::new(config.manifest.cp_size),
            ops: BTreeMap::new(),
            peers: BTreeMap::new(),
            meets: BTreeMap::new(),
            alarms: Alarms::new(),
            ended: Ended::new(config.ended_ms, config.ended_max),
            costs: std::iter::repeat_with(RankCosts::new).take(usize::from(config.manifest.cp_size)).collect(),
            counts: Counts {
                transfers: 0,
                received: 0,
                failed: 0,
                duplicates: 0,
                stale: 0,
                foreign: 0,
                late: 0,
                early: 0,
                rejected: 0,
                pushes: 0,
                pages: 0,
                pushed: PushFigures::NONE,
                lost_peers: 0,
            },
            config,
        }
    }
}

impl Machine for Sender {
    type In = SenderIn;

    fn handle(&mut self, now: Time, from: &Speaker, msg: SenderIn, out: &mut Vec<Effect>) {
        if !self.admits(from, &msg) {
            return;
        }
        match msg {
            SenderIn::SendOpen(msg) => self.send_open(now, from, msg, out),
            SenderIn::SendPart(msg) => self.send_part(now, from, msg, out),
            SenderIn::SendEnd(msg) => self.send_end(now, from, msg, out),
            SenderIn::SendStop(msg) => self.send_stop(now, from, &msg, out),
            SenderIn::RankIs(msg) => self.rank_is(now, from, &msg, out),
            SenderIn::Pushed(msg) => self.pushed(now, from.op, &msg, out),
            SenderIn::PushStopped(msg) => self.push_stopped(now, from.op, msg.rank, out),
            SenderIn::Met(msg) => self.met(now, from, &msg, out),
            SenderIn::Wanted(msg) => self.wanted(now, from, msg, out),
            SenderIn::Received(_) => self.received(now, from.op, out),
            SenderIn::Cease(msg) => self.cease(now, from, &msg, out),
            SenderIn::CeasedHeard(_) => self.ceased_heard(now, from.op),
            SenderIn::Rejected(msg) => self.rejected(now, from, &msg.refusal, out),
        }
    }

    fn wake(&mut self, now: Time, out: &mut Vec<Effect>) {
        self.calls.wake(now, out);
        self.ended.wake(now);
        while let Some(alarm) = self.alarms.pop(now) {
            match alarm {
                Alarm::Meet(group) => self.meet(now, &group, out),
                Alarm::Lease(group) => self.peer_lost(now, &group, out),
                Alarm::Wait(op) => self.took_too_long(now, op, out),
            }
        }
    }

    fn next_deadline(&self) -> Option<(Time, &'static str)> {
        let repeat = self.calls.next_deadline().map(|at| (at, "repeat"));
        let ended = self.ended.next_deadline().map(|at| (at, "ended transfer"));
        let alarm = self.alarms.next().map(|(at, alarm)| match alarm {
            Alarm::Meet(_) => (at, "meet"),
            Alarm::Lease(_) => (at, "peer lease"),
            Alarm::Wait(_) => (at, "transfer"),
        });
        [repeat, ended, alarm].into_iter().flatten().min()
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
        assert!(self.ops.len() <= self.config.transfers_max);
        let mut calls = 0;
        for (op, running) in &self.ops {
            let peer = self.peers.get(&running.group).expect("a transfer has a peer"); // made with it
            assert!(peer.transfers.contains(op), "{op:?} runs to a peer that does not know it");
            let before = self.ended.get(*op).map_or(0, |outcome| outcome.attempt);
            assert!(before < running.attempt, "{op:?} runs and has ended");
            assert_eq!(self.alarms.is_set(&Alarm::Wait(*op)), running.is_timed(), "{op:?}");
            calls += running.check_invariants(*op, &self.calls, peer.incarnation());
        }
        assert_eq!(self.calls.len(), calls, "a call that no transfer waits for");
        for (group, peer) in &self.peers {
            assert!(!peer.transfers.is_empty(), "{group} is met for nothing");
            assert!(peer.transfers.iter().all(|op| self.ops.contains_key(op)), "{group} has a transfer that is over");
            assert_eq!(self.meets.get(&peer.op), Some(group));
            assert!(self.alarms.is_set(&Alarm::Meet(group.clone())), "{group} is not met again");
            assert_eq!(self.alarms.is_set(&Alarm::Lease(group.clone())), peer.incarnation().is_some(), "{group}");
        }
        assert_eq!(self.meets.len(), self.peers.len(), "each peer is met under one op");
        let timed = self.ops.values().filter(|op| op.is_timed()).count();
        let leases = self.peers.values().filter(|peer| peer.incarnation().is_some()).count();
        assert_eq!(self.alarms.len(), timed + self.peers.len() + leases, "a time that nothing waits for");
        self.ended.check_invariants();
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let counts = &self.counts;
        vec![
            ("sender.running", self.ops.len() as u64),
            ("sender.peers", self.peers.len() as u64),
            ("sender.transfers", counts.transfers),
            ("sender.received", counts.received),
            ("sender.failed", counts.failed),
            ("sender.duplicates", counts.duplicates),
            ("sender.stale", counts.stale),
            ("sender.foreign", counts.foreign),
            ("sender.late", counts.late),
            ("sender.early", counts.early),
            ("sender.rejected", counts.rejected),
            ("sender.pushes", counts.pushes),
            ("sender.pages", counts.pages),
            ("sender.bytes", counts.pushed.bytes),
            ("sender.runs", counts.pushed.runs),
            ("sender.descriptors", counts.pushed.descriptors),
            ("sender.queue_us", counts.pushed.queue_us),
            ("sender.layers_us", counts.pushed.layers_us),
            ("sender.wire_us", counts.pushed.wire_us),
            ("sender.longest_push_us", counts.pushed.total_us),
            ("sender.lost_peers", counts.lost_peers),
            ("sender.crowded_out", self.ended.crowded_out()),
            ("sender.repeats", self.calls.repeats()),
            ("sender.ended", self.ended.len() as u64),
        ]
    }

    fn rank_counters(&self) -> Vec<(String, u64)> {
        let straggler = ranks::straggler(&self.costs).map(|rank| ("sender.straggler_rank".to_owned(), rank as u64));
        let ranks = self.costs.iter().enumerate().flat_map(|(rank, costs)| costs.counters(rank));
        straggler.into_iter().chain(ranks).collect()
    }
}

/// Says `news` about `op` to the index.
fn tell(op: OpId, news: IndexNews, trace: &Trace, out: &mut Vec<Effect>) {
    out.push(Effect::Send { to: Outgoing::Index(news), op, trace: trace.clone() });
}

/// Says `msg` about `op` to the receiver of `group`.
fn tell_peer(group: &GroupName, op: OpId, msg: ReceiverIn, trace: &Trace, out: &mut Vec<Effect>) {
    out.push(Effect::Send { to: Outgoing::PeerReceiver(group.clone(), msg), op, trace: trace.clone() });
}
