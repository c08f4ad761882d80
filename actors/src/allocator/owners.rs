//! Which rank owns which new page (requirement A2): the in-sequence zigzag split of a chunk.
//!
//! The new pages of a chunk are cut into `2 * cp_size` consecutive segments whose lengths differ by one at
//! most, the longer ones first; rank `r` has segments `r` and `2 * cp_size - 1 - r`, so that every rank has an
//! early and a late piece of the causal attention. A page that an earlier chunk filled in part keeps its
//! owner. Pure functions of their arguments; owners of stored copies are stored, never recomputed (A5).

use thiserror::Error;

use crate::protocol::{CP_SIZE_MAX, Rank};

/// A chunk that has no owners.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum OwnersError {
    /// A group of no ranks, or of too many.
    #[error("cp_size {cp_size} is not 1..={CP_SIZE_MAX}")]
    CpSize {
        /// What was given.
        cp_size: u8,
    },
    /// Pages or chunks of no tokens.
    #[error("page_tokens {page_tokens} and chunk_tokens {chunk_tokens} are not both above 0")]
    NoTokens {
        /// Tokens per page.
        page_tokens: u64,
        /// Tokens per chunk.
        chunk_tokens: u64,
    },
    /// A chunk that ends before it starts.
    #[error("a chunk of tokens {start_token}..{end_token}")]
    Backwards {
        /// First token of the chunk.
        start_token: u64,
        /// Token after the last one.
        end_token: u64,
    },
    /// The chunk starts inside a page, and the owner of that page was not given; or it was given for a chunk
    /// that starts at a page boundary.
    #[error("a chunk from token {start_token} with partial page owner {partial_owner:?}")]
    PartialOwner {
        /// First token of the chunk.
        start_token: u64,
        /// The owner that was given.
        partial_owner: Option<Rank>,
    },
    /// The owner of the partly filled page is not a rank of the group.
    #[error("owner {owner:?} in a group of {cp_size}")]
    UnknownOwner {
        /// The owner that was given.
        owner: Rank,
        /// Ranks of the group.
        cp_size: u8,
    },
}

/// Appends the owners of `new_pages` whole new pages, in order.
///
/// # Errors
/// [`OwnersError::CpSize`].
pub fn zigzag(cp_size: u8, new_pages: u64, owners: &mut Vec<u8>) -> Result<(), OwnersError> {
    check_cp_size(cp_size)?;
    let segments = 2 * cp_size;
    let (shortest_pages, longer_segments) = (new_pages / u64::from(segments), new_pages % u64::from(segments));
    for segment in 0..segments {
        let pages = shortest_pages + u64::from(u64::from(segment) < longer_segments);
        owners.extend((0..pages).map(|_| segment.min(segments - 1 - segment)));
    }
    Ok(())
}

/// Owners of all pages that tokens `start_token..end_token` touch, in order. When the chunk starts inside a
/// page, the first of them is that page, with `partial_owner`, the owner it has; the split is of the new pages.
///
/// # Errors
/// Every [`OwnersError`].
pub fn extend(
    cp_size: u8,
    page_tokens: u64,
    start_token: u64,
    end_token: u64,
    partial_owner: Option<Rank>,
) -> Result<Vec<u8>, OwnersError> {
    check_cp_size(cp_size)?;
    if page_tokens == 0 {
        return Err(OwnersError::NoTokens { page_tokens, chunk_tokens: end_token.saturating_sub(start_token) });
    }
    if end_token < start_token {
        return Err(OwnersError::Backwards { start_token, end_token });
    }
    let starts_inside = !start_token.is_multiple_of(page_tokens);
    if starts_inside != partial_owner.is_some() {
        return Err(OwnersError::PartialOwner { start_token, partial_owner });
    }
    if let Some(owner) = partial_owner.filter(|owner| owner.0 >= cp_size) {
        return Err(OwnersError::UnknownOwner { owner, cp_size });
    }
    let mut owners = Vec::new();
    if end_token > start_token {
        owners.extend(partial_owner.map(|owner| owner.0));
    }
    let new_pages = end_token.div_ceil(page_tokens) - start_token.div_ceil(page_tokens);
    zigzag(cp_size, new_pages, &mut owners)?;
    Ok(owners)
}

/// Owners of all pages of a prompt of `tokens` tokens that is prefilled in chunks of `chunk_tokens`.
///
/// # Errors
/// [`OwnersError::CpSize`] and [`OwnersError::NoTokens`].
pub fn chunked_prefill(cp_size: u8, page_tokens: u64, tokens: u64, chunk_tokens: u64) -> Result<Vec<u8>, OwnersError> {
    check_cp_size(cp_size)?;
    if page_tokens == 0 || chunk_tokens == 0 {
        return Err(OwnersError::NoTokens { page_tokens, chunk_tokens });
    }
    let mut owners = Vec::new();
    let mut start_token = 0;
    while start_token < tokens {
        let end_token = tokens.min(start_token.saturating_add(chunk_tokens));
        let starts_inside = !start_token.is_multiple_of(page_tokens);
        // The page that both chunks touch comes again as the first of this chunk.
        let partial_owner = if starts_inside { owners.pop().map(Rank) } else { None };
        owners.extend(extend(cp_size, page_tokens, start_token, end_token, partial_owner)?);
        start_token = end_token;
    }
    Ok(owners)
}

/// How many owners at the start of `owners` are equal, 0 when there are none. Looks at eight at a time, as a
/// split of a long chunk has long stretches.
#[inline]
pub fn stretch(owners: &[u8]) -> usize {
    let Some(first) = owners.first() else { return 0 };
    let same = u64::from_le_bytes([*first; 8]);
    let (chunks, rest) = owners.as_chunks::<8>();
    for (at, chunk) in chunks.iter().enumerate() {
        let differing = u64::from_le_bytes(*chunk) ^ same;
        if differing != 0 {
            return at * 8 + (differing.trailing_zeros() / 8) as usize;
        }
    }
    owners.len() - rest.len() + rest.iter().take_while(|owner| *owner == first).count()
}

fn check_cp_size(cp_size: u8) -> Result<(), OwnersError> {
    if (1..=CP_SIZE_MAX).contains(&cp_size) { Ok(()) } else { Err(OwnersError::CpSize { cp_size }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    const VECTORS: &str = include_str!("../../../tests/data/owners.json");

    fn number(row: &Value, field: &str) -> u64 {
        row[field].as_u64().unwrap_or_else(|| panic!("{field} of {row}"))
    }

    fn cp_size(row: &Value) -> u8 {
        u8::try_from(number(row, "cp_size")).expect("a small group")
    }

    fn owners(row: &Value) -> Vec<u8> {
        serde_json::from_value(row["owners"].clone()).expect("owners of a row")
    }

    #[test]
    fn every_vector_of_the_zigzag_split_holds() {
        let vectors: Value = serde_json::from_str(VECTORS).expect("valid vectors");
        let page_tokens = number(&vectors, "page_tokens");
        let rows = |section: &str| vectors[section].as_array().filter(|rows| !rows.is_empty()).expect("rows").clone();
        for row in rows("zigzag") {
            let mut split = Vec::new();
            assert_eq!(zigzag(cp_size(&row), number(&row, "new_pages"), &mut split), Ok(()), "{row}");
            assert_eq!(split, owners(&row), "{row}");
        }
        for row in rows("extend") {
            let partial = row["owner_of_partial_page"].as_u64().map(|owner| Rank(owner as u8));
            let (start, end) = (number(&row, "start_token"), number(&row, "end_token"));
            assert_eq!(extend(cp_size(&row), page_tokens, start, end, partial), Ok(owners(&row)), "{row}");
        }
        for row in rows("chunked_prefill") {
            let (tokens, chunk) = (number(&row, "tokens"), number(&row, "chunk_tokens"));
            assert_eq!(chunked_prefill(cp_size(&row), page_tokens, tokens, chunk), Ok(owners(&row)), "{row}");
        }
    }

    #[test]
    fn a_chunk_that_ends_inside_a_page_leaves_the_page_with_its_owner() {
        let owners = chunked_prefill(2, 64, 100 + 64, 100).expect("a prompt");
        assert_eq!(owners, [0, 1, 0], "tokens 100..164 fill page 1 and start page 2");
        assert_eq!(chunked_prefill(2, 64, 30, 10), Ok(vec![0]), "three chunks in one page");
    }

    #[test]
    fn a_stretch_ends_where_the_owner_changes() {
        for pages in 0..40 {
            for tail in 0..20 {
                let owners: Vec<u8> = std::iter::repeat_n(3, pages).chain(std::iter::repeat_n(4, tail)).collect();
                let expected = if pages > 0 { pages } else { tail };
                assert_eq!(stretch(&owners), expected, "{pages} pages, then {tail} of another owner");
            }
        }
    }

    #[test]
    fn what_has_no_owners_is_refused_with_its_numbers() {
        use OwnersError::{Backwards, CpSize, NoTokens, PartialOwner, UnknownOwner};
        let rank = Some(Rank(1));
        let rows = [
            (extend(0, 64, 0, 64, None), CpSize { cp_size: 0 }),
            (extend(65, 64, 0, 64, None), CpSize { cp_size: 65 }),
            (extend(2, 0, 0, 64, None), NoTokens { page_tokens: 0, chunk_tokens: 64 }),
            (extend(2, 64, 64, 63, None), Backwards { start_token: 64, end_token: 63 }),
            (extend(2, 64, 63, 64, None), PartialOwner { start_token: 63, partial_owner: None }),
            (extend(2, 64, 64, 65, rank), PartialOwner { start_token: 64, partial_owner: rank }),
            (extend(1, 64, 63, 64, rank), UnknownOwner { owner: Rank(1), cp_size: 1 }),
            (chunked_prefill(2, 64, 100, 0), NoTokens { page_tokens: 64, chunk_tokens: 0 }),
        ];
        for (result, error) in rows {
            assert_eq!(result, Err(error));
        }
        assert_eq!(extend(2, 64, 64, 64, None), Ok(vec![]), "no tokens, no pages");
    }
}
