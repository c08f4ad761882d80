//! What `bench bus` prints.

use std::fmt;

use serde::Serialize;

use super::place::Place;
use crate::replay::outcome::Percentiles;
use crate::telemetry::TraceFigures;

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Requests of one run.
    pub requests: u32,
    /// Runs.
    pub runs: u32,
    /// Pages of one request, none of them cached.
    pub pages: u32,
    /// Ranks.
    pub ranks: u8,
    /// One per bus and place of the actors.
    pub buses: Vec<BusFigures>,
    /// Buses that were not measured.
    pub skipped: Vec<SkippedBus>,
}

/// A bus that was not measured.
#[derive(Clone, Debug, Serialize)]
pub struct SkippedBus {
    /// `nats`.
    pub bus: &'static str,
    /// Why not.
    pub why: &'static str,
}

/// Figures over one bus: medians of the runs.
#[derive(Clone, Debug, Serialize)]
pub struct BusFigures {
    /// `memory` or `nats`.
    pub bus: &'static str,
    /// Processes that host the actors: one for each actor, or 1 for all of them, which is the engine's as well.
    pub processes: u32,
    /// Requests of a thousand whose spans were exported; absent with export off.
    pub traced_permille: Option<u32>,
    /// Spans that the collector had taken when the runs were over.
    pub spans_exported: u64,
    /// Spans that were lost on the way to it by then.
    pub spans_lost: u64,
    /// Round trips on the bus for one `open` without pressure, the engine's own among them: frames by two. Absent
    /// where frames of other processes cannot be counted.
    pub round_trips_per_open: Option<f64>,
    /// One request and its reply, with a body as large as that of `open`.
    pub raw: Percentiles,
    /// `open`.
    pub open: Percentiles,
    /// `step`.
    pub step: Percentiles,
    /// `close`: until everything of the session is committed.
    pub commit: Percentiles,
    /// Median of `open` by median of the raw request, of the same run.
    pub open_by_raw: f64,
    /// The same of `step`.
    pub step_by_raw: f64,
    /// The same of `close`.
    pub commit_by_raw: f64,
}

/// One run: percentiles of the raw request, `open`, `step` and `close`.
pub(super) type Run = [Percentiles; 4];

impl BusFigures {
    /// Medians of `runs`.
    pub(super) fn of(
        place: Place,
        traced_permille: Option<u32>,
        runs: &[Run],
        round_trips_per_open: Option<f64>,
        spans: TraceFigures,
    ) -> Self {
        let of = |at: usize| Percentiles {
            p50: median(runs.iter().map(|run| run[at].p50).collect()),
            p99: median(runs.iter().map(|run| run[at].p99).collect()),
        };
        let by_raw = |at: usize| {
            let hundredths = runs.iter().map(|run| run[at].p50 * 100 / run[0].p50.max(1)).collect();
            median(hundredths) as f64 / 100.0
        };
        Self {
            bus: place.bus().name(),
            processes: place.processes(),
            traced_permille,
            spans_exported: spans.exported,
            spans_lost: spans.lost,
            round_trips_per_open,
            raw: of(0),
            open: of(1),
            step: of(2),
            commit: of(3),
            open_by_raw: by_raw(1),
            step_by_raw: by_raw(2),
            commit_by_raw: by_raw(3),
        }
    }
}

pub(super) fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { requests, runs, pages, .. } = self;
        writeln!(f, "{requests} requests of {pages} uncached pages, median of {runs} runs, microseconds")?;
        write!(f, "{:<8}{:>10}  {:<10}{:>10}{:>10}{:>12}", "bus", "processes", "what", "p50", "p99", "by raw p50")?;
        for bus in &self.buses {
            let rows = [
                ("request", bus.raw, 1.0),
                ("open", bus.open, bus.open_by_raw),
                ("step", bus.step, bus.step_by_raw),
                ("close", bus.commit, bus.commit_by_raw),
            ];
            let head = format!("\n{:<8}{:>10}  ", bus.bus, bus.processes);
            for (what, Percentiles { p50, p99 }, by_raw) in rows {
                write!(f, "{head}{what:<10}{p50:>10}{p99:>10}{by_raw:>12.2}")?;
            }
            if let Some(round_trips) = bus.round_trips_per_open {
                write!(f, "{head}round trips per open: {round_trips}")?;
            }
            if let Some(permille) = bus.traced_permille {
                let (exported, lost) = (bus.spans_exported, bus.spans_lost);
                write!(f, "{head}{permille} of 1000 traced: {exported} spans exported, {lost} lost")?;
            }
        }
        for SkippedBus { bus, why } in &self.skipped {
            write!(f, "\n{bus:<8}skipped: {why}")?;
        }
        Ok(())
    }
}
