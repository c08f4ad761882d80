//! The sending half over NIXL.

use std::sync::Arc;

use hicached_actors::protocol::Refusal;

use super::link::Sending;
use super::{NAME, NixlSettings, Runtime};
use crate::wire::peers::Peers;
use crate::wire::piece::PieceBounds;
use crate::wire::pushes::Pushes;
use crate::wire::tcp::frame::RUNS_MAX;
use crate::wire::{Events, Launch, LayersReady, Name, PushKey, PushOrder, StartError};

/// The launch of one rank.
#[derive(Debug)]
pub(super) struct NixlLaunch {
    /// Watched until it is dropped; its threads end with `peers`, which tell it the last ends.
    pushes: Pushes,
    peers: Peers,
}

impl NixlLaunch {
    pub(super) fn start(settings: &NixlSettings, runtime: &Runtime, events: Events) -> Result<Self, StartError> {
        let pushes = Pushes::start(events)?;
        let bounds = PieceBounds { bytes: settings.piece_bytes, pages: RUNS_MAX };
        let (running, settings_of, runtime) = (pushes.running().clone(), settings.clone(), runtime.clone());
        let work = Arc::new(move |peer: &_| {
            Sending { peer, running: &running, settings: &settings_of, runtime: &runtime }.work();
        });
        // An agent is used by one thread.
        let peers = Peers::new(NAME, settings.peers_max, 1, bounds, work);
        Ok(Self { pushes, peers })
    }
}

impl Launch for NixlLaunch {
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
