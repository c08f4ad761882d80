//! A CRC-32 over memory that others may write: each part is copied out first, since it is never a slice.

use crate::wire::pool::Span;

/// The CRC-32 of `spans`, one behind the other.
pub(super) fn of(spans: &[Span]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    let mut part = vec![0_u8; PART_BYTES];
    for span in spans {
        let mut left = *span;
        while left.bytes > 0 {
            let bytes = left.bytes.min(PART_BYTES);
            // SAFETY: `bytes` bytes of the span are mapped for the time of the call (contract of `Span`), the part is
            // as long, and memory of this thread overlaps no pool.
            unsafe { std::ptr::copy_nonoverlapping(left.start.as_ptr(), part.as_mut_ptr(), bytes) };
            hasher.update(&part[..bytes]);
            left = left.skip(bytes);
        }
    }
    hasher.finalize()
}

/// Small enough to stay in a core's cache.
const PART_BYTES: usize = 32 << 10;
