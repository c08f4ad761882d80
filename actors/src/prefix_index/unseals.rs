//! Taking seals away: a page that has left L2 must not come back when its rank or everything restarts.
//!
//! The allocator has the slot back at once, so no eviction waits for a rank: a record is told from a later use of its
//! slot by its key. What waits is the answer to a flush, until every seal asked for so far is gone.
//! Invariant: a sealed record is a page of L2, or its rank is being asked to unseal it.

use std::collections::BTreeMap;

use super::{CALL, Index, NO_TRACE};
use crate::faults::Fault;
use crate::machine::Effect;
use crate::protocol::{HostSlot, Key, Keys, OpId, Outgoing, Rank, RankIn, Slots, Time, Unseal};

/// A record that has left L2.
pub(super) type Gone = (Rank, HostSlot, Key);

impl Index {
    /// Has the owners of these records take their seals away.
    pub(super) fn unseal(&mut self, now: Time, gone: &[Gone], out: &mut Vec<Effect>) {
        if self.config.faults.is(Fault::SealOutlivesItsPage) {
            return;
        }
        let mut by_rank: BTreeMap<Rank, Vec<(HostSlot, Key)>> = BTreeMap::new();
        for (rank, slot, key) in gone {
            by_rank.entry(*rank).or_default().push((*slot, *key));
        }
        for (rank, records) in by_rank {
            self.recovery.left(rank, &records);
            for part in records.chunks(UNSEAL_RECORDS_MAX) {
                let op = self.ids.draw();
                let (slots, keys) = part.iter().copied().unzip();
                let msg = RankIn::from(Unseal { slots: Slots(slots), keys: Keys(keys) });
                self.calls.call(now, (op, CALL), Outgoing::Rank(rank, msg), &NO_TRACE, out);
                self.unseals.insert(op, (rank, part.to_vec()));
            }
        }
    }

    /// The rank has carried `op` out, if that is an unseal.
    pub(super) fn unsealed(&mut self, op: OpId) -> bool {
        if self.unseals.remove(&op).is_none() {
            return false;
        }
        self.calls.answered((op, CALL));
        self.flushes.values_mut().for_each(|flush| flush.unsealed(op));
        true
    }

    /// What `rank` is being asked to unseal: its next life still shows it as sealed.
    pub(super) fn leaving(&self, rank: Rank) -> impl Iterator<Item = (HostSlot, Key)> + '_ {
        let of_rank = self.unseals.values().filter(move |(of, _)| *of == rank);
        of_rank.flat_map(|(_, records)| records.iter().copied())
    }
}

/// Records of one message: 20 bytes each, well inside what a bus carries.
const UNSEAL_RECORDS_MAX: usize = 16_384;
