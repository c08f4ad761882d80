//! Numbers on messages: what is missing, what came twice, what is too old.
//!
//! Numbers run per (sender, receiver, urgency) from 1. A repeat is handed on, because every request is
//! answered from the state of its op, and counted. A gap that stays open for `gap_ms` asks the sender to
//! say again what it has open, whatever the client library reports.

use std::collections::{BTreeMap, BTreeSet};

use crate::protocol::{Address, Incarnation, Time};

/// The numbers one member of the group has seen and given.
#[derive(Debug, Default)]
pub struct Link {
    given: BTreeMap<(Address, bool), u64>,
    seen: BTreeMap<(Address, bool), Seen>,
    gaps: BTreeSet<(Time, (Address, bool))>,
    gap_ms: u64,
    repeats: u64,
    resyncs: u64,
}

#[derive(Debug)]
struct Seen {
    incarnation: Incarnation,
    /// Everything below has come. Numbers end at `u64::MAX`: no living sender gets there.
    next: u64,
    /// What came ahead of `next`.
    ahead: BTreeSet<u64>,
    /// When the gap in front of `ahead` is given up.
    gap_until: Option<Time>,
}

impl Link {
    /// Nothing seen; gaps may stay open for `gap_ms`.
    pub fn new(gap_ms: u64) -> Self {
        Self { gap_ms, ..Self::default() }
    }

    /// The number of the next message to `to`.
    pub fn give(&mut self, to: Address, urgent: bool) -> u64 {
        let number = self.given.entry((to, urgent)).or_insert(0);
        *number += 1;
        *number
    }

    /// Notes that number `seq` of `from` has come.
    pub fn saw(&mut self, now: Time, from: (Address, bool), incarnation: Incarnation, seq: u64) {
        let fresh = || Seen { incarnation, next: 1, ahead: BTreeSet::new(), gap_until: None };
        let seen = self.seen.entry(from).or_insert_with(fresh);
        if seen.incarnation != incarnation {
            // A receiver that begins in the middle of a sender's life starts with what it hears.
            self.gaps.retain(|(_, of)| *of != from);
            *seen = Seen { next: seq, ..fresh() };
        }
        if seq < seen.next || !seen.ahead.insert(seq) {
            self.repeats += 1;
            return;
        }
        while seen.ahead.remove(&seen.next) {
            seen.next = seen.next.saturating_add(1);
        }
        let (gap, full) = (!seen.ahead.is_empty(), seen.ahead.len() > AHEAD_MAX);
        if let Some(until) = seen.gap_until.take_if(|_| !gap || full) {
            self.gaps.remove(&(until, from));
        }
        if gap && seen.gap_until.is_none() {
            let until = if full { now } else { now.plus_ms(self.gap_ms) };
            seen.gap_until = Some(until);
            self.gaps.insert((until, from));
        }
    }

    /// Gives up the gaps whose time has come: peers to ask, with the first number missing.
    pub fn wake(&mut self, now: Time) -> Vec<(Address, u64)> {
        let mut ask = Vec::new();
        while let Some((until, from)) = self.gaps.first().copied().filter(|(until, _)| *until <= now) {
            self.gaps.remove(&(until, from));
            let Some(seen) = self.seen.get_mut(&from) else { continue };
            ask.push((from.0, seen.next));
            seen.gap_until = None;
            seen.next = seen.ahead.pop_last().map_or(seen.next, |last| last.saturating_add(1));
            seen.ahead.clear();
            self.resyncs += 1;
        }
        ask
    }

    /// When the next gap is given up.
    pub fn next_deadline(&self) -> Option<Time> {
        self.gaps.first().map(|(until, _)| *until)
    }

    /// Repeated numbers and resyncs so far.
    pub const fn counters(&self) -> [(&'static str, u64); 2] {
        [("link.repeats", self.repeats), ("link.resyncs", self.resyncs)]
    }
}

/// With more messages than this behind a gap, waiting longer only costs memory.
const AHEAD_MAX: usize = 1_024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_is_asked_for_once_when_it_stays_open() {
        let mut link = Link::new(100);
        let (from, life) = ((Address::Index, false), Incarnation([1; 16]));
        for seq in [1, 2, 4, 5] {
            link.saw(Time::ZERO, from, life, seq);
        }
        assert_eq!(link.next_deadline(), Some(Time::ZERO.plus_ms(100)));
        assert!(link.wake(Time::ZERO.plus_ms(99)).is_empty());
        assert_eq!(link.wake(Time::ZERO.plus_ms(100)), [(Address::Index, 3)]);
        assert_eq!(link.next_deadline(), None);
        link.saw(Time::ZERO, from, life, 6);
        assert_eq!(link.next_deadline(), None, "6 follows 5");
    }

    #[test]
    fn a_number_that_no_sender_reaches_is_only_a_number() {
        let (from, life) = ((Address::Index, false), Incarnation([1; 16]));
        let mut first = Link::new(100);
        first.saw(Time::ZERO, from, Incarnation([2; 16]), 1);
        for seq in [u64::MAX, u64::MAX, 0] {
            first.saw(Time::ZERO, from, life, seq);
        }
        let mut ahead = Link::new(100);
        ahead.saw(Time::ZERO, from, life, u64::MAX);
        assert_eq!(ahead.wake(Time::ZERO.plus_ms(100)), [(Address::Index, 1)]);
        ahead.saw(Time::ZERO, from, life, 1);
        assert_eq!(ahead.counters()[0].1, 1, "counted as a repeat");
    }

    #[test]
    fn numbers_behind_a_gap_are_bounded() {
        let mut link = Link::new(100);
        let (from, life) = ((Address::Index, false), Incarnation([1; 16]));
        let last = AHEAD_MAX as u64 + 2;
        for seq in 2..last {
            link.saw(Time::ZERO, from, life, seq);
        }
        assert_eq!(link.next_deadline(), Some(Time::ZERO.plus_ms(100)));
        link.saw(Time::ZERO, from, life, last);
        assert_eq!(link.next_deadline(), Some(Time::ZERO), "at once");
        assert_eq!(link.wake(Time::ZERO), [(Address::Index, 1)]);
    }

    #[test]
    fn a_gap_that_closes_is_not_asked_for_and_repeats_are_counted() {
        let mut link = Link::new(100);
        let (from, life) = ((Address::Index, false), Incarnation([1; 16]));
        for seq in [1, 3, 2, 2, 3] {
            link.saw(Time::ZERO, from, life, seq);
        }
        assert_eq!(link.next_deadline(), None);
        assert_eq!(link.counters()[0].1, 2);
    }
}
