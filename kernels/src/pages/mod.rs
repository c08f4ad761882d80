//! Turns token indices, as an engine names them, into page ids, and refuses what is not whole pages.
//!
//! Behind this door page ids are the only currency: no token index reaches copy code.

#[cfg(test)]
mod tests;

use crate::layout::{PAGE_TOKENS_MAX, PAGE_TOKENS_MIN, is_page_tokens};
use std::collections::HashSet;

/// A page of the space that token indices address: token `t` is on page `t / page_tokens`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenPage(pub u32);

/// The pages that `token_indices` name, in their order. Every group of `page_tokens` indices is one page: it
/// starts at a multiple of `page_tokens` and ascends by one; no page comes twice. Pages may come in any order.
///
/// # Errors
/// The first fault, with the position in `token_indices` and the value that stands there; see [`PagesError`].
pub fn pages_of_tokens(token_indices: &[i64], page_tokens: u32) -> Result<Vec<TokenPage>, PagesError> {
    if !is_page_tokens(page_tokens) {
        return Err(PagesError::PageTokens { page_tokens });
    }
    let mut seen = HashSet::new();
    let mut pages = Vec::with_capacity(token_indices.len() / page_tokens as usize);
    for (group_index, group) in token_indices.chunks(page_tokens as usize).enumerate() {
        let position = group_index * page_tokens as usize;
        let page = page_of_group(group, position, page_tokens)?;
        if !seen.insert(page) {
            return Err(PagesError::PageTwice { position, value: group[0], page });
        }
        pages.push(page);
    }
    Ok(pages)
}

/// Why token indices were refused. `position` is an index into them, `value` the token index that stands there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PagesError {
    /// No page has that many tokens.
    #[error("page_tokens is {page_tokens}, no power of two in {PAGE_TOKENS_MIN}..={PAGE_TOKENS_MAX}")]
    PageTokens {
        /// Tokens of a page as given.
        page_tokens: u32,
    },
    /// A negative index.
    #[error("token index {value} at position {position} is negative")]
    Negative {
        /// Where it stands.
        position: usize,
        /// The token index.
        value: i64,
    },
    /// A page begins at no multiple of `page_tokens`.
    #[error("token index {value} at position {position} begins a page, but is no multiple of {page_tokens}")]
    Misaligned {
        /// Where it stands.
        position: usize,
        /// The token index.
        value: i64,
        /// Tokens of a page.
        page_tokens: u32,
    },
    /// An index inside a page does not follow the one before it: a gap, a repeat or a descent.
    #[error("token index {value} at position {position} stands where {expected} continues the page")]
    NotContiguous {
        /// Where it stands.
        position: usize,
        /// The token index.
        value: i64,
        /// The index that continues the page.
        expected: i64,
    },
    /// The indices end inside a page.
    #[error("the page of token index {value} at position {position} has {tokens} of {page_tokens} tokens")]
    Partial {
        /// Where the page begins.
        position: usize,
        /// The token index that begins it.
        value: i64,
        /// Tokens of it that were given.
        tokens: usize,
        /// Tokens of a page.
        page_tokens: u32,
    },
    /// A page came before.
    #[error("token index {value} at position {position} begins page {} again", page.0)]
    PageTwice {
        /// Where the page begins for the second time.
        position: usize,
        /// The token index that begins it.
        value: i64,
        /// The page.
        page: TokenPage,
    },
    /// The page id does not fit in 32 bits.
    #[error("token index {value} at position {position} lies behind the last possible page")]
    OutOfRange {
        /// Where it stands.
        position: usize,
        /// The token index.
        value: i64,
    },
}

/// The page that a group of at most `page_tokens` indices names; `position` is that of its first index.
fn page_of_group(group: &[i64], position: usize, page_tokens: u32) -> Result<TokenPage, PagesError> {
    let value = group[0];
    if value < 0 {
        return Err(PagesError::Negative { position, value });
    }
    if value % i64::from(page_tokens) != 0 {
        return Err(PagesError::Misaligned { position, value, page_tokens });
    }
    let Ok(page) = u32::try_from(value / i64::from(page_tokens)) else {
        return Err(PagesError::OutOfRange { position, value });
    };
    for (offset, (&value, expected)) in group.iter().zip(value..).enumerate() {
        if value != expected {
            return Err(PagesError::NotContiguous { position: position + offset, value, expected });
        }
    }
    if group.len() != page_tokens as usize {
        return Err(PagesError::Partial { position, value, tokens: group.len(), page_tokens });
    }
    Ok(TokenPage(page))
}
