//! What must be true after every step, judged from the true state of memory and from what is said.

pub(crate) mod transfers;

use std::collections::{BTreeMap, BTreeSet};

use hicached_actors::host::{Dest, Parcel};
use hicached_actors::protocol::{
    Address, AllocatorIn, Answer, BackupCopy, BackupVerdict, Envelope, Free, HostSlot, Incarnation, Load, LoaderIn,
    OpId, Opened, Owners, PageId, Rank, RankIn, Refusal, Rejected, Reserve, Reserved, decode,
};

use crate::engine::{Ask, Engine};
use crate::memory::Memory;
use crate::net::Stats;
use crate::rank::RankProcess;

/// Something that must never be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Who found it: the requirement or the rule.
    pub checker: &'static str,
    /// What was found.
    pub detail: String,
}

/// The true state that checks look at.
pub(crate) struct Truths<'a> {
    /// Bytes.
    pub memory: &'a Memory,
    /// Running copies.
    pub ranks: &'a [RankProcess],
    /// Sessions, steps and keys.
    pub engine: &'a Engine,
}

/// What checks remember of a control incarnation.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    reserves: BTreeMap<OpId, Reserve>,
    granted: BTreeSet<OpId>,
    freed: BTreeSet<OpId>,
    loads: BTreeMap<OpId, Load>,
    backups: BTreeMap<OpId, BackupCopy>,
    decided: BTreeSet<OpId>,
    orders: BTreeMap<(OpId, &'static str, u32), u64>,
    transfers: transfers::TransferChecks,
}

impl Checks {
    /// Looks at what a control machine says before it is said.
    ///
    /// # Errors
    /// The rule it breaks.
    pub(crate) fn look(
        &mut self,
        from: Address,
        parcel: &Parcel,
        truths: &Truths<'_>,
        stats: &mut Stats,
    ) -> Result<(), Violation> {
        let Ok(envelope) = Envelope::decode(&parcel.bytes) else { return Ok(()) };
        self.transfers.look(from, &parcel.to, &envelope, truths)?;
        let (kind, op, body) = (envelope.kind.as_str(), envelope.op, &envelope.body.0);
        match (&parcel.to, kind) {
            (Dest::Reply(reply), "opened") => {
                if let Some(Ok(Answer::Opened(opened))) = Answer::decode_body(kind, body) {
                    return self.opened(reply.0.parse().unwrap_or(0), &opened, truths);
                }
            }
            (Dest::Actor(Address::Allocator), "reserve" | "free") => match AllocatorIn::decode_body(kind, body) {
                Some(Ok(AllocatorIn::Reserve(reserve))) => {
                    self.reserves.insert(op, reserve);
                }
                Some(Ok(AllocatorIn::Free(free))) if self.freed.insert(op) => return unused(&free, truths),
                _ => {}
            },
            (Dest::Actor(_), "reserved") if from == Address::Allocator => {
                if let Ok(reserved) = decode::<Reserved>(body)
                    && self.granted.insert(op)
                {
                    return self.grant(op, &reserved, truths);
                }
            }
            (Dest::Actor(_), "rejected") if from == Address::Allocator && self.freed.contains(&op) => {
                // A reserve that comes after its release is late, not wrong.
                let Ok(Rejected { refusal }) = decode::<Rejected>(body) else { return Ok(()) };
                if !matches!(&refusal, Refusal::WrongState(state) if state.state == "released") {
                    let detail = format!("the allocator rejects the free of {op:?}: {refusal:?}");
                    return Err(Violation { checker: "E2", detail });
                }
            }
            (Dest::Actor(Address::Loader), "load") => {
                if let Some(Ok(LoaderIn::Load(load))) = LoaderIn::decode_body(kind, body)
                    && !self.loads.contains_key(&op)
                {
                    return self.load(op, load, truths);
                }
            }
            (Dest::Actor(Address::Rank(_)), "backup_copy" | "load_copy") => {
                if let Some(Ok(order)) = RankIn::decode_body(kind, body) {
                    return self.order(op, &order, body, truths);
                }
            }
            (Dest::Actor(Address::Writer), "backup_verdict") => {
                if let Ok(verdict) = decode::<BackupVerdict>(body)
                    && self.decided.insert(op)
                {
                    return self.commit(op, &verdict, truths);
                }
            }
            (Dest::Actor(Address::Index), "evict") => stats.evictions += 1,
            _ => {}
        }
        Ok(())
    }

    /// B5 and B6: whatever an open is given from L1 is right in every part at that moment.
    fn opened(&self, request: u64, opened: &Opened, truths: &Truths<'_>) -> Result<(), Violation> {
        let Some(Ask::Open(number)) = truths.engine.pending.get(&request).map(|pending| pending.ask) else {
            return Ok(());
        };
        let (Some(session), memory) = (truths.engine.sessions.get(&number), truths.memory) else { return Ok(()) };
        for at in 0..opened.l1_hit {
            let page = opened.pages.0[at as usize];
            let text = session.text(&memory.layout, at);
            if let Some(part) = memory.l1_wrong(page, &text) {
                let detail = format!("open of {:?} hits {page:?} at {at}", session.id);
                return Err(incomplete(memory, part, &detail, |part| {
                    memory.layout.is_right(part, &text, memory.l1(page, part))
                }));
            }
        }
        let Some(ticket) = opened.load.first() else { return Ok(()) };
        let Some(load) = self.loads.get(&ticket.op) else {
            return Err(Violation { checker: "conversation", detail: format!("nobody loads {:?}", ticket.op) });
        };
        for (at, (owner, slot)) in (ticket.first..).zip(load.owners.0.iter().zip(&load.slots.0)) {
            let row = &memory.pools[usize::from(*owner)].rows[slot.0 as usize];
            if row.generation > 0 && row.key != session.keys[at as usize] {
                let detail = format!("open of {:?} loads another page at {at}: {row:?}", session.id);
                return Err(Violation { checker: "E1", detail });
            }
        }
        Ok(())
    }

    /// B5 and B6: whatever is to be loaded is right in every part at that moment. A row of generation 0 is
    /// one of a new host whose loss the index has not heard of: its rank refuses the load.
    fn load(&mut self, op: OpId, load: Load, truths: &Truths<'_>) -> Result<(), Violation> {
        let memory = truths.memory;
        for (owner, slot) in load.owners.0.iter().zip(&load.slots.0) {
            let Some(row) = memory.pools[usize::from(*owner)].rows.get(slot.0 as usize) else { continue };
            let Some(text) = truths.engine.truth.text(row.key).filter(|_| row.damaged.is_none() && row.generation > 0)
            else {
                continue;
            };
            let rank = Rank(*owner);
            if let Some(part) = memory.l2_wrong(rank, *slot, &text)
                && truths.ranks[usize::from(*owner)].is_alive()
            {
                let detail = format!("load {op:?} reads {slot:?} of {rank:?}");
                let right = |part| memory.layout.is_right(part, &text, memory.l2(rank, *slot, part));
                return Err(incomplete(memory, part, &detail, right));
            }
        }
        self.loads.insert(op, load);
        Ok(())
    }

    /// B5 and B6: a backup that is committed is right in every part at that moment.
    fn commit(&self, op: OpId, verdict: &BackupVerdict, truths: &Truths<'_>) -> Result<(), Violation> {
        let (Some(copy), memory) = (self.backups.get(&op), truths.memory) else { return Ok(()) };
        let kept = verdict.kept.0.iter().zip(&copy.slots.0).zip(copy.keys.0.iter().zip(&copy.pages.0));
        for ((_, slot), (key, page)) in kept.filter(|((kept, _), _)| **kept == 1) {
            let rank = page.owner(memory.layout.cp);
            let row = &memory.pools[usize::from(rank.0)].rows[slot.0 as usize];
            // A host that was lost has no row of this op: the next inventory says so.
            let Some(text) = truths.engine.truth.text(*key).filter(|_| row.op == op && row.damaged.is_none()) else {
                continue;
            };
            if let Some(part) = memory.l2_wrong(rank, *slot, &text) {
                let right = |part| memory.layout.is_right(part, &text, memory.l2(rank, *slot, part));
                return Err(incomplete(memory, part, &format!("commit of {op:?} keeps {slot:?} of {rank:?}"), right));
            }
        }
        Ok(())
    }

    /// A4, B10: a grant has the owners asked for, and nobody uses a page of it.
    fn grant(&self, op: OpId, reserved: &Reserved, truths: &Truths<'_>) -> Result<(), Violation> {
        let Some(reserve) = self.reserves.get(&op) else { return Ok(()) };
        let pages = &reserved.pages.0;
        if pages.len() != reserve.owners.0.len() {
            let detail = format!("{op:?} asked for {} pages and gets {}", reserve.owners.0.len(), pages.len());
            return Err(Violation { checker: "A4", detail });
        }
        if reserve.tier == 2 {
            let slots: Vec<HostSlot> = pages.iter().map(|page| HostSlot(page.0)).collect();
            return idle(&[], &reserve.owners, &slots, truths, &format!("granted to {op:?}"));
        }
        let cp = truths.memory.layout.cp;
        if let Some((page, owner)) =
            pages.iter().zip(&reserve.owners.0).find(|(page, owner)| page.owner(cp).0 != **owner)
        {
            let detail = format!("{op:?} asked for a page of rank {owner} and gets {page:?}");
            return Err(Violation { checker: "A4", detail });
        }
        idle(pages, &Owners::default(), &[], truths, &format!("granted to {op:?}"))
    }

    /// One decision per group: every rank hears the same, and a load's pages have the owners of its slots.
    fn order(&mut self, op: OpId, order: &RankIn, body: &[u8], truths: &Truths<'_>) -> Result<(), Violation> {
        let (kind, attempt) = match order {
            RankIn::BackupCopy(copy) => {
                self.backups.entry(op).or_insert_with(|| copy.clone());
                ("backup", copy.attempt)
            }
            // For no life: it ends the use of a slot, and no rank copies it.
            RankIn::LoadCopy(copy)
                if !copy.lives.is_empty() && copy.lives.iter().all(|life| *life == Incarnation::default()) =>
            {
                return Ok(());
            }
            RankIn::LoadCopy(copy) => {
                let cp = truths.memory.layout.cp;
                let owners: Vec<u8> = copy.pages.0.iter().map(|page| page.owner(cp).0).collect();
                if owners != copy.owners.0 {
                    let detail = format!("load {op:?}: pages of {owners:?} for records of {:?}", copy.owners.0);
                    return Err(Violation { checker: "A5", detail });
                }
                ("load", copy.attempt)
            }
            _ => return Ok(()),
        };
        let hash = body
            .iter()
            .fold(0_u64, |hash, byte| (hash.rotate_left(7) ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3));
        if *self.orders.entry((op, kind, attempt)).or_insert(hash) != hash {
            let detail = format!("{kind} {op:?} is not the same for every rank");
            return Err(Violation { checker: "D1", detail });
        }
        Ok(())
    }
}

/// B10, C6: nothing is given back while somebody can still read or write it.
fn unused(free: &Free, truths: &Truths<'_>) -> Result<(), Violation> {
    idle(&free.l1.0, &free.l2_owners, &free.l2.0, truths, "freed")
}

fn idle(l1: &[PageId], owners: &Owners, l2: &[HostSlot], truths: &Truths<'_>, why: &str) -> Result<(), Violation> {
    transfers::untouched(l1, truths, why)?;
    for rank in truths.ranks.iter().filter(|rank| rank.is_alive()) {
        for (page, slot) in rank.busy() {
            let cp = truths.memory.layout.cp;
            if l1.contains(&page) {
                return Err(Violation { checker: "B10", detail: format!("{page:?} is {why} while a copy uses it") });
            }
            let hit = l2.iter().zip(&owners.0).any(|(of, owner)| *of == slot && *owner == page.owner(cp).0);
            if hit {
                return Err(Violation { checker: "B10", detail: format!("{slot:?} is {why} while a copy uses it") });
            }
        }
    }
    match truths.engine.used_pages().find(|(page, _)| l1.contains(page)) {
        None => Ok(()),
        Some((page, number)) => {
            let session = truths.engine.sessions.get(&number);
            let session = session.map(|session| (session.id, session.phase, session.last_step));
            let detail = format!("{page:?} is {why} while session {number} uses it: {session:?}");
            Err(Violation { checker: "B10", detail })
        }
    }
}

/// Whether target or draft is at fault tells which rule was broken: B6 when the target alone is right.
fn incomplete(memory: &Memory, wrong: usize, what: &str, right: impl Fn(usize) -> bool) -> Violation {
    let parts = &memory.layout.parts;
    let target_right = (0..parts.len()).filter(|part| !parts[*part].draft).all(right);
    let part = &parts[wrong];
    let detail = format!("{what}: {} layer {} is not what was written", part.component, part.layer);
    Violation { checker: if target_right { "B6" } else { "B5" }, detail }
}
