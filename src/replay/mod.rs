//! Recorded traffic: its traces and what a correct cache makes of them.

#[cfg(test)]
mod lru;
pub mod pages;
pub mod trace;
