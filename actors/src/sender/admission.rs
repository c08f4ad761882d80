//! What the sender listens to at all, and what it takes of what it hears.

use super::op::Op;
use super::{Sender, tell, tell_peer};
use crate::attempts::Standing;
use crate::machine::{Effect, Sender as Speaker};
use crate::protocol::{
    Address, BLOB_BYTES_MAX, Busy, GroupName, Malformed, NOBODY, Refusal, Rejected, SendEnd, SendOpen, SendPart,
    SenderIn, TooLarge, Wanted, group_name,
};

impl Sender {
    /// Drops and counts what an older life of a rank or a peer, another attempt or the wrong member says: the one
    /// place where that is judged, before any state is looked at. What asks for an answer is judged by its attempt
    /// where it is answered.
    pub(super) fn admits(&mut self, from: &Speaker, msg: &SenderIn) -> bool {
        if !is_entitled(from.address, msg) {
            self.counts.foreign += 1;
            return false;
        }
        let attempt_runs = |attempt: u32| self.standing(from, attempt) == Standing::Running;
        let is_current = match msg {
            SenderIn::SendOpen(_)
            | SenderIn::SendPart(_)
            | SenderIn::SendEnd(_)
            | SenderIn::SendStop(_)
            | SenderIn::RankIs(_) => true,
            SenderIn::Pushed(msg) => self.is_alive(from) && attempt_runs(msg.attempt),
            SenderIn::PushStopped(msg) => self.is_alive(from) && attempt_runs(msg.attempt),
            SenderIn::Met(_) => self.meets.contains_key(&from.op),
            SenderIn::Wanted(msg) => self.is_peer(from) && attempt_runs(msg.attempt),
            SenderIn::Received(msg) => self.is_peer(from) && attempt_runs(msg.attempt),
            SenderIn::CeasedHeard(msg) => self.is_peer(from) && attempt_runs(msg.attempt),
            SenderIn::Cease(msg) => self.is_peer(from) || !attempt_runs(msg.attempt),
            SenderIn::Rejected(_) => match from.address {
                Address::Rank(_) => self.is_alive(from),
                Address::Receiver => self.meets.contains_key(&from.op) || self.is_peer(from),
                Address::Index
                | Address::Allocator
                | Address::Evictor
                | Address::Writer
                | Address::Loader
                | Address::Sender
                | Address::Engine => true,
            },
        };
        self.counts.stale += u64::from(!is_current);
        is_current
    }

    /// How `attempt` of the transfer that `from` speaks of stands.
    pub(super) fn standing(&self, from: &Speaker, attempt: u32) -> Standing {
        let running = self.ops.get(&from.op).map(|op| op.attempt);
        let ended = self.ended.get(from.op).map(|outcome| outcome.attempt);
        Standing::of(attempt, running, ended, self.config.faults)
    }

    /// What can be wrong with a transfer before anything is done for it; the name of its peer.
    pub(super) fn check_open(&self, msg: &SendOpen) -> Result<GroupName, Refusal> {
        let group = group_name("to", &msg.to)?;
        if group == self.config.group {
            return Err(Malformed::new("to", group, "another group").into());
        }
        if msg.attempt == 0 {
            return Err(Malformed::new("attempt", 0, "1 and above").into());
        }
        if msg.tokens == 0 {
            return Err(Malformed::new("tokens", 0, "1 and above").into());
        }
        let (positions, limit) = (self.positions_of(msg.tokens), self.config.positions_max);
        if positions > limit {
            return Err(TooLarge::new("positions", u64::from(positions), u64::from(limit)).into());
        }
        if self.ops.len() >= self.config.transfers_max {
            let bound = self.config.transfers_max as u64;
            return Err(Busy { queue: "transfers".to_owned(), bound, retry_ms: RETRY_MS }.into());
        }
        Ok(group)
    }

    /// What can be wrong with the next part of a transfer.
    pub(super) fn check_part(&self, running: &Op, msg: &SendPart) -> Result<(), Refusal> {
        if msg.part >= self.config.parts_max {
            return Err(TooLarge::new("parts", u64::from(msg.part) + 1, u64::from(self.config.parts_max)).into());
        }
        let positions = running.owners.len();
        let span = (msg.first as usize).checked_add(msg.pages.0.len()).filter(|end| *end <= positions);
        let Some(end) = span.filter(|_| !msg.pages.0.is_empty()) else {
            let got = format!("{} from {}", msg.pages.0.len(), msg.first);
            return Err(Malformed::new("pages", got, format_args!("1 or more, below {positions}")).into());
        };
        if let Some(at) = (msg.first as usize..end).find(|at| running.owners[*at] != NOBODY) {
            return Err(Malformed::new("first", format_args!("position {at} again"), "each position once").into());
        }
        let padding = u32::from(self.config.manifest.cp_size);
        if let Some(page) = msg.pages.0.iter().find(|page| page.0 < padding) {
            return Err(Malformed::new("pages", page.0, format_args!("{padding} and above")).into());
        }
        Ok(())
    }

    /// What can be wrong with the end of a transfer whose parts have all been taken.
    pub(super) fn check_end(&self, running: &Op, msg: &SendEnd) -> Result<(), Refusal> {
        if msg.parts < running.parts {
            return Err(Malformed::new("parts", msg.parts, format_args!("{} were named", running.parts)).into());
        }
        if msg.tokens > running.tokens || self.positions_of(msg.tokens) as usize != running.owners.len() {
            let limit = format!("in the last of {} pages, at most {}", running.owners.len(), running.tokens);
            return Err(Malformed::new("tokens", msg.tokens, limit).into());
        }
        if msg.blob.0.len() > BLOB_BYTES_MAX {
            return Err(TooLarge::new("blob", msg.blob.0.len() as u64, BLOB_BYTES_MAX as u64).into());
        }
        Ok(())
    }

    /// Pages of so many tokens.
    pub(super) const fn positions_of(&self, tokens: u32) -> u32 {
        tokens.div_ceil(self.config.manifest.page_tokens)
    }

    /// Tells the index why nothing was done; nothing is kept of it.
    pub(super) fn refuse(&mut self, from: &Speaker, refusal: impl Into<Refusal>, out: &mut Vec<Effect>) {
        self.counts.rejected += 1;
        tell(from.op, Rejected { refusal: refusal.into() }.into(), &from.trace, out);
    }

    /// Tells a peer why nothing was done; nothing is kept of it.
    pub(super) fn refuse_peer(
        &mut self,
        group: &GroupName,
        from: &Speaker,
        refusal: impl Into<Refusal>,
        out: &mut Vec<Effect>,
    ) {
        self.counts.rejected += 1;
        tell_peer(group, from.op, Rejected { refusal: refusal.into() }.into(), &from.trace, out);
    }

    /// Whether a rank speaks in the life that the index knows.
    fn is_alive(&self, from: &Speaker) -> bool {
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

    /// Whether the life that speaks is the one that was told of the transfer.
    fn is_peer(&self, from: &Speaker) -> bool {
        self.ops.get(&from.op).is_some_and(|op| op.peer() == Some(from.incarnation))
    }
}

/// What can be wrong with what a peer wants of a transfer of so many positions.
pub(super) fn check_wanted(msg: &Wanted, positions: usize) -> Result<(), Refusal> {
    let (wanted, slots) = (&msg.positions.0, &msg.slots.0);
    if slots.len() != wanted.len() {
        return Err(Malformed::new("slots", slots.len(), format_args!("one of {} positions", wanted.len())).into());
    }
    if let Some(pair) = wanted.windows(2).find(|pair| pair[0] >= pair[1]) {
        let got = format!("{} after {}", pair[1].0, pair[0].0);
        return Err(Malformed::new("positions", got, "ascending, each once").into());
    }
    if let Some(beyond) = wanted.last().filter(|position| position.0 as usize >= positions) {
        return Err(Malformed::new("positions", beyond.0, format_args!("below {positions}")).into());
    }
    let mut sorted: Vec<u32> = slots.iter().map(|slot| slot.0).collect();
    sorted.sort_unstable();
    if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(Malformed::new("slots", format_args!("{} twice", pair[0]), "each slot once").into());
    }
    for (field, bytes) in [("endpoint", msg.endpoint.len()), ("grant", msg.grant.0.len())] {
        if bytes > WAY_BYTES_MAX {
            return Err(TooLarge::new(field, bytes as u64, WAY_BYTES_MAX as u64).into());
        }
    }
    Ok(())
}

/// Whether `address` is one that may say `msg`.
fn is_entitled(address: Address, msg: &SenderIn) -> bool {
    match msg {
        SenderIn::SendOpen(_)
        | SenderIn::SendPart(_)
        | SenderIn::SendEnd(_)
        | SenderIn::SendStop(_)
        | SenderIn::RankIs(_) => address == Address::Index,
        SenderIn::Pushed(msg) => address == Address::Rank(msg.rank),
        SenderIn::PushStopped(msg) => address == Address::Rank(msg.rank),
        SenderIn::Met(_)
        | SenderIn::Wanted(_)
        | SenderIn::Received(_)
        | SenderIn::Cease(_)
        | SenderIn::CeasedHeard(_) => address == Address::Receiver,
        SenderIn::Rejected(_) => true,
    }
}

/// A transfer takes a few steps of the engine.
const RETRY_MS: u32 = 100;
/// Longest endpoint, and longest grant, that a peer may name.
const WAY_BYTES_MAX: usize = 1_024;
