//! What a prompt is to the cache: the keys of its pages and the tokens after them.
//!
//! A key says which tokens, of which model and tenant, a page stands for, from the first token on; it is all an
//! engine has to know about the pages of a prompt. With lookahead a key also covers the token after the page.

mod blocks;
mod tail;
#[cfg(test)]
mod tests;
mod text;

use std::sync::Arc;

use hicached_actors::protocol::{Key, page_keys};

pub use blocks::BlockPlans;
pub use tail::Tail;

use self::text::Text;

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
    text: Text,
    /// The tokens after those pages: fewer than a page, with lookahead up to a page.
    pub tail: Vec<u32>,
}

impl PagePlan {
    /// The plan of `tokens` below `salt`; `extra` gives the extra bytes of page `i`, usually none.
    pub fn of_tokens<'a>(salt: Key, tokens: &[u32], paging: Paging, extra: impl Fn(usize) -> &'a [u8]) -> Self {
        let Paging { page_tokens, lookahead_tokens } = paging;
        let keys = page_keys(salt, tokens, page_tokens, lookahead_tokens, &extra);
        let tail = tokens[keys.len() * page_tokens as usize..].to_vec();
        Self { salt, tokens: tokens.len() as u32, keys: keys.into(), text: Text::Tokens(tokens.into()), tail }
    }

    /// A plan of whole pages of `page_tokens` tokens whose keys are made up: its tokens follow from them.
    pub fn of_keys(salt: Key, keys: Arc<[Key]>, page_tokens: u32) -> Self {
        let (tokens, text) = (keys.len() as u32 * page_tokens, Text::Keys { keys: keys.clone(), page_tokens });
        Self { salt, tokens, keys, text, tail: Vec::new() }
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

    /// The token at `place`, which lies before the end of the prompt.
    pub fn token(&self, place: u32) -> u32 {
        self.text.token(place)
    }

    /// The key that the page after the keyed ones is chained to.
    pub fn parent(&self) -> Key {
        self.keys.last().copied().unwrap_or(self.salt)
    }
}
