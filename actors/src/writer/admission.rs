//! What the writer listens to at all, and what it says of pages that somebody asks about.

use std::collections::BTreeSet;

use super::{Writer, tell};
use crate::faults::Fault;
use crate::machine::{Effect, Sender};
use crate::protocol::{
    Address, Backup, Busy, Malformed, Outgoing, PageId, Rank, Refusal, Rejected, TooLarge, WhoseIs, WriterIn,
};

impl Writer {
    /// Drops and counts what an older life of a rank, another attempt or the wrong member says: the one place
    /// where that is judged, before any state is looked at.
    pub(super) fn admits(&mut self, from: &Sender, msg: &WriterIn) -> bool {
        if let Address::Rank(rank) = from.address
            && self.is_stale(rank, from, msg)
        {
            self.counts.stale += 1;
            return false;
        }
        let right = match msg {
            WriterIn::Backup(_) | WriterIn::BackupVerdict(_) | WriterIn::RankIs(_) => from.address == Address::Index,
            WriterIn::Reserved(_) | WriterIn::Short(_) | WriterIn::Freed(_) | WriterIn::Whose(_) => {
                from.address == Address::Allocator
            }
            WriterIn::CopyAck(ack) => from.address == Address::Rank(ack.rank),
            WriterIn::Sealed(sealed) => from.address == Address::Rank(sealed.rank),
            WriterIn::Rejected(_) => true,
        };
        self.counts.foreign += u64::from(!right);
        right
    }

    /// Answers the allocator's question. Silence never frees: of an op that is forgotten nothing is said.
    pub(super) fn whose(&mut self, from: &Sender, out: &mut Vec<Effect>) {
        let mine = if self.parents.contains_key(&from.op) {
            true
        } else {
            match self.ended_pages.get(from.op) {
                Some(super::PagesEnd::HandedOver) => true,
                Some(super::PagesEnd::Gone) => false,
                None if self.ids.has_drawn(from.op) => {
                    self.counts.late += 1;
                    return;
                }
                None => false,
            }
        };
        let to = Outgoing::Allocator(WhoseIs { mine }.into());
        out.push(Effect::Send { to, op: from.op, trace: from.trace.clone() });
    }

    /// What can be wrong with a backup before anything is done for it.
    pub(super) fn check(&self, msg: &Backup) -> Result<(), Refusal> {
        let pages = &msg.pages.0;
        if pages.is_empty() || msg.keys.0.len() != pages.len() {
            return Err(Malformed::new("keys", msg.keys.0.len(), format_args!("one of {} pages", pages.len())).into());
        }
        if pages.len() > self.config.pages_max {
            return Err(TooLarge::new("backup", pages.len() as u64, self.config.pages_max as u64).into());
        }
        let padding = u32::from(self.config.cp_size);
        if let Some(page) = pages.iter().find(|page| page.0 < padding) {
            return Err(Malformed::new("pages", page.0, format_args!("{padding} and above")).into());
        }
        if pages.iter().collect::<BTreeSet<&PageId>>().len() != pages.len() {
            return Err(Malformed::new("pages", "a page twice", "each page once").into());
        }
        if self.ops.len() >= self.config.backups_max {
            let bound = self.config.backups_max as u64;
            return Err(Busy { queue: "backups".to_owned(), bound, retry_ms: RETRY_MS }.into());
        }
        Ok(())
    }

    /// Tells the index why nothing was done; nothing is kept of it.
    pub(super) fn refuse(&mut self, from: &Sender, refusal: impl Into<Refusal>, out: &mut Vec<Effect>) {
        self.counts.rejected += 1;
        tell(from.op, Rejected { refusal: refusal.into() }.into(), &from.trace, out);
    }

    fn is_stale(&self, rank: Rank, from: &Sender, msg: &WriterIn) -> bool {
        let other_try = match msg {
            WriterIn::CopyAck(ack) => ack.attempt != super::op::ATTEMPT,
            WriterIn::Backup(_)
            | WriterIn::BackupVerdict(_)
            | WriterIn::RankIs(_)
            | WriterIn::Reserved(_)
            | WriterIn::Short(_)
            | WriterIn::Freed(_)
            | WriterIn::Whose(_)
            | WriterIn::Sealed(_)
            | WriterIn::Rejected(_) => false,
        };
        let stale = other_try || !self.lives.is_current(rank, from.incarnation);
        stale && !self.config.faults.is(Fault::StaleAttemptAccepted)
    }
}

/// A backup takes a few steps of the engine.
const RETRY_MS: u32 = 100;
