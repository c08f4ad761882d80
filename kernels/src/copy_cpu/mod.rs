//! The CPU copy engine: the specification that every other copy engine is compared with.
//!
//! One call copies one layer of one track, for the pages of one op, between the device pool (layer-first) and the
//! host pool (tiles of records). Shapes: L1 `[component][layer][page][page_bytes]` at the offsets of [`L1Layout`],
//! host `[tile][component][layer][page in tile][page_bytes]`; all offsets and sizes are multiples of 16.
//!
//! Invariants: every index and every size is checked before the first byte moves; a call either moves everything
//! asked for or nothing. Bytes of no named page are never touched.
//! Not here: who may copy when, and in which order layers come (the rank).

mod fingerprint;
#[cfg(test)]
mod tests;

use crate::layout::{
    Component, HostPage, L1Layout, L1Page, L1Region, Layout, NoSuchLayer, PIECE_ALIGN_BYTES, Piece, Track,
};
use crate::runs::Runs;
use crate::shared_bytes::SharedBytes;

/// Which way pages go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the device pool to the host pool: a backup.
    Down,
    /// From the host pool to the device pool: a load.
    Up,
}

/// The two pools of one rank and where pages stand in them.
#[derive(Clone, Copy, Debug)]
pub struct Pools<'a> {
    /// The shape of a page, and of a tile of host pages.
    pub layout: &'a Layout,
    /// The regions of the device pool; made from the same layout.
    pub l1_layout: &'a L1Layout,
    /// The device pool: at least `l1_layout.segment_bytes()`.
    pub l1: SharedBytes,
    /// The host pool: at least `layout.host_pool_bytes(host_pages)`.
    pub host: SharedBytes,
    /// Pages of the host pool.
    pub host_pages: u32,
}

impl Pools<'_> {
    /// Copies one layer of `track` for all pages of `runs` and returns the bytes moved: every component of the
    /// track that has bytes in this layer. No runs, or a layer without bytes, move 0.
    ///
    /// # Errors
    /// [`CopyError`], before the first byte; then nothing was written.
    pub fn copy_layer(self, direction: Direction, track: Track, layer: u32, runs: &Runs) -> Result<u64, CopyError> {
        self.check_memory()?;
        self.check_pages(Pool::L1, runs.l1_end())?;
        self.check_pages(Pool::Host, runs.host_end())?;
        let mut checked: [Option<(Piece, L1Region)>; 2] = [None; 2];
        for (slot, piece) in checked.iter_mut().zip(self.layout.pieces(track, layer)?) {
            *slot = Some((piece, self.region_of(piece)?));
        }
        let mut bytes = 0;
        for (piece, region) in checked.into_iter().flatten() {
            bytes += self.copy_piece(direction, piece, region, runs);
        }
        Ok(bytes)
    }

    /// Copies one checked piece: one copy per run and host tile.
    fn copy_piece(self, direction: Direction, piece: Piece, region: L1Region, runs: &Runs) -> u64 {
        if piece.page_bytes == 0 {
            return 0;
        }
        let mut bytes = 0;
        for run in runs.as_slice() {
            for part in run.parts_in_tiles(self.layout.tile_pages()) {
                let l1_offset = region.offset_of(part.l1_page);
                let host_offset = self.layout.host_offset_of(part.host_page, piece);
                let part_bytes = u64::from(part.pages) * piece.page_bytes;
                match direction {
                    Direction::Down => self.host.copy_from(host_offset, self.l1, l1_offset, part_bytes),
                    Direction::Up => self.l1.copy_from(l1_offset, self.host, host_offset, part_bytes),
                }
                bytes += part_bytes;
            }
        }
        bytes
    }

    /// Whether both memories are as large as the layouts say, aligned, and two.
    fn check_memory(self) -> Result<(), CopyError> {
        let l1_bytes = self.l1_layout.segment_bytes();
        let host_bytes = self.layout.host_pool_bytes(self.host_pages);
        for (pool, memory, needed_bytes) in [(Pool::L1, self.l1, l1_bytes), (Pool::Host, self.host, host_bytes)] {
            if memory.len_bytes() < needed_bytes {
                return Err(CopyError::PoolTooSmall { pool, bytes: memory.len_bytes(), needed_bytes });
            }
            if needed_bytes > 0 && !memory.is_aligned(PIECE_ALIGN_BYTES) {
                return Err(CopyError::PoolMisaligned { pool });
            }
        }
        if self.l1.overlaps(self.host) { Err(CopyError::PoolsOverlap) } else { Ok(()) }
    }

    /// Whether a pool has all pages below `end`.
    fn check_pages(self, pool: Pool, end: u64) -> Result<(), CopyError> {
        let pages = match pool {
            Pool::L1 => self.l1_layout.pages(),
            Pool::Host => self.host_pages,
        };
        if end <= u64::from(pages) { Ok(()) } else { Err(CopyError::PageOutOfPool { pool, page: end - 1, pages }) }
    }

    /// The device region of a piece, when the device pool was described for the same page sizes.
    fn region_of(self, piece: Piece) -> Result<L1Region, CopyError> {
        let region = self.l1_layout.region(piece.component, piece.layer)?;
        if region.stride_bytes == piece.page_bytes {
            return Ok(region);
        }
        Err(CopyError::PageBytesDiffer {
            component: piece.component,
            layer: piece.layer,
            l1_bytes: region.stride_bytes,
            host_bytes: piece.page_bytes,
        })
    }

    /// Diagnostic hash of the record of one host page; equal to [`Self::fingerprint_l1_page`] of a page with the
    /// same bytes in every layer. Wherever the page stands and whatever the tile, the hash is the same. It costs a
    /// read of the whole record: not for measured runs.
    ///
    /// # Errors
    /// [`CopyError`], as for [`Self::copy_layer`].
    pub fn fingerprint_host_record(self, host_page: HostPage) -> Result<u64, CopyError> {
        self.check_memory()?;
        self.check_pages(Pool::Host, u64::from(host_page.0) + 1)?;
        let spans = self.layout.record().map(|piece| (self.layout.host_offset_of(host_page, piece), piece.page_bytes));
        Ok(fingerprint::of_spans(self.host, spans))
    }

    /// Diagnostic hash of one device page, over its layers in record order; see
    /// [`Self::fingerprint_host_record`].
    ///
    /// # Errors
    /// [`CopyError`], as for [`Self::copy_layer`].
    pub fn fingerprint_l1_page(self, l1_page: L1Page) -> Result<u64, CopyError> {
        self.check_memory()?;
        self.check_pages(Pool::L1, u64::from(l1_page.0) + 1)?;
        let mut spans = Vec::new();
        for piece in self.layout.record() {
            spans.push((self.region_of(piece)?.offset_of(l1_page), piece.page_bytes));
        }
        Ok(fingerprint::of_spans(self.l1, spans.into_iter()))
    }
}

/// One of the two pools, in an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pool {
    /// The device pool.
    L1,
    /// The host pool.
    Host,
}

impl std::fmt::Display for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::L1 => "L1",
            Self::Host => "host",
        })
    }
}

/// Why a copy was refused. Nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CopyError {
    /// The layout, or the table of device regions, has no such layer.
    #[error(transparent)]
    NoSuchLayer(#[from] NoSuchLayer),
    /// A run names a page that the pool does not have.
    #[error("page {page} is not in the {pool} pool of {pages} pages")]
    PageOutOfPool {
        /// The pool.
        pool: Pool,
        /// The highest page named.
        page: u64,
        /// Pages of the pool.
        pages: u32,
    },
    /// The memory is smaller than its pages.
    #[error("the {pool} pool has {bytes} bytes, its pages need {needed_bytes}")]
    PoolTooSmall {
        /// The pool.
        pool: Pool,
        /// Bytes of the memory.
        bytes: u64,
        /// Bytes that its pages need.
        needed_bytes: u64,
    },
    /// The memory starts at no multiple of 16.
    #[error("the {pool} pool starts at no multiple of {PIECE_ALIGN_BYTES} bytes")]
    PoolMisaligned {
        /// The pool.
        pool: Pool,
    },
    /// The two pools share memory.
    #[error("the L1 pool and the host pool share memory")]
    PoolsOverlap,
    /// The device pool was described for pages of another size.
    #[error("{component} layer {layer} has {l1_bytes} bytes per page in L1 and {host_bytes} on the host")]
    PageBytesDiffer {
        /// The component.
        component: Component,
        /// The layer.
        layer: u32,
        /// Bytes of a page in the device pool.
        l1_bytes: u64,
        /// Bytes of a page in the layout.
        host_bytes: u64,
    },
}
