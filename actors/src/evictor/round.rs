//! One `make_room` while it runs: what is still wanted and what has come of it.

use crate::machine::{ReplyTo, Trace};
use crate::protocol::{Evicted, MakeRoom, OpId, Time};
use crate::span::Span;

/// Who waits for the room.
#[derive(Clone, Debug)]
pub(super) enum Requester {
    /// The allocator.
    Allocator,
    /// An operator or a test.
    Outside(ReplyTo),
}

/// What has come of an op; kept for repeats when it has ended.
#[derive(Clone, Debug)]
pub(super) struct Made {
    pub(super) tier: u8,
    pub(super) freed: Vec<u32>,
    pub(super) pending: u32,
}

impl Made {
    pub(super) fn nothing(tier: u8, cp_size: u8) -> Self {
        Self { tier, freed: vec![0; usize::from(cp_size)], pending: 0 }
    }
}

/// An op that has one batch out.
#[derive(Debug)]
pub(super) struct Round {
    pub(super) requester: Requester,
    pub(super) trace: Trace,
    pub(super) began: Time,
    wants: Vec<u32>,
    pub(super) made: Made,
    pub(super) collateral: u32,
    pub(super) batches: u32,
}

impl Round {
    pub(super) fn new(now: Time, requester: Requester, msg: MakeRoom, trace: Trace) -> Self {
        let made = Made { tier: msg.tier, freed: vec![0; msg.wants.len()], pending: 0 };
        Self { requester, trace, began: now, wants: msg.wants, made, collateral: 0, batches: 0 }
    }

    /// What is said of it when it is over.
    pub(super) fn span(&self, now: Time, op: OpId) -> Option<Span> {
        let span = Span::new("evict", op, self.trace.clone()?, self.began, now)
            .count("evict.tier", self.made.tier)
            .counts("evict.wanted_pages", self.wants.iter().copied())
            .counts("evict.freed_pages", self.made.freed.iter().copied())
            .count("evict.pending_pages", self.made.pending)
            .count("evict.collateral_pages", self.collateral)
            .count("evict.batches", self.batches);
        Some(span.flag("evict.met", self.is_met()))
    }

    /// What is still wanted, at most `pages_max` in all: the lanes that want most are served page by page
    /// before those that want less.
    pub(super) fn next_batch(&self, pages_max: u32) -> Vec<u32> {
        let mut batch = self.still_wanted();
        let mut excess = batch.iter().copied().map(u64::from).sum::<u64>().saturating_sub(u64::from(pages_max));
        while excess > 0 {
            // Cuts the largest lanes down to the next smaller one, so each pass ends a level.
            let top = batch.iter().copied().max().unwrap_or(0);
            let lanes_at_top = batch.iter().filter(|pages| **pages == top).count() as u64;
            let next = batch.iter().copied().filter(|pages| *pages < top).max().unwrap_or(0);
            let cut = u64::from(top - next).min(excess.div_ceil(lanes_at_top)) as u32;
            for pages in batch.iter_mut().filter(|pages| **pages == top) {
                let here = u64::from(cut).min(excess);
                *pages -= here as u32;
                excess -= here;
            }
        }
        batch
    }

    /// Adds what a batch gave; returns the pages it freed.
    pub(super) fn take(&mut self, msg: &Evicted) -> u64 {
        let mut pages = 0;
        for (sum, freed) in self.made.freed.iter_mut().zip(&msg.freed) {
            *sum = sum.saturating_add(*freed);
            pages += u64::from(*freed);
        }
        self.made.pending = self.made.pending.saturating_add(msg.pending);
        self.collateral = self.collateral.saturating_add(msg.collateral);
        pages
    }

    /// Whether every lane has what it wants, or as many pages as are missing wait for their write-back: more
    /// victims would then be given up for pages that are on their way.
    pub(super) fn is_met(&self) -> bool {
        let missing: u64 = self.still_wanted().iter().copied().map(u64::from).sum();
        missing <= u64::from(self.made.pending)
    }

    pub(super) fn check_invariants(&self, batches_max: u32) {
        assert_eq!(self.wants.len(), self.made.freed.len());
        assert!((1..=batches_max).contains(&self.batches));
        assert!(!self.is_met(), "a met op still runs");
    }

    fn still_wanted(&self) -> Vec<u32> {
        self.wants.iter().zip(&self.made.freed).map(|(wanted, freed)| wanted.saturating_sub(*freed)).collect()
    }
}
