//! The ops a rank has heard of, so that a repeated message is answered from the state of its op.
//!
//! Ended ops stay as tombstones, the newest of them. Forgetting one raises a floor: an op that is not known and not
//! newer than a forgotten one is a late repeat, and starts nothing.

use std::collections::{BTreeMap, VecDeque};

use hicached_actors::protocol::{CopyAck, OpId};

use super::copies::JobId;
use super::orders::BackupRows;
use super::page_table::Row;

/// The ops of one control incarnation.
#[derive(Debug, Default)]
pub(super) struct Ops {
    all: BTreeMap<OpId, Op>,
    ended: VecDeque<OpId>,
    floors: BTreeMap<(OpKind, [u8; 8]), u64>,
}

/// Which way an op goes, and who hears of it: the writer or the loader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum OpKind {
    Backup,
    Load,
}

/// ```text
/// Running -> Whole -> Ended      a backup that completed and was judged
///         -> Ended               a load; a backup that failed, was stopped or owns no page here
/// (none)  -> Ended               a try that was stopped before it came
/// ```
#[derive(Debug)]
pub(super) enum Op {
    /// A job copies.
    Running { kind: OpKind, attempt: u32, job: JobId },
    /// A backup has every layer and waits for its verdict.
    Whole { ack: CopyAck, rows: BackupRows },
    /// Nothing more will happen.
    Ended { kind: OpKind, ack: CopyAck, sealed: bool },
}

impl Op {
    pub(super) fn kind(&self) -> OpKind {
        match self {
            Self::Running { kind, .. } | Self::Ended { kind, .. } => *kind,
            Self::Whole { .. } => OpKind::Backup,
        }
    }
}

impl Ops {
    pub(super) fn get(&self, op: OpId) -> Option<&Op> {
        self.all.get(&op)
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether this op is as old as one that was forgotten.
    pub(super) fn is_forgotten(&self, kind: OpKind, op: OpId) -> bool {
        self.floors.get(&(kind, maker(op))).is_some_and(|floor| op.counter() <= *floor)
    }

    pub(super) fn running(&mut self, op: OpId, kind: OpKind, attempt: u32, job: JobId) {
        self.all.insert(op, Op::Running { kind, attempt, job });
    }

    pub(super) fn whole(&mut self, op: OpId, ack: CopyAck, rows: BackupRows) {
        self.all.insert(op, Op::Whole { ack, rows });
    }

    /// Buries `op`, and forgets the oldest tombstone over the limit.
    pub(super) fn end(&mut self, op: OpId, kind: OpKind, ack: CopyAck, sealed: bool) {
        self.all.insert(op, Op::Ended { kind, ack, sealed });
        self.ended.push_back(op);
        if self.ended.len() <= TOMBSTONES_MAX {
            return;
        }
        let Some(oldest) = self.ended.pop_front() else { return };
        if let Some(Op::Ended { kind, .. }) = self.all.get(&oldest) {
            let floor = self.floors.entry((*kind, maker(oldest))).or_insert(0);
            *floor = (*floor).max(oldest.counter());
            self.all.remove(&oldest);
        }
    }

    /// The row of this use of `slot` in a backup that is whole and waits for its verdict.
    pub(super) fn whole_row(&self, slot: u32, generation: u32) -> Option<&Row> {
        let rows = self.all.values().rev().filter_map(|op| match op {
            Op::Whole { rows, .. } => Some(&rows.rows),
            Op::Running { .. } | Op::Ended { .. } => None,
        });
        rows.flatten().find(|(of, row)| (*of, row.generation) == (slot, generation)).map(|(_, row)| row)
    }

    /// The newest acknowledgements, for a peer that has missed some.
    pub(super) fn newest_acks(&self, kind: OpKind, limit: usize) -> Vec<(OpId, CopyAck)> {
        let acks = self.all.iter().filter_map(|(op, state)| match state {
            Op::Whole { ack, .. } if kind == OpKind::Backup => Some((*op, ack.clone())),
            Op::Ended { kind: of, ack, .. } if *of == kind => Some((*op, ack.clone())),
            Op::Whole { .. } | Op::Ended { .. } | Op::Running { .. } => None,
        });
        let mut acks: Vec<_> = acks.collect();
        acks.drain(..acks.len().saturating_sub(limit));
        acks
    }
}

/// The half of an op id that names its maker.
fn maker(op: OpId) -> [u8; 8] {
    let [a, b, c, d, e, f, g, h, ..] = op.0;
    [a, b, c, d, e, f, g, h]
}

/// Ended ops that are remembered; a floor stands for all older ones.
const TOMBSTONES_MAX: usize = 4_096;

#[cfg(test)]
mod tests {
    use super::*;
    use hicached_actors::protocol::{Bin, Incarnation, Rank};

    #[test]
    fn a_forgotten_op_and_older_ones_start_nothing_and_newer_ones_may() {
        let mut ops = Ops::default();
        let op = |counter| OpId::new(Incarnation([9; 16]), counter);
        let ack = CopyAck { attempt: 1, rank: Rank(0), layers: Bin(vec![]), complete: true, failed: vec![] };
        for counter in 0..TOMBSTONES_MAX as u64 + 10 {
            ops.end(op(counter), OpKind::Load, ack.clone(), false);
        }
        assert_eq!(ops.len(), TOMBSTONES_MAX);
        for (counter, forgotten) in [(0, true), (9, true), (10, false), (1 << 40, false)] {
            assert_eq!(ops.is_forgotten(OpKind::Load, op(counter)), forgotten, "{counter}");
            assert!(!ops.is_forgotten(OpKind::Backup, op(counter)), "kinds are counted apart");
        }
        assert_eq!(ops.newest_acks(OpKind::Load, 3).len(), 3);
    }
}
