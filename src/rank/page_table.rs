//! The page table of a pool file: for each host slot, which page its record holds, and whether that counts.
//!
//! A row is valid while its seal is. The seal is a checksum of the row, never 0, so a row that a crash tore is no
//! seal. Order (requirement E3): [`PageTable::reserve`] takes the seal away before the first new byte of a record;
//! [`PageTable::seal`] writes the row, then the seal with release ordering, after the last byte.
//!
//! Not here: when to seal (the index's commit), whether a slot is in use (the ops).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use hicached_actors::protocol::Key;
use hicached_client::shm::{Segment, ShmError};

use crate::crash::{self, Inside};

/// Checksums of a record, one per component, in the order of `Component::ALL`.
pub type Sums = [u64; 4];

/// What a sealed slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Key of the page.
    pub key: Key,
    /// Key of the page before it.
    pub parent: Key,
    /// Salt id of its path.
    pub salt: Key,
    /// Its position in the path.
    pub position: u32,
    /// Which use of the slot it is.
    pub generation: u32,
    /// Checksums of the record, when it was sealed with fingerprints on.
    pub sums: Option<Sums>,
}

/// The rows of one pool, in shared memory, so that they outlive the process.
#[derive(Debug)]
pub struct PageTable {
    segment: Arc<Segment>,
    offset: u64,
    slots: u32,
}

impl PageTable {
    /// The table of `slots` rows at `offset`.
    ///
    /// # Errors
    /// [`ShmError::Range`] when it leaves the segment or is not aligned.
    pub fn at(segment: Arc<Segment>, offset: u64, slots: u32) -> Result<Self, ShmError> {
        segment.word(offset)?;
        segment.pointer(offset, Self::bytes(slots))?;
        Ok(Self { segment, offset, slots })
    }

    /// Bytes of a table of `slots` rows.
    pub const fn bytes(slots: u32) -> u64 {
        slots as u64 * ROW_BYTES
    }

    /// How many rows there are.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// A new use of `slot` begins: its seal is gone, for every observer, before anything this process writes after.
    /// Returns the generation of the use.
    ///
    /// # Panics
    /// Like every call with a slot: when the table has no such row.
    pub fn reserve(&self, slot: u32) -> u32 {
        self.clear(slot);
        let generation = self.generation(slot).wrapping_add(1);
        self.word(slot, GENERATION).store(u64::from(generation), Ordering::Relaxed);
        generation
    }

    /// Takes the seal of `slot` away.
    pub fn clear(&self, slot: u32) {
        self.word(slot, SEAL).store(0, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// The generation of the newest use of `slot`.
    pub fn generation(&self, slot: u32) -> u32 {
        self.word(slot, GENERATION).load(Ordering::Relaxed) as u32
    }

    /// Writes the row of `slot`, then its seal; everything this thread has seen of the record is published with it.
    pub fn seal(&self, slot: u32, row: &Row) {
        self.clear(slot);
        let words = words_of(row);
        for (at, word) in words.iter().enumerate() {
            self.word(slot, at as u64).store(*word, Ordering::Relaxed);
        }
        crash::reach(Inside::RowWritten);
        self.word(slot, SEAL).store(checksum(slot, &words), Ordering::Release);
    }

    /// The row of `slot` when it is sealed and whole.
    pub fn sealed(&self, slot: u32) -> Option<Row> {
        let seal = self.word(slot, SEAL).load(Ordering::Acquire);
        if seal == 0 {
            return None;
        }
        let words: [u64; ROW_WORDS] = std::array::from_fn(|at| self.word(slot, at as u64).load(Ordering::Relaxed));
        (checksum(slot, &words) == seal).then(|| row_of(&words))
    }

    fn word(&self, slot: u32, at: u64) -> &AtomicU64 {
        assert!(slot < self.slots, "row {slot} of {}", self.slots);
        let offset = self.offset + u64::from(slot) * ROW_BYTES + at * 8;
        self.segment.word(offset).expect("every row was found when this was made")
    }
}

fn words_of(row: &Row) -> [u64; ROW_WORDS] {
    let mut words = [0; ROW_WORDS];
    for (pair, key) in words.chunks_exact_mut(2).zip([row.key, row.parent, row.salt]) {
        let whole = u128::from_le_bytes(key.0);
        pair.copy_from_slice(&[whole as u64, (whole >> 64) as u64]);
    }
    words[POSITION] = u64::from(row.position);
    words[GENERATION as usize] = u64::from(row.generation);
    if let Some(sums) = row.sums {
        words[HAS_SUMS] = 1;
        words[SUMS..].copy_from_slice(&sums);
    }
    words
}

fn row_of(words: &[u64; ROW_WORDS]) -> Row {
    let key = |at: usize| Key((u128::from(words[at]) | u128::from(words[at + 1]) << 64).to_le_bytes());
    Row {
        key: key(0),
        parent: key(2),
        salt: key(4),
        position: words[POSITION] as u32,
        generation: words[GENERATION as usize] as u32,
        sums: (words[HAS_SUMS] != 0).then(|| std::array::from_fn(|at| words[SUMS + at])),
    }
}

/// Never 0, and another one for the same words in another slot.
fn checksum(slot: u32, words: &[u64]) -> u64 {
    mix(u64::from(slot), words) | 1
}

/// A 64-bit hash of words: it finds torn and overwritten memory and defends against nobody.
pub(super) fn mix(seed: u64, words: &[u64]) -> u64 {
    let mut hash = seed ^ 0x6869_6361_6368_6564;
    for word in words {
        hash = (hash ^ word).rotate_left(29).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
    hash ^= hash >> 32;
    hash.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (hash >> 29)
}

/// Two cache lines, so that rows of two workers share none.
const ROW_BYTES: u64 = 128;
/// Words of a row before its seal: three keys, position, generation, whether there are sums, the sums.
const ROW_WORDS: usize = 13;
const POSITION: usize = 6;
const GENERATION: u64 = 7;
const HAS_SUMS: usize = 8;
const SUMS: usize = 9;
const SEAL: u64 = ROW_WORDS as u64;
const _: () = assert!((SEAL + 1) * 8 <= ROW_BYTES);
