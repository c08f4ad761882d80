//! What the engine of a run does, however it is started.

use std::time::Duration;

use hicached_client::engine::{EngineConfig, Verify};
use hicached_client::spans::Spans;

use crate::config::Checked;

/// How an engine goes about its requests.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Requests in flight.
    pub sessions: usize,
    /// Most tokens of one prefill chunk.
    pub chunk_tokens: u32,
    /// Requests of a thousand that are aborted on the way.
    pub abort_permille: u32,
    /// What it compares with the bytes it must be.
    pub verify: Verify,
    /// Where all chance of the engine grows from.
    pub seed: u64,
}

impl Load {
    /// The engine of `group` that does so and tells of it to `spans`.
    pub fn engine_config(&self, group: &Checked, spans: Spans) -> EngineConfig {
        let config = &group.config;
        let physical_pages = config.l1.pages / u32::from(config.group.cp_size) + 1;
        let folder = config.rank.pool_folder.clone();
        EngineConfig {
            chunk_tokens: self.chunk_tokens,
            sessions_max: self.sessions,
            abort_permille: self.abort_permille,
            verify: self.verify,
            seed: self.seed,
            away_after: AWAY_MAX,
            spans,
            ..EngineConfig::new(config.group.name.clone(), group.manifest.clone(), physical_pages, folder)
        }
    }
}

/// A broker that restarts is waited for, with every session kept: each request is repeated under its op, and the
/// result of a run does not depend on one. As long as a request may take in all.
const AWAY_MAX: Duration = Duration::from_secs(30);
