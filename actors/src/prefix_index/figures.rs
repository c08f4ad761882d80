//! What the index counts.

use super::Index;
use crate::protocol::{Rank, Tier};

/// Named figures.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) opens: u64,
    pub(super) refusals: u64,
    pub(super) hits_l1: u64,
    pub(super) hits_l2: u64,
    pub(super) cut_short: u64,
    pub(super) stored_l1: u64,
    pub(super) stored_l2: u64,
    pub(super) duplicates: u64,
    pub(super) loads: u64,
    pub(super) loaded: u64,
    pub(super) loads_missed: u64,
    pub(super) loads_failed: u64,
    pub(super) evicted_l1: u64,
    pub(super) evicted_l2: u64,
    pub(super) backups: u64,
    pub(super) backups_refused: u64,
    pub(super) backups_deferred: u64,
    pub(super) backups_dropped: u64,
    pub(super) backups_failed: u64,
    pub(super) forfeited: u64,
    pub(super) draft_never_ran: u64,
    pub(super) came_incomplete: u64,
    pub(super) all_layers_at_end: u64,
    pub(super) expired: u64,
    pub(super) stale: u64,
    pub(super) foreign: u64,
    pub(super) broken: u64,
    pub(super) void_entries: u64,
    pub(super) drafted: u64,
    pub(super) accepted: u64,
    pub(super) handovers_sent: u64,
    pub(super) handovers_received: u64,
    pub(super) handovers_failed: u64,
    pub(super) received_pages: u64,
}

impl Index {
    /// Named figures in a fixed order.
    pub(super) fn figures(&self) -> Vec<(&'static str, u64)> {
        let resident = |tier| (0..self.config.cp_size()).map(|r| self.tree.counts(tier, Rank(r)).resident()).sum();
        let c = &self.counts;
        let mut all = vec![
            ("index.opens", c.opens),
            ("index.refusals", c.refusals),
            ("index.hits_l1", c.hits_l1),
            ("index.hits_l2", c.hits_l2),
            ("index.cut_short", c.cut_short),
            ("index.stored_l1", c.stored_l1),
            ("index.stored_l2", c.stored_l2),
            ("index.duplicates", c.duplicates),
            ("index.loads", c.loads),
            ("index.loaded", c.loaded),
            ("index.loads_missed", c.loads_missed),
            ("index.loads_failed", c.loads_failed),
            ("index.evicted_l1", c.evicted_l1),
            ("index.evicted_l2", c.evicted_l2),
            ("index.backups", c.backups),
            ("index.backups_refused", c.backups_refused),
            ("index.backups_deferred", c.backups_deferred),
            ("index.backups_dropped", c.backups_dropped),
            ("index.backups_failed", c.backups_failed),
            ("index.forfeited", c.forfeited),
            ("index.draft_never_ran", c.draft_never_ran),
            ("index.came_incomplete", c.came_incomplete),
            ("index.all_layers_at_end", c.all_layers_at_end),
            ("index.expired", c.expired),
            ("index.stale", c.stale),
            ("index.foreign", c.foreign),
            ("index.contradicted", c.broken),
            ("index.void_entries", c.void_entries),
            ("index.drafted", c.drafted),
            ("index.accepted", c.accepted),
            ("index.handovers_sent", c.handovers_sent),
            ("index.handovers_received", c.handovers_received),
            ("index.handovers_failed", c.handovers_failed),
            ("index.received_pages", c.received_pages),
            ("index.handovers_running", self.handovers.running() as u64),
            ("index.repeats", self.calls.repeats()),
            ("index.sessions", self.sessions.len() as u64),
            ("index.in_flight", self.in_flight() as u64),
            ("index.parked_backups", self.parked_backups.len() as u64),
            ("index.cached_l1", resident(Tier::L1)),
            ("index.cached_l2", resident(Tier::L2)),
            ("index.quarantined", self.quarantined() as u64),
            ("index.private_l1", self.private_pages().len() as u64),
            ("index.memory_bytes", self.tree.memory_bytes() as u64),
            ("index.leaked_pages", self.census.leaked),
            ("index.unseals_open", self.unseals.len() as u64),
            ("index.salts", self.salts.len() as u64),
            ("index.serving", u64::from(self.is_serving())),
        ];
        all.extend(self.recovery.figures());
        all
    }
}
