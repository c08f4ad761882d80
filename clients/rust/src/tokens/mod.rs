//! What a prompt is to the cache: the keys of its pages and the tokens after them.
//!
//! A key says which tokens, of which model and tenant, a page stands for, from the first token on; it is all an
//! engine has to know about the pages of a prompt. With lookahead a key also covers the token after the page, so
//! what a page *holds* is named apart: its content key, over the parent and the page's own tokens.

mod blocks;
mod tail;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use hicached_actors::protocol::{Key, page_key, page_keys};

pub use blocks::BlockPlans;
pub use tail::Tail;

/// How tokens become pages in one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paging {
    /// Tokens in a page.
    pub page_tokens: u32,
    /// 1 when a key also covers the token after its page.
    pub lookahead_tokens: u32,
}

/// A prompt as keys. Cloning it copies the tail only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PagePlan {
    /// Root of the keys, which messages carry as the salt.
    pub salt: Key,
    /// Tokens of the prompt.
    pub tokens: u32,
    /// Keys of the pages that can be keyed, from the first.
    pub keys: Arc<[Key]>,
    /// What each of those pages holds; `None` when that is the key itself.
    pub contents: Option<Arc<[Key]>>,
    /// The tokens after those pages: fewer than a page, with lookahead up to a page.
    pub tail: Vec<u32>,
}

impl PagePlan {
    /// The plan of `tokens` below `salt`; `extra` gives the extra bytes of page `i`, usually none.
    pub fn of_tokens<'a>(salt: Key, tokens: &[u32], paging: Paging, extra: impl Fn(usize) -> &'a [u8]) -> Self {
        let Paging { page_tokens, lookahead_tokens } = paging;
        let keys = page_keys(salt, tokens, page_tokens, lookahead_tokens, &extra);
        let page = page_tokens as usize;
        let contents = (lookahead_tokens > 0).then(|| {
            let parents = std::iter::once(&salt).chain(&keys);
            let pages = tokens.chunks(page).enumerate().zip(parents).take(keys.len());
            pages.map(|((index, tokens), parent)| page_key(*parent, tokens, extra(index))).collect()
        });
        let tail = tokens[keys.len() * page..].to_vec();
        Self { salt, tokens: tokens.len() as u32, keys: keys.into(), contents, tail }
    }

    /// The same prompt cut to the pages that can be keyed: for a replay in which tails do not count.
    #[must_use]
    pub fn whole_pages(mut self) -> Self {
        self.tokens -= self.tail.len() as u32;
        self.tail.clear();
        self
    }

    /// Pages that can be keyed.
    pub fn pages(&self) -> u32 {
        self.keys.len() as u32
    }

    /// What page `position` holds; `None` beyond the keyed pages.
    pub fn content(&self, position: u32) -> Option<Key> {
        self.contents.as_ref().unwrap_or(&self.keys).get(position as usize).copied()
    }

    /// The key that the page after the keyed ones is chained to.
    pub fn parent(&self) -> Key {
        self.keys.last().copied().unwrap_or(self.salt)
    }
}
