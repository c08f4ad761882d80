//! One reservation: parked until room was made, then given, then spoken for by its owner.

use super::ReserveError;
use super::ledger::{Given, Ledger};
use super::machine::{Allocator, Due, answer, member};
use super::spans::Line;
use crate::lives::RankSet;
use crate::machine::{Effect, Sender, Trace};
use crate::makers::{Maker, range_of};
use crate::protocol::{
    Address, Malformed, OpId, PageId, Pages, Rank, Refusal, Reserve, Reserved, Short, Tier, Time, Unknown, Whose,
    WrongState,
};

/// A reservation that is parked, or whose owner has not spoken for it.
#[derive(Debug)]
pub(super) struct Reservation {
    pub(super) tier: Tier,
    pub(super) owners: Vec<u8>,
    pub(super) requester: Address,
    pub(super) trace: Trace,
    pub(super) began: Time,
    pub(super) state: State,
}

/// ```text
/// Parked -> Granted -> Asked -> (kept or released)
///     \-> (short)  \-> (kept or released)
/// ```
#[derive(Debug)]
pub(super) enum State {
    /// Stands in line. `round` is the room being made for it; none while an earlier round runs.
    Parked { short: Vec<u32>, round: Option<u64>, until: Time },
    /// Has its pages.
    Granted { grant: Grant, ask_at: Time },
    /// Has grown old: its owner is asked.
    Asked { grant: Grant },
}

/// Pages that were given.
#[derive(Debug)]
pub(super) struct Grant {
    pub(super) pages: Vec<PageId>,
    /// The number the ledger knows the reservation by.
    pub(super) serial: u32,
    /// Pages that have not been freed.
    pub(super) left: usize,
}

/// How a reservation ended; the answer to whoever asks again.
#[derive(Clone, Debug)]
pub(super) enum Outcome {
    /// Nothing was taken.
    Short { short: Vec<u32> },
    /// Every page is free again.
    Released,
    /// Its owner has spoken for what was left of it.
    Kept,
}

impl Reservation {
    pub(super) fn lanes(&self) -> RankSet {
        self.owners.iter().copied().map(Rank).collect()
    }
}

impl Grant {
    /// Panics when the ledger disagrees; returns how many pages are held.
    pub(super) fn check_invariants(&self, of: &Reservation, ledger: &Ledger) -> usize {
        let held = ledger.held_by(of.tier, &of.owners, &self.pages, self.serial);
        assert_eq!(held.l1.0.len() + held.l2.0.len(), self.left, "pages held and not freed");
        assert!(self.left > 0 || self.pages.is_empty(), "a reservation without pages still runs");
        self.left
    }
}

impl Allocator {
    /// A member asks for pages, or asks again.
    pub(super) fn reserve(&mut self, now: Time, from: &Sender, msg: Reserve, out: &mut Vec<Effect>) {
        if self.reserve_again(from, &msg, out) {
            return;
        }
        let tier = match self.check(&msg) {
            Ok(tier) => tier,
            Err(refusal) => return self.refuse(from, refusal, out),
        };
        let owners = msg.owners.0;
        let state = State::Parked { short: Vec::new(), round: None, until: now };
        let (requester, trace) = (from.address, from.trace.clone());
        let reservation = Reservation { tier, owners, requester, trace, began: now, state };
        let wanted = self.wanted(&reservation.owners);
        let capacity = || self.ledger.pools(tier).pools().map(super::PagePool::capacity_pages);
        let fits = wanted.iter().zip(capacity()).all(|(wanted, capacity)| *wanted <= capacity);
        let lanes = reservation.lanes();
        self.reservations.insert(from.op, reservation);
        if !self.is_open(tier) {
            return self.end_short(now, from.op, wanted, out);
        }
        if !fits {
            let short = self.short_of(tier, &wanted);
            return self.end_short(now, from.op, short, out);
        }
        let ahead = self.lanes_in_line(tier);
        let short = if ahead.without(lanes) == ahead {
            match self.try_grant(now, from.op, out) {
                Ok(()) => return self.keep_room(now, tier, &from.trace, out),
                Err(short) => short,
            }
        } else {
            self.short_of(tier, &wanted)
        };
        if self.room(tier).parked.len() >= self.config.parked_max {
            let nothing = short.iter().all(|pages| *pages == 0);
            return self.end_short(now, from.op, if nothing { wanted } else { short }, out);
        }
        self.park(now, from.op, short, out);
    }

    /// Answers a repeat from the state of its op; whether it was one.
    fn reserve_again(&mut self, from: &Sender, msg: &Reserve, out: &mut Vec<Effect>) -> bool {
        if let Some(known) = self.reservations.get(&from.op) {
            self.counts.duplicates += 1;
            let tier = if msg.tier == 1 { Tier::L1 } else { Tier::L2 };
            if known.requester != from.address || known.tier != tier || known.owners != msg.owners.0 {
                self.refuse(from, WrongState::new(from.op, "reserving something else"), out);
                return true;
            }
            match &known.state {
                State::Parked { .. } => {}
                State::Granted { grant, .. } | State::Asked { grant } if grant.left == grant.pages.len() => {
                    let pages = Pages(grant.pages.clone());
                    answer(from.address, from.op, Reserved { pages }, &from.trace, out);
                }
                State::Granted { .. } | State::Asked { .. } => {
                    self.refuse(from, WrongState::new(from.op, "partly released"), out);
                }
            }
            return true;
        }
        if let Some(outcome) = self.ended.get(from.op) {
            self.counts.duplicates += 1;
            match outcome {
                Outcome::Short { short } => {
                    let short = short.clone();
                    answer(from.address, from.op, Short { short }, &from.trace, out);
                }
                Outcome::Released => self.refuse(from, WrongState::new(from.op, "released"), out),
                Outcome::Kept => self.refuse(from, WrongState::new(from.op, "kept"), out),
            }
            return true;
        }
        // Writer and loader ask under an op as soon as they have made it: one that is older than what has
        // been forgotten was answered long ago, and nobody would ever give its pages back.
        let asks_at_once = [Maker::Writer, Maker::Loader].iter().any(|maker| range_of(from.op) == *maker as u64);
        if asks_at_once && self.ended.may_have_forgotten(from.op) {
            self.counts.late += 1;
            self.refuse(from, WrongState::new(from.op, "ended long ago"), out);
            return true;
        }
        false
    }

    fn check(&self, msg: &Reserve) -> Result<Tier, Refusal> {
        let tier = match msg.tier {
            1 => Tier::L1,
            2 => Tier::L2,
            _ => return Err(Malformed::new("tier", msg.tier, "1 or 2").into()),
        };
        match msg.owners.0.iter().find(|owner| **owner >= self.config.cp_size) {
            Some(owner) => Err(Malformed::new("owners", owner, format_args!("below {}", self.config.cp_size)).into()),
            None => Ok(tier),
        }
    }

    /// Gives a reservation its pages, or says what is short.
    pub(super) fn try_grant(&mut self, now: Time, op: OpId, out: &mut Vec<Effect>) -> Result<(), Vec<u32>> {
        let serial = self.next_serial();
        let Some(reservation) = self.reservations.get_mut(&op) else { return Ok(()) };
        let given = self.ledger.reserve(reservation.tier, &reservation.owners, serial);
        let Given { pages, runs } = match given {
            Ok(given) => given,
            Err(ReserveError::Short(shortfall)) => return Err(shortfall.per_rank),
            Err(ReserveError::UnknownOwner { .. }) => unreachable!("owners were checked when the request came"),
        };
        let line = Line::of(reservation);
        if let State::Parked { until, .. } = reservation.state {
            self.deadlines.remove(&(until, Due::Parked(op)));
        }
        let ask_at = now.plus_ms(self.config.whose_after_ms);
        self.deadlines.insert((ask_at, Due::Whose(op)));
        self.counts.reserved += 1;
        self.counts.reserved_pages += pages.len() as u64;
        self.counts.runs += u64::from(runs);
        answer(reservation.requester, op, Reserved { pages: Pages(pages.clone()) }, &reservation.trace, out);
        for (name, value) in [
            ("reserve.pages", pages.len() as u64),
            ("reserve.runs", u64::from(runs)),
            ("reserve.ranks", u64::from(reservation.lanes().len())),
            ("reserve.wait_ms", reservation.began.ms_until(now)),
        ] {
            out.push(Effect::Mark { op, name, value });
        }
        let left = pages.len();
        reservation.state = State::Granted { grant: Grant { pages, serial, left }, ask_at };
        self.serials.insert(serial, op);
        let granted = self.reservations.get(&op);
        out.extend(granted.and_then(|of| self.reserve_span(now, op, of, line, Ok(runs))).map(Effect::span));
        Ok(())
    }

    /// The reservation was not served in time.
    pub(super) fn give_up(&mut self, now: Time, op: OpId, out: &mut Vec<Effect>) {
        let Some(reservation) = self.reservations.get(&op) else { return };
        let tier = reservation.tier;
        let short = self.short_of(tier, &self.wanted(&reservation.owners));
        self.room_mut(tier).parked.retain(|parked| *parked != op);
        self.end_short(now, op, short, out);
        self.serve(now, tier, None, out);
    }

    /// Ends a reservation that stands in no line with what it is short of.
    pub(super) fn end_short(&mut self, now: Time, op: OpId, short: Vec<u32>, out: &mut Vec<Effect>) {
        let Some(reservation) = self.reservations.remove(&op) else { return };
        if let State::Parked { until, .. } = reservation.state {
            self.deadlines.remove(&(until, Due::Parked(op)));
        }
        self.counts.short += 1;
        answer(reservation.requester, op, Short { short: short.clone() }, &reservation.trace, out);
        out.push(Effect::Mark { op, name: "reserve.short_pages", value: short.iter().copied().map(u64::from).sum() });
        out.push(Effect::Mark { op, name: "reserve.wait_ms", value: reservation.began.ms_until(now) });
        let span = self.reserve_span(now, op, &reservation, Line::of(&reservation), Err(&short));
        out.extend(span.map(Effect::span));
        self.ended.note(now, op, Outcome::Short { short });
    }

    /// The reservation is old: its owner says whether it is still his. Until he does nothing is freed.
    pub(super) fn ask_whose(&mut self, now: Time, op: OpId, out: &mut Vec<Effect>) {
        let Some(mut reservation) = self.reservations.remove(&op) else { return };
        match reservation.state {
            State::Granted { grant, .. } if grant.pages.is_empty() => {
                self.serials.remove(&grant.serial);
                self.ended.note(now, op, Outcome::Kept);
            }
            State::Granted { grant, .. } => {
                self.counts.whose += 1;
                let msg = member(reservation.requester, Whose {}).expect("only members that own pages reserve"); // `admits` refuses all others
                self.calls.call(now, (op, WHOSE), msg, &reservation.trace, out);
                reservation.state = State::Asked { grant };
                self.reservations.insert(op, reservation);
            }
            State::Parked { .. } | State::Asked { .. } => {
                self.reservations.insert(op, reservation);
            }
        }
    }

    /// An owner speaks for a reservation, or does not know it.
    pub(super) fn whose_is(&mut self, now: Time, from: &Sender, mine: bool, out: &mut Vec<Effect>) {
        let Some(reservation) = self.reservations.get(&from.op) else {
            return match (self.ended.get(from.op), mine) {
                (Some(Outcome::Kept), _) | (Some(Outcome::Released | Outcome::Short { .. }), false) => {
                    self.counts.duplicates += 1;
                }
                (Some(Outcome::Released | Outcome::Short { .. }), true) => {
                    self.refuse(from, WrongState::new(from.op, "released"), out);
                }
                (None, _) => self.refuse(from, Unknown::new("reservation", from.op), out),
            };
        };
        if reservation.requester != from.address {
            return self.refuse(from, WrongState::new(from.op, "another member's"), out);
        }
        match (&reservation.state, mine) {
            (State::Parked { .. }, _) => self.refuse(from, WrongState::new(from.op, "parked"), out),
            (State::Granted { .. } | State::Asked { .. }, true) => self.end_kept(now, from.op),
            (State::Granted { .. }, false) => self.refuse(from, WrongState::new(from.op, "not asked for"), out),
            (State::Asked { grant }, false) => {
                let Reservation { tier, owners, .. } = reservation;
                let free = self.ledger.held_by(*tier, owners, &grant.pages, grant.serial);
                self.counts.disowned_pages += grant.left as u64;
                self.release(now, &free).expect("pages that are held can be freed"); // `held_by` names only pages of this very grant
                self.serve_all(now, out);
            }
        }
    }

    fn end_kept(&mut self, now: Time, op: OpId) {
        let Some(reservation) = self.reservations.remove(&op) else { return };
        match reservation.state {
            State::Parked { .. } => unreachable!("a parked reservation has nothing to keep"),
            State::Granted { grant, ask_at } => {
                self.deadlines.remove(&(ask_at, Due::Whose(op)));
                self.ledger.let_go(reservation.tier, &reservation.owners, &grant.pages, grant.serial);
                self.serials.remove(&grant.serial);
            }
            State::Asked { grant } => {
                self.calls.answered((op, WHOSE));
                self.ledger.let_go(reservation.tier, &reservation.owners, &grant.pages, grant.serial);
                self.serials.remove(&grant.serial);
            }
        }
        self.ended.note(now, op, Outcome::Kept);
    }

    /// One page of the reservation `serial` was freed; with the last one it has ended.
    pub(super) fn page_freed(&mut self, now: Time, serial: u32) {
        let Some(op) = self.serials.get(&serial).copied() else { return };
        let Some(reservation) = self.reservations.get_mut(&op) else { return };
        match &mut reservation.state {
            State::Parked { .. } => unreachable!("a parked reservation holds no page"),
            State::Granted { grant, .. } | State::Asked { grant } if grant.left > 1 => {
                grant.left -= 1;
                return;
            }
            State::Granted { ask_at, .. } => {
                self.deadlines.remove(&(*ask_at, Due::Whose(op)));
            }
            State::Asked { .. } => {
                self.calls.answered((op, WHOSE));
            }
        }
        self.serials.remove(&serial);
        self.reservations.remove(&op);
        self.ended.note(now, op, Outcome::Released);
    }

    /// Pages wanted on each lane.
    pub(super) fn wanted(&self, owners: &[u8]) -> Vec<u32> {
        let mut wanted = vec![0; usize::from(self.config.cp_size)];
        for owner in owners {
            wanted[usize::from(*owner)] += 1;
        }
        wanted
    }

    /// What is short of `wanted` on each lane.
    pub(super) fn short_of(&self, tier: Tier, wanted: &[u32]) -> Vec<u32> {
        let pools = self.ledger.pools(tier).pools();
        wanted.iter().zip(pools).map(|(wanted, pool)| wanted.saturating_sub(pool.free_pages())).collect()
    }

    fn next_serial(&mut self) -> u32 {
        loop {
            self.last_serial = self.last_serial.wrapping_add(1);
            // 0 is nobody, and after four thousand million reservations some number may still be in use.
            if self.last_serial != 0 && !self.serials.contains_key(&self.last_serial) {
                return self.last_serial;
            }
        }
    }
}

/// Asks the owner of a reservation whether it is still his.
const WHOSE: u16 = 1;
