//! The lines that an engine of its own process writes, one JSON object each.

use std::collections::BTreeMap;

use hicached_client::engine::{Progress, Report, Routed};
use serde::{Deserialize, Serialize};

use super::side::Over;

/// One request that is over, and where the engine stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedLine {
    /// Its number.
    pub number: u64,
    /// `closed`, `aborted`, `uncached` or `failed`.
    pub how: String,
    /// Pages hit on the device.
    pub l1: u32,
    /// Pages loaded from the host.
    pub l2: u32,
    /// Full pages of the prompt.
    pub full_pages: u32,
    /// Nanoseconds until its last `open` was answered.
    pub open_ns: Option<u64>,
    /// Nanoseconds until its `close` was answered.
    pub commit_ns: Option<u64>,
    /// Nanoseconds from the start of the forward that needed its load until that was there.
    pub load_ns: Option<u64>,
    /// Bytes this engine has compared so far.
    pub bytes_verified: u64,
    /// Pieces that were wrong so far.
    pub mismatches: u64,
    /// What came of its handover, where there is a decode side.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handover: Option<HandoverLine>,
}

/// The handover of a request that is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandoverLine {
    /// Attempts made.
    pub attempts: u32,
    /// How the prefill side of the last one ended: as the request, or `not_handed_over`.
    pub prefill: String,
    /// How its decode side did.
    pub decode: String,
    /// Pages that came over in it.
    pub pages: u32,
    /// Nanoseconds that decode waited for them; `None` when they did not come.
    pub ns: Option<u64>,
}

impl EndedLine {
    /// Of a request and its engine.
    pub fn of(Over { ended, routed }: Over, now: Progress) -> Self {
        Self {
            number: ended.number as u64,
            how: ended.how.name().to_owned(),
            l1: ended.hit.l1,
            l2: ended.hit.l2,
            full_pages: ended.full_pages,
            open_ns: ended.open_ns,
            commit_ns: ended.commit_ns,
            load_ns: ended.load_ns,
            bytes_verified: now.bytes_verified,
            mismatches: now.mismatches,
            handover: routed.map(HandoverLine::of),
        }
    }
}

impl HandoverLine {
    fn of(Routed { attempts, prefill, decode, .. }: Routed) -> Self {
        let (prefill, pages, ns) = (prefill.how.name().to_owned(), decode.handover_pages, decode.handover_ns);
        Self { attempts, prefill, decode: decode.how.name().to_owned(), pages, ns }
    }
}

/// The last line of an engine that ended in order.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Totals {
    /// What it did in its life.
    pub totals: Sums,
}

/// What one engine did.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Sums {
    /// Requests taken.
    pub requests: u64,
    /// Requests that ended as they should.
    pub requests_ended: u64,
    /// Of those, aborted.
    pub aborted: u64,
    /// Requests that did not.
    pub failed: u64,
    /// The first of them, with the reasons.
    pub failures: Vec<(usize, String)>,
    /// Requests begun again for a new control group.
    pub reopened: u64,
    /// Requests begun again for want of pages.
    pub preempted: u64,
    /// Loads waited for.
    pub loads: u64,
    /// Loads that failed.
    pub loads_failed: u64,
    /// Forwards.
    pub steps: u64,
    /// Requests to the daemon sent again.
    pub repeats: u64,
    /// Refusals by code.
    pub refusals: BTreeMap<String, u64>,
    /// Bytes compared.
    pub bytes_verified: u64,
    /// Pieces that were wrong.
    pub mismatches: u64,
}

impl Totals {
    /// Of a whole run.
    pub fn of(report: Report) -> Self {
        let totals = Sums {
            requests: report.requests,
            requests_ended: report.requests_ended,
            aborted: report.aborted,
            failed: report.failed,
            failures: report.failures,
            reopened: report.reopened,
            preempted: report.preempted,
            loads: report.loads,
            loads_failed: report.loads_failed,
            steps: report.steps,
            repeats: report.repeats,
            refusals: report.refusals,
            bytes_verified: report.bytes_verified,
            mismatches: report.mismatches,
        };
        Self { totals }
    }
}
