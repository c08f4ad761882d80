//! What a run did, and whether every byte was right.

use std::collections::BTreeMap;
use std::time::Duration;

/// Result of [`super::Engine::run`].
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Requests taken from the source.
    pub requests: u64,
    /// Requests that ended as they should: closed or aborted, by their fate.
    pub requests_ended: u64,
    /// Of those, aborted.
    pub aborted: u64,
    /// Computed without the cache, the daemon being away.
    pub uncached: u64,
    /// Requests that failed.
    pub failed: u64,
    /// The first failures: number of the request and what happened.
    pub failures: Vec<(usize, String)>,
    /// Hit pages of each request by its last answered `open`, in order of the source.
    pub hits: Vec<Hit>,
    /// Keyed pages of all prompts.
    pub full_pages: u64,
    /// Bytes compared with what they must be.
    pub bytes_verified: u64,
    /// Pieces (one layer of one component of one page) with a wrong word.
    pub mismatches: u64,
    /// Words of 8 bytes that were wrong.
    pub mismatched_words: u64,
    /// The first wrong pieces.
    pub first_mismatches: Vec<WrongPiece>,
    /// Refusals by code.
    pub refusals: BTreeMap<String, u64>,
    /// Times a request to the daemon was repeated.
    pub repeats: u64,
    /// Forwards.
    pub steps: u64,
    /// Loads waited for.
    pub loads: u64,
    /// Loads that failed, after which their pages were computed.
    pub loads_failed: u64,
    /// Requests begun again because the control group was replaced.
    pub reopened: u64,
    /// Requests aborted and begun again because they waited too long for more pages.
    pub preempted: u64,
    /// Sums over the answers to `close`.
    pub closed: ClosedSums,
    /// Nanoseconds of answered requests.
    pub latencies: Latencies,
    /// Of the whole run.
    pub elapsed: Duration,
}

/// Hit pages of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hit {
    /// Pages whose L1 copy was used.
    pub l1: u32,
    /// Pages loaded from L2.
    pub l2: u32,
}

/// Sums over the answers to `close`, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClosedSums {
    /// With an L1 copy.
    pub l1_pages: u64,
    /// With an L2 copy.
    pub l2_pages: u64,
    /// Committed first by another session.
    pub duplicates: u64,
    /// Full, but not cached.
    pub uncached: u64,
}

/// Nanoseconds from the first try of a request to its answer.
#[derive(Clone, Debug, Default)]
pub struct Latencies {
    /// `open`, the answered one alone.
    pub open_ns: Vec<u64>,
    /// `step`.
    pub step_ns: Vec<u64>,
    /// `close`.
    pub commit_ns: Vec<u64>,
    /// From the start of the forward that needs a load until its last layer was there.
    pub load_ns: Vec<u64>,
}

/// A piece of a page that was not what it must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrongPiece {
    /// Number of the request, from 0.
    pub request: usize,
    /// Position of the page in it.
    pub position: u32,
    /// The page.
    pub page: u32,
    /// The component.
    pub component: &'static str,
    /// Its layer.
    pub layer: u32,
    /// Byte of the first wrong word in that layer of the page.
    pub offset_bytes: u32,
}

/// Where a run stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Requests taken from the source.
    pub requests: u64,
    /// Requests that are over, in whatever way.
    pub over: u64,
    /// Pieces that were wrong so far.
    pub mismatches: u64,
}

impl Report {
    /// Pages served from L1 and from L2.
    pub fn hit_pages(&self) -> (u64, u64) {
        self.hits.iter().fold((0, 0), |(l1, l2), hit| (l1 + u64::from(hit.l1), l2 + u64::from(hit.l2)))
    }

    /// Whether every request ended as it should and no byte was wrong.
    pub fn is_clean(&self) -> bool {
        self.mismatches == 0 && self.failed == 0 && self.requests_ended + self.uncached == self.requests
    }

    pub(super) fn progress(&self) -> Progress {
        let over = self.requests_ended + self.uncached + self.failed;
        Progress { requests: self.requests, over, mismatches: self.mismatches }
    }

    pub(super) fn mismatch(&mut self, mismatch: WrongPiece, words: u64) {
        self.mismatches += 1;
        self.mismatched_words += words;
        if self.first_mismatches.len() < FIRST_MAX {
            self.first_mismatches.push(mismatch);
        }
    }

    pub(super) fn failure(&mut self, request: usize, error: &impl std::fmt::Display) {
        self.failed += 1;
        if self.failures.len() < FIRST_MAX {
            self.failures.push((request, error.to_string()));
        }
    }
}

/// Mismatches and failures kept one by one; the rest is counted.
const FIRST_MAX: usize = 32;
