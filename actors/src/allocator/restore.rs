//! What is taken before reservations begin, and slots that a rank which came back still holds.

use std::collections::{BTreeMap, BTreeSet};

use super::ledger::refusal_of;
use super::machine::{Allocator, answer_index};
use crate::ended::Ended;
use crate::machine::{Effect, Sender};
use crate::protocol::{OpId, Restore, Restored, Time, TooLarge, WrongState};

/// Restores and their parts.
#[derive(Debug)]
pub(super) struct Restoring {
    /// Those that lack parts.
    open: BTreeMap<OpId, Parts>,
    /// How many parts those had that were whole.
    ended: Ended<u32>,
    /// One was whole: reservations have begun.
    is_over: bool,
}

#[derive(Debug, Default)]
struct Parts {
    taken: BTreeSet<u32>,
    count: Option<u32>,
}

impl Restoring {
    pub(super) const fn new(keep_ms: u64, max: usize) -> Self {
        Self { open: BTreeMap::new(), ended: Ended::new(keep_ms, max), is_over: false }
    }

    pub(super) const fn is_over(&self) -> bool {
        self.is_over
    }

    pub(super) fn wake(&mut self, now: Time) {
        self.ended.wake(now);
    }

    pub(super) fn next_deadline(&self) -> Option<Time> {
        self.ended.next_deadline()
    }

    /// Whether this part was taken before.
    fn knows(&self, op: OpId, part: u32) -> bool {
        let running = self.open.get(&op).is_some_and(|parts| parts.taken.contains(&part));
        running || self.ended.get(op).is_some_and(|count| part < *count)
    }

    fn note(&mut self, now: Time, op: OpId, part: u32, last: bool) {
        let parts = self.open.entry(op).or_default();
        parts.taken.insert(part);
        if last {
            parts.count = Some(part + 1);
        }
        // Parts may come in any order: the last one alone is not the whole.
        if let Some(count) = parts.count.filter(|count| parts.taken.len() as u64 == u64::from(*count)) {
            self.open.remove(&op);
            self.ended.note(now, op, count);
            self.is_over = true;
        }
    }
}

impl Allocator {
    /// The index names slots that are taken.
    pub(super) fn restore(&mut self, now: Time, from: &Sender, msg: &Restore, out: &mut Vec<Effect>) {
        if self.restoring.knows(from.op, msg.part) {
            self.counts.duplicates += 1;
            return answer_index(from, Restored { part: msg.part }, out);
        }
        if self.restoring.ended.get(from.op).is_some() {
            return self.refuse(from, WrongState::new(from.op, "restored"), out);
        }
        if msg.part >= PARTS_MAX {
            return self.refuse(from, TooLarge::new("part", msg.part.into(), PARTS_MAX.into()), out);
        }
        if self.restoring.open.len() >= RESTORES_MAX && !self.restoring.open.contains_key(&from.op) {
            let bound = RESTORES_MAX as u64;
            return self.refuse(from, TooLarge::new("restores", bound + 1, bound), out);
        }
        if let Err(error) = self.ledger.take(&msg.l2_owners.0, &msg.l2.0) {
            return self.refuse(from, refusal_of(&error), out);
        }
        self.restoring.note(now, from.op, msg.part, msg.last);
        out.push(Effect::Mark { op: from.op, name: "restore.slots", value: msg.l2.0.len() as u64 });
        answer_index(from, Restored { part: msg.part }, out);
    }
}

/// Parts of one restore: at 65,536 slots each, far more than a group has.
const PARTS_MAX: u32 = 4_096;
/// Restores that lack parts.
const RESTORES_MAX: usize = 64;
