//! The side that sends: pages are named to the sender in parts, each with the step that computes them.
//!
//! ```text
//! waiting -> opening -> telling (part by part) -> ending -> over
//!                \__________\_____________________\-> stopping -> over
//! ```

use std::ops::Range;

use super::{CALL_HANDOVER, Stage, TryId, brief};
use crate::machine::Effect;
use crate::prefix_index::Index;
use crate::prefix_index::session::Session;
use crate::protocol::{
    Bin, OpId, Outgoing, Pages, SendEnd, SendOpen, SendOver, SendPart, SendStop, SendTaken, SenderIn, Time,
};

/// What leaves of one session.
#[derive(Debug)]
pub(super) struct Sending {
    /// The group it goes to.
    to: String,
    /// Pages of the prompt.
    pages: u32,
    parts: Vec<Part>,
    /// Steps computed these ends while a load brings pages in front of theirs: they are named when it has ended.
    behind_load: Option<Vec<(u64, u32)>>,
    /// The engine has closed with this blob: no further part comes.
    blob: Option<Bin>,
    state: State,
}

/// Positions `first..end`, complete when `step` has passed.
#[derive(Clone, Copy, Debug)]
struct Part {
    first: u32,
    end: u32,
    step: u64,
}

#[derive(Debug)]
enum State {
    /// The sender has not heard of it.
    Waiting,
    /// It is told to whom pages go.
    Opening,
    /// It has taken so many parts; the next is told as soon as there is one.
    Telling { taken: usize },
    /// It knows every part.
    Ending,
    /// It is to give up.
    Stopping { cause: String },
    /// It reads nothing any more.
    Over { failure: Option<String> },
}

impl Sending {
    pub(super) fn new(to: String, pages: u32) -> Self {
        Self { to, pages, parts: Vec::new(), behind_load: None, blob: None, state: State::Waiting }
    }

    pub(super) fn stage(&self) -> Stage {
        match self.state {
            State::Waiting => Stage::Waiting,
            State::Opening | State::Telling { .. } | State::Ending | State::Stopping { .. } => Stage::Running,
            State::Over { .. } => Stage::Over,
        }
    }

    pub(super) fn failure(&self) -> Option<&str> {
        match &self.state {
            State::Waiting | State::Opening | State::Telling { .. } | State::Ending => None,
            State::Stopping { cause } => Some(cause),
            State::Over { failure } => failure.as_deref(),
        }
    }

    pub(super) const fn pages(&self) -> u32 {
        self.pages
    }

    /// Positions that the sender may know.
    pub(super) fn named(&self) -> Range<u32> {
        0..self.parts.last().map_or(0, |part| part.end)
    }

    /// The session runs with so many pages that are complete; its load brings more.
    pub(super) fn opened(&mut self, complete: u32, loads: bool) {
        self.name(0, complete);
        self.behind_load = loads.then(Vec::new);
    }

    /// The load is in: `complete` pages are.
    pub(super) fn loaded(&mut self, complete: u32) {
        let behind = self.behind_load.take().unwrap_or_default();
        self.name(0, complete);
        behind.into_iter().for_each(|(step, end)| self.name(step, end));
    }

    /// The step computes every page below `end`.
    fn computed_by(&mut self, step: u64, end: u32) {
        match &mut self.behind_load {
            Some(behind) => behind.push((step, end)),
            None => self.name(step, end),
        }
    }

    fn name(&mut self, step: u64, end: u32) {
        let (first, end) = (self.named().end, end.min(self.pages));
        if first < end {
            self.parts.push(Part { first, end, step });
        }
    }

    pub(super) fn check_invariants(&self, session: &Session) {
        assert!(self.named().end as usize <= session.pages.len(), "{self:?}: more pages are named than there are");
        let taken = match self.state {
            State::Telling { taken } => taken,
            State::Waiting | State::Opening | State::Ending | State::Stopping { .. } | State::Over { .. } => 0,
        };
        assert!(taken <= self.parts.len(), "{self:?}: more is taken than was named");
        assert!(self.parts.is_sorted_by(|a, b| a.end == b.first && a.step <= b.step), "{self:?}: parts out of order");
    }
}

impl Index {
    pub(super) fn begin_sending(&mut self, now: Time, id: OpId, name: TryId, out: &mut Vec<Effect>) {
        let Some(tokens) = self.handovers.tries.get(&name).map(|this| this.tokens) else { return };
        let Some(sending) = self.handovers.sending(name) else { return };
        sending.state = State::Opening;
        let msg = SendOpen { attempt: name.attempt, to: sending.to.clone(), session: id, tokens };
        self.tell_sender(now, name, msg.into(), out);
    }

    fn tell_sender(&mut self, now: Time, name: TryId, msg: SenderIn, out: &mut Vec<Effect>) {
        let Some(trace) = self.handovers.tries.get(&name).map(|this| this.trace.clone()) else { return };
        self.calls.call(now, (name.transfer, CALL_HANDOVER), Outgoing::Sender(msg), &trace, out);
    }

    /// A step computes tokens of the session.
    pub(in crate::prefix_index) fn handover_stepped(&mut self, now: Time, id: OpId, step: u64, out: &mut Vec<Effect>) {
        let Some(session) = self.sessions.get(&id) else { return };
        let Some(name) = session.handover else { return };
        if let Some(receiving) = self.handovers.receiving(name) {
            return receiving.stepped_on();
        }
        let full = session.frontier_tokens / self.config.page_tokens();
        let Some(sending) = self.handovers.sending(name) else { return };
        if session.whole_until() < sending.pages {
            return self.stop_sending(now, name, "the draft did not run", out);
        }
        sending.computed_by(step, full);
        self.tell_part(now, name, out);
    }

    /// The engine closes: the last page goes as it is, when the whole prompt is computed.
    pub(super) fn end_sending(
        &mut self,
        now: Time,
        id: OpId,
        name: TryId,
        last_step: u64,
        blob: Bin,
        out: &mut Vec<Effect>,
    ) {
        let (Some(session), Some(this)) = (self.sessions.get(&id), self.handovers.tries.get(&name)) else { return };
        let (computed, step, tokens) = (session.frontier_tokens, session.last_step, this.tokens);
        if !self.steps.heard(last_step) {
            return self.stop_sending(now, name, "closed before its last step was heard", out);
        }
        if computed < tokens {
            let cause = format!("closed with {computed} of {tokens} tokens computed");
            return self.stop_sending(now, name, &cause, out);
        }
        let Some(sending) = self.handovers.sending(name) else { return };
        sending.computed_by(step, sending.pages);
        sending.blob = Some(blob);
        self.tell_part(now, name, out);
    }

    /// Tells the next part, or that there is none behind; one at a time.
    pub(super) fn tell_part(&mut self, now: Time, name: TryId, out: &mut Vec<Effect>) {
        if self.calls.is_open((name.transfer, CALL_HANDOVER)) {
            return;
        }
        let Some(this) = self.handovers.tries.get(&name) else { return };
        let (tokens, super::Keeper::Session(id)) = (this.tokens, &this.keeper) else { return };
        let Some(session) = self.sessions.get(id) else { return };
        let (pages, attempt) = (&session.pages, name.attempt);
        let Some(sending) = self.handovers.sending(name) else { return };
        let State::Telling { taken } = sending.state else { return };
        let msg = if let Some(Part { first, end, step }) = sending.parts.get(taken).copied() {
            let pages = Pages(pages[first as usize..end as usize].to_vec());
            SenderIn::from(SendPart { attempt, part: taken as u32, first, pages, step })
        } else if sending.behind_load.is_none()
            && let Some(blob) = sending.blob.take()
        {
            sending.state = State::Ending;
            SenderIn::from(SendEnd { attempt, parts: taken as u32, tokens, blob })
        } else {
            return;
        };
        self.tell_sender(now, name, msg, out);
    }

    pub(in crate::prefix_index) fn send_taken(&mut self, now: Time, op: OpId, msg: &SendTaken, out: &mut Vec<Effect>) {
        let name = TryId::new(op, msg.attempt);
        let Some(sending) = self.handovers.sending(name) else {
            self.counts.stale += 1;
            return;
        };
        let parts = msg.parts as usize;
        match &mut sending.state {
            State::Opening if parts == 0 => sending.state = State::Telling { taken: 0 },
            State::Telling { taken } if parts == *taken + 1 && parts <= sending.parts.len() => *taken = parts,
            // A repeat, or of a part that was never told.
            State::Waiting
            | State::Opening
            | State::Telling { .. }
            | State::Ending
            | State::Stopping { .. }
            | State::Over { .. } => return,
        }
        self.calls.answered((op, CALL_HANDOVER));
        self.tell_part(now, name, out);
    }

    pub(super) fn stop_sending(&mut self, now: Time, name: TryId, cause: &str, out: &mut Vec<Effect>) {
        let Some(sending) = self.handovers.sending(name) else { return };
        match sending.state {
            State::Waiting => {
                sending.state = State::Over { failure: Some(brief(cause)) };
                self.try_over(now, name, out);
            }
            State::Opening | State::Telling { .. } | State::Ending => {
                let cause = brief(cause);
                sending.state = State::Stopping { cause: cause.clone() };
                sending.blob = None;
                self.tell_sender(now, name, SendStop { attempt: name.attempt, cause }.into(), out);
            }
            State::Stopping { .. } | State::Over { .. } => {}
        }
    }

    /// The sender reads nothing of the attempt any more.
    pub(in crate::prefix_index) fn send_over(&mut self, now: Time, op: OpId, msg: SendOver, out: &mut Vec<Effect>) {
        let name = TryId::new(op, msg.attempt);
        let Some(sending) = self.handovers.sending(name) else {
            self.counts.stale += 1;
            return;
        };
        let failure = match &sending.state {
            State::Waiting | State::Over { .. } => return,
            State::Opening | State::Telling { .. } if msg.ok => {
                // What was never named whole cannot be there: the pages are given back, and nothing is believed.
                self.broken(op, out);
                Some("the sender contradicted itself".to_owned())
            }
            State::Opening | State::Telling { .. } | State::Ending | State::Stopping { .. } => {
                (!msg.ok).then(|| brief(&msg.cause))
            }
        };
        if let Some(sending) = self.handovers.sending(name) {
            sending.state = State::Over { failure };
            sending.blob = None;
        }
        self.calls.answered((op, CALL_HANDOVER));
        self.try_over(now, name, out);
        self.finish_drained(now, out);
    }
}
