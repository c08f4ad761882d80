//! The message bus of the daemon: the contract and NATS come from the client library, the memory bus lives here.

pub mod memory;
pub mod server;

pub use hicached_client::bus::*;
