//! One typed configuration, read once and whole: every key is checked before anything starts.
//!
//! [`load`] merges the layers, [`Config::checked`] looks for contradictions and unsupported combinations and
//! gives a [`Checked`], the only form the rest of the daemon takes. Faults are collected, never reported one by
//! one, and each says what to change.

mod actors;
mod check;
mod load;
mod plan;
#[cfg(test)]
mod tests;
mod transfer;

use std::fmt;

use serde::Deserialize;

pub use crate::bus::nats::masked;
pub use actors::{Actors, CONTROL};
pub use check::{Checked, FreeRoom, message_bytes_for};
pub use load::{DEFAULTS, Layers, load};
pub use plan::{Plan, TierPlan};
pub use transfer::{Transfer, pair_faults};

/// Everything that can be configured.
#[derive(Clone, Debug, Default, Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The group of ranks.
    pub group: Group,
    /// What this process hosts of it.
    pub actors: Actors,
    /// What a page holds.
    pub model: Model,
    /// Device memory.
    pub l1: L1,
    /// Host memory.
    pub l2: L2,
    /// What is copied and when.
    pub cache: Cache,
    /// A tier below host memory.
    pub storage: Backend,
    /// Handovers to other groups, and from them.
    pub transfer: Transfer,
    /// The message bus.
    pub bus: BusConfig,
    /// Every rank.
    pub rank: RankConfig,
    /// How long silence is borne.
    pub leases: Leases,
    /// What is exported of the way requests take.
    pub trace: TraceConfig,
}

/// The group of ranks.
#[derive(Clone, Debug, Default, Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Group {
    /// One NATS token.
    pub name: String,
    /// Ranks.
    pub cp_size: u8,
    /// One copy per group.
    pub shared_kv: bool,
    /// How chunks are split over ranks.
    pub split: String,
    /// Tokens of a page.
    pub page_tokens: u32,
    /// Tokens after a page that its key covers.
    pub draft_lookahead_tokens: u32,
    /// Tokens a match leaves to compute.
    pub compute_tokens_min: u32,
    /// Tokens of the largest prefill chunk.
    pub chunk_tokens_max: u32,
    /// Pages of the longest request.
    pub request_pages_max: u32,
}

/// What a page holds.
#[derive(Clone, Debug, Default, Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Model {
    /// In record order.
    pub components: Vec<ComponentConfig>,
}

/// One component of a page.
#[derive(Clone, Debug, Default, Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct ComponentConfig {
    /// `target.kv`, `target.index`, `draft.kv` or `draft.index`.
    pub name: String,
    /// Element type, compared as text.
    pub dtype: String,
    /// Layers, when `page_bytes` has one entry for all of them.
    pub layers: Option<u32>,
    /// Bytes of one page, per layer or one for all.
    pub page_bytes: Vec<u32>,
}

/// Device memory.
#[derive(Clone, Debug, Default, Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct L1 {
    /// Usable pages of the group.
    pub pages: u32,
    /// `off` or `LOW,HIGH` in percent.
    pub free_room: String,
}

/// Host memory.
#[derive(Clone, Debug, Default, Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct L2 {
    /// Pages of the group.
    pub pages: u32,
    /// `off` or `LOW,HIGH` in percent.
    pub free_room: String,
    /// Host pages of a tile.
    pub tile_pages: u32,
    /// How much a backup wants one run.
    pub contiguity: Contiguity,
}

/// How much a backup wants one run of host pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Contiguity {
    /// Any pages.
    Off,
    /// One run if there is one.
    #[default]
    Prefer,
    /// One run or nothing.
    Require,
}

/// When pages are copied to the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WritePolicy {
    /// In the step that computes them.
    #[default]
    WriteThrough,
    /// From the second open that covers them.
    WriteThroughSelective,
    /// When they are evicted from the device.
    WriteBack,
}

/// What is copied and when.
#[derive(Clone, Debug, Default, Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Cache {
    /// When pages are copied to the host.
    pub write_policy: WritePolicy,
    /// Store a checksum with every record, and compare it before the record is loaded.
    pub fingerprints: bool,
}

/// A part that this build does not have; only `none` passes the check.
#[derive(Clone, Debug, Default, Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Backend {
    /// Its name.
    pub backend: String,
}

/// The message bus.
#[derive(Clone, Debug, Default, Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct BusConfig {
    /// Which one.
    pub kind: BusKind,
    /// Where NATS is.
    pub url: String,
    /// Messages waiting for one actor, per class.
    pub inbox_frames: usize,
    /// Largest message of the memory bus.
    pub payload_bytes_max: usize,
}

/// Which bus.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, serde::Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum BusKind {
    /// Inside one process.
    #[default]
    Memory,
    /// Over a NATS server.
    Nats,
}

/// Every rank.
#[derive(Clone, Debug, Default, Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct RankConfig {
    /// Where pool files are made.
    pub pool_folder: std::path::PathBuf,
    /// What copies pages.
    pub copy_engine: String,
    /// Threads that copy.
    pub copy_threads: u32,
}

/// How long silence is borne.
#[derive(Clone, Debug, Default, Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Leases {
    /// Of a session.
    pub session_ms: u64,
    /// Of the control group over a rank.
    pub rank_ms: u64,
    /// Of a process that hosts machines of the control group.
    pub control_ms: u64,
    /// Of the sender of another group.
    pub peer_ms: u64,
}

/// What is exported of the way requests take.
#[derive(Clone, Debug, Default, Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct TraceConfig {
    /// The collector; none when empty.
    pub endpoint: String,
    /// Requests of a thousand that are exported whatever happens.
    pub ratio_permille: u32,
    /// From here on a span is slow.
    pub slow_ms: u64,
    /// A span for every layer of a copy.
    pub layers: bool,
}

/// Every fault of a configuration, in the order of its sections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigRefused {
    /// One sentence each; never empty.
    pub faults: Vec<String>,
}

impl fmt::Display for ConfigRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, fault) in self.faults.iter().enumerate() {
            let newline = if at == 0 { "" } else { "\n" };
            write!(f, "{newline}{fault}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigRefused {}

impl BusKind {
    /// `memory` or `nats`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Nats => "nats",
        }
    }
}
