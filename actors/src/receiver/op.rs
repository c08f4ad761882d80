//! One transfer as its receiver sees it: its states, and what each of them waits for.

use super::{ReceiverConfig, tell};
use crate::calls::Calls;
use crate::faults::{Fault, Faults};
use crate::machine::{Effect, Trace};
use crate::protocol::{
    Accept, Arrived, Bin, Expected, Finished, GroupName, Incarnation, LandFigures, Landed, NOBODY, NotArriving, OpId,
    PageId, Pages, PeerPage, PeerPages, Position, Positions, Rank, Time, Wanted,
};
use crate::span::{Span, TraceContext};

/// A transfer that is expected, or whose end the index has not taken in.
#[derive(Debug)]
pub(super) struct Op {
    pub(super) attempt: u32,
    pub(super) tokens: u32,
    /// The position of the first of `pages`.
    pub(super) first: u32,
    pub(super) pages: Vec<PageId>,
    pub(super) trace: Trace,
    /// The trace of the session that sends.
    pub(super) offered_by: Option<TraceContext>,
    pub(super) began: Time,
    /// What the rank counted, and buffers at the other side.
    pub(super) landed: Option<(LandFigures, u64)>,
    /// Components that come, when the peer does not store the same; else empty.
    pub(super) components: Vec<String>,
    pub(super) state: State,
}

/// ```text
/// Expected -> Accepting -> Filling -> Checking -> Sealing -> Complete -> (settled)
///    |            |           |           |
///    |            v           v           v
///    |         Draining <-----+-----------+
///    |            |           |           |
///    |            v           v           v
///    |         Fencing <------+-----------+
///    v            v
///  NotArriving <--+                             -> (settled)
/// ```
/// From `Draining` on nothing goes on without a proof: the sender has stopped or its lease has run out, and the rank
/// has taken the grant back.
#[derive(Debug)]
pub(super) enum State {
    /// Nobody has offered it.
    Expected,
    /// The rank is asked to let bytes land.
    Accepting { peer: PeerLife },
    /// Bytes land, or the peer has not heard where.
    Filling { peer: PeerLife, wanted: Wanted },
    /// The peer has sent everything; the rank is asked what has landed.
    Checking { peer: PeerLife, end: End },
    /// All of it has landed; the rank takes the grant back.
    Sealing { peer: PeerLife, end: End },
    /// Nothing can write the pages, and all of them are there; the index is told.
    Complete { peer: PeerLife },
    /// It failed; the peer may still write.
    Draining { peer: PeerLife, cause: String },
    /// The peer has stopped or is dead; what is still on its way may land.
    Fencing { cause: String },
    /// Nothing can write the pages any more; the index is told.
    NotArriving { cause: String },
}

/// One life of the sender of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PeerLife {
    pub(super) group: GroupName,
    pub(super) incarnation: Incarnation,
}

/// An offer of what is not expected.
#[derive(Debug)]
pub(super) struct Offered {
    pub(super) attempt: u32,
    pub(super) tokens: u32,
    pub(super) peer: PeerLife,
    pub(super) trace: Trace,
}

/// What the peer says when it has sent everything.
#[derive(Clone, Debug)]
pub(super) struct End {
    pub(super) tokens: u32,
    /// Who sent each position.
    pub(super) owners: Vec<u8>,
    pub(super) straggler: Rank,
    pub(super) blob: Bin,
}

/// How an attempt ended; the answer to whoever asks again.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub(super) attempt: u32,
    /// Why it did not arrive.
    pub(super) failure: Option<String>,
}

/// An attempt that its sender gave up before it was expected.
#[derive(Clone, Debug)]
pub(super) struct Gone {
    pub(super) attempt: u32,
    pub(super) cause: String,
}

impl End {
    pub(super) fn of(finished: Finished) -> Self {
        let Finished { attempt: _, tokens, owners, straggler, blob } = finished;
        Self { tokens, owners: owners.0, straggler, blob }
    }

    /// What is wrong with what has landed: it is a set, and every entry has to be the right one.
    ///
    /// # Errors
    /// The first position that lacks something or came from another rank, counted from `first`.
    pub(super) fn check(&self, first: u32, landed: &Landed, faults: Faults) -> Result<(), String> {
        let got = &landed.owners.0;
        if got.len() != self.owners.len() {
            return Err(format!("{} positions reported of {}", got.len(), self.owners.len()));
        }
        if faults.is(Fault::TransferCountForSet) {
            return Ok(());
        }
        match (first..).zip(got.iter().zip(&self.owners)).find(|(_, (got, sent))| got != sent) {
            None => Ok(()),
            Some((position, (&NOBODY, _))) => Err(format!("position {position} lacks a layer of a component")),
            Some((position, (got, sent))) => Err(format!("position {position} came from rank {got}, not {sent}")),
        }
    }
}

impl Op {
    /// Says to the index what it has not heard of a transfer that has not ended.
    pub(super) fn tell_expected(&self, op: OpId, trace: &Trace, out: &mut Vec<Effect>) {
        tell(op, Expected { attempt: self.attempt }.into(), trace, out);
    }

    /// What the rank is told that may land.
    pub(super) fn accept(&self, lives: Vec<Incarnation>) -> Accept {
        Accept {
            attempt: self.attempt,
            positions: self.positions(),
            pages: Pages(self.pages.clone()),
            lives,
            components: self.components.clone(),
        }
    }

    /// What the peer is told that is wanted, and where.
    pub(super) fn wanted(&self, endpoint: String, grant: Bin, cp_size: u8) -> Wanted {
        let slots = PeerPages(self.pages.iter().map(|page| PeerPage(page.physical(cp_size))).collect());
        let components = self.components.clone();
        Wanted { attempt: self.attempt, positions: self.positions(), slots, endpoint, grant, components }
    }

    pub(super) fn arrived(&self, end: &End) -> Arrived {
        let components = self.components.clone();
        Arrived { attempt: self.attempt, tokens: end.tokens, blob: end.blob.clone(), components }
    }

    pub(super) fn not_arriving(&self, cause: &str) -> NotArriving {
        NotArriving { attempt: self.attempt, cause: cause.to_owned() }
    }

    /// The life that sends it, as long as that is known.
    pub(super) const fn peer(&self) -> Option<&PeerLife> {
        match &self.state {
            State::Accepting { peer }
            | State::Filling { peer, .. }
            | State::Checking { peer, .. }
            | State::Sealing { peer, .. }
            | State::Complete { peer }
            | State::Draining { peer, .. } => Some(peer),
            State::Expected | State::Fencing { .. } | State::NotArriving { .. } => None,
        }
    }

    /// Whether it is this life that sends it.
    pub(super) fn is_sent_by(&self, incarnation: Incarnation) -> bool {
        self.peer().is_some_and(|peer| peer.incarnation == incarnation)
    }

    /// Whose word, or whose lease, the state waits for.
    pub(super) const fn waits_for(&self) -> Option<&PeerLife> {
        match &self.state {
            State::Accepting { peer }
            | State::Filling { peer, .. }
            | State::Checking { peer, .. }
            | State::Draining { peer, .. } => Some(peer),
            State::Expected
            | State::Sealing { .. }
            | State::Complete { .. }
            | State::Fencing { .. }
            | State::NotArriving { .. } => None,
        }
    }

    /// Whether a timer gives it up: giving up is asking for proof.
    pub(super) const fn is_timed(&self) -> bool {
        match &self.state {
            State::Expected | State::Accepting { .. } | State::Filling { .. } | State::Checking { .. } => true,
            State::Sealing { .. }
            | State::Complete { .. }
            | State::Draining { .. }
            | State::Fencing { .. }
            | State::NotArriving { .. } => false,
        }
    }

    /// What is said of the transfer `op` when nothing of it can land any more.
    pub(super) fn span(&self, now: Time, op: OpId, config: &ReceiverConfig, end: Result<&End, &str>) -> Option<Span> {
        let parent = self.trace.clone()?;
        let span = Span::new("transfer.receive", op, parent, self.began, now)
            .link(self.offered_by.clone())
            .count("transfer.attempt", self.attempt)
            .count("transfer.tokens", self.tokens)
            .count("transfer.first_position", self.first)
            .count("transfer.pages", self.pages.len() as u64)
            .count("transfer.buffers", config.manifest.buffers());
        let span = match &self.landed {
            None => span,
            Some((figures, peer_buffers)) => span
                .count("transfer.rank_buffers", figures.buffers)
                .count("transfer.peer_buffers", *peer_buffers)
                .count("transfer.bytes", figures.bytes)
                .count("transfer.refused_frames", figures.refused),
        };
        Some(match end {
            Ok(end) => span.count("copy.straggler_rank", end.straggler.0),
            Err(cause) => span.text("transfer.cause", cause).fault(Some("TransferFailed")),
        })
    }

    /// Panics when the state lacks something or waits for what it does not need; returns its open calls.
    pub(super) fn check_invariants(&self, op: OpId, calls: &Calls) -> usize {
        let needed = match &self.state {
            State::Expected => None,
            State::Accepting { .. } => Some(ACCEPT),
            State::Filling { wanted, .. } => {
                assert_eq!(wanted.positions.0.len(), wanted.slots.0.len());
                None
            }
            State::Checking { end, .. } => {
                assert_eq!(end.owners.len(), self.pages.len());
                Some(REPORT)
            }
            State::Sealing { end, .. } => {
                assert_eq!(end.owners.len(), self.pages.len());
                Some(REVOKE)
            }
            State::Complete { .. } => Some(END),
            State::Draining { .. } => Some(CEASE),
            State::Fencing { .. } => Some(REVOKE),
            State::NotArriving { .. } => Some(END),
        };
        if let Some(topic) = needed {
            assert!(calls.is_open((op, topic)), "{op:?} waits for an answer to {topic} and does not ask");
        }
        usize::from(needed.is_some())
    }

    fn positions(&self) -> Positions {
        Positions((self.first..).take(self.pages.len()).map(Position).collect())
    }
}

/// Has the rank let bytes land.
pub(super) const ACCEPT: u16 = 0;
/// Asks the rank what has landed.
pub(super) const REPORT: u16 = 1;
/// Has the rank take the grant back.
pub(super) const REVOKE: u16 = 2;
/// Has the peer stop.
pub(super) const CEASE: u16 = 3;
/// Tells the index how it ended.
pub(super) const END: u16 = 4;
