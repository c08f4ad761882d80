//! Which buffers of a pool travel, described alike on both sides: one per (component, layer) that has bytes.

use std::ptr::NonNull;
use std::sync::Arc;

use hicached_client::shm::Segment;
use hicached_kernels::layout::{Component, L1Layout, L1Page, Layout, NoSuchLayer};

/// The pages of one layer of one component: page `p` stands at `base + p * page_bytes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// The component.
    pub component: Component,
    /// The layer.
    pub layer: u32,
    /// Byte of the segment where page 0 stands.
    pub base: u64,
    /// Bytes of one page, at least one.
    pub page_bytes: u64,
}

/// The buffers of a pool in record order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffers {
    pages: u32,
    all: Vec<Buffer>,
    /// Place in `all` by component and layer.
    places: [Vec<Option<usize>>; 4],
}

impl Buffers {
    /// The buffers of a pool of this shape.
    ///
    /// # Errors
    /// [`NoSuchLayer`] when the two are not of the same layers.
    pub fn of(layout: &Layout, l1: &L1Layout) -> Result<Self, NoSuchLayer> {
        let mut all = Vec::new();
        for piece in layout.record().filter(|piece| piece.page_bytes > 0) {
            let region = l1.region(piece.component, piece.layer)?;
            let (component, layer, base) = (piece.component, piece.layer, region.base_offset_bytes);
            all.push(Buffer { component, layer, base, page_bytes: piece.page_bytes });
        }
        Ok(Self::listed(l1.pages(), all))
    }

    /// The buffers of a pool of `pages` pages; of two with one name the later is found.
    pub(super) fn listed(pages: u32, all: Vec<Buffer>) -> Self {
        let mut places: [Vec<Option<usize>>; 4] = Default::default();
        for (place, buffer) in all.iter().enumerate() {
            let layers = &mut places[buffer.component as usize];
            let layer = buffer.layer as usize;
            layers.resize(layers.len().max(layer + 1), None);
            layers[layer] = Some(place);
        }
        Self { pages, all, places }
    }

    /// Physical pages of the pool, the padding page included.
    pub fn pages(&self) -> u32 {
        self.pages
    }

    /// Every buffer, in record order.
    pub fn as_slice(&self) -> &[Buffer] {
        &self.all
    }

    /// Place of a buffer by its name.
    pub fn place(&self, component: Component, layer: u32) -> Option<usize> {
        self.places[component as usize].get(layer as usize).copied().flatten()
    }

    /// Whether the component has any.
    pub fn has(&self, component: Component) -> bool {
        self.all.iter().any(|buffer| buffer.component == component)
    }

    /// The pairs of places of buffers that both sides have, by name.
    ///
    /// # Errors
    /// [`MissingBuffer`]: the first one that the other side lacks, or has in another size.
    pub fn pair(&self, other: &Self) -> Result<Vec<(usize, usize)>, MissingBuffer> {
        let pair = |(place, mine): (usize, &Buffer)| {
            let found = other.place(mine.component, mine.layer);
            let bytes = found.map(|place| other.all[place].page_bytes);
            let missing = MissingBuffer { component: mine.component, layer: mine.layer, mine: mine.page_bytes, bytes };
            found.filter(|_| bytes == Some(mine.page_bytes)).map(|found| (place, found)).ok_or(missing)
        };
        self.all.iter().enumerate().map(pair).collect()
    }
}

/// A buffer that the two sides do not have alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{component} layer {layer} has pages of {mine} bytes here, {bytes:?} there")]
pub struct MissingBuffer {
    /// The component.
    pub component: Component,
    /// The layer.
    pub layer: u32,
    /// Bytes of a page here.
    pub mine: u64,
    /// Bytes of a page there; `None` when there is no such buffer.
    pub bytes: Option<u64>,
}

/// A mapped pool and the buffers in it.
#[derive(Debug)]
pub struct Pool {
    segment: Arc<Segment>,
    buffers: Buffers,
}

impl Pool {
    /// The pool in `segment`.
    ///
    /// # Errors
    /// [`PoolFault`] for a buffer that leaves the segment.
    pub fn new(segment: Arc<Segment>, buffers: Buffers) -> Result<Self, PoolFault> {
        for buffer in &buffers.all {
            let end = u128::from(buffer.base) + u128::from(buffers.pages) * u128::from(buffer.page_bytes);
            if end > u128::from(segment.len_bytes()) {
                let (component, layer, segment_bytes) = (buffer.component, buffer.layer, segment.len_bytes());
                return Err(PoolFault { component, layer, end, segment_bytes });
            }
        }
        Ok(Self { segment, buffers })
    }

    /// The buffers.
    pub fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    /// The same pool with the buffers of these components alone: nothing else of it can be sent, or land.
    pub fn only(&self, components: &[Component]) -> Self {
        let named = self.buffers.all.iter().filter(|buffer| components.contains(&buffer.component)).copied();
        let buffers = Buffers::listed(self.buffers.pages, named.collect());
        Self { segment: self.segment.clone(), buffers }
    }

    /// The memory they stand in.
    pub fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// Whether the pool has this page, and it is not the padding page.
    pub(super) fn holds(&self, page: u32) -> bool {
        (1..self.buffers.pages).contains(&page)
    }

    /// The first byte of `pages` pages of a buffer from `page` on, with how many bytes they are.
    ///
    /// # Panics
    /// When the pool does not have them: pages are checked when they are named.
    pub(super) fn span(&self, place: usize, page: L1Page, pages: u32) -> Span {
        let Buffer { base, page_bytes, .. } = self.buffers.all[place];
        assert!(u64::from(page.0) + u64::from(pages) <= u64::from(self.buffers.pages), "pages of the pool");
        let (offset, bytes) = (base + u64::from(page.0) * page_bytes, u64::from(pages) * page_bytes);
        let start = self.segment.pointer(offset, bytes).expect("every buffer lies inside, since `new`");
        Span { start, bytes: bytes as usize }
    }
}

/// A piece of mapped memory that other processes may write: never a slice. Valid while its pool is kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) start: NonNull<u8>,
    pub(super) bytes: usize,
}

impl Span {
    /// Writes `bytes` to its first bytes.
    ///
    /// # Panics
    /// When it has fewer.
    pub(super) fn write(self, bytes: &[u8]) {
        assert!(bytes.len() <= self.bytes, "{} bytes into {}", bytes.len(), self.bytes);
        // SAFETY: so many bytes are mapped and writable (asserted, contract of the type); memory of this thread overlaps
        // no pool.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.as_ptr(), bytes.len()) };
    }

    /// Reads its first bytes into `bytes`.
    ///
    /// # Panics
    /// When it has fewer.
    pub(super) fn read(self, bytes: &mut [u8]) {
        assert!(bytes.len() <= self.bytes, "{} bytes out of {}", bytes.len(), self.bytes);
        // SAFETY: so many bytes are mapped (asserted, contract of the type); memory of this thread overlaps no pool.
        unsafe { std::ptr::copy_nonoverlapping(self.start.as_ptr(), bytes.as_mut_ptr(), bytes.len()) };
    }

    /// Fills its first `bytes` bytes with those of `from`.
    ///
    /// # Panics
    /// When either has fewer.
    pub(super) fn copy_from(self, from: Self, bytes: usize) {
        assert!(bytes <= from.bytes && bytes <= self.bytes, "{bytes} bytes of {} and {}", from.bytes, self.bytes);
        // SAFETY: both are mapped and hold so many bytes (asserted, contract of the type). Pages are those of one push
        // and of one grant, which their ranks keep from all others; if both name the same memory, a copy that may
        // overlap is right.
        unsafe { std::ptr::copy(from.start.as_ptr(), self.start.as_ptr(), bytes) };
    }

    /// What is left behind its first `bytes` bytes.
    ///
    /// # Panics
    /// When it has fewer.
    pub(super) fn skip(self, bytes: usize) -> Self {
        assert!(bytes <= self.bytes, "{bytes} of {} bytes", self.bytes);
        // SAFETY: the new start lies inside the span, or directly behind it (asserted).
        Self { start: unsafe { self.start.add(bytes) }, bytes: self.bytes - bytes }
    }
}

/// A buffer outside the memory it should stand in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{component} layer {layer} ends at byte {end} of a segment of {segment_bytes}")]
pub struct PoolFault {
    /// The component.
    pub component: Component,
    /// The layer.
    pub layer: u32,
    /// Where it ends.
    pub end: u128,
    /// Bytes of the segment.
    pub segment_bytes: u64,
}
