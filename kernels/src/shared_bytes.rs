//! A piece of memory that other processes may map too.
//!
//! It is never a slice: another process may write any of it at any time, so a `&[u8]` over it would be a lie.
//! Bytes go in and out by raw copies only.

use std::ptr::NonNull;

/// Address and length of memory shared with other processes or the device. A plain handle: copying it copies no
/// bytes, dropping it frees none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedBytes {
    start: NonNull<u8>,
    len_bytes: u64,
}

// SAFETY: the contract of `SharedBytes::new` covers every thread of the process.
unsafe impl Send for SharedBytes {}
// SAFETY: as for `Send`; a shared handle gives no access that an own one does not.
unsafe impl Sync for SharedBytes {}

impl SharedBytes {
    /// Names `len_bytes` bytes from `start` on.
    ///
    /// # Safety
    /// For as long as this handle, or a copy of it, is passed to a function of this crate:
    /// - all `len_bytes` bytes from `start` are one mapping, readable and writable by this process on every
    ///   thread, and `start + len_bytes` does not wrap around the address space;
    /// - no Rust reference to any of the bytes is alive, other than to atomics or `UnsafeCell`s;
    /// - no thread of this process touches bytes of a page while a function of this crate writes them, nor
    ///   writes them while one reads them: the op that owns the pages is the lock. Other processes may write at
    ///   any time; the bytes read are then any mixture of old and new ones.
    pub const unsafe fn new(start: NonNull<u8>, len_bytes: u64) -> Self {
        Self { start, len_bytes }
    }

    /// Bytes of the memory.
    pub const fn len_bytes(self) -> u64 {
        self.len_bytes
    }

    /// Whether the memory begins at a multiple of `align_bytes`.
    pub(crate) fn is_aligned(self, align_bytes: u64) -> bool {
        (self.start.as_ptr().addr() as u64).is_multiple_of(align_bytes)
    }

    /// Whether the two share an address.
    pub(crate) fn overlaps(self, other: Self) -> bool {
        let start = self.start.as_ptr().addr() as u64;
        let other_start = other.start.as_ptr().addr() as u64;
        // Neither sum wraps, by the contract of `new`. Memory of zero bytes overlaps nothing.
        start < other_start + other.len_bytes
            && other_start < start + self.len_bytes
            && self.len_bytes > 0
            && other.len_bytes > 0
    }

    /// Copies `bytes` bytes from `from` at `from_offset` to here at `offset`.
    ///
    /// # Panics
    /// When either end leaves its memory, or the two memories overlap. Callers check both before their first
    /// copy; this is the second side of that check.
    pub(crate) fn copy_from(self, offset: u64, from: Self, from_offset: u64, bytes: u64) {
        assert!(self.holds(offset, bytes), "destination bytes {offset}+{bytes} of {}", self.len_bytes);
        assert!(from.holds(from_offset, bytes), "source bytes {from_offset}+{bytes} of {}", from.len_bytes);
        assert!(!self.overlaps(from), "the two memories are one");
        // SAFETY: both ranges lie inside their memory (asserted), which is mapped and untouched by other threads
        // for the time of the call (contract of `new`), and the two memories share no address (asserted).
        unsafe {
            let source = from.start.as_ptr().add(from_offset as usize);
            let destination = self.start.as_ptr().add(offset as usize);
            std::ptr::copy_nonoverlapping(source, destination, bytes as usize);
        }
    }

    /// The eight bytes at `offset` as a little-endian number.
    ///
    /// # Panics
    /// When they leave the memory, or do not stand at a multiple of eight.
    pub(crate) fn word_at(self, offset: u64) -> u64 {
        assert!(self.holds(offset, 8), "bytes {offset}+8 of {}", self.len_bytes);
        // SAFETY: the offset lies inside the memory (asserted).
        let word = unsafe { self.start.as_ptr().add(offset as usize) }.cast::<u64>();
        assert!(word.is_aligned(), "a word at byte {offset}");
        // SAFETY: the word lies inside the memory and is aligned (asserted); the memory is mapped (contract of
        // `new`). Another process may write it meanwhile: a volatile read gives some value and assumes nothing
        // about the next one.
        u64::from_le(unsafe { word.read_volatile() })
    }

    fn holds(self, offset: u64, bytes: u64) -> bool {
        offset.checked_add(bytes).is_some_and(|end| end <= self.len_bytes)
    }
}

/// Offsets are 64-bit; they become addresses without a check because addresses are 64-bit as well.
const _: () = assert!(usize::BITS == 64, "hicached needs a 64-bit target");
