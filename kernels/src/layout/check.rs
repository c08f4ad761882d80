//! Refuses descriptions of a page that no engine can mean, all faults at once.

use super::{
    Component, INDEX_PAGE_TOKENS, LAYERS_MAX, PAGE_TOKENS_MAX, PAGE_TOKENS_MIN, PIECE_ALIGN_BYTES, RECORD_BYTES_MAX,
    TILE_PAGES_MAX,
};
use std::fmt;

/// One fault of a description of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// The page size is outside 16..=512 or no power of two.
    #[error("page_tokens is {page_tokens}: make it a power of two in {PAGE_TOKENS_MIN}..={PAGE_TOKENS_MAX}")]
    PageTokens {
        /// Tokens of a page as described.
        page_tokens: u32,
    },
    /// The tile is not 1, 2, 4, 8 or 16 pages.
    #[error("tile_pages is {tile_pages}: make it a power of two in 1..={TILE_PAGES_MAX}")]
    TilePages {
        /// Pages of a tile as described.
        tile_pages: u32,
    },
    /// A component stands twice.
    #[error("{component} is described twice: describe it once")]
    ComponentTwice {
        /// The component.
        component: Component,
    },
    /// A component stands behind one that follows it in a record.
    #[error("{component} stands after {after}: use the order target.kv, target.index, draft.kv, draft.index")]
    ComponentOutOfOrder {
        /// The component that comes too late.
        component: Component,
        /// The component directly before it in the description.
        after: Component,
    },
    /// The KV that counts the layers of a track is missing: `target.kv` always, `draft.kv` under `draft.index`.
    #[error("{component} is missing: describe it")]
    KvMissing {
        /// The missing component.
        component: Component,
    },
    /// An index component with pages of another size than 64 tokens.
    #[error("{component} with page_tokens {page_tokens}: index pages need page_tokens {INDEX_PAGE_TOKENS}")]
    IndexPageTokens {
        /// The index component.
        component: Component,
        /// Tokens of a page as described.
        page_tokens: u32,
    },
    /// A component without a layer, or with more than [`LAYERS_MAX`].
    #[error("{component} has {layers} layers: leave the component out, or describe 1..={LAYERS_MAX} layers")]
    Layers {
        /// The component.
        component: Component,
        /// Layers described.
        layers: usize,
    },
    /// An index component has another number of layers than the KV of its track.
    #[error("{component} has {layers} layers, its KV has {kv_layers}: give layers without index pages 0 bytes")]
    LayersDiffer {
        /// The index component.
        component: Component,
        /// Its layers.
        layers: usize,
        /// Layers of the KV of its track.
        kv_layers: usize,
    },
    /// A page size that is no multiple of 16.
    #[error("{component} layer {layer} has {page_bytes} bytes per page: make it a multiple of {PIECE_ALIGN_BYTES}")]
    PageBytes {
        /// The component.
        component: Component,
        /// The layer.
        layer: usize,
        /// Bytes of one page as described.
        page_bytes: u64,
    },
    /// The record is larger than [`RECORD_BYTES_MAX`].
    #[error("a record has {record_bytes} bytes: at most {RECORD_BYTES_MAX} are supported, use smaller pages")]
    RecordTooLarge {
        /// Bytes of the record as described.
        record_bytes: u128,
    },
}

/// Why a description of a page was refused: every fault found, in the order of the description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutRefused {
    /// The faults; never empty.
    pub faults: Vec<LayoutError>,
}

impl fmt::Display for LayoutRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.faults.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{fault}")?;
        }
        Ok(())
    }
}

impl std::error::Error for LayoutRefused {}

/// Whether a page may have that many tokens.
pub(crate) fn is_page_tokens(page_tokens: u32) -> bool {
    page_tokens.is_power_of_two() && (PAGE_TOKENS_MIN..=PAGE_TOKENS_MAX).contains(&page_tokens)
}

/// Looks for every fault of a description; see [`super::Layout::new`].
pub(super) fn check(
    page_tokens: u32,
    components: &[(Component, Vec<u64>)],
    tile_pages: u32,
) -> Result<(), LayoutRefused> {
    let mut faults = Vec::new();
    if !is_page_tokens(page_tokens) {
        faults.push(LayoutError::PageTokens { page_tokens });
    }
    if !tile_pages.is_power_of_two() || tile_pages > TILE_PAGES_MAX {
        faults.push(LayoutError::TilePages { tile_pages });
    }
    check_order(components, &mut faults);
    for (component, page_bytes_per_layer) in components {
        check_layers(page_tokens, components, *component, page_bytes_per_layer, &mut faults);
    }
    let record_bytes = components.iter().flat_map(|(_, layers)| layers).map(|&bytes| u128::from(bytes)).sum();
    if record_bytes > u128::from(RECORD_BYTES_MAX) {
        faults.push(LayoutError::RecordTooLarge { record_bytes });
    }
    if faults.is_empty() { Ok(()) } else { Err(LayoutRefused { faults }) }
}

fn check_order(components: &[(Component, Vec<u64>)], faults: &mut Vec<LayoutError>) {
    if layers_of(components, Component::TargetKv).is_none() {
        faults.push(LayoutError::KvMissing { component: Component::TargetKv });
    }
    for (index, &(component, _)) in components.iter().enumerate() {
        let earlier = &components[..index];
        if layers_of(earlier, component).is_some() {
            faults.push(LayoutError::ComponentTwice { component });
        } else if let Some(&(after, _)) = earlier.last()
            && after > component
        {
            faults.push(LayoutError::ComponentOutOfOrder { component, after });
        }
    }
}

fn check_layers(
    page_tokens: u32,
    components: &[(Component, Vec<u64>)],
    component: Component,
    page_bytes_per_layer: &[u64],
    faults: &mut Vec<LayoutError>,
) {
    let layers = page_bytes_per_layer.len();
    if layers == 0 || layers > LAYERS_MAX {
        faults.push(LayoutError::Layers { component, layers });
    }
    for (layer, &page_bytes) in page_bytes_per_layer.iter().enumerate() {
        if !page_bytes.is_multiple_of(PIECE_ALIGN_BYTES) {
            faults.push(LayoutError::PageBytes { component, layer, page_bytes });
        }
    }
    if !component.is_index() {
        return;
    }
    if page_tokens != INDEX_PAGE_TOKENS {
        faults.push(LayoutError::IndexPageTokens { component, page_tokens });
    }
    let kv = component.track().kv();
    match layers_of(components, kv) {
        Some(kv_layers) if kv_layers == layers => {}
        Some(kv_layers) => faults.push(LayoutError::LayersDiffer { component, layers, kv_layers }),
        // A missing `target.kv` is named once, for the whole description.
        None if kv == Component::TargetKv => {}
        None => faults.push(LayoutError::KvMissing { component: kv }),
    }
}

fn layers_of(components: &[(Component, Vec<u64>)], wanted: Component) -> Option<usize> {
    components.iter().find(|(component, _)| *component == wanted).map(|(_, layers)| layers.len())
}
