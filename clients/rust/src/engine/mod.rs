//! A synthetic engine: it serves requests with bytes that can be recomputed, and checks every byte it is served.
//!
//! It touches pools, words and messages only. One request is one session: `open`, the load it may wait for, forwards
//! of prefill and decode, `close`. One forward is one `step` for every session that can run, and its layers are
//! announced by the words of every rank. With one request at a time and whole prompts in one chunk the order of
//! messages is exactly `open`, `step`, `close` per request.
//!
//! Invariants: a page is written only by a forward that names it; steps are told in order, each until it is
//! answered; a session is closed, or aborted until that is answered; the status of a load is read before anything
//! that needs it is announced.
//! Not here: which requests come when (the caller's stream).

mod config;
mod content;
mod core;
mod fate;
mod forward;
mod given_up;
mod left_over;
mod pools;
mod report;
mod request_span;
mod router;
mod session;
mod stop;
#[cfg(test)]
mod tests;
mod words;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, Stream, StreamExt};
use hicached_actors::protocol::Incarnation;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

pub use config::{EngineConfig, Prompt, Side, Verify};
pub use left_over::remove_left_over;
pub use report::{ClosedSums, Ended, Hit, HitPages, How, Latencies, Progress, Report, Times, WrongPiece};
pub use router::{Routed, RoutedReport, Router};

use self::core::Core;
use self::forward::{Forwards, Job};
use self::given_up::GivenUp;
use self::stop::Stop;
use crate::bus::Bus;
use crate::client::{Client, ClientCounts, ClientError};
use crate::shm::ShmError;

/// Why an engine cannot start.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The daemon did not take a rank.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// A pool cannot be made, or what a rank answered cannot be mapped.
    #[error(transparent)]
    Shm(#[from] ShmError),
    /// The config contradicts itself.
    #[error("{field} is {value}, must be {limit}")]
    Config {
        /// The field.
        field: &'static str,
        /// What it is.
        value: u64,
        /// What it may be.
        limit: &'static str,
    },
}

/// A running engine: registered, alive to the daemon, idle until [`Engine::run`].
pub struct Engine {
    core: Arc<Core>,
    jobs: mpsc::Sender<Job>,
    /// Forwards, heartbeats and sessions given up; they end when the engine is dropped.
    tasks: JoinSet<()>,
}

impl Engine {
    /// Makes the pools and registers every rank, waiting for ranks that are not there yet within `room_patience`.
    ///
    /// # Errors
    /// [`EngineError`]; what was made is removed again.
    pub async fn start(bus: Arc<dyn Bus>, config: EngineConfig) -> Result<Self, EngineError> {
        check(&config)?;
        let engines: Vec<Incarnation> =
            (0..config.manifest.cp_size).map(|_| Incarnation(uuid::Uuid::new_v4().into_bytes())).collect();
        let (given_up, to_tell) = GivenUp::new();
        let core = Arc::new(Core::new(&bus, config, &engines, given_up)?);
        let joined = core.join().await?;
        let (jobs, inbox) = mpsc::channel(core.config.sessions_max + usize::from(core.config.manifest.cp_size));
        let mut tasks = JoinSet::new();
        tasks.spawn(Forwards::new(core.clone(), joined.next_step).run(inbox));
        tasks.spawn(given_up::tell(to_tell));
        for client in &core.clients {
            tasks.spawn(beat(core.clone(), client.clone(), jobs.clone(), joined.lease / BEATS_PER_LEASE));
        }
        Ok(Self { core, jobs, tasks })
    }

    /// The client of the engine's first rank, for requests beside a run.
    pub fn client(&self) -> &Client {
        self.core.lead()
    }

    /// Serves `prompts` in their order, at most `sessions_max` at a time, until the stream ends and the last request
    /// is over. `over` is called after each.
    pub async fn run(&mut self, prompts: impl Stream<Item = Prompt>, over: impl FnMut(Ended, Progress)) -> Report {
        self.run_numbered(prompts.enumerate(), over).await
    }

    /// [`Engine::run`] with numbers that the caller gives: the fate of a request follows from its number.
    pub async fn run_numbered(
        &mut self,
        prompts: impl Stream<Item = (usize, Prompt)>,
        mut over: impl FnMut(Ended, Progress),
    ) -> Report {
        let begun = self.begin();
        let mut prompts = pin!(prompts.fuse());
        let mut in_flight = FuturesUnordered::new();
        loop {
            tokio::select! {
                biased;
                Some((number, prompt)) = prompts.next(), if in_flight.len() < self.core.config.sessions_max => {
                    in_flight.push(self.serve(number, prompt, Stop::never()));
                }
                Some((ended, _)) = in_flight.next() => {
                    let now = self.core.report().progress();
                    over(ended, now);
                }
                else => break,
            }
        }
        self.end(begun)
    }

    fn begin(&self) -> Begun {
        *self.core.report() = Report::default();
        Begun { at: Instant::now(), before: self.core.counts() }
    }

    /// Serves one request of a run. With what made it fail.
    async fn serve(&self, number: usize, prompt: Prompt, stop: Stop) -> (Ended, Option<EngineError>) {
        self.core.report().begin(&prompt);
        session::serve(&self.core, &self.jobs, number, prompt, stop).await
    }

    fn end(&self, Begun { at, before }: Begun) -> Report {
        let mut report = std::mem::take(&mut *self.core.report());
        let after = self.core.counts();
        report.repeats = after.repeats - before.repeats;
        report.refusals = after.refusals;
        for (code, count) in before.refusals {
            report.refusals.entry(code).and_modify(|now| *now -= count);
        }
        report.refusals.retain(|_, count| *count > 0);
        report.elapsed = at.elapsed();
        report
    }

    /// Ends the engine. Its pools are removed; the daemon sees its leases run out.
    pub async fn stop(mut self) {
        self.tasks.shutdown().await;
    }
}

/// A run that has begun.
struct Begun {
    at: Instant,
    /// What was counted before it.
    before: ClientCounts,
}

/// Tells the daemon that one rank lives; a daemon that does not know it is joined again.
async fn beat(core: Arc<Core>, client: Client, jobs: mpsc::Sender<Job>, pause: Duration) {
    loop {
        sleep(pause).await;
        let control = client.control();
        match client.heartbeat(core.last_step()).await {
            Ok(_) => {}
            Err(ClientError::NewIncarnation { .. } | ClientError::Refused(_)) => {
                if forward::join_again(&jobs, control).await.is_err() {
                    tracing::warn!("the engine could not join again; the next heartbeat tries once more");
                }
            }
            Err(error @ (ClientError::Bus(_) | ClientError::Decode(_) | ClientError::Uncached { .. })) => {
                tracing::debug!(%error, "a heartbeat was not answered");
            }
        }
    }
}

fn check(config: &EngineConfig) -> Result<(), EngineError> {
    let (layers, _) = config.manifest.layers();
    let at_least_1 = [
        ("manifest.page_tokens", u64::from(config.manifest.page_tokens)),
        ("manifest.cp_size", u64::from(config.manifest.cp_size)),
        ("manifest layers of the target track", u64::from(layers)),
        ("chunk_tokens", u64::from(config.chunk_tokens)),
        ("sessions_max", config.sessions_max as u64),
        ("step_sessions_max", config.step_sessions_max as u64),
        ("decode_stride_tokens", u64::from(config.decode_stride_tokens)),
    ];
    match at_least_1.into_iter().find(|(_, value)| *value == 0) {
        Some((field, value)) => Err(EngineError::Config { field, value, limit: "at least 1" }),
        None => Ok(()),
    }
}

/// Two heartbeats may be lost before a lease runs out.
const BEATS_PER_LEASE: u32 = 4;
