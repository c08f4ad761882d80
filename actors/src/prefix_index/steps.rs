//! Steps: what a forward computes, when it has passed on every rank, and what is committed then.

use std::collections::{BTreeSet, VecDeque};

use super::session::{How, LackOf, Phase, Session};
use super::spans::{Op, commit_l1};
use super::tree::NodeId;
use super::{CALL_RANK, Index, reply};
use crate::machine::{Effect, Sender};
use crate::protocol::{
    Answer, Gap, Key, KeyConflict, Malformed, NotOwner, OpId, Outgoing, Passed, Rank, RankIn, Refusal, Step, StepEntry,
    Stepped, Tier, Time, TooLarge, Unknown, Watch, WrongState,
};
use crate::span::Span;

/// The steps of a group: one total order.
#[derive(Debug)]
pub(super) struct Steps {
    /// The number expected next.
    pub(super) next: u64,
    /// Announced, not passed on every rank.
    open: VecDeque<OpenStep>,
    /// Answers of the newest steps, for repeats.
    answers: VecDeque<(u64, Answer)>,
}

#[derive(Debug)]
struct OpenStep {
    number: u64,
    entries: Vec<Computes>,
}

/// What a step computes of a session: everything up to `end_tokens`, unless the session's epoch has moved on.
#[derive(Debug)]
struct Computes {
    session: OpId,
    epoch: u32,
    end_tokens: u32,
    /// What is said when the step has passed, where somebody records it.
    span: Option<Box<Span>>,
}

impl Default for Steps {
    fn default() -> Self {
        Self { next: 1, open: VecDeque::new(), answers: VecDeque::new() }
    }
}

impl Steps {
    /// Whether the step's message has come.
    pub(super) fn heard(&self, step: u64) -> bool {
        step < self.next
    }

    /// The engine is new: nothing announced will pass, and its numbers go on behind `last`.
    pub(super) fn restart(&mut self, now: Time, last: u64, out: &mut Vec<Effect>) {
        for entry in self.open.drain(..).flat_map(|step| step.entries) {
            out.extend(entry.span.map(|span| Effect::span(Span { ended: now, ..span.fault(Some("EngineDied")) })));
        }
        self.answers.clear();
        self.next = self.next.max(last + 1);
    }
}

impl Index {
    pub(super) fn step(&mut self, now: Time, from: &Sender, msg: Step, out: &mut Vec<Effect>) -> Result<(), Refusal> {
        if !self.members.knows_engine(msg.engine) {
            return Err(Unknown::new("engine", msg.engine).into());
        }
        if msg.number != self.steps.next {
            if let Some((_, answer)) = self.steps.answers.iter().find(|(number, _)| *number == msg.number) {
                reply(from.reply.clone(), from.op, answer.clone(), out);
                return Ok(());
            }
            return Err(Gap { expected: self.steps.next, got: msg.number }.into());
        }
        let void = self.check_step(&msg)?;
        self.link_sessions(from, msg.entries.iter().map(|entry| &entry.session), out);
        self.renew(now, msg.engine);
        self.renew(now, from.incarnation);
        let mut backups = Vec::new();
        let mut computes = Vec::new();
        if msg.all_layers_at_end {
            self.counts.all_layers_at_end += 1;
            out.push(Effect::Mark { op: OpId::default(), name: "warn.all_layers_at_end", value: msg.number });
        }
        for entry in msg.entries {
            let id = entry.session;
            let span = self.step_span(now, msg.number, &entry);
            if void.contains(&id) {
                self.counts.void_entries += 1;
                out.extend(span.map(|span| Effect::span(span.fault(Some("Void")))));
                if let Some(session) = self.sessions.get_mut(&id) {
                    session.last_step = msg.number;
                }
                self.give_up_handover(now, id, "a step of it is void", out);
                continue;
            }
            let computed = self.take_entry(now, msg.number, entry, out);
            self.handover_stepped(now, id, msg.number, out);
            let backup = self.plan_backup(now, id, msg.number, msg.all_layers_at_end, out);
            computes.extend(computed.map(|computed| Computes { span: with_backup(span, backup), ..computed }));
            backups.extend(backup);
        }
        self.steps.open.push_back(OpenStep { number: msg.number, entries: computes });
        self.steps.next += 1;
        let answer = Answer::from(Stepped { number: msg.number, backups, void });
        self.steps.answers.push_back((msg.number, answer.clone()));
        if self.steps.answers.len() > ANSWERS_MAX {
            self.steps.answers.pop_front();
        }
        reply(from.reply.clone(), from.op, answer, out);
        self.watch(now, out);
        self.step_passed(now, out);
        Ok(())
    }

    /// Refuses what breaks the rules before anything changes; names the sessions whose entries do not count.
    fn check_step(&self, msg: &Step) -> Result<Vec<OpId>, Refusal> {
        let mut void = Vec::new();
        let mut named = BTreeSet::new();
        if msg.entries.len() > self.config.sessions_max as usize {
            return Err(TooLarge::new("entries", msg.entries.len() as u64, self.config.sessions_max.into()).into());
        }
        for entry in &msg.entries {
            if !named.insert(entry.session) {
                return Err(Malformed::new("entries", format_args!("{:?} twice", entry.session), "once").into());
            }
            match self.sessions.get(&entry.session) {
                Some(session) => match session.phase {
                    Phase::Open { .. } => {
                        if self.handovers.waits_for_pages(session.handover) {
                            return Err(WrongState::new(entry.session, "waiting for its handover").into());
                        }
                        if self.check_entry(session, entry)? {
                            void.push(entry.session);
                        }
                    }
                    Phase::Ending(_) => void.push(entry.session),
                    Phase::Opening(_) => return Err(Unknown::new("session", entry.session).into()),
                },
                None if self.ended.get(entry.session).is_some_and(|ended| ended.how != How::Refused) => {
                    void.push(entry.session)
                }
                None => return Err(Unknown::new("session", entry.session).into()),
            }
        }
        Ok(void)
    }

    /// Whether the entry is void: it goes on behind a load that has failed.
    fn check_entry(&self, session: &Session, entry: &StepEntry) -> Result<bool, Refusal> {
        let page = self.config.page_tokens();
        let end = u64::from(entry.first_token) + u64::from(entry.tokens);
        if entry.tokens == 0 {
            return Err(Malformed::new("tokens", 0, "1 or more").into());
        }
        let pages = entry.first_token / page..end.div_ceil(u64::from(page)) as u32;
        let held = session.pages.get(pages.start as usize..pages.end as usize);
        let Some(held) = held else {
            let limit = format!("{} pages of the session", session.pages.len());
            return Err(Malformed::new("tokens", format_args!("{}..{end}", entry.first_token), limit).into());
        };
        if entry.pages.0.len() != held.len() {
            return Err(Malformed::new("pages", entry.pages.0.len(), held.len()).into());
        }
        if let Some((got, _)) = entry.pages.0.iter().zip(held).find(|(got, held)| got != held) {
            let cp_size = self.config.cp_size();
            let owner = got.owner(cp_size);
            return Err(NotOwner { page: got.0, owner, rank: owner }.into());
        }
        let known = session.keys.len();
        let new = entry.first_key as usize;
        let is_ahead = !entry.keys.0.is_empty() && new + entry.keys.0.len() > session.pages.len();
        if new > known || is_ahead {
            return Err(Malformed::new("first_key", new, format_args!("0..={known}, within its pages")).into());
        }
        self.check_keys(session, new, &entry.keys.0)?;
        if entry.first_token == session.frontier_tokens {
            return Ok(false);
        }
        if session.load_failed && entry.first_token > session.frontier_tokens {
            return Ok(true);
        }
        // The engine saw its load fail on one rank while others may still write: it runs again when all stopped.
        if session.load.is_some() && entry.first_token < session.frontier_tokens {
            return Ok(true);
        }
        Err(Gap { expected: session.frontier_tokens.into(), got: entry.first_token.into() }.into())
    }

    /// Keys from `first` on must be what is known, and new ones must not stand anywhere else.
    fn check_keys(&self, session: &Session, first: usize, keys: &[Key]) -> Result<(), Refusal> {
        for (at, key) in keys.iter().enumerate() {
            let position = first + at;
            let conflict = |what: &str, known: String, got: String| {
                Err(KeyConflict { key: *key, what: what.to_owned(), known, got }.into())
            };
            match session.keys.get(position) {
                Some(known) if known == key => continue,
                Some(known) => return conflict("position", format!("{known:?} at {position}"), format!("{key:?}")),
                None => {}
            }
            if session.keys.contains(key) || keys[..at].contains(key) {
                return conflict("repeated", "earlier in the path".to_owned(), "again".to_owned());
            }
            let Some(node) = self.tree.find(key) else { continue };
            let view = self.tree.page(node);
            let parent = position.checked_sub(1).map(|before| match before.checked_sub(first) {
                Some(at) => keys[at],
                None => session.keys[before],
            });
            let known = view.parent.map(|parent| self.tree.page(parent).key);
            if view.salt != session.salt {
                let (known, got) = (self.salts.key(view.salt), self.salts.key(session.salt));
                return conflict("salt", format!("{known:?}"), format!("{got:?}"));
            }
            if view.position as usize != position {
                return conflict("position", view.position.to_string(), position.to_string());
            }
            if known != parent {
                return conflict("parent", format!("{known:?}"), format!("{parent:?}"));
            }
        }
        Ok(())
    }

    fn take_entry(&mut self, now: Time, step: u64, entry: StepEntry, out: &mut Vec<Effect>) -> Option<Computes> {
        let has_draft = self.config.manifest.layers().1 > 0;
        let page = self.config.page_tokens();
        let session = self.sessions.get_mut(&entry.session)?;
        session.add_keys(entry.first_key, &entry.keys.0);
        session.last_step = step;
        session.steps += 1;
        session.load_failed = false;
        session.frontier_tokens = entry.first_token + entry.tokens;
        if has_draft && !entry.draft {
            session.lacks_from(entry.first_token / page, LackOf::Draft);
        }
        let (epoch, end_tokens) = (session.epoch, session.frontier_tokens);
        let computes = Computes { session: entry.session, epoch, end_tokens, span: None };
        if entry.load_read
            && session.load.is_none()
            && let Some(ring) = session.ring.take()
        {
            self.release_ring(now, ring, out);
        }
        Some(computes)
    }

    /// Asks every rank to tell when the newest step has passed there.
    pub(super) fn watch(&mut self, now: Time, out: &mut Vec<Effect>) {
        let step = self.steps.next - 1;
        if step == 0 {
            return;
        }
        for n in 0..self.config.cp_size() {
            self.watch_rank(now, Rank(n), step, out);
        }
    }

    pub(super) fn watch_rank(&mut self, now: Time, rank: Rank, step: u64, out: &mut Vec<Effect>) {
        if self.members.passed(rank) < step && self.members.is_attached(rank) {
            let msg = Outgoing::Rank(rank, RankIn::from(Watch { step }));
            self.calls.call(now, (OpId::default(), CALL_RANK + u16::from(rank.0)), msg, &super::NO_TRACE, out);
        }
    }

    pub(super) fn passed(&mut self, now: Time, from: &Sender, msg: Passed, out: &mut Vec<Effect>) {
        let crate::protocol::Address::Rank(rank) = from.address else { return };
        if !self.members.is_engine_of(rank, msg.engine) {
            self.counts.stale += 1;
            return;
        }
        self.members.has_passed(rank, msg.step);
        if msg.step + 1 >= self.steps.next {
            self.calls.answered((OpId::default(), CALL_RANK + u16::from(rank.0)));
        }
        self.open_lanes_if_proven(now, out);
        self.step_passed(now, out);
    }

    /// Applies every step that has passed on all ranks, in order.
    pub(super) fn step_passed(&mut self, now: Time, out: &mut Vec<Effect>) {
        let passed = self.members.passed_everywhere();
        let mut touched = BTreeSet::new();
        while let Some(step) = self.steps.open.pop_front_if(|step| step.number <= passed) {
            for entry in step.entries {
                out.extend(entry.span.map(|span| Effect::span(Span { ended: now, ..*span })));
                let Some(session) = self.sessions.get_mut(&entry.session) else { continue };
                if session.epoch == entry.epoch {
                    session.computed_tokens = entry.end_tokens;
                    touched.insert(entry.session);
                }
            }
        }
        for id in touched {
            self.advance(now, id, out);
        }
        self.finish_drained(now, out);
    }

    /// Commits the computed pages of a session, in order, as pages of the tree.
    pub(super) fn advance(&mut self, now: Time, id: OpId, out: &mut Vec<Effect>) {
        let page = self.config.page_tokens();
        let Some(session) = self.sessions.get_mut(&id) else { return };
        if session.is_given_up()
            || session.load.is_some()
            || session.blocked.is_some()
            || session.committed >= session.committable(page)
        {
            return;
        }
        let (start, parent) = (session.committed, session.tail);
        let mut stored = Vec::new();
        let mut last = session.tail;
        while session.committed < session.committable(page) {
            let at = session.committed as usize;
            let (key, l1) = (session.keys[at], session.pages[at]);
            let Ok(node) = self.tree.insert(last, key, session.salt, session.tick) else {
                session.blocked = Some("key_conflict");
                break;
            };
            if self.tree.page(node).l1.is_some() {
                session.duplicates.push(l1);
                self.counts.duplicates += 1;
            } else {
                self.tree.set_l1(node, l1);
                stored.push(key);
                if self.page_holds[l1.0 as usize] > 0 {
                    self.tree.hold(node, Tier::L1).expect("one hold per L1 page, taken with its copy");
                }
                if session.priority > 0 {
                    self.tree.set_priority(node, session.priority);
                }
                if session.is_backing_up(session.committed) {
                    self.tree.set_pending(node, true);
                }
            }
            session.committed += 1;
            last = Some(node);
        }
        let moved = session.committed > start;
        if moved {
            session.tail = last;
            self.counts.stored_l1 += stored.len() as u64;
            out.push(Effect::Mark { op: id, name: "commit.l1_pages", value: stored.len() as u64 });
            if let Some(parent) = session.trace.clone() {
                let duplicates = u64::from(session.committed - start) - stored.len() as u64;
                let span = commit_l1(now, id, parent, &stored, duplicates).nth(start.into());
                out.push(Effect::span(span.count("commit.first_page", start)));
            }
            self.move_pin(parent, last);
            self.stored(Tier::L1, &stored, out);
        }
        self.settle_backups_of(now, id, out);
    }

    /// Pins the new deepest page of a path in L1 before the old one is let go.
    pub(super) fn move_pin(&mut self, old: Option<NodeId>, new: Option<NodeId>) {
        if let Some(new) = new {
            self.tree.pin(new, Tier::L1).expect("sessions_max is far below the pins a page can have");
        }
        if let Some(old) = old {
            self.tree.unpin(old, Tier::L1);
        }
    }
}

/// The span of a step that began a backup.
fn with_backup(span: Option<Box<Span>>, backup: Option<OpId>) -> Option<Box<Span>> {
    match (span, backup) {
        (Some(span), Some(backup)) => Some(Box::new(span.text("step.backup_op", Op(backup)))),
        (span, _) => span,
    }
}

impl Session {
    /// Takes keys from position `first` on; those known already are equal.
    pub(super) fn add_keys(&mut self, first: u32, keys: &[Key]) {
        let known = (self.keys.len() as u32).saturating_sub(first) as usize;
        self.keys.extend(keys.iter().skip(known));
    }
}

/// Steps whose answers are kept for repeats.
const ANSWERS_MAX: usize = 256;

impl Index {
    /// Keys of a `close`, under the rules of a step's keys.
    pub(super) fn check_late_keys(&self, id: OpId, first: u32, keys: &[Key]) -> Result<(), Refusal> {
        let session = self.sessions.get(&id).ok_or_else(|| Refusal::from(Unknown::new("session", id)))?;
        let new = first as usize;
        let is_ahead = !keys.is_empty() && new + keys.len() > session.pages.len();
        if new > session.keys.len() || is_ahead {
            let limit = format!("0..={}, within {} pages", session.keys.len(), session.pages.len());
            return Err(Malformed::new("first_key", new, limit).into());
        }
        self.check_keys(session, new, keys)
    }
}
