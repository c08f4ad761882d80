//! Recorded traffic: its traces and what a correct cache makes of them.

pub mod demo;
pub mod figures;
pub mod folder;
pub mod lines;
pub mod load;
#[cfg(test)]
mod lru;
pub mod numbered;
pub mod options;
pub mod outcome;
pub mod pages;
pub mod prompts;
pub mod run;
pub mod sending;
pub mod side;
pub mod signals;
pub mod trace;
pub mod workload;
