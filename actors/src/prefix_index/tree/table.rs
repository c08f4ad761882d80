//! From a key to its entry: open addressing over slots of four bytes.
//!
//! A slot holds an entry's index and, in the bits the index leaves over, a tag of the key, so that a search reads
//! almost no entry of another key. Removal moves the rest of the cluster back: no tombstones, so the cost of a
//! search depends on what is stored and never on what was.
//!
//! Invariants: at most `LOAD_MAX` of the slots are taken; every key stands between its home and the next gap.
//! Not here: whether the entry is the right one for a path (`matching`).

use super::arena::{Arena, LIVE, NodeId};
use crate::protocol::Key;

#[derive(Clone)]
pub(super) struct KeyTable {
    /// `tag << index_bits | index + 1`, 0 = gap.
    slots: Vec<u32>,
    index_bits: u32,
    taken: usize,
}

/// Where a search ended.
pub(super) enum Probe {
    Found(NodeId),
    /// The gap where the key would go.
    Gap(usize),
}

impl KeyTable {
    pub(super) fn new(expected: usize) -> Self {
        Self::with(expected.max(16), 1)
    }

    fn with(keys: usize, entries: usize) -> Self {
        let index_bits = (keys.max(entries) + 1).next_power_of_two().trailing_zeros();
        assert!(index_bits < 32, "fewer than 2^31 pages");
        Self { slots: vec![0; keys * SLOTS_PER_5_KEYS / 5], index_bits, taken: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.taken
    }

    pub(super) fn bytes(&self) -> usize {
        self.slots.capacity() * size_of::<u32>()
    }

    pub(super) fn find(&self, key: &Key, arena: &Arena) -> Option<NodeId> {
        match self.probe(key, arena) {
            Probe::Found(node) => Some(node),
            Probe::Gap(_) => None,
        }
    }

    pub(super) fn probe(&self, key: &Key, arena: &Arena) -> Probe {
        let (mut at, tag) = self.home(key);
        loop {
            let slot = self.slots[at];
            if slot == 0 {
                return Probe::Gap(at);
            }
            if slot & !self.index_mask() == tag {
                let node = self.node(slot);
                if arena[node].key == *key {
                    return Probe::Found(node);
                }
            }
            at = self.after(at);
        }
    }

    /// Makes room for one more key, so that the gap a probe finds afterwards may be filled.
    pub(super) fn reserve_one(&mut self, arena: &Arena) {
        let full = (self.taken + 1) * LOAD_MAX.1 > self.slots.len() * LOAD_MAX.0;
        let wide = arena.slots() + 2 > 1 << self.index_bits;
        if !full && !wide {
            return;
        }
        let mut grown = Self::with((self.taken + 1) * 2, arena.slots() + 2);
        for slot in 0..arena.slots() {
            let node = NodeId(slot as u32);
            if arena[node].flag(LIVE) {
                let (mut at, tag) = grown.home(&arena[node].key);
                while grown.slots[at] != 0 {
                    at = grown.after(at);
                }
                grown.slots[at] = tag | (node.0 + 1);
                grown.taken += 1;
            }
        }
        *self = grown;
    }

    /// Fills the `gap` a probe for `key` found.
    pub(super) fn fill(&mut self, gap: usize, key: &Key, node: NodeId) {
        debug_assert_eq!(self.slots[gap], 0);
        self.slots[gap] = self.home(key).1 | (node.0 + 1);
        self.taken += 1;
    }

    /// Removes `node`, whose entry still holds its key.
    pub(super) fn remove(&mut self, node: NodeId, arena: &Arena) {
        let (mut hole, tag) = self.home(&arena[node].key);
        while self.slots[hole] != tag | (node.0 + 1) {
            assert!(self.slots[hole] != 0, "{node:?} is not in the table");
            hole = self.after(hole);
        }
        let mut at = hole;
        loop {
            at = self.after(at);
            let slot = self.slots[at];
            if slot == 0 {
                break;
            }
            let home = self.home(&arena[self.node(slot)].key).0;
            // It may move back unless its home lies behind the hole, on the way to where it stands.
            let stays = if hole <= at { hole < home && home <= at } else { hole < home || home <= at };
            if !stays {
                self.slots[hole] = slot;
                hole = at;
            }
        }
        self.slots[hole] = 0;
        self.taken -= 1;
    }

    /// Keys are hash prefixes already; the multiplications only keep an engine that counts its keys up from
    /// putting all of them into one cluster.
    fn home(&self, key: &Key) -> (usize, u32) {
        let [low, high] = halves(key);
        let mixed = low.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ high.wrapping_mul(0xd6e8_feb8_6659_fd93);
        let home = ((mixed as u128 * self.slots.len() as u128) >> 64) as usize;
        (home, ((low ^ high) as u32) << self.index_bits)
    }

    const fn index_mask(&self) -> u32 {
        (1 << self.index_bits) - 1
    }

    fn node(&self, slot: u32) -> NodeId {
        NodeId((slot & self.index_mask()) - 1)
    }

    fn after(&self, at: usize) -> usize {
        if at + 1 == self.slots.len() { 0 } else { at + 1 }
    }
}

fn halves(key: &Key) -> [u64; 2] {
    let bits = u128::from_le_bytes(key.0);
    [bits as u64, (bits >> 64) as u64]
}

/// 6.4 bytes per expected key: a search meets 3 other tags on average, all in one cache line.
const SLOTS_PER_5_KEYS: usize = 8;

/// Most of the slots that may be taken, as a fraction.
const LOAD_MAX: (usize, usize) = (4, 5);
