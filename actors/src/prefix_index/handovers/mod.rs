//! Handovers: which pages of a session leave for another group, and which come from one.
//!
//! ```text
//! open -> waiting -> [session open, lower attempts over] -> runs -> over
//!            \          close, abort, expiry, death, failed load, higher attempt
//!             \-> over                                       \-> given up -> [nothing reads or writes] -> over
//! ```
//!
//! Invariants: of one transfer at most one attempt runs; a session keeps its pages while its attempt runs, whatever
//! ends it; pages of a session that died with its engine are held until its attempt is over.
//! Not here: which rank sends what, and the proof that nothing reads or writes (sender, receiver).

mod receiving;
mod sending;

use std::collections::BTreeMap;

use super::session::{Phase, Session};
use super::spans::Op;
use super::{FreeThen, Index};
use crate::ended::{ENDED_MAX, ENDED_MS, Ended};
use crate::machine::{Effect, Sender, Trace};
use crate::protocol::{
    Address, Bin, HandoverWish, Malformed, OpId, Open, PageId, Refusal, Time, Unknown, Unsupported, WrongState,
    group_name,
};
use crate::span::Span;
use receiving::Receiving;
use sending::Sending;

/// The attempts of every transfer that is known.
#[derive(Debug)]
pub(super) struct Handovers {
    tries: BTreeMap<TryId, Try>,
    /// The newest attempt of each transfer whose session is gone.
    ended: Ended<EndedTry>,
}

/// One attempt of one transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TryId {
    transfer: OpId,
    attempt: u32,
}

/// What a session's part in a handover is, and how far it is.
#[derive(Debug)]
struct Try {
    tenant: String,
    /// Tokens of the prompt.
    tokens: u32,
    keeper: Keeper,
    trace: Trace,
    began: Time,
    side: Side,
}

/// Who keeps the pages that may be read or written.
#[derive(Debug)]
enum Keeper {
    /// The session.
    Session(OpId),
    /// Its session died with its engine, just now.
    Died(Vec<PageId>),
    /// The attempt itself, by a hold on each.
    Held(Vec<PageId>),
}

#[derive(Debug)]
enum Side {
    Sends(Sending),
    Receives(Receiving),
}

#[derive(Debug)]
struct EndedTry {
    attempt: u32,
    tenant: String,
}

/// How far an attempt is, whichever side it is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The sender or receiver has not been told of it.
    Waiting,
    /// It has.
    Running,
    /// Nothing reads or writes the pages any more.
    Over,
}

impl Default for Handovers {
    fn default() -> Self {
        Self { tries: BTreeMap::new(), ended: Ended::new(ENDED_MS, ENDED_MAX) }
    }
}

impl Handovers {
    /// Whether an attempt may still need the pages of its session.
    pub(super) fn runs(&self, of: Option<TryId>) -> bool {
        of.and_then(|name| self.tries.get(&name)).is_some_and(|this| this.stage() != Stage::Over)
    }

    /// Whether pages of a session that died with its engine may still be sent.
    pub(super) fn sends_of_the_dead(&self) -> bool {
        self.tries.values().any(|this| match (&this.keeper, &this.side) {
            (Keeper::Died(_) | Keeper::Held(_), Side::Sends(_)) => true,
            (Keeper::Session(_), _) | (_, Side::Receives(_)) => false,
        })
    }

    /// Whether the session of this attempt waits for its pages.
    pub(super) fn waits_for_pages(&self, of: Option<TryId>) -> bool {
        let this = of.and_then(|name| self.tries.get(&name));
        this.is_some_and(|this| matches!(this.side, Side::Receives(_)) && this.stage() != Stage::Over)
    }

    /// Whether the session of this attempt receives.
    fn receives(msg: &Open) -> bool {
        msg.handover.first().is_some_and(|wish| wish.to.is_empty())
    }

    /// Attempts that are not over.
    pub(super) fn running(&self) -> usize {
        self.tries.values().filter(|this| this.stage() != Stage::Over).count()
    }

    pub(super) fn next_deadline(&self) -> Option<Time> {
        self.ended.next_deadline()
    }

    pub(super) fn wake(&mut self, now: Time) {
        self.ended.wake(now);
    }

    /// Why the attempt failed, when it did.
    pub(super) fn failure(&self, of: Option<TryId>) -> Option<&str> {
        match &self.tries.get(&of?)?.side {
            Side::Sends(sending) => sending.failure(),
            Side::Receives(receiving) => receiving.failure(),
        }
    }

    fn sending(&mut self, name: TryId) -> Option<&mut Sending> {
        match &mut self.tries.get_mut(&name)?.side {
            Side::Sends(sending) => Some(sending),
            Side::Receives(_) => None,
        }
    }

    fn receiving(&mut self, name: TryId) -> Option<&mut Receiving> {
        match &mut self.tries.get_mut(&name)?.side {
            Side::Sends(_) => None,
            Side::Receives(receiving) => Some(receiving),
        }
    }

    fn of_transfer(&self, transfer: OpId) -> impl DoubleEndedIterator<Item = (TryId, &Try)> {
        let of = |attempt| TryId { transfer, attempt };
        self.tries.range(of(0)..=of(u32::MAX)).map(|(name, this)| (*name, this))
    }

    /// The newest attempt of a transfer, and whose it is.
    fn newest(&self, transfer: OpId) -> Option<(u32, &str)> {
        let known = self.of_transfer(transfer).next_back().map(|(name, this)| (name.attempt, this.tenant.as_str()));
        let ended = self.ended.get(transfer).map(|ended| (ended.attempt, ended.tenant.as_str()));
        known.into_iter().chain(ended).max_by_key(|(attempt, _)| *attempt)
    }

    /// Whether every lower attempt is over.
    fn is_first(&self, name: TryId) -> bool {
        let mut lower = self.of_transfer(name.transfer).take_while(|(other, _)| *other < name);
        lower.all(|(_, this)| this.stage() == Stage::Over)
    }

    fn forget(&mut self, now: Time, name: TryId) {
        let Some(this) = self.tries.remove(&name) else { return };
        if self.ended.get(name.transfer).is_none_or(|ended| ended.attempt < name.attempt) {
            self.ended.note(now, name.transfer, EndedTry { attempt: name.attempt, tenant: this.tenant });
        }
    }
}

impl Try {
    fn stage(&self) -> Stage {
        match &self.side {
            Side::Sends(sending) => sending.stage(),
            Side::Receives(receiving) => receiving.stage(),
        }
    }
}

impl TryId {
    fn new(transfer: OpId, attempt: u32) -> Self {
        Self { transfer, attempt }
    }
}

impl Index {
    /// A session that receives has its whole prompt reserved.
    pub(super) fn adjust_to_handover(msg: &mut Open) {
        if Handovers::receives(msg) {
            msg.reserve_tokens = msg.reserve_tokens.max(msg.tokens);
        }
    }

    /// Tokens that a match leaves for this open: at least one page of a handover comes over.
    pub(super) fn tokens_behind_match(&self, msg: &Open) -> u32 {
        self.config.compute_tokens_min.max(Handovers::receives(msg).into())
    }

    /// Refuses a handover that this group cannot take part in, and attempts that are not new.
    pub(super) fn check_handover(&self, msg: &Open) -> Result<(), Refusal> {
        let Some(wish) = msg.handover.first() else { return Ok(()) };
        let cp_size = self.config.cp_size();
        if msg.handover.len() > 1 {
            return Err(Malformed::new("handover", msg.handover.len(), "at most 1").into());
        }
        if wish.attempt == 0 {
            return Err(Malformed::new("handover.attempt", 0, "1 or more").into());
        }
        if wish.transfer == OpId::default() || wish.transfer.is_of(self.control) {
            return Err(Malformed::new("handover.transfer", Op(wish.transfer), "an id that a router made").into());
        }
        if msg.tokens == 0 {
            return Err(Malformed::new("tokens", 0, "1 or more, when they are handed over").into());
        }
        if !wish.to.is_empty() {
            group_name("handover.to", &wish.to)?;
            if wish.to == self.config.group {
                return Err(Malformed::new("handover.to", &wish.to, "another group").into());
            }
            if let Some(to) = self.config.handovers.to.as_ref().filter(|to| !to.contains(&wish.to)) {
                let limit = if to.is_empty() { "no group".to_owned() } else { to.join(", ") };
                return Err(Unsupported { field: "handover.to".to_owned(), value: wish.to.clone(), limit }.into());
            }
        } else if !self.config.handovers.takes {
            let (value, limit) = ("from another group".to_owned(), "none in this group".to_owned());
            return Err(Unsupported { field: "handover".to_owned(), value, limit }.into());
        } else if cp_size > 1 {
            let (value, limit) = (format!("into a group of {cp_size} ranks"), "into a group of 1 rank".to_owned());
            return Err(Unsupported { field: "handover".to_owned(), value, limit }.into());
        }
        match self.handovers.newest(wish.transfer) {
            Some((_, tenant)) if tenant != msg.tenant => Err(Unknown::new("transfer", wish.transfer).into()),
            Some((newest, _)) if wish.attempt <= newest => {
                Err(WrongState::new(wish.transfer, &format!("attempt {newest} is known")).into())
            }
            Some(_) | None => Ok(()),
        }
    }

    /// The name of the attempt that an open is part of.
    pub(super) fn try_of(wishes: &[HandoverWish]) -> Option<TryId> {
        wishes.first().map(|wish| TryId::new(wish.transfer, wish.attempt))
    }

    /// A session takes part; lower attempts of the same transfer are given up.
    pub(super) fn join_handover(
        &mut self,
        now: Time,
        id: OpId,
        wishes: Vec<HandoverWish>,
        tokens: u32,
        out: &mut Vec<Effect>,
    ) {
        let (Some(session), Some(wish)) = (self.sessions.get(&id), wishes.into_iter().next()) else { return };
        let (tenant, trace) = (session.tenant.clone(), session.trace.clone());
        let name = TryId::new(wish.transfer, wish.attempt);
        let lower: Vec<TryId> = self.handovers.of_transfer(wish.transfer).map(|(name, _)| name).collect();
        for lower in lower {
            self.give_up_try(now, lower, &format!("attempt {} came", wish.attempt), out);
        }
        let pages = tokens.div_ceil(self.config.page_tokens());
        let side = match wish.to.is_empty() {
            true => Side::Receives(Receiving::new(pages)),
            false => Side::Sends(Sending::new(wish.to, pages)),
        };
        let this = Try { tenant, tokens, keeper: Keeper::Session(id), trace, began: now, side };
        self.handovers.tries.insert(name, this);
    }

    /// The session has its pages; those of its load may be on their way.
    pub(super) fn handover_opened(&mut self, now: Time, id: OpId, out: &mut Vec<Effect>) {
        let Some(session) = self.sessions.get(&id) else { return };
        let Some(name) = session.handover else { return };
        if let Some(sending) = self.handovers.sending(name) {
            sending.opened(session.committed, session.load.is_some());
        }
        self.begin_try(now, name, out);
    }

    /// The load of the session has ended.
    pub(super) fn handover_loaded(&mut self, now: Time, id: OpId, ok: bool, out: &mut Vec<Effect>) {
        let Some(session) = self.sessions.get(&id) else { return };
        let Some(name) = session.handover else { return };
        if !ok {
            return self.give_up_try(now, name, "its load failed", out);
        }
        if let Some(sending) = self.handovers.sending(name) {
            sending.loaded(session.committed);
        }
        self.begin_try(now, name, out);
        self.tell_part(now, name, out);
    }

    /// The session closes: what it has computed is all there is to send, and what it waits for is not wanted.
    pub(super) fn handover_closes(&mut self, now: Time, id: OpId, last_step: u64, blob: Bin, out: &mut Vec<Effect>) {
        let Some(name) = self.sessions.get(&id).and_then(|session| session.handover) else { return };
        match self.handovers.tries.get(&name).map(|this| &this.side) {
            Some(Side::Sends(_)) => self.end_sending(now, id, name, last_step, blob, out),
            Some(Side::Receives(_)) => self.give_up_try(now, name, "its session closed", out),
            None => {}
        }
    }

    /// The session will not see its handover through.
    pub(super) fn give_up_handover(&mut self, now: Time, id: OpId, cause: &str, out: &mut Vec<Effect>) {
        if let Some(name) = self.sessions.get(&id).and_then(|session| session.handover) {
            self.give_up_try(now, name, cause, out);
        }
    }

    fn give_up_try(&mut self, now: Time, name: TryId, cause: &str, out: &mut Vec<Effect>) {
        match self.handovers.tries.get(&name).map(|this| &this.side) {
            Some(Side::Sends(_)) => self.stop_sending(now, name, cause, out),
            Some(Side::Receives(_)) => self.unexpect(now, name, cause, out),
            None => {}
        }
    }

    /// Begins an attempt that waits, when its session and lower attempts allow it.
    fn begin_try(&mut self, now: Time, name: TryId, out: &mut Vec<Effect>) {
        let Some(this) = self.handovers.tries.get(&name).filter(|this| this.stage() == Stage::Waiting) else { return };
        let Keeper::Session(id) = this.keeper else { return };
        let has_pages = self.sessions.get(&id).is_some_and(|session| !matches!(session.phase, Phase::Opening(_)));
        if !has_pages || !self.handovers.is_first(name) {
            return;
        }
        match &this.side {
            Side::Sends(_) => self.begin_sending(now, id, name, out),
            Side::Receives(_) => self.expect_pages(now, id, name, out),
        }
    }

    /// An attempt is over: it is counted and said, the pages of a dead session are let go, and a higher attempt may
    /// begin.
    fn try_over(&mut self, now: Time, name: TryId, out: &mut Vec<Effect>) {
        let Some(this) = self.handovers.tries.get_mut(&name) else { return };
        let (failure, pages, side) = match &this.side {
            Side::Sends(sending) => (sending.failure(), sending.pages(), "sends"),
            Side::Receives(receiving) => (receiving.failure(), receiving.pages(), "receives"),
        };
        match (failure, &this.side) {
            (Some(_), _) => self.counts.handovers_failed += 1,
            (None, Side::Sends(_)) => self.counts.handovers_sent += 1,
            (None, Side::Receives(_)) => {
                self.counts.handovers_received += 1;
                self.counts.received_pages += u64::from(pages);
            }
        }
        if let Some(parent) = this.trace.clone() {
            let span = Span::new("handover", name.transfer, parent, this.began, now)
                .nth(name.attempt.into())
                .text("handover.side", side)
                .count("handover.attempt", name.attempt)
                .count("handover.tokens", this.tokens)
                .count("handover.pages", pages)
                .fault(failure.map(|_| "HandoverFailed"));
            out.push(Effect::span(match failure {
                Some(cause) => span.text("handover.cause", cause),
                None => span,
            }));
        }
        let held = match &mut this.keeper {
            Keeper::Session(_) | Keeper::Died(_) => None,
            Keeper::Held(pages) => Some(std::mem::take(pages)),
        };
        if let Some(pages) = held {
            self.handovers.forget(now, name);
            self.release_held(now, &pages, out);
            self.attach_waiting(now, out);
        }
        let waiting: Vec<TryId> = self.handovers.of_transfer(name.transfer).map(|(name, _)| name).collect();
        waiting.into_iter().for_each(|name| self.begin_try(now, name, out));
    }

    /// Forgets the part of a session that is gone. One that died leaves the pages of a running attempt to it.
    pub(super) fn leave_handover(&mut self, now: Time, session: &Session) {
        let Some(name) = session.handover else { return };
        let Some(this) = self.handovers.tries.get_mut(&name) else { return };
        if this.stage() == Stage::Over {
            return self.handovers.forget(now, name);
        }
        let of = match &this.side {
            Side::Sends(sending) => sending.named(),
            Side::Receives(receiving) => receiving.positions(),
        };
        let pages = session.pages.get(of.start as usize..of.end as usize);
        this.keeper = Keeper::Died(pages.map(<[PageId]>::to_vec).unwrap_or_default());
    }

    /// Holds the pages that attempts of sessions which died just now may read or write.
    pub(super) fn hold_pages_of_the_dead(&mut self) {
        for this in self.handovers.tries.values_mut() {
            let Keeper::Died(pages) = &mut this.keeper else { continue };
            let pages = std::mem::take(pages);
            pages.iter().for_each(|page| self.page_holds[page.0 as usize] += 1);
            this.keeper = Keeper::Held(pages);
        }
    }

    fn release_held(&mut self, now: Time, pages: &[PageId], out: &mut Vec<Effect>) {
        let mut free = Vec::new();
        for page in pages {
            let holds = &mut self.page_holds[page.0 as usize];
            *holds -= 1;
            if *holds == 0 && self.doomed.remove(page) {
                free.push(*page);
            }
        }
        self.free(now, free, Vec::new(), FreeThen::Nothing, out);
    }

    /// The sender or receiver refuses what it was told of a transfer: that attempt is given up.
    pub(super) fn handover_rejected(&mut self, now: Time, from: &Sender, refusal: &Refusal, out: &mut Vec<Effect>) {
        let running = self.handovers.of_transfer(from.op).find(|(_, this)| this.stage() == Stage::Running);
        let Some((name, this)) = running else { return };
        let asked = match this.side {
            Side::Sends(_) => Address::Sender,
            Side::Receives(_) => Address::Receiver,
        };
        if from.address == asked {
            self.give_up_try(now, name, &format!("rejected: {refusal:?}"), out);
        }
    }

    /// Panics when attempts and sessions do not agree.
    pub(super) fn check_handovers(&self) {
        for (id, session) in &self.sessions {
            let Some(name) = session.handover else { continue };
            let keeper = self.handovers.tries.get(&name).map(|this| &this.keeper);
            assert!(matches!(keeper, Some(Keeper::Session(of)) if of == id), "{id:?}: {keeper:?} keeps {name:?}");
        }
        for (name, this) in &self.handovers.tries {
            let session = match &this.keeper {
                Keeper::Session(id) => self.sessions.get(id),
                Keeper::Died(pages) => panic!("{name:?}: nobody keeps {pages:?}"),
                Keeper::Held(pages) => {
                    let is_held = |page: &PageId| self.page_holds[page.0 as usize] > 0;
                    assert!(pages.iter().all(is_held), "{name:?}: a page is not held");
                    assert_ne!(this.stage(), Stage::Over, "{name:?} is over and not forgotten");
                    continue;
                }
            };
            let session = session.unwrap_or_else(|| panic!("{name:?} has no session"));
            match &this.side {
                Side::Sends(sending) => sending.check_invariants(session),
                Side::Receives(receiving) => receiving.check_invariants(session),
            }
            if this.stage() == Stage::Running {
                assert!(self.handovers.is_first(*name), "{name:?} runs beside a lower attempt");
            }
        }
        self.handovers.ended.check_invariants();
    }
}

/// What is kept of a cause that somebody else named.
fn brief(cause: &str) -> String {
    cause.chars().take(CAUSE_CHARS_MAX).collect()
}

const CAUSE_CHARS_MAX: usize = 200;
/// The one open request of a transfer: above those of ops, ranks and page tables, whatever id a router gave.
const CALL_HANDOVER: u16 = 4 * super::CALL_RANK;
