//! How sessions end: `close`, `abort`, a lease that runs out, an engine that dies. Pages are let go once
//! nothing the engine has launched can still read or write them.

use super::session::{EndedSession, Ending, How, LackOf, Phase, Session};
use super::spans::opening_over;
use super::{FreeThen, Index, reply};
use crate::machine::{Effect, Sender};
use crate::protocol::{
    Abort, Answer, BLOB_BYTES_MAX, Close, Closed, Done, Expired, Incarnation, Malformed, OpId, PageId, Refusal, Tier,
    Time, TooLarge, Unknown, WrongState,
};

impl Index {
    pub(super) fn close(&mut self, now: Time, from: &Sender, msg: Close, out: &mut Vec<Effect>) -> Result<(), Refusal> {
        if self.answer_ended(from, msg.session, &msg.tenant, How::Closed, out)? {
            return Ok(());
        }
        self.check_last_step(msg.last_step)?;
        if msg.blob.0.len() > BLOB_BYTES_MAX {
            return Err(TooLarge::new("blob", msg.blob.0.len() as u64, BLOB_BYTES_MAX as u64).into());
        }
        // A close can overtake the steps that tell the keys before its own: then these name no page yet.
        let known = self.running(msg.session, &msg.tenant)?.keys.len();
        if msg.first_key as usize <= known || self.steps.heard(msg.last_step) {
            self.check_late_keys(msg.session, msg.first_key, &msg.keys.0)?;
            self.running(msg.session, &msg.tenant)?.add_keys(msg.first_key, &msg.keys.0);
        }
        self.counts.drafted += msg.drafted;
        self.counts.accepted += msg.accepted;
        self.handover_closes(now, msg.session, msg.last_step, msg.blob, out);
        self.end(now, msg.session, How::Closed, Some(msg.last_step), from, out);
        Ok(())
    }

    pub(super) fn abort(
        &mut self,
        now: Time,
        from: &Sender,
        msg: &Abort,
        out: &mut Vec<Effect>,
    ) -> Result<(), Refusal> {
        if !self.sessions.contains_key(&msg.session) && self.ended.get(msg.session).is_none() {
            // Given up before it was heard of: a copy of its open that is still on its way opens nothing.
            let done = Answer::from(Done { control: self.control });
            let ended = EndedSession { tenant: msg.tenant.clone(), answer: done, how: How::Aborted };
            self.ended.put(now, msg.session, ended);
            return Err(Unknown::new("session", msg.session).into());
        }
        if self.answer_ended(from, msg.session, &msg.tenant, How::Aborted, out)? {
            // One that has closed may still wait for its pages to be over at the other side.
            self.give_up_handover(now, msg.session, "its session was aborted", out);
            self.finish_drained(now, out);
            return Ok(());
        }
        self.check_last_step(msg.last_step)?;
        self.give_up_handover(now, msg.session, "its session was aborted", out);
        self.end(now, msg.session, How::Aborted, Some(msg.last_step), from, out);
        Ok(())
    }

    /// A step so far ahead is never launched: whoever waited for it would wait for ever.
    fn check_last_step(&self, step: u64) -> Result<(), Refusal> {
        let most = self.steps.next + STEPS_AHEAD_MAX;
        if step > most {
            return Err(Malformed::new("last_step", step, format_args!("0..={most}")).into());
        }
        Ok(())
    }

    /// Answers for a session that has ended or is ending already; `false` when it runs.
    fn answer_ended(
        &mut self,
        from: &Sender,
        id: OpId,
        tenant: &str,
        how: How,
        out: &mut Vec<Effect>,
    ) -> Result<bool, Refusal> {
        let lease_ms = self.config.lease_ms;
        if let Some(ended) = self.ended.get(id).filter(|ended| ended.tenant == tenant) {
            match ended.how {
                How::Expired => return Err(Expired { session: id, lease_ms }.into()),
                How::Refused => return Err(Unknown::new("session", id).into()),
                How::Closed | How::Aborted | How::Died => {
                    reply(from.reply.clone(), from.op, ended.answer.clone(), out);
                    return Ok(true);
                }
            }
        }
        let session = self.sessions.get_mut(&id).filter(|session| session.tenant == tenant);
        let session = session.ok_or_else(|| Refusal::from(Unknown::new("session", id)))?;
        match &mut session.phase {
            Phase::Opening(_) if how == How::Closed => Err(WrongState::new(id, "opening").into()),
            Phase::Opening(_) | Phase::Open { .. } => Ok(false),
            Phase::Ending(ending) if ending.how == How::Expired => {
                // The engine names the step behind which nothing of this session runs.
                if how == How::Closed {
                    return Err(Expired { session: id, lease_ms }.into());
                }
                Ok(false)
            }
            Phase::Ending(ending) => {
                ending.reply.clone_from(&from.reply);
                Ok(true)
            }
        }
    }

    fn end(&mut self, now: Time, id: OpId, how: How, last_step: Option<u64>, from: &Sender, out: &mut Vec<Effect>) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let ending = Phase::Ending(Ending { last_step, reply: from.reply.clone(), how });
        self.ending.insert(id);
        let phase = std::mem::replace(&mut session.phase, ending);
        if let Phase::Opening(opening) = phase {
            let refusal = Refusal::from(WrongState::new(id, "aborted"));
            opening_over(now, opening.span, Some(&refusal), out);
            reply(opening.reply, id, refusal, out);
        } else if let Phase::Open { extending: Some(extending) } = phase {
            let refusal = Refusal::from(WrongState::new(id, "ending"));
            reply(extending.reply, extending.asked, refusal, out);
        }
        self.finish_drained(now, out);
    }

    /// Ends every session whose last step has been heard and has passed on all ranks, and whose handover is over.
    pub(super) fn finish_drained(&mut self, now: Time, out: &mut Vec<Effect>) {
        self.let_go_of_expired();
        let passed = self.members.passed_everywhere();
        let done = |id: &&OpId| {
            self.sessions.get(*id).is_some_and(|session| match &session.phase {
                Phase::Ending(ending) => {
                    let named = ending.last_step.map(|named| named.max(session.last_step));
                    let is_passed = named.is_some_and(|step| step <= passed && self.steps.heard(step));
                    is_passed && !self.handovers.runs(session.handover)
                }
                Phase::Opening(_) | Phase::Open { .. } => false,
            })
        };
        let ids: Vec<OpId> = self.ending.iter().filter(done).copied().collect();
        for id in ids {
            self.finish(now, id, out);
        }
    }

    fn finish(&mut self, now: Time, id: OpId, out: &mut Vec<Effect>) {
        if self.sessions.get(&id).is_some_and(|session| ends_by(session) == How::Closed) {
            self.advance(now, id, out);
        }
        let Some(session) = self.sessions.get(&id) else { return };
        let answer = match ends_by(session) {
            How::Closed => self.closed(session).into(),
            How::Aborted | How::Expired | How::Died | How::Refused => Answer::from(Done { control: self.control }),
        };
        if let How::Closed = ends_by(session) {
            self.backup_missing(now, id, out);
        }
        let own = self.remove_session(now, id, answer, out);
        self.give_up(now, own, out);
    }

    /// What became of the pages of a session that closes.
    pub(super) fn closed(&self, session: &Session) -> Closed {
        let full = session.computed_tokens / self.config.page_tokens();
        let uncached = full.saturating_sub(session.committed);
        let reason = match uncached {
            0 => "",
            _ if session.load_failed => "step_failed",
            _ if session.blocked.is_some() => session.blocked.unwrap_or_default(),
            _ if session.whole_until() <= session.committed => {
                session.lacks.map(|lack| lack.why.reason()).unwrap_or_default()
            }
            _ if session.keys.len() as u32 <= session.committed => "no_key",
            _ => "not_computed",
        };
        let (mut l2_pages, mut at) = (0, session.tail);
        while let Some(node) = at {
            let view = self.tree.page(node);
            if view.l2.is_some() {
                l2_pages = view.position + 1;
                break;
            }
            at = view.parent;
        }
        Closed {
            l1_pages: session.committed,
            l2_pages,
            pending: session.backups.len() as u32,
            duplicates: session.duplicates.len() as u32,
            uncached,
            reason: reason.to_owned(),
        }
    }

    /// Forgets the session; returns its own pages, which are the caller's to give up.
    fn remove_session(&mut self, now: Time, id: OpId, answer: Answer, out: &mut Vec<Effect>) -> Vec<PageId> {
        let Some(mut session) = self.sessions.remove(&id) else { return Vec::new() };
        self.ending.remove(&id);
        out.extend(self.session_span(now, id, &session, ends_by(&session)).map(Effect::span));
        self.leave_handover(now, &session);
        match session.lacks.map(|lack| lack.why) {
            Some(LackOf::Draft) => self.counts.draft_never_ran += 1,
            Some(LackOf::Handover) => self.counts.came_incomplete += 1,
            None => {}
        }
        self.unpin_path(session.tail, session.l2_pin);
        // Pages of a running load belong to the load until it ends.
        let loading = match session.load {
            Some(load) if self.load_is_running(load) => self.load_pages(load),
            Some(_) | None => 0,
        };
        let mut own: Vec<PageId> =
            session.pages.split_off((session.committed as usize + loading).min(session.pages.len()));
        own.append(&mut session.duplicates);
        let (reply_to, how) = match session.phase {
            Phase::Ending(ending) => (ending.reply, ending.how),
            Phase::Opening(_) | Phase::Open { .. } => (None, How::Died),
        };
        reply(reply_to, id, answer.clone(), out);
        self.ended.put(now, id, EndedSession { tenant: session.tenant, answer, how });
        if let Some(ring) = session.ring {
            self.release_ring(now, ring, out);
        }
        self.drop_lease_if_last(session.engine);
        for (op, ..) in session.backups {
            self.settle_backup(now, op, out);
        }
        own
    }

    /// Frees pages that nobody holds and dooms those that an op still reads.
    pub(super) fn give_up(&mut self, now: Time, pages: Vec<PageId>, out: &mut Vec<Effect>) {
        let (held, free): (Vec<_>, Vec<_>) = pages.into_iter().partition(|page| self.page_holds[page.0 as usize] > 0);
        self.doomed.extend(held);
        self.free(now, free, Vec::new(), FreeThen::Nothing, out);
    }

    /// No sign of life for a whole lease: nothing of this engine's sessions is served any more, and what they
    /// only read is let go. What they could write drains until the engine speaks or its death is proven.
    pub(super) fn lease_ran_out(&mut self, now: Time, engine: Incarnation, out: &mut Vec<Effect>) {
        self.leases.remove(&engine);
        let lease_ms = self.config.lease_ms;
        let mut expired = Vec::new();
        for (id, session) in self.sessions.iter_mut().filter(|(_, session)| session.engine == engine) {
            let old = match &mut session.phase {
                Phase::Ending(_) => continue,
                phase @ (Phase::Opening(_) | Phase::Open { .. }) => {
                    std::mem::replace(phase, Phase::Ending(Ending { last_step: None, reply: None, how: How::Expired }))
                }
            };
            self.ending.insert(*id);
            expired.push(*id);
            self.counts.expired += 1;
            let refusal = Refusal::from(Expired { session: *id, lease_ms });
            match old {
                Phase::Opening(opening) => {
                    opening_over(now, opening.span, Some(&refusal), out);
                    reply(opening.reply, *id, refusal, out);
                }
                Phase::Open { extending: Some(extending) } => reply(extending.reply, extending.asked, refusal, out),
                Phase::Open { extending: None } | Phase::Ending(_) => {}
            }
        }
        for id in expired {
            self.give_up_handover(now, id, "the lease of its engine ran out", out);
        }
        self.let_go_of_expired();
    }

    /// An expired session only keeps what it could write, once the last step heard of it has passed.
    fn let_go_of_expired(&mut self) {
        let passed = self.members.passed_everywhere();
        for id in &self.ending {
            let Some(session) = self.sessions.get_mut(id) else { continue };
            let expired = ends_by(session) == How::Expired && session.last_step <= passed && session.load.is_none();
            if !expired || self.handovers.runs(session.handover) {
                continue;
            }
            if let Some(node) = session.l2_pin.take() {
                self.tree.unpin(node, Tier::L2);
            }
            if let Some(node) = session.tail.take() {
                self.tree.unpin(node, Tier::L1);
                session.pages.drain(..session.committed as usize);
                session.committed = 0;
                session.blocked = Some("expired");
            }
        }
    }

    /// The engine is proven dead: its sessions end. Returns what they could write.
    pub(super) fn end_sessions_of_dead_engines(&mut self, now: Time, out: &mut Vec<Effect>) -> Vec<PageId> {
        let mut own = Vec::new();
        let ids: Vec<OpId> = self.sessions.keys().copied().collect();
        for id in ids {
            self.give_up_handover(now, id, "its engine died", out);
            let Some(session) = self.sessions.get_mut(&id) else { continue };
            let refusal = Refusal::from(Unknown::new("session", id));
            let died = Phase::Ending(Ending { last_step: Some(0), reply: None, how: How::Died });
            match std::mem::replace(&mut session.phase, died) {
                Phase::Opening(opening) => {
                    opening_over(now, opening.span, Some(&refusal), out);
                    reply(opening.reply, id, refusal, out);
                }
                Phase::Open { extending: Some(extending) } => reply(extending.reply, extending.asked, refusal, out),
                Phase::Ending(ending) => reply(ending.reply, id, refusal, out),
                Phase::Open { extending: None } => {}
            }
            own.extend(self.remove_session(now, id, Answer::from(Done { control: self.control }), out));
        }
        own
    }
}

fn ends_by(session: &Session) -> How {
    match &session.phase {
        Phase::Ending(ending) => ending.how,
        Phase::Opening(_) | Phase::Open { .. } => How::Died,
    }
}

/// Steps that can be launched before the first of them is heard of: hours of them.
const STEPS_AHEAD_MAX: u64 = 1 << 20;
