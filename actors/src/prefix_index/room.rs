//! When a lane of L2 gains room: a page was freed there, or may leave that could not. Backups that were refused
//! for lack of it wait for that, and for nothing else.

use super::Index;
use super::backups::Plan;
use super::tree::PrefixTree;
use crate::machine::Effect;
use crate::protocol::{Key, Rank, Tier, Time};

/// How often each lane gained room.
#[derive(Debug)]
pub(super) struct Room {
    lanes: Vec<Lane>,
    /// Some lane gained, and nobody asked yet.
    gained: bool,
}

#[derive(Clone, Debug, Default)]
struct Lane {
    gains: u64,
    /// Pages that could leave when it was last looked at.
    evictable: usize,
}

impl Room {
    pub(super) fn new(cp_size: u8) -> Self {
        Self { lanes: vec![Lane::default(); cp_size.into()], gained: false }
    }

    /// A page of the lane is free, or on its way to the allocator.
    pub(super) fn freed(&mut self, lane: Rank) {
        if let Some(lane) = self.lanes.get_mut(usize::from(lane.0)) {
            lane.gains += 1;
            self.gained = true;
        }
    }

    /// Compares what could leave with the last look.
    pub(super) fn look(&mut self, tree: &PrefixTree) {
        for (n, lane) in (0..).zip(&mut self.lanes) {
            let evictable = tree.evictable_pages(Tier::L2, Rank(n));
            if evictable > lane.evictable {
                lane.gains += 1;
                self.gained = true;
            }
            lane.evictable = evictable;
        }
    }

    /// Whether any lane has gained room since this was last asked.
    fn take_gained(&mut self) -> bool {
        std::mem::take(&mut self.gained)
    }

    pub(super) fn gains(&self, lane: Rank) -> u64 {
        self.lanes.get(usize::from(lane.0)).map_or(0, |lane| lane.gains)
    }
}

/// A backup that was refused for lack of room.
#[derive(Debug)]
pub(super) struct Parked {
    pub(super) plan: Plan,
    /// Short lanes and how often they had gained room: once more is worth another try.
    pub(super) gains: Vec<(Rank, u64)>,
}

impl Index {
    /// Tries parked backups again whose lanes have more room than when they were refused.
    pub(super) fn retry_parked_backups(&mut self, now: Time, out: &mut Vec<Effect>) {
        if self.parked_backups.is_empty() {
            return;
        }
        self.l2_room.look(&self.tree);
        if !self.l2_room.take_gained() {
            return;
        }
        let mut wait = std::collections::VecDeque::new();
        for parked in std::mem::take(&mut self.parked_backups) {
            if parked.gains.iter().any(|(lane, gains)| self.l2_room.gains(*lane) > *gains) {
                if let Some(plan) = self.still_wanted(parked.plan) {
                    self.start_backup(now, plan, out);
                }
            } else {
                wait.push_back(parked);
            }
        }
        wait.append(&mut self.parked_backups);
        self.parked_backups = wait;
    }

    /// What of a parked plan still has its L1 page and lacks an L2 copy.
    fn still_wanted(&self, mut plan: Plan) -> Option<Plan> {
        let view = |key: &Key| self.tree.find(key).map(|node| self.tree.page(node));
        let done = plan.keys.iter().take_while(|key| view(key).is_some_and(|page| page.l2.is_some())).count();
        if done > 0 {
            plan.parent = plan.keys[done - 1];
            plan.first += done as u32;
            plan.keys.drain(..done);
            plan.pages.drain(..done);
        }
        if self.is_barred(&plan.parent) {
            return None;
        }
        let session = plan.session.and_then(|id| self.sessions.get(&id)).filter(|s| s.epoch == plan.epoch);
        let (mut proven, mut wanted) = (0, 0);
        for (at, (key, page)) in plan.keys.iter().zip(&plan.pages).enumerate() {
            let position = plan.first as usize + at;
            let is_node = view(key).is_some_and(|view| view.l1 == Some(*page) && !view.is_pending);
            let is_own = session.is_some_and(|session| {
                position >= session.committed as usize && session.pages.get(position) == Some(page)
            });
            if is_node && proven == at {
                proven += 1;
            } else if !is_own {
                break;
            }
            wanted += 1;
        }
        plan.keys.truncate(wanted);
        plan.pages.truncate(wanted);
        plan.proven = proven as u32;
        (wanted > 0).then_some(plan)
    }
}
