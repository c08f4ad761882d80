//! What the loader listens to at all, and what it says of pages that somebody asks about.

use std::collections::BTreeSet;

use super::op::{ATTEMPT, PagesEnd};
use super::{Loader, tell};
use crate::faults::Fault;
use crate::machine::{Effect, Sender};
use crate::protocol::{Address, Load, LoaderIn, Malformed, Outgoing, Rank, Refusal, Rejected, TooLarge, WhoseIs};

impl Loader {
    /// Drops and counts what an older life of a rank, another attempt or the wrong member says: the one place
    /// where that is judged, before any state is looked at.
    pub(super) fn admits(&mut self, from: &Sender, msg: &LoaderIn) -> bool {
        if let Address::Rank(rank) = from.address
            && self.is_stale(rank, from, msg)
        {
            self.counts.stale += 1;
            return false;
        }
        let right = match msg {
            LoaderIn::Load(_) | LoaderIn::ReleaseSlot(_) | LoaderIn::RankIs(_) => from.address == Address::Index,
            LoaderIn::Reserved(_) | LoaderIn::Short(_) | LoaderIn::Freed(_) | LoaderIn::Whose(_) => {
                from.address == Address::Allocator
            }
            LoaderIn::CopyAck(ack) => from.address == Address::Rank(ack.rank),
            LoaderIn::Rejected(_) => true,
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
                Some(PagesEnd::HandedOver) => true,
                Some(PagesEnd::Gone) => false,
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

    /// What can be wrong with a load before anything is done for it.
    pub(super) fn check(&self, msg: &Load) -> Result<(), Refusal> {
        let (owners, slots, behind) = (&msg.owners.0, &msg.slots.0, &msg.behind.0);
        if owners.is_empty() || owners.len() != slots.len() {
            return Err(Malformed::new("owners", owners.len(), format_args!("one of {} slots", slots.len())).into());
        }
        let pages = owners.len() + behind.len();
        if pages > self.config.pages_max {
            return Err(TooLarge::new("load", pages as u64, self.config.pages_max as u64).into());
        }
        let cp_size = self.config.cp_size;
        if let Some(owner) = owners.iter().chain(behind).find(|owner| **owner >= cp_size) {
            return Err(Malformed::new("owners", owner, format_args!("below {cp_size}")).into());
        }
        if owners.iter().zip(slots).collect::<BTreeSet<_>>().len() != slots.len() {
            return Err(Malformed::new("slots", "a slot twice", "each slot once").into());
        }
        Ok(())
    }

    /// Tells the index why nothing was done; nothing is kept of it.
    pub(super) fn refuse(&mut self, from: &Sender, refusal: impl Into<Refusal>, out: &mut Vec<Effect>) {
        self.counts.rejected += 1;
        tell(from.op, Rejected { refusal: refusal.into() }.into(), &from.trace, out);
    }

    fn is_stale(&self, rank: Rank, from: &Sender, msg: &LoaderIn) -> bool {
        let other_try = match msg {
            LoaderIn::CopyAck(ack) => ack.attempt != ATTEMPT,
            LoaderIn::Load(_)
            | LoaderIn::ReleaseSlot(_)
            | LoaderIn::RankIs(_)
            | LoaderIn::Reserved(_)
            | LoaderIn::Short(_)
            | LoaderIn::Freed(_)
            | LoaderIn::Whose(_)
            | LoaderIn::Rejected(_) => false,
        };
        let stale = other_try || !self.lives.is_current(rank, from.incarnation);
        stale && !self.config.faults.is(Fault::StaleAttemptAccepted)
    }
}
