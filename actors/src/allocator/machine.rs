//! The allocator of a group: reservations of both tiers, room made once for those that find none, and pages
//! that come back.
//!
//! Invariants: a reservation is answered once with pages, or with what is short and nothing taken; each that
//! was parked saw room being made after it was parked; parked reservations are served in order, before new
//! ones that want the same lanes. Nothing but a free, or an owner that does not know its reservation, frees.
//! Not here: keys and nodes (prefix_index); who has to leave (evictor, prefix_index).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::ledger::{FreeRoom, Ledger, LedgerError};
use super::reservation::{Outcome, Reservation, State};
use super::restore::Restoring;
use super::returns::FreeEnd;
use super::room::Room;
use super::{Contiguity, PoolFigures};
use crate::calls::Calls;
use crate::ended::{ENDED_MAX, ENDED_MS, Ended};
use crate::faults::Faults;
use crate::machine::{Effect, Machine, Sender, Trace};
use crate::makers::{Maker, MakerIds};
use crate::protocol::{
    Address, AllocatorIn, Answer, Counted, Freed, Incarnation, IndexNews, LoaderIn, OpId, Outgoing, Refusal, Rejected,
    Tier, Time, Unsupported, WriterIn, WrongState,
};

/// What an allocator is built with.
#[derive(Clone, Debug)]
pub struct AllocatorConfig {
    /// Ranks of the group.
    pub cp_size: u8,
    /// Physical pages of each L1 lane, the padding page included.
    pub l1_physical_pages: u32,
    /// Slots of each L2 pool.
    pub l2_slots: u32,
    /// Whether the slots of one reservation lie side by side; L1 always prefers that.
    pub contiguity: Contiguity,
    /// Marks between which room is kept free; none makes exactly the room that is asked for.
    pub free_room: Option<FreeRoom>,
    /// Most parked reservations of each tier.
    pub parked_max: usize,
    /// How long one is parked before it is answered with what is short.
    pub parked_ms: u64,
    /// Age at which the owner of a reservation is asked about it.
    pub whose_after_ms: u64,
    /// How long an outcome is kept for repeats.
    pub ended_ms: u64,
    /// How many outcomes of each kind are kept for repeats.
    pub ended_max: usize,
    /// The planted fault.
    pub faults: Faults,
}

impl AllocatorConfig {
    /// The defaults for pools of this size.
    pub fn new(cp_size: u8, l1_physical_pages: u32, l2_slots: u32) -> Self {
        Self {
            cp_size,
            l1_physical_pages,
            l2_slots,
            contiguity: Contiguity::Prefer,
            free_room: Some(FreeRoom::shares(l1_physical_pages.saturating_sub(1), l2_slots)),
            parked_max: 256,
            parked_ms: 10_000,
            whose_after_ms: 60_000,
            ended_ms: ENDED_MS,
            ended_max: ENDED_MAX,
            faults: Faults::NONE,
        }
    }
}

/// The allocator of one group.
#[derive(Debug)]
pub struct Allocator {
    pub(super) config: AllocatorConfig,
    pub(super) ids: MakerIds,
    pub(super) calls: Calls,
    pub(super) ledger: Ledger,
    pub(super) restoring: Restoring,
    pub(super) is_l1_open: bool,
    /// Reservations that are parked or whose owner has not spoken for them, by their op.
    pub(super) reservations: BTreeMap<OpId, Reservation>,
    /// Those that hold pages, by the number the ledger knows them by.
    pub(super) serials: BTreeMap<u32, OpId>,
    pub(super) last_serial: u32,
    pub(super) l1_room: Room,
    pub(super) l2_room: Room,
    pub(super) deadlines: BTreeSet<(Time, Due)>,
    pub(super) ended: Ended<Outcome>,
    pub(super) ended_frees: Ended<FreeEnd>,
    pub(super) counts: Counts,
}

/// What is done at a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Due {
    /// A reservation was parked for long enough.
    Parked(OpId),
    /// A reservation is old: its owner is asked.
    Whose(OpId),
}

#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) reserved: u64,
    pub(super) reserved_pages: u64,
    pub(super) runs: u64,
    pub(super) parked: u64,
    pub(super) short: u64,
    pub(super) rounds: u64,
    pub(super) freed_pages: u64,
    pub(super) disowned_pages: u64,
    pub(super) duplicates: u64,
    pub(super) refused: u64,
    pub(super) refused_frees: u64,
    pub(super) late: u64,
    pub(super) foreign: u64,
    pub(super) whose: u64,
}

impl Allocator {
    /// An allocator whose pages are all free; L2 opens with the last part of a restore, L1 when it is told.
    ///
    /// # Errors
    /// [`LedgerError`] when the sizes or marks of `config` do not fit.
    pub fn new(config: AllocatorConfig, incarnation: Incarnation, seed: u64) -> Result<Self, LedgerError> {
        let AllocatorConfig { cp_size, l1_physical_pages, l2_slots, contiguity, free_room, .. } = config;
        Ok(Self {
            ids: MakerIds::new(incarnation, Maker::Allocator),
            calls: Calls::new(seed),
            ledger: Ledger::new(cp_size, l1_physical_pages, l2_slots, contiguity, free_room)?,
            restoring: Restoring::new(config.ended_ms, config.ended_max),
            is_l1_open: false,
            reservations: BTreeMap::new(),
            serials: BTreeMap::new(),
            last_serial: 0,
            l1_room: Room::default(),
            l2_room: Room::default(),
            deadlines: BTreeSet::new(),
            ended: Ended::new(config.ended_ms, config.ended_max),
            ended_frees: Ended::new(config.ended_ms, config.ended_max),
            counts: Counts::default(),
            config,
        })
    }

    /// What the pools of a tier show of themselves, in the order of the ranks.
    pub fn figures(&self, tier: Tier) -> Vec<PoolFigures> {
        self.ledger.pools(tier).pools().map(super::PagePool::figures).collect()
    }

    /// Free pages of each rank.
    pub fn free_pages(&self, tier: Tier) -> Vec<u32> {
        self.ledger.pools(tier).pools().map(super::PagePool::free_pages).collect()
    }

    pub(super) const fn room_mut(&mut self, tier: Tier) -> &mut Room {
        match tier {
            Tier::L1 => &mut self.l1_room,
            Tier::L2 => &mut self.l2_room,
        }
    }

    pub(super) const fn room(&self, tier: Tier) -> &Room {
        match tier {
            Tier::L1 => &self.l1_room,
            Tier::L2 => &self.l2_room,
        }
    }

    /// Whether reservations of this tier have begun.
    pub(super) const fn is_open(&self, tier: Tier) -> bool {
        match tier {
            Tier::L1 => self.restoring.is_over() && self.is_l1_open,
            Tier::L2 => self.restoring.is_over(),
        }
    }

    fn open_lanes(&mut self, now: Time, from: &Sender, out: &mut Vec<Effect>) {
        if !self.restoring.is_over() {
            return self.refuse(from, WrongState::new("restore", "not over"), out);
        }
        self.is_l1_open = true;
        answer(from.address, from.op, Freed {}, &from.trace, out);
        self.keep_room(now, Tier::L1, &from.trace, out);
    }

    /// Whether the sender may send this; the one place where that is judged.
    fn admits(&mut self, from: &Sender, msg: &AllocatorIn, out: &mut Vec<Effect>) -> bool {
        let right = match msg {
            AllocatorIn::Reserve(_) | AllocatorIn::Free(_) | AllocatorIn::WhoseIs(_) => {
                matches!(from.address, Address::Index | Address::Writer | Address::Loader)
            }
            AllocatorIn::Restore(_) | AllocatorIn::OpenLanes(_) | AllocatorIn::Count(_) => {
                from.address == Address::Index
            }
            AllocatorIn::RoomMade(_) => from.address == Address::Evictor,
        };
        if !right {
            self.counts.foreign += 1;
            let (field, value) = ("sender".to_owned(), from.address.to_string());
            let unsupported = Unsupported { field, value, limit: "a member that owns pages".to_owned() };
            if let Some(to) = from.reply.clone() {
                out.push(Effect::Reply { to, op: from.op, answer: Answer::Refused(unsupported.into()) });
            }
        }
        right
    }

    /// Tells the sender why nothing was done.
    pub(super) fn refuse(&mut self, from: &Sender, refusal: impl Into<Refusal>, out: &mut Vec<Effect>) {
        self.counts.refused += 1;
        answer(from.address, from.op, Rejected { refusal: refusal.into() }, &from.trace, out);
    }
}

impl Machine for Allocator {
    type In = AllocatorIn;

    fn handle(&mut self, now: Time, from: &Sender, msg: AllocatorIn, out: &mut Vec<Effect>) {
        if !self.admits(from, &msg, out) {
            return;
        }
        match msg {
            AllocatorIn::Reserve(msg) => self.reserve(now, from, msg, out),
            AllocatorIn::Free(msg) => self.free(now, from, &msg, out),
            AllocatorIn::Restore(msg) => self.restore(now, from, &msg, out),
            AllocatorIn::OpenLanes(_) => self.open_lanes(now, from, out),
            AllocatorIn::Count(_) => {
                let counted = Counted { l1_free: self.free_pages(Tier::L1), l2_free: self.free_pages(Tier::L2) };
                answer_index(from, counted, out);
            }
            AllocatorIn::RoomMade(msg) => self.room_made(now, from.op, &msg, out),
            AllocatorIn::WhoseIs(msg) => self.whose_is(now, from, msg.mine, out),
        }
    }

    fn wake(&mut self, now: Time, out: &mut Vec<Effect>) {
        self.calls.wake(now, out);
        while let Some((at, due)) = self.deadlines.first().copied().filter(|(at, _)| *at <= now) {
            self.deadlines.remove(&(at, due));
            match due {
                Due::Parked(op) => self.give_up(now, op, out),
                Due::Whose(op) => self.ask_whose(now, op, out),
            }
        }
        self.ended.wake(now);
        self.ended_frees.wake(now);
        self.restoring.wake(now);
    }

    fn next_deadline(&self) -> Option<(Time, &'static str)> {
        let due = self.deadlines.first().map(|(at, due)| match due {
            Due::Parked(_) => (*at, "parked reservation"),
            Due::Whose(_) => (*at, "old reservation"),
        });
        let repeat = self.calls.next_deadline().map(|at| (at, "repeat"));
        let ended = self.ended.next_deadline().map(|at| (at, "ended op"));
        let frees = self.ended_frees.next_deadline().map(|at| (at, "ended free"));
        let restores = self.restoring.next_deadline().map(|at| (at, "ended restore"));
        [due, repeat, ended, frees, restores].into_iter().flatten().min()
    }

    fn resync(&mut self, now: Time, peer: Address, out: &mut Vec<Effect>) {
        self.calls.resync(now, peer, out);
    }

    fn check_invariants(&self) {
        let mut held = self.ledger.check_invariants();
        let mut calls = 0;
        let mut parked: [VecDeque<OpId>; 2] = [self.l1_room.parked.clone(), self.l2_room.parked.clone()];
        for (op, reservation) in &self.reservations {
            assert!(self.ended.get(*op).is_none(), "{op:?} runs and has ended");
            let tier = reservation.tier;
            match &reservation.state {
                State::Parked { until, .. } => {
                    let queue = &mut parked[usize::from(tier == Tier::L2)];
                    let at = queue.iter().position(|of| of == op).expect("a parked reservation stands in line"); // a check of our own: it is there to panic
                    queue.remove(at);
                    assert!(self.deadlines.contains(&(*until, Due::Parked(*op))), "{op:?} is parked for ever");
                }
                State::Granted { grant, ask_at } => {
                    held -= grant.check_invariants(reservation, &self.ledger);
                    assert!(self.deadlines.contains(&(*ask_at, Due::Whose(*op))), "{op:?} never grows old");
                }
                State::Asked { grant } => {
                    held -= grant.check_invariants(reservation, &self.ledger);
                    calls += 1;
                }
            }
        }
        assert_eq!(held, 0, "pages that no reservation holds have a holder");
        assert!(parked.iter().all(VecDeque::is_empty), "what stands in line is not parked");
        calls += self.l1_room.check_invariants(&self.calls, self.config.parked_max);
        calls += self.l2_room.check_invariants(&self.calls, self.config.parked_max);
        assert_eq!(self.calls.len(), calls, "a call that nothing waits for");
        assert!(self.deadlines.len() <= self.reservations.len(), "a deadline of nothing");
        self.ended.check_invariants();
        self.ended_frees.check_invariants();
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let free = |tier| self.free_pages(tier).into_iter().map(u64::from).sum();
        let counts = &self.counts;
        vec![
            ("allocator.l1_free_pages", free(Tier::L1)),
            ("allocator.l2_free_pages", free(Tier::L2)),
            ("allocator.reservations", self.reservations.len() as u64),
            ("allocator.reserved", counts.reserved),
            ("allocator.reserved_pages", counts.reserved_pages),
            ("allocator.runs", counts.runs),
            ("allocator.parked", counts.parked),
            ("allocator.short", counts.short),
            ("allocator.rounds", counts.rounds),
            ("allocator.freed_pages", counts.freed_pages),
            ("allocator.disowned_pages", counts.disowned_pages),
            ("allocator.duplicates", counts.duplicates),
            ("allocator.refused", counts.refused),
            ("allocator.refused_frees", counts.refused_frees),
            ("allocator.late", counts.late),
            ("allocator.foreign", counts.foreign),
            ("allocator.whose", counts.whose),
            ("allocator.repeats", self.calls.repeats()),
            ("allocator.crowded_out", self.ended.crowded_out() + self.ended_frees.crowded_out()),
        ]
    }
}

/// Says `msg` about `op` to the member it concerns; nobody else is spoken to.
pub(super) fn answer<M>(to: Address, op: OpId, msg: M, trace: &Trace, out: &mut Vec<Effect>)
where
    IndexNews: From<M>,
    WriterIn: From<M>,
    LoaderIn: From<M>,
{
    if let Some(to) = member(to, msg) {
        out.push(Effect::Send { to, op, trace: trace.clone() });
    }
}

/// Says `news` to the index about the op of its request.
pub(super) fn answer_index(from: &Sender, news: impl Into<IndexNews>, out: &mut Vec<Effect>) {
    out.push(Effect::Send { to: Outgoing::Index(news.into()), op: from.op, trace: from.trace.clone() });
}

/// `msg` for a member that owns pages.
pub(super) fn member<M>(to: Address, msg: M) -> Option<Outgoing>
where
    IndexNews: From<M>,
    WriterIn: From<M>,
    LoaderIn: From<M>,
{
    match to {
        Address::Index => Some(Outgoing::Index(msg.into())),
        Address::Writer => Some(Outgoing::Writer(msg.into())),
        Address::Loader => Some(Outgoing::Loader(msg.into())),
        Address::Allocator
        | Address::Evictor
        | Address::Sender
        | Address::Receiver
        | Address::Rank(_)
        | Address::Engine => None,
    }
}
