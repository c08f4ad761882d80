//! The words of one grant: who may write, what has landed, what was refused.
//!
//! A board stands in the memory of the receiving rank, or in a file that ranks of the same host map. Its words, of 64
//! bits each: a header; one gate for each rank that may send; places as `position << 32 | page`; buffers of three
//! words; the path of the pool; then one mark a byte for each (buffer, position).
//!
//! A gate counts the writes that a rank is in the middle of and has one bit that closes it. Closing and entering are
//! steps on one word, so that a write either began before the gate closed, and is waited for, or does not begin.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use hicached_actors::protocol::{CP_SIZE_MAX, LandFigures, NOBODY, OpId, Rank};
use hicached_client::shm::{Segment, ShmError};
use hicached_kernels::layout::{Component, LAYERS_MAX};

use super::pool::{Buffer, Buffers, Pool};
use super::{FrameRefusal, GrantSpec, Missing, Name, POSITIONS_MAX, Report, SECRET_BYTES};

/// One grant.
#[derive(Debug)]
pub(super) struct Board {
    pub(super) name: Name,
    pub(super) secret: [u8; SECRET_BYTES],
    pub(super) positions: Vec<u32>,
    pub(super) pages: Vec<u32>,
    pub(super) buffers: Buffers,
    /// Where bytes land; none for a board that was found only to be closed.
    pub(super) pool: Option<Arc<Pool>>,
    memory: Memory,
    marks_word: usize,
}

#[derive(Debug)]
enum Memory {
    Heap(Box<[AtomicU64]>),
    /// The mapping, and the file once more for locks.
    File(Segment, File),
}

/// Where a pool that a board speaks of stands.
#[derive(Debug)]
pub(super) struct PoolAt {
    pub(super) path: PathBuf,
    pub(super) device_inode: (u64, u64),
    pub(super) buffers: Buffers,
}

impl Board {
    /// A board in the memory of this process.
    pub(super) fn on_heap(spec: &GrantSpec, secret: [u8; SECRET_BYTES]) -> Self {
        let words = (0..words_of(spec)).map(|_| AtomicU64::new(0)).collect();
        Self::begin(Memory::Heap(words), spec, secret)
    }

    /// A board in a new file at `path`.
    ///
    /// # Errors
    /// The file cannot be made or has no room.
    pub(super) fn in_file(path: &Path, spec: &GrantSpec, secret: [u8; SECRET_BYTES]) -> Result<Self, ShmError> {
        let segment = Segment::create(path, words_of(spec) as u64 * 8)?;
        let locks = open_again(path)?;
        Ok(Self::begin(Memory::File(segment, locks), spec, secret))
    }

    /// The board at `path`, that another rank made or an older life left; `map` maps the pool it speaks of, when bytes
    /// are to land there.
    ///
    /// # Errors
    /// [`BoardFault`]: the file cannot be mapped, or is no whole board.
    pub(super) fn open(
        path: &Path,
        map: impl FnOnce(PoolAt) -> Result<Option<Arc<Pool>>, BoardFault>,
    ) -> Result<Self, BoardFault> {
        let segment = Segment::open(path)?;
        let memory = Memory::File(segment, open_again(path)?);
        let read = Reading { words: memory.words() };
        if read.at(MAGIC_AT, Ordering::Acquire)? != MAGIC {
            return Err(BoardFault::Content("magic"));
        }
        let (count, buffers) = (read.count(COUNT_AT, POSITIONS_MAX)?, read.count(BUFFERS_AT, BUFFERS_MAX)?);
        let path_bytes = read.count(PATH_BYTES_AT, PATH_BYTES_MAX)?;
        let places = (0..count).map(|place| read.word(PLACES_AT + place));
        let places = places.collect::<Result<Vec<u64>, BoardFault>>()?;
        let listed = (0..buffers).map(|nth| read.buffer(PLACES_AT + count + BUFFER_WORDS * nth));
        let listed = listed.collect::<Result<Vec<Buffer>, BoardFault>>()?;
        let path_at = PLACES_AT + count + BUFFER_WORDS * buffers;
        let marks_word = path_at + path_bytes.div_ceil(8);
        if memory.words().len() < marks_word + (count * buffers).div_ceil(8) {
            return Err(BoardFault::Content("length"));
        }
        let pages = u32::try_from(read.word(POOL_PAGES_AT)?).map_err(|_| BoardFault::Content("pool pages"))?;
        let buffers = Buffers::listed(pages, listed);
        let pool = map(PoolAt {
            path: read.path(path_at, path_bytes)?,
            device_inode: (read.word(DEVICE_AT)?, read.word(INODE_AT)?),
            buffers: buffers.clone(),
        })?;
        let attempt = u32::try_from(read.word(ATTEMPT_AT)?).map_err(|_| BoardFault::Content("attempt"))?;
        let name = Name { transfer: OpId(read.id(TRANSFER_AT)?), attempt };
        let secret = read.id(SECRET_AT)?;
        let positions = places.iter().map(|place| (place >> 32) as u32).collect();
        let pages: Vec<u32> = places.iter().map(|place| *place as u32).collect();
        if !pages.iter().all(|page| pool.as_ref().is_none_or(|pool| pool.holds(*page))) {
            return Err(BoardFault::Content("pages"));
        }
        Ok(Self { name, secret, positions, pages, buffers, pool, memory, marks_word })
    }

    fn begin(memory: Memory, spec: &GrantSpec, secret: [u8; SECRET_BYTES]) -> Self {
        let GrantSpec { name, positions, pages, pool } = spec.clone();
        let words = memory.words();
        let put = |at: usize, value: u64| words[at].store(value, Ordering::Relaxed);
        put_id(words, TRANSFER_AT, name.transfer.0);
        put_id(words, SECRET_AT, secret);
        put(ATTEMPT_AT, u64::from(name.attempt));
        put(COUNT_AT, positions.len() as u64);
        put(POOL_PAGES_AT, u64::from(pool.buffers().pages()));
        let buffers = pool.buffers().as_slice();
        put(BUFFERS_AT, buffers.len() as u64);
        for (at, (position, page)) in (PLACES_AT..).zip(positions.iter().zip(&pages)) {
            put(at, u64::from(*position) << 32 | u64::from(*page));
        }
        let mut at = PLACES_AT + positions.len();
        for buffer in buffers {
            put(at, (buffer.component as u64) << 32 | u64::from(buffer.layer));
            put(at + 1, buffer.base);
            put(at + 2, buffer.page_bytes);
            at += BUFFER_WORDS;
        }
        let path = pool.segment().path().as_os_str().as_bytes();
        put(PATH_BYTES_AT, path.len() as u64);
        // A pool without a name that can be looked up is reached by nobody else.
        if let Ok(metadata) = std::fs::metadata(pool.segment().path()) {
            put(DEVICE_AT, metadata.dev());
            put(INODE_AT, metadata.ino());
        }
        for part in path.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            put(at, u64::from_le_bytes(word));
            at += 1;
        }
        let (buffers, pool) = (pool.buffers().clone(), Some(pool));
        let board = Self { name, secret, positions, pages, buffers, pool, memory, marks_word: at };
        board.marks().iter().for_each(|mark| mark.store(NOBODY, Ordering::Relaxed));
        board.memory.words()[MAGIC_AT].store(MAGIC, Ordering::Release);
        board
    }

    /// Begins a write of `rank`; `None` once the gate is closed.
    pub(super) fn enter(&self, rank: Rank) -> Option<Writing<'_>> {
        let gate = self.gate(rank);
        let open = |gate: u64| (gate & CLOSED == 0).then_some(gate + 1);
        gate.fetch_update(Ordering::AcqRel, Ordering::Acquire, open).ok()?;
        Some(Writing { gate })
    }

    /// Lets no write begin any more.
    pub(super) fn close(&self) {
        for rank in 0..CP_SIZE_MAX {
            self.gate(Rank(rank)).fetch_or(CLOSED, Ordering::AcqRel);
        }
    }

    /// Whether the gates are closed.
    pub(super) fn is_closed(&self) -> bool {
        self.gate(Rank(0)).load(Ordering::Acquire) & CLOSED != 0
    }

    /// Whether nobody writes: every write has ended, or its writer has.
    pub(super) fn is_still(&self) -> bool {
        (0..CP_SIZE_MAX).map(Rank).all(|rank| {
            let writes = self.gate(rank).load(Ordering::Acquire) & !CLOSED;
            writes == 0 || self.memory.is_writer_gone(rank)
        })
    }

    /// Takes the place of the writer `rank` for as long as the board is kept; `false` when another process, or
    /// another board of this one, has it.
    ///
    /// # Errors
    /// The file system has no locks.
    pub(super) fn become_writer(&self, rank: Rank) -> std::io::Result<bool> {
        match &self.memory {
            Memory::Heap(_) => Ok(true),
            Memory::File(_, file) => lock_byte(file, rank, libc::F_OFD_SETLK).map(|lock| lock.is_some()),
        }
    }

    /// The marks of one buffer, by place of the position.
    pub(super) fn marks_of(&self, place: usize) -> &[AtomicU8] {
        let count = self.positions.len();
        &self.marks()[place * count..(place + 1) * count]
    }

    /// Counts bytes that landed.
    pub(super) fn count_landed(&self, bytes: u64) {
        self.memory.words()[LANDED_AT].fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts a frame that was refused.
    pub(super) fn count_refused(&self, refusal: FrameRefusal) {
        self.memory.words()[REFUSED_AT].fetch_add(1, Ordering::Relaxed);
        self.memory.words()[LATE_AT].fetch_add(u64::from(refusal == FrameRefusal::Late), Ordering::Relaxed);
    }

    /// Bytes that landed, frames that were refused, and those of them that came late.
    pub(super) fn counts(&self) -> [u64; 3] {
        [LANDED_AT, REFUSED_AT, LATE_AT].map(|at| self.memory.words()[at].load(Ordering::Relaxed))
    }

    /// What has landed.
    pub(super) fn report(&self) -> Report {
        let (buffers, count) = (self.buffers.as_slice(), self.positions.len());
        let marks = self.marks();
        let mut missing = None;
        let owner_of = |nth: usize| {
            let mut owner = None;
            for (place, buffer) in buffers.iter().enumerate() {
                let mark = marks[place * count + nth].load(Ordering::Acquire);
                if mark >= CP_SIZE_MAX || owner.is_some_and(|owner| owner != mark) {
                    let (position, component) = (self.positions[nth], buffer.component.name());
                    missing.get_or_insert(Missing { position, component, layer: buffer.layer });
                    return NOBODY;
                }
                owner = Some(mark);
            }
            owner.unwrap_or(NOBODY)
        };
        let owners = (0..count).map(owner_of).collect();
        let [bytes, refused, _] = self.counts();
        Report { owners, missing, figures: LandFigures { bytes, buffers: buffers.len() as u64, refused } }
    }

    /// Where its file stands, when it has one.
    pub(super) fn path(&self) -> Option<&Path> {
        match &self.memory {
            Memory::Heap(_) => None,
            Memory::File(segment, _) => Some(segment.path()),
        }
    }

    /// Removes its file, when it has one, once nobody writes: senders have mapped it, or find it gone.
    pub(super) fn remove(&self) {
        if let Some(path) = self.path() {
            // One that cannot be removed is found by the next life of this rank, and is closed.
            std::fs::remove_file(path).ok();
        }
    }

    fn gate(&self, rank: Rank) -> &AtomicU64 {
        &self.memory.words()[GATES_AT + GATE_WORDS * usize::from(rank.0)]
    }

    fn marks(&self) -> &[AtomicU8] {
        let words = &self.memory.words()[self.marks_word..];
        let marks = self.positions.len() * self.buffers.as_slice().len();
        assert!(marks <= words.len() * 8, "a board has room for its marks");
        // SAFETY: the bytes lie inside the words (asserted), live as long as the borrow of `self`, and are reached
        // as bytes alone: no word behind `marks_word` is ever used as one.
        unsafe { std::slice::from_raw_parts(words.as_ptr().cast::<AtomicU8>(), marks) }
    }
}

impl Memory {
    fn words(&self) -> &[AtomicU64] {
        match self {
            Self::Heap(words) => words,
            Self::File(segment, _) => {
                let bytes = segment.len_bytes() & !7;
                let start = segment.pointer(0, bytes).expect("a segment holds itself");
                // SAFETY: the words lie inside the mapping, which lives as long as the borrow of `self` and starts
                // at a page; every process reaches them through atomics.
                unsafe { std::slice::from_raw_parts(start.cast::<AtomicU64>().as_ptr(), bytes as usize / 8) }
            }
        }
    }

    /// Whether the writer `rank` has ended in the middle of a write: its lock is free.
    fn is_writer_gone(&self, rank: Rank) -> bool {
        match self {
            Self::Heap(_) => false,
            Self::File(_, file) => matches!(lock_byte(file, rank, libc::F_OFD_GETLK), Ok(Some(Lock::Free))),
        }
    }
}

/// A write that has begun; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Writing<'a> {
    gate: &'a AtomicU64,
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.gate.fetch_sub(1, Ordering::Release);
    }
}

/// The words of a board that somebody else wrote.
struct Reading<'a> {
    words: &'a [AtomicU64],
}

impl Reading<'_> {
    fn at(&self, at: usize, order: Ordering) -> Result<u64, BoardFault> {
        self.words.get(at).map(|word| word.load(order)).ok_or(BoardFault::Content("length"))
    }

    fn word(&self, at: usize) -> Result<u64, BoardFault> {
        self.at(at, Ordering::Relaxed)
    }

    fn count(&self, at: usize, max: usize) -> Result<usize, BoardFault> {
        let count = self.word(at)?;
        if count > max as u64 { Err(BoardFault::Content("a count")) } else { Ok(count as usize) }
    }

    fn id(&self, at: usize) -> Result<[u8; 16], BoardFault> {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&self.word(at)?.to_le_bytes());
        id[8..].copy_from_slice(&self.word(at + 1)?.to_le_bytes());
        Ok(id)
    }

    fn buffer(&self, at: usize) -> Result<Buffer, BoardFault> {
        let name = self.word(at)?;
        let component = Component::ALL.get((name >> 32) as usize).ok_or(BoardFault::Content("a component"))?;
        let layer = name as u32;
        if layer as usize >= LAYERS_MAX {
            return Err(BoardFault::Content("a layer"));
        }
        let page_bytes = self.word(at + 2)?;
        if page_bytes == 0 {
            return Err(BoardFault::Content("page bytes"));
        }
        Ok(Buffer { component: *component, layer, base: self.word(at + 1)?, page_bytes })
    }

    fn path(&self, at: usize, bytes: usize) -> Result<PathBuf, BoardFault> {
        let mut path = Vec::with_capacity(bytes + 8);
        for nth in 0..bytes.div_ceil(8) {
            path.extend(self.word(at + nth)?.to_le_bytes());
        }
        path.truncate(bytes);
        Ok(std::ffi::OsStr::from_bytes(&path).into())
    }
}

/// Why a board cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum BoardFault {
    /// Its file, or that of its pool, cannot be mapped.
    #[error(transparent)]
    Shm(#[from] ShmError),
    /// The operating system refused.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// It does not hold what a board holds.
    #[error("the file of the grant is damaged: {0}")]
    Content(&'static str),
    /// Another process writes as this rank.
    #[error("another process sends as {0:?}")]
    Taken(Rank),
}

enum Lock {
    Free,
    Held,
}

/// Takes (`F_OFD_SETLK`) or looks at (`F_OFD_GETLK`) the lock of a writer; `None` when another one has it. Such locks
/// belong to an opening of the file and go with it, however its process ends.
fn lock_byte(file: &File, rank: Rank, command: libc::c_int) -> std::io::Result<Option<Lock>> {
    // SAFETY: all bytes of the structure may be zero.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    (lock.l_start, lock.l_len) = (libc::off_t::from(rank.0), 1);
    // SAFETY: the descriptor is open, and the structure is one that both commands read and write.
    if unsafe { libc::fcntl(file.as_raw_fd(), command, &mut lock) } == 0 {
        let free = command == libc::F_OFD_SETLK || lock.l_type == libc::F_UNLCK as libc::c_short;
        return Ok(Some(if free { Lock::Free } else { Lock::Held }));
    }
    let error = std::io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => Ok(None),
        _ => Err(error),
    }
}

fn open_again(path: &Path) -> Result<File, ShmError> {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path);
    file.map_err(|source| ShmError::Io { doing: "open", path: path.into(), source })
}

fn words_of(spec: &GrantSpec) -> usize {
    let (count, buffers) = (spec.positions.len(), spec.pool.buffers().as_slice().len());
    let path_bytes = spec.pool.segment().path().as_os_str().len();
    PLACES_AT + count + BUFFER_WORDS * buffers + path_bytes.div_ceil(8) + (count * buffers).div_ceil(8)
}

fn put_id(words: &[AtomicU64], at: usize, id: [u8; 16]) {
    let (halves, _) = id.as_chunks::<8>();
    for (word, half) in words[at..].iter().zip(halves) {
        word.store(u64::from_le_bytes(*half), Ordering::Relaxed);
    }
}

/// "HCgrant1", written last.
const MAGIC: u64 = u64::from_be_bytes(*b"HCgrant1");
const MAGIC_AT: usize = 0;
const TRANSFER_AT: usize = 1;
const SECRET_AT: usize = 3;
const ATTEMPT_AT: usize = 5;
const COUNT_AT: usize = 6;
const BUFFERS_AT: usize = 7;
const POOL_PAGES_AT: usize = 8;
const DEVICE_AT: usize = 9;
const INODE_AT: usize = 10;
const PATH_BYTES_AT: usize = 11;
const LANDED_AT: usize = 12;
const REFUSED_AT: usize = 13;
const LATE_AT: usize = 14;
const GATES_AT: usize = 16;
/// A cache line each: ranks write at the same time.
const GATE_WORDS: usize = 8;
const PLACES_AT: usize = GATES_AT + GATE_WORDS * CP_SIZE_MAX as usize;
const BUFFER_WORDS: usize = 3;
const BUFFERS_MAX: usize = 4 * LAYERS_MAX;
/// As long as a path of the operating system may be.
const PATH_BYTES_MAX: usize = 4_096;
/// The bit of a gate that lets nobody in.
const CLOSED: u64 = 1 << 63;
