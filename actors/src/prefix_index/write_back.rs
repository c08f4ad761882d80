//! Write-back: pages that L1 wants the room of are copied to L2 first, and leave when the copy is committed.

use std::collections::BTreeSet;

use super::backups::Plan;
use super::evictions::VICTIMS_MAX;
use super::tree::{NodeId, PrefixTree, TakenCopy, Victim};
use super::{FreeThen, Index};
use crate::machine::{Effect, Trace};
use crate::protocol::{Rank, Tier, Time};

impl Index {
    /// Frees L1 pages that have an L2 copy, and backs up those that have none: they go when that commits. What stands
    /// behind a quarantined record can have no copy, and goes without one.
    pub(super) fn write_back(
        &mut self,
        now: Time,
        wants: &mut [u32],
        victims: &mut Vec<Victim>,
        trace: &Trace,
        out: &mut Vec<Effect>,
    ) -> (u32, u32) {
        let (mut collateral, mut pending) = (0, 0);
        let (mut waiting, mut barred) = (BTreeSet::new(), BTreeSet::new());
        let mut looks = PrefixTree::LOOK_PAGES_MAX;
        for _ in 0..VICTIMS_MAX {
            let short = (0..).zip(wants.iter()).filter(|(_, want)| **want > 0);
            let idle = |lane| self.tree.evictable(Tier::L1, Rank(lane)).find(|node| !waiting.contains(node));
            let first = short.filter_map(|(lane, _)| idle(lane)).min_by_key(|node| self.tree.page(*node).tick);
            // No page of a short lane is a leaf: what stands in front of one goes first.
            let in_front = || self.tree.leaf_in_front(Tier::L1, wants, &mut looks);
            let Some(leaf) = first.or_else(in_front).filter(|leaf| !waiting.contains(leaf)) else { break };
            let view = self.tree.page(leaf);
            let mut wanted = wants.to_vec();
            let (chain, empties) = match view.l2.is_some() || barred.contains(&leaf) {
                true => (Vec::new(), 0),
                false => self.idle_chain(leaf, &mut wanted),
            };
            if self.is_behind_quarantined(&chain) {
                barred.extend(chain.iter().copied());
            }
            let barred = barred.contains(&leaf);
            if view.l2.is_some() || barred {
                let page = self.tree.clear_l1(leaf);
                let lane = usize::from(page.owner(self.config.cp_size()).0);
                let (is_elsewhere, is_collateral) = (!barred, wants[lane] == 0);
                collateral += u32::from(is_collateral);
                wants[lane] = wants[lane].saturating_sub(1);
                self.tree.prune(leaf);
                victims.push(Victim { key: view.key, copy: TakenCopy::L1(page), is_elsewhere, is_collateral });
                continue;
            }
            wants.copy_from_slice(&wanted);
            match self.backup_computed(now, &chain, empties, trace, out) {
                Some(_) => pending += empties,
                // Another backup of it has not ended.
                None => {
                    waiting.insert(leaf);
                }
            }
        }
        (collateral, pending)
    }

    /// Whether the page before the first of these is a quarantined record.
    fn is_behind_quarantined(&self, chain: &[NodeId]) -> bool {
        let parent = chain.first().and_then(|head| self.tree.page(*head).parent);
        parent.is_some_and(|parent| self.tree.page(parent).is_quarantined)
    }

    /// The leaf and the pages above it that L2 lacks, from the top down, since no page can stand in L2 without
    /// those before it; and how many of them at the end leave L1: those that nobody else uses, as far as lanes
    /// want room.
    fn idle_chain(&self, leaf: NodeId, wants: &mut [u32]) -> (Vec<NodeId>, u32) {
        let (mut chain, mut empties, mut leaving) = (Vec::new(), 0, true);
        let mut at = Some(leaf);
        while let Some(node) = at {
            let view = self.tree.page(node);
            let Some(page) = view.l1.filter(|_| view.l2.is_none() && !view.is_pending) else { break };
            let alone = chain.is_empty() || (view.children[0] == 1 && view.pins[0] == 0 && view.holds[0] == 0);
            leaving &= alone && (chain.is_empty() || wants.iter().any(|want| *want > 0));
            if leaving {
                let lane = usize::from(page.owner(self.config.cp_size()).0);
                wants[lane] = wants[lane].saturating_sub(1);
                empties += 1;
            }
            chain.push(node);
            at = view.parent;
        }
        chain.reverse();
        (chain, empties)
    }

    /// A write-back is over: the L1 pages whose room is wanted go, from the tail, as far as nobody uses them.
    pub(super) fn empty_l1(&mut self, now: Time, plan: &Plan, out: &mut Vec<Effect>) {
        let (mut free, mut keys) = (Vec::new(), Vec::new());
        for (key, page) in plan.keys.iter().zip(&plan.pages).rev().take(plan.empties as usize) {
            let Some(node) = self.tree.find(key) else { continue };
            if !self.tree.is_evictable(node, Tier::L1) || self.tree.page(node).l1 != Some(*page) {
                break;
            }
            free.push(self.tree.clear_l1(node));
            keys.push(*key);
            self.tree.prune(node);
        }
        self.counts.evicted_l1 += free.len() as u64;
        self.removed(Tier::L1, &keys, out);
        self.free(now, free, Vec::new(), FreeThen::Nothing, out);
    }
}
