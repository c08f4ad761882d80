//! One load: its states, and what each of them waits for.

use super::tell;
use crate::calls::{CallId, Calls};
use crate::course::Course;
use crate::lives::RankSet;
use crate::machine::{Effect, Trace};
use crate::protocol::{
    Incarnation, IndexNews, Load, LoadCopy, LoadEnded, LoadMissed, LoadStarted, OpId, OpSettled, PageId, Pages, Rank,
    Time,
};
use crate::span::Span;

/// A load that runs, or whose ring slot has not been released.
#[derive(Debug)]
pub(super) struct Op {
    pub(super) load: Load,
    /// The ring slot.
    pub(super) slot: u32,
    /// The op under which the allocator is asked and given back to.
    pub(super) pages_op: OpId,
    pub(super) trace: Trace,
    pub(super) began: Time,
    pub(super) course: Course,
    /// Why it does not arrive, once that is known.
    pub(super) cause: Option<String>,
    /// Ranks in a new life that have yet to end the use of the slot which their old one left behind.
    pub(super) disowning: RankSet,
    pub(super) state: State,
}

/// ```text
/// Reserving -> Copying -> Over -> (released)
///     |           \-> Stopping -/   \-> GivingBack -> (released)
///     |-> GivingBack -> (missed)
///     \-> (missed)
/// ```
#[derive(Debug)]
pub(super) enum State {
    /// The allocator is asked for pages.
    Reserving,
    /// All ranks copy, or tell their engine that they have nothing to copy; those in `waiting` have not said
    /// how it went.
    Copying { place: Place, waiting: RankSet },
    /// A copy failed; ranks in `waiting` may still write.
    Stopping { place: Place, waiting: RankSet },
    /// The index has been told how it went; the engine still reads the slot.
    Over { place: Place, ok: bool },
    /// Pages that the index does not have go back.
    GivingBack { then: Outcome },
}

/// Where a load goes, as the index was told.
#[derive(Clone, Debug, Default)]
pub(super) struct Place {
    /// Loaded pages, then those behind.
    pub(super) pages: Vec<PageId>,
    /// The slot's word before the first layer.
    pub(super) base: u64,
    /// The lives of the ranks that are to copy.
    pub(super) lives: Vec<Incarnation>,
}

/// How a load ended; the answer to whoever asks again.
#[derive(Clone, Debug)]
pub(super) enum Outcome {
    /// No room; nothing was reserved.
    Missed { short: Vec<u32> },
    /// Over, and its slot is released.
    Released,
}

/// What became of the pages of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PagesEnd {
    /// The index has them.
    HandedOver,
    /// None were given, or all are free again.
    Gone,
}

/// How a load ended for whoever waits for its pages.
#[derive(Clone, Copy, Debug)]
pub(super) enum End<'a> {
    /// Every layer is there on every rank.
    Arrived,
    /// Some rank could not copy.
    Failed,
    /// There was no room for it, or no rank to copy it.
    Missed { short: &'a [u32] },
}

impl Outcome {
    pub(super) fn news(&self) -> IndexNews {
        match self {
            Self::Missed { short } => LoadMissed { short: short.clone() }.into(),
            Self::Released => OpSettled {}.into(),
        }
    }
}

impl Op {
    /// Says what the index has been told already.
    pub(super) fn tell_again(&self, op: OpId, trace: &Trace, out: &mut Vec<Effect>) {
        match &self.state {
            State::Reserving | State::GivingBack { .. } => {}
            State::Copying { place, .. } | State::Stopping { place, .. } => self.tell_started(op, place, trace, out),
            State::Over { place, ok } => {
                self.tell_started(op, place, trace, out);
                tell(op, LoadEnded { ok: *ok }.into(), trace, out);
            }
        }
    }

    /// What is said of the load `op` when nothing of it writes any more.
    pub(super) fn span(&self, now: Time, op: OpId, layers: u64, end: End<'_>) -> Option<Span> {
        let parent = self.trace.clone()?;
        let of = |rank: Rank| self.load.owners.0.iter().filter(|owner| Rank(**owner) == rank).count() as u64;
        let last = self.owner_ranks().iter().last().unwrap_or_default();
        let span = Span::new("load", op, parent, self.began, now)
            .count("load.pages", self.load.owners.0.len() as u64)
            .count("load.pages_behind", self.load.behind.0.len() as u64)
            .counts("load.rank_pages", (0..=last.0).map(|rank| of(Rank(rank))))
            .count("load.layers", layers)
            .count("load.attempts", ATTEMPT);
        let span = self.course.explain(span);
        let span = match &self.cause {
            Some(cause) => span.text("load.cause", cause),
            None => span,
        };
        Some(match end {
            End::Arrived => span,
            End::Failed => span.fault(Some("LoadFailed")),
            End::Missed { short } => span.counts("load.short_pages", short.iter().copied()).fault(Some("LoadMissed")),
        })
    }

    /// What the ranks are told to copy, to pages at `place`: the same for all of them, however often.
    pub(super) fn copy(&self, place: &Place) -> LoadCopy {
        let Load { owners, slots, .. } = &self.load;
        LoadCopy {
            attempt: ATTEMPT,
            pages: Pages(place.pages[..owners.0.len()].to_vec()),
            owners: owners.clone(),
            slots: slots.clone(),
            ring_slot: self.slot,
            base: place.base,
            lives: place.lives.clone(),
        }
    }

    /// The owners that the pages must have.
    pub(super) fn owners(&self) -> Vec<u8> {
        [self.load.owners.0.as_slice(), &self.load.behind.0].concat()
    }

    /// Ranks that have pages to copy.
    pub(super) fn owner_ranks(&self) -> RankSet {
        self.load.owners.0.iter().copied().map(Rank).collect()
    }

    /// Panics when the state lacks something or waits for what it does not need; returns its open calls.
    pub(super) fn check_invariants(&self, op: OpId, calls: &Calls) -> usize {
        let pages = self.load.owners.0.len() + self.load.behind.0.len();
        let (waiting, kind, pages_call) = match &self.state {
            State::Reserving => (RankSet::EMPTY, COPY, Some(RESERVE)),
            State::Copying { place, waiting } => {
                assert_eq!(place.pages.len(), pages);
                assert!(!waiting.is_empty(), "a copy that waits for nobody is over");
                (*waiting, COPY, None)
            }
            State::Stopping { place, waiting } => {
                assert_eq!(place.pages.len(), pages);
                assert!(!waiting.is_empty(), "nobody is left to stop");
                (*waiting, STOP, None)
            }
            State::Over { place, .. } => {
                assert_eq!(place.pages.len(), pages);
                (RankSet::EMPTY, COPY, None)
            }
            State::GivingBack { .. } => (RankSet::EMPTY, COPY, Some(FREE)),
        };
        for rank in waiting.iter() {
            assert!(calls.is_open(call_of(op, kind, rank)), "{op:?} waits for {rank:?} and does not ask it");
        }
        for rank in self.disowning.iter() {
            assert!(calls.is_open(disown_call(op, rank)), "{op:?} leaves its slot on {rank:?} behind");
        }
        if let Some(topic) = pages_call {
            assert!(calls.is_open((self.pages_op, topic)), "{op:?} waits for the allocator and does not ask it");
        }
        (waiting.len() + self.disowning.len()) as usize + usize::from(pages_call.is_some())
    }

    fn tell_started(&self, op: OpId, place: &Place, trace: &Trace, out: &mut Vec<Effect>) {
        let pages = Pages(place.pages.clone());
        tell(op, LoadStarted { pages, ring_slot: self.slot, base: place.base }.into(), trace, out);
    }
}

fn call_of(op: OpId, kind: u16, rank: Rank) -> CallId {
    (op, kind + u16::from(rank.0))
}

/// The call that tells `rank` to copy.
pub(super) fn copy_call(op: OpId, rank: Rank) -> CallId {
    call_of(op, COPY, rank)
}

/// The call that has the new life of `rank` end the use of a slot.
pub(super) fn disown_call(op: OpId, rank: Rank) -> CallId {
    call_of(op, DISOWN, rank)
}

/// The call that tells `rank` to stop.
pub(super) fn stop_call(op: OpId, rank: Rank) -> CallId {
    call_of(op, STOP, rank)
}

/// Asks the allocator for pages.
pub(super) const RESERVE: u16 = 0;
/// Gives pages back to the allocator.
pub(super) const FREE: u16 = 1;
const COPY: u16 = 0x100;
const STOP: u16 = 0x200;
const DISOWN: u16 = 0x300;

/// A load is tried once; the index tries again with a new op.
pub(super) const ATTEMPT: u32 = 1;
