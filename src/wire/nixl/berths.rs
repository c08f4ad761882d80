//! Where a peer's bytes arrive: memory of one connection, in equal parts, outside every pool.

use std::io;
use std::ptr::NonNull;

use crate::wire::pool::Span;

/// How the memory of a connection is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    /// Bytes of one berth, at least one.
    pub(super) berth_bytes: u64,
    /// Berths, at least one.
    pub(super) berths: u32,
}

/// The memory. Frame `n` arrives in the berth `n` modulo their number.
#[derive(Debug)]
pub(super) struct Berths {
    cut: Cut,
    start: NonNull<u8>,
    /// Whether its addresses may be given to others once it is dropped.
    pub(super) is_quiet: bool,
}

// SAFETY: memory that belongs to this alone.
unsafe impl Send for Berths {}

impl Cut {
    /// Bytes of all berths; `None` for more than a connection may have, or for none.
    pub(super) fn bytes(self) -> Option<u64> {
        let bytes = self.berth_bytes.checked_mul(u64::from(self.berths))?;
        (1..=BYTES_MAX).contains(&bytes).then_some(bytes)
    }

    /// Where a frame stands behind the start.
    pub(super) fn offset(self, number: u32) -> u64 {
        u64::from(number % self.berths) * self.berth_bytes
    }
}

impl Berths {
    /// Fresh memory.
    ///
    /// # Errors
    /// A cut that may not be, or no memory.
    pub(super) fn new(cut: Cut) -> io::Result<Self> {
        let bytes = cut.bytes().ok_or(io::ErrorKind::InvalidInput)? as usize;
        let (read_write, private) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: fresh memory at an address that the system chooses.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, read_write, private, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { cut, start, is_quiet: false })
    }

    /// All of it.
    pub(super) fn span(&self) -> Span {
        Span { start: self.start, bytes: self.bytes() }
    }

    /// The first `bytes` bytes of the berth of a frame; `None` when it has fewer.
    pub(super) fn of(&self, number: u32, bytes: u64) -> Option<Span> {
        let inside = bytes <= self.cut.berth_bytes;
        let all = inside.then(|| self.span().skip(self.cut.offset(number) as usize))?;
        Some(Span { bytes: bytes as usize, ..all })
    }

    fn bytes(&self) -> usize {
        self.cut.bytes().expect("looked at by `new`") as usize
    }
}

impl Drop for Berths {
    fn drop(&mut self) {
        let (start, bytes) = (self.start.as_ptr().cast(), self.bytes());
        if self.is_quiet {
            // SAFETY: mapped by `new`, and not used again.
            unsafe { libc::munmap(start, bytes) };
            return;
        }
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        // A process of this host that has begun to write by address may still do so: nothing else ever stands there.
        // SAFETY: the range is that of `new`; what stood in it is not used again.
        let sealed = unsafe { libc::mmap(start, bytes, libc::PROT_NONE, flags, -1, 0) };
        if sealed == libc::MAP_FAILED {
            // The memory stays as it is, and nobody's: as good, and dearer.
            tracing::warn!(bytes, error = %io::Error::last_os_error(), "memory of a broken connection is kept");
        }
    }
}

/// Most bytes of one connection.
const BYTES_MAX: u64 = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;

    const CUT: Cut = Cut { berth_bytes: 4_096, berths: 3 };

    /// Writes a byte to `to` as another process would: by its address alone.
    fn write_by_address(to: *mut u8) -> isize {
        let byte = 7_u8;
        let here = libc::iovec { iov_base: std::ptr::from_ref(&byte).cast_mut().cast(), iov_len: 1 };
        let there = libc::iovec { iov_base: to.cast(), iov_len: 1 };
        // SAFETY: the call checks the address as it does for another process, and this byte is nobody else's.
        unsafe { libc::process_vm_writev(libc::getpid(), &here, 1, &there, 1, 0) }
    }

    #[test]
    fn frames_stand_in_berths_of_their_own_as_often_as_there_are() {
        let berths = Berths::new(CUT).expect("memory");
        let start = |number, bytes| berths.of(number, bytes).map(|span| span.start.as_ptr() as usize);
        let first = start(0, 1).expect("a berth");
        assert_eq!([1, 2, 3, 7].map(|number| start(number, 4_096).expect("a berth") - first), [4_096, 8_192, 0, 4_096]);
        assert_eq!(start(1, 4_097), None);
        for wrong in [(0, 1), (1, 0), (u64::MAX, 2), (BYTES_MAX, 2)] {
            assert!(Berths::new(Cut { berth_bytes: wrong.0, berths: wrong.1 }).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn what_comes_late_by_address_finds_nothing() {
        let berths = Berths::new(CUT).expect("memory");
        let start = berths.span().start.as_ptr();
        assert_eq!(write_by_address(start), 1, "while they live: {}", io::Error::last_os_error());
        drop(berths);
        assert_eq!(write_by_address(start), -1);
        assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::EFAULT));
        // Nothing else is put there.
        let others: Vec<Berths> = (0..8).map(|_| Berths::new(CUT).expect("memory")).collect();
        assert!(others.iter().all(|other| other.span().start.as_ptr() != start));
    }
}
