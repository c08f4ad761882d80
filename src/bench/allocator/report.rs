//! What the benchmark prints.

use std::fmt;

use serde::Serialize;

use super::pattern::Pattern;

/// Figures of one subject in one cell.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Figures {
    /// Mean nanoseconds per page.
    pub ns_per_page: f64,
    /// Median nanoseconds per call.
    pub p50_ns: u64,
    /// 99th percentile of nanoseconds per call.
    pub p99_ns: u64,
    /// Mean runs per call.
    pub runs: f64,
}

impl Figures {
    pub(super) fn of_batch(calls_ns: &mut [u64], pages: usize, runs: u64) -> Self {
        calls_ns.sort_unstable();
        let calls = calls_ns.len();
        // The slowest hundredth is what p99 speaks about; a timer interrupt in it would decide the mean.
        let usual = &calls_ns[..calls - calls / 100];
        Self {
            ns_per_page: usual.iter().sum::<u64>() as f64 / (usual.len() * pages) as f64,
            p50_ns: calls_ns[calls / 2],
            p99_ns: calls_ns[calls * 99 / 100],
            runs: runs as f64 / calls as f64,
        }
    }

    pub(super) fn median_of(batches: &[Self]) -> Self {
        let median = |figure: fn(&Self) -> f64| {
            let mut figures: Vec<f64> = batches.iter().map(figure).collect();
            figures.sort_by(f64::total_cmp);
            figures[figures.len() / 2]
        };
        Self {
            ns_per_page: median(|batch| batch.ns_per_page),
            p50_ns: median(|batch| batch.p50_ns as f64) as u64,
            p99_ns: median(|batch| batch.p99_ns as f64) as u64,
            runs: median(|batch| batch.runs),
        }
    }
}

/// One call in one state of one pool.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Bytes of the pool of one rank.
    pub pool_bytes: u64,
    /// Records of the pool of one rank.
    pub records: u32,
    /// State of the pool.
    pub pattern: Pattern,
    /// `extend` (exact owners, eight lanes) or `host` (one pool).
    pub call: String,
    /// Pages per call.
    pub pages: u64,
    /// Runs that longest-first needs in this state; None where it changes from call to call.
    pub fewest_runs: Option<u32>,
    /// Bytes of bitmap and summary of one pool.
    pub metadata_bytes: usize,
    /// Ours.
    pub hicached: Figures,
    /// `offset-allocator`, one per lane.
    pub offset_allocator: Figures,
    /// `rlsf`, one per lane.
    pub rlsf: Figures,
    /// `offset-allocator` as one pool that knows no owners: less work than was asked.
    pub offset_allocator_without_lanes: Option<Figures>,
    /// `rlsf` as one pool that knows no owners: less work than was asked.
    pub rlsf_without_lanes: Option<Figures>,
}

impl Row {
    /// Nanoseconds of ours over those of the faster peer that does the same work.
    pub fn ratio(&self) -> f64 {
        self.hicached.ns_per_page / self.offset_allocator.ns_per_page.min(self.rlsf.ns_per_page)
    }

    /// Nanoseconds of ours over those of the faster peer that knows no lanes.
    pub fn ratio_without_lanes(&self) -> Option<f64> {
        let peers = [self.offset_allocator_without_lanes?, self.rlsf_without_lanes?];
        Some(self.hicached.ns_per_page / peers[0].ns_per_page.min(peers[1].ns_per_page))
    }
}

/// The worst of every aim.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Worst {
    /// Ours over the faster peer (aim: at most 1).
    pub ratio: f64,
    /// Ours over the faster peer that knows no lanes.
    pub ratio_without_lanes: f64,
    /// Rows with more runs than longest-first needs (aim: 0).
    pub rows_with_more_runs: usize,
    /// p99 of calls of up to 64 pages, in nanoseconds (aim: under 2,000).
    pub p99_ns_to_64_pages: u64,
    /// p99 of all calls, in nanoseconds.
    pub p99_ns: u64,
    /// p50 in a larger pool over p50 in the smallest, of one call in one state (aim: under 2). Calls whose p50
    /// is within a few steps of the clock say nothing here.
    pub growth_p50: f64,
    /// The same of the means, which are finer than the steps of the clock.
    pub growth_mean: f64,
    /// Bytes of metadata per record (aim: under 1).
    pub metadata_bytes_per_record: f64,
    /// Nanoseconds per page of extends of 32 pages and more (aim: at most 30).
    pub ns_per_page_from_32: f64,
}

impl Worst {
    fn of(rows: &[Row]) -> Self {
        let most = |figures: &mut dyn Iterator<Item = f64>| figures.fold(0.0, f64::max);
        let growth = |figure: fn(&Figures) -> f64| {
            let twin = |a: &Row, b: &Row| (a.pattern, &a.call, a.pages) == (b.pattern, &b.call, b.pages);
            let smallest =
                |row: &Row| rows.iter().find(|other| twin(row, other)).map_or(1.0, |row| figure(&row.hicached));
            rows.iter().map(|row| figure(&row.hicached) / smallest(row).max(f64::MIN_POSITIVE)).fold(0.0, f64::max)
        };
        let more_runs = |row: &&Row| row.fewest_runs.is_some_and(|fewest| row.hicached.runs > f64::from(fewest));
        Self {
            ratio: most(&mut rows.iter().map(Row::ratio)),
            ratio_without_lanes: most(&mut rows.iter().filter_map(Row::ratio_without_lanes)),
            rows_with_more_runs: rows.iter().filter(more_runs).count(),
            p99_ns_to_64_pages: rows
                .iter()
                .filter(|row| row.pages <= 64)
                .map(|row| row.hicached.p99_ns)
                .max()
                .unwrap_or(0),
            p99_ns: rows.iter().map(|row| row.hicached.p99_ns).max().unwrap_or(0),
            growth_p50: growth(|figures| figures.p50_ns.max(1) as f64),
            growth_mean: growth(|figures| figures.ns_per_page),
            metadata_bytes_per_record: most(
                &mut rows.iter().map(|row| row.metadata_bytes as f64 / f64::from(row.records)),
            ),
            ns_per_page_from_32: most(
                &mut rows
                    .iter()
                    .filter(|row| row.call == "extend" && row.pages >= 32)
                    .map(|row| row.hicached.ns_per_page),
            ),
        }
    }
}

/// Everything that was measured; `Display` is the table.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Seed of everything random.
    pub seed: u64,
    /// Nanoseconds per call that were taken off as the cost of the clock.
    pub clock_ns: u64,
    /// The worst of every aim, idle.
    pub worst: Worst,
    /// Measured with nothing beside.
    pub idle: Vec<Row>,
    /// The worst of every aim, beside a replay.
    pub worst_beside: Option<Worst>,
    /// Measured beside a replay.
    pub beside: Option<Vec<Row>>,
}

impl Report {
    pub(super) fn new(seed: u64, clock_ns: u64, idle: Vec<Row>, beside: Option<Vec<Row>>) -> Self {
        let worst_beside = beside.as_deref().map(Worst::of);
        Self { seed, clock_ns, worst: Worst::of(&idle), idle, worst_beside, beside }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}, clock {} ns taken off every call; ns/page p50/p99(ns) runs", self.seed, self.clock_ns)?;
        write_table(f, "idle", &self.idle, &self.worst)?;
        match (&self.beside, &self.worst_beside) {
            (Some(rows), Some(worst)) => write_table(f, "beside a replay", rows, worst),
            (Some(_), None) | (None, Some(_)) | (None, None) => writeln!(f, "\nbeside a replay: not measured"),
        }
    }
}

fn write_table(f: &mut fmt::Formatter<'_>, title: &str, rows: &[Row], worst: &Worst) -> fmt::Result {
    let cell = |figures: &Figures| {
        format!("{:.2} {}/{} {:.0}", figures.ns_per_page, figures.p50_ns, figures.p99_ns, figures.runs)
    };
    writeln!(f, "\n{title}")?;
    writeln!(
        f,
        "{:>9} {:<7}{:<12} {:<24} {:<24} {:<26} {:>6} {:>6} {:>8}",
        "records", "state", "call", "hicached", "offset-allocator", "rlsf", "ratio", "fewest", "no lanes"
    )?;
    for row in rows {
        writeln!(
            f,
            "{:>9} {:<7}{:<12} {:<24} {:<24} {:<26} {:>6.2} {:>6} {:>8}",
            row.records,
            row.pattern.name(),
            format!("{} {}", row.call, row.pages),
            cell(&row.hicached),
            cell(&row.offset_allocator),
            cell(&row.rlsf),
            row.ratio(),
            row.fewest_runs.map_or("-".to_owned(), |runs| runs.to_string()),
            row.ratio_without_lanes().map_or("-".to_owned(), |ratio| format!("{ratio:.2}")),
        )?;
    }
    writeln!(f, "worst over the faster peer {:.2} (without lanes {:.2})", worst.ratio, worst.ratio_without_lanes)?;
    writeln!(f, "rows with more runs than longest-first: {}", worst.rows_with_more_runs)?;
    writeln!(f, "p99 to 64 pages {} ns, all {} ns", worst.p99_ns_to_64_pages, worst.p99_ns)?;
    writeln!(f, "growth over the pool sizes: p50 {:.2}, mean {:.2}", worst.growth_p50, worst.growth_mean)?;
    writeln!(f, "metadata bytes per record {:.3}", worst.metadata_bytes_per_record)?;
    writeln!(f, "extends of 32 and more: {:.2} ns per page", worst.ns_per_page_from_32)
}
