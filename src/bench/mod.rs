//! Measurements of single parts. Every figure the README states comes from one of these commands.

pub mod allocator;
pub mod bus;
mod error;
pub mod index;
mod processes;
pub mod recovery;
pub mod transfer;

pub use self::error::BenchError;
