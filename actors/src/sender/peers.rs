//! Groups that transfers run to: they are met before anything is offered, hear again and again that this sender
//! lives, and are given up when they do not answer.
//!
//! Whoever answers holds a lease. While it lasts nobody else is taken for that group's receiver, so that a late word
//! of an older life cannot end what runs with the one that lives.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use super::op::{OFFER, State};
use super::{Alarm, Sender, tell_peer};
use crate::machine::{Effect, Sender as Speaker};
use crate::protocol::{GroupName, Incarnation, Malformed, Meet, Met, Offer, OpId, Outgoing, Time};

/// A group that transfers run to.
///
/// ```text
/// Meeting <-> Met
/// ```
#[derive(Debug)]
pub(super) struct Peer {
    /// The op under which it is met.
    pub(super) op: OpId,
    /// Transfers that run to it.
    pub(super) transfers: BTreeSet<OpId>,
    state: Meeting,
}

#[derive(Debug)]
enum Meeting {
    /// It has not answered, or not for too long.
    Meeting,
    /// It stores the same, and lives.
    Met { incarnation: Incarnation, lease_ms: u64 },
}

impl Peer {
    /// The life of the receiver that has answered, while it lives.
    pub(super) const fn incarnation(&self) -> Option<Incarnation> {
        match &self.state {
            Meeting::Meeting => None,
            Meeting::Met { incarnation, .. } => Some(*incarnation),
        }
    }
}

impl Sender {
    /// A transfer begins that runs to `group`.
    pub(super) fn join_peer(&mut self, now: Time, op: OpId, group: &GroupName, out: &mut Vec<Effect>) {
        if let Some(peer) = self.peers.get_mut(group) {
            peer.transfers.insert(op);
            if let Some(incarnation) = peer.incarnation() {
                self.offer(now, op, incarnation, out);
            }
            return;
        }
        let meet = self.ids.draw();
        self.meets.insert(meet, group.clone());
        let peer = Peer { op: meet, transfers: BTreeSet::from([op]), state: Meeting::Meeting };
        self.peers.insert(group.clone(), peer);
        self.meet(now, group, out);
    }

    /// A transfer that ran to `group` is over; nobody is met for nothing.
    pub(super) fn leave_peer(&mut self, op: OpId, group: &GroupName) {
        let Some(peer) = self.peers.get_mut(group) else { return };
        peer.transfers.remove(&op);
        if peer.transfers.is_empty() {
            self.meets.remove(&peer.op);
            self.peers.remove(group);
            self.alarms.clear(&Alarm::Meet(group.clone()));
            self.alarms.clear(&Alarm::Lease(group.clone()));
        }
    }

    /// Says to `group` that this sender lives, and what it stores.
    pub(super) fn meet(&mut self, now: Time, group: &GroupName, out: &mut Vec<Effect>) {
        let Some(peer) = self.peers.get(group) else { return };
        let lease_ms = match &peer.state {
            Meeting::Meeting => self.config.peer_lease_ms,
            Meeting::Met { lease_ms, .. } => *lease_ms,
        };
        let meet = Meet { group: self.config.group.to_string(), manifest: self.config.manifest.clone() };
        tell_peer(group, peer.op, meet.into(), &None, out);
        self.alarms.set(Alarm::Meet(group.clone()), now.plus_ms(lease_ms / MEETS_PER_LEASE));
    }

    /// A peer answers that it stores the same.
    pub(super) fn met(&mut self, now: Time, from: &Speaker, msg: &Met, out: &mut Vec<Effect>) {
        let Some(group) = self.meets.get(&from.op).cloned() else { return };
        if !LEASE_MS.contains(&msg.lease_ms) {
            let limit = format!("{}..={}", LEASE_MS.start(), LEASE_MS.end());
            return self.refuse_peer(&group, from, Malformed::new("lease_ms", msg.lease_ms, limit), out);
        }
        let Some(peer) = self.peers.get_mut(&group) else { return };
        let is_new = match &peer.state {
            Meeting::Meeting => true,
            Meeting::Met { incarnation, .. } if *incarnation == from.incarnation => false,
            Meeting::Met { .. } => {
                self.counts.stale += 1;
                return;
            }
        };
        peer.state = Meeting::Met { incarnation: from.incarnation, lease_ms: msg.lease_ms };
        self.alarms.set(Alarm::Lease(group), now.plus_ms(msg.lease_ms));
        if is_new {
            for op in peer.transfers.clone() {
                self.offer(now, op, from.incarnation, out);
            }
        }
    }

    /// A peer has been silent for too long: what runs to it comes to nothing, and what waits for it goes on waiting.
    pub(super) fn peer_lost(&mut self, now: Time, group: &GroupName, out: &mut Vec<Effect>) {
        let Some(peer) = self.peers.get_mut(group) else { return };
        peer.state = Meeting::Meeting;
        self.counts.lost_peers += 1;
        for op in peer.transfers.clone() {
            self.forget_ceasing(now, op);
            let is_waiting = matches!(self.ops.get(&op).map(|running| &running.state), Some(State::Opening { .. }));
            if !is_waiting {
                self.stop(now, op, "the receiver is silent", out);
            }
        }
    }

    /// A peer does not store the same, or takes no transfers: nothing runs to it.
    pub(super) fn not_met(&mut self, now: Time, group: &GroupName, cause: &str, out: &mut Vec<Effect>) {
        let Some(peer) = self.peers.get_mut(group) else { return };
        peer.state = Meeting::Meeting;
        self.alarms.clear(&Alarm::Lease(group.clone()));
        for op in peer.transfers.clone() {
            self.forget_ceasing(now, op);
            self.stop(now, op, cause, out);
        }
    }

    /// Asks a peer that was met what it wants of a transfer.
    fn offer(&mut self, now: Time, op: OpId, peer: Incarnation, out: &mut Vec<Effect>) {
        let Some(running) = self.ops.get_mut(&op) else { return };
        let State::Opening { parts } = &mut running.state else { return };
        let parts = std::mem::take(parts);
        running.state = State::Offered { peer, parts };
        let group = self.config.group.to_string();
        let offer = Offer { attempt: running.attempt, group, tokens: running.tokens };
        let to = Outgoing::PeerReceiver(running.group.clone(), offer.into());
        self.calls.call(now, (op, OFFER), to, &running.trace, out);
    }
}

/// A lease survives that two of these are lost.
const MEETS_PER_LEASE: u64 = 3;
/// Leases that a peer may name: shorter ones cost more than they tell, longer ones hold pages for a dead group.
const LEASE_MS: RangeInclusive<u64> = 100..=60_000;
