//! Room that is being made in one tier, and the reservations that stand in line for it.

use std::collections::VecDeque;

use super::machine::{Allocator, Due};
use super::reservation::State;
use super::spans::room_made;
use crate::calls::Calls;
use crate::lives::RankSet;
use crate::machine::{Effect, Trace};
use crate::protocol::{EvictorIn, MakeRoom, OpId, Outgoing, RoomMade, Tier, Time};
use crate::span::Span;

/// One tier's line, and the round that runs for it.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// Parked reservations in the order in which they came.
    pub(super) parked: VecDeque<OpId>,
    round: Option<Round>,
    rounds: u64,
}

/// One `make_room` that is out.
#[derive(Debug)]
struct Round {
    op: OpId,
    number: u64,
    began: Time,
    /// What is said of it when it is over, where somebody records it.
    span: Option<Box<Span>>,
}

impl Room {
    /// Panics when the line is too long or nobody makes room for it; returns the open calls.
    pub(super) fn check_invariants(&self, calls: &Calls, parked_max: usize) -> usize {
        assert!(self.parked.len() <= parked_max);
        assert!(self.parked.is_empty() || self.round.is_some(), "nobody makes room for what is parked");
        let Some(round) = &self.round else { return 0 };
        assert!(calls.is_open((round.op, MAKE_ROOM)), "a round that nobody was asked for");
        1
    }
}

impl Allocator {
    /// Puts a reservation at the end of the line; room is made for it when no round runs.
    pub(super) fn park(&mut self, now: Time, op: OpId, short: Vec<u32>, out: &mut Vec<Effect>) {
        let until = now.plus_ms(self.config.parked_ms);
        let Some(reservation) = self.reservations.get_mut(&op) else { return };
        let tier = reservation.tier;
        reservation.state = State::Parked { short, round: None, until };
        self.deadlines.insert((until, Due::Parked(op)));
        self.counts.parked += 1;
        self.room_mut(tier).parked.push_back(op);
        self.make_room(now, tier, &None, out);
    }

    /// Lanes for which somebody stands in line.
    pub(super) fn lanes_in_line(&self, tier: Tier) -> RankSet {
        let parked = self.room(tier).parked.iter().filter_map(|op| self.reservations.get(op));
        parked.flat_map(|reservation| reservation.lanes().iter()).collect()
    }

    /// Room is made ahead of need when a lane is below its low mark, on behalf of whoever brought it there.
    pub(super) fn keep_room(&mut self, now: Time, tier: Tier, trace: &Trace, out: &mut Vec<Effect>) {
        if self.ledger.pools(tier).below_low().next().is_some() {
            self.make_room(now, tier, trace, out);
        }
    }

    /// The evictor has done what it could: whoever this round was for is tried once more, then answered.
    pub(super) fn room_made(&mut self, now: Time, op: OpId, msg: &RoomMade, out: &mut Vec<Effect>) {
        let is_of = |tier: &Tier| self.room(*tier).round.as_ref().is_some_and(|round| round.op == op);
        let tier = [Tier::L1, Tier::L2].into_iter().find(is_of);
        let Some((tier, round)) = tier.and_then(|tier| Some((tier, self.room_mut(tier).round.take()?))) else {
            self.counts.late += 1;
            return;
        };
        self.calls.answered((op, MAKE_ROOM));
        out.extend(round.span.map(|span| Effect::span(room_made(now, *span, msg))));
        for (name, value) in [
            ("room.freed", msg.freed.iter().copied().map(u64::from).sum()),
            ("room.pending", u64::from(msg.pending)),
            ("room.wait_ms", round.began.ms_until(now)),
        ] {
            out.push(Effect::Mark { op, name, value });
        }
        self.serve(now, tier, Some(round.number), out);
        if !self.room(tier).parked.is_empty() {
            self.make_room(now, tier, &None, out);
        }
    }

    /// Serves both lines with what has come free.
    pub(super) fn serve_all(&mut self, now: Time, out: &mut Vec<Effect>) {
        self.serve(now, Tier::L1, None, out);
        self.serve(now, Tier::L2, None, out);
    }

    /// Serves the line in order; nobody overtakes one that waits for the same lane. With `over`, those whose
    /// round that was are answered with what is short when there is still no room.
    pub(super) fn serve(&mut self, now: Time, tier: Tier, over: Option<u64>, out: &mut Vec<Effect>) {
        let line = std::mem::take(&mut self.room_mut(tier).parked);
        if line.is_empty() {
            return;
        }
        let (mut still, mut waiting, mut granted) = (VecDeque::new(), RankSet::EMPTY, None);
        for op in line {
            let Some(reservation) = self.reservations.get(&op) else { continue };
            let State::Parked { round, .. } = &reservation.state else { continue };
            let (lanes, is_last_try) = (reservation.lanes(), over.is_some() && *round == over);
            if waiting.without(lanes) == waiting {
                match self.try_grant(now, op, out) {
                    Ok(()) => {
                        granted = Some(op);
                        continue;
                    }
                    Err(short) if is_last_try => {
                        self.end_short(now, op, short, out);
                        continue;
                    }
                    Err(_) => {}
                }
            }
            lanes.iter().for_each(|lane| waiting.insert(lane));
            still.push_back(op);
        }
        self.room_mut(tier).parked = still;
        if let Some(op) = granted {
            let trace = self.reservations.get(&op).and_then(|reservation| reservation.trace.clone());
            self.keep_room(now, tier, &trace, out);
        }
    }

    /// Asks the evictor for room, for all that are parked and up to the high marks, unless a round runs. It is for
    /// the first in line, or in `trace` when nobody stands there.
    fn make_room(&mut self, now: Time, tier: Tier, trace: &Trace, out: &mut Vec<Effect>) {
        if self.room(tier).round.is_some() {
            return;
        }
        let wants = self.wants(tier);
        let number = self.room(tier).rounds + 1;
        for op in self.room(tier).parked.clone() {
            if let Some(State::Parked { round, .. }) = self.reservations.get_mut(&op).map(|parked| &mut parked.state) {
                *round = Some(number);
            }
        }
        let first = self.room(tier).parked.front().and_then(|op| self.reservations.get(op));
        let trace = first.map_or_else(|| trace.clone(), |first| first.trace.clone());
        let op = self.ids.draw();
        let span = self.room_span(now, op, tier, &wants, &trace).map(Box::new);
        let room = self.room_mut(tier);
        room.rounds = number;
        room.round = Some(Round { op, number, began: now, span });
        self.counts.rounds += 1;
        let tier = if tier == Tier::L1 { 1 } else { 2 };
        let msg = Outgoing::Evictor(EvictorIn::from(MakeRoom { tier, wants }));
        self.calls.call(now, (op, MAKE_ROOM), msg, &trace, out);
    }

    /// Pages wanted on each lane: what those in line are short of together, and with marks up to the high one.
    fn wants(&self, tier: Tier) -> Vec<u32> {
        let lanes = usize::from(self.config.cp_size);
        let (mut demand, mut least) = (vec![0u32; lanes], vec![0u32; lanes]);
        for op in &self.room(tier).parked {
            let Some(reservation) = self.reservations.get(op) else { continue };
            for (sum, pages) in demand.iter_mut().zip(self.wanted(&reservation.owners)) {
                *sum = sum.saturating_add(pages);
            }
            if let State::Parked { short, .. } = &reservation.state {
                // With runs required a lane can be short although enough of it is free.
                least.iter_mut().zip(short).for_each(|(least, short)| *least = (*least).max(*short));
            }
        }
        let pools = self.ledger.pools(tier).pools();
        let want = |((pool, demand), least): ((&super::PagePool, u32), u32)| {
            let (free, marks) = (pool.free_pages(), pool.marks());
            let low = demand.saturating_add(marks.low_pages());
            let up_to = if free < low { demand.saturating_add(marks.high_pages()) } else { demand };
            up_to.saturating_sub(free).max(least).min(pool.capacity_pages() - free)
        };
        pools.zip(demand).zip(least).map(want).collect()
    }
}

/// The only request of a round.
const MAKE_ROOM: u16 = 0;
