//! How ended ops ended, for repeats of what began them: bounded in time and in number.

use std::collections::{BTreeMap, BTreeSet};

use crate::makers::range_of;
use crate::protocol::{OpId, Time};

/// Outcomes of ended ops, each kept for a while.
#[derive(Debug)]
pub struct Ended<T> {
    of: BTreeMap<OpId, (Time, T)>,
    until: BTreeSet<(Time, OpId)>,
    keep_ms: u64,
    max: usize,
    /// The newest forgotten counter of each maker.
    forgotten: BTreeMap<u64, u64>,
    crowded_out: u64,
}

impl<T> Ended<T> {
    /// Keeps at most `max` outcomes, each for `keep_ms`.
    pub const fn new(keep_ms: u64, max: usize) -> Self {
        Self { of: BTreeMap::new(), until: BTreeSet::new(), keep_ms, max, forgotten: BTreeMap::new(), crowded_out: 0 }
    }

    /// Notes how `op` ended. At the bound the oldest outcome is forgotten.
    pub fn note(&mut self, now: Time, op: OpId, how: T) {
        let until = now.plus_ms(self.keep_ms);
        if let Some((before, _)) = self.of.insert(op, (until, how)) {
            self.until.remove(&(before, op));
        }
        self.until.insert((until, op));
        while self.of.len() > self.max {
            self.crowded_out += 1;
            self.forget_first();
        }
    }

    /// How `op` ended, while it is known.
    pub fn get(&self, op: OpId) -> Option<&T> {
        self.of.get(&op).map(|(_, how)| how)
    }

    /// Whether an op of the same maker that was made after `op`, or `op` itself, has been forgotten: an
    /// unknown op of which this holds is not known to be new.
    pub fn may_have_forgotten(&self, op: OpId) -> bool {
        self.forgotten.get(&range_of(op)).is_some_and(|newest| op.counter() <= *newest)
    }

    /// Forgets what is old.
    pub fn wake(&mut self, now: Time) {
        while self.until.first().is_some_and(|(until, _)| *until <= now) {
            self.forget_first();
        }
    }

    /// When the next outcome is forgotten.
    pub fn next_deadline(&self) -> Option<Time> {
        self.until.first().map(|(until, _)| *until)
    }

    /// Outcomes kept.
    pub fn len(&self) -> usize {
        self.of.len()
    }

    /// Whether none is kept.
    pub fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    /// Outcomes forgotten before their time.
    pub const fn crowded_out(&self) -> u64 {
        self.crowded_out
    }

    /// Panics when the two orders disagree or the bound is passed.
    pub fn check_invariants(&self) {
        assert_eq!(self.of.len(), self.until.len());
        assert!(self.of.len() <= self.max);
        for (until, op) in &self.until {
            assert_eq!(self.of.get(op).map(|(until, _)| *until), Some(*until), "{op:?}");
        }
    }

    fn forget_first(&mut self) {
        let Some((_, op)) = self.until.pop_first() else { return };
        self.of.remove(&op);
        let newest = self.forgotten.entry(range_of(op)).or_default();
        *newest = op.counter().max(*newest);
    }
}

/// Longer than any peer repeats a request that has been answered.
pub const ENDED_MS: u64 = 60_000;
/// Outcomes one machine keeps.
pub const ENDED_MAX: usize = 4_096;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Incarnation;

    #[test]
    fn outcomes_are_forgotten_by_age_and_by_number() {
        let op = |n| OpId::new(Incarnation([1; 16]), n);
        let mut ended = Ended::new(10, 2);
        for n in 0..3 {
            ended.note(Time::ZERO.plus_ms(n), op(n), n);
        }
        assert_eq!([0, 1, 2].map(|n| ended.get(op(n)).copied()), [None, Some(1), Some(2)]);
        assert_eq!([0, 1].map(|n| ended.may_have_forgotten(op(n))), [true, false]);
        assert_eq!((ended.crowded_out(), ended.next_deadline()), (1, Some(Time::ZERO.plus_ms(11))));
        ended.wake(Time::ZERO.plus_ms(11));
        assert_eq!((ended.len(), ended.next_deadline()), (1, Some(Time::ZERO.plus_ms(12))));
        ended.check_invariants();
    }
}
