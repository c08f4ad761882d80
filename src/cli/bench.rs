//! `hicached bench`: the measurements of single parts.

use std::sync::atomic::AtomicBool;

use clap::Subcommand;

use super::{Failure, Progress, output, print_json, runtime};
use crate::bench::bus::BusBenchError;
use crate::bench::recovery::RecoveryError;
use crate::bench::{allocator, bus, index, recovery};
use crate::bus::server::ServerError;
use crate::replay::demo;
use crate::replay::run::RunError;

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
}

impl From<BusBenchError> for Failure {
    fn from(error: BusBenchError) -> Self {
        match error {
            BusBenchError::Config(_)
            | BusBenchError::Folder(_)
            | BusBenchError::NoBroker(_)
            | BusBenchError::Server(ServerError::Named { .. }) => Self::Usage(error.to_string()),
            BusBenchError::Server(_)
            | BusBenchError::Group(_)
            | BusBenchError::Engine(_)
            | BusBenchError::Client(_)
            | BusBenchError::Bus(_)
            | BusBenchError::Failed { .. } => Self::Fault(error.to_string()),
        }
    }
}

impl From<RecoveryError> for Failure {
    fn from(error: RecoveryError) -> Self {
        match error {
            RecoveryError::Config(_) | RecoveryError::Folder(_) | RecoveryError::Server(_) => {
                Self::Usage(error.to_string())
            }
            RecoveryError::Interrupted(signal) => Self::Interrupted(signal),
            RecoveryError::Io { .. }
            | RecoveryError::Fleet(_)
            | RecoveryError::NoBroker(_)
            | RecoveryError::Engine(_)
            | RecoveryError::Client(_)
            | RecoveryError::Failed { .. }
            | RecoveryError::Late { .. } => Self::Fault(error.to_string()),
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
            let progress = Progress::new("runs", u64::from(args.runs));
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
    }
}

fn print(json: bool, report: &(impl serde::Serialize + std::fmt::Display)) -> Result<(), Failure> {
    if json {
        return print_json(report);
    }
    output::print(&report.to_string())
}
