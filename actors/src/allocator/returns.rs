//! Pages that come back. A free is carried out once, however often it comes.

use super::PagesError;
use super::ledger::refusal_of;
use super::machine::{Allocator, answer};
use crate::faults::Fault;
use crate::machine::{Effect, Sender};
use crate::protocol::{Address, Free, Freed, Refusal, Rejected, Time, WrongState};

/// How a free ended; the answer to whoever sends it again.
#[derive(Clone, Debug)]
pub(super) struct FreeEnd {
    /// Tells a repeat from another free under the same op.
    digest: u64,
    refusal: Option<Refusal>,
}

impl Allocator {
    /// A member gives pages back that nobody can read or write any more.
    pub(super) fn free(&mut self, now: Time, from: &Sender, msg: &Free, out: &mut Vec<Effect>) {
        let digest = digest_of(msg);
        if let Some(end) = self.ended_frees.get(from.op) {
            if end.digest != digest {
                return self.refuse(from, WrongState::new(from.op, "freed other pages"), out);
            }
            self.counts.duplicates += 1;
            let refusal = end.refusal.clone();
            if refusal.is_none() && self.config.faults.is(Fault::DoubleFree) && self.release(now, msg).is_ok() {
                self.serve_all(now, out);
            }
            return match refusal {
                None => answer(from.address, from.op, Freed {}, &from.trace, out),
                Some(refusal) => answer(from.address, from.op, Rejected { refusal }, &from.trace, out),
            };
        }
        let refusal = match self.foreign_page(from, msg) {
            Some(refusal) => Some(refusal),
            None => self.release(now, msg).err().as_ref().map(refusal_of),
        };
        self.ended_frees.note(now, from.op, FreeEnd { digest, refusal: refusal.clone() });
        match refusal {
            None => {
                let pages = (msg.l1.0.len() + msg.l2.0.len()) as u64;
                out.push(Effect::Mark { op: from.op, name: "free.pages", value: pages });
                answer(from.address, from.op, Freed {}, &from.trace, out);
                self.serve_all(now, out);
            }
            Some(refusal) => {
                // Somebody believes to own what it does not: nothing changes, and it is seen.
                self.counts.refused_frees += 1;
                out.push(Effect::Mark { op: from.op, name: "error.free_refused", value: 1 });
                self.refuse(from, refusal, out);
            }
        }
    }

    /// Frees pages and ends the reservations that held the last of them.
    pub(super) fn release(&mut self, now: Time, free: &Free) -> Result<(), PagesError> {
        let holders = self.ledger.holders_of(free);
        self.ledger.free(free)?;
        self.counts.freed_pages += holders.len() as u64;
        for serial in holders.into_iter().filter(|serial| *serial != 0) {
            self.page_freed(now, serial);
        }
        Ok(())
    }

    /// Writer and loader give back what they reserved; the index may free what it was handed.
    fn foreign_page(&self, from: &Sender, msg: &Free) -> Option<Refusal> {
        if from.address == Address::Index {
            return None;
        }
        let holders = self.ledger.holders_of(msg);
        let ops = holders.iter().filter_map(|serial| self.serials.get(serial));
        let foreign = ops.filter(|op| self.reservations.get(op).is_some_and(|held| held.requester != from.address));
        foreign.map(|op| WrongState::new(op, "another member's").into()).next()
    }
}

/// FNV-1a over the lists of a free.
fn digest_of(msg: &Free) -> u64 {
    let l1 = msg.l1.0.iter().map(|page| u64::from(page.0));
    let l2 = msg.l2_owners.0.iter().map(|owner| u64::from(*owner)).chain(msg.l2.0.iter().map(|slot| u64::from(slot.0)));
    let words = [msg.l1.0.len() as u64].into_iter().chain(l1).chain(l2);
    words.fold(0xcbf2_9ce4_8422_2325, |hash, word| (hash ^ word).wrapping_mul(0x0100_0000_01b3))
}
