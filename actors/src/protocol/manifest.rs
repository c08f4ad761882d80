//! What a group stores: components with their sizes, as plain data that both sides compare.

use sha2::{Digest, Sha256};

use super::codec::{encode, wire};
use super::{Mismatch, Refusal};

wire! {
    /// One component of a page: KV or index keys of one model.
    pub struct ComponentSpec {
        /// `target.kv`, `target.index`, `draft.kv` or `draft.index`.
        pub name: String,
        /// Element type, compared as text.
        pub dtype: String,
        /// Bytes of one page for each layer; 0 where a layer has none.
        pub page_bytes: Vec<u32>,
    }
    /// Everything that two holders of the same pages must agree on.
    pub struct Manifest {
        /// Tokens in a page.
        pub page_tokens: u32,
        /// Ranks of the group.
        pub cp_size: u8,
        /// Host pages in a tile.
        pub tile_pages: u32,
        /// 1 when a page's key also covers the token after it.
        pub draft_lookahead_tokens: u32,
        /// Components in their fixed order.
        pub components: Vec<ComponentSpec>,
    }
}

/// Version of the record format, part of every key's root.
pub const FORMAT_VERSION: u32 = 1;

impl Manifest {
    /// SHA-256 over the encoded manifest, part of every key's root. `cp_size` and `tile_pages` say where
    /// bytes stand, not what they are, and are left out.
    pub fn digest(&self) -> [u8; 32] {
        let content = Self { cp_size: 0, tile_pages: 0, ..self.clone() };
        Sha256::digest(encode(&content)).into()
    }

    /// Layers of the target track and of the draft track.
    pub fn layers(&self) -> (u32, u32) {
        let of = |name: &str| {
            self.components.iter().filter(|c| c.name.starts_with(name)).map(|c| c.page_bytes.len()).max().unwrap_or(0)
        };
        (of("target.") as u32, of("draft.") as u32)
    }

    /// Bytes of one record: every layer of every component.
    pub fn record_bytes(&self) -> u64 {
        self.components.iter().flat_map(|c| &c.page_bytes).map(|bytes| u64::from(*bytes)).sum()
    }

    /// Buffers that a rank registers for transfers: one per component and layer with bytes.
    pub fn buffers(&self) -> u64 {
        self.components.iter().flat_map(|c| &c.page_bytes).filter(|bytes| **bytes > 0).count() as u64
    }

    /// Checks that `yours` is this manifest.
    ///
    /// # Errors
    /// [`Refusal::Mismatch`] with the first field that differs and both values.
    pub fn fits(&self, yours: &Self) -> Result<(), Refusal> {
        self.holds(yours)?;
        same("cp_size", yours.cp_size, self.cp_size)?;
        same("tile_pages", yours.tile_pages, self.tile_pages)
    }

    /// Checks that a page of `yours` is a page of this one, byte for byte; how many ranks and which tiles hold them
    /// may differ.
    ///
    /// # Errors
    /// [`Refusal::Mismatch`] with the first field that differs and both values.
    pub fn holds(&self, yours: &Self) -> Result<(), Refusal> {
        same("page_tokens", yours.page_tokens, self.page_tokens)?;
        same("draft_lookahead_tokens", yours.draft_lookahead_tokens, self.draft_lookahead_tokens)?;
        let names = |m: &Self| m.components.iter().map(|c| c.name.clone()).collect::<Vec<_>>().join(",");
        same("components", names(yours), names(self))?;
        for (yours, mine) in yours.components.iter().zip(&self.components) {
            same(&format!("{}.dtype", mine.name), &yours.dtype, &mine.dtype)?;
            same(&format!("{}.layers", mine.name), yours.page_bytes.len(), mine.page_bytes.len())?;
            for (layer, (yours, mine_bytes)) in yours.page_bytes.iter().zip(&mine.page_bytes).enumerate() {
                same(&format!("{}.page_bytes[{layer}]", mine.name), yours, mine_bytes)?;
            }
        }
        Ok(())
    }
}

/// Refuses when two values of `field` differ.
pub fn same<T: PartialEq + ToString>(field: &str, yours: T, mine: T) -> Result<(), Refusal> {
    if yours == mine {
        return Ok(());
    }
    Err(Mismatch { field: field.to_owned(), yours: yours.to_string(), mine: mine.to_string() }.into())
}
