//! The bytes of a synthetic page: a function of what the page stands for, its component and its layer.
//!
//! The content key of a page already chains the tenant's salt and every token before it, so a page of another
//! tenant, prefix, position, component or layer differs in nearly every 16-byte block, and every block of a page
//! differs from the next.

use hicached_actors::protocol::{Key, OpId};

/// What a piece of a page (one layer of one component) is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seed(u64);

impl Seed {
    /// The seed of `content` for component number `component` and layer `layer`.
    pub(super) fn new(content: Key, component: u8, layer: u32) -> Self {
        let (low, high) = halves(content.0);
        let place = u64::from(component) << 32 | u64::from(layer);
        Self(fold(fold(low ^ PLACE, high ^ MULTIPLIER), fold(place ^ MULTIPLIER, PLACE)))
    }

    /// Fills `bytes`, a multiple of 16.
    pub(super) fn fill(self, bytes: &mut [u8]) {
        let (blocks, rest) = bytes.as_chunks_mut::<16>();
        assert!(rest.is_empty(), "pages are whole blocks of 16 bytes");
        let mut at = self.0;
        for block in blocks {
            at = at.wrapping_add(STEP);
            // One 64 x 64 multiplication gives 16 bytes; folding the halves lets every input bit reach both words.
            let wide = u128::from(at).wrapping_mul(u128::from(at ^ PLACE));
            let (low, high) = (wide as u64, (wide >> 64) as u64);
            *block = (u128::from(low ^ high.rotate_left(32)) | u128::from(high ^ at) << 64).to_le_bytes();
        }
    }
}

/// What a page holds that is not full yet: nobody else has it, and it changes with every token.
pub(super) fn partial(session: OpId, position: u32, valid_tokens: u32) -> Key {
    let (low, high) = halves(session.0);
    let place = u64::from(position) << 32 | u64::from(valid_tokens);
    let mut key = [0; 16];
    key[..8].copy_from_slice(&fold(low ^ PLACE, place ^ MULTIPLIER).to_le_bytes());
    key[8..].copy_from_slice(&fold(high ^ MULTIPLIER, place ^ PLACE).to_le_bytes());
    Key(key)
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
    Some((first as u32 * 8, 1 + wrong.count() as u64))
}

fn halves(bytes: [u8; 16]) -> (u64, u64) {
    let whole = u128::from_le_bytes(bytes);
    (whole as u64, (whole >> 64) as u64)
}

fn fold(a: u64, b: u64) -> u64 {
    let wide = u128::from(a).wrapping_mul(u128::from(b));
    (wide as u64) ^ ((wide >> 64) as u64)
}

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
const MULTIPLIER: u64 = 0xd6e8_feb8_6659_fd93;
const PLACE: u64 = 0xa076_1d64_78bd_642f;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_page_component_layer_and_block_has_bytes_of_its_own() {
        let mut seen = BTreeSet::new();
        let mut blocks = 0;
        for page in 0..16 {
            for component in 0..4 {
                for layer in 0..8 {
                    let mut bytes = [0; 256];
                    Seed::new(Key([page; 16]), component, layer).fill(&mut bytes);
                    blocks += 16;
                    seen.extend(bytes.chunks(8).map(<[u8]>::to_vec));
                }
            }
        }
        assert_eq!(seen.len(), blocks * 2, "no 64-bit word comes twice");
    }

    #[test]
    fn a_wrong_word_is_found_and_all_of_them_counted() {
        let mut want = [0; 64];
        Seed::new(Key([1; 16]), 0, 0).fill(&mut want);
        assert_eq!(difference(&want, &want), None);
        let mut got = want;
        got[17] ^= 1;
        got[63] ^= 1;
        assert_eq!(difference(&got, &want), Some((16, 2)));
    }
}
