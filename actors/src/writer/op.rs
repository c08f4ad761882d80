//! One backup: its states, and what each of them waits for.

use crate::calls::{CallId, Calls};
use crate::course::Course;
use crate::lives::RankSet;
use crate::machine::Trace;
use crate::protocol::{
    Backup, BackupComplete, BackupFailed, BackupRefused, Free, HostSlot, IndexNews, OpId, OpSettled, Owners, Pages,
    Rank, Slots, Time,
};
use crate::span::Span;

/// A backup that runs.
#[derive(Debug)]
pub(super) struct Op {
    pub(super) backup: Backup,
    /// Owner of each page, which is the owner of its slot.
    pub(super) owners: Vec<u8>,
    pub(super) owner_ranks: RankSet,
    /// The op under which the allocator is asked and given back to.
    pub(super) pages_op: OpId,
    pub(super) trace: Trace,
    pub(super) began: Time,
    pub(super) course: Course,
    /// Pages that the index has kept.
    pub(super) kept_pages: u64,
    pub(super) state: State,
}

/// ```text
/// Reserving -> Copying -> Complete -> Sealing -> Forfeiting -> (settled)
///     |           |                      \--------------------> (settled)
///     |           \-> Stopping -> GivingBack -> (failed)
///     |-> GivingBack
///     \-> (refused)
/// ```
#[derive(Debug)]
pub(super) enum State {
    /// The allocator is asked for host pages.
    Reserving,
    /// Owner ranks copy; those in `waiting` have not said how it went.
    Copying { slots: Vec<HostSlot>, waiting: RankSet },
    /// The index has the slots and decides. The records of `lost` ranks died with them before they were sealed.
    Complete { slots: Vec<HostSlot>, lost: RankSet },
    /// Owner ranks seal what is kept and clear the rest.
    Sealing { slots: Vec<HostSlot>, kept: Vec<u8>, waiting: RankSet },
    /// The slots that were not kept go back.
    Forfeiting { slots: Vec<HostSlot>, kept: Vec<u8> },
    /// A copy failed; ranks in `waiting` may still write.
    Stopping { slots: Vec<HostSlot>, cause: String, waiting: RankSet },
    /// Nothing writes any more and all slots go back.
    GivingBack { cause: String },
}

/// How a backup ended; the answer to whoever asks again.
#[derive(Clone, Debug)]
pub(super) enum Outcome {
    /// No room; nothing was reserved.
    Refused { short: Vec<u32> },
    /// Nothing came of it.
    Failed { cause: String },
    /// The index's decision is carried out.
    Settled,
}

/// What became of the pages of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PagesEnd {
    /// The index has those that are kept; the others are free.
    HandedOver,
    /// None were given, or all are free again.
    Gone,
}

impl Outcome {
    pub(super) fn news(&self) -> IndexNews {
        match self {
            Self::Refused { short } => BackupRefused { short: short.clone() }.into(),
            Self::Failed { cause } => BackupFailed { cause: cause.clone() }.into(),
            Self::Settled => OpSettled {}.into(),
        }
    }
}

impl State {
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::Reserving => "reserving",
            Self::Copying { .. } => "copying",
            Self::Complete { .. } => "complete",
            Self::Sealing { .. } => "sealing",
            Self::Forfeiting { .. } => "forfeiting",
            Self::Stopping { .. } => "stopping",
            Self::GivingBack { .. } => "giving back",
        }
    }
}

impl Op {
    /// The complete backup as the index hears of it.
    ///
    /// # Panics
    /// In a state that comes before completion or after a failure.
    pub(super) fn complete(&self) -> IndexNews {
        let slots = match &self.state {
            State::Complete { slots, .. } | State::Sealing { slots, .. } | State::Forfeiting { slots, .. } => slots,
            State::Reserving | State::Copying { .. } | State::Stopping { .. } | State::GivingBack { .. } => {
                panic!("a backup that is {} is not complete", self.state.name())
            }
        };
        BackupComplete { slots: Slots(slots.clone()) }.into()
    }

    /// What is said of the backup `op` when it has ended with `outcome`.
    pub(super) fn span(&self, now: Time, op: OpId, outcome: &Outcome) -> Option<Span> {
        let pages = self.owners.len() as u64;
        let span = Span::new("backup", op, self.trace.clone()?, self.began, now)
            .count("backup.pages", pages)
            .count("backup.first_page", self.backup.first)
            .count("backup.step", self.backup.step)
            .count("backup.ranks", self.owner_ranks.len())
            .count("backup.attempts", ATTEMPT);
        let span = self.course.explain(span);
        Some(match outcome {
            Outcome::Settled => span
                .count("backup.kept_pages", self.kept_pages)
                .count("backup.forfeited_pages", pages.saturating_sub(self.kept_pages)),
            Outcome::Refused { short } => {
                span.counts("backup.short_pages", short.iter().copied()).fault(Some("OutOfPages"))
            }
            Outcome::Failed { cause } => span.text("backup.cause", cause).fault(Some("BackupFailed")),
        })
    }

    /// The free of those slots whose byte in `kept` is 0; all of them without `kept`.
    pub(super) fn free_of(&self, slots: &[HostSlot], kept: Option<&[u8]>) -> Free {
        let gone = |at: usize| kept.is_none_or(|kept| kept[at] == 0);
        let (mut owners, mut freed) = (Vec::new(), Vec::new());
        for at in (0..slots.len()).filter(|at| gone(*at)) {
            owners.push(self.owners[at]);
            freed.push(slots[at]);
        }
        Free { l1: Pages::default(), l2_owners: Owners(owners), l2: Slots(freed) }
    }

    /// Panics when the state lacks something or waits for what it does not need; returns its open calls.
    pub(super) fn check_invariants(&self, op: OpId, calls: &Calls) -> usize {
        assert_eq!(self.owners.len(), self.backup.pages.0.len());
        let (waiting, kind, pages_call) = match &self.state {
            State::Reserving => (RankSet::EMPTY, COPY, Some(RESERVE)),
            State::Copying { slots, waiting } => {
                assert_eq!(slots.len(), self.owners.len());
                assert!(!waiting.is_empty(), "a copy that waits for nobody is complete");
                (*waiting, COPY, None)
            }
            State::Complete { slots, lost } => {
                assert_eq!(slots.len(), self.owners.len());
                assert!(lost.without(self.owner_ranks).is_empty(), "a rank without pages has nothing to lose");
                (RankSet::EMPTY, COPY, None)
            }
            State::Sealing { slots, kept, waiting } => {
                assert_eq!(slots.len(), kept.len());
                assert!(!waiting.is_empty(), "seals that wait for nobody are done");
                (*waiting, SEAL, None)
            }
            State::Forfeiting { slots, kept } => {
                assert_eq!(slots.len(), kept.len());
                assert!(kept.contains(&0), "nothing is forfeited");
                (RankSet::EMPTY, SEAL, Some(FREE))
            }
            State::Stopping { slots, waiting, .. } => {
                assert_eq!(slots.len(), self.owners.len());
                assert!(!waiting.is_empty(), "nobody is left to stop");
                (*waiting, STOP, None)
            }
            State::GivingBack { .. } => (RankSet::EMPTY, STOP, Some(FREE)),
        };
        assert!(waiting.without(self.owner_ranks).is_empty(), "{op:?} waits for a rank without pages");
        for rank in waiting.iter() {
            assert!(calls.is_open(call_of(op, kind, rank)), "{op:?} waits for {rank:?} and does not ask it");
        }
        if let Some(topic) = pages_call {
            assert!(calls.is_open((self.pages_op, topic)), "{op:?} waits for the allocator and does not ask it");
        }
        waiting.len() as usize + usize::from(pages_call.is_some())
    }
}

/// The owners of a backup's pages and the set of them.
pub(super) fn owners_of(backup: &Backup, cp_size: u8) -> (Vec<u8>, RankSet) {
    let owners: Vec<u8> = backup.pages.0.iter().map(|page| page.owner(cp_size).0).collect();
    let ranks = owners.iter().copied().map(Rank).collect();
    (owners, ranks)
}

fn call_of(op: OpId, kind: u16, rank: Rank) -> CallId {
    (op, kind + u16::from(rank.0))
}

/// The call that tells `rank` to copy.
pub(super) fn copy_call(op: OpId, rank: Rank) -> CallId {
    call_of(op, COPY, rank)
}

/// The call that tells `rank` to stop.
pub(super) fn stop_call(op: OpId, rank: Rank) -> CallId {
    call_of(op, STOP, rank)
}

/// The call that tells `rank` to seal.
pub(super) fn seal_call(op: OpId, rank: Rank) -> CallId {
    call_of(op, SEAL, rank)
}

/// Asks the allocator for pages.
pub(super) const RESERVE: u16 = 0;
/// Gives pages back to the allocator.
pub(super) const FREE: u16 = 1;
const COPY: u16 = 0x100;
const STOP: u16 = 0x200;
const SEAL: u16 = 0x300;

/// A backup is tried once; the index tries again with a new op.
pub(super) const ATTEMPT: u32 = 1;
