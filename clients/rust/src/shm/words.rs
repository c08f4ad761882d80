//! The progress words of one engine rank: how far each track has come.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Segment, ShmError};

/// Who announces that a layer is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Track {
    /// Layers of the target model.
    Target,
    /// Layers of the draft model.
    Draft,
}

impl Track {
    /// Both, in their order in memory.
    pub const ALL: [Self; 2] = [Self::Target, Self::Draft];
}

/// One word per track, in shared memory. Value: `step * (layers + 1) + layers_done`, never falling while one engine
/// lives; see [`word_value`].
#[derive(Clone, Debug)]
pub struct Words {
    segment: Arc<Segment>,
    offset: u64,
}

impl Words {
    /// The words at `offset` of `segment`: target at +0, draft at +64.
    ///
    /// # Errors
    /// [`ShmError::Range`] when they leave the segment or are not aligned.
    pub fn at(segment: Arc<Segment>, offset: u64) -> Result<Self, ShmError> {
        for track in Track::ALL {
            segment.word(offset.saturating_add(offset_of(track)))?;
        }
        Ok(Self { segment, offset })
    }

    /// The word of `track`. What its writer stored before it is visible after this.
    pub fn value(&self, track: Track) -> u64 {
        self.word(track).load(Ordering::Acquire)
    }

    /// Moves the word of `track` up to `value`, never down; publishes everything this thread wrote before.
    pub fn advance(&self, track: Track, value: u64) {
        self.word(track).fetch_max(value, Ordering::Release);
    }

    /// Sets both words to 0: the rank does so for a new engine, when the old one is proven gone.
    pub fn reset(&self) {
        for track in Track::ALL {
            self.word(track).store(0, Ordering::SeqCst);
        }
    }

    /// Byte offset of the word of `track` in the segment, for an engine that writes it from a device stream.
    pub fn offset_of(&self, track: Track) -> u64 {
        self.offset + offset_of(track)
    }

    fn word(&self, track: Track) -> &AtomicU64 {
        self.segment.word(self.offset_of(track)).expect("both words were found when this was made")
    }
}

/// The value of a track's word when `layers_done` of its `layers` layers of `step` are done. Saturates, so that a
/// hostile step number is a word that is never reached.
pub const fn word_value(step: u64, layers: u32, layers_done: u32) -> u64 {
    step.saturating_mul(layers as u64 + 1).saturating_add(layers_done as u64)
}

/// The newest step that a track of `layers` layers has passed, 0 before the first; `u64::MAX` for a track without
/// layers, which has passed everything.
pub const fn passed_step(word: u64, layers: u32) -> u64 {
    if layers == 0 {
        return u64::MAX;
    }
    (word.saturating_add(1) / (layers as u64 + 1)).saturating_sub(1)
}

/// Bytes the words take: one cache line each.
pub const WORDS_BYTES: u64 = 128;

const fn offset_of(track: Track) -> u64 {
    match track {
        Track::Target => 0,
        Track::Draft => 64,
    }
}
