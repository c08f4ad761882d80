//! `hicached bench`: the measurements of single parts.

use clap::Subcommand;

use super::{Failure, print_json};
use crate::bench::{allocator, index};

/// What is measured.
#[derive(Debug, Subcommand)]
pub(super) enum Bench {
    /// Reservations against offset-allocator and rlsf, in four pool sizes and four states
    Allocator(allocator::AllocatorArgs),
    /// Look-ups and inserts of the prefix index on a recorded trace
    Index(index::IndexArgs),
}

pub(super) fn run(bench: &Bench) -> Result<(), Failure> {
    match bench {
        Bench::Allocator(args) => print(args.json, &allocator::run(args, None)),
        Bench::Index(args) => {
            let report = index::run(args).map_err(|error| Failure::Usage(error.to_string()))?;
            print(args.json, &report)
        }
    }
}

fn print(json: bool, report: &(impl serde::Serialize + std::fmt::Display)) -> Result<(), Failure> {
    if json {
        return print_json(report);
    }
    println!("{report}");
    Ok(())
}
