//! Feeds an engine numbers and counts their ends: every number ends once, whichever engine it was given to.

use std::collections::BTreeSet;

use hicached_client::engine::{HitPages, Times};

use crate::replay::lines::{EndedLine, Sums, Totals};
use crate::replay::outcome::{LatencyUs, Percentiles};

/// The requests of a run.
#[derive(Debug, Default)]
pub(super) struct Drive {
    /// The next number nobody was given.
    next: u64,
    /// Numbers that have not ended.
    open: BTreeSet<u64>,
    /// Of those, numbers that the engine that lives was not given yet.
    waiting: BTreeSet<u64>,
    /// Requests that ended as they should.
    pub(super) ended: u64,
    /// Of those, aborted.
    pub(super) aborted: u64,
    /// Requests that ended otherwise.
    pub(super) failed: u64,
    /// Ends of numbers that had ended, or that nobody was given.
    pub(super) ended_twice: u64,
    pub(super) hit_pages: HitPages,
    pub(super) full_pages: u64,
    pub(super) handovers: Handovers,
    /// Of engines that are gone.
    past: (u64, u64),
    /// Of the engine that lives.
    now: (u64, u64),
    /// What the engine said last of all.
    pub(super) totals: Option<Sums>,
    open_times: Times,
    commit_times: Times,
    load_times: Times,
    handover_times: Times,
    /// Hits of each request by its number, while they are few.
    pub(super) hits: Vec<u32>,
}

/// What came of the handovers of requests that are over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Handovers {
    /// Requests that were closed behind one.
    pub(super) done: u64,
    /// Requests that took more attempts than one.
    pub(super) retried: u64,
    /// Most attempts of a request.
    pub(super) attempts_max: u32,
    /// Pages that came over.
    pub(super) pages: u64,
}

impl Drive {
    /// The next number for the engine that lives, if it may have one more: new ones only while `more` says so.
    pub(super) fn next(&mut self, in_flight_max: usize, more: bool) -> Option<u64> {
        if let Some(number) = self.waiting.pop_first() {
            return Some(number);
        }
        if !more || self.open.len() >= in_flight_max {
            return None;
        }
        let number = self.next;
        self.next += 1;
        self.open.insert(number);
        Some(number)
    }

    /// The engine did not take `number`.
    pub(super) fn give_back(&mut self, number: u64) {
        self.waiting.insert(number);
    }

    /// The engine is gone: what it was given goes to the next one.
    pub(super) fn engine_ended(&mut self) {
        self.waiting = self.open.clone();
        let (past, now) = (self.past, std::mem::take(&mut self.now));
        self.past = (past.0 + now.0, past.1 + now.1);
    }

    /// Takes a line of the engine; `false` when it is none.
    pub(super) fn line(&mut self, line: &str) -> bool {
        if let Ok(ended) = serde_json::from_str::<EndedLine>(line) {
            self.over(&ended);
            return true;
        }
        match serde_json::from_str::<Totals>(line) {
            Ok(Totals { totals }) => {
                self.now = (totals.bytes_verified, totals.mismatches);
                self.totals = Some(totals);
                true
            }
            Err(_) => false,
        }
    }

    fn over(&mut self, ended: &EndedLine) {
        self.now = (ended.bytes_verified, ended.mismatches);
        if !self.open.remove(&ended.number) {
            self.ended_twice += 1;
            return;
        }
        match ended.how.as_str() {
            "closed" => self.ended += 1,
            "aborted" => (self.ended, self.aborted) = (self.ended + 1, self.aborted + 1),
            _ => self.failed += 1,
        }
        self.handovers.take(ended);
        self.hit_pages.l1 += u64::from(ended.l1);
        self.hit_pages.l2 += u64::from(ended.l2);
        self.full_pages += u64::from(ended.full_pages);
        for (times, ns) in [
            (&mut self.open_times, ended.open_ns),
            (&mut self.commit_times, ended.commit_ns),
            (&mut self.load_times, ended.load_ns),
            (&mut self.handover_times, ended.handover.as_ref().and_then(|handover| handover.ns)),
        ] {
            ns.into_iter().for_each(|ns| times.record(ns));
        }
        if let Some(place) = usize::try_from(ended.number).ok().filter(|place| *place < HITS_MAX) {
            self.hits.resize(self.hits.len().max(place + 1), 0);
            self.hits[place] = ended.l1 + ended.l2;
        }
    }

    /// Requests that somebody was given so far.
    pub(super) fn given(&self) -> u64 {
        self.next
    }

    /// Requests that are over, in whatever way.
    pub(super) fn over_count(&self) -> u64 {
        self.ended + self.failed
    }

    /// Whether no request is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.open.is_empty()
    }

    /// Bytes compared and pieces that were wrong, in all engines.
    pub(super) fn verified(&self) -> (u64, u64) {
        (self.past.0 + self.now.0, self.past.1 + self.now.1)
    }

    /// Hit pages of a hundred full pages.
    pub(super) fn hit_percent(&self) -> f64 {
        100.0 * (self.hit_pages.l1 + self.hit_pages.l2) as f64 / self.full_pages.max(1) as f64
    }

    pub(super) fn latency_us(&self) -> LatencyUs {
        LatencyUs {
            open: Percentiles::of(&self.open_times),
            commit: Percentiles::of(&self.commit_times),
            load: Percentiles::of(&self.load_times),
            handover: Percentiles::of(&self.handover_times),
        }
    }
}

impl Handovers {
    fn take(&mut self, ended: &EndedLine) {
        let Some(handover) = &ended.handover else { return };
        self.done += u64::from(ended.how == "closed" && handover.ns.is_some());
        self.retried += u64::from(handover.attempts > 1);
        self.attempts_max = self.attempts_max.max(handover.attempts);
        self.pages += u64::from(handover.pages);
    }
}

/// Requests whose hits are kept one by one.
const HITS_MAX: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::lines::HandoverLine;

    fn line(number: u64, mismatches: u64) -> String {
        serde_json::to_string(&ended(number, mismatches, "closed", None)).unwrap()
    }

    fn ended(number: u64, mismatches: u64, how: &str, handover: Option<HandoverLine>) -> EndedLine {
        EndedLine {
            number,
            how: how.to_owned(),
            l1: 1,
            l2: 2,
            full_pages: 4,
            open_ns: Some(1_000),
            commit_ns: None,
            load_ns: None,
            bytes_verified: 10 * (number + 1),
            mismatches,
            handover,
        }
    }

    #[test]
    fn a_request_counts_as_handed_over_when_it_was_closed_behind_its_pages() {
        let handover = |attempts, ns| {
            let how = || "closed".to_owned();
            Some(HandoverLine { attempts, prefill: how(), decode: how(), pages: 7, ns })
        };
        let mut drive = Drive::default();
        for (number, how, handover) in [
            (0, "closed", handover(1, Some(5_000))),
            (1, "closed", handover(9, Some(5_000))),
            (2, "aborted", handover(2, Some(5_000))),
            (3, "closed", None),
            (4, "failed", handover(64, None)),
        ] {
            assert_eq!(drive.next(9, true), Some(number));
            assert!(drive.line(&serde_json::to_string(&ended(number, 0, how, handover)).unwrap()));
        }
        assert_eq!((drive.ended, drive.aborted, drive.failed), (4, 1, 1));
        assert_eq!(drive.handovers, Handovers { done: 2, retried: 3, attempts_max: 64, pages: 28 });
        // Right to three digits, and rounded up.
        assert!((5..=6).contains(&drive.latency_us().handover.p50));
    }

    #[test]
    fn what_an_engine_leaves_open_goes_to_the_next_one_and_ends_once() {
        let mut drive = Drive::default();
        assert_eq!((0..4).map(|_| drive.next(3, true)).collect::<Vec<_>>(), [Some(0), Some(1), Some(2), None]);
        assert!(drive.line(&line(1, 2)) && !drive.line("{}"));
        drive.engine_ended();
        assert_eq!((0..3).map(|_| drive.next(3, false)).collect::<Vec<_>>(), [Some(0), Some(2), None]);
        drive.give_back(2);
        assert_eq!(drive.next(3, false), Some(2));
        for number in [0, 2, 2] {
            drive.line(&line(number, 1));
        }
        assert_eq!((drive.ended, drive.ended_twice, drive.is_idle(), drive.given()), (3, 1, true, 3));
        assert_eq!(drive.verified(), (20 + 30, 2 + 1));
        assert_eq!((drive.hit_percent(), drive.hits.as_slice()), (75.0, [3, 3, 3].as_slice()));
    }
}
