//! Page layout, page validation and the copy engines.
//!
//! A page lives in two shapes: layer-first in the device pool of its owner (L1), record by record in host
//! memory (L2). [`layout`] says where its bytes stand in both, [`runs`] merges the pages of an op into
//! extents, [`copy_cpu`] moves them, [`gather`] makes one dense view of pages that stand on many ranks, and [`pages`]
//! refuses token indices that are not whole pages.
//!
//! Not here: which pages to copy and when (machines), who may touch them meanwhile (the rank).

pub mod copy_cpu;
pub mod gather;
pub mod layout;
pub mod pages;
pub mod runs;
pub mod shared_bytes;
