//! The peers of a launch: a lane for each, and the threads that send what stands in it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use hicached_actors::protocol::{Busy, Malformed, Refusal, WrongState};

use super::lane::Lane;
use super::piece::PieceBounds;

/// Sends what stands in the lane of a peer until it is closed.
pub(super) type Work = dyn Fn(&Peer) + Send + Sync;

/// Where pushes go, and what waits to go there.
#[derive(Debug)]
pub(super) struct Peer {
    /// The address, without the backend's name.
    pub(super) address: String,
    pub(super) lane: Arc<Lane>,
}

/// The peers. Dropping it ends their threads.
pub(super) struct Peers {
    backend: &'static str,
    peers_max: usize,
    /// Threads of each peer.
    threads: usize,
    bounds: PieceBounds,
    work: Arc<Work>,
    all: Mutex<BTreeMap<String, Threads>>,
}

impl std::fmt::Debug for Peers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Peers").field("backend", &self.backend).field("all", &self.all).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Threads {
    peer: Arc<Peer>,
    threads: Vec<JoinHandle<()>>,
}

impl Peers {
    /// No peers yet; at most `peers_max` at a time, each with `threads` threads that `work`. Endpoints are those of
    /// `backend`, pieces those of `bounds`.
    pub(super) fn new(
        backend: &'static str,
        peers_max: usize,
        threads: usize,
        bounds: PieceBounds,
        work: Arc<Work>,
    ) -> Self {
        Self { backend, peers_max, threads, bounds, work, all: Mutex::default() }
    }

    /// The lane of the peer at `endpoint`; of too many peers one that is idle goes.
    ///
    /// # Errors
    /// An endpoint of another backend, too many peers with pushes, no thread.
    pub(super) fn lane(&self, endpoint: &str) -> Result<Arc<Lane>, Refusal> {
        let Some(address) = endpoint.strip_prefix(self.backend).and_then(|rest| rest.strip_prefix(':')) else {
            return Err(Malformed::new("endpoint", endpoint, format_args!("{}:host:port", self.backend)).into());
        };
        let mut peers = self.all.lock().expect(NO_PANIC);
        if let Some(threads) = peers.get(address) {
            return Ok(threads.peer.lane.clone());
        }
        if peers.len() >= self.peers_max {
            let Some(idle) = peers.iter().find(|(_, threads)| threads.is_idle()).map(|(address, _)| address.clone())
            else {
                let (queue, bound) = ("peers of transfers".to_owned(), self.peers_max as u64);
                return Err(Busy { queue, bound, retry_ms: BUSY_RETRY_MS }.into());
            };
            peers.remove(&idle);
        }
        let threads = self.begin(address)?;
        let lane = threads.peer.lane.clone();
        peers.insert(address.to_owned(), threads);
        Ok(lane)
    }

    fn begin(&self, address: &str) -> Result<Threads, Refusal> {
        let peer = Arc::new(Peer { address: address.to_owned(), lane: Arc::new(Lane::new(self.bounds)) });
        let mut threads = Threads { peer, threads: Vec::new() };
        for _ in 0..self.threads {
            let (peer, work) = (threads.peer.clone(), self.work.clone());
            let spawned = super::spawn("wire-push", move || work(&peer));
            let thread =
                spawned.map_err(|error| WrongState { what: "transfer".to_owned(), state: error.to_string() })?;
            threads.threads.push(thread);
        }
        Ok(threads)
    }
}

impl Threads {
    /// Whether no push goes over its lane: each that does keeps it, as the peer does.
    fn is_idle(&self) -> bool {
        Arc::strong_count(&self.peer.lane) == 1
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.peer.lane.close();
        for thread in self.threads.drain(..) {
            // A panic of that thread has ended the process.
            thread.join().ok();
        }
    }
}

/// A transfer is over in less.
const BUSY_RETRY_MS: u32 = 50;
const NO_PANIC: &str = "no thread panics with the peers locked";
