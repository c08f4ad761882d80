//! How a copy of several ranks went: when it had its pages, and which rank was the last.

use crate::protocol::{Rank, Time};
use crate::span::Span;

/// What an op that reserves and then copies keeps for its span.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Course {
    reserved: Option<Time>,
    last: Option<(Time, Rank)>,
}

impl Course {
    /// The allocator has given its pages, or none.
    pub(crate) const fn reserved(&mut self, now: Time) {
        self.reserved = Some(now);
    }

    /// A rank has said how its copy ended.
    pub(crate) const fn acknowledged(&mut self, now: Time, rank: Rank) {
        self.last = Some((now, rank));
    }

    /// The rank that was the last to say so.
    pub(crate) fn straggler(&self) -> Option<Rank> {
        self.last.map(|(_, rank)| rank)
    }

    /// Adds the wait for pages, the time from there to the last acknowledgement, and whose that was.
    pub(crate) fn explain(&self, span: Span) -> Span {
        let Some(reserved) = self.reserved else { return span };
        let began = span.began;
        let span = span.micros("copy.reserve_wait_us", began, reserved);
        match self.last {
            None => span,
            Some((last, rank)) => span.micros("copy.last_ack_us", reserved, last).count("copy.straggler_rank", rank.0),
        }
    }
}
