//! A session: one request of an engine from `open` to its end, and the pages it was given.

use std::collections::BTreeMap;

use super::handovers::TryId;
use super::tree::{NodeId, SaltId};
use crate::machine::{ReplyTo, Trace};
use crate::protocol::{Answer, Incarnation, Key, OpId, PageId, Time};
use crate::span::Span;

/// One request. Positions below `committed` are pages of the tree; the pages behind them are its own.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) tenant: String,
    pub(super) salt: SaltId,
    pub(super) engine: Incarnation,
    pub(super) priority: u8,
    pub(super) trace: Trace,
    /// When its `open` came.
    pub(super) began: Time,
    /// Steps that named it.
    pub(super) steps: u32,
    /// When it was opened, in opens: the recency of its pages.
    pub(super) tick: u64,
    /// Keys of its pages from position 0 on, as far as they are known.
    pub(super) keys: Vec<Key>,
    /// The block table.
    pub(super) pages: Vec<PageId>,
    /// Positions that are pages of the tree, from 0.
    pub(super) committed: u32,
    /// The page at `committed - 1`, pinned in L1.
    pub(super) tail: Option<NodeId>,
    /// The deepest page of the path that had an L2 copy, pinned there.
    pub(super) l2_pin: Option<NodeId>,
    /// Its own pages whose position another session committed first.
    pub(super) duplicates: Vec<PageId>,
    /// Tokens that steps have been announced for.
    pub(super) frontier_tokens: u32,
    /// Tokens whose steps have passed on every rank.
    pub(super) computed_tokens: u32,
    /// Raised when a load fails: what steps of an older epoch computed is void.
    pub(super) epoch: u32,
    /// First position that lacks a component, and why: nothing from there on is cached.
    pub(super) lacks: Option<Lack>,
    /// Why the next position cannot be committed.
    pub(super) blocked: Option<&'static str>,
    /// Positions below this have had their backup considered.
    pub(super) backup_to: u32,
    /// Running backups of its pages: op, first position, pages.
    pub(super) backups: Vec<(OpId, u32, u32)>,
    /// The load it waits for.
    pub(super) load: Option<OpId>,
    /// The load whose ring slot it may still read.
    pub(super) ring: Option<OpId>,
    /// Whether a load of it has failed.
    pub(super) load_failed: bool,
    /// Newest step that named it.
    pub(super) last_step: u64,
    /// The answer to `open`, for repeats.
    pub(super) opened: Option<Answer>,
    /// The newest extension: op, first position, pages.
    pub(super) extended: Option<(OpId, u32, u32)>,
    /// The handover it takes part in.
    pub(super) handover: Option<TryId>,
    pub(super) phase: Phase,
}

/// Where a session is in its life.
#[derive(Debug)]
pub(super) enum Phase {
    /// Waits for the pages of its first chunk.
    Opening(Opening),
    /// Runs; at most one reservation is under way.
    Open {
        /// The reservation, with who asked.
        extending: Option<Extending>,
    },
    /// Has ended for its engine; its pages drain.
    Ending(Ending),
}

/// What `open` waits for.
#[derive(Debug)]
pub(super) struct Opening {
    /// The reservation or load.
    pub(super) op: OpId,
    pub(super) reply: Option<ReplyTo>,
    /// Pages served from L1.
    pub(super) l1: u32,
    /// Tokens to reserve behind the hits, as far as the prompt reaches.
    pub(super) reserve_tokens: u32,
    /// Tokens of the prompt.
    pub(super) tokens: u32,
    /// Owners the engine wants behind the hits; empty for zigzag.
    pub(super) owners: Vec<u8>,
    /// What is said of the `open` when it is answered, where somebody records it.
    pub(super) span: Option<Box<Span>>,
}

/// What `extend` waits for.
#[derive(Debug)]
pub(super) struct Extending {
    /// The engine's op.
    pub(super) asked: OpId,
    /// The reservation.
    pub(super) op: OpId,
    pub(super) reply: Option<ReplyTo>,
    pub(super) pages: u32,
}

/// How a session ends.
#[derive(Debug)]
pub(super) struct Ending {
    /// Drains when this step has passed; `None` until the engine has named it.
    pub(super) last_step: Option<u64>,
    /// Who waits for the answer, by close or abort.
    pub(super) reply: Option<ReplyTo>,
    pub(super) how: How,
}

/// Which way a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// By `close`.
    Closed,
    /// By `abort`.
    Aborted,
    /// Its lease ran out.
    Expired,
    /// Its engine died.
    Died,
    /// It found no room and never ran.
    Refused,
}

impl How {
    /// Its name in traces.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Aborted => "aborted",
            Self::Expired => "expired",
            Self::Died => "engine died",
            Self::Refused => "refused",
        }
    }
}

/// Positions that lack a component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lack {
    /// The first of them.
    pub(super) first: u32,
    pub(super) why: LackOf,
}

/// Why positions lack a component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LackOf {
    /// A step ran without its draft.
    Draft,
    /// They came from a group that does not store the same.
    Handover,
}

impl LackOf {
    /// What `close` says of it.
    pub(super) const fn reason(self) -> &'static str {
        match self {
            Self::Draft => "draft_never_ran",
            Self::Handover => "came_incomplete",
        }
    }
}

impl Session {
    /// Positions that are computed, keyed and drafted, and so may be committed.
    pub(super) fn committable(&self, page_tokens: u32) -> u32 {
        let full = self.computed_tokens / page_tokens;
        full.min(self.keys.len() as u32).min(self.whole_until())
    }

    /// Positions below this one hold every component.
    pub(super) fn whole_until(&self) -> u32 {
        self.lacks.map_or(u32::MAX, |lack| lack.first)
    }

    /// From `first` on positions lack a component.
    pub(super) fn lacks_from(&mut self, first: u32, why: LackOf) {
        self.lacks = Some(self.lacks.filter(|lack| lack.first <= first).unwrap_or(Lack { first, why }));
    }

    /// Whether its engine gave it up: what its last step computed is not to be trusted.
    pub(super) fn is_given_up(&self) -> bool {
        match &self.phase {
            Phase::Opening(_) | Phase::Open { .. } => false,
            Phase::Ending(ending) => match ending.how {
                How::Closed => false,
                How::Aborted | How::Expired | How::Died | How::Refused => true,
            },
        }
    }

    /// Whether a running backup copies the page at `position`.
    pub(super) fn is_backing_up(&self, position: u32) -> bool {
        self.backups.iter().any(|(_, first, pages)| (*first..first + pages).contains(&position))
    }
}

/// How a session ended.
#[derive(Debug)]
pub(super) struct EndedSession {
    pub(super) tenant: String,
    pub(super) answer: Answer,
    pub(super) how: How,
}

/// Answers of sessions that have ended, for repeats, until no repeat can come.
#[derive(Debug, Default)]
pub(super) struct Ended {
    answers: BTreeMap<OpId, EndedSession>,
    order: std::collections::VecDeque<(Time, OpId)>,
}

impl Ended {
    pub(super) fn put(&mut self, now: Time, session: OpId, ended: EndedSession) {
        self.answers.insert(session, ended);
        self.order.push_back((now, session));
        while self.order.front().is_some_and(|(at, _)| at.plus_ms(ENDED_MS) < now || self.order.len() > ENDED_MAX) {
            if let Some((_, old)) = self.order.pop_front() {
                self.answers.remove(&old);
            }
        }
    }

    /// How a session ended, for whoever asks; what is of another tenant is the caller's to hide.
    pub(super) fn get(&self, session: OpId) -> Option<&EndedSession> {
        self.answers.get(&session)
    }
}

/// No requester repeats for longer.
const ENDED_MS: u64 = 60_000;
/// Most answers kept.
const ENDED_MAX: usize = 8_192;
