//! What the pages of a world hold: parts of a record, and the bytes that belong in them.
//!
//! Every byte is a function of the tokens before and at its position (through the parent's key, which
//! covers salt and prefix), of its component and of its layer: any wrong page is a wrong byte.

use std::collections::BTreeMap;

use hicached_actors::protocol::{ComponentSpec, Key, Manifest};

use crate::mix::Sizes;

/// One (component, layer) of a page, in record order.
#[derive(Clone, Debug)]
pub struct Part {
    /// Component name.
    pub component: String,
    /// Layer of that component.
    pub layer: u32,
    /// Whether the draft track writes it.
    pub draft: bool,
    /// Bytes of one page: one per token, or none.
    pub bytes: usize,
    /// Where it stands in a record.
    pub offset: usize,
}

/// The parts of every page of a group.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Ranks.
    pub cp: u8,
    /// Tokens in a page.
    pub page_tokens: u32,
    /// Parts in record order.
    pub parts: Vec<Part>,
    /// Layers of the target track and of the draft track.
    pub layers: (u32, u32),
    /// Bytes of one record.
    pub record_bytes: usize,
    /// Whether draft bytes depend on the token after theirs.
    pub lookahead: u32,
    /// What the group compares.
    pub manifest: Manifest,
}

impl Layout {
    /// The layout of a group of these sizes.
    pub fn new(sizes: &Sizes) -> Self {
        let manifest = manifest(sizes);
        let mut parts = Vec::new();
        let mut offset = 0;
        for component in &manifest.components {
            for (layer, bytes) in component.page_bytes.iter().enumerate() {
                let (bytes, draft) = (*bytes as usize, component.name.starts_with("draft."));
                let component = component.name.clone();
                parts.push(Part { component, layer: layer as u32, draft, bytes, offset });
                offset += bytes;
            }
        }
        Self {
            cp: sizes.cp,
            page_tokens: sizes.page_tokens,
            parts,
            layers: manifest.layers(),
            record_bytes: offset,
            lookahead: sizes.lookahead,
            manifest,
        }
    }

    /// The word of a track that has passed `layers` layers of `step`.
    pub fn word(&self, draft: bool, step: u64, layers: u32) -> u64 {
        step * (u64::from(self.track_layers(draft)) + 1) + u64::from(layers)
    }

    /// Layers of one track.
    pub const fn track_layers(&self, draft: bool) -> u32 {
        if draft { self.layers.1 } else { self.layers.0 }
    }

    /// Layers of both tracks: those of a load.
    pub const fn all_layers(&self) -> u32 {
        self.layers.0 + self.layers.1
    }

    /// The parts of one layer of a load: target layers first, then those of the draft.
    pub fn parts_of_layer(&self, layer: u32) -> impl Iterator<Item = usize> + '_ {
        let (draft, layer) = if layer < self.layers.0 { (false, layer) } else { (true, layer - self.layers.0) };
        (0..self.parts.len()).filter(move |at| self.parts[*at].draft == draft && self.parts[*at].layer == layer)
    }

    /// The byte of token `slot` of a page in part `part`.
    pub fn byte(&self, part: usize, text: &PageText<'_>, slot: usize) -> u8 {
        let next =
            if self.parts[part].draft && self.lookahead == 1 { text.tokens.get(slot + 1).copied() } else { None };
        let token = u64::from(text.tokens[slot]) | u64::from(next.unwrap_or(0)) << 32;
        let parent = u64::from_le_bytes(text.parent.0[..8].try_into().unwrap_or_default());
        let mut hash =
            (parent ^ token.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_add((part as u64) << 8 | slot as u64);
        hash = (hash ^ (hash >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (hash >> 56) as u8
    }

    /// Whether `bytes` are those of the page in part `part`, as far as its tokens reach.
    pub fn is_right(&self, part: usize, text: &PageText<'_>, bytes: &[u8]) -> bool {
        self.is_right_before(part, text, self.page_tokens, bytes)
    }

    /// The same of the first `tokens` tokens of the page.
    pub fn is_right_before(&self, part: usize, text: &PageText<'_>, tokens: u32, bytes: &[u8]) -> bool {
        let tokens = text.tokens.len().min(tokens as usize);
        bytes.iter().take(tokens).enumerate().all(|(slot, byte)| *byte == self.byte(part, text, slot))
    }
}

/// What a page stands for: its parent and its tokens, with lookahead followed by the next token.
#[derive(Clone, Copy, Debug)]
pub struct PageText<'a> {
    /// Key of the page before it, the root for the first.
    pub parent: Key,
    /// Its tokens.
    pub tokens: &'a [u32],
}

/// Every key that an engine of this world has ever computed, and what it stands for.
#[derive(Debug, Default)]
pub struct Truth(BTreeMap<Key, (Key, Vec<u32>)>);

impl Truth {
    /// Notes the pages of one path.
    pub fn learn(&mut self, root: Key, keys: &[Key], tokens: &[u32], page_tokens: u32, lookahead: u32) {
        let mut parent = root;
        for (at, key) in keys.iter().enumerate() {
            let first = at * page_tokens as usize;
            let end = first + (page_tokens + lookahead) as usize;
            self.0.entry(*key).or_insert_with(|| (parent, tokens[first..end].to_vec()));
            parent = *key;
        }
    }

    /// What `key` stands for.
    pub fn text(&self, key: Key) -> Option<PageText<'_>> {
        self.0.get(&key).map(|(parent, tokens)| PageText { parent: *parent, tokens })
    }
}

/// A byte that is never copied on purpose: memory that somebody is about to write.
pub(crate) const POISON: u8 = 0xee;

fn manifest(sizes: &Sizes) -> Manifest {
    let page_bytes = sizes.page_tokens;
    let every = |layers: u32| vec![page_bytes; layers as usize];
    let component =
        |name: &str, page_bytes: Vec<u32>| ComponentSpec { name: name.to_owned(), dtype: "u8".to_owned(), page_bytes };
    let mut components = vec![component("target.kv", every(sizes.target_layers))];
    if sizes.index_components {
        // Some models keep index pages on a part of the layers only.
        let odd = |layer| if layer % 2 == 1 { 0 } else { page_bytes };
        components.push(component("target.index", (0..sizes.target_layers).map(odd).collect()));
    }
    if sizes.draft_layers > 0 {
        components.push(component("draft.kv", every(sizes.draft_layers)));
        if sizes.index_components {
            components.push(component("draft.index", every(sizes.draft_layers)));
        }
    }
    Manifest {
        page_tokens: sizes.page_tokens,
        cp_size: sizes.cp,
        tile_pages: 1,
        draft_lookahead_tokens: sizes.lookahead,
        components,
    }
}
