//! Measurements of single parts. Every figure the README states comes from one of these commands.

pub mod allocator;
pub mod bus;
pub mod index;
pub mod recovery;
