//! What a group stores: components with their sizes, as plain data that both sides compare.

use sha2::{Digest, Sha256};

use super::codec::{encode, wire};
use super::{Malformed, Mismatch, Refusal};

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

/// The component without which a page is nothing.
const TARGET_KV: &str = "target.kv";

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

    /// The components of which a page of `yours` holds what a page of this one does; empty when that is all of both. Two
    /// groups of one rank may differ in which they store, as in a rolling upgrade; any other difference is refused.
    ///
    /// # Errors
    /// As [`Self::holds`], and when `target.kv` is not among them.
    pub fn common(&self, yours: &Self) -> Result<Vec<String>, Refusal> {
        // One without bytes is nothing that could be lacking.
        let stored = |manifest: &Self| -> Vec<String> {
            let with_bytes = manifest.components.iter().filter(|component| component.page_bytes.iter().any(|b| *b > 0));
            with_bytes.map(|component| component.name.clone()).collect()
        };
        let has = |manifest: &Self, name: &str| stored(manifest).iter().any(|stored| stored == name);
        let are_alike = self.components.iter().map(|c| &c.name).eq(yours.components.iter().map(|c| &c.name));
        let is_common = |name: &str| has(self, name) && has(yours, name);
        if are_alike || (self.cp_size, yours.cp_size) != (1, 1) || !is_common(TARGET_KV) {
            return self.holds(yours).map(|()| Vec::new());
        }
        let part = |manifest: &Self| {
            let components = manifest.components.iter().filter(|component| is_common(&component.name)).cloned();
            Self { components: components.collect(), ..manifest.clone() }
        };
        let mine = part(self);
        mine.holds(&part(yours))?;
        if stored(self) == stored(yours) {
            return Ok(Vec::new());
        }
        Ok(mine.components.into_iter().map(|component| component.name).collect())
    }

    /// Checks that a list of components is none, which stands for all, or some of these with `target.kv` among them,
    /// each once; some may be left out by groups of one rank only.
    ///
    /// # Errors
    /// [`Refusal::Malformed`] naming `components`.
    pub fn has_part(&self, components: &[String]) -> Result<(), Refusal> {
        let known: Vec<&str> = self.components.iter().map(|component| component.name.as_str()).collect();
        let mut named: Vec<&str> = components.iter().map(String::as_str).collect();
        named.sort_unstable();
        named.dedup();
        let is_sound = named.len() == components.len()
            && named.iter().all(|name| known.contains(name))
            && named.contains(&TARGET_KV)
            && self.cp_size == 1;
        if components.is_empty() || is_sound {
            return Ok(());
        }
        let limit = format!("none, or of {}, each once, {TARGET_KV} among them, with one rank", known.join(", "));
        Err(Malformed::new("components", components.join(","), limit).into())
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

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(cp_size: u8, components: &[(&str, &[u32])]) -> Manifest {
        let component = |(name, bytes): &(&str, &[u32])| ComponentSpec {
            name: (*name).to_owned(),
            dtype: "fp8".to_owned(),
            page_bytes: bytes.to_vec(),
        };
        let components = components.iter().map(component).collect();
        Manifest { page_tokens: 64, cp_size, tile_pages: 8, draft_lookahead_tokens: 0, components }
    }

    const KV: (&str, &[u32]) = ("target.kv", &[64, 64]);
    const INDEX: (&str, &[u32]) = ("target.index", &[32, 0]);
    const EMPTY: (&str, &[u32]) = ("target.index", &[0, 0]);
    const DRAFT: (&str, &[u32]) = ("draft.kv", &[64]);

    #[test]
    fn groups_of_one_rank_have_the_components_in_common_that_both_store() {
        let longer: (&str, &[u32]) = ("target.kv", &[64, 64, 64]);
        for (mine, yours, common) in [
            (manifest(1, &[KV, INDEX, DRAFT]), manifest(1, &[KV, INDEX, DRAFT]), Ok(vec![])),
            (manifest(1, &[KV, INDEX]), manifest(1, &[KV, INDEX, DRAFT]), Ok(vec!["target.kv", "target.index"])),
            (manifest(1, &[KV, DRAFT]), manifest(1, &[KV, INDEX]), Ok(vec!["target.kv"])),
            (manifest(1, &[KV, EMPTY, DRAFT]), manifest(1, &[KV, EMPTY]), Ok(vec!["target.kv"])),
            (manifest(1, &[KV, EMPTY]), manifest(1, &[KV]), Ok(vec![])),
            (manifest(1, &[KV, DRAFT]), manifest(8, &[KV]), Err("components")),
            (manifest(1, &[KV]), manifest(8, &[KV]), Ok(vec![])),
            (manifest(1, &[KV, DRAFT]), manifest(1, &[DRAFT]), Err("components")),
            (manifest(1, &[KV, DRAFT]), manifest(1, &[longer]), Err("target.kv.layers")),
        ] {
            match (mine.common(&yours), common) {
                (Ok(found), Ok(wanted)) => assert_eq!(found, wanted),
                (Err(Refusal::Mismatch(found)), Err(field)) => assert_eq!(found.field, field),
                (found, wanted) => panic!("{found:?} for {wanted:?}"),
            }
        }
        let (mine, yours) = (manifest(1, &[KV, DRAFT]), manifest(1, &[KV]));
        let other = Manifest { page_tokens: 128, ..yours };
        assert!(mine.common(&other).is_err(), "pages of another size are no pages of this one");
    }

    #[test]
    fn a_part_names_known_components_once_and_the_one_without_which_a_page_is_nothing() {
        for (cp_size, named, is_part) in [
            (1, vec![], true),
            (8, vec![], true),
            (1, vec!["target.kv"], true),
            (8, vec!["target.kv"], false),
            (1, vec!["draft.kv"], false),
            (1, vec!["target.kv", "target.kv"], false),
            (1, vec!["target.kv", "target.value"], false),
        ] {
            let named: Vec<String> = named.into_iter().map(str::to_owned).collect();
            assert_eq!(manifest(cp_size, &[KV, DRAFT]).has_part(&named).is_ok(), is_part, "{cp_size}: {named:?}");
        }
    }
}
