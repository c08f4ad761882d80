//! Where pages stand in the device pool of one rank: layer-first per component.
//!
//! For each (component, layer) the pool has one region `[pages][page_bytes]`: page `p` of it stands at
//! `base_offset + p * stride`, and the stride is the bytes of a page, so a run of pages is one piece of memory.
//!
//! Invariants: every region lies inside the segment, at a multiple of [`PIECE_ALIGN_BYTES`]; no two overlap.

use super::{Component, Layout, NoSuchLayer, PIECE_ALIGN_BYTES};

/// A page's slot in the device pool of one rank (its physical page).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct L1Page(pub u32);

/// The region of one layer of one component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct L1Region {
    /// Bytes from the start of the segment to page 0.
    pub base_offset_bytes: u64,
    /// Bytes from one page to the next, which are the bytes of a page; 0 where the layer has none.
    pub stride_bytes: u64,
}

/// One region as an engine registers it, unchecked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegisteredRegion {
    /// The component.
    pub component: Component,
    /// The layer.
    pub layer: u32,
    /// Where the region stands and how far apart its pages are.
    pub region: L1Region,
}

/// The device pool of one rank: `pages` physical pages in one segment of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct L1Layout {
    pages: u32,
    segment_bytes: u64,
    /// One list of regions per component, at the component's place in [`Component::ALL`].
    regions: [Vec<L1Region>; 4],
}

impl L1Layout {
    /// The pool that an engine without a layout of its own uses: all regions side by side in record order, so
    /// the segment has `pages * record_bytes` bytes.
    pub fn packed(layout: &Layout, pages: u32) -> Self {
        let mut regions: [Vec<L1Region>; 4] = Default::default();
        for piece in layout.record() {
            let base_offset_bytes = u64::from(pages) * piece.offset_of_layer_bytes;
            regions[piece.component as usize].push(L1Region { base_offset_bytes, stride_bytes: piece.page_bytes });
        }
        Self { pages, segment_bytes: u64::from(pages) * layout.record_bytes(), regions }
    }

    /// The pool at the offsets an engine registered, in any order. A layer of zero bytes need not be named.
    ///
    /// # Errors
    /// The first fault found: a region that is unknown, named twice, missing, misaligned, of another stride than
    /// the layout's page bytes, outside the segment, or over another one.
    pub fn registered(
        layout: &Layout,
        pages: u32,
        segment_bytes: u64,
        registered: &[RegisteredRegion],
    ) -> Result<Self, L1LayoutError> {
        let mut found: [Vec<Option<L1Region>>; 4] =
            Component::ALL.map(|component| vec![None; layout.layers(component) as usize]);
        for &RegisteredRegion { component, layer, region } in registered {
            let page_bytes = layout.piece(component, layer)?.page_bytes;
            check_region(component, layer, region, page_bytes, pages, segment_bytes)?;
            if found[component as usize][layer as usize].replace(region).is_some() {
                return Err(L1LayoutError::Twice { component, layer });
            }
        }
        let mut regions: [Vec<L1Region>; 4] = Default::default();
        for piece in layout.record() {
            let region = match found[piece.component as usize][piece.layer as usize] {
                Some(region) => region,
                None if piece.page_bytes == 0 => L1Region { base_offset_bytes: 0, stride_bytes: 0 },
                None => return Err(L1LayoutError::Missing { component: piece.component, layer: piece.layer }),
            };
            regions[piece.component as usize].push(region);
        }
        check_overlap(pages, registered)?;
        Ok(Self { pages, segment_bytes, regions })
    }

    /// Physical pages of the pool, padding included.
    pub fn pages(&self) -> u32 {
        self.pages
    }

    /// Bytes of the segment that holds every region.
    pub fn segment_bytes(&self) -> u64 {
        self.segment_bytes
    }

    /// The region of one layer of one component.
    ///
    /// # Errors
    /// [`NoSuchLayer`].
    pub fn region(&self, component: Component, layer: u32) -> Result<L1Region, NoSuchLayer> {
        let regions = &self.regions[component as usize];
        let layers = regions.len() as u32;
        regions.get(layer as usize).copied().ok_or(NoSuchLayer { component, layer, layers })
    }

    /// Byte offset in the segment of one layer of one component of `page`.
    ///
    /// # Errors
    /// [`L1LayoutError::NoSuchLayer`], or [`L1LayoutError::NoSuchPage`] for a page the pool does not have.
    pub fn l1_offset(&self, page: L1Page, component: Component, layer: u32) -> Result<u64, L1LayoutError> {
        let region = self.region(component, layer)?;
        if page.0 >= self.pages {
            return Err(L1LayoutError::NoSuchPage { page, pages: self.pages });
        }
        Ok(region.offset_of(page))
    }
}

impl L1Region {
    /// Byte offset of a page that the pool has.
    pub(crate) fn offset_of(self, page: L1Page) -> u64 {
        self.base_offset_bytes + u64::from(page.0) * self.stride_bytes
    }
}

/// Why a table of regions was refused, or an offset in it not found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum L1LayoutError {
    /// The layout has no such (component, layer).
    #[error(transparent)]
    NoSuchLayer(#[from] NoSuchLayer),
    /// The pool has no such page.
    #[error("the pool has {pages} pages, none is page {}", page.0)]
    NoSuchPage {
        /// The page asked for.
        page: L1Page,
        /// Pages of the pool.
        pages: u32,
    },
    /// A region is named twice.
    #[error("{component} layer {layer} is registered twice")]
    Twice {
        /// The component.
        component: Component,
        /// The layer.
        layer: u32,
    },
    /// A layer that has bytes has no region.
    #[error("{component} layer {layer} is not registered")]
    Missing {
        /// The component.
        component: Component,
        /// The layer.
        layer: u32,
    },
    /// A region starts at no multiple of 16.
    #[error("{component} layer {layer} starts at byte {base_offset_bytes}, no multiple of {PIECE_ALIGN_BYTES}")]
    Misaligned {
        /// The component.
        component: Component,
        /// The layer.
        layer: u32,
        /// Where it starts.
        base_offset_bytes: u64,
    },
    /// Pages of a region do not stand side by side, or have another size than the layout says.
    #[error("{component} layer {layer} is registered with stride {stride_bytes}, its pages have {page_bytes} bytes")]
    Stride {
        /// The component.
        component: Component,
        /// The layer.
        layer: u32,
        /// The stride registered.
        stride_bytes: u64,
        /// Bytes of a page in the layout.
        page_bytes: u64,
    },
    /// A region ends behind the segment.
    #[error("{component} layer {layer} ends at byte {end_bytes}, the segment has {segment_bytes}")]
    OutOfSegment {
        /// The component.
        component: Component,
        /// The layer.
        layer: u32,
        /// Where the region would end.
        end_bytes: u128,
        /// Bytes of the segment.
        segment_bytes: u64,
    },
    /// Two regions share bytes.
    #[error("{component} layer {layer} overlaps {other_component} layer {other_layer}")]
    Overlap {
        /// The component of the region that starts first.
        component: Component,
        /// Its layer.
        layer: u32,
        /// The component of the region that starts inside it.
        other_component: Component,
        /// Its layer.
        other_layer: u32,
    },
}

fn check_region(
    component: Component,
    layer: u32,
    region: L1Region,
    page_bytes: u64,
    pages: u32,
    segment_bytes: u64,
) -> Result<(), L1LayoutError> {
    let L1Region { base_offset_bytes, stride_bytes } = region;
    if stride_bytes != page_bytes {
        return Err(L1LayoutError::Stride { component, layer, stride_bytes, page_bytes });
    }
    if !base_offset_bytes.is_multiple_of(PIECE_ALIGN_BYTES) {
        return Err(L1LayoutError::Misaligned { component, layer, base_offset_bytes });
    }
    let end_bytes = u128::from(base_offset_bytes) + u128::from(pages) * u128::from(stride_bytes);
    if end_bytes > u128::from(segment_bytes) {
        return Err(L1LayoutError::OutOfSegment { component, layer, end_bytes, segment_bytes });
    }
    Ok(())
}

/// Compares each region with the next one by address. Regions of zero bytes overlap nothing.
fn check_overlap(pages: u32, registered: &[RegisteredRegion]) -> Result<(), L1LayoutError> {
    let bytes = |region: &RegisteredRegion| u64::from(pages) * region.region.stride_bytes;
    let mut by_offset: Vec<_> = registered.iter().filter(|region| bytes(region) > 0).collect();
    by_offset.sort_by_key(|region| region.region.base_offset_bytes);
    for pair in by_offset.windows(2) {
        let (first, second) = (pair[0], pair[1]);
        // The end fits: `check_region` compared it with the segment.
        if first.region.base_offset_bytes + bytes(first) > second.region.base_offset_bytes {
            return Err(L1LayoutError::Overlap {
                component: first.component,
                layer: first.layer,
                other_component: second.component,
                other_layer: second.layer,
            });
        }
    }
    Ok(())
}
