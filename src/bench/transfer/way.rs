//! How bytes get from the sources to the target: plainly, or by a backend as the ranks use it.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use hicached_actors::protocol::{OpId, Rank};

use super::clock::{Clock, Spent};
use super::scene::{Ends, Scene, Share};
use super::{LONG, TransferError};
use crate::wire::{
    Backend, Event, Events, Grant, GrantSpec, Landing, Launch, LayersReady, Name, PushEnd, PushKey, PushOrder,
};

/// One way of moving the bytes of a scene.
pub(super) trait Way {
    fn name(&self) -> &'static str;

    /// Moves all bytes once.
    ///
    /// # Errors
    /// They did not all arrive.
    fn transfer(&mut self, ends: Ends) -> Result<Moved, TransferError>;
}

/// What one transfer took.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moved {
    /// From the moment that every rank may send until the last byte is acknowledged.
    pub(super) spent: Spent,
    /// With what stands around it: the grant, the report, its end.
    pub(super) whole: Duration,
    /// Frames or pieces.
    pub(super) descriptors: u64,
    /// Runs that are contiguous at both ends, over all buffers.
    pub(super) runs: u64,
}

/// A landing, and a launch for each rank.
#[derive(Debug)]
pub(super) struct Plane {
    name: &'static str,
    scene: Arc<Scene>,
    /// Ended before the landing, as they use it.
    launches: Vec<Box<dyn Launch>>,
    landing: Box<dyn Landing>,
    pushed: Receiver<Event>,
    revoked: Receiver<Event>,
    transfers: u64,
}

impl Plane {
    /// Both halves of `backend`, called `name` in the report.
    ///
    /// # Errors
    /// What the operating system refused.
    pub(super) fn new(name: &'static str, backend: &dyn Backend, scene: &Arc<Scene>) -> Result<Self, TransferError> {
        let bell = Arc::new(|| ());
        let (to_receiver, revoked) = channel();
        let landing = backend.landing(Events::new(to_receiver, bell.clone()))?;
        let (to_senders, pushed) = channel();
        let launch = |_| backend.launch(Events::new(to_senders.clone(), bell.clone()));
        let launches = (0..scene.shape.ranks).map(launch).collect::<Result<_, _>>()?;
        Ok(Self { name, scene: scene.clone(), launches, landing, pushed, revoked, transfers: 0 })
    }

    fn order(&self, name: Name, grant: &Grant, share: &Share) -> PushOrder {
        PushOrder {
            key: PushKey { name, part: 0 },
            rank: Rank(share.rank),
            source: self.scene.sources[usize::from(share.rank)].clone(),
            positions: share.positions.clone(),
            pages: share.pages.clone(),
            slots: share.slots.clone(),
            endpoint: grant.endpoint.clone(),
            secret: grant.secret,
            deadline: LONG,
            ready: LayersReady::ALL,
        }
    }

    /// The grant's pages, in the order of positions.
    fn spec(&self, name: Name, shares: &[Share]) -> GrantSpec {
        let mut places: Vec<(u32, u32)> =
            shares.iter().flat_map(|share| share.positions.iter().copied().zip(share.slots.iter().copied())).collect();
        places.sort_unstable();
        let (positions, pages) = places.into_iter().unzip();
        GrantSpec { name, positions, pages, pool: self.scene.target.clone() }
    }
}

impl Way for Plane {
    fn name(&self) -> &'static str {
        self.name
    }

    fn transfer(&mut self, ends: Ends) -> Result<Moved, TransferError> {
        self.transfers += 1;
        let mut transfer = [0; 16];
        transfer[..8].copy_from_slice(&self.transfers.to_le_bytes());
        let name = Name { transfer: OpId(transfer), attempt: 1 };
        let shares = self.scene.shares(ends);
        let spec = self.spec(name, shares);
        let began = Instant::now();
        let grant = self.landing.accept(spec)?;
        let orders: Vec<PushOrder> = shares.iter().map(|share| self.order(name, &grant, share)).collect();
        let clock = Clock::start();
        for order in orders {
            self.launches[usize::from(order.rank.0)].push(order)?;
        }
        let (mut descriptors, mut runs) = (0, 0);
        for _ in shares {
            match self.pushed.recv_timeout(LONG).map_err(|_| TransferError::Late)? {
                Event::Pushed(_, PushEnd::Complete, figures) => {
                    descriptors += figures.descriptors;
                    runs += figures.runs;
                }
                other => return Err(TransferError::Ended { way: self.name, event: Box::new(other) }),
            }
        }
        let spent = clock.stop();
        let missing = self.landing.report(name).and_then(|report| report.missing);
        self.landing.revoke(name, true);
        match self.revoked.recv_timeout(LONG).map_err(|_| TransferError::Late)? {
            Event::Revoked(of) if of == name => {}
            other => return Err(TransferError::Ended { way: self.name, event: Box::new(other) }),
        }
        let whole = began.elapsed();
        match missing {
            None => Ok(Moved { spent, whole, descriptors, runs }),
            Some(missing) => Err(TransferError::Missing { way: self.name, missing }),
        }
    }
}
