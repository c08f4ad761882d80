//! Takes transfers in where their pages go: has the rank accept what a decode group's index expects and a prefill
//! group offers, checks that all of it has landed, and says so, or that nothing can land any more.
//!
//! Invariants: the index hears of an end only when the rank has taken the grant back; a grant whose sender has been
//! told of it is taken back after that sender has said that it stopped, or its lease has run out; what has arrived is
//! every wanted position from the rank that sent it.
//! Not here: which pages are expected and visible (prefix_index); what is sent (the peer's sender); bytes (ranks).

mod admission;
mod conversation;
mod endings;
mod op;
mod peers;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use crate::alarms::Alarms;
use crate::calls::Calls;
use crate::ended::{ENDED_MAX, ENDED_MS, Ended};
use crate::faults::Faults;
use crate::lives::RankLives;
use crate::machine::{Effect, Machine, Sender, Trace};
use crate::protocol::{
    Address, GroupName, Incarnation, IndexNews, Manifest, OpId, Outgoing, Rank, ReceiverIn, SenderIn, Time,
};
use op::{Gone, Offered, Op, Outcome};
use peers::Peer;

/// What a receiver is built with.
#[derive(Clone, Debug)]
pub struct ReceiverConfig {
    /// What the group stores: a peer stores the same, or nothing is taken from it.
    pub manifest: Manifest,
    /// How long a sender may be silent before it is taken for dead.
    pub peer_lease_ms: u64,
    /// How long a transfer may take from when it is expected.
    pub wait_ms_max: u64,
    /// Most transfers at a time.
    pub transfers_max: usize,
    /// Most offers of transfers that are not expected.
    pub offers_max: usize,
    /// Most groups that live and send.
    pub peers_max: usize,
    /// Most positions of one transfer.
    pub positions_max: u32,
    /// How long an outcome is kept for repeats.
    pub ended_ms: u64,
    /// How many outcomes are kept for repeats.
    pub ended_max: usize,
    /// The planted fault.
    pub faults: Faults,
}

impl ReceiverConfig {
    /// The defaults for a group with this manifest.
    pub fn new(manifest: &Manifest) -> Self {
        Self {
            manifest: manifest.clone(),
            peer_lease_ms: 2_000,
            wait_ms_max: 300_000,
            transfers_max: 1_024,
            offers_max: 1_024,
            peers_max: 1_024,
            positions_max: 65_536,
            ended_ms: ENDED_MS,
            ended_max: ENDED_MAX,
            faults: Faults::NONE,
        }
    }
}

/// The transfer receiver of one group.
#[derive(Debug)]
pub struct Receiver {
    config: ReceiverConfig,
    calls: Calls,
    lives: RankLives,
    /// Transfers that are expected, by the id that the router gave.
    ops: BTreeMap<OpId, Op>,
    /// Offers of transfers, or of attempts, that nobody here expects.
    offers: BTreeMap<OpId, Offered>,
    /// Groups whose sender lives.
    peers: BTreeMap<GroupName, Peer>,
    /// Which group each of those lives is of.
    groups: BTreeMap<Incarnation, GroupName>,
    alarms: Alarms<Alarm>,
    ended: Ended<Outcome>,
    /// What a sender gave up before it was expected.
    gone: Ended<Gone>,
    counts: Counts,
}

/// What the receiver acts on by time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Alarm {
    /// A peer has been silent for too long.
    Lease(GroupName),
    /// A transfer has taken too long.
    Wait(OpId),
}

#[derive(Debug, Default)]
struct Counts {
    transfers: u64,
    arrived: u64,
    failed: u64,
    drained: u64,
    fenced: u64,
    duplicates: u64,
    stale: u64,
    foreign: u64,
    late: u64,
    rejected: u64,
    pages: u64,
    bytes: u64,
    refused: u64,
    lost_peers: u64,
}

impl Receiver {
    /// A receiver that has heard of no rank and no peer yet.
    pub fn new(config: ReceiverConfig, seed: u64) -> Self {
        Self {
            calls: Calls::new(seed),
            lives: RankLives::new(config.manifest.cp_size),
            ops: BTreeMap::new(),
            offers: BTreeMap::new(),
            peers: BTreeMap::new(),
            groups: BTreeMap::new(),
            alarms: Alarms::new(),
            ended: Ended::new(config.ended_ms, config.ended_max),
            gone: Ended::new(config.wait_ms_max, config.ended_max),
            counts: Counts::default(),
            config,
        }
    }
}

impl Machine for Receiver {
    type In = ReceiverIn;

    fn handle(&mut self, now: Time, from: &Sender, msg: ReceiverIn, out: &mut Vec<Effect>) {
        if !self.admits(now, from, &msg) {
            return;
        }
        match msg {
            ReceiverIn::Expect(msg) => self.expect(now, from, msg, out),
            ReceiverIn::Unexpect(msg) => self.unexpect(now, from, &msg, out),
            ReceiverIn::HandoverSettled(_) => self.settled(now, from.op),
            ReceiverIn::RankIs(msg) => self.rank_is(now, from, &msg, out),
            ReceiverIn::Accepting(msg) => self.accepting(from.op, msg, out),
            ReceiverIn::Landed(msg) => self.landed(now, from.op, &msg, out),
            ReceiverIn::Revoked(_) => self.revoked(now, from.op, out),
            ReceiverIn::Meet(msg) => self.meet(now, from, &msg, out),
            ReceiverIn::Offer(msg) => self.offer(now, from, &msg, out),
            ReceiverIn::Finished(msg) => self.finished(now, from, msg, out),
            ReceiverIn::Ceased(msg) => self.ceased(now, from, &msg, out),
            ReceiverIn::Rejected(msg) => self.rejected(now, from, &msg.refusal, out),
        }
    }

    fn wake(&mut self, now: Time, out: &mut Vec<Effect>) {
        self.calls.wake(now, out);
        self.ended.wake(now);
        self.gone.wake(now);
        while let Some(alarm) = self.alarms.pop(now) {
            match alarm {
                Alarm::Lease(group) => self.peer_lost(now, &group, out),
                Alarm::Wait(op) => self.took_too_long(now, op, out),
            }
        }
    }

    fn next_deadline(&self) -> Option<(Time, &'static str)> {
        let repeat = self.calls.next_deadline().map(|at| (at, "repeat"));
        let ended = self.ended.next_deadline().map(|at| (at, "ended transfer"));
        let gone = self.gone.next_deadline().map(|at| (at, "transfer given up"));
        let alarm = self.alarms.next().map(|(at, alarm)| match alarm {
            Alarm::Lease(_) => (at, "peer lease"),
            Alarm::Wait(_) => (at, "transfer"),
        });
        [repeat, ended, gone, alarm].into_iter().flatten().min()
    }

    fn resync(&mut self, now: Time, peer: Address, out: &mut Vec<Effect>) {
        self.calls.resync(now, peer, out);
        if peer == Address::Index {
            for (op, running) in &self.ops {
                running.tell_expected(*op, &running.trace, out);
            }
        }
    }

    fn check_invariants(&self) {
        assert!(self.ops.len() <= self.config.transfers_max);
        assert!(self.offers.len() <= self.config.offers_max);
        assert!(self.peers.len() <= self.config.peers_max);
        let mut calls = 0;
        for (op, running) in &self.ops {
            let before = self.ended.get(*op).map_or(0, |outcome| outcome.attempt);
            assert!(before < running.attempt, "{op:?} runs and has ended");
            let other = self.offers.get(op).map_or(u32::MAX, |offer| offer.attempt);
            assert!(other > running.attempt, "{op:?} is offered and expected, and does not begin");
            assert_eq!(self.alarms.is_set(&Alarm::Wait(*op)), running.is_timed(), "{op:?}");
            calls += running.check_invariants(*op, &self.calls);
            if let Some(peer) = running.waits_for() {
                assert_eq!(self.groups.get(&peer.incarnation), Some(&peer.group), "{op:?} waits for who is gone");
            }
        }
        assert_eq!(self.calls.len(), calls, "a call that no transfer waits for");
        for (op, offer) in &self.offers {
            assert!(self.groups.contains_key(&offer.peer.incarnation), "{op:?} is offered by who is gone");
        }
        for (group, peer) in &self.peers {
            assert_eq!(self.groups.get(&peer.incarnation), Some(group));
            assert!(self.alarms.is_set(&Alarm::Lease(group.clone())), "{group} lives for ever");
        }
        assert_eq!(self.groups.len(), self.peers.len(), "one life of each group");
        let timed = self.ops.values().filter(|op| op.is_timed()).count();
        assert_eq!(self.alarms.len(), timed + self.peers.len(), "a time that nothing waits for");
        self.ended.check_invariants();
        self.gone.check_invariants();
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let counts = &self.counts;
        vec![
            ("receiver.running", self.ops.len() as u64),
            ("receiver.offers", self.offers.len() as u64),
            ("receiver.peers", self.peers.len() as u64),
            ("receiver.transfers", counts.transfers),
            ("receiver.arrived", counts.arrived),
            ("receiver.failed", counts.failed),
            ("receiver.drained", counts.drained),
            ("receiver.fenced", counts.fenced),
            ("receiver.duplicates", counts.duplicates),
            ("receiver.stale", counts.stale),
            ("receiver.foreign", counts.foreign),
            ("receiver.late", counts.late),
            ("receiver.rejected", counts.rejected),
            ("receiver.pages", counts.pages),
            ("receiver.bytes", counts.bytes),
            ("receiver.refused_frames", counts.refused),
            ("receiver.lost_peers", counts.lost_peers),
            ("receiver.crowded_out", self.ended.crowded_out()),
            ("receiver.repeats", self.calls.repeats()),
            ("receiver.ended", self.ended.len() as u64),
        ]
    }
}

/// Says `news` about `op` to the index.
fn tell(op: OpId, news: IndexNews, trace: &Trace, out: &mut Vec<Effect>) {
    out.push(Effect::Send { to: Outgoing::Index(news), op, trace: trace.clone() });
}

/// Says `msg` about `op` to the sender of `group`.
fn tell_peer(group: &GroupName, op: OpId, msg: SenderIn, trace: &Trace, out: &mut Vec<Effect>) {
    out.push(Effect::Send { to: Outgoing::PeerSender(group.clone(), msg), op, trace: trace.clone() });
}

/// The rank of a group that receives: it has no other.
const RANK: Rank = Rank(0);
