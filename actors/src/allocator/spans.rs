//! What the allocator says of a reservation, and of room that was made, when it is over.

use super::machine::Allocator;
use super::reservation::{Reservation, State};
use crate::machine::Trace;
use crate::protocol::{OpId, Rank, RoomMade, Tier, Time};
use crate::span::Span;

/// How a reservation stood in line when it was answered.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Line {
    parked: bool,
    room_made: bool,
}

impl Line {
    pub(super) fn of(reservation: &Reservation) -> Self {
        match &reservation.state {
            // Whoever stands in line knows what it is short of, if only of nothing.
            State::Parked { short, round, .. } => Self { parked: !short.is_empty(), room_made: round.is_some() },
            State::Granted { .. } | State::Asked { .. } => Self::default(),
        }
    }
}

impl Allocator {
    /// The span of a reservation that got its pages in so many runs, or is short of so many pages on each lane.
    pub(super) fn reserve_span(
        &self,
        now: Time,
        op: OpId,
        of: &Reservation,
        line: Line,
        answer: Result<u32, &[u32]>,
    ) -> Option<Span> {
        let parent = of.trace.clone()?;
        let lanes = of.lanes();
        let pools = (0..).map(Rank).zip(self.ledger.pools(of.tier).pools());
        let longest = pools.filter(|(lane, _)| lanes.contains(*lane)).map(|(_, pool)| pool.longest_run_pages()).min();
        let span = Span::new("reserve", op, parent, of.began, now)
            .count("reserve.tier", number(of.tier))
            .count("reserve.pages", of.owners.len() as u64)
            .count("reserve.lanes", lanes.len())
            .flag("reserve.parked", line.parked)
            .flag("reserve.room_made", line.room_made)
            .micros("reserve.wait_us", of.began, now)
            .count("reserve.longest_free_run_pages", longest.unwrap_or(0));
        Some(match answer {
            Ok(runs) => span.count("reserve.runs", runs),
            Err(short) => span
                .flag("reserve.tier_open", self.is_open(of.tier))
                .counts("reserve.short_pages", short.iter().copied())
                .fault(Some("OutOfPages")),
        })
    }

    /// The span of a round that begins: `wants` of each lane, for those in line or else ahead of need.
    pub(super) fn room_span(&self, now: Time, op: OpId, tier: Tier, wants: &[u32], trace: &Trace) -> Option<Span> {
        let parent = trace.clone()?;
        let line = &self.room(tier).parked;
        let others = line.iter().skip(1).filter_map(|op| self.reservations.get(op)?.trace.clone());
        let mut span = Span::new("make_room", op, parent, now, now)
            .count("room.tier", number(tier))
            .counts("room.wanted_pages", wants.iter().copied())
            .count("room.reservations", line.len() as u64)
            .flag("room.ahead_of_need", line.is_empty());
        span.links.extend(others);
        Some(span)
    }
}

/// The span of a round that is over.
pub(super) fn room_made(now: Time, span: Span, made: &RoomMade) -> Span {
    let span = span.counts("room.freed_pages", made.freed.iter().copied()).count("room.pending_pages", made.pending);
    Span { ended: now, ..span }
}

const fn number(tier: Tier) -> u64 {
    match tier {
        Tier::L1 => 1,
        Tier::L2 => 2,
    }
}
