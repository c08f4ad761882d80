//! What an acknowledgement of a copy says: its bitmap held against the layers that a record has.

use crate::faults::{Fault, Faults};
use crate::protocol::{CopyAck, Manifest};

/// The bits of an acknowledgement that have to be set: one per (component, layer) in record order, bit `i` in
/// byte `i / 8` with value `1 << (i % 8)`. A layer without bytes has a bit that nobody looks at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerBits {
    target: Vec<u8>,
    draft: Vec<u8>,
    layers_of_tracks: (u32, u32),
}

/// Fate of a copy on one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Something is still being copied.
    Running,
    /// Every byte is in place.
    Complete,
    /// Nothing is read or written any more, and it did not complete; the code of the refusal.
    Failed(&'static str),
}

impl LayerBits {
    /// The bits of the records of this manifest.
    pub fn of(manifest: &Manifest) -> Self {
        let bits: usize = manifest.components.iter().map(|component| component.page_bytes.len()).sum();
        let (mut target, mut draft) = (vec![0; bits.div_ceil(8)], vec![0; bits.div_ceil(8)]);
        let mut bit = 0;
        for component in &manifest.components {
            let track = if component.name.starts_with("draft.") { &mut draft } else { &mut target };
            for page_bytes in &component.page_bytes {
                track[bit / 8] |= u8::from(*page_bytes > 0) << (bit % 8);
                bit += 1;
            }
        }
        Self { target, draft, layers_of_tracks: manifest.layers() }
    }

    /// Layers of both tracks: what a load word counts.
    pub const fn layers(&self) -> u64 {
        self.layers_of_tracks.0 as u64 + self.layers_of_tracks.1 as u64
    }

    /// What `ack` says of the pages of its rank; one that says complete and lacks a layer has failed.
    pub fn fate(&self, ack: &CopyAck, faults: Faults) -> Fate {
        if let Some(refusal) = ack.failed.first() {
            return Fate::Failed(refusal.code());
        }
        if !ack.complete {
            return Fate::Running;
        }
        let holds = |wanted: &[u8]| {
            wanted.iter().enumerate().all(|(at, bits)| ack.layers.0.get(at).copied().unwrap_or(0) & bits == *bits)
        };
        if holds(&self.target) && (holds(&self.draft) || faults.is(Fault::DraftAckNotNeeded)) {
            return Fate::Complete;
        }
        Fate::Failed("ComponentMissing")
    }

    /// The bitmap of a rank that has copied everything.
    pub fn every(&self) -> Vec<u8> {
        self.target.iter().zip(&self.draft).map(|(target, draft)| target | draft).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Bin, ComponentSpec, Rank, Refusal, Unknown};

    #[test]
    fn an_acknowledgement_is_complete_when_every_layer_with_bytes_is_there() {
        let component = |name: &str, page_bytes: &[u32]| ComponentSpec {
            name: name.to_owned(),
            dtype: "u8".to_owned(),
            page_bytes: page_bytes.to_vec(),
        };
        let components = vec![component("target.kv", &[16, 0, 16]), component("draft.kv", &[16])];
        let manifest = Manifest { page_tokens: 64, cp_size: 1, tile_pages: 1, draft_lookahead_tokens: 0, components };
        let bits = LayerBits::of(&manifest);
        assert_eq!((bits.layers(), bits.every()), (4, vec![0b1101]));
        let gone: Refusal = Unknown::new("op", 1).into();
        for (layers, complete, failed, fate) in [
            (vec![0b1101], true, vec![], Fate::Complete),
            (vec![0b1111], true, vec![], Fate::Complete),
            (vec![0b0101], true, vec![], Fate::Failed("ComponentMissing")),
            (vec![], true, vec![], Fate::Failed("ComponentMissing")),
            (vec![0b1101], false, vec![], Fate::Running),
            (vec![0b1101], true, vec![gone], Fate::Failed("Unknown")),
        ] {
            let ack = CopyAck { attempt: 1, rank: Rank(0), layers: Bin(layers), complete, failed };
            assert_eq!(bits.fate(&ack, Faults::NONE), fate, "{ack:?}");
        }
    }
}
