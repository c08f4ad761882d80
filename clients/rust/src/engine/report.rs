//! What a run did, and whether every byte was right.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;

use super::Prompt;

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
    /// Hit pages by the last answered `open` of each request that is over.
    pub hit_pages: HitPages,
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
    /// Prompts that another engine computed and whose pages came over, checked as [`super::Verify`] says.
    pub handovers: u64,
    /// Tries of a handover that failed on this side.
    pub handovers_failed: u64,
    /// The first of them: number of the request and what happened.
    pub handover_failures: Vec<(usize, String)>,
    /// Pages that came over.
    pub handover_pages: u64,
    /// Sums over the answers to `close`.
    pub closed: ClosedSums,
    /// How long answers took.
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

/// Hit pages of many requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HitPages {
    /// Pages whose L1 copy was used.
    pub l1: u64,
    /// Pages loaded from L2.
    pub l2: u64,
}

/// One request that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Its number.
    pub number: usize,
    /// In which way.
    pub how: How,
    /// Hit pages of its last answered `open`.
    pub hit: Hit,
    /// Full pages of its prompt.
    pub full_pages: u32,
    /// Sessions begun for it: more than one where its control group was replaced, or it waited too long for pages.
    pub sessions: u32,
    /// Nanoseconds until its last `open` was answered, if one was.
    pub open_ns: Option<u64>,
    /// Nanoseconds until its `close` was answered.
    pub commit_ns: Option<u64>,
    /// Nanoseconds from the start of the forward that needed its load until the last layer was there.
    pub load_ns: Option<u64>,
    /// Nanoseconds from the question for its handover until the pages were there.
    pub handover_ns: Option<u64>,
    /// Pages that came over then.
    pub handover_pages: u32,
}

impl Ended {
    /// Request `number`, which has done nothing yet.
    pub(super) fn new(number: usize, full_pages: u32) -> Self {
        let (how, hit) = (How::Failed, Hit::default());
        let (open_ns, commit_ns, load_ns, handover_ns) = (None, None, None, None);
        let (sessions, handover_pages) = (0, 0);
        Self { number, how, hit, full_pages, sessions, open_ns, commit_ns, load_ns, handover_ns, handover_pages }
    }
}

/// In which way a request is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Its session was closed.
    Closed,
    /// Its session was aborted, as it was fated to.
    Aborted,
    /// Computed without the cache, the daemon being away.
    Uncached,
    /// Its side of a handover ended early, for the reason of this code: both sides can try again by a higher attempt.
    NotHandedOver(&'static str),
    /// It did not end as it should.
    Failed,
}

impl How {
    /// As it is written.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Aborted => "aborted",
            Self::Uncached => "uncached",
            Self::NotHandedOver(_) => "not_handed_over",
            Self::Failed => "failed",
        }
    }
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

/// From the first try of a request to its answer.
#[derive(Clone, Debug, Default)]
pub struct Latencies {
    /// `open`, the answered one alone.
    pub open: Times,
    /// `step`.
    pub step: Times,
    /// `close`.
    pub commit: Times,
    /// From the start of the forward that needs a load until its last layer was there.
    pub load: Times,
    /// From the question for a handover until its pages were there.
    pub handover: Times,
}

/// Durations as a histogram of three digits: its memory does not grow with their number.
#[derive(Clone, Debug)]
pub struct Times(Histogram<u64>);

impl Times {
    /// Takes one in; what is longer than an hour counts as an hour.
    pub fn record(&mut self, ns: u64) {
        self.0.saturating_record(ns);
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// Nanoseconds that `percent` of them do not exceed, 0 when there are none.
    pub fn percentile_ns(&self, percent: f64) -> u64 {
        self.0.value_at_percentile(percent)
    }
}

impl Default for Times {
    fn default() -> Self {
        Self(Histogram::new_with_bounds(1, HOUR_NS, DIGITS).expect("bounds and digits that a histogram has"))
    }
}

impl FromIterator<u64> for Times {
    fn from_iter<I: IntoIterator<Item = u64>>(times_ns: I) -> Self {
        let mut times = Self::default();
        times_ns.into_iter().for_each(|ns| times.record(ns));
        times
    }
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
    /// Bytes compared so far.
    pub bytes_verified: u64,
    /// Pieces that were wrong so far.
    pub mismatches: u64,
}

impl Report {
    /// Whether every request ended as it should and no byte was wrong.
    pub fn is_clean(&self) -> bool {
        self.mismatches == 0 && self.failed == 0 && self.requests_ended + self.uncached == self.requests
    }

    pub(super) fn progress(&self) -> Progress {
        let over = self.requests_ended + self.uncached + self.handovers_failed + self.failed;
        let Self { requests, bytes_verified, mismatches, .. } = *self;
        Progress { requests, over, bytes_verified, mismatches }
    }

    /// Takes in a request that begins.
    pub(super) fn begin(&mut self, prompt: &Prompt) {
        self.requests += 1;
        self.full_pages += u64::from(prompt.plan.pages());
    }

    /// Takes in what one side of all handovers did, apart from its requests: they are counted once for both.
    pub(super) fn absorb(&mut self, side: &Self) {
        self.bytes_verified += side.bytes_verified;
        self.mismatches += side.mismatches;
        self.mismatched_words += side.mismatched_words;
        self.first_mismatches.extend(&side.first_mismatches);
        for (code, count) in &side.refusals {
            *self.refusals.entry(code.clone()).or_insert(0) += count;
        }
        self.repeats += side.repeats;
        self.steps += side.steps;
        self.loads += side.loads;
        self.loads_failed += side.loads_failed;
        self.reopened += side.reopened;
        self.preempted += side.preempted;
        self.handovers += side.handovers;
        self.handovers_failed += side.handovers_failed;
        self.handover_failures.extend(side.handover_failures.iter().cloned());
        self.handover_pages += side.handover_pages;
        self.closed.l1_pages += side.closed.l1_pages;
        self.closed.l2_pages += side.closed.l2_pages;
        self.closed.duplicates += side.closed.duplicates;
        self.closed.uncached += side.closed.uncached;
        let Latencies { open, step, commit, load, handover } = &mut self.latencies;
        let of_side = &side.latencies;
        for (times, more) in [
            (open, &of_side.open),
            (step, &of_side.step),
            (commit, &of_side.commit),
            (load, &of_side.load),
            (handover, &of_side.handover),
        ] {
            times.0 += &more.0;
        }
        self.elapsed = self.elapsed.max(side.elapsed);
    }

    /// Takes in a request that is over; what made it fail has been said before.
    pub(super) fn ended(&mut self, ended: &Ended) {
        match ended.how {
            How::Closed => self.requests_ended += 1,
            How::Aborted => {
                self.requests_ended += 1;
                self.aborted += 1;
            }
            How::Uncached => self.uncached += 1,
            How::NotHandedOver(_) => self.handovers_failed += 1,
            How::Failed => self.failed += 1,
        }
        self.hit_pages.l1 += u64::from(ended.hit.l1);
        self.hit_pages.l2 += u64::from(ended.hit.l2);
    }

    pub(super) fn mismatch(&mut self, mismatch: WrongPiece, words: u64) {
        self.mismatches += 1;
        self.mismatched_words += words;
        if self.first_mismatches.len() < FIRST_MAX {
            tracing::error!(?mismatch, "wrong bytes");
            self.first_mismatches.push(mismatch);
        }
    }

    pub(super) fn handover_failure(&mut self, request: usize, error: &impl std::fmt::Display) {
        tracing::debug!(request, %error, "a handover failed");
        if self.handover_failures.len() < FIRST_MAX {
            self.handover_failures.push((request, error.to_string()));
        }
    }

    pub(super) fn failure(&mut self, request: usize, error: &impl std::fmt::Display) {
        if self.failures.len() < FIRST_MAX {
            tracing::error!(request, %error, "a request failed");
            self.failures.push((request, error.to_string()));
        }
    }
}

/// Mismatches and failures kept one by one; the rest is counted.
const FIRST_MAX: usize = 32;
const HOUR_NS: u64 = 3_600_000_000_000;
/// Significant digits of a duration.
const DIGITS: u8 = 3;
