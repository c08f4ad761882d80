//! A CRC-32 over memory that others may write: each part is copied out first, since it is never a slice.

use crate::wire::pool::Span;

/// The CRC-32 of `spans`, one behind the other. `part` is where they are copied to: [`PART_BYTES`] are enough, more do
/// not stay in the nearest cache.
pub(super) fn of(spans: &[Span], part: &mut [u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    for span in spans {
        let mut left = *span;
        while left.bytes > 0 {
            let bytes = left.bytes.min(part.len());
            left.read(&mut part[..bytes]);
            hasher.update(&part[..bytes]);
            left = left.skip(bytes);
        }
    }
    hasher.finalize()
}

/// Small enough to stay in a core's cache.
pub(super) const PART_BYTES: usize = 32 << 10;
