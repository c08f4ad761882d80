//! The sending half over TCP: a lane and its threads for each peer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use hicached_actors::protocol::{Busy, Malformed, Refusal, WrongState};

use super::frame::{PAYLOAD_BYTES_MAX, RUNS_MAX};
use super::link::Peer;
use super::tls::Tls;
use super::{NAME, TcpSettings};
use crate::wire::lane::Lane;
use crate::wire::piece::PieceBounds;
use crate::wire::pushes::Pushes;
use crate::wire::{Events, Launch, LayersReady, Name, PushKey, PushOrder, StartError};

/// The launch of one rank.
#[derive(Debug)]
pub(super) struct TcpLaunch {
    settings: TcpSettings,
    tls: Option<Tls>,
    pushes: Pushes,
    peers: Mutex<BTreeMap<String, Threads>>,
}

#[derive(Debug)]
struct Threads {
    lane: Arc<Lane>,
    peer: Arc<Peer>,
    threads: Vec<JoinHandle<()>>,
}

impl TcpLaunch {
    pub(super) fn start(settings: &TcpSettings, tls: Option<Tls>, events: Events) -> Result<Self, StartError> {
        Ok(Self { settings: settings.clone(), tls, pushes: Pushes::start(events)?, peers: Mutex::default() })
    }

    fn lane(&self, endpoint: &str) -> Result<Arc<Lane>, Refusal> {
        let Some(address) = endpoint.strip_prefix(NAME).and_then(|rest| rest.strip_prefix(':')) else {
            return Err(Malformed::new("endpoint", endpoint, format_args!("{NAME}:host:port")).into());
        };
        let mut peers = self.peers.lock().expect(NO_PANIC);
        if let Some(threads) = peers.get(address) {
            return Ok(threads.lane.clone());
        }
        if peers.len() >= self.settings.peers_max {
            let Some(idle) = peers.iter().find(|(_, threads)| threads.is_idle()).map(|(address, _)| address.clone())
            else {
                let (queue, bound) = ("peers of transfers".to_owned(), self.settings.peers_max as u64);
                return Err(Busy { queue, bound, retry_ms: BUSY_RETRY_MS }.into());
            };
            peers.remove(&idle);
        }
        let threads = self.threads(address)?;
        let lane = threads.lane.clone();
        peers.insert(address.to_owned(), threads);
        Ok(lane)
    }

    fn threads(&self, address: &str) -> Result<Threads, Refusal> {
        let bytes = self.settings.frame_bytes.min(PAYLOAD_BYTES_MAX);
        // One part of a write is the header.
        let lane = Arc::new(Lane::new(PieceBounds { bytes, pages: RUNS_MAX - 1 }));
        let (settings, running) = (self.settings.clone(), self.pushes.running().clone());
        let tls = self.tls.clone();
        let peer = Arc::new(Peer { address: address.to_owned(), lane: lane.clone(), running, settings, tls });
        let mut threads = Threads { lane, peer, threads: Vec::new() };
        for _ in 0..self.settings.streams {
            let peer = threads.peer.clone();
            let spawned = crate::wire::spawn("wire-push", move || peer.work());
            let thread =
                spawned.map_err(|error| WrongState { what: "transfer".to_owned(), state: error.to_string() })?;
            threads.threads.push(thread);
        }
        Ok(threads)
    }
}

impl Launch for TcpLaunch {
    fn push(&self, order: PushOrder) -> Result<(), Refusal> {
        self.pushes.push(order, |endpoint| self.lane(endpoint))
    }

    fn ready(&self, key: PushKey, layers: LayersReady) {
        self.pushes.ready(key, layers);
    }

    fn stop(&self, name: Name) {
        self.pushes.stop(name);
    }

    fn stop_all(&self) {
        self.pushes.stop_all();
    }

    fn is_still(&self) -> bool {
        self.pushes.is_still()
    }
}

impl Threads {
    /// Whether no push goes over its lane: each that does keeps it, as the peer and this do.
    fn is_idle(&self) -> bool {
        Arc::strong_count(&self.lane) == 2
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.lane.close();
        for thread in self.threads.drain(..) {
            // A panic of that thread has ended the process.
            thread.join().ok();
        }
    }
}

/// A transfer is over in less.
const BUSY_RETRY_MS: u32 = 50;
const NO_PANIC: &str = "no thread panics with the peers locked";
