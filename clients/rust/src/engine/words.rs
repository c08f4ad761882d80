//! The words and load slots that the engine's ranks share with the daemon's.

use std::sync::Arc;

use hicached_actors::protocol::{LoadTicket, Registered};

use super::EngineError;
use crate::shm::{LOAD_SLOTS, LoadRing, LoadState, Segment, Track, Words, word_value};

/// Words and load slots of all ranks, in order of rank.
#[derive(Clone, Debug, Default)]
pub(super) struct GroupWords {
    ranks: Vec<(Words, LoadRing)>,
}

/// How far a load has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// The layer is not there yet on some rank.
    Waiting,
    /// The layer is there on every rank; after the last one the load is done.
    There,
    /// The load failed on a rank.
    Failed,
}

impl GroupWords {
    /// Maps what the ranks answered.
    pub(super) fn map(ranks: &[Registered]) -> Result<Self, EngineError> {
        let map = |rank: &Registered| {
            let segment = Arc::new(Segment::open(rank.pool_file.as_ref())?);
            Ok((Words::at(segment.clone(), rank.words_offset)?, LoadRing::at(segment, rank.load_slots_offset)?))
        };
        Ok(Self { ranks: ranks.iter().map(map).collect::<Result<_, EngineError>>()? })
    }

    /// Says on every rank that `layers_done` of the `layers` layers of `track` are done.
    pub(super) fn advance(&self, track: Track, step: u64, layers: u32, layers_done: u32) {
        let value = word_value(step, layers, layers_done);
        self.ranks.iter().for_each(|(words, _)| words.advance(track, value));
    }

    /// Whether the first `layers_done` layers of `load` are there on every rank.
    pub(super) fn arrival(&self, load: &LoadTicket, layers_done: u32) -> Arrival {
        let mut all = Arrival::There;
        for (_, ring) in &self.ranks {
            // The word first: whoever fails a load says so in the status before moving the word.
            let has_come = ring.value(load.slot) >= load.base + u64::from(layers_done);
            match ring.state(load.slot, use_count(load)) {
                LoadState::Failed | LoadState::Superseded => return Arrival::Failed,
                LoadState::Pending if layers_done == load.layers => all = Arrival::Waiting,
                LoadState::Pending | LoadState::Done if has_come => {}
                LoadState::Pending | LoadState::Done => all = Arrival::Waiting,
            }
        }
        all
    }

    /// Gives `load` up on every rank that has not ended it.
    pub(super) fn fail(&self, load: &LoadTicket) {
        let end = load.base + u64::from(load.layers);
        for (rank, (_, ring)) in self.ranks.iter().enumerate() {
            if let Err(taken) = ring.fail(load.slot, use_count(load), end) {
                tracing::debug!(rank, slot = load.slot, %taken, "the load had ended on this rank");
            }
        }
    }
}

/// Whether `load` is one that this engine can wait for.
pub(super) fn is_sound(load: &LoadTicket, layers: u32) -> bool {
    load.slot < LOAD_SLOTS && load.layers == layers && load.base.checked_add(u64::from(layers)).is_some()
}

/// Which use of its slot a load is: its base is the use times the values that one use takes.
fn use_count(load: &LoadTicket) -> u64 {
    load.base / (u64::from(load.layers) + 1)
}
