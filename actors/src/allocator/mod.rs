//! Which pages are free: L1 lanes and L2 pools of every rank as bitmaps with run summaries.
//!
//! Bottom up: [`PagePool`] is one pool of one rank; [`Lanes`] (L1, page ids) and [`HostPools`] (L2, slots)
//! are one pool per rank of a group and take each page from its owner's pool; [`owners`] computes which
//! rank owns which new page; [`Allocator`] is the machine that reserves, makes room and takes back.
//!
//! Invariants: a page is free or taken, never both; a refusal takes nothing; a bad free changes nothing.
//! Not here: keys, nodes and recency (prefix_index); who has to leave when space is short (evictor).

mod bitmap;
mod figures;
mod ledger;
mod machine;
#[cfg(test)]
mod model;
pub mod owners;
mod pool;
mod pools;
mod refusal;
mod reservation;
mod restore;
mod returns;
mod room;
mod run;
mod spans;
mod summary;
#[cfg(test)]
mod tests;
mod word;

pub use figures::{Marks, MarksError, PoolFigures, RUN_BUCKETS};
pub use ledger::{FreeRoom, LedgerError};
pub use machine::{Allocator, AllocatorConfig};
pub use pool::PagePool;
pub use pools::{HostPools, Lanes, RankPools};
pub use refusal::{PagesError, PoolSizeError, PoolsError, ReserveError, SLOTS_MAX, Short, Shortfall, SlotError};
pub use run::{Contiguity, Run, append_steps};
