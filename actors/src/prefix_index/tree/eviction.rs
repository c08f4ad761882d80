//! Who leaves next: per tier and lane the pages that may, the least important and longest unwanted first.
//!
//! A page is listed exactly while it is evictable: `refresh` settles that after every change, and the order of a
//! listed page changes only by taking it out and putting it back. Only leaves of a tier are listed, so the sets
//! stay small beside the tree.

use super::PrefixTree;
use super::arena::{LISTED, NodeId, ix};
use super::order::Order;
use crate::protocol::{HostSlot, Key, PageId, Rank, Tier};

/// A copy that an eviction took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Victim {
    /// Whose copy it was.
    pub key: Key,
    /// Where it was.
    pub copy: TakenCopy,
    /// The page has a copy in the other tier.
    pub is_elsewhere: bool,
    /// Its lane was not short: it stood between the leaf and a page of a lane that is.
    pub is_collateral: bool,
}

/// Where a copy was that is free to be used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TakenCopy {
    /// In device memory.
    L1(PageId),
    /// In the host pool of a rank.
    L2(Rank, HostSlot),
}

/// How an eviction went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Eviction {
    /// Pages taken, collateral included.
    pub taken: u32,
    /// Pages taken from lanes that were not short.
    pub collateral: u32,
    /// Looking for leaves in front of a short lane ended at [`PrefixTree::LOOK_PAGES_MAX`]: there may be more.
    pub gave_up: bool,
}

/// Copies of one tier in one lane. `resident = added - removed`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneCounts {
    /// Copies there ever were.
    pub added: u64,
    /// Copies that have left, whatever the reason.
    pub removed: u64,
    /// Of these, evicted because they stood in front of another lane.
    pub collateral: u64,
}

impl LaneCounts {
    /// Copies there are.
    pub const fn resident(&self) -> u64 {
        self.added - self.removed
    }
}

#[derive(Clone, Default)]
pub(super) struct Lane {
    pub(super) order: Order,
    pub(super) counts: LaneCounts,
}

/// The eviction orders of both tiers.
#[derive(Clone)]
pub(super) struct Orders {
    lanes: [Vec<Lane>; 2],
}

impl Orders {
    pub(super) fn new(cp_size: u8) -> Self {
        let lanes = vec![Lane::default(); cp_size.into()];
        Self { lanes: [lanes.clone(), lanes] }
    }

    pub(super) fn lanes(&self, tier: Tier) -> &[Lane] {
        &self.lanes[ix(tier)]
    }

    pub(super) fn lane_mut(&mut self, tier: Tier, lane: usize) -> &mut Lane {
        &mut self.lanes[ix(tier)][lane]
    }

    pub(super) fn bytes(&self) -> usize {
        self.lanes.iter().flatten().map(|lane| lane.order.bytes() + size_of::<LaneCounts>()).sum()
    }
}

impl PrefixTree {
    /// Most pages one call of [`Self::victims`] looks at to find leaves in front of a short lane.
    pub const LOOK_PAGES_MAX: u32 = 65_536;

    /// The count of copies in one lane of a tier.
    pub fn counts(&self, tier: Tier, lane: Rank) -> LaneCounts {
        self.orders.lanes(tier)[lane.0 as usize].counts
    }

    /// How many pages of a lane could leave at once: not those behind other pages.
    pub fn evictable_pages(&self, tier: Tier, lane: Rank) -> usize {
        self.orders.lanes(tier)[lane.0 as usize].order.len()
    }

    /// The pages of a lane that could leave at once, the first to go first.
    pub fn evictable(&self, tier: Tier, lane: Rank) -> impl Iterator<Item = NodeId> + '_ {
        self.orders.lanes(tier)[lane.0 as usize].order.iter().map(|(_, node)| node)
    }

    /// Takes copies out of `tier`, page by page from the leaf tails: the first in order among the lanes that are
    /// short, `wants[lane]` of each. When no page of a short lane may leave but some stand behind others, the
    /// first leaf in order that stands in front of such a page goes, and the pages up to it: collateral. At most
    /// `pages_max` copies go in one call. What is taken is appended to `victims` and off `wants`, so that what is
    /// left there is the shortfall. Entries without a copy are pruned.
    ///
    /// # Panics
    /// When `wants` has not one number per rank.
    pub fn victims(&mut self, tier: Tier, wants: &mut [u32], pages_max: u32, victims: &mut Vec<Victim>) -> Eviction {
        assert_eq!(wants.len(), self.cp_size as usize, "one want per rank");
        let mut done = Eviction::default();
        let mut looks = Self::LOOK_PAGES_MAX;
        while done.taken < pages_max && wants.iter().any(|want| *want > 0) {
            if let Some(node) = self.first_in(tier, wants) {
                self.take(node, tier, wants, &mut done, victims);
                continue;
            }
            let Some(leaf) = self.leaf_in_front(tier, wants, &mut looks) else {
                done.gave_up = looks == 0;
                break;
            };
            let mut at = Some(leaf);
            while let Some(node) = at.filter(|node| {
                let entry = &self.arena[*node];
                entry.is_evictable(tier) && wants[entry.lane(tier, self.cp_size)] == 0 && done.taken < pages_max
            }) {
                at = self.arena[node].parent.get();
                self.take(node, tier, wants, &mut done, victims);
            }
        }
        done
    }

    /// The first page in order among the lanes that are short.
    fn first_in(&self, tier: Tier, wants: &[u32]) -> Option<NodeId> {
        let short = self.orders.lanes(tier).iter().zip(wants).filter(|(_, want)| **want > 0);
        short.filter_map(|(lane, _)| lane.order.first()).min().map(|(_, node)| node)
    }

    /// The first leaf in order that has a page of a short lane above it, with nothing in use on the way there;
    /// looks at no more than `looks` pages, which are taken off it.
    pub fn leaf_in_front(&self, tier: Tier, wants: &[u32], looks: &mut u32) -> Option<NodeId> {
        let lanes = self.orders.lanes(tier);
        if !lanes.iter().zip(wants).any(|(lane, want)| *want > 0 && lane.counts.resident() > 0) {
            return None;
        }
        let mut listed = lanes.iter().map(|lane| lane.order.iter().peekable()).collect::<Vec<_>>();
        loop {
            let lane = (0..listed.len()).filter_map(|lane| listed[lane].peek().map(|first| (*first, lane))).min()?.1;
            let leaf = listed[lane].next()?.1;
            let mut at = self.arena[leaf].parent.get();
            while let Some(node) = at {
                if *looks == 0 {
                    return None;
                }
                *looks -= 1;
                let entry = &self.arena[node];
                if !entry.is_idle(tier) {
                    break;
                }
                if wants[entry.lane(tier, self.cp_size)] > 0 {
                    return Some(leaf);
                }
                at = entry.parent.get();
            }
        }
    }

    fn take(&mut self, node: NodeId, tier: Tier, wants: &mut [u32], done: &mut Eviction, victims: &mut Vec<Victim>) {
        let entry = &self.arena[node];
        let (key, lane) = (entry.key, entry.lane(tier, self.cp_size));
        let is_collateral = wants[lane] == 0;
        let copy = match tier {
            Tier::L1 => TakenCopy::L1(self.clear_l1(node)),
            Tier::L2 => {
                let (owner, slot) = self.clear_l2(node);
                TakenCopy::L2(owner, slot)
            }
        };
        let is_elsewhere = match tier {
            Tier::L1 => self.arena[node].has(Tier::L2),
            Tier::L2 => self.arena[node].has(Tier::L1),
        };
        victims.push(Victim { key, copy, is_elsewhere, is_collateral });
        done.taken += 1;
        if is_collateral {
            done.collateral += 1;
            self.orders.lane_mut(tier, lane).counts.collateral += 1;
        } else {
            wants[lane] -= 1;
        }
        self.prune(node);
    }

    /// Lists the page in the order of `tier` exactly if it is evictable there.
    pub(super) fn refresh(&mut self, node: NodeId, tier: Tier) {
        let bit = LISTED[ix(tier)];
        let entry = &mut self.arena[node];
        let is_evictable = entry.is_evictable(tier);
        if is_evictable == entry.flag(bit) {
            return;
        }
        entry.flags ^= bit;
        let order = entry.order;
        let lane = self.orders.lane_mut(tier, entry.lane(tier, self.cp_size));
        if is_evictable { lane.order.insert((order, node)) } else { lane.order.remove((order, node)) }
    }

    /// Gives the page another place in the orders that list it.
    pub(super) fn reorder(&mut self, node: NodeId, order: u64) {
        let entry = &mut self.arena[node];
        let old = std::mem::replace(&mut entry.order, order);
        if !entry.flag(LISTED[0] | LISTED[1]) || old == order {
            return;
        }
        for tier in [Tier::L1, Tier::L2] {
            let entry = &self.arena[node];
            if entry.flag(LISTED[ix(tier)]) {
                let lane = self.orders.lane_mut(tier, entry.lane(tier, self.cp_size));
                lane.order.remove((old, node));
                lane.order.insert((order, node));
            }
        }
    }
}
