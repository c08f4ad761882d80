//! `hicached bench allocator`: reservations against `offset-allocator` and `rlsf`, in four pool sizes and four
//! states (requirements A3, A4, B1, M1).
//!
//! Every call is timed by itself and the cost of the clock, measured in the same run, is taken off; its free
//! stands outside the timed part. A batch is 1,000 calls and gives a mean, a p50 and a p99; the report has the
//! median of the batches, so that a batch in which the machine did something else does not count.

mod pattern;
mod report;
mod subject;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use hicached_actors::allocator::{PagePool, owners::zigzag};

pub use pattern::Pattern;
pub use report::{Figures, Report, Row};

use pattern::Chance;
use subject::{Ask, Offset, OurHost, OurLanes, PeerLanes, Rlsf, Subject};

/// Arguments of `hicached bench allocator`.
#[derive(Clone, Debug, clap::Args)]
pub struct AllocatorArgs {
    /// Print one JSON object in place of the table
    #[arg(long)]
    pub json: bool,
    /// Seed of everything random
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The two small pools and few calls: shows that it runs, measures nothing
    #[arg(long)]
    pub quick: bool,
}

/// Work to run beside the second measurement, on a thread of its own, until the flag is set.
pub type Beside<'a> = &'a (dyn Fn(&AtomicBool) + Sync);

/// Bytes of one record: 78 layers and one draft layer of 64 tokens in fp8.
pub const RECORD_BYTES: u64 = 3_984_128;

/// Bytes of the pool of one rank.
const POOL_BYTES: [u64; 4] = [22_000_000_000, 220_000_000_000, 2_200_000_000_000, 22_000_000_000_000];
const POOLS_QUICK: usize = 2;
const LANES: usize = 8;
const EXTEND_PAGES: [u64; 3] = [1, 32, 2_048];
const HOST_PAGES: usize = 64;
const OUTSTANDING: usize = 32;
const BATCH_CALLS: usize = 1_000;
const BATCHES: usize = 10;

/// Measures everything once, and once more beside `beside` when there is something to run beside.
pub fn run(args: &AllocatorArgs, beside: Option<Beside<'_>>) -> Report {
    let idle = measure_all(args);
    let busy = beside.map(|work| {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| work(&stop));
            let rows = measure_all(args);
            stop.store(true, Ordering::Relaxed);
            rows
        })
    });
    Report::new(args.seed, clock_ns(), idle, busy)
}

fn measure_all(args: &AllocatorArgs) -> Vec<Row> {
    let pools = if args.quick { POOLS_QUICK } else { POOL_BYTES.len() };
    let mut rows = Vec::new();
    for pool_bytes in &POOL_BYTES[..pools] {
        for pattern in Pattern::ALL {
            measure_pattern(args, *pool_bytes, pattern, &mut rows);
        }
    }
    rows
}

/// All calls in one state of one size. One subject exists at a time: the peers need 32 bytes and more a page.
fn measure_pattern(args: &AllocatorArgs, pool_bytes: u64, pattern: Pattern, rows: &mut Vec<Row>) {
    let (slots, seed) = ((pool_bytes / RECORD_BYTES) as u32, args.seed);
    let timer = Timer { pattern, slots, seed, clock_ns: clock_ns(), batches: if args.quick { 2 } else { BATCHES } };
    let asks: Vec<Ask> = EXTEND_PAGES.iter().map(|pages| Ask::new(owners_of(*pages), LANES)).collect();
    let host = Ask::new(vec![0; HOST_PAGES], 1);

    let mut ours = OurLanes::new(LANES, slots, pattern, seed);
    let fewest: Vec<u32> = asks.iter().map(|ask| fewest_runs(ask, |lane| ours.pool(lane))).collect();
    let extends = timer.all(&mut ours, &asks);
    drop(ours);
    let mut our_host = OurHost::new(slots, pattern, seed);
    let fewest_host = fewest_runs(&host, |_| our_host.pool());
    let (metadata_bytes, free_pages) = (our_host.pool().metadata_bytes(), our_host.pool().free_pages());
    let host_figures = timer.one(&mut our_host, &host);

    // One small pool that is 90 % full has no room for the largest extend.
    let fitting = EXTEND_PAGES.iter().filter(|pages| **pages <= u64::from(free_pages));
    let mut one_pool = vec![host];
    one_pool.extend(fitting.map(|pages| Ask::new(vec![0; *pages as usize], 1)));
    let offset = timer.all(&mut PeerLanes::<Offset>::new(LANES, slots, pattern, seed), &asks);
    let rlsf = timer.all(&mut PeerLanes::<Rlsf>::new(LANES, slots, pattern, seed), &asks);
    let offset_one = timer.all(&mut PeerLanes::<Offset>::new(1, slots, pattern, seed), &one_pool);
    let rlsf_one = timer.all(&mut PeerLanes::<Rlsf>::new(1, slots, pattern, seed), &one_pool);

    let row = |call: &str, pages, fewest_runs: u32, hicached, offset_allocator, rlsf| Row {
        pool_bytes,
        records: slots,
        pattern,
        call: call.to_owned(),
        pages,
        // The state under churn differs from call to call.
        fewest_runs: (pattern != Pattern::Churn).then_some(fewest_runs),
        metadata_bytes,
        hicached,
        offset_allocator,
        rlsf,
        offset_allocator_without_lanes: None,
        rlsf_without_lanes: None,
    };
    for (at, pages) in EXTEND_PAGES.iter().enumerate() {
        rows.push(Row {
            offset_allocator_without_lanes: offset_one.get(at + 1).copied(),
            rlsf_without_lanes: rlsf_one.get(at + 1).copied(),
            ..row("extend", *pages, fewest[at], extends[at], offset[at], rlsf[at])
        });
    }
    rows.push(row("host", HOST_PAGES as u64, fewest_host, host_figures, offset_one[0], rlsf_one[0]));
}

fn owners_of(pages: u64) -> Vec<u8> {
    let mut owners = Vec::new();
    zigzag(LANES as u8, pages, &mut owners).expect("a group of eight");
    owners
}

/// Runs that longest-first needs, counted by sorting all free runs.
fn fewest_runs<'a>(ask: &Ask, pool: impl Fn(usize) -> &'a PagePool) -> u32 {
    let mut count = 0;
    for (lane, pages) in ask.pages_per_lane().iter().enumerate().filter(|(_, pages)| **pages > 0) {
        let mut lengths = Vec::new();
        pool(lane).for_each_free_run(|run| lengths.push(run.pages));
        lengths.sort_unstable_by(|a, b| b.cmp(a));
        let mut missing = *pages;
        for length in lengths {
            count += 1;
            missing = missing.saturating_sub(length);
            if missing == 0 {
                break;
            }
        }
    }
    count
}

/// Times calls of one state.
struct Timer {
    pattern: Pattern,
    slots: u32,
    seed: u64,
    clock_ns: u64,
    batches: usize,
}

impl Timer {
    fn all(&self, subject: &mut impl Subject, asks: &[Ask]) -> Vec<Figures> {
        asks.iter().map(|ask| self.one(subject, ask)).collect()
    }

    fn one<S: Subject>(&self, subject: &mut S, ask: &Ask) -> Figures {
        let mut chance = Chance::seeded(self.seed);
        let mut outstanding: Vec<S::Reservation> =
            (0..self.outstanding(ask)).map(|_| S::Reservation::default()).collect();
        // Whatever is outstanding is freed and reserved again, so the buffers are warm when the clock starts.
        for reservation in &mut outstanding {
            subject.reserve(ask, reservation);
        }
        let mut batches = Vec::with_capacity(self.batches);
        for _ in 0..=self.batches {
            batches.push(self.batch(subject, ask, &mut outstanding, &mut chance));
        }
        for reservation in &mut outstanding {
            subject.release(ask, reservation);
        }
        // The first batch warms the caches.
        Figures::median_of(&batches[1..])
    }

    fn batch<S: Subject>(
        &self,
        subject: &mut S,
        ask: &Ask,
        outstanding: &mut [S::Reservation],
        chance: &mut Chance,
    ) -> Figures {
        let mut runs = 0;
        let mut calls_ns: Vec<u64> = Vec::with_capacity(BATCH_CALLS);
        for _ in 0..BATCH_CALLS {
            let reservation = &mut outstanding[chance.below(outstanding.len())];
            subject.release(ask, reservation);
            let start = Instant::now();
            runs += u64::from(subject.reserve(ask, reservation));
            let call_ns = start.elapsed().as_nanos() as u64;
            calls_ns.push(call_ns.saturating_sub(self.clock_ns));
        }
        Figures::of_batch(&mut calls_ns, ask.owners.len(), runs)
    }

    /// Reservations outstanding: one when the state is to stay as it is; under churn 32, or as many as leave
    /// half of the pool free.
    fn outstanding(&self, ask: &Ask) -> usize {
        match self.pattern {
            Pattern::Empty | Pattern::Random | Pattern::Comb => 1,
            Pattern::Churn => {
                let pages = ask.pages_per_lane().iter().copied().max().unwrap_or(1).max(1);
                OUTSTANDING.min((self.slots / 2 / pages) as usize).max(1)
            }
        }
    }
}

/// Median nanoseconds that two readings of the clock cost.
fn clock_ns() -> u64 {
    let mut readings: Vec<u64> = (0..10_001).map(|_| Instant::now().elapsed().as_nanos() as u64).collect();
    readings.sort_unstable();
    readings[readings.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quick_run_needs_no_more_runs_than_longest_first_and_under_a_byte_per_record() {
        let args = AllocatorArgs { json: false, seed: 7, quick: true };
        let waits = |stop: &AtomicBool| {
            while !stop.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
        };
        let report = run(&args, Some(&waits));
        let beside = report.beside.as_deref().expect("there was something beside");
        for rows in [report.idle.as_slice(), beside] {
            assert_eq!(rows.len(), POOLS_QUICK * Pattern::ALL.len() * (EXTEND_PAGES.len() + 1));
            for row in rows.iter().filter(|row| row.fewest_runs.is_some()) {
                assert_eq!(Some(row.hicached.runs), row.fewest_runs.map(f64::from), "{row:?}");
            }
        }
        assert!(report.worst.metadata_bytes_per_record < 1.0);
        let json = serde_json::to_value(run(&args, None)).expect("a report is JSON");
        assert!(json["beside"].is_null());
    }
}
