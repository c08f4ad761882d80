//! Forwards: one step for every session that can run, its pages written layer by layer, its words advanced.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use hicached_actors::machine::Trace;
use hicached_actors::protocol::{Incarnation, OpId, Refusal, Step, StepEntry};
use hicached_actors::span::Sampling;
use tokio::sync::{mpsc, oneshot};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep};

use super::EngineError;
use super::core::{Core, Life, Load};
use super::pools::{Buffers, Fill};
use crate::client::{Client, ClientError};
use crate::shm::Track;

/// What the forwards are asked for.
pub(super) enum Job {
    /// A session can run.
    Run(Box<Work>),
    /// The control group `seen` is gone, or does not know a rank: register, unless that has been done since.
    Join { seen: Incarnation, done: oneshot::Sender<Result<(), EngineError>> },
}

/// What one session wants of the next forward.
pub(super) struct Work {
    pub(super) life: Life,
    pub(super) entry: StepEntry,
    /// What it adds to its pages.
    pub(super) fills: Vec<Fill>,
    /// The trace of its request.
    pub(super) trace: Trace,
    /// The load that has to be there, layer by layer, before the layer is computed.
    pub(super) load: Option<Load>,
    pub(super) done: oneshot::Sender<Outcome>,
}

/// How a forward ended for one session.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) step: u64,
    /// The session has to run again from the first position of its load.
    pub(super) load_failed: bool,
    /// How long its load was waited for, when it had one that did not fail.
    pub(super) load_ns: Option<u64>,
    /// The sessions of the step that do not count for the daemon, or why it did not take the step.
    pub(super) told: Result<Vec<OpId>, ClientError>,
}

/// Asks for a join and waits for it.
pub(super) async fn join_again(jobs: &mpsc::Sender<Job>, seen: Incarnation) -> Result<(), EngineError> {
    let (done, answer) = oneshot::channel();
    jobs.send(Job::Join { seen, done }).await.map_err(|_| ended())?;
    answer.await.map_err(|_| ended())?
}

/// The task that runs forwards is gone: as good as a bus that was closed.
pub(super) fn ended() -> ClientError {
    ClientError::Bus(crate::bus::BusError::Closed)
}

/// Runs the forwards of an engine, one at a time.
pub(super) struct Forwards {
    core: Arc<Core>,
    next_step: u64,
    line: StepLine,
    buffers: Buffers,
}

/// One session of the forward that runs.
struct Running {
    work: Work,
    load_failed: bool,
}

impl Forwards {
    /// The first forward is step `next_step`.
    pub(super) fn new(core: Arc<Core>, next_step: u64) -> Self {
        let line = StepLine { client: core.lead().clone(), untold: VecDeque::new() };
        Self { core, next_step, line, buffers: Buffers::default() }
    }

    /// Runs until nobody can ask any more.
    pub(super) async fn run(mut self, mut jobs: mpsc::Receiver<Job>) {
        let mut batch = Vec::new();
        loop {
            let first = tokio::select! {
                biased;
                job = jobs.recv() => job,
                () = sleep(UNTOLD_PAUSE), if !self.line.untold.is_empty() => {
                    self.tell_untold().await;
                    continue;
                }
            };
            let Some(first) = first else { return };
            let mut next = Some(first);
            // Sessions whose last forward has just ended ask again before the next one begins.
            yield_now().await;
            while let Some(job) = next.take().or_else(|| jobs.try_recv().ok()) {
                match job {
                    Job::Run(work) => batch.push(Running { work: *work, load_failed: false }),
                    Job::Join { seen, done } => {
                        // Nobody may wait any more; the join is done all the same.
                        done.send(self.join(seen).await).ok();
                    }
                }
                if batch.len() == self.core.config.step_sessions_max {
                    break;
                }
            }
            if !batch.is_empty() {
                self.forward(std::mem::take(&mut batch)).await;
            }
        }
    }

    /// Steps that ended unanswered while nobody could be reached. Sessions that were given up drain behind them, and
    /// hold the very pages that the next forward may be waiting for.
    async fn tell_untold(&mut self) {
        let until = Instant::now() + self.core.config.room_patience;
        if let Err(error) = self.line.tell_all(until).await {
            tracing::debug!(%error, "steps are still untold");
        }
    }

    async fn join(&mut self, seen: Incarnation) -> Result<(), EngineError> {
        if self.core.lead().control() != seen {
            return Ok(());
        }
        let joined = self.core.join().await?;
        self.line.untold.clear();
        self.next_step = joined.next_step.max(self.core.last_step() + 1);
        Ok(())
    }

    /// Ends the work of sessions whose control group is gone: what they hold may be given to others, and is not to be
    /// written. Joins are made by this task alone, so that a forward has one control group from its start to its end.
    fn end_outlived(&self, batch: Vec<Running>) -> Vec<Running> {
        let new = self.core.lead().control();
        let (lives, outlived): (Vec<_>, Vec<_>) = batch.into_iter().partition(|one| one.work.life.control == new);
        for Running { work, .. } in outlived {
            let told = Err(ClientError::NewIncarnation { old: work.life.control, new });
            let outcome = Outcome { step: self.core.last_step(), load_failed: false, load_ns: None, told };
            // A session whose caller gave it up wants no outcome.
            work.done.send(outcome).ok();
        }
        lives
    }

    async fn forward(&mut self, batch: Vec<Running>) {
        let mut batch = self.end_outlived(batch);
        if batch.is_empty() {
            return;
        }
        let number = self.next_step;
        self.next_step += 1;
        self.core.launched(number);
        let step = Step {
            number,
            entries: batch.iter().map(|running| running.work.entry.clone()).collect(),
            engine: self.core.lead().engine(),
            all_layers_at_end: false,
        };
        let trace = trace_of(&batch);
        let until = Instant::now() + self.core.config.room_patience;
        let started = Instant::now();
        let (core, line, buffers) = (&self.core, &mut self.line, &mut self.buffers);
        let hopeless = AtomicBool::new(false);
        let tell = async {
            let told = line.tell(step, trace, until).await;
            if told.is_ok() {
                core.report().latencies.step.record(started.elapsed().as_nanos() as u64);
            }
            told
        };
        // The message is on its way before the first layer; its answer is not waited for by the computation.
        let run = async {
            tokio::select! {
                compute_ns = compute(core, number, &mut batch, buffers, &hopeless) => compute_ns,
                never = core.watch_control(&hopeless) => match never {},
            }
        };
        let (told, compute_ns) = tokio::join!(tell, run);
        for Running { work, load_failed } in batch {
            let load_ns = (work.load.is_some() && !load_failed).then_some(compute_ns);
            let outcome = Outcome { step: number, load_failed, load_ns, told: told.clone() };
            // A session whose caller gave it up wants no outcome.
            work.done.send(outcome).ok();
        }
    }
}

/// Writes the pages of a forward, target layers first, then draft layers, and says so on every rank. Returns the
/// nanoseconds it took, waits for loads included.
async fn compute(core: &Core, number: u64, batch: &mut [Running], buffers: &mut Buffers, hopeless: &AtomicBool) -> u64 {
    let (pools, words, started) = (&core.pools, core.words(), Instant::now());
    let until = started + core.config.load_deadline;
    for load_layer in 0..pools.layers_of_load() {
        let (track, layer) = pools.layer_of_load(load_layer);
        for Running { work, load_failed } in batch.iter_mut() {
            if let Some(load) = work.load.as_ref().filter(|_| !*load_failed) {
                if core.arrives(&words, &load.ticket, load_layer + 1, until, hopeless).await {
                    core.verify(work.life, &load.pages, (track, layer), buffers);
                } else {
                    *load_failed = true;
                }
            }
            let runs = match track {
                Track::Target => true,
                Track::Draft => work.entry.draft,
            };
            if runs && !*load_failed {
                work.fills.iter().for_each(|fill| pools.write(fill, (track, layer), buffers));
            }
        }
        words.advance(track, number, pools.layers(track), layer + 1);
        yield_now().await;
    }
    // A track that did not run, or has no layers, has passed the step all the same.
    Track::ALL.into_iter().for_each(|track| words.advance(track, number, pools.layers(track), pools.layers(track)));
    let loads = batch.iter().filter(|running| running.work.load.is_some());
    let ended = loads.filter(|running| !running.load_failed).count();
    let compute_ns = started.elapsed().as_nanos() as u64;
    let mut report = core.report();
    (0..ended).for_each(|_| report.latencies.load.record(compute_ns));
    compute_ns
}

/// Tells steps in order, each until it is answered.
struct StepLine {
    client: Client,
    /// Steps whose answer has not come, oldest first.
    untold: VecDeque<Untold>,
}

impl StepLine {
    /// Tells `step` after those before it. A step the daemon refuses for what it names is told without entries, so
    /// that the numbers go on, and the refusal is returned.
    async fn tell(&mut self, step: Step, trace: Trace, until: Instant) -> Result<Vec<OpId>, ClientError> {
        self.untold.push_back(Untold { op: self.client.draw(), step, trace });
        self.tell_all(until).await
    }

    /// Tells every step that is untold; how the last one was taken.
    async fn tell_all(&mut self, until: Instant) -> Result<Vec<OpId>, ClientError> {
        let mut result = Ok(Vec::new());
        // Why the first step in line was told without entries.
        let mut refused = None;
        while let Some(Untold { op, step, trace }) = self.untold.front_mut() {
            let error = match self.client.within(trace.clone()).step(*op, step.clone()).await {
                Ok(stepped) => {
                    result = refused.take().map_or(Ok(stepped.void), Err);
                    self.untold.pop_front();
                    continue;
                }
                Err(error) => error,
            };
            match gap_of(&error, step) {
                // An answer that was lost: the daemon is ahead.
                Some(Gap::Number { expected }) if expected > step.number => {
                    result = refused.take().map_or(Ok(Vec::new()), Err);
                    self.untold.pop_front();
                }
                // Steps that were launched and never heard of: they have passed, and nothing of them counts.
                Some(Gap::Number { expected }) if (1..=MISSING_MAX).contains(&step.number.saturating_sub(expected)) => {
                    let missing: Vec<Step> = (expected..step.number).map(|number| empty(number, step.engine)).collect();
                    let of_gap = trace.clone();
                    for step in missing.into_iter().rev() {
                        let trace = of_gap.clone();
                        self.untold.push_front(Untold { op: self.client.draw(), step, trace });
                    }
                }
                Some(Gap::Number { .. }) => return Err(error),
                // A load failed, and the daemon has not heard of it yet.
                Some(Gap::Token) if Instant::now() < until => sleep(GAP_PAUSE).await,
                None if error.room_hint().is_some() => self.client.wait_for_room(error, until).await?,
                Some(Gap::Token) | None if matches!(error, ClientError::Refused(_)) && !step.entries.is_empty() => {
                    step.entries.clear();
                    *op = self.client.draw();
                    refused = Some(error);
                }
                Some(Gap::Token) | None => return Err(error),
            }
        }
        result
    }
}

/// A step whose answer has not come.
struct Untold {
    /// The op it is repeated under.
    op: OpId,
    step: Step,
    /// What it hangs on.
    trace: Trace,
}

/// What a step hangs on: the first of its sessions whose trace is exported, else the first that is recorded. The
/// daemon links the others.
fn trace_of(batch: &[Running]) -> Trace {
    let traces = || batch.iter().filter_map(|running| running.work.trace.as_ref());
    let sampled = traces().find(|trace| trace.sampling == Sampling::Sampled);
    sampled.or_else(|| traces().next()).cloned()
}

/// What a `Gap` speaks of: the number of the step, or the first token of one of its entries.
enum Gap {
    Number { expected: u64 },
    Token,
}

/// What was out of order in `step`. A number that an entry's first token equals is taken for that token: a step the
/// daemon knows is answered, so only a step it does not know yet leaves a gap in the numbers.
fn gap_of(error: &ClientError, step: &Step) -> Option<Gap> {
    let ClientError::Refused(Refusal::Gap(gap)) = error else { return None };
    match step.entries.iter().any(|entry| u64::from(entry.first_token) == gap.got) {
        true => Some(Gap::Token),
        false => Some(Gap::Number { expected: gap.expected }),
    }
}

/// A step that names nobody.
fn empty(number: u64, engine: Incarnation) -> Step {
    Step { number, entries: Vec::new(), engine, all_layers_at_end: false }
}

/// Between two rounds of telling what is untold; the client has repeated within each.
const UNTOLD_PAUSE: Duration = Duration::from_millis(250);
/// Most steps told again at once: more are not a loss of messages.
const MISSING_MAX: u64 = 1_024;
/// Until the daemon's ranks have told it of a load that failed: a few of their messages.
const GAP_PAUSE: Duration = Duration::from_millis(5);
