//! Where the bytes of a page stand: in a host record, in a tile of host pages, in the device pool.
//!
//! A record is every layer of every component in the order of [`Component::ALL`]. The host pool is a row of
//! tiles; a tile of `T` consecutive host pages is laid out `[component][layer][page in tile]`, so page `i` of a
//! layer stands at `T * offset_of_layer + i * page_bytes` in it. `T = 1` is one plain record after another.
//!
//! Invariants: every size is a multiple of [`PIECE_ALIGN_BYTES`]; every byte offset of every `u32` host page
//! fits in a `u64`; an index component has as many layers as the KV of its track.
//! Not here: how many pages a pool has (the pool), the bytes themselves ([`crate::copy_cpu`]).

mod check;
mod component;
mod l1;
#[cfg(test)]
mod tests;

pub(crate) use check::is_page_tokens;
pub use check::{LayoutError, LayoutRefused};
pub use component::{Component, Track};
pub use l1::{L1Layout, L1LayoutError, L1Page, L1Region, RegisteredRegion};

/// A page's place in the host pool of one rank, counted in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostPage(pub u32);

/// The bytes of one layer of one component of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The component.
    pub component: Component,
    /// Layer within the component, from 0.
    pub layer: u32,
    /// Bytes before this piece in a plain record (a tile of one page).
    pub offset_of_layer_bytes: u64,
    /// Bytes of one page of this piece: a multiple of [`PIECE_ALIGN_BYTES`], 0 where the layer has none.
    pub page_bytes: u64,
}

/// The shape of a page, fixed for a group. Built once by [`Layout::new`]; cannot be wrong afterwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    page_tokens: u32,
    tile_pages: u32,
    record_bytes: u64,
    /// One list of pieces per component, at the component's place in [`Component::ALL`]; empty when absent.
    pieces: [Vec<Piece>; 4],
}

impl Layout {
    /// Builds the layout of pages of `page_tokens` tokens, host tiles of `tile_pages` pages and the given
    /// components, each with the bytes of one page for every layer. Zero bytes say that a layer has none.
    ///
    /// # Errors
    /// Every fault of the description at once, each saying what to change; see [`LayoutError`].
    pub fn new(
        page_tokens: u32,
        components: Vec<(Component, Vec<u64>)>,
        tile_pages: u32,
    ) -> Result<Self, LayoutRefused> {
        check::check(page_tokens, &components, tile_pages)?;
        let mut record_bytes = 0;
        let mut pieces: [Vec<Piece>; 4] = Default::default();
        for (component, page_bytes_per_layer) in components {
            for (layer, page_bytes) in (0..).zip(page_bytes_per_layer) {
                let piece = Piece { component, layer, offset_of_layer_bytes: record_bytes, page_bytes };
                pieces[component as usize].push(piece);
                record_bytes += page_bytes;
            }
        }
        assert!(record_bytes <= RECORD_BYTES_MAX, "the check lets no larger record pass");
        Ok(Self { page_tokens, tile_pages, record_bytes, pieces })
    }

    /// Tokens of a page.
    pub fn page_tokens(&self) -> u32 {
        self.page_tokens
    }

    /// Host pages of a tile: 1, 2, 4, 8 or 16.
    pub fn tile_pages(&self) -> u32 {
        self.tile_pages
    }

    /// Bytes of one page on the host, all layers of all components; 0 when no layer has bytes.
    pub fn record_bytes(&self) -> u64 {
        self.record_bytes
    }

    /// Bytes of one tile.
    pub fn tile_bytes(&self) -> u64 {
        u64::from(self.tile_pages) * self.record_bytes
    }

    /// Bytes of a host pool of `pages` pages, rounded up to whole tiles.
    pub fn host_pool_bytes(&self, pages: u32) -> u64 {
        u64::from(pages.div_ceil(self.tile_pages)) * self.tile_bytes()
    }

    /// Layers of `component`; 0 when the layout has no such component.
    pub fn layers(&self, component: Component) -> u32 {
        self.pieces[component as usize].len() as u32
    }

    /// Layers that a track announces: those of its KV; 0 for `draft` without a draft model.
    pub fn track_layers(&self, track: Track) -> u32 {
        self.layers(track.kv())
    }

    /// The piece of one layer of one component.
    ///
    /// # Errors
    /// [`NoSuchLayer`] when the layout has no such component, or the component no such layer.
    pub fn piece(&self, component: Component, layer: u32) -> Result<Piece, NoSuchLayer> {
        let found = self.pieces[component as usize].get(layer as usize);
        found.copied().ok_or(NoSuchLayer { component, layer, layers: self.layers(component) })
    }

    /// Every piece of a record, in record order, those of zero bytes included.
    pub fn record(&self) -> impl Iterator<Item = Piece> {
        self.pieces.iter().flatten().copied()
    }

    /// The pieces that belong to one layer of a track: its KV, then its index where the layout has one. Pieces
    /// of zero bytes are included, so a set of (component, layer) kept by an acknowledgement becomes full.
    ///
    /// # Errors
    /// [`NoSuchLayer`] when the track has no such layer.
    pub fn pieces(&self, track: Track, layer: u32) -> Result<impl Iterator<Item = Piece> + use<>, NoSuchLayer> {
        let kv = self.piece(track.kv(), layer)?;
        Ok([Some(kv), self.piece(track.index(), layer).ok()].into_iter().flatten())
    }

    /// Bytes before this layer in a plain record.
    ///
    /// # Errors
    /// [`NoSuchLayer`].
    pub fn offset_of_layer(&self, component: Component, layer: u32) -> Result<u64, NoSuchLayer> {
        Ok(self.piece(component, layer)?.offset_of_layer_bytes)
    }

    /// Byte offset in the host pool of one layer of one component of `host_page`. The pages of a layer stand
    /// side by side inside a tile and nowhere else. Whether the pool has that page is for the caller to know.
    ///
    /// # Errors
    /// [`NoSuchLayer`].
    pub fn host_offset(&self, host_page: HostPage, component: Component, layer: u32) -> Result<u64, NoSuchLayer> {
        Ok(self.host_offset_of(host_page, self.piece(component, layer)?))
    }

    /// [`Self::host_offset`] for a piece of this layout.
    pub(crate) fn host_offset_of(&self, host_page: HostPage, piece: Piece) -> u64 {
        let tile = u64::from(host_page.0 / self.tile_pages);
        let page_in_tile = u64::from(host_page.0 % self.tile_pages);
        tile * self.tile_bytes()
            + u64::from(self.tile_pages) * piece.offset_of_layer_bytes
            + page_in_tile * piece.page_bytes
    }
}

/// A layer was named that the layout does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{component} has {layers} layers, none is layer {layer}")]
pub struct NoSuchLayer {
    /// The component asked for.
    pub component: Component,
    /// The layer asked for.
    pub layer: u32,
    /// Layers the component has; 0 when the layout has no such component.
    pub layers: u32,
}

/// Every page size and every offset is a multiple of this many bytes: the width of a device vector load.
pub const PIECE_ALIGN_BYTES: u64 = 16;

/// Fewest tokens of a page; page sizes are powers of two.
pub const PAGE_TOKENS_MIN: u32 = 16;

/// Most tokens of a page.
pub const PAGE_TOKENS_MAX: u32 = 512;

/// The only page size for which index pages exist: their keys and scales are packed for 64 tokens.
pub const INDEX_PAGE_TOKENS: u32 = 64;

/// Most pages of a tile. Larger tiles gain under 2 % of the link and waste more of a pool's last tile.
pub const TILE_PAGES_MAX: u32 = 16;

/// Most layers of one component; several times those of any known model.
pub const LAYERS_MAX: usize = 1024;

/// Largest record: with at most 2^32 host pages, every pool offset stays below 2^63.
pub const RECORD_BYTES_MAX: u64 = 1 << 31;
