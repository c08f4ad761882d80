//! The load slots that every rank has: each is used by one load at a time, and each use has a number of its
//! own, so that a word and a status of an earlier use are never taken for those of a later one.

use std::collections::VecDeque;

use crate::protocol::OpId;

/// Load slots of each rank.
pub const RING_SLOTS: u32 = 64;

/// The slots and who uses them.
#[derive(Debug)]
pub(super) struct Ring {
    slots: Vec<Slot>,
    /// Unused slots, the one released longest ago first.
    free: VecDeque<u32>,
}

#[derive(Clone, Debug)]
struct Slot {
    user: Option<OpId>,
    next_use: u64,
}

impl Ring {
    /// All unused; the first use of each has number `first_use`.
    pub(super) fn new(first_use: u64) -> Self {
        let slots = vec![Slot { user: None, next_use: first_use }; RING_SLOTS as usize];
        Self { slots, free: (0..RING_SLOTS).collect() }
    }

    /// Gives `op` a slot, when one is unused.
    pub(super) fn take(&mut self, op: OpId) -> Option<u32> {
        let slot = self.free.pop_front()?;
        self.slots[slot as usize].user = Some(op);
        Some(slot)
    }

    /// The number of a use that begins.
    pub(super) fn begin_use(&mut self, slot: u32) -> u64 {
        let slot = &mut self.slots[slot as usize];
        slot.next_use += 1;
        slot.next_use - 1
    }

    /// Takes the slot back.
    ///
    /// # Panics
    /// When `op` does not use it.
    pub(super) fn release(&mut self, slot: u32, op: OpId) {
        let user = self.slots[slot as usize].user.take();
        assert_eq!(user, Some(op), "slot {slot} is released by who does not use it");
        self.free.push_back(slot);
    }

    /// Who uses `slot`.
    pub(super) fn user(&self, slot: u32) -> Option<OpId> {
        self.slots[slot as usize].user
    }

    /// Slots in use.
    pub(super) fn used(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn check_invariants(&self) {
        for slot in &self.free {
            assert_eq!(self.user(*slot), None, "slot {slot} is free and used");
        }
        let used = self.slots.iter().filter(|slot| slot.user.is_some()).count();
        assert_eq!(used, self.used(), "a slot is neither free nor used");
    }
}
