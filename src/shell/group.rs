//! What this process hosts of a group: machines on one thread, ranks on another, and the way to begin and end them.
//!
//! The actors meet only on the bus, whichever process they are in. One thread for the machines, because an `open`
//! goes through several of them and a hop between threads costs more than any of them.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use actix::System;
use hicached_actors::protocol::{Address, Drained};
use hicached_client::client::{Client, ClientConfig};
use tokio::sync::oneshot;

use super::build::{self, StartError};
use super::clock::Clock;
use super::following::follow;
use super::leading::{Line, draw, lead};
use super::post::{Post, PostFigures};
use super::seat::{Machines, Ranks, Seat};
use crate::bus::Bus;
use crate::config::{BusKind, Checked};
use crate::telemetry::{Origin, Telemetry};

/// The actors of a group that this process hosts. Dropping it without [`LocalGroup::stop`] ends them at once.
#[derive(Debug)]
pub struct LocalGroup {
    post: Arc<Post>,
    members: Vec<Address>,
    client: Client,
    /// Whether sessions begin and end here.
    has_index: bool,
    state: State,
    ready: oneshot::Receiver<()>,
    ended: oneshot::Receiver<StartError>,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not every actor can be reached.
    Starting,
    /// Every actor of this process could be reached.
    Ready,
    /// The control thread has told why it ended.
    Ended,
}

/// Named figures of one actor.
pub type ActorFigures = (Address, Vec<(String, u64)>);

impl LocalGroup {
    /// Starts the actors of `group` that this process hosts; resolves when each of them can be reached.
    ///
    /// # Errors
    /// As [`LocalGroup::spawn`] and [`LocalGroup::ready`].
    pub async fn start(group: &Checked, bus: Arc<dyn Bus>) -> Result<Self, StartError> {
        let mut running = Self::spawn(group, bus)?;
        running.ready().await?;
        Ok(running)
    }

    /// Begins to start the actors of `group` that this process hosts.
    ///
    /// # Errors
    /// A broker with too small messages, no thread.
    pub fn spawn(group: &Checked, bus: Arc<dyn Bus>) -> Result<Self, StartError> {
        build::check_bus(group, &*bus)?;
        if group.config.cache.fingerprints {
            tracing::warn!("checksums of every stored record are on: stores and loads are slower than without");
        }
        let (name, clock) = (&group.config.group.name, Clock::start());
        let telemetry = Telemetry::start(&group.config.trace, origin(group), clock)?;
        let post = Arc::new(Post::new(bus, name, group.config.group.cp_size).traced(telemetry));
        let client = Client::new(post.bus().clone(), ClientConfig::new(name.clone(), draw()));
        let seat = Seat { group: group.clone(), post: post.clone(), clock, over: Arc::default() };
        let (stop, stopped) = oneshot::channel();
        let (is_ready, ready) = oneshot::channel();
        let (has_ended, ended) = oneshot::channel();
        let mut line = Line { ready: Some(is_ready), stopped };
        let thread = std::thread::Builder::new().name("hicached control".to_owned());
        let thread = thread.spawn(move || {
            if let Err(error) = System::new().block_on(run(&seat, &mut line)) {
                // Nobody waits any more when the group was dropped.
                has_ended.send(error).ok();
            }
        })?;
        Ok(Self {
            members: post.members().collect(),
            post,
            client,
            has_index: group.actors.contains(&Address::Index),
            state: State::Starting,
            ready,
            ended,
            stop,
            thread,
        })
    }

    /// Resolves when every actor of this process can be reached; the index can when the control group is complete.
    ///
    /// # Errors
    /// A subject that cannot be served, a rank that cannot have its pool, another process that has one of the actors.
    pub async fn ready(&mut self) -> Result<(), StartError> {
        if self.state == State::Starting && (&mut self.ready).await.is_ok() {
            self.state = State::Ready;
        }
        match self.state {
            State::Ready => Ok(()),
            State::Starting | State::Ended => Err(self.ended().await),
        }
    }

    /// Resolves when the actors have ended by themselves, with the reason.
    pub async fn ended(&mut self) -> StartError {
        if self.state == State::Ended {
            return StartError::Gone;
        }
        let error = (&mut self.ended).await.unwrap_or(StartError::Gone);
        self.state = State::Ended;
        error
    }

    /// The recorder of this process, for engines beside the group.
    pub fn telemetry(&self) -> &Telemetry {
        self.post.telemetry()
    }

    /// Named figures of every actor of the group that answers.
    pub async fn figures(&self) -> Vec<ActorFigures> {
        let mut all = Vec::with_capacity(self.members.len());
        for of in &self.members {
            match self.client.figures(*of).await {
                Ok(figures) => all.push((*of, figures.counters)),
                Err(error) => tracing::warn!(actor = %of, %error, "no figures"),
            }
        }
        all
    }

    /// One figure of one actor, 0 when it has none of that name or does not answer.
    pub async fn figure(&self, of: Address, name: &str) -> u64 {
        let figures = self.client.figures(of).await;
        let figures = figures.inspect_err(|error| tracing::warn!(actor = %of, %error, "no figures"));
        let named = figures.into_iter().flat_map(|figures| figures.counters).filter(|(have, _)| *have == name);
        named.map(|(_, value)| value).sum()
    }

    /// Frames that were not sent.
    pub fn unsent(&self) -> PostFigures {
        self.post.figures()
    }

    /// Ends in this order: a process with the index takes no new sessions and waits up to `patience` for those that
    /// run; ranks stop their copies; machines end. What was still running when the patience was over.
    pub async fn stop(self, patience: Duration) -> Drained {
        let leads = self.has_index && self.state == State::Ready;
        let left = if leads { self.drain(patience).await } else { Drained { sessions: 0, ops: 0 } };
        // Nobody hears it when the thread has ended already.
        self.stop.send(()).ok();
        let thread = self.thread;
        let joined = tokio::task::spawn_blocking(move || thread.join().is_ok()).await;
        tracing::debug!(ended = joined.unwrap_or(false), "the group has ended");
        self.post.telemetry().stop().await;
        left
    }

    async fn drain(&self, patience: Duration) -> Drained {
        let until = Instant::now() + patience;
        loop {
            match self.client.drain(true).await {
                Ok(Drained { sessions: 0, ops: 0 }) => return Drained { sessions: 0, ops: 0 },
                Ok(left) if Instant::now() >= until => return left,
                Ok(_) => tokio::time::sleep(DRAIN_PAUSE).await,
                Err(error) => {
                    tracing::warn!(%error, "the group cannot be drained");
                    return Drained { sessions: 0, ops: 0 };
                }
            }
        }
    }
}

/// Whose spans this process has.
fn origin(group: &Checked) -> Origin {
    let actors = group.actors.iter().map(Address::to_string).collect();
    Origin { group: group.config.group.name.clone(), actors, bus: group.config.bus.kind }
}

/// The control thread, from the first actor to the last.
async fn run(seat: &Seat, line: &mut Line) -> Result<(), StartError> {
    seat.post.telemetry().join(seat.post.bus()).await;
    let ranks = Ranks::start(seat).await?;
    let machines = host(seat, line).await;
    // Ranks first: a machine never waits for a rank that was not told to end.
    ranks.stop().await;
    machines?.stop().await;
    Ok(())
}

/// Hosts the machines of this process until it ends.
async fn host(seat: &Seat, line: &mut Line) -> Result<Machines, StartError> {
    let machines = seat.machines();
    if machines.is_empty() || seat.group.config.bus.kind == BusKind::Memory {
        let (control, mut hosted) = (draw(), Machines::default());
        hosted.host(seat, &machines, control).await?;
        if machines.contains(&Address::Index) {
            hosted.host_index(seat, control).await?;
        }
        line.tell_ready();
        // A group that was dropped ends as well.
        (&mut line.stopped).await.ok();
        return Ok(hosted);
    }
    if machines.contains(&Address::Index) { lead(seat, line).await } else { follow(seat, line).await }
}

/// Between two questions whether all sessions have ended.
const DRAIN_PAUSE: Duration = Duration::from_millis(20);
