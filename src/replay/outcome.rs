//! What a run prints: one JSON object whose keys only ever grow, or a table.

use std::collections::BTreeMap;
use std::fmt;

use hicached_client::engine::{self, Times};
use serde::Serialize;

use super::sending::Sending;

/// Figures of a `replay` or `demo`.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// File name of the trace, or `demo`.
    pub trace: String,
    /// `memory` or `nats`.
    pub bus: &'static str,
    /// Tokens of a page.
    pub page_tokens: u32,
    /// Ranks.
    pub cp: u8,
    /// Requests sent.
    pub requests: u64,
    /// Requests that ended as they should.
    pub requests_ended: u64,
    /// Of those, aborted on the way, as they were fated to be.
    pub aborted: u64,
    /// Full pages of all prompts.
    pub full_pages: u64,
    /// Hit pages of each request's last answered `open`.
    pub hit_pages: HitPages,
    /// SHA-256 over the hit pages of every request, both tiers, in file order, decimal, a newline after each.
    pub per_request_sha256: String,
    /// Pages that moved or left.
    pub pages: MovedPages,
    /// Requests that were closed on both sides behind a handover.
    pub handovers: u64,
    /// Pages that went over, those of attempts that failed later included.
    pub handover_pages: u64,
    /// Whether there is a decode group.
    pub decode: bool,
    /// What its transfers cost each rank that sent them, in the sender's last life.
    pub sending: Sending,
    /// Bytes compared with what they must be.
    pub bytes_verified: u64,
    /// Pieces that were something else.
    pub mismatches: u64,
    /// Capacity minus free pages after a final flush, both tiers.
    pub leaked_pages: u64,
    /// Refusals by code.
    pub refusals: BTreeMap<String, u64>,
    /// Seconds from the first request to the last answer.
    pub wall_s: f64,
    /// Times of answered requests.
    pub latency_us: LatencyUs,
    /// No bytes were moved or compared.
    pub control_only: bool,
    /// Most requests in flight.
    pub concurrency: u64,
    /// Usable device pages of the group that computes prompts.
    pub l1_pages: u32,
    /// Host pages of the group.
    pub l2_pages: u32,
}

/// Hit pages per tier.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct HitPages {
    /// Used where they were.
    pub l1: u64,
    /// Loaded from the host.
    pub l2: u64,
}

impl From<engine::HitPages> for HitPages {
    fn from(engine::HitPages { l1, l2 }: engine::HitPages) -> Self {
        Self { l1, l2 }
    }
}

/// Pages that moved between tiers, or left one.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct MovedPages {
    /// Committed to the host.
    pub backed_up: u64,
    /// Committed to the device from the host.
    pub loaded: u64,
    /// Given up on the device to make room.
    pub evicted_l1: u64,
    /// Given up on the host to make room.
    pub evicted_l2: u64,
}

impl std::ops::AddAssign for MovedPages {
    fn add_assign(&mut self, more: Self) {
        self.backed_up += more.backed_up;
        self.loaded += more.loaded;
        self.evicted_l1 += more.evicted_l1;
        self.evicted_l2 += more.evicted_l2;
    }
}

/// Percentiles of every conversation, 0 when it did not take place.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct LatencyUs {
    /// `open`.
    pub open: Percentiles,
    /// `close`.
    pub commit: Percentiles,
    /// From the start of the forward that needs a load until its last layer was there.
    pub load: Percentiles,
    /// A handover.
    pub handover: Percentiles,
}

/// Whole microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Percentiles {
    /// Half are faster.
    pub p50: u64,
    /// One in a hundred is slower.
    pub p99: u64,
}

impl Percentiles {
    /// Of `times`.
    pub fn of(times: &Times) -> Self {
        let us = |percent| times.percentile_ns(percent).div_ceil(1_000);
        Self { p50: us(50.0), p99: us(99.0) }
    }
}

impl Outcome {
    /// What is wrong with the run, if anything is.
    pub fn fault(&self) -> Option<String> {
        let open = self.requests - self.requests_ended;
        let here = if self.decode { self.requests_ended - self.aborted - self.handovers } else { 0 };
        let faults = [
            (self.mismatches, "mismatches"),
            (self.leaked_pages, "leaked pages"),
            (open, "requests not ended"),
            (here, "requests not handed over"),
        ];
        let named: Vec<String> =
            faults.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect();
        (!named.is_empty()).then(|| named.join(", "))
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { trace, bus, page_tokens, cp, requests, requests_ended, full_pages, hit_pages, pages, .. } = self;
        writeln!(f, "{trace} over the {bus} bus: {cp} ranks, pages of {page_tokens} tokens, {:.2} s", self.wall_s)?;
        let mut row = |name: &str, value: &dyn fmt::Display| writeln!(f, "{name:<36}{value:>14}");
        row("requests", requests)?;
        row("requests ended", requests_ended)?;
        if self.aborted > 0 {
            row("of them, aborted on purpose", &self.aborted)?;
        }
        row("full pages", full_pages)?;
        let hits = hit_pages.l1 + hit_pages.l2;
        row("hit ratio, %", &format!("{:.1}", 100.0 * hits as f64 / (*full_pages).max(1) as f64))?;
        row("hit tokens, L1", &(hit_pages.l1 * u64::from(*page_tokens)))?;
        row("hit tokens, L2", &(hit_pages.l2 * u64::from(*page_tokens)))?;
        let both = if self.decode { ", both groups" } else { "" };
        row(&format!("pages backed up{both}"), &pages.backed_up)?;
        row(&format!("pages loaded{both}"), &pages.loaded)?;
        row(&format!("pages evicted, L1{both}"), &pages.evicted_l1)?;
        row(&format!("pages evicted, L2{both}"), &pages.evicted_l2)?;
        if self.decode {
            row("handovers", &self.handovers)?;
            row("pages handed over", &self.handover_pages)?;
        }
        for (code, count) in &self.refusals {
            row(&format!("refused and asked again, {code}"), count)?;
        }
        if self.control_only {
            row("bytes moved or compared", &"none: control only")?;
        } else {
            row("bytes verified", &self.bytes_verified)?;
            row("mismatches", &self.mismatches)?;
        }
        row("leaked pages", &self.leaked_pages)?;
        let LatencyUs { open, commit, load, handover } = self.latency_us;
        let handover = self.decode.then_some(("handover", handover));
        let times = [("open", open), ("commit", commit), ("load", load)];
        for (name, Percentiles { p50, p99 }) in times.into_iter().chain(handover) {
            row(&format!("{name}, p50 / p99 us"), &format!("{p50} / {p99}"))?;
        }
        write!(f, "{:<36}{}", "SHA-256 of the hits per request", self.per_request_sha256)?;
        if self.decode { write!(f, "\n{}", self.sending) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_right_to_three_digits() {
        let all = (0..=100).map(|n| n * 1_000).collect::<Vec<u64>>();
        for (times, p50, p99) in [(vec![], 0..=0, 0..=0), (vec![999], 1..=1, 1..=1), (all, 50..=51, 99..=100)] {
            let found = Percentiles::of(&times.into_iter().collect());
            assert!(p50.contains(&found.p50) && p99.contains(&found.p99), "{found:?}");
        }
    }
}
