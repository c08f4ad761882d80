//! What every part of the engine shares: the clients of its ranks, their memory, and the report.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use hicached_actors::protocol::{Abort, Incarnation, LoadTicket, OpId, PageId, Registered};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep};

use super::content::Rows;
use super::given_up::GivenUp;
use super::pools::{Buffers, Components, Pools};
use super::words::{Arrival, GroupWords};
use super::{EngineConfig, EngineError, Report, WrongPiece};
use crate::bus::Bus;
use crate::client::{Client, ClientConfig, ClientCounts, ClientError};
use crate::shm::Track;

/// The parts of one engine.
pub(super) struct Core {
    pub(super) config: EngineConfig,
    /// One per rank; the first opens sessions and tells steps.
    pub(super) clients: Vec<Client>,
    pub(super) pools: Pools,
    words: RwLock<GroupWords>,
    last_step: AtomicU64,
    given_up: GivenUp,
    report: Mutex<Report>,
}

/// What a join answered.
pub(super) struct Joined {
    pub(super) next_step: u64,
    pub(super) lease: Duration,
}

/// A page of a request: where it stands, and what it holds.
#[derive(Clone, Debug)]
pub(super) struct Placed {
    pub(super) position: u32,
    pub(super) page: PageId,
    pub(super) rows: Rows,
    /// Components that it holds.
    pub(super) components: Components,
}

/// One session of a request. Its pages are its own for as long as its control group lives: the next one gives them to
/// others once every rank has registered again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Life {
    pub(super) request: usize,
    pub(super) control: Incarnation,
}

/// A load that a request waits for.
#[derive(Clone, Debug)]
pub(super) struct Load {
    pub(super) ticket: LoadTicket,
    /// The pages that arrive; none when nothing is verified.
    pub(super) pages: Vec<Placed>,
}

impl Core {
    /// Makes pools and clients for the ranks that live as `engines`.
    pub(super) fn new(
        bus: &Arc<dyn Bus>,
        config: EngineConfig,
        engines: &[Incarnation],
        given_up: GivenUp,
    ) -> Result<Self, EngineError> {
        let client = |engine: &Incarnation| {
            let config = ClientConfig {
                deadline: config.deadline,
                away: config.away,
                away_after: config.away_after,
                seed: config.seed,
                spans: config.spans.clone(),
                ..ClientConfig::new(config.group.clone(), *engine)
            };
            Client::new(bus.clone(), config)
        };
        let clients = engines.iter().map(client).collect();
        let pools = Pools::create(&config, engines)?;
        Ok(Self {
            config,
            clients,
            pools,
            words: RwLock::default(),
            last_step: AtomicU64::new(0),
            given_up,
            report: Mutex::default(),
        })
    }

    /// Registers every rank with the control group that lives, and maps the words it answers with.
    pub(super) async fn join(&self) -> Result<Joined, EngineError> {
        let mut ranks: Vec<Registered> = Vec::new();
        let until = Instant::now() + self.config.room_patience;
        for (rank, client) in (0..).zip(&self.clients) {
            let register = self.pools.register(&self.config, rank, client.engine(), self.last_step());
            let registered = loop {
                match client.register(register.clone()).await {
                    Ok(registered) => break registered,
                    Err(error) => client.wait_for_room(error, until).await?,
                }
            };
            ranks.push(registered);
        }
        let words = GroupWords::map(&ranks)?;
        *self.words.write().unwrap_or_else(PoisonError::into_inner) = words;
        let next_step = ranks.iter().map(|rank| rank.next_step).max().unwrap_or(1).max(1);
        let lease_ms = ranks.iter().map(|rank| rank.lease_ms).min().unwrap_or(LEASE_MS_MIN).max(LEASE_MS_MIN);
        Ok(Joined { next_step, lease: Duration::from_millis(lease_ms) })
    }

    /// The client of the first rank.
    pub(super) fn lead(&self) -> &Client {
        &self.clients[0]
    }

    /// The words as they are mapped by the last join.
    pub(super) fn words(&self) -> GroupWords {
        self.words.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The last step launched.
    pub(super) fn last_step(&self) -> u64 {
        self.last_step.load(Ordering::Relaxed)
    }

    /// Notes that `step` is launched.
    pub(super) fn launched(&self, step: u64) {
        self.last_step.fetch_max(step, Ordering::Relaxed);
        self.report().steps += 1;
    }

    /// Gives up a session that the daemon may know: it is told until it answers, by the client of the session.
    pub(super) fn give_up(&self, client: &Client, session: OpId, tenant: &str, last_step: u64) {
        self.given_up.push(client.clone(), Abort { session, tenant: tenant.to_owned(), last_step });
    }

    /// The report of the run. Held for a few writes, never across a wait.
    pub(super) fn report(&self) -> MutexGuard<'_, Report> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts of all clients together.
    pub(super) fn counts(&self) -> ClientCounts {
        let mut all = ClientCounts::default();
        for counts in self.clients.iter().map(Client::counts) {
            all.repeats += counts.repeats;
            all.bypassed += counts.bypassed;
            for (code, count) in counts.refusals {
                *all.refusals.entry(code).or_insert(0) += count;
            }
        }
        all
    }

    /// Compares one layer of `pages` of a session with what it must be.
    pub(super) fn verify(&self, life: Life, pages: &[Placed], at: (Track, u32), buffers: &mut Buffers) {
        let mut bytes = 0;
        for placed in pages {
            bytes += self.pools.verify(placed.page, (&placed.rows, placed.components), at, buffers, |wrong| {
                if self.lead().control() != life.control {
                    // The session is over, and its pages may be somebody else's by now.
                    return;
                }
                let request = life.request;
                let Placed { position, page, .. } = *placed;
                let mismatch = WrongPiece {
                    request,
                    position,
                    page: page.0,
                    component: wrong.component,
                    layer: wrong.layer,
                    offset_bytes: wrong.offset_bytes,
                };
                self.report().mismatch(mismatch, wrong.words);
            });
        }
        if bytes > 0 {
            self.report().bytes_verified += bytes;
        }
    }

    /// Every layer of `pages`, giving way to others between layers.
    pub(super) async fn verify_all(&self, life: Life, pages: &[Placed]) {
        if pages.is_empty() {
            return;
        }
        let mut buffers = Buffers::default();
        for layer in 0..self.pools.layers_of_load() {
            self.verify(life, pages, self.pools.layer_of_load(layer), &mut buffers);
            yield_now().await;
        }
    }

    /// Waits until the first `layers_done` layers of `load` are there on every rank; `false` when it failed. At
    /// `until`, or when `hopeless` is set, the load is given up here, so that no rank's stream waits on.
    pub(super) async fn arrives(
        &self,
        words: &GroupWords,
        load: &LoadTicket,
        layers_done: u32,
        until: Instant,
        hopeless: &AtomicBool,
    ) -> bool {
        for polls in 0u32.. {
            match words.arrival(load, layers_done) {
                Arrival::There => return true,
                Arrival::Failed => return false,
                Arrival::Waiting if Instant::now() >= until || hopeless.load(Ordering::Relaxed) => {
                    words.fail(load);
                    return false;
                }
                Arrival::Waiting if polls < POLLS_BEFORE_SLEEP => yield_now().await,
                Arrival::Waiting => sleep(POLL_PAUSE).await,
            }
        }
        unreachable!("a load is given up at its deadline")
    }

    /// Sets `hopeless` when the control group is replaced: nobody runs its loads any more, and a rank that was not
    /// told of one fails none.
    pub(super) async fn watch_control(&self, hopeless: &AtomicBool) -> Infallible {
        loop {
            sleep(CONTROL_PAUSE).await;
            if let Err(ClientError::NewIncarnation { .. }) = self.lead().heartbeat(self.last_step()).await {
                hopeless.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Waits for a whole load that no forward waits for, comparing each layer as it arrives. The nanoseconds it took,
    /// or `None` when it failed.
    pub(super) async fn load(&self, life: Life, load: &Load) -> Option<u64> {
        let (words, started) = (self.words(), Instant::now());
        let until = started + self.config.load_deadline;
        let hopeless = AtomicBool::new(false);
        let arrive = async {
            let mut buffers = Buffers::default();
            for layer in 0..self.pools.layers_of_load() {
                if !self.arrives(&words, &load.ticket, layer + 1, until, &hopeless).await {
                    return false;
                }
                self.verify(life, &load.pages, self.pools.layer_of_load(layer), &mut buffers);
            }
            true
        };
        let has_come = tokio::select! {
            has_come = arrive => has_come,
            never = self.watch_control(&hopeless) => match never {},
        };
        if !has_come {
            return None;
        }
        let load_ns = started.elapsed().as_nanos() as u64;
        self.report().latencies.load.record(load_ns);
        Some(load_ns)
    }
}

/// Between two questions whether the control group that began a load still lives.
const CONTROL_PAUSE: Duration = Duration::from_millis(500);
/// Polls of a word before the engine sleeps: a load of zero bytes ends within them.
const POLLS_BEFORE_SLEEP: u32 = 1_000;
/// The finest pause of the timer.
const POLL_PAUSE: Duration = Duration::from_millis(1);
/// A lease shorter than this would be a busy loop of heartbeats.
const LEASE_MS_MIN: u64 = 100;
