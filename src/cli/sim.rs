//! `hicached sim`: the machines in a world that loses messages and kills processes.

use clap::Args;
use hicached_sim::Options;
use serde::Serialize;

use super::{Failure, Progress, print, print_json};

/// Arguments of `sim`.
#[derive(Debug, Args)]
pub(super) struct SimArgs {
    /// The first seed
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Seeds to run, one after the other from the first
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// Machine steps of each seed before everything is asked to end
    #[arg(long, default_value_t = 20_000, value_name = "N")]
    steps: u64,
    /// Two groups: one computes prompts and hands them over, the other one decodes
    #[arg(long)]
    transfers: bool,
    /// End with one JSON object
    #[arg(long)]
    json: bool,
}

/// What was found.
#[derive(Debug, Default, Serialize)]
struct Found {
    seed: u64,
    seeds: u64,
    steps: u64,
    /// Handovers whose pages came over.
    transfers: u64,
    violations: Vec<FoundViolation>,
}

#[derive(Debug, Serialize)]
struct FoundViolation {
    seed: u64,
    checker: String,
    detail: String,
    command: String,
}

pub(super) fn run(args: &SimArgs) -> Result<(), Failure> {
    let mut found = Found { seed: args.seed, seeds: args.seeds, ..Found::default() };
    let progress = Progress::new("seeds", args.seeds);
    for done in 0..args.seeds {
        let options = Options { transfers: args.transfers, ..Options::new(args.seed.wrapping_add(done), args.steps) };
        let report = hicached_sim::run(&options);
        found.steps += report.steps;
        found.transfers += report.transfers.done;
        if let Some(violation) = report.violation {
            let (checker, detail) = (violation.checker.to_string(), violation.detail.to_string());
            found.violations.push(FoundViolation { seed: options.seed, checker, detail, command: options.command() });
        }
        progress.at(done + 1);
    }
    drop(progress);
    if args.json {
        print_json(&found)?;
    } else {
        let Found { seed, seeds, steps, transfers, violations } = &found;
        let transfers = if args.transfers { format!("{transfers} transfers, ") } else { String::new() };
        let violations = violations.len();
        print(&format!("{seeds} seeds from {seed}: {steps} machine steps, {transfers}{violations} violations"))?;
    }
    match found.violations.first() {
        None => Ok(()),
        Some(FoundViolation { checker, detail, command, .. }) => {
            Err(Failure::Fault(format!("{checker}: {detail}; reproduce: {command}")))
        }
    }
}
