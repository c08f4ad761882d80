//! From the blocks of a trace to the pages of a group.
//!
//! A page gets an id of 64 bits that, like the id of a block, stands for the whole prompt up to its end. Keys are
//! mixed from these ids: they serve replays and benches of the index and spare them the hashing. An engine's keys
//! are SHA-256 over tokens and never made here.

use hicached_actors::protocol::Key;

use super::trace::{Request, Trace};

/// How the blocks of a trace become pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageSplit {
    page_units: u64,
    /// Pages of one block, 1 when the page is as large or larger.
    pages_per_block: u64,
    /// Blocks of one page, 1 when the page is as large or smaller.
    blocks_per_page: u64,
}

/// Pages of this size do not follow from the blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("pages of {page_units} do not follow from blocks of {block_units}: one must be a multiple of the other")]
pub struct PageSizeError {
    /// The page.
    pub page_units: u64,
    /// The block.
    pub block_units: u64,
}

impl Trace {
    /// How to cut this trace into pages of `page_units` (the trace's unit).
    ///
    /// # Errors
    /// Unless page or block is a multiple of the other.
    pub fn split(&self, page_units: u64) -> Result<PageSplit, PageSizeError> {
        let block_units = self.block_units;
        let is_multiple = |a: u64, b: u64| b != 0 && a.is_multiple_of(b);
        if page_units == 0 || !(is_multiple(page_units, block_units) || is_multiple(block_units, page_units)) {
            return Err(PageSizeError { page_units, block_units });
        }
        Ok(PageSplit {
            page_units,
            pages_per_block: (block_units / page_units).max(1),
            blocks_per_page: (page_units / block_units).max(1),
        })
    }
}

impl PageSplit {
    /// Full pages of a request that its ids cover: `input_length / page_units`, less where pages are finer than
    /// blocks and the trace has no id for the partial block.
    pub fn pages(&self, request: &Request) -> u64 {
        let covered = request.hash_ids.len() as u64 * self.pages_per_block / self.blocks_per_page;
        (request.input_length / self.page_units).min(covered)
    }

    /// The ids of these pages. Page `i` of block `h` is `h * pages per block + i`; a page of several blocks is
    /// the last of them, whose id implies the others.
    pub fn ids<'a>(&self, request: &'a Request) -> impl ExactSizeIterator<Item = u64> + use<'a> {
        let Self { pages_per_block, blocks_per_page, .. } = *self;
        let pages = usize::try_from(self.pages(request)).expect("at most the ids times the pages of a block");
        (0..pages).map(move |page| {
            let page = page as u64;
            let block = (page + 1) * blocks_per_page - 1;
            request.hash_ids[(block / pages_per_block) as usize] * pages_per_block + page % pages_per_block
        })
    }

    /// The keys of these pages, for benches of the index.
    pub fn keys<'a>(&self, request: &'a Request) -> impl ExactSizeIterator<Item = Key> + use<'a> {
        self.ids(request).map(mixed_key)
    }
}

/// A key whose bits look like those of a hash, different for different ids: each half is a bijection of `id`
/// (the finalizer of SplitMix64).
pub fn mixed_key(id: u64) -> Key {
    let half = |seed: u64| {
        let x = id.wrapping_add(seed);
        let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    };
    let halves = [half(0x9e37_79b9_7f4a_7c15), half(0x3c6e_f372_fe94_f82a)].map(u64::to_le_bytes);
    let mut key = Key::default();
    key.0[..8].copy_from_slice(&halves[0]);
    key.0[8..].copy_from_slice(&halves[1]);
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(input_length: u64, hash_ids: &[u64]) -> Request {
        let (session, worker, cached_tokens) = (None, None, None);
        let hash_ids = hash_ids.to_vec();
        Request { timestamp_ms: 0, input_length, output_length: 0, hash_ids, session, worker, cached_tokens }
    }

    #[test]
    fn pages_finer_and_coarser_than_blocks_follow_from_the_ids() {
        let rows = [
            ("as large", 512, 512, request(1100, &[7, 9, 11]), vec![7, 9]),
            ("finer, partial block known", 512, 256, request(1300, &[7, 9, 11]), vec![14, 15, 18, 19, 22]),
            ("finer, partial block unknown", 512, 256, request(1300, &[7, 9]), vec![14, 15, 18, 19]),
            ("coarser", 64, 128, request(330, &[1, 2, 3, 4, 5]), vec![2, 4]),
            ("none", 64, 128, request(127, &[1]), vec![]),
        ];
        for (name, block_units, page_units, request, ids) in rows {
            let split = Trace { block_units, requests: vec![] }.split(page_units).expect("a multiple");
            assert_eq!(split.ids(&request).collect::<Vec<_>>(), ids, "{name}");
            assert_eq!(split.pages(&request), ids.len() as u64, "{name}");
        }
        for page_units in [0, 100, 768] {
            let refused = Trace { block_units: 512, requests: vec![] }.split(page_units);
            assert_eq!(refused, Err(PageSizeError { page_units, block_units: 512 }));
        }
    }
}
