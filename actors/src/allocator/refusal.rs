//! What a pool, or the pools of a group, answer when they do not do what they were asked: always with the
//! numbers, never with a change.

use thiserror::Error;

use crate::protocol::{CP_SIZE_MAX, Rank};

/// A reservation that was refused; nothing was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{wanted_pages} pages wanted, {free_pages} free, longest free run {longest_run_pages}")]
pub struct Short {
    /// Pages asked for.
    pub wanted_pages: u32,
    /// Pages free.
    pub free_pages: u32,
    /// Longest free run: what [`super::Contiguity::Require`] goes by.
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

/// What each rank is short of, in pages; 0 where enough is free. One entry per rank of the group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortfall {
    /// Pages missing per rank. With [`super::Contiguity::Require`] pages missing in the longest run.
    pub per_rank: Vec<u32>,
}

/// A reservation that was refused; nothing was taken from any rank.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ReserveError {
    /// An owner that is not a rank of the group.
    #[error("owner {owner} of page {position} in a group of {cp_size}")]
    UnknownOwner {
        /// Where in the owner sequence.
        position: usize,
        /// The owner that was given.
        owner: u8,
        /// Ranks of the group.
        cp_size: u8,
    },
    /// Some rank has too little free.
    #[error("short of {:?} pages per rank", .0.per_rank)]
    Short(Shortfall),
}

/// Pages that cannot be freed or taken; nothing was changed in any rank.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PagesError {
    /// A rank outside the group.
    #[error("rank {rank:?} in a group of {cp_size}")]
    UnknownRank {
        /// The rank that was given.
        rank: Rank,
        /// Ranks of the group.
        cp_size: u8,
    },
    /// Owners and slots are not one to one.
    #[error("{owners} owners for {slots} slots")]
    Unpaired {
        /// Owners that were given.
        owners: usize,
        /// Slots that were given.
        slots: usize,
    },
    /// A slot is wrong in the pool of its rank.
    #[error("in the pool of {rank:?}: {error}")]
    Slot {
        /// Whose pool.
        rank: Rank,
        /// What is wrong there.
        error: SlotError,
    },
}

/// Pools that cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PoolsError {
    /// A group of no ranks, or of too many.
    #[error("{ranks} ranks are not 1..={CP_SIZE_MAX}")]
    Ranks {
        /// Pools asked for.
        ranks: usize,
    },
    /// The pool of one rank cannot be made.
    #[error("the pool of {rank:?}: {error}")]
    Pool {
        /// Whose pool.
        rank: Rank,
        /// What is wrong with it.
        error: PoolSizeError,
    },
    /// Logical page ids of a lane would not fit 32 bits.
    #[error("{slots} slots in each of {ranks} lanes: page ids have 32 bits")]
    PageIds {
        /// Slots of the largest lane.
        slots: u32,
        /// Lanes.
        ranks: usize,
    },
}
