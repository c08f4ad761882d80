//! The pool of the attached engine (L1): a segment that the engine made, mapped and checked against the manifest.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use hicached_actors::protocol::{Attach, Incarnation, Malformed, Refusal, same};
use hicached_client::shm::Segment;
use hicached_kernels::layout::{Component, L1Layout, L1LayoutError, L1Region, Layout, RegisteredRegion};
use hicached_kernels::shared_bytes::SharedBytes;

use crate::wire::{Buffers, Pool};

/// The engine's pool, mapped.
#[derive(Debug)]
pub(super) struct L1 {
    segment: Arc<Segment>,
    layout: L1Layout,
    engine: Incarnation,
    /// The same, for what travels to other groups and from them.
    pool: Arc<Pool>,
}

impl L1 {
    /// Maps the segment that `attach` names. `pool_file` is the rank's own file, which is no engine's pool.
    ///
    /// # Errors
    /// [`Refusal::Mismatch`] with the field, the engine's value and the one that fits; [`Refusal::Malformed`] for
    /// what cannot be at all. Nothing was changed.
    pub(super) fn attach(layout: &Layout, attach: &Attach, pool_file: &Path) -> Result<Self, Refusal> {
        let path = Path::new(&attach.segment);
        if attach.pages < PAGES_MIN {
            return Err(Malformed::new("pages", attach.pages, format_args!("at least {PAGES_MIN}")).into());
        }
        let regions = attach.regions.iter().map(|region| {
            let component = Component::from_name(&region.component)
                .ok_or_else(|| Malformed::new("regions.component", &region.component, "a component of the manifest"))?;
            let piece = layout
                .piece(component, region.layer)
                .map_err(|missing| Malformed::new("regions.layer", region.layer, missing))?;
            let field = format!("{component}.page_bytes[{}]", region.layer);
            same(&field, u64::from(region.page_bytes), piece.page_bytes)?;
            let region_at = L1Region { base_offset_bytes: region.offset, stride_bytes: region.stride };
            Ok(RegisteredRegion { component, layer: region.layer, region: region_at })
        });
        let regions = regions.collect::<Result<Vec<_>, Refusal>>()?;
        let l1_layout =
            L1Layout::registered(layout, attach.pages, attach.segment_bytes, &regions).map_err(refusal_of)?;
        if is_same_file(path, pool_file) {
            return Err(Malformed::new("segment", &attach.segment, "another file than the rank's pool").into());
        }
        let segment = Segment::open(path).map_err(|error| Malformed::new("segment", error, "a file to map"))?;
        same("segment_bytes", attach.segment_bytes, segment.len_bytes())?;
        let segment = Arc::new(segment);
        let unfit =
            |fault: &dyn std::fmt::Display| Refusal::from(Malformed::new("regions", fault, "those of the manifest"));
        let buffers = Buffers::of(layout, &l1_layout).map_err(|missing| unfit(&missing))?;
        let pool = Arc::new(Pool::new(segment.clone(), buffers).map_err(|fault| unfit(&fault))?);
        Ok(Self { segment, layout: l1_layout, engine: attach.engine, pool })
    }

    /// The engine rank whose pool it is.
    pub(super) fn engine(&self) -> Incarnation {
        self.engine
    }

    /// Where pages stand in it.
    pub(super) fn layout(&self) -> &L1Layout {
        &self.layout
    }

    /// The buffers that travel.
    pub(super) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Path and bytes of the segment.
    pub(super) fn segment(&self) -> (&Path, u64) {
        (self.segment.path(), self.segment.len_bytes())
    }

    /// The memory, for copy code; valid while this pool is kept.
    pub(super) fn bytes(&self) -> SharedBytes {
        let bytes = self.segment.len_bytes();
        let start = self.segment.pointer(0, bytes).expect("a segment holds itself");
        // SAFETY: the whole segment is one shared, writable mapping that lives as long as `self`, which every copy
        // job keeps. This process makes no reference to its bytes, and ops own the pages they name (`Claims`).
        unsafe { SharedBytes::new(start, bytes) }
    }
}

fn is_same_file(a: &Path, b: &Path) -> bool {
    match (std::fs::metadata(a), std::fs::metadata(b)) {
        (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        (Ok(_) | Err(_), Ok(_) | Err(_)) => false,
    }
}

fn refusal_of(error: L1LayoutError) -> Refusal {
    match error {
        L1LayoutError::Stride { component, layer, stride_bytes, page_bytes } => {
            match same(&format!("{component}.stride[{layer}]"), stride_bytes, page_bytes) {
                Err(refusal) => refusal,
                Ok(()) => Malformed::new("regions", error, "regions of the manifest").into(),
            }
        }
        L1LayoutError::NoSuchLayer(_)
        | L1LayoutError::NoSuchPage { .. }
        | L1LayoutError::Twice { .. }
        | L1LayoutError::Missing { .. }
        | L1LayoutError::Misaligned { .. }
        | L1LayoutError::OutOfSegment { .. }
        | L1LayoutError::Overlap { .. } => {
            Malformed::new("regions", error, "every (component, layer) with bytes once, aligned, inside, apart").into()
        }
    }
}

/// The padding page and one to use.
const PAGES_MIN: u32 = 2;
