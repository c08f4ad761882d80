//! All actors of a group in this process: the control group on one thread, the ranks on another.
//!
//! The actors still meet only on the bus. One thread for the control group, because an `open` goes through several
//! of its machines and a hop between threads costs more than any of them.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use actix::{Actor, Arbiter, Recipient, System};
use hicached_actors::host::Host;
use hicached_actors::machine::Machine;
use hicached_actors::protocol::{Address, Drained, Incarnation, Rank};
use hicached_client::client::{Client, ClientConfig};
use tokio::sync::oneshot;

use super::build::{self, StartError};
use super::clock::Clock;
use super::hosted::{Bell, Hostable, Hosted, Stop};
use super::post::{Post, PostFigures};
use crate::bus::Bus;
use crate::config::Checked;

/// A running group. Dropping it without [`LocalGroup::stop`] ends its actors at once.
#[derive(Debug)]
pub struct LocalGroup {
    control: Incarnation,
    post: Arc<Post>,
    members: Vec<Address>,
    client: Client,
    stop: oneshot::Sender<()>,
    thread: Option<JoinHandle<()>>,
}

/// Named figures of one actor.
pub type ActorFigures = (Address, Vec<(String, u64)>);

/// What every actor of the group is made with.
struct Seat {
    post: Arc<Post>,
    clock: Clock,
    control: Incarnation,
    inbox_frames: usize,
}

impl LocalGroup {
    /// Starts every actor of `group` on `bus`; resolves when each of them can be reached.
    ///
    /// # Errors
    /// A subject that cannot be served, a rank that cannot make its pool, a broker with too small messages.
    pub async fn start(group: &Checked, bus: Arc<dyn Bus>) -> Result<Self, StartError> {
        build::check_bus(group, &*bus)?;
        if group.config.cache.fingerprints {
            tracing::warn!("checksums of every stored record are on: copies are slower than without");
        }
        let name = group.config.group.name.clone();
        let control = Incarnation(uuid::Uuid::new_v4().into_bytes());
        let post = Arc::new(Post::new(bus, &name, group.config.group.cp_size));
        let seat =
            Seat { post: post.clone(), clock: Clock::start(), control, inbox_frames: group.config.bus.inbox_frames };
        let client = ClientConfig::new(name, Incarnation(uuid::Uuid::new_v4().into_bytes()));
        let client = Client::new(post.bus().clone(), client);
        let members = post.members().collect();
        let (stop, stopped) = oneshot::channel();
        let (ready, is_ready) = oneshot::channel();
        let group = group.clone();
        let thread = std::thread::Builder::new().name("hicached control".to_owned());
        let thread = thread.spawn(move || run(&group, seat, ready, stopped)).map_err(StartError::Thread)?;
        is_ready.await.unwrap_or(Err(StartError::Gone))?;
        Ok(Self { control, post, members, client, stop, thread: Some(thread) })
    }

    /// The control incarnation.
    pub fn control(&self) -> Incarnation {
        self.control
    }

    /// Named figures of every actor that answers.
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

    /// Takes no new sessions, waits up to `patience` for those that run, then stops ranks and machines. What was
    /// still running when the time was over.
    pub async fn stop(mut self, patience: Duration) -> Drained {
        let until = Instant::now() + patience;
        let left = loop {
            match self.client.drain(true).await {
                Ok(Drained { sessions: 0, ops: 0 }) => break Drained { sessions: 0, ops: 0 },
                Ok(left) if Instant::now() >= until => break left,
                Ok(_) => tokio::time::sleep(DRAIN_PAUSE).await,
                Err(error) => {
                    tracing::warn!(%error, "the group cannot be drained");
                    break Drained { sessions: 0, ops: 0 };
                }
            }
        };
        // An error means that the thread has ended already.
        // Nobody hears it any more when the thread has ended.
        self.stop.send(()).ok();
        if let Some(thread) = self.thread.take() {
            let joined = tokio::task::spawn_blocking(move || thread.join().is_ok()).await;
            tracing::debug!(ended = joined.unwrap_or(false), "the group has ended");
        }
        left
    }
}

/// The control thread: actors, and orders until the last one.
fn run(group: &Checked, seat: Seat, ready: oneshot::Sender<Result<(), StartError>>, stopped: oneshot::Receiver<()>) {
    System::new().block_on(async move {
        let ranks = Arbiter::new();
        let members = match start_members(group, &seat, &ranks).await {
            Ok(members) => members,
            Err(error) => {
                // Nobody waits any more when the future of the start was dropped.
                ready.send(Err(error)).ok();
                return;
            }
        };
        ready.send(Ok(())).ok();
        // A group that was dropped ends as well.
        stopped.await.ok();
        stop(&members).await;
        ranks.stop();
        ranks.join().ok();
    });
}

/// Starts the machines that answer before the one that asks: the index begins when all can be reached.
async fn start_members(group: &Checked, seat: &Seat, ranks: &Arbiter) -> Result<Vec<Recipient<Stop>>, StartError> {
    let mut members = Vec::new();
    let copies = build::copy_threads(group)?;
    for rank in (0..group.config.group.cp_size).map(Rank) {
        let (address, bell) = (Address::Rank(rank), Arc::new(Bell::default()));
        let host = build::rank(group, rank, copies.clone(), bell.clone(), seat.payload_bytes_max())?;
        let hosted = seat.host(host, address).await?.hearing(bell);
        members.push(Hosted::start_in_arbiter(&ranks.handle(), |_| hosted).recipient());
    }
    let control = seat.control;
    let allocator = seat.machine(build::allocator(group, control)?, Address::Allocator).await?;
    members.push(allocator.start().recipient());
    let writer = seat.machine(build::writer(group, control), Address::Writer).await?;
    members.push(writer.start().recipient());
    let loader = seat.machine(build::loader(group, control), Address::Loader).await?;
    members.push(loader.start().recipient());
    let evictor = seat.machine(build::evictor(group, control), Address::Evictor).await?;
    members.push(evictor.start().recipient());
    let index = seat.machine(build::index(group, control), Address::Index).await?;
    let index =
        index.starting_with(Box::new(|host, now, out| host.with(out, |index, effects| index.start(now, effects))));
    members.push(index.start().recipient());
    Ok(members)
}

impl Seat {
    async fn machine<M: Machine + Unpin + 'static>(
        &self,
        machine: M,
        address: Address,
    ) -> Result<Hosted<Host<M>>, StartError> {
        let host = Host::new(machine, address, self.control, self.control, self.payload_bytes_max());
        self.host(host, address).await
    }

    async fn host<H: Hostable>(&self, host: H, address: Address) -> Result<Hosted<H>, StartError> {
        let hosted = Hosted::serve(host, address, self.post.clone(), self.clock, self.inbox_frames).await;
        hosted.map_err(|source| StartError::Serve { address, source })
    }

    fn payload_bytes_max(&self) -> usize {
        self.post.bus().payload_bytes_max()
    }
}

/// Ranks first, which stand at the front: a machine never waits for a rank that was not told to end.
async fn stop(members: &[Recipient<Stop>]) {
    for member in members {
        // An actor that ended with its bus is stopped already.
        member.send(Stop).await.ok();
    }
}

/// Between two questions whether all sessions have ended.
const DRAIN_PAUSE: Duration = Duration::from_millis(20);
