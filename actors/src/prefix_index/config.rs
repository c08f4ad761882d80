//! What an index is told once.

use crate::protocol::Manifest;

/// When pages are copied to L2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WritePolicy {
    /// In the step that fills them.
    WriteThrough,
    /// When a second `open` covers them, the creating one included.
    Selective,
    /// When L1 wants their room.
    WriteBack,
}

/// The group an index serves, and its bounds.
#[derive(Clone, Debug)]
pub struct IndexConfig {
    /// The group's name; none hands over to itself.
    pub group: String,
    /// Which handovers it takes part in.
    pub handovers: HandoverRules,
    /// What is stored.
    pub manifest: Manifest,
    /// Physical L1 pages of each rank, the padding page 0 included.
    pub l1_physical_pages: u32,
    /// Host slots of each rank; 0 means no host tier.
    pub l2_slots: u32,
    /// When pages are copied to L2.
    pub write_policy: WritePolicy,
    /// Tokens a match leaves to compute.
    pub compute_tokens_min: u32,
    /// Most pages one request may have.
    pub request_pages_max: u32,
    /// Most sessions at once.
    pub sessions_max: u32,
    /// Most opens that wait for a running load.
    pub parked_opens_max: u32,
    /// Most backups that wait for room in L2.
    pub parked_backups_max: u32,
    /// How long an engine's sessions live without a heartbeat or step.
    pub lease_ms: u64,
    /// How long a rank is trusted without a sign of life.
    pub rank_lease_ms: u64,
    /// When asking again makes sense after a refusal for lack of room.
    pub retry_ms: u32,
    /// Events kept for replay.
    pub events_max: usize,
    /// Most keys of which it is remembered which recorded eviction took them; 0 remembers none.
    pub evicted_keys_max: usize,
    /// The fault that a test has planted.
    pub faults: crate::faults::Faults,
}

/// Handovers that a group takes part in; a rank without a data plane takes part in none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandoverRules {
    /// Groups that pages may go to; `None` stands for any.
    pub to: Option<Vec<String>>,
    /// Whether pages of other groups are taken.
    pub takes: bool,
}

impl IndexConfig {
    /// Defaults for a group of this shape, without a name.
    pub fn new(manifest: Manifest, l1_physical_pages: u32, l2_slots: u32) -> Self {
        Self {
            group: String::new(),
            handovers: HandoverRules { to: None, takes: true },
            manifest,
            l1_physical_pages,
            l2_slots,
            write_policy: WritePolicy::WriteThrough,
            compute_tokens_min: 1,
            request_pages_max: 16_384,
            sessions_max: 4_096,
            parked_opens_max: 1_024,
            parked_backups_max: 1_024,
            lease_ms: 30_000,
            rank_lease_ms: 2_000,
            retry_ms: 5,
            events_max: 1_024,
            evicted_keys_max: 16_384,
            faults: crate::faults::Faults::NONE,
        }
    }

    /// Tokens in a page.
    pub fn page_tokens(&self) -> u32 {
        self.manifest.page_tokens
    }

    /// Ranks of the group.
    pub fn cp_size(&self) -> u8 {
        self.manifest.cp_size
    }
}
