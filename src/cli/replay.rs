//! `hicached replay` and `hicached demo`.

use futures_util::stream;
use hicached_client::engine::Verify;

use super::{Failure, Progress, print, print_json, runtime};
use crate::replay::demo::DemoArgs;
use crate::replay::load::Load;
use crate::replay::options::ReplayArgs;
use crate::replay::outcome::Outcome;
use crate::replay::prompts::prompts;
use crate::replay::run::{Run, RunError};
use crate::replay::workload::Workload;

impl From<RunError> for Failure {
    fn from(error: RunError) -> Self {
        match error {
            RunError::NoBroker(_) | RunError::Folder(_) | RunError::Config(_) => Self::Usage(error.to_string()),
            RunError::Group(_) | RunError::Engine(_) | RunError::Client(_) | RunError::Signal(_) => {
                Self::Fault(error.to_string())
            }
            RunError::Interrupted(signal) => Self::Interrupted(signal),
        }
    }
}

pub(super) fn replay(args: &ReplayArgs) -> Result<(), Failure> {
    let job = args.job()?;
    let run = Run {
        name: args.trace.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        group: &job.group,
        decode: job.decode.as_ref(),
        load: Load {
            sessions: args.concurrency as usize,
            chunk_tokens: job.chunk_tokens,
            abort_permille: 0,
            verify: Verify::Hits,
            seed: 0,
        },
    };
    let progress = Progress::new("requests", job.sent.len() as u64);
    let prompts = stream::iter(prompts(&job, args.control_only));
    let outcome = runtime()?.block_on(run.run(prompts, Some(&job.sent), |over| progress.at(over)))?;
    drop(progress);
    finish(&outcome, args.json)
}

pub(super) fn demo(args: &DemoArgs) -> Result<(), Failure> {
    let (prefill, decode) = args.groups()?;
    let run = Run::demo(&prefill, Some(&decode), args.seed);
    let progress = Progress::new("requests", u64::from(args.requests));
    let prompts = stream::iter(Workload::new(args.seed, &prefill.manifest).take(args.requests as usize));
    let outcome = runtime()?.block_on(run.run(prompts, None, |over| progress.at(over)))?;
    drop(progress);
    finish(&outcome, args.json)
}

fn finish(outcome: &Outcome, json: bool) -> Result<(), Failure> {
    if json {
        print_json(outcome)?;
    } else {
        print(&outcome.to_string())?;
    }
    match outcome.fault() {
        Some(fault) => Err(Failure::Fault(fault)),
        None => Ok(()),
    }
}
