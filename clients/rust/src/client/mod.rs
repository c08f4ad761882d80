//! One engine incarnation speaking to one group: typed requests, each repeated by its op until answered.
//!
//! Invariants: a repeat carries the same op and the same body under a new message id and number; *ok* is a reply of
//! the daemon, never a publish. A refusal changes nothing and is counted by its code.
//! Not here: when to ask what (the engine), how bytes travel ([`crate::bus`]).

mod call;
mod error;
mod spans;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hicached_actors::machine::Trace;
use hicached_actors::protocol::*;
use tokio::time::{Instant, sleep};

pub use error::ClientError;

use crate::bus::{Bus, BusError};
use crate::spans::Spans;

/// What a client does when nobody can be reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Away {
    /// The caller gets the error of the bus.
    #[default]
    Fail,
    /// An `open` gets [`ClientError::Uncached`], counted; requests of open sessions get the error of the bus.
    Bypass,
}

/// Whose client it is, and how patient.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// The group.
    pub group: String,
    /// The life of the engine rank that speaks: drawn anew for every process.
    pub engine: Incarnation,
    /// One request ends after this, answered or not.
    pub deadline: Duration,
    /// One try waits for this before the next one.
    pub attempt: Duration,
    /// With the daemon away for this long, a request ends before its deadline.
    pub away_after: Duration,
    /// What happens then.
    pub away: Away,
    /// Spreads the repeats of different clients.
    pub seed: u64,
    /// Where spans of its calls go.
    pub spans: Spans,
}

impl ClientConfig {
    /// The client of `engine` in `group`: 30 s for a request, 2 s for a try, 1 s without anybody there.
    pub fn new(group: impl Into<String>, engine: Incarnation) -> Self {
        let seed = u64::from_be_bytes(engine.0[8..].try_into().unwrap_or_default());
        Self {
            group: group.into(),
            engine,
            deadline: Duration::from_secs(30),
            attempt: Duration::from_secs(2),
            away_after: Duration::from_secs(1),
            away: Away::Fail,
            seed,
            spans: None,
        }
    }
}

/// Counted since the client was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientCounts {
    /// Refusals by code.
    pub refusals: BTreeMap<String, u64>,
    /// Tries after the first.
    pub repeats: u64,
    /// Requests sent away uncached.
    pub bypassed: u64,
}

/// The client; a clone is the same client.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
    /// What its calls hang on.
    trace: Trace,
    /// How long one of its calls is repeated.
    deadline: Duration,
}

struct Shared {
    bus: Arc<dyn Bus>,
    config: ClientConfig,
    state: Mutex<State>,
}

struct State {
    ids: OpIds,
    control: Incarnation,
    /// Last number given per receiver and urgency.
    given: BTreeMap<(Address, bool), u64>,
    chance: u64,
    counts: ClientCounts,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("config", &self.shared.config).finish_non_exhaustive()
    }
}

/// Asks and unwraps the one variant that answers.
macro_rules! ask {
    ($client:expr, $op:expr, $request:expr, $answer:ident) => {
        unwrap!($client.ask($op, &Request::from($request)).await, $answer)
    };
}

/// Unwraps the one variant that answers.
macro_rules! unwrap {
    ($answered:expr, $answer:ident) => {
        match $answered {
            Ok(Answer::$answer(body)) => Ok(body),
            Ok(other) => Err(ClientError::Decode(Malformed::new("kind", other.code(), stringify!($answer)))),
            Err(error) => Err(error),
        }
    };
}

/// Every call fails with a [`ClientError`]; what the daemon may refuse is said in the protocol.
impl Client {
    /// A client that knows no control group yet.
    pub fn new(bus: Arc<dyn Bus>, config: ClientConfig) -> Self {
        let state = State {
            ids: OpIds::new(config.engine),
            control: Incarnation::default(),
            given: BTreeMap::new(),
            chance: config.seed,
            counts: ClientCounts::default(),
        };
        let deadline = config.deadline;
        Self { shared: Arc::new(Shared { bus, config, state: Mutex::new(state) }), trace: None, deadline }
    }

    /// The same client with calls that hang on `trace`. Without one, calls of a request that is worth a trace begin
    /// one each, where spans are recorded.
    #[must_use]
    pub fn within(&self, trace: Trace) -> Self {
        Self { trace, ..self.clone() }
    }

    /// The same client with calls that end after `deadline`, answered or not: for answers that others have to do
    /// something for.
    #[must_use]
    pub fn patient(&self, deadline: Duration) -> Self {
        Self { deadline, ..self.clone() }
    }

    /// What its calls hang on.
    pub fn trace(&self) -> Trace {
        self.trace.clone()
    }

    /// A new op of this engine: the id of a session to open, or of a request to repeat.
    pub fn draw(&self) -> OpId {
        self.lock().ids.draw()
    }

    /// Whose client it is.
    pub fn engine(&self) -> Incarnation {
        self.shared.config.engine
    }

    /// The control incarnation that answered the last `register`; all zero before.
    pub fn control(&self) -> Incarnation {
        self.lock().control
    }

    /// What was counted so far.
    pub fn counts(&self) -> ClientCounts {
        self.lock().counts.clone()
    }

    /// Brings the pools of one rank. The control group that answers is the one later requests mean.
    pub async fn register(&self, register: Register) -> Result<Registered, ClientError> {
        let registered: Registered = ask!(self, self.draw(), register, Registered)?;
        self.lock().control = registered.control;
        Ok(registered)
    }

    /// How much of a prefix is cached, without touching it.
    pub async fn probe(&self, probe: Probe) -> Result<Probed, ClientError> {
        ask!(self, self.draw(), probe, Probed)
    }

    /// Begins the session `session`, an op drawn here. The same op opens the same session, however often it is asked.
    pub async fn open(&self, session: OpId, open: Open) -> Result<Opened, ClientError> {
        let answer: Result<Opened, ClientError> = ask!(self, session, open, Opened);
        answer.map_err(|error| self.bypass(error))
    }

    /// Opens a session, asking again under a new op after each refusal with a hint, for at most `patience`.
    /// A session that may exist without its answer is given up by a message that nobody waits for.
    pub async fn open_when_room(&self, open: &Open, patience: Duration) -> Result<(OpId, Opened), ClientError> {
        let until = Instant::now() + patience;
        loop {
            let session = self.draw();
            match self.open(session, open.clone()).await {
                Ok(opened) => return Ok((session, opened)),
                Err(error) => {
                    if error.room_hint().is_none() {
                        self.give_up(session, &open.tenant, 0);
                    }
                    self.wait_for_room(error, until).await?;
                }
            }
        }
    }

    /// More pages for a session. `op` is one extension: the same op gets the same pages, however often it is asked.
    pub async fn extend(&self, op: OpId, extend: Extend) -> Result<Extended, ClientError> {
        ask!(self, op, extend, Extended)
    }

    /// [`Self::extend`], asking again under a new op after each refusal with a hint, for at most `patience`.
    pub async fn extend_when_room(&self, extend: &Extend, patience: Duration) -> Result<Extended, ClientError> {
        let until = Instant::now() + patience;
        loop {
            match self.extend(self.draw(), extend.clone()).await {
                Ok(extended) => return Ok(extended),
                Err(error) => self.wait_for_room(error, until).await?,
            }
        }
    }

    /// One forward. Its numbers follow each other; `op` stays the same when the caller asks again.
    pub async fn step(&self, op: OpId, step: Step) -> Result<Stepped, ClientError> {
        ask!(self, op, step, Stepped)
    }

    /// Ends a session.
    pub async fn close(&self, close: Close) -> Result<Closed, ClientError> {
        ask!(self, close.session, close, Closed)
    }

    /// Waits for the pages of a transfer, on the side that receives them. That lasts as long as the other side
    /// computes: ask by a client that is [`Self::patient`] enough.
    pub async fn handover(&self, handover: Handover) -> Result<HandedOver, ClientError> {
        ask!(self, handover.transfer, handover, HandedOver)
    }

    /// Gives a session up. One that was asked to close before is over as well, and the daemon answers as for that.
    pub async fn abort(&self, abort: Abort) -> Result<(), ClientError> {
        match self.ask(abort.session, &Request::from(abort)).await? {
            Answer::Done(_) | Answer::Closed(_) => Ok(()),
            other => Err(ClientError::Decode(Malformed::new("kind", other.code(), "Done"))),
        }
    }

    /// Gives a session up by one message that nobody waits for. If that is lost, the session lives as long as the
    /// heartbeats of this engine: who goes on living asks [`Self::abort`] until it is answered.
    pub fn give_up(&self, session: OpId, tenant: &str, last_step: u64) {
        let abort = Request::from(Abort { session, tenant: tenant.to_owned(), last_step });
        if let Err(error) = self.tell(Address::Index, session, abort.code(), abort.encode_body()) {
            tracing::debug!(?session, %error, "the session is left to its lease");
        }
    }

    /// This engine lives.
    pub async fn heartbeat(&self, last_step: u64) -> Result<Done, ClientError> {
        ask!(self, self.draw(), Heartbeat { engine: self.engine(), last_step }, Done)
    }

    /// Gives cached pages up.
    pub async fn flush(&self, flush: Flush) -> Result<Flushed, ClientError> {
        ask!(self, self.draw(), flush, Flushed)
    }

    /// Keeps a prefix, or lets it go.
    pub async fn pin(&self, pin: Pin) -> Result<Pinned, ClientError> {
        ask!(self, self.draw(), pin, Pinned)
    }

    /// Stops new sessions, or allows them again.
    pub async fn drain(&self, on: bool) -> Result<Drained, ClientError> {
        ask!(self, self.draw(), Drain { on }, Drained)
    }

    /// The figures of the group.
    pub async fn status(&self, status: Status) -> Result<StatusIs, ClientError> {
        ask!(self, self.draw(), status, StatusIs)
    }

    /// The figures of one member, whatever state the group is in; nobody has to be registered.
    pub async fn figures(&self, of: Address) -> Result<StatusIs, ClientError> {
        unwrap!(self.ask_figures(of).await, StatusIs)
    }

    /// Events from a number on.
    pub async fn replay(&self, replay: Replay) -> Result<Replayed, ClientError> {
        ask!(self, self.draw(), replay, Replayed)
    }

    /// Layers done, for an engine that cannot write words: handed over, not answered. A later message includes it.
    ///
    /// # Errors
    /// [`ClientError::Bus`] when it was not handed over.
    pub fn layer_ready(&self, rank: Rank, ready: &LayerReady) -> Result<(), ClientError> {
        self.tell(Address::Rank(rank), OpId::default(), "layer_ready", encode(ready))
    }

    /// Sleeps for the hint of `error`.
    ///
    /// # Errors
    /// `error` itself when it has no hint or the hint lies behind `until`.
    pub async fn wait_for_room(&self, error: ClientError, until: Instant) -> Result<(), ClientError> {
        match error.room_hint() {
            Some(hint) if Instant::now() + hint < until => sleep(hint).await,
            Some(_) | None => return Err(error),
        }
        Ok(())
    }

    fn bypass(&self, error: ClientError) -> ClientError {
        let away = error.is_away();
        match (error, self.shared.config.away) {
            (ClientError::Bus(because), Away::Bypass) if away => self.bypassed(because),
            (error, Away::Fail | Away::Bypass) => error,
        }
    }

    fn bypassed(&self, because: BusError) -> ClientError {
        self.lock().counts.bypassed += 1;
        ClientError::Uncached { because }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that holds this lock can panic between two writes that belong together.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
