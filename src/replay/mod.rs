//! Recorded traffic: its traces and what a correct cache makes of them.

pub mod demo;
pub mod folder;
#[cfg(test)]
mod lru;
pub mod options;
pub mod outcome;
pub mod pages;
pub mod prompts;
pub mod run;
pub mod trace;
pub mod workload;
