//! Prompts of a recorded trace, which names blocks of a prompt by ids instead of tokens.
//!
//! Equal id means equal prompt from its start to the end of that block, so the key of a page is remembered by the
//! block its last token is in: a page costs one hash the first time and one look-up ever after.

use std::collections::HashMap;

use hicached_actors::protocol::{Key, page_key};

use super::text::{Text, token_of};
use super::{PagePlan, Paging};

/// Turns lists of block ids into plans below one salt.
#[derive(Clone, Debug)]
pub struct BlockPlans {
    salt: Key,
    paging: Paging,
    block_tokens: u32,
    known: HashMap<Known, Key>,
}

/// A page: the block of its last token, the page's end within that block, and with lookahead the block of the
/// token after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Known {
    block: u64,
    end_tokens: u32,
    next_block: Option<u64>,
}

impl BlockPlans {
    /// Blocks of `block_tokens` tokens below `salt`. Any two sizes of page and block go together.
    pub fn new(salt: Key, paging: Paging, block_tokens: u32) -> Self {
        assert!(paging.page_tokens > 0 && block_tokens > 0, "pages and blocks have tokens");
        Self { salt, paging, block_tokens, known: HashMap::new() }
    }

    /// The plan of a prompt of `tokens` tokens. Tokens that no id covers belong to this prompt alone, told apart by
    /// `own`, a number of the caller that no block id equals.
    pub fn plan(&mut self, blocks: &[u64], tokens: u32, own: u64) -> PagePlan {
        let Paging { page_tokens, lookahead_tokens } = self.paging;
        let pages = tokens.saturating_sub(lookahead_tokens) / page_tokens;
        let block_of = |token: u32| blocks.get((token / self.block_tokens) as usize).copied().unwrap_or(own);
        let mut parent = self.salt;
        let mut keys = Vec::with_capacity(pages as usize);
        for page in 0..pages {
            let (first, end) = (page * page_tokens, (page + 1) * page_tokens);
            let name = Known {
                block: block_of(end - 1),
                end_tokens: (end - 1) % self.block_tokens + 1,
                next_block: (lookahead_tokens > 0).then(|| block_of(end)),
            };
            // Tokens without an id are one endless block of this prompt, in which the end alone names the page.
            let name = if name.block == own { Known { end_tokens: end, ..name } } else { name };
            let key = *self.known.entry(name).or_insert_with(|| {
                let text: Vec<u32> =
                    (first..end + lookahead_tokens).map(|token| token_of(block_of(token), token)).collect();
                page_key(parent, &text, &[])
            });
            keys.push(key);
            parent = key;
        }
        let tail = (pages * page_tokens..tokens).map(|token| token_of(block_of(token), token)).collect();
        let text = Text::Blocks { ids: blocks.into(), block_tokens: self.block_tokens, own };
        PagePlan { salt: self.salt, tokens, keys: keys.into(), text, tail }
    }
}
