//! Giving copies up: for an evictor that makes room, for an operator who flushes, for a damaged record.

use std::collections::BTreeSet;

use super::tree::{NodeId, TakenCopy, Victim};
use super::unseals::Gone;
use super::{CALL, Index, Placed, WritePolicy, reply};
use crate::faults::Fault;
use crate::machine::{Effect, ReplyTo, Sender, Trace};
use crate::protocol::{
    AllocatorIn, Damaged, Evict, Evicted, EvictorIn, Flush, Flushed, Free, HostSlot, Key, Malformed, OpId, OpSettled,
    Outgoing, Owners, PageId, Pages, RankIn, Refusal, Slots, Tier, Time,
};
use crate::span::Span;

/// An eviction that the evictor asked for; kept after its end for repeats.
#[derive(Debug)]
pub(super) struct EvictOp {
    answer: Evicted,
    trace: Trace,
    /// The allocator has the pages back.
    done: bool,
    /// What is said when it has, where somebody records it.
    span: Option<Box<Span>>,
}

/// A flush that waits for the allocator and the ranks.
#[derive(Debug)]
pub(super) struct FlushOp {
    reply: Option<ReplyTo>,
    op: OpId,
    l1: u32,
    l2: u32,
    l1_kept: u32,
    l2_kept: u32,
    freed: bool,
    /// What asks ranks to unseal: its own records, and those that left L2 before and could come back as well.
    unseals: BTreeSet<OpId>,
}

/// What happens once the allocator has pages back.
#[derive(Clone, Copy, Debug)]
pub(super) enum FreeThen {
    /// Nothing.
    Nothing,
    /// The eviction is answered.
    Evict(OpId),
    /// The flush is answered.
    Flush(OpId),
    /// L1 is open.
    Lanes,
}

impl FlushOp {
    pub(super) fn unsealed(&mut self, op: OpId) {
        self.unseals.remove(&op);
    }

    fn is_done(&self) -> bool {
        self.freed && self.unseals.is_empty()
    }
}

impl EvictOp {
    pub(super) const fn runs(&self) -> bool {
        !self.done
    }
}

impl Index {
    /// Gives pages back to the allocator; nothing reads or writes them. Slots that it has not been told are taken wait
    /// until it has.
    pub(super) fn free(
        &mut self,
        now: Time,
        l1: Vec<PageId>,
        mut l2: Vec<Placed>,
        then: FreeThen,
        out: &mut Vec<Effect>,
    ) {
        if !self.recovery.is_rebuilt() {
            self.recovery.frees_later(std::mem::take(&mut l2));
        }
        if l1.is_empty() && l2.is_empty() && matches!(then, FreeThen::Nothing) {
            return;
        }
        l2.iter().for_each(|(rank, _)| self.l2_room.freed(*rank));
        let messages = l1.len().max(l2.len()).div_ceil(FREE_PAGES_MAX).max(1);
        assert!(messages == 1 || matches!(then, FreeThen::Nothing), "what is waited for is one message");
        for at in 0..messages {
            let part = |len: usize| (at * FREE_PAGES_MAX).min(len)..((at + 1) * FREE_PAGES_MAX).min(len);
            let op = self.ids.draw();
            let (owners, slots): (Vec<u8>, Vec<HostSlot>) =
                l2[part(l2.len())].iter().map(|(rank, slot)| (rank.0, *slot)).unzip();
            let l1 = Pages(l1[part(l1.len())].to_vec());
            self.freeing.insert(op, then);
            let msg = AllocatorIn::from(Free { l1, l2_owners: Owners(owners), l2: Slots(slots) });
            self.calls.call(now, (op, CALL), Outgoing::Allocator(msg), &super::NO_TRACE, out);
        }
    }

    pub(super) fn freed(&mut self, now: Time, op: OpId, out: &mut Vec<Effect>) {
        if !self.calls.answered((op, CALL)) {
            return;
        }
        match self.freeing.remove(&op) {
            Some(FreeThen::Nothing) | None => {}
            Some(FreeThen::Evict(evict)) => {
                self.evict_done(now, evict, out);
            }
            Some(FreeThen::Flush(flush)) => {
                if let Some(flush) = self.flushes.get_mut(&flush) {
                    flush.freed = true;
                }
            }
            Some(FreeThen::Lanes) => self.lanes_opened(now),
        }
    }

    fn evict_done(&mut self, now: Time, op: OpId, out: &mut Vec<Effect>) {
        if let Some(evict) = self.evicts.get_mut(&op) {
            evict.done = true;
            out.extend(evict.span.take().map(|span| Effect::span(Span { ended: now, ..*span })));
        }
        self.answer_evict(op, out);
    }

    fn answer_evict(&self, op: OpId, out: &mut Vec<Effect>) {
        if let Some(EvictOp { answer, done: true, trace, .. }) = self.evicts.get(&op) {
            let msg = Outgoing::Evictor(EvictorIn::from(answer.clone()));
            out.push(Effect::Send { to: msg, op, trace: trace.clone() });
        }
    }

    pub(super) fn evict(&mut self, now: Time, from: &Sender, msg: &Evict, out: &mut Vec<Effect>) {
        let op = from.op;
        if self.evicts.contains_key(&op) {
            return self.answer_evict(op, out);
        }
        let lanes = usize::from(self.config.cp_size());
        if msg.wants.len() != lanes {
            out.push(Effect::Mark { op, name: "index.rejected", value: 1 });
            return;
        }
        let tier = if msg.tier == 1 { Tier::L1 } else { Tier::L2 };
        // What the allocator has not been told is taken cannot be given back to it.
        let mut wants = if self.recovery.is_rebuilt() { msg.wants.clone() } else { vec![0; lanes] };
        let mut victims = Vec::new();
        let write_back =
            tier == Tier::L1 && self.config.write_policy == WritePolicy::WriteBack && self.config.l2_slots > 0;
        let (collateral, pending) = if write_back {
            self.write_back(now, &mut wants, &mut victims, &from.trace, out)
        } else {
            (self.tree.victims(tier, &mut wants, VICTIMS_MAX, &mut victims).collateral, 0)
        };
        if self.config.faults.is(Fault::ParentEvictedBeforeChild) {
            victims.extend(self.a_parent(tier));
        }
        let mut freed = vec![0; lanes];
        for victim in &victims {
            freed[self.lane_of(victim.copy)] += 1;
        }
        let span = self.evict_span(now, from, tier, &victims, &freed).map(|span| {
            let span = span.counts("evict.wanted_pages", msg.wants.iter().copied());
            Box::new(span.count("evict.collateral_pages", collateral).count("evict.pending_pages", pending))
        });
        let (answer, trace) = (Evicted { freed, collateral, pending }, from.trace.clone());
        self.evicts.insert(op, EvictOp { answer, trace, done: false, span });
        while self.evicts.len() > EVICTS_MAX {
            let ended = self.evicts.iter().find(|(_, evict)| evict.done).map(|(op, _)| *op);
            let Some(ended) = ended else { break };
            self.evicts.remove(&ended);
        }
        if victims.is_empty() {
            return self.evict_done(now, op, out);
        }
        self.give_back(now, tier, &victims, FreeThen::Evict(op), out);
    }

    /// The copy of a page that has children in the tier, as if it could leave.
    fn a_parent(&self, tier: Tier) -> Option<Victim> {
        let views = self.tree.nodes(0).map(|node| self.tree.page(node));
        let mut parents = views.filter(|view| match tier {
            Tier::L1 => view.children[0] > 0,
            Tier::L2 => view.children[1] > 0,
        });
        let view = parents.next()?;
        let copy = match tier {
            Tier::L1 => TakenCopy::L1(view.l1?),
            Tier::L2 => view.l2.map(|(rank, slot)| TakenCopy::L2(rank, slot))?,
        };
        Some(Victim { key: view.key, copy, is_elsewhere: false, is_collateral: true })
    }

    fn lane_of(&self, copy: TakenCopy) -> usize {
        match copy {
            TakenCopy::L1(page) => page.owner(self.config.cp_size()).0.into(),
            TakenCopy::L2(rank, _) => rank.0.into(),
        }
    }

    fn give_back(&mut self, now: Time, tier: Tier, victims: &[Victim], then: FreeThen, out: &mut Vec<Effect>) {
        let (l1, gone) = parted(victims.iter().map(|victim| (victim.key, victim.copy)));
        match tier {
            Tier::L1 => self.counts.evicted_l1 += victims.len() as u64,
            Tier::L2 => self.counts.evicted_l2 += victims.len() as u64,
        }
        let keys: Vec<Key> = victims.iter().map(|victim| victim.key).collect();
        self.removed(tier, &keys, out);
        self.free(now, l1, placed(&gone), then, out);
        self.unseal(now, &gone, out);
    }

    pub(super) fn flush(
        &mut self,
        now: Time,
        from: &Sender,
        msg: &Flush,
        out: &mut Vec<Effect>,
    ) -> Result<(), Refusal> {
        if msg.tier > 2 {
            return Err(Malformed::new("tier", msg.tier, "0, 1 or 2").into());
        }
        if let Some(flush) = self.flushes.get_mut(&from.op) {
            flush.reply.clone_from(&from.reply);
            return Ok(());
        }
        if !self.recovery.is_rebuilt() {
            return Err(self.busy("recovery", 0));
        }
        let (mut copies, mut kept) = (Vec::new(), [0; 2]);
        for tier in [Tier::L1, Tier::L2] {
            let number = if tier == Tier::L1 { 1 } else { 2 };
            if msg.tier != 0 && msg.tier != number {
                continue;
            }
            let taken;
            (taken, kept[number as usize - 1]) = self.flush_tier(tier, msg);
            let keys: Vec<Key> = taken.iter().map(|(key, _)| *key).collect();
            copies.extend(taken);
            self.removed(tier, &keys, out);
        }
        let (l1, gone) = parted(copies.into_iter());
        self.unseal(now, &gone, out);
        if msg.tier == 0 && msg.salt.is_empty() && msg.prefix.0.is_empty() {
            self.counts.backups_dropped += self.parked_backups.len() as u64;
            self.parked_backups.clear();
        }
        let flush = FlushOp {
            reply: from.reply.clone(),
            op: from.op,
            l1: l1.len() as u32,
            l2: gone.len() as u32,
            l1_kept: kept[0],
            l2_kept: kept[1],
            freed: l1.is_empty() && gone.is_empty(),
            unseals: self.unseals.keys().copied().collect(),
        };
        let then = if flush.freed { FreeThen::Nothing } else { FreeThen::Flush(from.op) };
        self.flushes.insert(from.op, flush);
        self.free(now, l1, placed(&gone), then, out);
        Ok(())
    }

    /// Takes what may leave of a tier, leaves first, a bounded number; says how many of those that were meant stay.
    fn flush_tier(&mut self, tier: Tier, msg: &Flush) -> (Vec<(Key, TakenCopy)>, u32) {
        let mut wanted: Vec<(u32, NodeId)> = Vec::new();
        let salts: Vec<_> = msg.salt.iter().filter_map(|salt| self.salts.get(*salt)).collect();
        let below = msg.prefix.0.last().map(|key| self.tree.find(key));
        for node in self.tree.nodes(0) {
            let view = self.tree.page(node);
            let has = if tier == Tier::L1 { view.l1.is_some() } else { view.l2.is_some() };
            let of_salt = msg.salt.is_empty() || salts.contains(&view.salt);
            let damaged = !msg.quarantined || (tier == Tier::L2 && view.is_quarantined);
            if has && of_salt && damaged {
                wanted.push((view.position, node));
            }
        }
        if let Some(below) = below {
            let mut inside = Vec::new();
            if let Some(node) = below {
                inside.push(node);
                self.tree.descendants(node, tier, &mut inside);
            }
            inside.sort_unstable();
            wanted.retain(|(_, node)| inside.binary_search(node).is_ok());
        }
        wanted.sort_unstable_by(|a, b| b.cmp(a));
        let (mut taken, meant) = (Vec::new(), wanted.len());
        for (_, node) in wanted.into_iter().take(FLUSH_PAGES_MAX) {
            let view = self.tree.page(node);
            let at = if tier == Tier::L1 { 0 } else { 1 };
            if view.children[at] > 0 || view.pins[at] > 0 || view.holds[at] > 0 {
                continue;
            }
            let copy = match tier {
                Tier::L1 => TakenCopy::L1(self.tree.clear_l1(node)),
                Tier::L2 => {
                    let (rank, slot) = self.clear_l2(node);
                    TakenCopy::L2(rank, slot)
                }
            };
            taken.push((view.key, copy));
            self.tree.prune(node);
        }
        let kept = (meant - taken.len()) as u32;
        (taken, kept)
    }

    /// Takes the L2 copy of a page that may be quarantined.
    pub(super) fn clear_l2(&mut self, node: NodeId) -> Placed {
        self.damaged_components.remove(&self.tree.page(node).key);
        self.tree.clear_l2(node)
    }

    /// Answers flushes whose pages the allocator has, and whose records no restart brings back.
    pub(super) fn answer_flushes(&mut self, out: &mut Vec<Effect>) {
        if self.flushes.values().all(|flush| !flush.is_done()) {
            return;
        }
        let in_flight = self.in_flight() as u32;
        self.flushes.retain(|_, flush| {
            if flush.is_done() {
                let FlushOp { l1, l2, l1_kept, l2_kept, .. } = *flush;
                let answer = Flushed { l1, l2, l1_kept, l2_kept, in_flight };
                reply(flush.reply.clone(), flush.op, answer, out);
            }
            !flush.is_done()
        });
    }

    /// A record is damaged: it is quarantined whole, and what stands behind it leaves the tier.
    pub(super) fn damaged(&mut self, now: Time, from: &Sender, msg: &Damaged, out: &mut Vec<Effect>) {
        let slot = (msg.rank, HostSlot(msg.slot));
        let settled = RankIn::from(OpSettled {});
        out.push(Effect::Send { to: Outgoing::Rank(msg.rank, settled), op: from.op, trace: None });
        let Some(node) = self.tree.nodes(0).find(|node| self.tree.page(*node).l2 == Some(slot)) else { return };
        if self.tree.page(node).is_quarantined {
            return;
        }
        self.tree.quarantine(node);
        self.damaged_components.insert(self.tree.page(node).key, msg.component.clone());
        self.drop_l2_behind(now, node, out);
    }

    /// Clears the L2 copies behind `node`; those in use are quarantined and cleared when nobody uses them.
    pub(super) fn drop_l2_behind(&mut self, now: Time, node: NodeId, out: &mut Vec<Effect>) {
        let mut behind = Vec::new();
        self.tree.descendants(node, Tier::L2, &mut behind);
        let (mut gone, mut keys) = (Vec::new(), Vec::new());
        for node in behind.into_iter().rev() {
            let view = self.tree.page(node);
            if view.children[1] > 0 || view.pins[1] > 0 || view.holds[1] > 0 {
                self.tree.quarantine(node);
                self.lost.insert(view.key);
                continue;
            }
            let (rank, slot) = self.clear_l2(node);
            gone.push((rank, slot, view.key));
            keys.push(view.key);
            self.tree.prune(node);
        }
        self.counts.evicted_l2 += keys.len() as u64;
        self.removed(Tier::L2, &keys, out);
        self.free(now, Vec::new(), placed(&gone), FreeThen::Nothing, out);
        self.unseal(now, &gone, out);
    }

    /// Records that are set aside: damaged ones, and those behind them that somebody still uses.
    pub(super) fn quarantined(&self) -> usize {
        let is_quarantined = |key: &Key| self.tree.find(key).is_some_and(|node| self.tree.page(node).is_quarantined);
        let behind = self.lost.iter().filter(|key| !self.damaged_components.contains_key(*key) && is_quarantined(key));
        self.damaged_components.len() + behind.count()
    }

    /// The component that made `node` a quarantined record.
    pub(super) fn damaged_component(&self, node: NodeId) -> String {
        let key = self.tree.page(node).key;
        self.damaged_components.get(&key).cloned().unwrap_or_else(|| "record".to_owned())
    }
}

/// Copies by tier.
fn parted(copies: impl Iterator<Item = (Key, TakenCopy)>) -> (Vec<PageId>, Vec<Gone>) {
    let (mut l1, mut l2) = (Vec::new(), Vec::new());
    for (key, copy) in copies {
        match copy {
            TakenCopy::L1(page) => l1.push(page),
            TakenCopy::L2(rank, slot) => l2.push((rank, slot, key)),
        }
    }
    (l1, l2)
}

/// The slots of records that have left L2.
pub(super) fn placed(gone: &[Gone]) -> Vec<Placed> {
    gone.iter().map(|(rank, slot, _)| (*rank, *slot)).collect()
}

/// Most pages one eviction takes: a handler does bounded work.
pub(super) const VICTIMS_MAX: u32 = 4_096;
/// Evictions whose answers are kept for repeats.
const EVICTS_MAX: usize = 1_024;
/// Most pages of a tier in one message: 9 bytes for one of each, well inside what a bus carries.
const FREE_PAGES_MAX: usize = 65_536;
/// Most pages of a tier one flush takes; whoever wants more asks again.
const FLUSH_PAGES_MAX: usize = FREE_PAGES_MAX;
