//! Materialisation on the CPU: the pages of a request, which stand each on its owner rank, as one dense view in the
//! order of their positions. The specification for what an engine's own stream does on a device.
//!
//! One call gathers one layer of one component. Shapes: each shard `[physical page][page_bytes]`, one for every rank of
//! the group, mapped for reading; the view `[position][page_bytes]`. Logical page `l` stands on rank `l mod ranks` as
//! its physical page `l / ranks`. What is inside a page goes over as it is: keys and scales of an index page stay the
//! blocks that kernels read.
//!
//! Invariants: every index and size is checked before the first byte moves; a call fills the whole view or nothing.
//! Not here: who may write the pages meanwhile (leases), how a peer's pool is mapped (`register`).

pub mod c_abi;
#[cfg(test)]
mod tests;

use crate::layout::PIECE_ALIGN_BYTES;
use crate::shared_bytes::SharedBytes;

/// A page by its id in the group: `owner = l mod ranks`, `physical = l / ranks`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogicalPage(pub u32);

/// Gathers `pages` of one layer into `view` and returns the bytes moved, which are those of the view. `shards` has the
/// layer's region of every rank, by rank; `page_bytes` are the bytes of a page in it. No pages move 0.
///
/// # Errors
/// [`GatherError`], before the first byte; then nothing was written.
pub fn gather(
    shards: &[SharedBytes],
    page_bytes: u64,
    pages: &[LogicalPage],
    view: SharedBytes,
) -> Result<u64, GatherError> {
    check_shapes(shards, page_bytes, pages, view)?;
    let ranks = shards.len() as u32;
    let mut first = 0;
    while first < pages.len() {
        // Neighbours of one lane stand side by side on their rank, and one copy takes them all.
        let next = |at: usize| pages[at - 1].0.checked_add(ranks);
        let end = (first + 1..pages.len()).find(|at| next(*at) != Some(pages[*at].0)).unwrap_or(pages.len());
        let LogicalPage(page) = pages[first];
        let (shard, physical) = (shards[(page % ranks) as usize], page / ranks);
        let bytes = (end - first) as u64 * page_bytes;
        view.copy_from(first as u64 * page_bytes, shard, u64::from(physical) * page_bytes, bytes);
        first = end;
    }
    Ok(view.len_bytes())
}

fn check_shapes(
    shards: &[SharedBytes],
    page_bytes: u64,
    pages: &[LogicalPage],
    view: SharedBytes,
) -> Result<(), GatherError> {
    if !(1..=RANKS_MAX).contains(&shards.len()) {
        return Err(GatherError::Ranks { ranks: shards.len() });
    }
    if page_bytes == 0 || !page_bytes.is_multiple_of(PIECE_ALIGN_BYTES) {
        return Err(GatherError::PageBytes { page_bytes });
    }
    for (rank, shard) in shards.iter().enumerate() {
        if !shard.len_bytes().is_multiple_of(page_bytes) {
            return Err(GatherError::ShardBytes { rank, bytes: shard.len_bytes(), page_bytes });
        }
        if shard.overlaps(view) {
            return Err(GatherError::Overlap { rank });
        }
    }
    for shard in shards.iter().chain([&view]) {
        if shard.len_bytes() > 0 && !shard.is_aligned(PIECE_ALIGN_BYTES) {
            return Err(GatherError::Misaligned);
        }
    }
    let wanted_bytes = (pages.len() as u64).checked_mul(page_bytes);
    if wanted_bytes != Some(view.len_bytes()) {
        return Err(GatherError::ViewBytes { bytes: view.len_bytes(), pages: pages.len(), page_bytes });
    }
    pages.iter().enumerate().try_for_each(|(position, page)| {
        let ranks = shards.len() as u32;
        let (rank, physical) = ((page.0 % ranks) as usize, page.0 / ranks);
        let held = shards[rank].len_bytes() / page_bytes;
        // Physical page 0 is padding and never anybody's.
        if (1..held).contains(&u64::from(physical)) {
            return Ok(());
        }
        Err(GatherError::Page { position, page: *page, rank, physical, held })
    })
}

/// Why a gather was refused. Nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GatherError {
    /// A group of so many ranks does not exist.
    #[error("{ranks} shards: a group has 1 to {RANKS_MAX} ranks")]
    Ranks {
        /// Shards named.
        ranks: usize,
    },
    /// Pages of such a size do not exist.
    #[error("pages of {page_bytes} bytes: take a multiple of {PIECE_ALIGN_BYTES} above 0")]
    PageBytes {
        /// Bytes of a page.
        page_bytes: u64,
    },
    /// A shard ends inside a page.
    #[error("the shard of rank {rank} has {bytes} bytes, which are no whole pages of {page_bytes}")]
    ShardBytes {
        /// Its rank.
        rank: usize,
        /// Bytes of it.
        bytes: u64,
        /// Bytes of a page.
        page_bytes: u64,
    },
    /// The view shares memory with a shard.
    #[error("the view shares memory with the shard of rank {rank}")]
    Overlap {
        /// The shard's rank.
        rank: usize,
    },
    /// Memory that starts at no multiple of 16.
    #[error("a shard or the view starts at no multiple of {PIECE_ALIGN_BYTES} bytes")]
    Misaligned,
    /// The view is not that of so many pages.
    #[error("the view has {bytes} bytes for {pages} pages of {page_bytes}")]
    ViewBytes {
        /// Bytes of it.
        bytes: u64,
        /// Pages named.
        pages: usize,
        /// Bytes of a page.
        page_bytes: u64,
    },
    /// A page that its owner does not have, or its padding page.
    #[error("position {position}: page {} is physical page {physical} of rank {rank}, use 1..{held}", page.0)]
    Page {
        /// Its place in the list.
        position: usize,
        /// The page.
        page: LogicalPage,
        /// Its owner.
        rank: usize,
        /// Its slot there.
        physical: u32,
        /// Slots there are.
        held: u64,
    },
}

/// Ranks of the largest group.
const RANKS_MAX: usize = 64;
