//! The sending half over TCP.

use std::sync::Arc;

use hicached_actors::protocol::Refusal;

use super::frame::{PAYLOAD_BYTES_MAX, RUNS_MAX};
use super::link::Sending;
use super::tls::Tls;
use super::{NAME, TcpSettings};
use crate::wire::peers::Peers;
use crate::wire::piece::PieceBounds;
use crate::wire::pushes::Pushes;
use crate::wire::{Events, Launch, LayersReady, Name, PushKey, PushOrder, StartError};

/// The launch of one rank.
#[derive(Debug)]
pub(super) struct TcpLaunch {
    /// Watched until it is dropped; its threads end with `peers`, which tell it the last ends.
    pushes: Pushes,
    peers: Peers,
}

impl TcpLaunch {
    pub(super) fn start(settings: &TcpSettings, tls: Option<Tls>, events: Events) -> Result<Self, StartError> {
        let pushes = Pushes::start(events)?;
        let bytes = settings.frame_bytes.min(PAYLOAD_BYTES_MAX);
        // One part of a write is the header.
        let bounds = PieceBounds { bytes, pages: RUNS_MAX - 1 };
        let (running, of_threads) = (pushes.running().clone(), settings.clone());
        let work = Arc::new(move |peer: &_| {
            Sending { peer, running: &running, settings: &of_threads, tls: tls.as_ref() }.work();
        });
        let peers = Peers::new(NAME, settings.peers_max, settings.streams, bounds, work);
        Ok(Self { pushes, peers })
    }
}

impl Launch for TcpLaunch {
    fn push(&self, order: PushOrder) -> Result<(), Refusal> {
        self.pushes.push(order, |endpoint| self.peers.lane(endpoint))
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
