//! `hicached bench`: the measurements of single parts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Subcommand;

use super::{Failure, Progress, output, print_json, runtime};
use crate::bench::transfer::TransferError;
use crate::bench::{BenchError, allocator, bus, index, recovery, transfer};
use crate::bus::server::ServerError;
use crate::replay::demo;
use crate::replay::run::RunError;
use crate::replay::signals::Signals;

/// What is measured.
#[derive(Debug, Subcommand)]
pub(super) enum Bench {
    /// Reservations against offset-allocator and rlsf
    Allocator(allocator::AllocatorArgs),
    /// `open`, `step` and `close` against one raw request and its reply
    Bus(bus::BusBenchArgs),
    /// Look-ups and inserts of the prefix index on a recorded trace
    Index(index::IndexArgs),
    /// Everything killed and started again: how long until it serves, and whether every page is served again
    Recovery(recovery::RecoveryArgs),
    /// Pages from rank to rank by every backend, beside a plain copy and bare sockets
    Transfer(transfer::TransferArgs),
}

impl From<BenchError> for Failure {
    fn from(error: BenchError) -> Self {
        match error {
            BenchError::Config(_)
            | BenchError::Folder(_)
            | BenchError::NoBroker(_)
            | BenchError::Server(ServerError::NotFound | ServerError::Named { .. }) => Self::Usage(error.to_string()),
            BenchError::Interrupted(signal) => Self::Interrupted(signal),
            BenchError::Server(ServerError::Start { .. } | ServerError::NotReady { .. })
            | BenchError::Fleet(_)
            | BenchError::Ended { .. }
            | BenchError::Group(_)
            | BenchError::Engine(_)
            | BenchError::Client(_)
            | BenchError::Bus(_)
            | BenchError::Failed { .. }
            | BenchError::Late { .. }
            | BenchError::Signals(_) => Self::Fault(error.to_string()),
        }
    }
}

impl From<TransferError> for Failure {
    fn from(error: TransferError) -> Self {
        match error {
            TransferError::Room { .. } => Self::Usage(error.to_string()),
            TransferError::Io { .. }
            | TransferError::Shm(_)
            | TransferError::Layout(_)
            | TransferError::Layer(_)
            | TransferError::Pool(_)
            | TransferError::Owners(_)
            | TransferError::Runs(_)
            | TransferError::Start(_)
            | TransferError::Refused(_)
            | TransferError::Ended { .. }
            | TransferError::Missing { .. }
            | TransferError::Wrong { .. }
            | TransferError::Late
            | TransferError::Stopped => Self::Fault(error.to_string()),
        }
    }
}

pub(super) fn run(bench: &Bench) -> Result<(), Failure> {
    match bench {
        Bench::Allocator(args) => {
            let runtime = runtime()?;
            let replay = |stop: &AtomicBool| {
                match runtime.block_on(demo::until(stop)) {
                    Ok(_) => {}
                    // The replay hears the signals of this process and has cleaned up after itself; the measurement
                    // keeps nothing, and its figures would be those of another run.
                    Err(RunError::Interrupted(signal)) => std::process::exit(128 + i32::from(signal)),
                    Err(error) => tracing::error!(%error, "nothing runs beside the second measurement"),
                }
            };
            print(args.json, &allocator::run(args, Some(&replay)))
        }
        Bench::Bus(args) => {
            let progress = Progress::new("runs", args.runs_in_all());
            let mut done = 0;
            let measured = runtime()?.block_on(bus::run(args, || {
                done += 1;
                progress.at(done);
            }));
            drop(progress);
            let report = measured?;
            print(args.json, &report)
        }
        Bench::Index(args) => {
            let report = index::run(args).map_err(|error| Failure::Usage(error.to_string()))?;
            print(args.json, &report)
        }
        Bench::Recovery(args) => {
            let progress = Progress::new("groups", 2);
            let mut done = 0;
            let measured = runtime()?.block_on(recovery::run(args, || {
                done += 1;
                progress.at(done);
            }));
            drop(progress);
            let report = measured?;
            print(args.json, &report)?;
            match report.runs.iter().find(|run| run.hit_pages != run.records) {
                None => Ok(()),
                Some(run) => Err(Failure::Fault(format!("{} of {} pages came back", run.hit_pages, run.records))),
            }
        }
        Bench::Transfer(args) => print(args.json, &runtime()?.block_on(transfer(args))?),
    }
}

/// Measures on a thread of its own, so that a signal is heard and the pools are removed.
async fn transfer(args: &transfer::TransferArgs) -> Result<transfer::Report, Failure> {
    let mut signals = Signals::heard().map_err(|error| Failure::Fault(format!("signals: {error}")))?;
    let stop = Arc::new(AtomicBool::new(false));
    let (of_run, stopped) = (args.clone(), stop.clone());
    let mut measured = tokio::task::spawn_blocking(move || {
        let progress = Progress::new("rounds", transfer::steps(&of_run));
        let mut done = 0;
        transfer::run(&of_run, &stopped, || {
            done += 1;
            progress.at(done);
        })
    });
    let broke = |error: tokio::task::JoinError| Failure::Fault(format!("the measurement broke off: {error}"));
    tokio::select! {
        report = &mut measured => Ok(report.map_err(broke)??),
        signal = signals.next() => {
            stop.store(true, Ordering::Relaxed);
            // Whatever it says then, it was not to go on.
            measured.await.map_err(broke)?.ok();
            Err(Failure::Interrupted(signal))
        }
    }
}

fn print(json: bool, report: &(impl serde::Serialize + std::fmt::Display)) -> Result<(), Failure> {
    if json {
        return print_json(report);
    }
    output::print(&report.to_string())
}
