//! Machines against seeds: nothing is found in many steps, and every planted fault is.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hicached_actors::faults::Fault;
use hicached_sim::{Options, Report, TransferStats, run};

/// Machine steps of one seed.
const STEPS_OF_SEED: u64 = 10_000;

/// The first seed: another one gives another two million steps.
fn first_seed() -> u64 {
    std::env::var("SIM_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1)
}

/// Runs seeds on two threads while `more` wants another; reports in the order of their seeds.
fn run_seeds(options: impl Fn(u64) -> Options + Sync, more: impl Fn(&Report) -> bool + Sync) -> Vec<Report> {
    let next = AtomicU64::new(first_seed());
    let going = std::sync::atomic::AtomicBool::new(true);
    let mut reports: Vec<Report> = std::thread::scope(|scope| {
        let work = || {
            let mut reports = Vec::new();
            while going.load(Ordering::Relaxed) {
                let report = run(&options(next.fetch_add(1, Ordering::Relaxed)));
                if !more(&report) {
                    going.store(false, Ordering::Relaxed);
                }
                reports.push(report);
            }
            reports
        };
        let threads = [scope.spawn(work), scope.spawn(work)];
        threads.into_iter().flat_map(|thread| thread.join().expect("a run catches its panics")).collect()
    });
    reports.sort_by_key(|report| report.seed);
    reports
}

#[test]
fn two_million_steps_find_nothing() {
    let began = Instant::now();
    let steps = AtomicU64::new(0);
    let reports = run_seeds(
        |seed| Options::new(seed, STEPS_OF_SEED),
        |report| {
            steps.fetch_add(report.steps, Ordering::Relaxed) + report.steps < 2_000_000 && report.violation.is_none()
        },
    );
    let found: Vec<String> =
        reports.iter().filter(|report| report.violation.is_some()).map(ToString::to_string).collect();
    let steps: u64 = reports.iter().map(|report| report.steps).sum();
    println!("{steps} steps of {} seeds in {:?}", reports.len(), began.elapsed());
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert!(steps >= 2_000_000);
    assert!(began.elapsed() < Duration::from_secs(180), "{:?}", began.elapsed());
    for (what, total) in [
        ("L1 hits", reports.iter().map(|report| report.stats.l1_hits).sum::<u64>()),
        ("L2 hits", reports.iter().map(|report| report.stats.l2_hits).sum()),
        ("loads", reports.iter().map(|report| report.stats.loads).sum()),
        ("failed loads", reports.iter().map(|report| report.stats.loads_failed).sum()),
        ("backups", reports.iter().map(|report| report.stats.backups).sum()),
        ("evictions", reports.iter().map(|report| report.stats.evictions).sum()),
        ("rank deaths", reports.iter().map(|report| report.stats.rank_deaths).sum()),
        ("engine deaths", reports.iter().map(|report| report.stats.engine_deaths).sum()),
        ("control deaths", reports.iter().map(|report| report.stats.control_deaths).sum()),
        ("deaths while sending", reports.iter().map(|report| report.stats.deaths_while_sending).sum()),
    ] {
        assert!(total > 20, "a world in which {what} happen {total} times proves little");
    }
}

#[test]
fn two_million_steps_with_transfers_find_nothing() {
    let steps = AtomicU64::new(0);
    let reports = run_seeds(
        |seed| Options { transfers: true, ..Options::new(seed, STEPS_OF_SEED) },
        |report| {
            steps.fetch_add(report.steps, Ordering::Relaxed) + report.steps < 2_000_000 && report.violation.is_none()
        },
    );
    let found: Vec<String> =
        reports.iter().filter(|report| report.violation.is_some()).map(ToString::to_string).collect();
    let steps: u64 = reports.iter().map(|report| report.steps).sum();
    println!("{steps} steps of {} seeds", reports.len());
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert!(steps >= 2_000_000);
    let sum = |of: fn(&TransferStats) -> u64| reports.iter().map(|report| of(&report.transfers)).sum::<u64>();
    for (what, total) in [
        ("requests", sum(|stats| stats.requests)),
        ("transfers done", sum(|stats| stats.done)),
        ("transfers with a prefix that is there", sum(|stats| stats.with_prefix)),
        ("transfers with a last page that is not full", sum(|stats| stats.with_tail)),
        ("aborted transfers", sum(|stats| stats.aborted)),
        ("failed transfers", sum(|stats| stats.failed)),
        ("repeated transfers", sum(|stats| stats.repeated)),
        ("opens of lower attempts", sum(|stats| stats.ghosts)),
        ("deaths where pages are sent during a transfer", sum(|stats| stats.deaths[0])),
        ("deaths where pages are received during a transfer", sum(|stats| stats.deaths[1])),
        ("broken connections", sum(|stats| stats.broken)),
        ("refused frames", sum(|stats| stats.frames_refused)),
        ("pushes that took too long", sum(|stats| stats.overdue)),
        ("pushes that are not as complete as they say", sum(|stats| stats.lies)),
        ("loads of groups that hand over", reports.iter().map(|report| report.stats.loads).sum()),
        ("backups of groups that hand over", reports.iter().map(|report| report.stats.backups).sum()),
    ] {
        println!("{what}: {total}");
        assert!(total > 20, "a world in which {what} happen {total} times proves little");
    }
}

#[test]
fn the_same_seed_twice_gives_the_same_trace() {
    for transfers in [false, true] {
        for seed in first_seed()..first_seed() + 8 {
            let of = |seed| Options { transfers, ..Options::new(seed, 3_000) };
            let (once, twice) = (run(&of(seed)), run(&of(seed)));
            assert_eq!(once, twice);
            assert_ne!(once.trace_hash, run(&of(seed + 100)).trace_hash);
        }
    }
}

/// The fault is found by one of `checkers` within so many seeds.
fn is_found(fault: Fault, checkers: &[&str], seeds: u64) {
    is_found_in(Options { fault, ..Options::new(0, 4_000) }, checkers, seeds);
}

/// The same in the world of two groups.
fn is_found_in_transfers(fault: Fault, checkers: &[&str], seeds: u64) {
    is_found_in(Options { fault, transfers: true, ..Options::new(0, 6_000) }, checkers, seeds);
}

fn is_found_in(options: Options, checkers: &[&str], seeds: u64) {
    let fault = options.fault;
    let options = |seed| Options { seed, quiet: true, ..options.clone() };
    let last = first_seed() + seeds;
    let reports = run_seeds(options, |report| report.violation.is_none() && report.seed + 2 < last);
    let found: Vec<_> = reports.iter().filter_map(|report| report.violation.as_ref()).collect();
    assert!(!found.is_empty(), "{fault:?} was not found in {} seeds", reports.len());
    for violation in found {
        assert!(checkers.contains(&violation.checker), "{fault:?} was found by {violation:?}, not by {checkers:?}");
    }
}

#[test]
fn a_backup_that_is_visible_before_its_last_acknowledgement_is_found() {
    is_found(Fault::VisibleBeforeLastAck, &["B5", "B6", "E1"], 40);
}

#[test]
fn a_backup_that_does_not_need_the_draft_is_found() {
    is_found(Fault::DraftAckNotNeeded, &["B6", "B5"], 150);
}

#[test]
fn owners_rotated_by_one_are_found() {
    is_found(Fault::OwnersRotatedByOne, &["A5", "invariant"], 40);
}

#[test]
fn a_free_that_is_carried_out_twice_is_found() {
    is_found(Fault::DoubleFree, &["invariant", "B10", "B5", "B6", "E1", "E2"], 40);
}

#[test]
fn slots_freed_while_a_copy_can_still_write_are_found() {
    is_found(Fault::FreedWhileCopyCanStillWrite, &["B10"], 150);
}

#[test]
fn a_parent_that_leaves_before_its_child_is_found() {
    is_found(Fault::ParentEvictedBeforeChild, &["invariant", "B10", "B5", "B6", "E1"], 40);
}

#[test]
fn a_seal_that_outlives_its_page_is_found() {
    is_found(Fault::SealOutlivesItsPage, &["E2"], 40);
}

#[test]
fn acknowledgements_of_another_attempt_or_life_are_found() {
    is_found(Fault::StaleAttemptAccepted, &["B5", "B6", "B10", "E1", "invariant"], 150);
}

#[test]
fn pages_of_a_transfer_that_a_timer_frees_are_found() {
    is_found_in_transfers(Fault::TransferFreedByTimer, &["C6"], 150);
}

#[test]
fn a_count_of_arrivals_that_is_taken_for_the_set_is_found() {
    is_found_in_transfers(Fault::TransferCountForSet, &["E1", "B5", "B6"], 150);
}

#[test]
fn positions_of_a_transfer_that_are_off_by_one_are_found() {
    is_found_in_transfers(Fault::TransferPositionOffByOne, &["E1", "B5", "B6"], 40);
}

#[test]
fn messages_of_an_older_attempt_of_a_transfer_are_found() {
    is_found_in_transfers(Fault::StaleTransferAccepted, &["C6", "C7", "C8", "E1", "invariant"], 150);
}
