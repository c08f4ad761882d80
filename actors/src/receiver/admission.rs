//! What the receiver listens to at all, and what it takes of what it hears.

use std::collections::BTreeSet;

use super::{Receiver, tell, tell_peer};
use crate::attempts::Standing;
use crate::machine::{Effect, Sender};
use crate::protocol::{
    Address, BLOB_BYTES_MAX, Busy, CP_SIZE_MAX, Expect, Finished, GroupName, Malformed, OpId, PageId, ReceiverIn,
    Refusal, Rejected, Time, TooLarge, Unsupported,
};

impl Receiver {
    /// Drops and counts what an older life of a rank or a peer, another attempt or the wrong member says: the one
    /// place where that is judged, before any state is looked at. What asks for an answer is judged by its attempt
    /// where it is answered. Whatever a peer that lives says renews its lease.
    pub(super) fn admits(&mut self, now: Time, from: &Sender, msg: &ReceiverIn) -> bool {
        if !is_entitled(from.address, msg) {
            self.counts.foreign += 1;
            return false;
        }
        let attempt_runs = |attempt: u32| self.standing(from.op, attempt) == Standing::Running;
        let is_current = match msg {
            ReceiverIn::Expect(_) | ReceiverIn::Unexpect(_) | ReceiverIn::RankIs(_) => true,
            ReceiverIn::HandoverSettled(msg) => attempt_runs(msg.attempt),
            ReceiverIn::Accepting(msg) => self.is_alive(from) && attempt_runs(msg.attempt),
            ReceiverIn::Landed(msg) => self.is_alive(from) && attempt_runs(msg.attempt),
            ReceiverIn::Revoked(msg) => self.is_alive(from) && attempt_runs(msg.attempt),
            // Whether it may be a peer is judged by what it says.
            ReceiverIn::Meet(_) => true,
            ReceiverIn::Offer(msg) => self.speaks_for(from).is_some_and(|group| **group == *msg.group),
            ReceiverIn::Finished(_) | ReceiverIn::Ceased(_) => self.speaks_for(from).is_some(),
            ReceiverIn::Rejected(_) => match from.address {
                Address::Rank(_) => self.is_alive(from),
                Address::Sender => self.ops.get(&from.op).is_some_and(|op| op.is_sent_by(from.incarnation)),
                Address::Index
                | Address::Allocator
                | Address::Evictor
                | Address::Writer
                | Address::Loader
                | Address::Receiver
                | Address::Engine => true,
            },
        };
        self.counts.stale += u64::from(!is_current);
        if is_current && let Some(group) = self.speaks_for(from).cloned() {
            self.renew(now, group);
        }
        is_current
    }

    /// How `attempt` of the transfer `op` stands.
    pub(super) fn standing(&self, op: OpId, attempt: u32) -> Standing {
        let running = self.ops.get(&op).map(|op| op.attempt);
        let ended = self.ended.get(op).map(|outcome| outcome.attempt);
        Standing::of(attempt, running, ended, self.config.faults)
    }

    /// The group whose living sender `from` is.
    pub(super) fn speaks_for(&self, from: &Sender) -> Option<&GroupName> {
        (from.address == Address::Sender).then(|| self.groups.get(&from.incarnation)).flatten()
    }

    /// What can be wrong with what the index expects.
    pub(super) fn check_expect(&self, msg: &Expect) -> Result<(), Refusal> {
        self.check_alone()?;
        for (field, value) in [("attempt", msg.attempt), ("tokens", msg.tokens)] {
            if value == 0 {
                return Err(Malformed::new(field, 0, "1 and above").into());
            }
        }
        let (positions, limit) = (self.positions_of(msg.tokens), self.config.positions_max);
        if positions > limit {
            return Err(TooLarge::new("positions", u64::from(positions), u64::from(limit)).into());
        }
        let pages = &msg.pages.0;
        if positions.checked_sub(msg.first).map(|rest| rest as usize) != Some(pages.len()) {
            let got = format!("{} from {}", pages.len(), msg.first);
            return Err(Malformed::new("pages", got, format_args!("as many as reach {positions}")).into());
        }
        let padding = u32::from(self.config.manifest.cp_size);
        if let Some(page) = pages.iter().find(|page| page.0 < padding) {
            return Err(Malformed::new("pages", page.0, format_args!("{padding} and above")).into());
        }
        if pages.iter().collect::<BTreeSet<&PageId>>().len() != pages.len() {
            return Err(Malformed::new("pages", "a page twice", "each page once").into());
        }
        if self.ops.len() >= self.config.transfers_max {
            let bound = self.config.transfers_max as u64;
            return Err(Busy { queue: "transfers".to_owned(), bound, retry_ms: RETRY_MS }.into());
        }
        Ok(())
    }

    /// What can be wrong with the end of a transfer of so many tokens, of which so many positions are wanted.
    pub(super) fn check_finished(&self, msg: &Finished, tokens: u32, wanted: usize) -> Result<(), Refusal> {
        let owners = &msg.owners.0;
        if owners.len() != wanted {
            return Err(Malformed::new("owners", owners.len(), format_args!("one of {wanted} positions")).into());
        }
        if let Some(owner) = owners.iter().find(|owner| **owner >= CP_SIZE_MAX) {
            return Err(Malformed::new("owners", owner, format_args!("below {CP_SIZE_MAX}")).into());
        }
        if msg.straggler.0 >= CP_SIZE_MAX {
            return Err(Malformed::new("straggler", msg.straggler.0, format_args!("below {CP_SIZE_MAX}")).into());
        }
        if msg.tokens > tokens || self.positions_of(msg.tokens) != self.positions_of(tokens) {
            let limit = format!("in the last page of {tokens}, at most {tokens}");
            return Err(Malformed::new("tokens", msg.tokens, limit).into());
        }
        if msg.blob.0.len() > BLOB_BYTES_MAX {
            return Err(TooLarge::new("blob", msg.blob.0.len() as u64, BLOB_BYTES_MAX as u64).into());
        }
        Ok(())
    }

    /// Refuses what only a group of one rank can take in.
    pub(super) fn check_alone(&self) -> Result<(), Refusal> {
        let cp_size = self.config.manifest.cp_size;
        if cp_size == 1 {
            return Ok(());
        }
        let (field, limit) = ("cp_size".to_owned(), "1, where pages are received".to_owned());
        Err(Unsupported { field, value: cp_size.to_string(), limit }.into())
    }

    /// Tells the index why nothing was done; nothing is kept of it.
    pub(super) fn refuse(&mut self, from: &Sender, refusal: impl Into<Refusal>, out: &mut Vec<Effect>) {
        self.counts.rejected += 1;
        tell(from.op, Rejected { refusal: refusal.into() }.into(), &from.trace, out);
    }

    /// Tells a peer why nothing was done; nothing is kept of it.
    pub(super) fn refuse_peer(
        &mut self,
        group: &GroupName,
        from: &Sender,
        refusal: impl Into<Refusal>,
        out: &mut Vec<Effect>,
    ) {
        self.counts.rejected += 1;
        tell_peer(group, from.op, Rejected { refusal: refusal.into() }.into(), &from.trace, out);
    }

    /// Pages of so many tokens.
    const fn positions_of(&self, tokens: u32) -> u32 {
        tokens.div_ceil(self.config.manifest.page_tokens)
    }

    /// Whether a rank speaks in the life that the index knows.
    fn is_alive(&self, from: &Sender) -> bool {
        match from.address {
            Address::Rank(rank) => self.lives.is_current(rank, from.incarnation),
            Address::Index
            | Address::Allocator
            | Address::Evictor
            | Address::Writer
            | Address::Loader
            | Address::Sender
            | Address::Receiver
            | Address::Engine => true,
        }
    }
}

/// Whether `address` is one that may say `msg`.
fn is_entitled(address: Address, msg: &ReceiverIn) -> bool {
    match msg {
        ReceiverIn::Expect(_) | ReceiverIn::Unexpect(_) | ReceiverIn::HandoverSettled(_) | ReceiverIn::RankIs(_) => {
            address == Address::Index
        }
        ReceiverIn::Accepting(msg) => address == Address::Rank(msg.rank),
        ReceiverIn::Landed(msg) => address == Address::Rank(msg.rank),
        ReceiverIn::Revoked(msg) => address == Address::Rank(msg.rank),
        ReceiverIn::Meet(_) | ReceiverIn::Offer(_) | ReceiverIn::Finished(_) | ReceiverIn::Ceased(_) => {
            address == Address::Sender
        }
        ReceiverIn::Rejected(_) => true,
    }
}

/// A transfer takes a few steps of the engine.
pub(super) const RETRY_MS: u32 = 100;
