//! Which pages are free: L1 lanes and L2 pools of every rank as bitmaps with run summaries.
//!
//! Bottom up: [`PagePool`] is one pool of one rank; [`Lanes`] (L1, page ids) and [`HostPools`] (L2, slots)
//! are one pool per rank of a group and take each page from its owner's pool; [`owners`] computes which
//! rank owns which new page.
//!
//! Invariants: a page is free or taken, never both; a refusal takes nothing; a bad free changes nothing.
//! Not here: keys, nodes and recency (prefix_index); who has to leave when space is short (evictor).

mod bitmap;
mod figures;
#[cfg(test)]
mod model;
pub mod owners;
mod pool;
mod pools;
mod refusal;
mod run;
mod summary;
mod word;

pub use figures::{Marks, MarksError, PoolFigures, RUN_BUCKETS};
pub use pool::PagePool;
pub use pools::{HostPools, Lanes, RankPools};
pub use refusal::{PagesError, PoolSizeError, PoolsError, ReserveError, SLOTS_MAX, Short, Shortfall, SlotError};
pub use run::{Contiguity, Run};
