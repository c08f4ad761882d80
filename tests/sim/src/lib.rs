//! Deterministic world in which the machines of hicached are attacked.
//!
//! Machines, fake ranks and an engine model stand around one event queue. Every message crosses a bus as
//! bytes and may be lost, repeated, delayed or overtaken; processes die. Bytes are real: any wrong page is
//! a wrong byte. All chance grows from one seed, and the same seed gives the same trace.
//!
//! A world has one group, or two of them, one of which hands its prompts over to the other across a wire that breaks.

mod chance;
mod checks;
mod control;
mod engine;
mod faults;
mod group;
mod layout;
mod memory;
mod mix;
mod net;
mod pair;
mod rank;
mod run;
mod script;
mod spans;
#[cfg(test)]
mod tests;
mod trace;
mod wire;
mod world;

pub use chance::Chance;
pub use checks::Violation;
pub use control::{Actor, Control};
pub use engine::{Engine, Phase, Session, Spec, traffic};
pub use group::machines;
pub use layout::{Layout, Part};
pub use memory::{Memory, Pool, Row};
pub use mix::{Mix, Sizes, Write};
pub use net::{Hold, Net, Stats, TransferStats};
pub use pair::{Pair, PairScript};
pub use rank::RankProcess;
pub use run::{Options, Report, heard, run};
pub use script::{Prompt, Script};
pub use world::{Birth, Heard, Sim};
