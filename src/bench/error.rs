//! Why nothing was measured of a group that serves.

use std::time::Duration;

use hicached_client::client::ClientError;
use hicached_client::engine::{EngineError, Report};

use crate::bus::BusError;
use crate::bus::server::ServerError;
use crate::config::ConfigRefused;
use crate::fleet::FleetError;
use crate::replay::folder::FolderError;
use crate::shell::{NoBroker, StartError};

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The group of the bench does not pass its own check.
    #[error(transparent)]
    Config(#[from] ConfigRefused),
    /// No place for pool files.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// No broker to start.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// A process does not run.
    #[error(transparent)]
    Fleet(#[from] FleetError),
    /// A process ended that was to serve.
    #[error("a process ended by itself; the end of its log:\n{log}")]
    Ended {
        /// Its name, and the end of its log.
        log: String,
    },
    /// No connection.
    #[error(transparent)]
    NoBroker(#[from] NoBroker),
    /// No group.
    #[error(transparent)]
    Group(#[from] StartError),
    /// No engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A request was not answered.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// A raw request was not answered.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// Requests failed.
    #[error("{failed} of {requests} requests failed: {first}")]
    Failed {
        /// How many.
        failed: u64,
        /// Of how many.
        requests: u64,
        /// Why the first did.
        first: String,
    },
    /// The group does not come to where it should.
    #[error("after {after:?} {what} is {have}, not {want}")]
    Late {
        /// Waited so long.
        after: Duration,
        /// A figure of the index.
        what: &'static str,
        /// What it is.
        have: u64,
        /// What it should be.
        want: u64,
    },
    /// Signals cannot be heard.
    #[error("signals: {0}")]
    Signals(std::io::Error),
    /// Ended by the signal of this number.
    #[error("interrupted")]
    Interrupted(u8),
}

/// What the engine reports, when every request ended as it should.
pub(super) fn clean(report: Report) -> Result<Report, BenchError> {
    if report.is_clean() {
        return Ok(report);
    }
    let first = report.failures.first().map(|(_, why)| why.clone()).unwrap_or_default();
    Err(BenchError::Failed { failed: report.requests - report.requests_ended, requests: report.requests, first })
}
