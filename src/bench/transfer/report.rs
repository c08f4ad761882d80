//! What the benchmark prints.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::clock::Spent;
use super::scene::{Ends, Shape};

/// Everything that was measured; `Display` is the table.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Cores that this process may use.
    pub cores: usize,
    /// Threads that ran or wanted to, mean of the minute before.
    pub load_before: Option<f64>,
    /// The same at the end.
    pub load_after: Option<f64>,
    /// Bytes of a whole page.
    pub record_bytes: u64,
    /// Rounds that each median is of.
    pub rounds: u32,
    /// Connections of each sending rank, of the bare sockets too.
    pub streams_per_rank: usize,
    /// Most bytes of one frame.
    pub frame_bytes: u64,
    /// Threads of each sending rank that copy, of the plain copy too.
    pub copy_threads_per_rank: usize,
    /// The worst of every aim, over requests of 16 MiB and more.
    pub aims: Vec<Aim>,
    /// Rates, one row for each case and kind of ends.
    pub rows: Vec<Row>,
    /// Times of single handovers.
    pub handovers: Vec<Handovers>,
    /// What was not measured.
    pub absent: Vec<Absent>,
}

/// What one case took, by every way.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Bytes moved.
    pub bytes: u64,
    /// Pages.
    pub pages: u32,
    /// Layers of a page.
    pub layers: u32,
    /// Ranks that sent.
    pub ranks: u8,
    /// How the pages stood.
    pub ends: Ends,
    /// One for each way.
    pub rates: Vec<Rate>,
}

/// Medians of the rounds, of one way.
#[derive(Clone, Debug, Serialize)]
pub struct Rate {
    /// Which way.
    pub way: &'static str,
    /// 10^9 bytes a second, from the push until the last byte is acknowledged.
    pub gb_per_s: f64,
    /// Processor seconds of both sides for 10^9 bytes.
    pub cpu_s_per_gb: f64,
    /// Frames, pieces or calls.
    pub descriptors: u64,
    /// Runs that are contiguous at both ends, over all buffers; of the plain ways also cut where a call ends.
    pub runs: u64,
    /// The same by the plain way that does this work without a protocol, in the same round.
    pub against: Option<Against>,
    /// Rate by that of contiguous ends, in the same round.
    pub rate_by_contiguous: Option<f64>,
}

/// Medians of ratios within a round.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Against {
    /// The plain way.
    pub way: &'static str,
    /// Rate by its rate.
    pub rate: f64,
    /// Processor seconds by its.
    pub cpu: f64,
}

/// One kind of handovers.
#[derive(Clone, Debug, Serialize)]
pub struct Handovers {
    /// Pages, scattered at both ends.
    pub pages: u32,
    /// Layers of a page: fewer than a record has when more do not fit.
    pub layers: u32,
    /// Bytes of one.
    pub bytes: u64,
    /// Ranks that sent.
    pub ranks: u8,
    /// How many were timed.
    pub timed: u32,
    /// One for each way.
    pub latencies: Vec<Latency>,
}

/// From the grant until its pages are nobody's any more; of the plain ways the bytes alone.
#[derive(Clone, Debug, Serialize)]
pub struct Latency {
    /// Which way.
    pub way: &'static str,
    /// Median microseconds.
    pub p50_us: f64,
    /// 99th percentile of microseconds.
    pub p99_us: f64,
}

/// An aim and how near it is.
#[derive(Clone, Debug, Serialize)]
pub struct Aim {
    /// What by what.
    pub what: &'static str,
    /// Whether `limit` is the least it may be; otherwise the most.
    pub at_least: bool,
    /// The aim.
    pub limit: f64,
    /// The worst row.
    pub worst: f64,
    /// The median row.
    pub median: f64,
}

/// What is not among the figures.
#[derive(Clone, Debug, Serialize)]
pub struct Absent {
    /// Its name.
    pub name: String,
    /// Why.
    pub why: String,
}

/// One way in one round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    gb_per_s: f64,
    cpu_s_per_gb: f64,
    descriptors: u64,
    runs: u64,
}

impl Sample {
    pub(super) fn of(bytes: u64, spent: Spent, (descriptors, runs): (u64, u64)) -> Self {
        let gb = bytes as f64 / 1e9;
        let (wall, cpu) = (spent.wall.as_secs_f64().max(f64::MIN_POSITIVE), spent.cpu.as_secs_f64());
        Self { gb_per_s: gb / wall, cpu_s_per_gb: cpu / gb, descriptors, runs }
    }
}

impl Row {
    /// The rows of one case; `samples` by kind of ends, way and round.
    pub(super) fn of(shape: Shape, kinds: &[Ends], names: &[&'static str], samples: &[Vec<Vec<Sample>>]) -> Vec<Self> {
        let place = |of: &str| names.iter().position(|name| *name == of);
        let row = |(ends, by_way): (&Ends, &Vec<Vec<Sample>>)| {
            let rate = |at: usize| {
                let (way, mine) = (names[at], &by_way[at]);
                let plain = PLAIN.iter().find(|(of, _)| *of == way).and_then(|(_, plain)| place(plain));
                let against = plain.map(|plain| Against {
                    way: names[plain],
                    rate: median_ratio(mine, &by_way[plain], |sample| sample.gb_per_s),
                    cpu: median_ratio(mine, &by_way[plain], |sample| sample.cpu_s_per_gb),
                });
                let rate_by_contiguous = match ends {
                    Ends::Contiguous => None,
                    Ends::Scattered => Some(median_ratio(mine, &samples[0][at], |sample| sample.gb_per_s)),
                };
                Rate {
                    way,
                    gb_per_s: median(mine.iter().map(|sample| sample.gb_per_s)),
                    cpu_s_per_gb: median(mine.iter().map(|sample| sample.cpu_s_per_gb)),
                    descriptors: mine.last().map_or(0, |sample| sample.descriptors),
                    runs: mine.last().map_or(0, |sample| sample.runs),
                    against,
                    rate_by_contiguous,
                }
            };
            let Shape { pages, layers, ranks } = shape;
            let rates = (0..names.len()).map(rate).collect();
            Self { bytes: shape.bytes(), pages, layers, ranks, ends: *ends, rates }
        };
        kinds.iter().zip(samples).map(row).collect()
    }
}

impl Latency {
    pub(super) fn of(way: &'static str, mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let us = |at: usize| times.get(at).map_or(0.0, |time| time.as_secs_f64() * 1e6);
        Self { way, p50_us: us(times.len() / 2), p99_us: us(times.len() * 99 / 100) }
    }
}

/// How near the rows come to what was aimed at.
pub(super) fn aims(rows: &[Row]) -> Vec<Aim> {
    let aim = |what, way: &str, at_least, limit, of: fn(&Rate) -> Option<f64>| {
        let rates = rows.iter().filter(|row| row.bytes >= AIM_BYTES_MIN).flat_map(|row| &row.rates);
        let mut ratios: Vec<f64> = rates.filter(|rate| rate.way == way).filter_map(of).collect();
        ratios.sort_by(f64::total_cmp);
        let worst = if at_least { ratios.first() } else { ratios.last() };
        Some(Aim { what, at_least, limit, worst: *worst?, median: ratios[ratios.len() / 2] })
    };
    let rate = |rate: &Rate| rate.against.map(|against| against.rate);
    let cpu = |rate: &Rate| rate.against.map(|against| against.cpu);
    let all = [
        aim("shm by memcpy, rate", "shm", true, 0.9, rate),
        aim("tcp by sockets, rate", "tcp", true, 0.9, rate),
        aim("tcp with checksums by sockets, rate", "tcp_checked", true, 0.8, rate),
        aim("tcp by sockets, processor seconds", "tcp", false, 1.1, cpu),
        aim("tcp scattered by contiguous, rate", "tcp", true, 0.85, |rate| rate.rate_by_contiguous),
        aim("shm scattered by contiguous, rate", "shm", true, 0.85, |rate| rate.rate_by_contiguous),
    ];
    all.into_iter().flatten().collect()
}

fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(0.0)
}

fn median_ratio(mine: &[Sample], theirs: &[Sample], of: fn(&Sample) -> f64) -> f64 {
    median(mine.iter().zip(theirs).map(|(mine, theirs)| of(mine) / of(theirs).max(f64::MIN_POSITIVE)))
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let load = |load: Option<f64>| load.map_or("unknown".to_owned(), |load| format!("{load:.1}"));
        let (before, after) = (load(self.load_before), load(self.load_after));
        writeln!(f, "{} cores, load {before} before and {after} after; medians of {} rounds", self.cores, self.rounds)?;
        let (streams, threads) = (self.streams_per_rank, self.copy_threads_per_rank);
        writeln!(f, "a rank: {streams} streams, frames of {} bytes, {threads} threads that copy", self.frame_bytes)?;
        writeln!(
            f,
            "GB/s, processor seconds per GB, rate by that of the plain way (memcpy for shm and nixl, else sockets)"
        )?;
        write!(f, "\n{:>13} {:>5} {:>6} {:>5} {:<10}", "bytes", "pages", "layers", "ranks", "ends")?;
        write!(f, " {:>7} {:>6}", "runs", "pieces")?;
        for rate in self.rows.first().iter().flat_map(|row| &row.rates) {
            write!(f, "  {:<18}", rate.way)?;
        }
        writeln!(f)?;
        for row in &self.rows {
            let (runs, pieces) = row.rates.last().map_or((0, 0), |rate| (rate.runs, rate.descriptors));
            let (shape, ends) = ((row.pages, row.layers, row.ranks), row.ends.name());
            let (pages, layers, ranks) = shape;
            write!(f, "{:>13} {pages:>5} {layers:>6} {ranks:>5} {ends:<10} {runs:>7} {pieces:>6}", row.bytes)?;
            for rate in &row.rates {
                let by = rate.against.map_or(String::new(), |against| format!("{:.2}", against.rate));
                write!(f, "  {:>6.2} {:>6.3} {by:<4}", rate.gb_per_s, rate.cpu_s_per_gb)?;
            }
            writeln!(f)?;
        }
        writeln!(f, "\none handover of scattered pages, p50 / p99 in microseconds; of the plain ways the bytes alone")?;
        for kind in &self.handovers {
            let Handovers { pages, layers, ranks, timed, .. } = kind;
            write!(f, "{pages} pages of {layers} layers, {ranks} ranks, {timed} timed:")?;
            for Latency { way, p50_us, p99_us } in &kind.latencies {
                write!(f, "  {way} {p50_us:.0} / {p99_us:.0}")?;
            }
            writeln!(f)?;
        }
        writeln!(f)?;
        for Aim { what, at_least, limit, worst, median } in &self.aims {
            let sign = if *at_least { "at least" } else { "at most" };
            writeln!(f, "{what}: worst {worst:.2}, median {median:.2} (aim: {sign} {limit:.2})")?;
        }
        for Absent { name, why } in &self.absent {
            writeln!(f, "{name}: absent, {why}")?;
        }
        Ok(())
    }
}

/// Below that, a wake-up is much of a transfer.
const AIM_BYTES_MIN: u64 = 15_000_000;
/// What each way is compared with.
const PLAIN: [(&str, &str); 5] =
    [("tcp", "sockets"), ("tcp_checked", "sockets"), ("shm", "memcpy"), ("nixl", "memcpy"), ("nixl_tcp", "sockets")];
