//! Where the entries of the tree stand: one fixed-size entry per page, freed slots taken again.
//!
//! A new page stands right behind its parent where that slot is free. Pages leave from the tail of a path, so
//! the slot freed last is the lowest of a free run: taking it first and going on behind it fills whole runs.
//!
//! Invariants: never more slots than the larger of `expected` and the most entries alive at one time.
//! Not here: what a key means (`table`), who may leave (`eviction`).

use std::ops::{Index, IndexMut};

use crate::protocol::{HostSlot, Key, PageId, Rank, Tier};

/// An entry of the tree. Valid while the entry has a copy, a child, a pin, a hold or a pending backup, and the
/// slot is given to another page afterwards: keep one only as long as one of these is yours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub(super) u32);

impl NodeId {
    /// The slot of the entry, below `PrefixTree::slots`: to index a table that runs beside the tree.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Root namespace of a path (tenant, salt, adapter), numbered by the caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SaltId(pub u32);

/// `Option<NodeId>` in four bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Link(u32);

impl Link {
    pub(super) const NONE: Self = Self(u32::MAX);

    pub(super) const fn to(node: NodeId) -> Self {
        Self(node.0)
    }

    pub(super) fn from(node: Option<NodeId>) -> Self {
        node.map_or(Self::NONE, Self::to)
    }

    pub(super) const fn get(self) -> Option<NodeId> {
        if self.0 == Self::NONE.0 { None } else { Some(NodeId(self.0)) }
    }
}

/// All the tree knows about one page.
#[derive(Clone)]
pub(super) struct Entry {
    pub(super) key: Key,
    /// Priority in the top byte, tick below: the smallest leaves first.
    pub(super) order: u64,
    pub(super) parent: Link,
    pub(super) first_child: Link,
    /// Neighbours among the children of one parent; of a free slot, among the free slots.
    pub(super) next: Link,
    pub(super) prev: Link,
    /// Position in the low 24 bits, owner of the L2 copy above.
    place: u32,
    /// L1 page and L2 slot, `NO_COPY` for none.
    copies: [u32; 2],
    /// Children that have a copy in L1, in L2.
    pub(super) children: [u32; 2],
    pub(super) salt: SaltId,
    pub(super) pins: [u16; 2],
    pub(super) holds: [u8; 2],
    pub(super) hits: u8,
    pub(super) flags: u8,
}

const _: () = assert!(size_of::<Entry>() == 72, "memory per page is a promise");

/// The slot holds a page.
pub(super) const LIVE: u8 = 1;
/// A backup of this page into L2 has not ended.
pub(super) const PENDING: u8 = 2;
/// The L2 record is damaged or incomplete.
pub(super) const QUARANTINED: u8 = 4;
/// Stands in the eviction order of L1, of L2.
pub(super) const LISTED: [u8; 2] = [8, 16];

const NO_COPY: u32 = u32::MAX;

/// Most pages of one path: 268 million tokens at the smallest page.
pub(super) const POSITIONS_MAX: u32 = 1 << 24;

/// Ticks are below this: a request every microsecond for 2,283 years.
pub(super) const TICK_END: u64 = 1 << 56;

/// Index of what is kept per tier.
pub(super) const fn ix(tier: Tier) -> usize {
    match tier {
        Tier::L1 => 0,
        Tier::L2 => 1,
    }
}

impl Entry {
    pub(super) fn new(key: Key, parent: Option<NodeId>, position: u32, salt: SaltId, tick: u64) -> Self {
        assert!(position < POSITIONS_MAX, "a path of {position} pages");
        assert!(tick < TICK_END, "tick {tick}");
        Self {
            key,
            order: tick,
            parent: Link::from(parent),
            first_child: Link::NONE,
            next: Link::NONE,
            prev: Link::NONE,
            place: position,
            copies: [NO_COPY; 2],
            children: [0; 2],
            salt,
            pins: [0; 2],
            holds: [0; 2],
            hits: 1,
            flags: LIVE,
        }
    }

    pub(super) const fn position(&self) -> u32 {
        self.place & (POSITIONS_MAX - 1)
    }

    pub(super) const fn has(&self, tier: Tier) -> bool {
        self.copies[ix(tier)] != NO_COPY
    }

    pub(super) const fn flag(&self, bit: u8) -> bool {
        self.flags & bit != 0
    }

    pub(super) fn l1(&self) -> Option<PageId> {
        self.has(Tier::L1).then_some(PageId(self.copies[0]))
    }

    pub(super) fn l2(&self) -> Option<(Rank, HostSlot)> {
        self.has(Tier::L2).then_some((Rank((self.place >> 24) as u8), HostSlot(self.copies[1])))
    }

    /// # Panics
    /// When the page is there already, or is the one number that stands for none.
    pub(super) fn put_l1(&mut self, page: PageId) {
        assert!(!self.has(Tier::L1), "{:?} has an L1 page", self.key);
        assert!(page.0 != NO_COPY);
        self.copies[0] = page.0;
    }

    /// # Panics
    /// As `put_l1`.
    pub(super) fn put_l2(&mut self, owner: Rank, slot: HostSlot) {
        assert!(!self.has(Tier::L2), "{:?} has an L2 slot", self.key);
        assert!(slot.0 != NO_COPY);
        self.copies[1] = slot.0;
        self.place = self.position() | (owner.0 as u32) << 24;
    }

    pub(super) fn drop_copy(&mut self, tier: Tier) {
        self.copies[ix(tier)] = NO_COPY;
    }

    /// The lane of the copy in `tier`; of no meaning when there is none.
    pub(super) const fn lane(&self, tier: Tier, cp_size: u8) -> usize {
        match tier {
            Tier::L1 => PageId(self.copies[0]).owner(cp_size).0 as usize,
            Tier::L2 => (self.place >> 24) as usize,
        }
    }

    /// Nobody reads or writes the copy in `tier`.
    pub(super) const fn is_idle(&self, tier: Tier) -> bool {
        self.pins[ix(tier)] == 0 && self.holds[ix(tier)] == 0
    }

    /// Resident without a resident child, idle, and not set aside.
    pub(super) const fn is_evictable(&self, tier: Tier) -> bool {
        let aside = match tier {
            Tier::L1 => false,
            Tier::L2 => self.flag(QUARANTINED),
        };
        self.has(tier) && self.children[ix(tier)] == 0 && self.is_idle(tier) && !aside
    }

    /// Nothing is left that anyone could ask for.
    pub(super) fn is_empty(&self) -> bool {
        let idle = self.is_idle(Tier::L1) && self.is_idle(Tier::L2);
        !self.has(Tier::L1) && !self.has(Tier::L2) && self.first_child == Link::NONE && idle && !self.flag(PENDING)
    }
}

/// The entries and the free slots between them.
#[derive(Clone)]
pub(super) struct Arena {
    entries: Vec<Entry>,
    free_head: Link,
    free_slots: usize,
    expected: usize,
}

impl Arena {
    pub(super) fn new(expected: usize) -> Self {
        Self { entries: Vec::with_capacity(expected), free_head: Link::NONE, free_slots: 0, expected }
    }

    pub(super) fn slots(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn free_slots(&self) -> usize {
        self.free_slots
    }

    pub(super) fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
    }

    pub(super) fn get(&self, slot: usize) -> Option<&Entry> {
        self.entries.get(slot)
    }

    pub(super) fn is_live(&self, node: NodeId) -> bool {
        self.get(node.index()).is_some_and(|entry| entry.flag(LIVE))
    }

    /// Puts `entry` behind `parent` if that slot is free, else where the last page left, else at the end; links
    /// it to its parent.
    pub(super) fn place(&mut self, entry: Entry) -> NodeId {
        let parent = entry.parent.get();
        let behind = parent.map(|parent| NodeId(parent.0 + 1));
        let free = behind.filter(|node| node.index() < self.entries.len() && !self.is_live(*node));
        // Below `expected` a path at the end may grow although slots are free elsewhere.
        let at_end = behind.is_some_and(|node| node.index() == self.entries.len());
        let node = match free.or_else(|| self.free_head.get()) {
            Some(node) if free.is_some() || !at_end || self.entries.len() >= self.expected => {
                self.unlink_free(node);
                self.entries[node.index()] = entry;
                node
            }
            Some(_) | None => self.push(entry),
        };
        if let Some(parent) = parent {
            let first = std::mem::replace(&mut self[parent].first_child, Link::to(node));
            self[node].next = first;
            if let Some(first) = first.get() {
                self[first].prev = Link::to(node);
            }
        }
        node
    }

    fn push(&mut self, entry: Entry) -> NodeId {
        if self.entries.len() == self.entries.capacity() {
            self.entries.reserve_exact(self.entries.len() / 8 + 64);
        }
        let node = NodeId(u32::try_from(self.entries.len()).expect("fewer than 2^31 pages"));
        self.entries.push(entry);
        node
    }

    /// Takes an entry without children out of its parent's list and frees the slot.
    pub(super) fn free(&mut self, node: NodeId) {
        let entry = &self[node];
        assert!(entry.flag(LIVE), "{node:?} is free");
        assert!(entry.first_child == Link::NONE, "{node:?} has children");
        let (parent, prev, next) = (entry.parent.get(), entry.prev, entry.next);
        match (prev.get(), parent) {
            (Some(prev), _) => self[prev].next = next,
            (None, Some(parent)) => self[parent].first_child = next,
            (None, None) => {}
        }
        if let Some(next) = next.get() {
            self[next].prev = prev;
        }
        let head = std::mem::replace(&mut self.free_head, Link::to(node));
        if let Some(head) = head.get() {
            self[head].prev = Link::to(node);
        }
        let entry = &mut self[node];
        // No parent: the look one slot ahead of a match never takes a free slot for a child.
        entry.parent = Link::NONE;
        entry.key = Key::default();
        (entry.prev, entry.next) = (Link::NONE, head);
        entry.flags = 0;
        self.free_slots += 1;
    }

    fn unlink_free(&mut self, node: NodeId) {
        let (prev, next) = (self[node].prev, self[node].next);
        match prev.get() {
            Some(prev) => self[prev].next = next,
            None => self.free_head = next,
        }
        if let Some(next) = next.get() {
            self[next].prev = prev;
        }
        self.free_slots -= 1;
    }

    /// The children of `node`, the youngest first.
    pub(super) fn children(&self, node: NodeId) -> impl Iterator<Item = NodeId> + '_ {
        std::iter::successors(self[node].first_child.get(), |child| self[*child].next.get())
    }

    /// The free slots, the one to take next first.
    pub(super) fn free_list(&self) -> impl Iterator<Item = NodeId> + '_ {
        std::iter::successors(self.free_head.get(), |slot| self[*slot].next.get())
    }
}

impl Index<NodeId> for Arena {
    type Output = Entry;

    fn index(&self, node: NodeId) -> &Entry {
        &self.entries[node.index()]
    }
}

impl IndexMut<NodeId> for Arena {
    fn index_mut(&mut self, node: NodeId) -> &mut Entry {
        &mut self.entries[node.index()]
    }
}
