//! Puts actors on the bus and takes them off: machines on the thread that calls, ranks on one of their own.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, Arbiter, Recipient};
use futures_util::future::join_all;
use hicached_actors::host::Host;
use hicached_actors::machine::Machine;
use hicached_actors::protocol::{Address, Incarnation};
use tokio::sync::{Notify, oneshot};

use super::build::{self, StartError};
use super::clock::Clock;
use super::hosted::{Bell, Hostable, Hosted, Stop};
use super::post::Post;
use crate::config::Checked;

/// What every actor of this process is made with.
pub(super) struct Seat {
    pub(super) group: Checked,
    pub(super) post: Arc<Post>,
    pub(super) clock: Clock,
    /// Told when the index finds that its control incarnation is over.
    pub(super) over: Arc<Notify>,
}

impl Seat {
    /// The machines of this process.
    pub(super) fn machines(&self) -> BTreeSet<Address> {
        self.group.actors.iter().copied().filter(|actor| !matches!(actor, Address::Rank(_))).collect()
    }

    async fn machine<M: Machine + Unpin + 'static>(
        &self,
        machine: M,
        address: Address,
        control: Incarnation,
    ) -> Result<Hosted<Host<M>>, StartError> {
        self.host(Host::new(machine, address, control, control, self.payload_bytes_max()), address).await
    }

    async fn host<H: Hostable>(&self, host: H, address: Address) -> Result<Hosted<H>, StartError> {
        let inbox_frames = self.group.config.bus.inbox_frames;
        let hosted = Hosted::serve(host, address, self.post.clone(), self.clock, inbox_frames).await;
        hosted.map_err(|source| StartError::Serve { address, source })
    }

    fn payload_bytes_max(&self) -> usize {
        self.post.bus().payload_bytes_max()
    }
}

/// The ranks of this process, on a thread of their own.
pub(super) struct Ranks {
    thread: Arbiter,
    actors: Vec<Recipient<Stop>>,
}

impl Ranks {
    /// Starts them; each can be reached from then on.
    ///
    /// # Errors
    /// A rank cannot make or lock its pool, or cannot be reached.
    pub(super) async fn start(seat: &Seat) -> Result<Self, StartError> {
        let mut ranks = Self { thread: Arbiter::new(), actors: Vec::new() };
        let copies = build::copy_threads(&seat.group)?;
        for rank in seat.group.ranks() {
            let (address, bell) = (Address::Rank(rank), Arc::new(Bell::default()));
            let host = build::rank(&seat.group, rank, copies.clone(), bell.clone(), seat.payload_bytes_max())?;
            let hosted = seat.host(host, address).await?.hearing(bell);
            ranks.actors.push(Hosted::start_in_arbiter(&ranks.thread.handle(), |_| hosted).recipient());
        }
        Ok(ranks)
    }

    /// Stops their copies, waits until none runs, and ends them.
    pub(super) async fn stop(self) {
        stop(self.actors).await;
        self.thread.stop();
        // The thread has nothing left to do, and nothing to say when it ends.
        self.thread.join().ok();
    }
}

/// The machines that this process hosts under one control incarnation.
#[derive(Default)]
pub(super) struct Machines {
    actors: Vec<Recipient<Stop>>,
}

impl Machines {
    /// Hosts all of `machines` but the index under `control`.
    ///
    /// # Errors
    /// One of them cannot be reached; those before it are hosted.
    pub(super) async fn host(
        &mut self,
        seat: &Seat,
        machines: &BTreeSet<Address>,
        control: Incarnation,
    ) -> Result<(), StartError> {
        let group = &seat.group;
        for address in machines {
            let actor = match address {
                Address::Allocator => {
                    seat.machine(build::allocator(group, control)?, *address, control).await?.start().recipient()
                }
                Address::Writer => {
                    seat.machine(build::writer(group, control), *address, control).await?.start().recipient()
                }
                Address::Loader => {
                    seat.machine(build::loader(group, control), *address, control).await?.start().recipient()
                }
                Address::Evictor => {
                    seat.machine(build::evictor(group, control), *address, control).await?.start().recipient()
                }
                Address::Sender => {
                    seat.machine(build::sender(group, control), *address, control).await?.start().recipient()
                }
                Address::Receiver => {
                    seat.machine(build::receiver(group, control), *address, control).await?.start().recipient()
                }
                // The index begins when the others can be reached; the rest are no machines.
                Address::Index | Address::Rank(_) | Address::Engine => continue,
            };
            self.actors.push(actor);
        }
        Ok(())
    }

    /// Hosts the index under `control`, which takes the ranks.
    ///
    /// # Errors
    /// It cannot be reached.
    pub(super) async fn host_index(&mut self, seat: &Seat, control: Incarnation) -> Result<(), StartError> {
        let index = seat.machine(build::index(&seat.group, control), Address::Index, control).await?;
        let index =
            index.starting_with(Box::new(|host, now, out| host.with(out, |index, effects| index.start(now, effects))));
        let index = index.telling(seat.over.clone());
        self.actors.push(index.start().recipient());
        Ok(())
    }

    /// Ends them.
    pub(super) async fn stop(&mut self) {
        stop(std::mem::take(&mut self.actors)).await;
    }
}

/// Tells every one to stop, and waits until they have: what they serve is nobody's then.
async fn stop(actors: Vec<Recipient<Stop>>) {
    let mut ends = Vec::with_capacity(actors.len());
    for actor in actors {
        let (ended, ends_then) = oneshot::channel();
        actor.do_send(Stop(ended));
        ends.push(ends_then);
    }
    // An end is told by dropping the other side, also by an actor that ended with its bus before.
    if tokio::time::timeout(STOP_MAX, join_all(ends)).await.is_err() {
        tracing::warn!("copies still run after {STOP_MAX:?}");
    }
}

/// A copy that was told to stop ends with the run it is in; one that hangs must not keep the process.
const STOP_MAX: Duration = Duration::from_secs(5);
