//! A 64-bit hash of a page, to tell copies apart while looking for a fault. Diagnostic: not a checksum of stored
//! data, and no defence against anyone.
//!
//! Over the little-endian 64-bit words of the page in record order: `h = rotate_left(h ^ word, 29) * P`, from
//! `h = S`. At the end `h ^= bytes of the page`, then `h ^= h >> 32; h *= P; h ^= h >> 29`. The multiplication
//! wraps; `P` is 0x9E3779B97F4A7C15 (2^64 / golden ratio, odd), `S` 0x6869636163686564 ("hicached"). Every step can
//! be undone, so two pages that differ in one word only never hash alike.

use crate::shared_bytes::SharedBytes;

/// Hashes spans of `(offset, bytes)`, in order, as one row of bytes. The bytes are multiples of 8.
pub(super) fn of_spans(memory: SharedBytes, spans: impl Iterator<Item = (u64, u64)>) -> u64 {
    let mut hash = SEED;
    let mut total_bytes = 0;
    for (offset, bytes) in spans {
        for word_offset in (offset..offset + bytes).step_by(8) {
            hash = (hash ^ memory.word_at(word_offset)).rotate_left(29).wrapping_mul(MULTIPLIER);
        }
        total_bytes += bytes;
    }
    finish(hash ^ total_bytes)
}

fn finish(mut hash: u64) -> u64 {
    hash ^= hash >> 32;
    hash = hash.wrapping_mul(MULTIPLIER);
    hash ^ (hash >> 29)
}

const SEED: u64 = 0x6869_6361_6368_6564;
const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;
