//! Client library of hicached for engines and routers.
//!
//! [`client`] speaks the protocol for one engine rank, [`tokens`] computes page keys, and [`engine`] is a synthetic
//! engine that needs neither a model nor a device: every byte it writes can be recomputed, so every byte it is
//! served can be checked. [`bus`] carries the messages, [`shm`] is the memory a rank and its engine share.

pub mod bus;
pub mod client;
pub mod engine;
#[cfg(test)]
mod scripted_bus;
pub mod shm;
pub mod spans;
pub mod tokens;
