//! Traces of this process: a span for every handled message, the spans machines and clients tell of, and their way
//! to a collector.
//!
//! A trace is either sampled, and its spans go straight to the exporter, or late: its spans are kept for a while and
//! exported when one of them turns out to be slow or to have failed, in whatever process of the group that is seen.
//! Whoever begins a trace draws which, and the message headers carry it.
//!
//! Invariants: nothing here waits on a machine's thread; every queue is bounded and what is lost is counted; a
//! machine gets a context only where its spans are recorded, so with export off nothing is built.
//! Not here: what machines say of their ops (`actors`).

#[cfg(not(feature = "trace"))]
mod absent;
#[cfg(feature = "trace")]
mod attributes;
#[cfg(feature = "trace")]
mod export;
#[cfg(feature = "trace")]
mod handling;
#[cfg(feature = "trace")]
mod keep;
#[cfg(feature = "trace")]
mod late;
#[cfg(feature = "trace")]
mod outbox;
#[cfg(feature = "trace")]
mod recorder;

use std::sync::Arc;

use hicached_client::spans::{SpanSink, Spans};

#[cfg(not(feature = "trace"))]
pub use absent::{Handling, Recorder};
#[cfg(feature = "trace")]
pub use handling::Handling;
#[cfg(feature = "trace")]
pub use recorder::Recorder;

use crate::bus::Bus;
use crate::config::{BusKind, TraceConfig};
use crate::shell::Clock;

/// Whose spans these are.
#[derive(Clone, Debug)]
pub struct Origin {
    /// The group.
    pub group: String,
    /// What this process hosts: `index`, `rank.0`, `engine`.
    pub actors: Vec<String>,
    /// What carries the messages.
    pub bus: BusKind,
}

/// Counted since the recorder was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceFigures {
    /// Spans a collector has taken.
    pub exported: u64,
    /// Spans that found no room on their way, or that no collector took.
    pub lost: u64,
    /// Spans of late traces that are kept for a while.
    pub stored: u64,
    /// Spans of late traces that nobody wanted until they made room for others.
    pub late_dropped: u64,
    /// Traces that were kept here without the other processes hearing of it.
    pub untold: u64,
}

impl TraceFigures {
    /// Names and values in a fixed order.
    pub fn named(&self) -> [(&'static str, u64); 5] {
        let Self { exported, lost, stored, late_dropped, untold } = *self;
        [
            ("trace.exported", exported),
            ("trace.lost", lost),
            ("trace.stored", stored),
            ("trace.late_dropped", late_dropped),
            ("trace.untold", untold),
        ]
    }
}

/// Why no traces are exported.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// No exporter can be made for the endpoint.
    #[error("trace.endpoint is {endpoint}: {why}")]
    Endpoint {
        /// The endpoint.
        endpoint: String,
        /// What the exporter says.
        why: String,
    },
    /// No thread.
    #[error("no thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// The recorder of this process, if there is one. A clone is the same recorder.
#[derive(Clone, Debug, Default)]
pub struct Telemetry {
    #[cfg(feature = "trace")]
    running: Option<Arc<export::Running>>,
}

impl Telemetry {
    /// Starts the exporter that `config` names, none when it names none.
    ///
    /// # Errors
    /// [`TelemetryError`].
    #[cfg(feature = "trace")]
    pub fn start(config: &TraceConfig, origin: Origin, clock: Clock) -> Result<Self, TelemetryError> {
        if config.endpoint.is_empty() {
            return Ok(Self::default());
        }
        Ok(Self { running: Some(Arc::new(export::Running::start(config, origin, clock)?)) })
    }

    /// Starts nothing: this build has no exporter, and its configuration names none.
    ///
    /// # Errors
    /// An endpoint all the same.
    #[cfg(not(feature = "trace"))]
    pub fn start(config: &TraceConfig, _: Origin, _: Clock) -> Result<Self, TelemetryError> {
        if config.endpoint.is_empty() {
            return Ok(Self::default());
        }
        Err(TelemetryError::Endpoint {
            endpoint: config.endpoint.clone(),
            why: "this build has no exporter".to_owned(),
        })
    }

    /// The recorder; `None` with export off.
    #[inline]
    pub fn recorder(&self) -> Option<&Arc<Recorder>> {
        #[cfg(feature = "trace")]
        {
            self.running.as_ref().map(|running| running.recorder())
        }
        #[cfg(not(feature = "trace"))]
        {
            None
        }
    }

    /// Where clients and engines of this process report their spans.
    pub fn spans(&self) -> Spans {
        self.recorder().map(|recorder| recorder.clone() as Arc<dyn SpanSink>)
    }

    /// From now on hears on `bus` which late traces the other processes of the group keep, and tells them.
    pub async fn join(&self, bus: &Arc<dyn Bus>) {
        #[cfg(feature = "trace")]
        if let Some(recorder) = self.recorder() {
            keep::join(recorder, bus).await;
        }
        #[cfg(not(feature = "trace"))]
        let _ = bus;
    }

    /// What was exported and what was not; all zero with export off.
    pub fn figures(&self) -> TraceFigures {
        #[cfg(feature = "trace")]
        if let Some(recorder) = self.recorder() {
            return recorder.figures();
        }
        TraceFigures::default()
    }

    /// Exports what waits, for a bounded time, and ends the exporter. Spans recorded later are lost and counted.
    pub async fn stop(&self) {
        #[cfg(feature = "trace")]
        if let Some(running) = &self.running {
            running.stop().await;
        }
    }
}
