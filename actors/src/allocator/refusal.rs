//! What a pool answers when it does not do what it was asked: always with the numbers, never with a change.

use thiserror::Error;

/// A reservation that was refused; nothing was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{wanted_pages} pages wanted, {free_pages} free, longest free run {longest_run_pages}")]
pub struct Short {
    /// Pages asked for.
    pub wanted_pages: u32,
    /// Pages free.
    pub free_pages: u32,
    /// Longest free run: what [`Contiguity::Require`] goes by.
    pub longest_run_pages: u32,
}

/// A free or a take that names a slot it must not; nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SlotError {
    /// A run without pages.
    #[error("the run at slot {slot} has no pages")]
    Empty {
        /// Where the run starts.
        slot: u32,
    },
    /// A slot that the pool does not have.
    #[error("slot {slot} is outside a pool of {slots} slots")]
    OutOfRange {
        /// First slot that is outside.
        slot: u32,
        /// Slots of the pool.
        slots: u32,
    },
    /// A slot that is never given out.
    #[error("slot {slot} is reserved")]
    Reserved {
        /// The slot.
        slot: u32,
    },
    /// Freed although free already, or twice in one call.
    #[error("slot {slot} is free already")]
    AlreadyFree {
        /// The slot.
        slot: u32,
    },
    /// Taken although taken already, or twice in one call.
    #[error("slot {slot} is taken already")]
    AlreadyTaken {
        /// The slot.
        slot: u32,
    },
}

/// A pool that is larger than [`SLOTS_MAX`], or has more reserved slots than slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "a pool of {slots} slots, {reserved_slots} of them reserved: at most {SLOTS_MAX}, and no more reserved than that"
)]
pub struct PoolSizeError {
    /// Slots asked for.
    pub slots: u32,
    /// Slots never to be given out.
    pub reserved_slots: u32,
}

/// Most slots of one pool: slot arithmetic stays inside 32 bits.
pub const SLOTS_MAX: u32 = 1 << 31;
