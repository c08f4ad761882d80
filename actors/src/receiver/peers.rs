//! Groups whose sender lives: each holds a lease that whatever it says renews.
//!
//! While a lease lasts nobody else is taken for that group's sender, so that a late word of an older life cannot end
//! what the living one sends. When it has run out, the grants that the sender was told of are fenced.

use super::admission::RETRY_MS;
use super::op::{PeerLife, State};
use super::{Alarm, Receiver, tell_peer};
use crate::machine::{Effect, Sender};
use crate::protocol::{Busy, GroupName, Incarnation, Meet, Met, OpId, Time, WrongState, group_name};

/// A group whose sender lives.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) incarnation: Incarnation,
    /// Buffers that one of its ranks registers for transfers.
    pub(super) buffers: u64,
    /// Components that both store, when these are not all of either; else empty.
    pub(super) common: Vec<String>,
}

impl Receiver {
    /// A sender presents itself, or says that it lives.
    pub(super) fn meet(&mut self, now: Time, from: &Sender, msg: &Meet, out: &mut Vec<Effect>) {
        let Ok(group) = group_name("group", &msg.group) else {
            // There is nobody to answer to.
            self.counts.rejected += 1;
            return;
        };
        let common = match self.check_alone().and_then(|()| self.config.manifest.common(&msg.manifest)) {
            Ok(common) => common,
            Err(refusal) => return self.refuse_peer(&group, from, refusal, out),
        };
        match (self.peers.get(&group), self.groups.get(&from.incarnation)) {
            (Some(peer), _) if peer.incarnation == from.incarnation => {}
            (Some(_), _) => {
                self.counts.stale += 1;
                return;
            }
            (None, Some(other)) => {
                let wrong = WrongState::new(from.incarnation, &format!("the sender of {other}"));
                return self.refuse_peer(&group, from, wrong, out);
            }
            (None, None) if self.peers.len() >= self.config.peers_max => {
                let bound = self.config.peers_max as u64;
                let busy = Busy { queue: "peers".to_owned(), bound, retry_ms: RETRY_MS };
                return self.refuse_peer(&group, from, busy, out);
            }
            (None, None) => {
                let peer = Peer { incarnation: from.incarnation, buffers: msg.manifest.buffers(), common };
                self.peers.insert(group.clone(), peer);
                self.groups.insert(from.incarnation, group.clone());
                self.renew(now, group.clone());
            }
        }
        tell_peer(&group, from.op, Met { lease_ms: self.config.peer_lease_ms }.into(), &from.trace, out);
    }

    /// The sender of `group` lives.
    pub(super) fn renew(&mut self, now: Time, group: GroupName) {
        self.alarms.set(Alarm::Lease(group), now.plus_ms(self.config.peer_lease_ms));
    }

    /// The sender of `group` has been silent for too long: its grants are fenced, its offers forgotten.
    pub(super) fn peer_lost(&mut self, now: Time, group: &GroupName, out: &mut Vec<Effect>) {
        let Some(peer) = self.peers.remove(group) else { return };
        self.groups.remove(&peer.incarnation);
        self.counts.lost_peers += 1;
        self.offers.retain(|_, offer| offer.peer.incarnation != peer.incarnation);
        let dead = PeerLife { group: group.clone(), incarnation: peer.incarnation };
        let left: Vec<OpId> =
            self.ops.iter().filter(|(_, op)| op.waits_for() == Some(&dead)).map(|(op, _)| *op).collect();
        for op in left {
            let cause = match self.ops.get(&op).map(|running| &running.state) {
                Some(State::Draining { cause, .. }) => cause.clone(),
                Some(
                    State::Expected
                    | State::Accepting { .. }
                    | State::Filling { .. }
                    | State::Checking { .. }
                    | State::Sealing { .. }
                    | State::Complete { .. }
                    | State::Fencing { .. }
                    | State::NotArriving { .. },
                )
                | None => "the sender is silent".to_owned(),
            };
            self.fence(now, op, cause, false, out);
        }
    }
}
