//! The ring of load slots: a word that the engine's stream waits for, and a status that says how the load ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Segment, ShmError};

/// The load slots of one rank, in shared memory.
///
/// A slot is used again and again; its uses are numbered and the numbers never fall. One use, of a load of
/// `layers` layers, has the base `use * (layers + 1)`: its word reads at least `base + i` when `i` layers are in
/// place. Its status is `use * 4 + {0 pending, 1 done, 2 failed}` and changes once, by compare-and-swap; a
/// status of an earlier use counts as pending, because the rank may not have heard of the load yet.
#[derive(Clone, Debug)]
pub struct LoadRing {
    segment: Arc<Segment>,
    offset: u64,
}

/// What the status of a slot says about one use of it.
///
/// ```text
/// Pending -> Done       the rank, after the last layer
///         -> Failed     the rank; or the client at the load's deadline or when the rank is gone
/// any     -> Superseded a later use of the slot has begun
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadState {
    /// Not ended, perhaps not begun.
    Pending,
    /// Every layer is in place.
    Done,
    /// Given up by either side: no page of it may be used.
    Failed,
    /// The slot belongs to a later use: whoever still asks must treat the load as failed.
    Superseded,
}

/// The status was no longer pending: the other side, or a later use, was first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the slot is {state:?}")]
pub struct SlotTaken {
    /// What it says about the use asked for.
    pub state: LoadState,
}

impl LoadRing {
    /// The ring at `offset` of `segment`.
    ///
    /// # Errors
    /// [`ShmError::Range`] when it leaves the segment or is not aligned.
    pub fn at(segment: Arc<Segment>, offset: u64) -> Result<Self, ShmError> {
        segment.word(offset)?;
        segment.pointer(offset, LOAD_RING_BYTES)?;
        Ok(Self { segment, offset })
    }

    /// The word of `slot`. What was copied before it is visible after this.
    ///
    /// # Panics
    /// Like every call with a slot: when it is not below [`LOAD_SLOTS`].
    pub fn value(&self, slot: u32) -> u64 {
        self.word(slot).load(Ordering::Acquire)
    }

    /// Byte offset of the word of `slot` in the segment, for an engine whose device stream waits for it.
    pub fn offset_of(&self, slot: u32) -> u64 {
        assert!(slot < LOAD_SLOTS, "load slot {slot} of {LOAD_SLOTS}");
        self.offset + u64::from(slot) * LOAD_SLOT_BYTES
    }

    /// Moves the word of `slot` up to `value`, never down; publishes everything this thread copied before.
    pub fn advance(&self, slot: u32, value: u64) {
        self.word(slot).fetch_max(value, Ordering::Release);
    }

    /// What the status of `slot` says about its `use_count`-th use.
    pub fn state(&self, slot: u32, use_count: u64) -> LoadState {
        read(self.status(slot).load(Ordering::Acquire), use_count)
    }

    /// The rank begins a use, unless the client has given it up already.
    ///
    /// # Errors
    /// [`SlotTaken`] when this use has ended, or a later one has begun.
    pub fn begin(&self, slot: u32, use_count: u64) -> Result<(), SlotTaken> {
        self.change(slot, use_count, PENDING)
    }

    /// The rank begins a use of a slot whose status is of a later one, left behind by an older control incarnation:
    /// status and word fall to this use. Only for a rank that obeys the incarnation which counts anew.
    pub fn begin_anew(&self, slot: u32, use_count: u64, base: u64) {
        self.word(slot).store(base, Ordering::Release);
        self.status(slot).store(packed(use_count, PENDING), Ordering::Release);
    }

    /// Pending to done, by the rank, when the last layer is in place. The rank moves the word to its end after this,
    /// so that who sees the end sees the status.
    ///
    /// # Errors
    /// [`SlotTaken`] when somebody gave the load up: it has failed.
    pub fn finish(&self, slot: u32, use_count: u64) -> Result<(), SlotTaken> {
        self.change(slot, use_count, DONE)
    }

    /// Pending to failed, by either side; then moves the word to `end` (`base + layers`), so that no stream waits on.
    ///
    /// # Errors
    /// [`SlotTaken`] when it had ended before. The word is moved to `end` unless the slot is [`LoadState::Superseded`].
    pub fn fail(&self, slot: u32, use_count: u64, end: u64) -> Result<(), SlotTaken> {
        let changed = self.change(slot, use_count, FAILED);
        match changed {
            Err(SlotTaken { state: LoadState::Superseded }) => {}
            Err(SlotTaken { state: LoadState::Pending | LoadState::Done | LoadState::Failed }) | Ok(()) => {
                self.advance(slot, end);
            }
        }
        changed
    }

    /// Changes the status of a use that is pending, or not begun.
    fn change(&self, slot: u32, use_count: u64, to: u64) -> Result<(), SlotTaken> {
        let status = self.status(slot);
        let change = |seen| (read(seen, use_count) == LoadState::Pending).then(|| packed(use_count, to));
        match status.fetch_update(Ordering::AcqRel, Ordering::Acquire, change) {
            Ok(_) => Ok(()),
            Err(seen) => Err(SlotTaken { state: read(seen, use_count) }),
        }
    }

    fn word(&self, slot: u32) -> &AtomicU64 {
        self.segment.word(self.offset_of(slot)).expect("the ring was found when this was made")
    }

    fn status(&self, slot: u32) -> &AtomicU64 {
        self.segment.word(self.offset_of(slot) + STATUS_OFFSET).expect("the ring was found when this was made")
    }
}

/// What a status says about one use.
fn read(status: u64, use_count: u64) -> LoadState {
    match (status / 4).cmp(&use_count) {
        std::cmp::Ordering::Less => LoadState::Pending,
        std::cmp::Ordering::Greater => LoadState::Superseded,
        std::cmp::Ordering::Equal => match status % 4 {
            PENDING => LoadState::Pending,
            DONE => LoadState::Done,
            // 3 is never written: whatever broke the word, the load did not end well.
            _ => LoadState::Failed,
        },
    }
}

/// Use counts come off the wire: one that does not fit stays at the largest and is never reached.
fn packed(use_count: u64, state: u64) -> u64 {
    use_count.min(u64::MAX / 4) * 4 + state
}

/// Slots of a rank's ring.
pub const LOAD_SLOTS: u32 = 64;

/// Bytes of a slot: one cache line, word at +0, status at +8.
pub const LOAD_SLOT_BYTES: u64 = 64;

/// Bytes of a ring.
pub const LOAD_RING_BYTES: u64 = LOAD_SLOTS as u64 * LOAD_SLOT_BYTES;

const STATUS_OFFSET: u64 = 8;
const PENDING: u64 = 0;
const DONE: u64 = 1;
const FAILED: u64 = 2;
