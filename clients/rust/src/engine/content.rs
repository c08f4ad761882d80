//! The bytes of a synthetic page: a function of the tokens it holds and of all before them, its component and its
//! layer.
//!
//! Every token of a page has a value that covers the key of the page before and each token up to its own. So a page
//! of another tenant, prefix or position differs from its first token on, what a page holds does not depend on what
//! comes after it, and a page that is filled further keeps what it has.
//!
//! One layer of one component is a row of equal units: a unit for each token where that is whole words, as with the
//! pages of real models, and one for several tokens in miniature pages. A unit holds what its tokens so far make.

use std::ops::Range;
use std::sync::Arc;

use hicached_actors::protocol::Key;

/// The values of the tokens that a page holds, from its first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rows(Arc<[u64]>);

impl Rows {
    /// Of a page with `tokens` behind the page whose key is `parent`.
    pub(super) fn new(parent: Key, tokens: impl Iterator<Item = u32>) -> Self {
        let whole = u128::from_le_bytes(parent.0);
        let mut so_far = fold(whole as u64 ^ PLACE, (whole >> 64) as u64 ^ MULTIPLIER);
        let values = tokens.map(|token| {
            so_far = fold(so_far ^ u64::from(token), MULTIPLIER).wrapping_add(STEP);
            so_far
        });
        Self(values.collect())
    }

    /// Tokens that the page holds.
    pub(super) fn tokens(&self) -> u32 {
        self.0.len() as u32
    }
}

/// One layer of one component of a page: what makes it differ from the others, and how it is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grain {
    place: u64,
    unit_tokens: u32,
    unit_bytes: u32,
}

impl Grain {
    /// Layer `layer` of component number `component`, of `page_bytes` bytes for `page_tokens` tokens.
    pub(super) fn new(component: u8, layer: u32, page_tokens: u32, page_bytes: u32) -> Self {
        assert!(page_bytes > 0 && page_bytes.is_multiple_of(WORD_BYTES), "pages are whole words, {page_bytes} bytes");
        let units = divisor(page_tokens, page_bytes / WORD_BYTES);
        let place = u64::from(component) << 32 | u64::from(layer);
        let (unit_tokens, unit_bytes) = (page_tokens / units, page_bytes / units);
        Self { place: fold(place ^ MULTIPLIER, PLACE), unit_tokens, unit_bytes }
    }

    /// The bytes in which the tokens `from_token..to_token` stand: those of every unit that has one of them.
    pub(super) fn bytes(&self, from_token: u32, to_token: u32) -> Range<usize> {
        let start = from_token / self.unit_tokens * self.unit_bytes;
        start as usize..(to_token.div_ceil(self.unit_tokens) * self.unit_bytes) as usize
    }

    /// Fills `bytes`, those of the tokens of `rows` from `from_token` on.
    pub(super) fn fill(&self, rows: &Rows, from_token: u32, bytes: &mut [u8]) {
        let units = bytes.chunks_exact_mut(self.unit_bytes as usize);
        for (unit, bytes) in (from_token / self.unit_tokens..).zip(units) {
            let end = ((unit + 1) * self.unit_tokens).min(rows.tokens());
            fill_unit(fold(rows.0[end as usize - 1] ^ self.place, MULTIPLIER), bytes);
        }
    }
}

fn fill_unit(mut at: u64, bytes: &mut [u8]) {
    let (blocks, rest) = bytes.as_chunks_mut::<16>();
    for block in blocks {
        *block = next_block(&mut at);
    }
    if !rest.is_empty() {
        rest.copy_from_slice(&next_block(&mut at)[..rest.len()]);
    }
}

/// One 64 x 64 multiplication gives 16 bytes; folding the halves lets every input bit reach both words.
fn next_block(at: &mut u64) -> [u8; 16] {
    *at = at.wrapping_add(STEP);
    let wide = u128::from(*at).wrapping_mul(u128::from(*at ^ PLACE));
    let (low, high) = (wide as u64, (wide >> 64) as u64);
    (u128::from(low ^ high.rotate_left(32)) | u128::from(high ^ *at) << 64).to_le_bytes()
}

/// Byte offset of the first word in which the two differ, and how many words do.
pub(super) fn difference(got: &[u8], want: &[u8]) -> Option<(u32, u64)> {
    if got == want {
        return None;
    }
    let (got, _) = got.as_chunks::<8>();
    let (want, _) = want.as_chunks::<8>();
    let mut wrong = got.iter().zip(want).enumerate().filter(|(_, (got, want))| got != want);
    let (first, _) = wrong.next()?;
    Some((first as u32 * WORD_BYTES, 1 + wrong.count() as u64))
}

/// The greatest common divisor.
fn divisor(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { divisor(b, a % b) }
}

fn fold(a: u64, b: u64) -> u64 {
    let wide = u128::from(a).wrapping_mul(u128::from(b));
    (wide as u64) ^ ((wide >> 64) as u64)
}

/// What a pool is read and written by.
const WORD_BYTES: u32 = 8;
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
const MULTIPLIER: u64 = 0xd6e8_feb8_6659_fd93;
const PLACE: u64 = 0xa076_1d64_78bd_642f;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn piece(grain: Grain, rows: &Rows, page_tokens: u32) -> Vec<u8> {
        let mut bytes = vec![0; grain.bytes(0, page_tokens).end];
        let held = grain.bytes(0, rows.tokens());
        grain.fill(rows, 0, &mut bytes[held]);
        bytes
    }

    #[test]
    fn every_page_component_layer_and_word_has_bytes_of_its_own() {
        for page_bytes in [64, 256, 16 * 656] {
            let (mut seen, mut words) = (BTreeSet::new(), 0);
            for page in 0..16 {
                let rows = Rows::new(Key([page; 16]), 0..16);
                for component in 0..4 {
                    for layer in 0..8 {
                        let bytes = piece(Grain::new(component, layer, 16, page_bytes), &rows, 16);
                        words += bytes.len() / 8;
                        seen.extend(bytes.chunks(8).map(<[u8]>::to_vec));
                    }
                }
            }
            assert_eq!(seen.len(), words, "no 64-bit word comes twice in pieces of {page_bytes}");
        }
    }

    #[test]
    fn pieces_of_every_size_are_divided_evenly() {
        for (page_tokens, page_bytes, unit) in [
            (64, 41_984, (1, 656)),
            (64, 36_864, (1, 576)),
            (64, 73_728, (1, 1_152)),
            (64, 8_448, (2, 264)),
            (64, 128, (4, 8)),
            (64, 64, (8, 8)),
            (512, 128, (32, 8)),
            (16, 16, (8, 8)),
        ] {
            let grain = Grain::new(0, 0, page_tokens, page_bytes);
            assert_eq!((grain.unit_tokens, grain.unit_bytes), unit, "{page_bytes} bytes, {page_tokens} tokens");
            assert_eq!(grain.bytes(0, page_tokens), 0..page_bytes as usize);
        }
    }

    #[test]
    fn a_page_that_is_filled_further_keeps_what_it_has() {
        let full = Rows::new(Key([1; 16]), 100..164);
        for page_bytes in [64, 128, 64 * 24] {
            let grain = Grain::new(1, 2, 64, page_bytes);
            let whole = piece(grain, &full, 64);
            let mut grown = vec![0; page_bytes as usize];
            let mut from = 0;
            for tokens in [1, 5, 20, 63, 64] {
                let rows = Rows::new(Key([1; 16]), (100..164).take(tokens));
                let tokens = tokens as u32;
                grain.fill(&rows, from, &mut grown[grain.bytes(from, tokens)]);
                let held = grain.bytes(0, tokens);
                let mut want = vec![0; held.len()];
                grain.fill(&rows, 0, &mut want);
                assert_eq!(grown[held], want, "{tokens} tokens in {page_bytes} bytes");
                let whole_units = grain.bytes(0, tokens / grain.unit_tokens * grain.unit_tokens);
                assert_eq!(grown[whole_units.clone()], whole[whole_units]);
                from = tokens;
            }
            assert_eq!(grown, whole);
        }
    }

    #[test]
    fn another_token_shows_in_its_own_unit_and_in_all_behind_it() {
        let grain = Grain::new(0, 0, 64, 64 * 16);
        let tokens = |odd: Option<u32>| (0..64).map(move |token| if Some(token) == odd { 1_000 } else { token });
        let right = piece(grain, &Rows::new(Key([1; 16]), tokens(None)), 64);
        for odd in [0, 1, 30, 63] {
            let wrong = piece(grain, &Rows::new(Key([1; 16]), tokens(Some(odd))), 64);
            assert_eq!(difference(&wrong, &right), Some((odd * 16, u64::from(64 - odd) * 2)));
        }
    }

    #[test]
    fn a_wrong_word_is_found_and_all_of_them_counted() {
        let want = piece(Grain::new(0, 0, 16, 64), &Rows::new(Key([1; 16]), 0..16), 16);
        assert_eq!(difference(&want, &want), None);
        let mut got = want.clone();
        got[17] ^= 1;
        got[63] ^= 1;
        assert_eq!(difference(&got, &want), Some((16, 2)));
    }
}
