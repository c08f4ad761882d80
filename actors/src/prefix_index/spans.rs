//! What the index says of an op when it is over: of an `open` and how far it matched, of steps, commits, evictions
//! and of the session as a whole.

use std::fmt;

use super::Index;
use super::evicted::Eviction;
use super::session::{How, Session};
use super::tree::{Match, NodeId, Victim};
use crate::machine::{Effect, Sender};
use crate::protocol::{Key, OpId, Open, Refusal, StepEntry, Tier, Time};
use crate::span::{Span, TraceContext};

/// What is said of an `open` when it is answered; none where nobody records it.
pub(super) type OpenSpan = Option<Box<Span>>;

/// The span of an `open` that came just now.
pub(super) fn open_span(now: Time, from: &Sender, msg: &Open) -> OpenSpan {
    let span = Span::new("open", from.op, from.trace.clone()?, now, now)
        .count("open.prompt_tokens", msg.tokens)
        .count("open.prompt_pages", msg.keys.0.len() as u64)
        .count("open.reserve_tokens", msg.reserve_tokens)
        .count("open.priority", msg.priority);
    Some(Box::new(span))
}

/// The `open` is answered.
pub(super) fn opening_over(now: Time, span: OpenSpan, refusal: Option<&Refusal>, out: &mut Vec<Effect>) {
    let Some(span) = span else { return };
    let span = span.fault(refusal.map(Refusal::code));
    out.push(Effect::span(Span { ended: now, ..span }));
}

/// Where a match ended.
enum MatchEnd<'a> {
    /// It was not to match.
    NotAsked,
    /// Every key that was given.
    Whole,
    /// What is left has to be computed.
    ComputeTokensMin,
    /// A load brings the next page.
    Loading(OpId),
    /// The record of the next page is damaged.
    Quarantined(String),
    /// The rank of the next page does not answer.
    RankAway,
    /// The next page is known and has no copy yet.
    Incomplete,
    /// The next page was evicted.
    Evicted(&'a Eviction),
    /// The next page is not known.
    Absent,
}

impl MatchEnd<'_> {
    const fn name(&self) -> &'static str {
        match self {
            Self::NotAsked => "not_asked",
            Self::Whole => "whole",
            Self::ComputeTokensMin => "compute_tokens_min",
            Self::Loading(_) => "loading",
            Self::Quarantined(_) => "quarantined",
            Self::RankAway => "rank_away",
            Self::Incomplete => "incomplete",
            Self::Evicted(_) => "evicted",
            Self::Absent => "absent",
        }
    }

    fn explain(&self, span: Span) -> Span {
        match self {
            Self::Loading(op) => span.text("match.load_op", Op(*op)),
            Self::Quarantined(component) => span.text("match.component", component),
            Self::Evicted(eviction) => {
                span.text("match.evicted_by_op", Op(eviction.op)).link(Some(eviction.context.clone()))
            }
            Self::NotAsked
            | Self::Whole
            | Self::ComputeTokensMin
            | Self::RankAway
            | Self::Incomplete
            | Self::Absent => span,
        }
    }
}

/// An op as traces show it.
pub(super) struct Op(pub(super) OpId);

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl Index {
    /// Says how far an `open` matched, and why no further.
    #[expect(clippy::too_many_arguments, reason = "an open and what was found for it, used once")]
    pub(super) fn say_match(
        &self,
        now: Time,
        from: &Sender,
        msg: &Open,
        found: &Match,
        nodes: &[NodeId],
        load: Option<OpId>,
        out: &mut Vec<Effect>,
    ) {
        let Some(parent) = &from.trace else { return };
        let end = match load {
            Some(load) => MatchEnd::Loading(load),
            None => self.match_end(msg, found, nodes.len()),
        };
        // One that waits for a load is matched again.
        let span = Span::new("match", from.op, parent.clone(), now, now)
            .nth(load.map_or(0, |load| load.counter() + 1))
            .count("match.pages", nodes.len() as u64)
            .count("match.l1_pages", found.l1)
            .count("match.l2_pages", found.l2)
            .text("match.end", end.name());
        out.push(Effect::span(end.explain(span)));
    }

    fn match_end(&self, msg: &Open, found: &Match, pages: usize) -> MatchEnd<'_> {
        if msg.no_match {
            return MatchEnd::NotAsked;
        }
        let Some(next) = self.matchable(msg).get(pages) else {
            return if pages < msg.keys.0.len() { MatchEnd::ComputeTokensMin } else { MatchEnd::Whole };
        };
        let Some(node) = self.tree.find(next) else {
            return self.evicted.who(next).map_or(MatchEnd::Absent, MatchEnd::Evicted);
        };
        if found.cut_short == Some(node) {
            return MatchEnd::Quarantined(self.damaged_component(node));
        }
        if self.tree.page(node).l2.is_some() { MatchEnd::RankAway } else { MatchEnd::Incomplete }
    }

    /// The span of a step for one session, in that session's own trace; it ends when the step has passed.
    pub(super) fn step_span(&self, now: Time, step: u64, entry: &StepEntry) -> Option<Box<Span>> {
        let session = self.sessions.get(&entry.session)?;
        let span = Span::new("step", entry.session, session.trace.clone()?, now, now)
            .nth(step)
            .count("step.number", step)
            .count("step.first_token", entry.first_token)
            .count("step.tokens", entry.tokens)
            .count("step.valid_tokens", u64::from(entry.first_token) + u64::from(entry.tokens))
            .count("step.pages", entry.pages.0.len() as u64)
            .flag("step.draft", entry.draft);
        Some(Box::new(match session.load {
            Some(load) => span.text("step.waits_for_load_op", Op(load)),
            None => span,
        }))
    }

    /// The message being handled serves each of these sessions, too.
    pub(super) fn link_sessions<'a>(
        &self,
        from: &Sender,
        sessions: impl Iterator<Item = &'a OpId>,
        out: &mut Vec<Effect>,
    ) {
        if from.trace.is_none() {
            return;
        }
        let traces = sessions.filter_map(|id| self.sessions.get(id)?.trace.clone());
        out.extend(traces.map(Effect::Link));
    }

    /// The span of an eviction that took these pages, of each lane as many as `freed`. Whoever misses one of those
    /// that are gone from both tiers can link to it.
    pub(super) fn evict_span(
        &mut self,
        now: Time,
        from: &Sender,
        tier: Tier,
        victims: &[Victim],
        freed: &[u32],
    ) -> Option<Span> {
        let span = Span::new("evict", from.op, from.trace.clone()?, now, now)
            .count("evict.tier", if tier == Tier::L1 { 1_u64 } else { 2 })
            .count("evict.victims_pages", victims.len() as u64)
            .counts("evict.freed_pages", freed.iter().copied());
        let gone = victims.iter().filter(|victim| !victim.is_elsewhere).map(|victim| victim.key);
        self.evicted.note(gone, Eviction { op: from.op, context: span.context() });
        Some(span)
    }

    /// The span of a session that ends by `how`.
    pub(super) fn session_span(&self, now: Time, id: OpId, session: &Session, how: How) -> Option<Span> {
        let parent = session.trace.clone()?;
        let closed = self.closed(session);
        let tokens = |pages: u32| u64::from(pages) * u64::from(self.config.page_tokens());
        let fault = match how {
            How::Closed | How::Aborted => None,
            How::Expired => Some("Expired"),
            How::Died => Some("EngineDied"),
            How::Refused => Some("Refused"),
        };
        let span = Span::new("session", id, parent, session.began, now)
            .text("session.end", how.name())
            .count("session.steps", session.steps)
            .count("session.computed_tokens", session.computed_tokens)
            .count("session.l1_tokens", tokens(closed.l1_pages))
            .count("session.l2_tokens", tokens(closed.l2_pages))
            .count("session.pending_backups", closed.pending)
            .count("session.duplicate_pages", closed.duplicates)
            .count("session.uncached_pages", closed.uncached)
            .fault(fault);
        let span = match self.handovers.failure(session.handover) {
            Some(cause) => span.text("session.handover_failed", cause),
            None => span,
        };
        Some(if closed.reason.is_empty() { span } else { span.text("session.uncached_reason", closed.reason) })
    }
}

/// The span of a commit of `pages` to L1; so many others were there already.
pub(super) fn commit_l1(now: Time, op: OpId, parent: TraceContext, pages: &[Key], duplicates: u64) -> Span {
    Span::new("commit", op, parent, now, now)
        .count("commit.tier", 1_u64)
        .count("commit.pages", pages.len() as u64)
        .count("commit.duplicate_pages", duplicates)
}

/// The span of the decision on a complete backup.
pub(super) fn commit_l2(now: Time, op: OpId, parent: TraceContext, pages: &[Key], forfeited: u64) -> Span {
    Span::new("commit", op, parent, now, now)
        .count("commit.tier", 2_u64)
        .count("commit.pages", pages.len() as u64)
        .count("commit.forfeited_pages", forfeited)
}
