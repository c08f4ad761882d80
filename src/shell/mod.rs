//! Actix around the pure machines: takes frames from the bus, hands their bytes to a machine, sends what it
//! wants sent, and arms one timer. No decision is made here.
//!
//! Invariants: an actor is reached by its subject only, so a group of the same code may be spread over processes;
//! a panic in a machine ends the process, because the next incarnation is the restart.

mod build;
mod clock;
mod connect;
mod follow;
mod following;
mod group;
mod hosted;
mod lead;
mod leading;
mod post;
mod seat;

pub use build::{StartError, check_pools};
pub use clock::Clock;
pub use connect::{NoBroker, connect};
pub use group::{ActorFigures, LocalGroup};
pub use hosted::{Bell, Hostable, Hosted, Start};
pub use post::{Post, PostFigures};
