//! The hicached daemon as a library: the shell around the pure machines.

pub mod bench;
pub mod bus;
pub mod cli;
pub mod config;
pub mod crash;
pub mod fleet;
pub mod rank;
pub mod replay;
pub mod shell;
pub mod telemetry;
mod threads;
pub mod wire;
