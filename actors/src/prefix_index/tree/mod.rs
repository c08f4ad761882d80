//! The prefix tree: one entry per page, so that every property is a property of one page and nothing splits.
//!
//! An entry says where the copies of its page are (an L1 page, an L2 slot with its owner), who uses them and when
//! it was last wanted. A path is matched by looking one slot ahead and, failing that, in one table of all keys;
//! the same table refuses a key that is known at another place.
//!
//! Invariants: in each tier the pages that have a copy are closed under parents; the eviction order of a tier
//! holds exactly the pages that have a copy there, no child with one, no pin and no hold; an entry nobody could
//! ask for is gone. Not here: sessions, leases and ops (`prefix_index`), which slots are free (`allocator`).

mod arena;
mod check;
mod eviction;
mod matching;
mod order;
mod table;
#[cfg(test)]
mod tests;

pub use arena::{NodeId, SaltId};
pub use eviction::{Eviction, LaneCounts, TakenCopy, Victim};
pub use matching::{Known, Match, PathError};

use std::fmt;

use crate::protocol::{CP_SIZE_MAX, HostSlot, Key, PageId, Rank, Tier};
use arena::{Arena, Entry, LISTED, LIVE, PENDING, QUARANTINED, TICK_END, ix};
use eviction::Orders;
use table::{KeyTable, Probe};

/// The prefix tree of one group.
#[derive(Clone)]
pub struct PrefixTree {
    arena: Arena,
    table: KeyTable,
    orders: Orders,
    cp_size: u8,
}

/// What the tree knows about one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageView {
    /// Its key.
    pub key: Key,
    /// The page before it, none for the first of a path.
    pub parent: Option<NodeId>,
    /// Its number in every prefix that contains it, from 0.
    pub position: u32,
    /// The namespace of its path.
    pub salt: SaltId,
    /// Its page in device memory.
    pub l1: Option<PageId>,
    /// Its slot in host memory and the rank whose pool that is.
    pub l2: Option<(Rank, HostSlot)>,
    /// Children with a copy in L1, in L2.
    pub children: [u32; 2],
    /// Pins on the copy in L1, in L2.
    pub pins: [u16; 2],
    /// Holds on the copy in L1, in L2.
    pub holds: [u8; 2],
    /// A backup into L2 has not ended.
    pub is_pending: bool,
    /// The L2 record is damaged or incomplete: no match reaches it.
    pub is_quarantined: bool,
    /// How often it was wanted, its creation included; stops at 255.
    pub hits: u8,
    /// Pages of a lower priority leave first.
    pub priority: u8,
    /// When it was last wanted.
    pub tick: u64,
}

/// A page has as many pins or holds as can be counted: the caller refuses whoever wants one more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key:?} is in use {limit} times")]
pub struct InUse {
    /// The page.
    pub key: Key,
    /// The most there can be.
    pub limit: u32,
}

impl PrefixTree {
    /// Most pins of one page in one tier.
    pub const PINS_MAX: u16 = u16::MAX;
    /// Most holds of one page in one tier.
    pub const HOLDS_MAX: u8 = u8::MAX;

    /// An empty tree for a group of `cp_size` ranks. Room for `pages_expected` entries is set aside at once
    /// (78.4 bytes each, touched when used); more are taken, at the cost of moving what is there.
    ///
    /// # Panics
    /// When `cp_size` is 0 or above [`CP_SIZE_MAX`].
    pub fn new(cp_size: u8, pages_expected: usize) -> Self {
        assert!((1..=CP_SIZE_MAX).contains(&cp_size), "cp_size {cp_size}");
        Self {
            arena: Arena::new(pages_expected),
            table: KeyTable::new(pages_expected),
            orders: Orders::new(cp_size),
            cp_size,
        }
    }

    /// Pages known, with a copy or without.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether no page is known.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Slots ever used: every [`NodeId::index`] is below.
    pub fn slots(&self) -> usize {
        self.arena.slots()
    }

    /// Bytes set aside for entries, keys and eviction orders.
    pub fn memory_bytes(&self) -> usize {
        self.arena.bytes() + self.table.bytes() + self.orders.bytes()
    }

    /// The entry of `key`, wherever it stands.
    pub fn find(&self, key: &Key) -> Option<NodeId> {
        self.table.find(key, &self.arena)
    }

    /// Whether `node` still is the entry of `key`: for checks of whoever keeps nodes.
    pub fn is_at(&self, node: NodeId, key: &Key) -> bool {
        self.arena.is_live(node) && self.arena[node].key == *key
    }

    /// All about one page.
    ///
    /// # Panics
    /// When the slot is free: the node was kept longer than the page.
    pub fn page(&self, node: NodeId) -> PageView {
        let entry = self.live(node);
        PageView {
            key: entry.key,
            parent: entry.parent.get(),
            position: entry.position(),
            salt: entry.salt,
            l1: entry.l1(),
            l2: entry.l2(),
            children: entry.children,
            pins: entry.pins,
            holds: entry.holds,
            is_pending: entry.flag(PENDING),
            is_quarantined: entry.flag(QUARANTINED),
            hits: entry.hits,
            priority: (entry.order >> 56) as u8,
            tick: entry.order & (TICK_END - 1),
        }
    }

    /// Whether the copy in `tier` may leave: it exists, no child has one there, nobody uses it, it is not
    /// quarantined.
    pub fn is_evictable(&self, node: NodeId, tier: Tier) -> bool {
        self.live(node).is_evictable(tier)
    }

    /// The known pages in slot order, from the slot `from` on: a cursor that survives changes.
    pub fn nodes(&self, from: usize) -> impl Iterator<Item = NodeId> + '_ {
        (from..self.arena.slots()).map(|slot| NodeId(slot as u32)).filter(|node| self.arena.is_live(*node))
    }

    /// Appends all pages below `node` that have a copy in `tier`, each behind its parent: cleared from the back,
    /// they leave in a legal order.
    pub fn descendants(&self, node: NodeId, tier: Tier, out: &mut Vec<NodeId>) {
        let first = out.len();
        out.extend(self.arena.children(node).filter(|child| self.arena[*child].has(tier)));
        let mut at = first;
        while at < out.len() {
            out.extend(self.arena.children(out[at]).filter(|child| self.arena[*child].has(tier)));
            at += 1;
        }
    }

    /// The entry of `key` behind `parent`, made if it is new; `salt` and `tick` are those of a new entry. A new
    /// entry has no copy: it stays only with what is put on it before the next [`Self::prune`].
    ///
    /// # Errors
    /// When the key is known at another place; nothing is changed.
    ///
    /// # Panics
    /// When `parent` is gone or of another salt, the path has 2^24 pages, or the tick is 2^56 or more.
    pub fn insert(&mut self, parent: Option<NodeId>, key: Key, salt: SaltId, tick: u64) -> Result<NodeId, PathError> {
        let position = match parent {
            Some(parent) => {
                let parent = self.live(parent);
                assert_eq!(parent.salt, salt, "{:?} is of another salt", parent.key);
                parent.position() + 1
            }
            None => 0,
        };
        self.table.reserve_one(&self.arena);
        match self.table.probe(&key, &self.arena) {
            Probe::Found(node) => self.expect_at(node, parent, salt).map(|()| node),
            Probe::Gap(gap) => {
                let node = self.arena.place(Entry::new(key, parent, position, salt, tick));
                self.table.fill(gap, &key, node);
                Ok(node)
            }
        }
    }

    /// Removes the entry if it is empty (no copy, child, pin, hold or pending backup), then its parent if that
    /// made it empty, and so on. Says how many were removed.
    pub fn prune(&mut self, node: NodeId) -> u32 {
        let mut removed = 0;
        let mut at = Some(node);
        while let Some(node) = at {
            let entry = self.live(node);
            if !entry.is_empty() {
                break;
            }
            at = entry.parent.get();
            self.table.remove(node, &self.arena);
            self.arena.free(node);
            removed += 1;
        }
        removed
    }

    /// One more request wants this page: it counts, and the page is as young as `tick`.
    pub fn touch(&mut self, node: NodeId, tick: u64) {
        assert!(tick < TICK_END, "tick {tick}");
        let entry = self.live_mut(node);
        entry.hits = entry.hits.saturating_add(1);
        let order = entry.order & !(TICK_END - 1) | tick;
        self.reorder(node, order);
    }

    /// Sets the priority: of the pages that may leave, those of the lowest go first.
    pub fn set_priority(&mut self, node: NodeId, priority: u8) {
        let order = self.live(node).order & (TICK_END - 1) | (priority as u64) << 56;
        self.reorder(node, order);
    }

    /// The page has an L1 copy from here on.
    ///
    /// # Panics
    /// When it has one, or its parent has none.
    pub fn set_l1(&mut self, node: NodeId, page: PageId) {
        self.live_mut(node).put_l1(page);
        self.added(node, Tier::L1);
    }

    /// The page has a valid L2 copy from here on. Ends neither a pending mark nor a hold.
    ///
    /// # Panics
    /// When it has one, its parent has none, or `owner` is no rank of the group.
    pub fn set_l2(&mut self, node: NodeId, owner: Rank, slot: HostSlot) {
        assert!(owner.0 < self.cp_size, "{owner:?} of {}", self.cp_size);
        self.live_mut(node).put_l2(owner, slot);
        self.added(node, Tier::L2);
    }

    /// Takes the L1 copy away. The entry stays until [`Self::prune`].
    ///
    /// # Panics
    /// When there is none, a child has one, or somebody uses it.
    pub fn clear_l1(&mut self, node: NodeId) -> PageId {
        let page = self.live(node).l1().expect("an L1 copy to clear");
        self.removed(node, Tier::L1);
        page
    }

    /// Takes the L2 copy away, and a quarantine with it. The entry stays until [`Self::prune`].
    ///
    /// # Panics
    /// When there is none, a child has one, or somebody uses it.
    pub fn clear_l2(&mut self, node: NodeId) -> (Rank, HostSlot) {
        let copy = self.live(node).l2().expect("an L2 copy to clear");
        self.removed(node, Tier::L2);
        self.arena[node].flags &= !QUARANTINED;
        copy
    }

    /// The L2 record is damaged: no match reaches it and no eviction takes it, until it is cleared. Its
    /// descendants are the caller's to clear ([`Self::descendants`]).
    ///
    /// # Panics
    /// When there is no L2 copy.
    pub fn quarantine(&mut self, node: NodeId) {
        assert!(self.live(node).has(Tier::L2), "no record to quarantine");
        self.arena[node].flags |= QUARANTINED;
        self.refresh(node, Tier::L2);
    }

    /// Says whether a backup of this page into L2 is under way: keeps the entry, and is what the next backup
    /// asks before it begins.
    pub fn set_pending(&mut self, node: NodeId, is_pending: bool) {
        let entry = self.live_mut(node);
        entry.flags = if is_pending { entry.flags | PENDING } else { entry.flags & !PENDING };
    }

    /// A session uses the copy in `tier`: it stays until [`Self::unpin`].
    ///
    /// # Errors
    /// At [`Self::PINS_MAX`] pins.
    ///
    /// # Panics
    /// When there is no such copy.
    pub fn pin(&mut self, node: NodeId, tier: Tier) -> Result<(), InUse> {
        let entry = self.live_mut(node);
        assert!(entry.has(tier), "{:?} has no copy in {tier:?} to pin", entry.key);
        let pins = &mut entry.pins[ix(tier)];
        *pins = pins.checked_add(1).ok_or(InUse { key: entry.key, limit: Self::PINS_MAX.into() })?;
        self.refresh(node, tier);
        Ok(())
    }

    /// Pins all of `nodes` or, on the error of [`Self::pin`], none.
    ///
    /// # Errors
    /// As [`Self::pin`].
    pub fn pin_all(&mut self, nodes: &[NodeId], tier: Tier) -> Result<(), InUse> {
        for (done, node) in nodes.iter().enumerate() {
            if let Err(in_use) = self.pin(*node, tier) {
                nodes[..done].iter().for_each(|node| self.unpin(*node, tier));
                return Err(in_use);
            }
        }
        Ok(())
    }

    /// Ends one pin.
    ///
    /// # Panics
    /// When there is none.
    pub fn unpin(&mut self, node: NodeId, tier: Tier) {
        let pins = &mut self.live_mut(node).pins[ix(tier)];
        *pins = pins.checked_sub(1).expect("a pin to end");
        self.refresh(node, tier);
    }

    /// An op reads the copy in `tier`, or is about to write the one that will be there: entry and copy stay
    /// until [`Self::release`].
    ///
    /// # Errors
    /// At [`Self::HOLDS_MAX`] holds.
    pub fn hold(&mut self, node: NodeId, tier: Tier) -> Result<(), InUse> {
        let entry = self.live_mut(node);
        let holds = &mut entry.holds[ix(tier)];
        *holds = holds.checked_add(1).ok_or(InUse { key: entry.key, limit: Self::HOLDS_MAX.into() })?;
        self.refresh(node, tier);
        Ok(())
    }

    /// Ends one hold.
    ///
    /// # Panics
    /// When there is none.
    pub fn release(&mut self, node: NodeId, tier: Tier) {
        let holds = &mut self.live_mut(node).holds[ix(tier)];
        *holds = holds.checked_sub(1).expect("a hold to end");
        self.refresh(node, tier);
    }

    fn live(&self, node: NodeId) -> &Entry {
        let entry = &self.arena[node];
        assert!(entry.flag(LIVE), "{node:?} was kept longer than its page");
        entry
    }

    fn live_mut(&mut self, node: NodeId) -> &mut Entry {
        let entry = &mut self.arena[node];
        assert!(entry.flag(LIVE), "{node:?} was kept longer than its page");
        entry
    }

    /// Accounts for a copy that was just put on `node`.
    fn added(&mut self, node: NodeId, tier: Tier) {
        let entry = &self.arena[node];
        self.orders.lane_mut(tier, entry.lane(tier, self.cp_size)).counts.added += 1;
        if let Some(parent) = entry.parent.get() {
            let above = &mut self.arena[parent];
            assert!(above.has(tier), "a copy in {tier:?} behind {:?}, which has none", above.key);
            above.children[ix(tier)] += 1;
            self.refresh(parent, tier);
        }
        self.refresh(node, tier);
    }

    /// Takes the copy off `node` and accounts for it.
    fn removed(&mut self, node: NodeId, tier: Tier) {
        let entry = &self.arena[node];
        assert_eq!(entry.children[ix(tier)], 0, "{:?} has children in {tier:?}", entry.key);
        assert!(entry.is_idle(tier), "{:?} is in use in {tier:?}", entry.key);
        let (lane, parent) = (entry.lane(tier, self.cp_size), entry.parent.get());
        if entry.flag(LISTED[ix(tier)]) {
            self.orders.lane_mut(tier, lane).order.remove((entry.order, node));
            self.arena[node].flags &= !LISTED[ix(tier)];
        }
        self.arena[node].drop_copy(tier);
        self.orders.lane_mut(tier, lane).counts.removed += 1;
        if let Some(parent) = parent {
            self.arena[parent].children[ix(tier)] -= 1;
            self.refresh(parent, tier);
        }
    }
}

impl fmt::Debug for PrefixTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrefixTree").field("pages", &self.len()).field("slots", &self.slots()).finish_non_exhaustive()
    }
}
