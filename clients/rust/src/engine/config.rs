//! How a synthetic engine is built, and what it is given to do.

use std::path::PathBuf;
use std::time::Duration;

use hicached_actors::calls::draw;
use hicached_actors::protocol::{HandoverWish, Manifest, OpId};

use crate::client::Away;
use crate::spans::Spans;
use crate::tokens::{PagePlan, Paging};

/// One engine of `manifest.cp_size` ranks. See [`EngineConfig::new`] for the defaults.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// The group it joins.
    pub group: String,
    /// What it stores. With pages of zero bytes there is nothing to write or verify, and all else stays the same.
    pub manifest: Manifest,
    /// Physical pages of each rank's pool, the padding page 0 included.
    pub pages: u32,
    /// Folder of the pool files, on shared memory; they are removed when the engine is dropped.
    pub folder: PathBuf,
    /// Most tokens of one prefill chunk.
    pub chunk_tokens: u32,
    /// Requests in flight.
    pub sessions_max: usize,
    /// Most sessions of one forward.
    pub step_sessions_max: usize,
    /// Tokens one forward decodes for a session.
    pub decode_stride_tokens: u32,
    /// Requests of a thousand that are aborted at a random point.
    pub abort_permille: u32,
    /// Requests of a thousand that are closed before their end.
    pub close_early_permille: u32,
    /// Requests of a thousand whose draft never runs.
    pub draftless_permille: u32,
    /// What is compared with the bytes it must be.
    pub verify: Verify,
    /// Where all chance grows from.
    pub seed: u64,
    /// How long one request to the daemon is repeated.
    pub deadline: Duration,
    /// How long a request waits for room before it fails.
    pub room_patience: Duration,
    /// How long a running request waits for more pages before it is aborted and begun again: requests that hold
    /// pages while they wait for each other's would wait for ever.
    pub preempt_after: Duration,
    /// How long the layers of a load are waited for before the engine gives it up.
    pub load_deadline: Duration,
    /// How long a side of a handover waits for the other one: longer than a daemon does, whose answer says more.
    pub handover_deadline: Duration,
    /// What happens with the daemon away.
    pub away: Away,
    /// How long it may be away before that happens.
    pub away_after: Duration,
    /// Where spans of its requests go: each request is a trace of its own.
    pub spans: Spans,
}

impl EngineConfig {
    /// Whole prompts in one chunk, one request at a time, no chance, verified hits, 30 s of patience.
    pub fn new(group: impl Into<String>, manifest: Manifest, pages: u32, folder: impl Into<PathBuf>) -> Self {
        Self {
            group: group.into(),
            manifest,
            pages,
            folder: folder.into(),
            chunk_tokens: u32::MAX,
            sessions_max: 1,
            step_sessions_max: 64,
            decode_stride_tokens: 16,
            abort_permille: 0,
            close_early_permille: 0,
            draftless_permille: 0,
            verify: Verify::Hits,
            seed: 0,
            deadline: Duration::from_secs(30),
            room_patience: Duration::from_secs(30),
            preempt_after: Duration::from_secs(1),
            load_deadline: Duration::from_secs(30),
            handover_deadline: Duration::from_secs(330),
            away: Away::Fail,
            away_after: Duration::from_secs(1),
            spans: None,
        }
    }

    /// How tokens become pages.
    pub fn paging(&self) -> Paging {
        let Manifest { page_tokens, draft_lookahead_tokens, .. } = self.manifest;
        Paging { page_tokens, lookahead_tokens: draft_lookahead_tokens }
    }
}

/// What is compared word by word with what it must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verify {
    /// Nothing.
    Off,
    /// Every page that was served: L1 hits before their use, loaded pages layer by layer as they arrive.
    Hits,
    /// And every full page of a session once more before its `close`: nobody may have written to it.
    Everything,
}

/// One request to serve.
#[derive(Clone, Debug)]
pub struct Prompt {
    /// The tenant.
    pub tenant: String,
    /// Its pages.
    pub plan: PagePlan,
    /// Tokens to decode after the prompt.
    pub output_tokens: u32,
    /// What those tokens are: prompts of equal seed and plan go on alike.
    pub output_seed: u64,
    /// Eviction priority of its pages.
    pub priority: u8,
    /// Compute it whole, whatever is cached.
    pub no_match: bool,
    /// The side of a handover that it is on, when two engines serve the request.
    pub handover: Option<Side>,
}

/// A side of the handover that moves a request from one engine to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Side {
    /// Prefill: computes the prompt and no output; the pages go to another group.
    Send {
        /// The transfer, named by a router.
        transfer: OpId,
        /// Which try of it, from 1.
        attempt: u32,
        /// The group that receives.
        to: String,
    },
    /// Decode: computes nothing of the prompt, waits for its pages and goes on behind them.
    Receive {
        /// The transfer, named by a router.
        transfer: OpId,
        /// Which try of it, from 1.
        attempt: u32,
    },
}

impl Side {
    /// What `open` says of it.
    pub(super) fn wish(&self) -> HandoverWish {
        match self {
            Self::Send { transfer, attempt, to } => {
                HandoverWish { transfer: *transfer, attempt: *attempt, to: to.clone() }
            }
            Self::Receive { transfer, attempt } => {
                HandoverWish { transfer: *transfer, attempt: *attempt, to: String::new() }
            }
        }
    }
}

impl Prompt {
    /// A prompt without output.
    pub fn new(tenant: impl Into<String>, plan: PagePlan) -> Self {
        let (tenant, handover) = (tenant.into(), None);
        Self { tenant, plan, output_tokens: 0, output_seed: 0, priority: 0, no_match: false, handover }
    }

    /// What is decoded at place `index` of the output: a later turn of the conversation has it in its prompt.
    pub fn output_token(&self, index: u32) -> u32 {
        let mut state = self.output_seed.rotate_left(32) ^ u64::from(index);
        draw(&mut state) as u32
    }

    /// The token at `place` of the prompt and its output together.
    pub fn token(&self, place: u32) -> u32 {
        match place.checked_sub(self.plan.tokens) {
            Some(index) => self.output_token(index),
            None => self.plan.token(place),
        }
    }

    /// What a prefill engine gives a decode engine besides pages: the first token of the output, and the seed of the
    /// others.
    pub fn blob(&self) -> Vec<u8> {
        let first = self.output_token(0).to_le_bytes();
        [&first[..], &self.output_seed.to_le_bytes()].concat()
    }

    /// Tokens that its engine decodes.
    pub(super) fn decodes(&self) -> u32 {
        match self.handover {
            Some(Side::Send { .. }) => 0,
            Some(Side::Receive { .. }) | None => self.output_tokens,
        }
    }
}
