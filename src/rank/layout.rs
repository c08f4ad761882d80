//! From the manifest, plain data that both sides compare, to the layout that copy code uses; and the set of
//! (component, layer) that an acknowledgement carries.

use hicached_actors::protocol::{Bin, Manifest};
use hicached_kernels::layout::{Component, Layout, LayoutRefused, Track};

/// Builds the layout of a manifest.
///
/// # Errors
/// [`ManifestError`] with every fault of the sizes at once, or the first unknown component.
pub fn layout_of(manifest: &Manifest) -> Result<Layout, ManifestError> {
    let mut components = Vec::new();
    for spec in &manifest.components {
        let component = Component::from_name(&spec.name)
            .ok_or_else(|| ManifestError::Component { name: spec.name.chars().take(64).collect() })?;
        components.push((component, spec.page_bytes.iter().map(|bytes| u64::from(*bytes)).collect()));
    }
    Ok(Layout::new(manifest.page_tokens, components, manifest.tile_pages)?)
}

/// Why a manifest describes no page.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// A component of an unknown name.
    #[error("component {name} is none of target.kv, target.index, draft.kv, draft.index")]
    Component {
        /// The name.
        name: String,
    },
    /// Sizes that no page can have.
    #[error(transparent)]
    Layout(#[from] LayoutRefused),
}

/// The layers of a page in the order of a load: target, then draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LayerCount {
    /// Layers of the target track, at least one.
    pub(super) target: u32,
    /// Layers of the draft track.
    pub(super) draft: u32,
}

impl LayerCount {
    pub(super) fn of(layout: &Layout) -> Self {
        Self { target: layout.track_layers(Track::Target), draft: layout.track_layers(Track::Draft) }
    }

    pub(super) fn total(self) -> u32 {
        self.target + self.draft
    }

    pub(super) fn of_track(self, track: Track) -> u32 {
        match track {
            Track::Target => self.target,
            Track::Draft => self.draft,
        }
    }

    /// Place in the order of a load of `layer` of `track`.
    pub(super) fn index(self, track: Track, layer: u32) -> u32 {
        match track {
            Track::Target => layer,
            Track::Draft => self.target + layer,
        }
    }

    /// Track and layer at a place in the order of a load.
    pub(super) fn at(self, index: u32) -> (Track, u32) {
        if index < self.target { (Track::Target, index) } else { (Track::Draft, index - self.target) }
    }
}

/// One bit per (component, layer) in record order, lowest bit first: set when `done` says that the layer's place in
/// the order of a load is copied.
pub(super) fn layer_bits(layout: &Layout, done: impl Fn(u32) -> bool) -> Bin {
    let layers = LayerCount::of(layout);
    let mut bytes = vec![0u8; layout.record().count().div_ceil(8)];
    for (bit, piece) in layout.record().enumerate() {
        if done(layers.index(piece.component.track(), piece.layer)) {
            bytes[bit / 8] |= 1 << (bit % 8);
        }
    }
    Bin(bytes)
}
