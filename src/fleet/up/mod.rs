//! `hicached up`: a whole group on this machine, and the one it hands requests over to, served, watched, and tortured if
//! that is wanted.
//!
//! Invariants that a run reports on, of all groups: every request ends once; no byte is wrong; no page is leaked; no
//! transfer is left; what was sealed on a host and not evicted stays there, and is known there.

mod drive;
mod group;
mod kills;
mod options;
mod outcome;
mod running;
mod sealed;
mod settled;
#[cfg(test)]
mod tests;
mod view;
mod watch;

use std::path::Path;
use std::time::Duration;

use hicached_client::client::ClientError;

pub use self::options::{Job, Kind, UpArgs};
pub use self::outcome::{KillFigures, ProcessFigures, UpOutcome};
pub use self::sealed::SealedError;

use self::group::Groups;
use self::running::Running;
use self::view::View;
use super::FleetError;
use crate::rank::PoolError;
use crate::replay::folder::FolderError;
use crate::replay::signals::Signals;
use crate::shell::{NoBroker, connect};

/// Why there is no outcome.
#[derive(Debug, thiserror::Error)]
pub enum UpError {
    /// No place for pool files.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// A process does not run.
    #[error(transparent)]
    Fleet(#[from] FleetError),
    /// The broker cannot be reached.
    #[error(transparent)]
    NoBroker(#[from] NoBroker),
    /// The group does not answer.
    #[error("the group does not answer: {0}")]
    Client(#[from] ClientError),
    /// The pools cannot be looked at.
    #[error(transparent)]
    Sealed(#[from] SealedError),
    /// The pools cannot be looked at.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// Requests do not end.
    #[error("no request has ended for {after:?}, {open} are open; {what}")]
    Stalled {
        /// So long.
        after: Duration,
        /// Requests under way.
        open: u64,
        /// What each process says.
        what: String,
    },
    /// The engine wrote what nobody reads.
    #[error("the engine wrote {line:?}")]
    Line {
        /// The line, cut.
        line: String,
    },
    /// Signals cannot be heard.
    #[error("signals: {0}")]
    Signals(std::io::Error),
    /// Ended by the signal of this number.
    #[error("interrupted")]
    Interrupted(u8),
}

/// Does `job`, and once more without kills when that is to be compared. What came of it is handed to `show` before the
/// processes end, which may take a while. They end with the calling thread.
///
/// # Errors
/// [`UpError`]: what a run finds is never an error, what keeps it from running is.
pub async fn up(
    job: &Job,
    compare: bool,
    nats_server: &Path,
    show: impl FnOnce(&UpOutcome),
) -> Result<UpOutcome, UpError> {
    let mut signals = Signals::heard().map_err(UpError::Signals)?;
    if job.kills == 0 || !compare {
        return run(job, nats_server, &mut signals, show).await;
    }
    let mut outcome = run(job, nats_server, &mut signals, |_| ()).await?;
    let undisturbed = job.undisturbed(outcome.outcome.requests);
    let both = |undisturbed: &UpOutcome| {
        if let Some(kills) = &mut outcome.kills {
            kills.undisturbed_hit_percent = Some(undisturbed.hit_percent);
            kills.hit_points_lost = Some(undisturbed.hit_percent - outcome.hit_percent);
        }
        show(&outcome);
    };
    run(&undisturbed, nats_server, &mut signals, both).await?;
    Ok(outcome)
}

/// The processes from their start to their end.
async fn run(
    job: &Job,
    nats_server: &Path,
    signals: &mut Signals,
    show: impl FnOnce(&UpOutcome),
) -> Result<UpOutcome, UpError> {
    let mut groups = Groups::prepare(job, nats_server)?;
    let mut view = View::new(&groups.fleet);
    view.say(&format!("seed {}, {} kills, logs in {}", job.seed, job.kills, groups.fleet.logs().display()));
    let started = tokio::select! {
        started = groups.start(|fleet, event| view.happened(fleet, &event)) => started.map_err(UpError::from),
        signal = signals.next() => Err(UpError::Interrupted(signal)),
    };
    let outcome = match started {
        Ok(()) => served(job, &mut groups, &view, signals).await,
        Err(error) => Err(error),
    };
    view.end_table();
    if let Ok(outcome) = &outcome {
        show(outcome);
    }
    ended(&mut groups, &view, signals.next()).await.and(outcome)
}

/// Ends the processes in order, or at once when the signal of a number comes meanwhile.
async fn ended(groups: &mut Groups, view: &View, signal: impl Future<Output = u8>) -> Result<(), UpError> {
    tokio::select! {
        killed = groups.stop() => {
            for name in killed {
                view.say(&format!("{name} did not end and was killed"));
            }
            Ok(())
        }
        signal = signal => {
            groups.kill().await;
            Err(UpError::Interrupted(signal))
        }
    }
}

async fn served(job: &Job, groups: &mut Groups, view: &View, signals: &mut Signals) -> Result<UpOutcome, UpError> {
    let bus = connect(&groups.sides[0].group.config.bus).await?;
    let mut run = Running::new(job, groups, view, &bus);
    let outcome = tokio::select! {
        outcome = run.through(&bus) => outcome,
        signal = signals.next() => Err(UpError::Interrupted(signal)),
    };
    bus.close();
    outcome
}
