//! One transfer as its sender sees it: its states, and what each of them waits for.

use std::collections::BTreeSet;

use super::{SenderConfig, tell};
use crate::calls::{CallId, Calls};
use crate::course::Course;
use crate::faults::{Fault, Faults};
use crate::lives::RankSet;
use crate::machine::{Effect, Trace};
use crate::protocol::{
    Bin, Finished, GroupName, Incarnation, IndexNews, NOBODY, OpId, Owners, PageId, PeerPage, Position, PushFigures,
    Rank, SendOver, SendTaken, Time, Wanted,
};
use crate::span::Span;

/// A transfer that runs, or whose end the peer has not heard of.
#[derive(Debug)]
pub(super) struct Op {
    pub(super) attempt: u32,
    /// The decode group.
    pub(super) group: GroupName,
    /// The session whose pages they are.
    pub(super) session: OpId,
    /// Tokens of its prompt.
    pub(super) tokens: u32,
    pub(super) trace: Trace,
    pub(super) began: Time,
    pub(super) course: Course,
    /// Parts taken.
    pub(super) parts: u32,
    /// The owner of each position that a part has named; [`NOBODY`] of the others.
    pub(super) owners: Vec<u8>,
    /// What the index said last, when it has named every page.
    pub(super) end: Option<End>,
    /// What each rank measured.
    pub(super) figures: Vec<PushFigures>,
    pub(super) state: State,
}

/// ```text
/// Opening -> Offered -> Sending -> Finishing -> (received)
///    |          |          |           |
///    |          |          v           |
///    |          |       Stopping       |
///    |          v          v           |
///    |          Ceasing <--+-----------+
///    v             v
///  (failed)     (failed)
/// ```
/// A failure reaches `Ceasing` only if the peer has been told of the transfer and lives.
#[derive(Debug)]
pub(super) enum State {
    /// The peer has not been met.
    Opening { parts: Vec<Part> },
    /// The peer is asked what it wants.
    Offered { peer: Incarnation, parts: Vec<Part> },
    /// Ranks push; those of `open` have not said how it went, or the index has not named every page.
    Sending { peer: Incarnation, way: Way, open: BTreeSet<(u32, Rank)> },
    /// Everything wanted is there; the peer checks.
    Finishing { peer: Incarnation, way: Way },
    /// It failed; ranks in `waiting` may still read.
    Stopping { peer: Incarnation, waiting: RankSet, cause: String },
    /// Nothing reads any more, and the index knows; the peer is told until it has heard.
    Ceasing { peer: Incarnation, cause: String },
}

/// Pages that a part has named.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) number: u32,
    pub(super) first: u32,
    pub(super) pages: Vec<PageId>,
    /// The step that computes them, 0 when they are complete.
    pub(super) step: u64,
}

/// What the peer wants, and how to get it there.
#[derive(Debug, Default)]
pub(super) struct Way {
    /// In ascending order.
    positions: Vec<Position>,
    /// One for each position.
    slots: Vec<PeerPage>,
    pub(super) endpoint: String,
    pub(super) grant: Bin,
    /// Components to send; empty for all.
    pub(super) components: Vec<String>,
}

/// What the index says when it has named every page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct End {
    pub(super) tokens: u32,
    pub(super) blob: Bin,
}

/// How an attempt ended; the answer to whoever asks again.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub(super) attempt: u32,
    /// Why the decode side has not all of it.
    pub(super) failure: Option<String>,
}

impl Outcome {
    pub(super) fn news(&self) -> IndexNews {
        over(self.attempt, self.failure.as_deref())
    }
}

impl Way {
    pub(super) fn of(wanted: Wanted) -> Self {
        let Wanted { attempt: _, positions, slots, endpoint, grant, components } = wanted;
        Self { positions: positions.0, slots: slots.0, endpoint, grant, components }
    }

    /// The slot for the page at `position`, if it is wanted.
    pub(super) fn slot(&self, position: Position, faults: Faults) -> Option<PeerPage> {
        let mut at = self.positions.binary_search(&position).ok()?;
        if faults.is(Fault::TransferPositionOffByOne) {
            at = (at + 1) % self.slots.len();
        }
        self.slots.get(at).copied()
    }

    /// Whether `wanted` says the same.
    pub(super) fn is(&self, wanted: &Wanted) -> bool {
        self.positions == wanted.positions.0
            && self.slots == wanted.slots.0
            && self.endpoint == wanted.endpoint
            && self.grant == wanted.grant
            && self.components == wanted.components
    }

    pub(super) const fn pages(&self) -> usize {
        self.positions.len()
    }

    /// The first wanted position that no part has named.
    pub(super) fn unnamed(&self, owners: &[u8]) -> Option<Position> {
        self.positions.iter().copied().find(|position| owner_of(owners, *position) == NOBODY)
    }

    fn owners(&self, owners: &[u8]) -> Owners {
        Owners(self.positions.iter().map(|position| owner_of(owners, *position)).collect())
    }
}

impl Op {
    /// Says what the index has been told already.
    pub(super) fn tell_again(&self, op: OpId, trace: &Trace, out: &mut Vec<Effect>) {
        let news = match &self.state {
            State::Opening { .. }
            | State::Offered { .. }
            | State::Sending { .. }
            | State::Finishing { .. }
            | State::Stopping { .. } => self.taken(),
            State::Ceasing { cause, .. } => over(self.attempt, Some(cause)),
        };
        tell(op, news, trace, out);
    }

    /// How far the index has been heard.
    pub(super) fn taken(&self) -> IndexNews {
        SendTaken { attempt: self.attempt, parts: self.parts }.into()
    }

    /// The life of the peer that was told of this transfer.
    pub(super) const fn peer(&self) -> Option<Incarnation> {
        match &self.state {
            State::Opening { .. } => None,
            State::Offered { peer, .. }
            | State::Sending { peer, .. }
            | State::Finishing { peer, .. }
            | State::Stopping { peer, .. }
            | State::Ceasing { peer, .. } => Some(*peer),
        }
    }

    /// Whether a timer ends what it waits for: not while a rank may read.
    pub(super) const fn is_timed(&self) -> bool {
        match &self.state {
            State::Stopping { .. } => false,
            State::Opening { .. }
            | State::Offered { .. }
            | State::Sending { .. }
            | State::Finishing { .. }
            | State::Ceasing { .. } => true,
        }
    }

    /// What the peer is told when everything wanted is there.
    pub(super) fn finished(&self, way: &Way, end: &End) -> Finished {
        Finished {
            attempt: self.attempt,
            tokens: end.tokens,
            owners: way.owners(&self.owners),
            straggler: self.course.straggler().unwrap_or_default(),
            blob: end.blob.clone(),
        }
    }

    /// What is said of the transfer `op` when nothing of it reads any more.
    pub(super) fn span(&self, now: Time, op: OpId, config: &SenderConfig, failure: Option<&str>) -> Option<Span> {
        let parent = self.trace.clone()?;
        let row = |of: fn(&PushFigures) -> u64| self.figures.iter().map(of);
        let named = self.owners.iter().filter(|owner| **owner != NOBODY).count() as u64;
        let span = Span::new("transfer.send", op, parent, self.began, now)
            .text("transfer.to", &self.group)
            .text("transfer.session", format_args!("{:?}", self.session))
            .count("transfer.attempt", self.attempt)
            .count("transfer.tokens", self.tokens)
            .count("transfer.parts", self.parts)
            .count("transfer.named_pages", named)
            .count("transfer.buffers", config.manifest.buffers())
            .counts("transfer.rank_bytes", row(|figures| figures.bytes))
            .counts("transfer.rank_runs", row(|figures| figures.runs))
            .counts("transfer.rank_descriptors", row(|figures| figures.descriptors))
            .counts("transfer.rank_queue_us", row(|figures| figures.queue_us))
            .counts("transfer.rank_layers_us", row(|figures| figures.layers_us))
            .counts("transfer.rank_wire_us", row(|figures| figures.wire_us))
            .counts("transfer.rank_total_us", row(|figures| figures.total_us));
        let span = self.course.explain(span);
        Some(match failure {
            None => span,
            Some(cause) => span.text("transfer.cause", cause).fault(Some("TransferFailed")),
        })
    }

    /// Panics when the state lacks something or waits for what it does not need; returns its open calls.
    pub(super) fn check_invariants(&self, op: OpId, calls: &Calls, met: Option<Incarnation>) -> usize {
        let mut needed: Vec<CallId> = Vec::new();
        match &self.state {
            State::Opening { parts } => {
                assert_eq!(parts.len(), self.parts as usize);
                assert!(met.is_none(), "{op:?} is not offered to a peer that was met");
            }
            State::Offered { parts, .. } => {
                assert_eq!(parts.len(), self.parts as usize);
                needed.push((op, OFFER));
            }
            State::Sending { way, open, .. } => {
                assert_eq!(way.positions.len(), way.slots.len());
                assert!(!open.is_empty() || self.end.is_none(), "{op:?} has sent everything and does not say so");
                needed.extend(open.iter().map(|(part, rank)| push_call(op, *part, *rank)));
            }
            State::Finishing { way, .. } => {
                assert_eq!(way.unnamed(&self.owners), None, "{op:?} is finished without a page");
                needed.push((op, FINISHED));
            }
            State::Stopping { waiting, .. } => {
                assert!(!waiting.is_empty(), "{op:?} has nobody left to stop");
                needed.extend(waiting.iter().map(|rank| stop_call(op, rank)));
            }
            State::Ceasing { .. } => needed.push((op, CEASED)),
        }
        for call in &needed {
            assert!(calls.is_open(*call), "{op:?} waits for {call:?} and does not ask");
        }
        match &self.state {
            State::Opening { .. } | State::Stopping { .. } => {}
            State::Offered { peer, .. }
            | State::Sending { peer, .. }
            | State::Finishing { peer, .. }
            | State::Ceasing { peer, .. } => assert_eq!(met, Some(*peer), "{op:?} waits for a peer that is gone"),
        }
        needed.len()
    }
}

/// An attempt is over, with or without `failure`.
pub(super) fn over(attempt: u32, failure: Option<&str>) -> IndexNews {
    SendOver { attempt, ok: failure.is_none(), cause: failure.unwrap_or_default().to_owned() }.into()
}

fn owner_of(owners: &[u8], position: Position) -> u8 {
    owners.get(position.0 as usize).copied().unwrap_or(NOBODY)
}

/// The call that has `rank` push its pages of `part`.
pub(super) fn push_call(op: OpId, part: u32, rank: Rank) -> CallId {
    (op, PUSH + part as u16 * u16::from(crate::protocol::CP_SIZE_MAX) + u16::from(rank.0))
}

/// The call that has `rank` stop.
pub(super) fn stop_call(op: OpId, rank: Rank) -> CallId {
    (op, STOP + u16::from(rank.0))
}

/// Offers the transfer to the peer.
pub(super) const OFFER: u16 = 0;
/// Tells the peer that everything is there.
pub(super) const FINISHED: u16 = 1;
/// Tells the peer that nothing more comes.
pub(super) const CEASED: u16 = 2;
const STOP: u16 = 0x100;
/// Above this there is a call for each part and rank: [`super::PARTS_MAX`] of them fit.
const PUSH: u16 = 0x200;
