//! What other members say and give, held against who may say it and what was asked for.
//!
//! A member that contradicts what it was asked ends that conversation and is counted: what it gave is not used,
//! and the allocator takes back what nobody calls its own.

use super::{CALL, Index};
use crate::machine::{Effect, Sender};
use crate::protocol::{
    Address, AllocatorIn, BackupVerdict, Bin, HostSlot, IndexNews, LoaderIn, Malformed, OpId, Outgoing, PageId, Rank,
    Time, WriterIn,
};

/// Whether `news` is for this member to say; a rank speaks for itself alone.
pub(super) fn may_say(from: Address, news: &IndexNews) -> bool {
    match news {
        IndexNews::Reserved(_)
        | IndexNews::Short(_)
        | IndexNews::Freed(_)
        | IndexNews::Counted(_)
        | IndexNews::Restored(_)
        | IndexNews::Whose(_) => from == Address::Allocator,
        IndexNews::Evict(_) => from == Address::Evictor,
        IndexNews::BackupRefused(_) | IndexNews::BackupComplete(_) | IndexNews::BackupFailed(_) => {
            from == Address::Writer
        }
        IndexNews::LoadStarted(_) | IndexNews::LoadMissed(_) | IndexNews::LoadBusy(_) | IndexNews::LoadEnded(_) => {
            from == Address::Loader
        }
        IndexNews::SendTaken(_) | IndexNews::SendOver(_) => from == Address::Sender,
        IndexNews::Expected(_) | IndexNews::Arrived(_) | IndexNews::NotArriving(_) => from == Address::Receiver,
        IndexNews::OpSettled(_) => {
            matches!(from, Address::Writer | Address::Loader | Address::Sender | Address::Receiver | Address::Rank(_))
        }
        IndexNews::RankHello(msg) => from == Address::Rank(msg.rank),
        IndexNews::Damaged(msg) => from == Address::Rank(msg.rank),
        IndexNews::InventoryPart(_) | IndexNews::Attached(_) | IndexNews::AttachRefused(_) | IndexNews::Passed(_) => {
            matches!(from, Address::Rank(_))
        }
        IndexNews::Rejected(_) => from != Address::Engine,
    }
}

impl Index {
    /// Whether what `from` says of its op can be an answer: an open request to one member is not answered by another.
    pub(super) fn is_asked(&self, from: &Sender) -> bool {
        self.calls.asked((from.op, CALL)).is_none_or(|asked| asked.address() == Some(from.address))
    }

    /// What is wrong with the L1 pages given for `op`; nothing when they are those that were asked for.
    pub(super) fn wrong_pages(&self, op: OpId, pages: &[PageId]) -> Option<Malformed> {
        let wanted: Vec<u8> = match self.calls.asked((op, CALL))? {
            Outgoing::Allocator(AllocatorIn::Reserve(reserve)) => reserve.owners.0.clone(),
            Outgoing::Loader(LoaderIn::Load(load)) => [&load.owners.0[..], &load.behind.0].concat(),
            _ => return None,
        };
        let cp_size = self.config.cp_size();
        let owners = wanted.iter().copied().map(Rank);
        self.wrong_places("pages", owners, pages.iter().map(|page| (page.owner(cp_size), page.physical(cp_size))), 1)
    }

    /// The same of the host slots given for the pages of a backup.
    fn wrong_slots(&self, pages: &[PageId], slots: &[HostSlot]) -> Option<Malformed> {
        let owners = pages.iter().map(|page| page.owner(self.config.cp_size()));
        let given = slots.iter().zip(owners.clone()).map(|(slot, owner)| (owner, slot.0));
        if pages.len() != slots.len() {
            return Some(Malformed::new("slots", slots.len(), pages.len()));
        }
        self.wrong_places("slots", owners, given, 0)
    }

    /// Compares owners in order; no place may lie outside the pools or be named twice.
    fn wrong_places(
        &self,
        field: &str,
        wanted: impl ExactSizeIterator<Item = Rank>,
        given: impl ExactSizeIterator<Item = (Rank, u32)>,
        first: u32,
    ) -> Option<Malformed> {
        let end = if first == 0 { self.config.l2_slots } else { self.config.l1_physical_pages };
        if wanted.len() != given.len() {
            return Some(Malformed::new(field, given.len(), format_args!("{} of them", wanted.len())));
        }
        let mut places: Vec<(Rank, u32)> = Vec::with_capacity(given.len());
        for (owner, place) in wanted.zip(given) {
            if place.0 != owner || !(first..end).contains(&place.1) {
                let limit = format_args!("{first}..{end} of rank {}", owner.0);
                return Some(Malformed::new(field, format_args!("{} of rank {}", place.1, place.0.0), limit));
            }
            places.push(place);
        }
        places.sort_unstable();
        let twice = places.windows(2).find(|pair| pair[0] == pair[1])?;
        Some(Malformed::new(field, format_args!("{} of rank {} twice", twice[0].1, twice[0].0.0), "once"))
    }

    /// Ends a reservation whose pages are not those asked for: they are not this index's.
    pub(super) fn disown(&mut self, now: Time, op: OpId, wrong: Malformed, out: &mut Vec<Effect>) {
        self.broken(op, out);
        if self.disowned.len() < DISOWNED_MAX {
            self.disowned.insert(op);
        }
        self.not_reserved(now, op, wrong.into(), out);
    }

    /// Ends a backup whose slots are not those asked for, and has the writer give all of them back.
    pub(super) fn refuse_slots(&mut self, now: Time, op: OpId, slots: &[HostSlot], out: &mut Vec<Effect>) -> bool {
        let Some(backup) = self.backups.get(&op) else { return false };
        if self.wrong_slots(&backup.plan.pages, slots).is_none() {
            return false;
        }
        self.broken(op, out);
        self.backup_failed(now, op, out);
        let verdict = WriterIn::from(BackupVerdict { kept: Bin(vec![0; slots.len()]) });
        self.calls.call(now, (op, CALL), Outgoing::Writer(verdict), &super::NO_TRACE, out);
        true
    }

    /// A member of the group has contradicted what it was asked.
    pub(super) fn broken(&mut self, op: OpId, out: &mut Vec<Effect>) {
        self.counts.broken += 1;
        out.push(Effect::Mark { op, name: "error.contradicted", value: 1 });
    }
}

/// Reservations that were given wrongly and wait to be asked for: more are a fault that one can read already.
const DISOWNED_MAX: usize = 256;
