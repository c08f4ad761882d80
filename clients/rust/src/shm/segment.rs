//! A file mapped shared: bytes in and out by relaxed 64-bit words, never by a slice.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock, ftruncate};

/// A file mapped readable, writable and shared, for as long as this value lives.
///
/// Whoever holds the path can write the bytes at any time, so nothing here lends a reference to them other than
/// to atomics. The file must not be made shorter while it is mapped: the process that touches a lost page then
/// gets SIGBUS. Its maker never truncates it, and its folder belongs to the deployment.
#[derive(Debug)]
pub struct Segment {
    map: MmapRaw,
    file: File,
    path: PathBuf,
}

impl Segment {
    /// Makes a new file of `bytes` zero bytes, readable by its user alone, and maps it. Space is taken at once, so
    /// that a full file system is an error here and not a signal later.
    ///
    /// # Errors
    /// [`ShmError::Io`]: the file exists, cannot be made, or has no room; [`ShmError::Size`] for 0 bytes.
    pub fn create(path: &Path, bytes: u64) -> Result<Self, ShmError> {
        if bytes == 0 {
            return Err(ShmError::Size { path: path.into(), bytes, wanted_bytes: 1 });
        }
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path);
        let file = file.map_err(|source| ShmError::io("create", path, source))?;
        let sized = match fallocate(&file, FallocateFlags::empty(), 0, bytes) {
            Err(rustix::io::Errno::OPNOTSUPP) => ftruncate(&file, bytes),
            other => other,
        };
        if let Err(errno) = sized {
            // The file was made by this call and is of no use to anybody; the first error is the one to report.
            std::fs::remove_file(path).ok();
            return Err(ShmError::io("size", path, errno.into()));
        }
        Self::map(file, path, bytes)
    }

    /// Maps an existing file, whole.
    ///
    /// # Errors
    /// [`ShmError::Io`] when it cannot be opened or mapped; [`ShmError::Size`] when it is empty.
    pub fn open(path: &Path) -> Result<Self, ShmError> {
        let file = OpenOptions::new().read(true).write(true).open(path);
        let file = file.map_err(|source| ShmError::io("open", path, source))?;
        let bytes = file.metadata().map_err(|source| ShmError::io("measure", path, source))?.len();
        if bytes == 0 {
            return Err(ShmError::Size { path: path.into(), bytes, wanted_bytes: 1 });
        }
        Self::map(file, path, bytes)
    }

    /// Maps an existing file, whole, for reading alone: a store to one of its words ends the process. It takes no part
    /// in locks.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_to_read(path: &Path) -> Result<Self, ShmError> {
        let file = File::open(path).map_err(|source| ShmError::io("open", path, source))?;
        let bytes = file.metadata().map_err(|source| ShmError::io("measure", path, source))?.len();
        if bytes == 0 {
            return Err(ShmError::Size { path: path.into(), bytes, wanted_bytes: 1 });
        }
        let map = MmapOptions::new().len(bytes as usize).map_raw_read_only(&file);
        let map = map.map_err(|source| ShmError::io("map", path, source))?;
        Ok(Self { map, file, path: path.into() })
    }

    fn map(file: File, path: &Path, bytes: u64) -> Result<Self, ShmError> {
        let map = MmapOptions::new().len(bytes as usize).map_raw(&file);
        let map = map.map_err(|source| ShmError::io("map", path, source))?;
        Ok(Self { map, file, path: path.into() })
    }

    /// Takes the file for this process until the segment is dropped, or the process ends in any way. The answer is
    /// `false` while another process, or another segment of this one, holds it.
    ///
    /// # Errors
    /// [`ShmError::Io`] when the file system has no locks.
    pub fn try_lock(&self) -> Result<bool, ShmError> {
        match flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
            Err(errno) => Err(ShmError::io("lock", &self.path, errno.into())),
        }
    }

    /// Where the file stands.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes mapped.
    pub fn len_bytes(&self) -> u64 {
        self.map.len() as u64
    }

    /// The first of `bytes` bytes at `offset`, valid while this segment lives. Other processes may write them at
    /// any time.
    ///
    /// # Errors
    /// [`ShmError::Range`] when they leave the mapping.
    pub fn pointer(&self, offset: u64, bytes: u64) -> Result<NonNull<u8>, ShmError> {
        if offset.checked_add(bytes).is_none_or(|end| end > self.len_bytes()) {
            return Err(self.range(offset, bytes));
        }
        let start = NonNull::new(self.map.as_mut_ptr()).expect("a mapping never stands at address 0");
        // SAFETY: the offset lies inside the mapping (compared above) or directly behind it.
        Ok(unsafe { start.add(offset as usize) })
    }

    /// The 64-bit word at `offset`.
    ///
    /// # Errors
    /// [`ShmError::Range`] when it leaves the mapping, or stands at no multiple of 8.
    pub fn word(&self, offset: u64) -> Result<&AtomicU64, ShmError> {
        if !offset.is_multiple_of(8) {
            return Err(self.range(offset, 8));
        }
        let word = self.pointer(offset, 8)?;
        // SAFETY: the word lies inside the mapping, which lives as long as the borrow of `self`; mappings start at
        // a page, so a multiple of 8 is aligned. All threads of this process reach these bytes through atomics, or
        // through raw copies whose contract excludes bytes that are words (kernels::SharedBytes).
        Ok(unsafe { AtomicU64::from_ptr(word.cast().as_ptr()) })
    }

    /// Writes `bytes` at `offset`, word by word; a reader at the same time sees any mixture of old and new words.
    ///
    /// # Errors
    /// [`ShmError::Range`] when they leave the mapping, or offset or length is no multiple of 8; nothing is written.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), ShmError> {
        let (parts, rest) = bytes.as_chunks::<8>();
        let words = self.words(offset, bytes.len() as u64, rest)?;
        for (word, part) in words.iter().zip(parts) {
            word.store(u64::from_ne_bytes(*part), Ordering::Relaxed);
        }
        Ok(())
    }

    /// Reads `bytes.len()` bytes at `offset`, word by word.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), ShmError> {
        let len_bytes = bytes.len() as u64;
        let (parts, rest) = bytes.as_chunks_mut::<8>();
        let words = self.words(offset, len_bytes, rest)?;
        for (word, part) in words.iter().zip(parts) {
            *part = word.load(Ordering::Relaxed).to_ne_bytes();
        }
        Ok(())
    }

    /// The words of `len_bytes` bytes at `offset`.
    fn words(&self, offset: u64, len_bytes: u64, rest: &[u8]) -> Result<&[AtomicU64], ShmError> {
        if !rest.is_empty() || !offset.is_multiple_of(8) {
            return Err(self.range(offset, len_bytes));
        }
        let start = self.pointer(offset, len_bytes)?;
        // SAFETY: as in `word`, for `len_bytes / 8` words in a row; a mapping is smaller than isize::MAX.
        Ok(unsafe { std::slice::from_raw_parts(start.cast::<AtomicU64>().as_ptr(), len_bytes as usize / 8) })
    }

    fn range(&self, offset: u64, bytes: u64) -> ShmError {
        ShmError::Range { path: self.path.clone(), offset, bytes, len_bytes: self.len_bytes() }
    }
}

/// Why shared memory cannot be had, or a place in it does not exist.
#[derive(Debug, thiserror::Error)]
pub enum ShmError {
    /// The operating system refused.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        /// What was tried: `create`, `open`, `size`, `measure`, `map`, `lock`, `remove`.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// Its error.
        source: io::Error,
    },
    /// The file has another size than its user needs.
    #[error("{} has {bytes} bytes, wanted {wanted_bytes}", path.display())]
    Size {
        /// The file.
        path: PathBuf,
        /// Bytes of it.
        bytes: u64,
        /// Bytes needed.
        wanted_bytes: u64,
    },
    /// Bytes outside the mapping, or not whole aligned words.
    #[error("bytes {offset}+{bytes} are not whole words of {} with {len_bytes} bytes", path.display())]
    Range {
        /// The file.
        path: PathBuf,
        /// First byte asked for.
        offset: u64,
        /// How many.
        bytes: u64,
        /// Bytes of the mapping.
        len_bytes: u64,
    },
}

impl ShmError {
    fn io(doing: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { doing, path: path.into(), source }
    }
}
