//! The host pool of one rank (L2): a file that outlives the process.
//!
//! ```text
//! header | words, engine | load ring | page table | records
//! ```
//! The header says what the file is for; attaching compares every field. The file is locked for as long as the
//! process lives, so a successor begins only when its predecessor is gone. What a reboot may have torn is void:
//! seals count only within the boot in which they were written.
//!
//! Not here: which slot holds which page (the index), when a record may be sealed (its commit).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use hicached_actors::protocol::{Incarnation, Manifest, Rank};
use hicached_client::shm::{LOAD_RING_BYTES, LoadRing, Segment, ShmError, WORDS_BYTES, Words};
use hicached_kernels::layout::Layout;
use hicached_kernels::shared_bytes::SharedBytes;

use super::page_table::{PageTable, mix};

/// What a pool file is for.
#[derive(Clone, Copy, Debug)]
pub struct PoolSpec<'a> {
    /// What a page is.
    pub manifest: &'a Manifest,
    /// Its layout, made of that manifest.
    pub layout: &'a Layout,
    /// The rank.
    pub rank: Rank,
    /// Host slots.
    pub slots: u32,
}

impl PoolSpec<'_> {
    /// Bytes of such a file.
    pub fn file_bytes(self) -> u64 {
        Places::of(self).file_bytes
    }
}

/// The pool file of a rank, mapped and locked.
#[derive(Debug)]
pub struct PoolFile {
    path: PathBuf,
    segment: Arc<Segment>,
    words: Words,
    ring: LoadRing,
    table: PageTable,
    places: Places,
    records_bytes: u64,
}

impl PoolFile {
    /// Where the table of the pool at `path` stands and its rows: what a header that is whole says.
    pub(super) fn table_place(segment: &Segment) -> Result<(u64, u32), PoolError> {
        let torn = || PoolError::Torn { path: segment.path().into() };
        let found = found_header(segment)?;
        let slots = u32::try_from(found[SLOTS]).map_err(|_| torn())?;
        if found[..2] == [MAGIC, VERSION] { Ok((found[TABLE], slots)) } else { Err(torn()) }
    }

    /// Attaches the file at `path`, or makes it when there is none.
    ///
    /// # Errors
    /// As [`Self::create`] and [`Self::attach`].
    pub fn open(path: &Path, spec: PoolSpec<'_>) -> Result<Self, PoolError> {
        match Self::create(path, spec) {
            Err(PoolError::Exists { .. }) => Self::attach(path, spec),
            other => other,
        }
    }

    /// Makes the file: under another name until its header is whole, so that nobody attaches half a file.
    ///
    /// # Errors
    /// [`PoolError::Exists`]; [`PoolError::InUse`] when another process is making it; [`PoolError::Shm`] without room.
    pub fn create(path: &Path, spec: PoolSpec<'_>) -> Result<Self, PoolError> {
        if path.exists() {
            return Err(PoolError::Exists { path: path.into() });
        }
        let places = Places::of(spec);
        let draft = with_suffix(path, ".new");
        if let Ok(left_over) = Segment::open(&draft) {
            lock(&left_over)?;
            remove(&draft)?;
        }
        let segment = Segment::create(&draft, places.file_bytes)?;
        lock(&segment)?;
        let words = header(spec, places, boot_id());
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        segment.write(0, &bytes)?;
        let linked = std::fs::hard_link(&draft, path);
        remove(&draft)?;
        match linked {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                return Err(PoolError::Exists { path: path.into() });
            }
            Err(source) => return Err(PoolError::Io { path: path.into(), source }),
        }
        Self::of(path, segment, places, spec)
    }

    /// Takes over a file that an earlier process made, once that process is gone.
    ///
    /// # Errors
    /// [`PoolError::InUse`] while another process holds it; [`PoolError::Mismatch`] with the first field that differs,
    /// the file's value and this rank's; [`PoolError::Torn`] when it is no pool file.
    pub fn attach(path: &Path, spec: PoolSpec<'_>) -> Result<Self, PoolError> {
        let segment = Segment::open(path)?;
        lock(&segment)?;
        let places = Places::of(spec);
        let boot = boot_id();
        let wanted = header(spec, places, boot);
        let found = found_header(&segment)?;
        for (at, field) in FIELDS.iter().enumerate() {
            if found[at] != wanted[at] {
                let is_opaque = *field == "magic" || field.starts_with("manifest digest");
                let [file, mine] = [found, wanted]
                    .map(|header| if is_opaque { format!("{:#x}", header[at]) } else { header[at].to_string() });
                return Err(PoolError::Mismatch { path: path.into(), field, file, mine });
            }
        }
        if segment.len_bytes() != places.file_bytes {
            let (bytes, wanted_bytes) = (segment.len_bytes(), places.file_bytes);
            return Err(ShmError::Size { path: path.into(), bytes, wanted_bytes }.into());
        }
        let pool = Self::of(path, segment, places, spec)?;
        if found[BOOT..CHECKSUM] != wanted[BOOT..CHECKSUM] {
            tracing::warn!(path = %path.display(), "the machine has restarted since this pool was written: it is void");
            (0..pool.slots()).for_each(|slot| pool.table.clear(slot));
            pool.set_engine(Incarnation::default());
            let bytes: Vec<u8> = wanted.iter().flat_map(|word| word.to_ne_bytes()).collect();
            pool.segment.write(0, &bytes)?;
        }
        Ok(pool)
    }

    fn of(path: &Path, segment: Segment, places: Places, spec: PoolSpec<'_>) -> Result<Self, PoolError> {
        let segment = Arc::new(segment);
        let records_bytes = spec.layout.host_pool_bytes(spec.slots);
        segment.pointer(places.records_offset, records_bytes)?;
        Ok(Self {
            path: path.into(),
            words: Words::at(segment.clone(), places.words_offset)?,
            ring: LoadRing::at(segment.clone(), places.ring_offset)?,
            table: PageTable::at(segment.clone(), places.table_offset, spec.slots)?,
            segment,
            places,
            records_bytes,
        })
    }

    /// Where the file stands.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Host slots.
    pub fn slots(&self) -> u32 {
        self.table.slots()
    }

    /// The words of the engine's tracks.
    pub fn words(&self) -> &Words {
        &self.words
    }

    /// The load slots.
    pub fn ring(&self) -> &LoadRing {
        &self.ring
    }

    /// The page table.
    pub fn table(&self) -> &PageTable {
        &self.table
    }

    /// Byte offset of the words in the file.
    pub fn words_offset(&self) -> u64 {
        self.places.words_offset
    }

    /// Byte offset of the load slots in the file.
    pub fn load_slots_offset(&self) -> u64 {
        self.places.ring_offset
    }

    /// Byte offset of the records in the file.
    pub fn records_offset(&self) -> u64 {
        self.places.records_offset
    }

    /// The engine whose steps the words count; all zero before the first.
    pub fn engine(&self) -> Incarnation {
        let mut bytes = [0; 16];
        for (at, part) in bytes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            *part = self.engine_word(at).load(Ordering::Acquire).to_ne_bytes();
        }
        Incarnation(bytes)
    }

    /// The words belong to `engine` from now on, and start at 0.
    pub fn set_engine(&self, engine: Incarnation) {
        self.words.reset();
        for (at, part) in engine.0.as_chunks::<8>().0.iter().enumerate() {
            self.engine_word(at).store(u64::from_ne_bytes(*part), Ordering::SeqCst);
        }
    }

    /// The memory of the records, for copy code; valid while this pool is kept.
    pub(super) fn records(&self) -> SharedBytes {
        let start = self.segment.pointer(self.places.records_offset, self.records_bytes);
        let start = start.expect("the records were found when this was made");
        // SAFETY: the range is part of one shared, writable mapping that lives as long as `self`, which every copy
        // job keeps. No reference to these bytes exists: words, ring and table end before them, and checked reads
        // go through atomics. Ops own the slots they name (`Claims`), so no two threads copy the same record.
        unsafe { SharedBytes::new(start, self.records_bytes) }
    }

    /// Reads bytes of the records; see [`Segment::read`].
    pub(super) fn read_records(&self, offset: u64, bytes: &mut [u8]) -> Result<(), ShmError> {
        self.segment.read(self.places.records_offset + offset, bytes)
    }

    fn engine_word(&self, at: usize) -> &std::sync::atomic::AtomicU64 {
        let offset = self.places.words_offset + WORDS_BYTES + at as u64 * 8;
        self.segment.word(offset).expect("it stands between the words and the ring")
    }
}

/// Where the parts of a pool file stand, in bytes from its start.
#[derive(Clone, Copy, Debug)]
struct Places {
    words_offset: u64,
    ring_offset: u64,
    table_offset: u64,
    records_offset: u64,
    file_bytes: u64,
}

impl Places {
    fn of(spec: PoolSpec<'_>) -> Self {
        let words_offset = PART_ALIGN_BYTES;
        let ring_offset = words_offset + PART_ALIGN_BYTES;
        let table_offset = (ring_offset + LOAD_RING_BYTES).next_multiple_of(PART_ALIGN_BYTES);
        let records_offset = (table_offset + PageTable::bytes(spec.slots)).next_multiple_of(PART_ALIGN_BYTES);
        // Records are smaller than 2^31 bytes and slots fit in 32 bits: the sum stays below 2^64.
        // Without slots or bytes the file still goes on behind the table, so that every part has an address in it.
        let file_bytes = records_offset + spec.layout.host_pool_bytes(spec.slots).max(PART_ALIGN_BYTES);
        Self { words_offset, ring_offset, table_offset, records_offset, file_bytes }
    }
}

/// Why a pool file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// There is one already.
    #[error("{} exists", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// Another process lives with it.
    #[error("{} is held by another process: wait for its end", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// It was made for something else: give the rank another folder, or remove the file and lose its pages.
    #[error("{}: {field} is {file} in the file and {mine} in this rank", path.display())]
    Mismatch {
        /// The file.
        path: PathBuf,
        /// Which field of the header.
        field: &'static str,
        /// The file's value.
        file: String,
        /// This rank's value.
        mine: String,
    },
    /// Its header is none: the file is not a pool, or is damaged.
    #[error("{} has no whole header of a pool file: remove it", path.display())]
    Torn {
        /// The file.
        path: PathBuf,
    },
    /// The file system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Its error.
        source: std::io::Error,
    },
    /// Shared memory cannot be had.
    #[error(transparent)]
    Shm(#[from] ShmError),
}

/// The header: compared fields in the order of [`FIELDS`], the boot, a checksum.
fn header(spec: PoolSpec<'_>, places: Places, boot: [u64; 2]) -> [u64; HEADER_WORDS] {
    let digest = spec.manifest.digest();
    let (digest, _) = digest.as_chunks::<8>();
    let mut words = [0; HEADER_WORDS];
    let compared = [
        MAGIC,
        VERSION,
        u64::from_be_bytes(digest[0]),
        u64::from_be_bytes(digest[1]),
        u64::from_be_bytes(digest[2]),
        u64::from_be_bytes(digest[3]),
        u64::from(spec.rank.0),
        u64::from(spec.manifest.cp_size),
        u64::from(spec.slots),
        u64::from(spec.layout.tile_pages()),
        spec.layout.record_bytes(),
        places.words_offset,
        places.ring_offset,
        places.table_offset,
        places.records_offset,
        places.file_bytes,
    ];
    words[..BOOT].copy_from_slice(&compared);
    words[BOOT..CHECKSUM].copy_from_slice(&boot);
    words[CHECKSUM] = mix(0, &words[..CHECKSUM]);
    words
}

/// The header of a file that has one, whole.
fn found_header(segment: &Segment) -> Result<[u64; HEADER_WORDS], PoolError> {
    let torn = || PoolError::Torn { path: segment.path().into() };
    let mut bytes = [0; HEADER_WORDS * 8];
    if segment.len_bytes() < PART_ALIGN_BYTES {
        return Err(torn());
    }
    segment.read(0, &mut bytes)?;
    let (words, _) = bytes.as_chunks::<8>();
    let found: [u64; HEADER_WORDS] = std::array::from_fn(|at| u64::from_ne_bytes(words[at]));
    if found[CHECKSUM] == mix(0, &found[..CHECKSUM]) { Ok(found) } else { Err(torn()) }
}

/// The boot of this machine, or zeros where the kernel does not tell.
fn boot_id() -> [u64; 2] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let id = u128::from_str_radix(&digits, 16).unwrap_or(0);
    [(id >> 64) as u64, id as u64]
}

fn lock(segment: &Segment) -> Result<(), PoolError> {
    if segment.try_lock()? { Ok(()) } else { Err(PoolError::InUse { path: segment.path().into() }) }
}

fn remove(path: &Path) -> Result<(), PoolError> {
    std::fs::remove_file(path).map_err(|source| PoolError::Io { path: path.into(), source })
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// "hicached" as bytes in memory.
const MAGIC: u64 = u64::from_ne_bytes(*b"hicached");
const VERSION: u64 = 1;
const FIELDS: [&str; 16] = [
    "magic",
    "version",
    "manifest digest [0..8]",
    "manifest digest [8..16]",
    "manifest digest [16..24]",
    "manifest digest [24..32]",
    "rank",
    "cp_size",
    "slots",
    "tile_pages",
    "record_bytes",
    "words_offset",
    "load_slots_offset",
    "table_offset",
    "records_offset",
    "file_bytes",
];
const SLOTS: usize = 8;
const TABLE: usize = 13;
const BOOT: usize = FIELDS.len();
const CHECKSUM: usize = BOOT + 2;
const HEADER_WORDS: usize = CHECKSUM + 1;
/// Parts begin at pages, so that an engine can register the words alone with a device.
const PART_ALIGN_BYTES: u64 = 4_096;
