//! The side that receives: its session waits with the pages of the whole prompt, which nobody else sees before they
//! are complete.
//!
//! ```text
//! waiting -> expecting -> arrived
//!     \          \-> unexpecting -> arrived (the end overtook it)
//!      \------------/     \-> failed
//! ```

use std::ops::Range;

use super::{CALL_HANDOVER, Keeper, Side, Stage, Try, TryId, brief};
use crate::machine::{Effect, ReplyTo, Sender};
use crate::prefix_index::session::{LackOf, Phase, Session};
use crate::prefix_index::{Index, reply};
use crate::protocol::{
    Answer, Arrived, Bin, Expect, Expected, HandedOver, Handover, HandoverSettled, NotArriving, OpId, Outgoing, Pages,
    ReceiverIn, Refusal, Time, Unexpect, Unknown, WrongState,
};

/// What comes for one session.
#[derive(Debug)]
pub(super) struct Receiving {
    /// Positions that come over: all of the prompt, until it is known which are here.
    positions: Range<u32>,
    /// Who waits for them: the newest that asked.
    waits: Option<(ReplyTo, OpId)>,
    state: State,
}

#[derive(Debug)]
enum State {
    /// The receiver has not heard of it.
    Waiting,
    /// Its pages may be written.
    Expecting,
    /// It is not wanted any more; its pages may still be written.
    Unexpecting { cause: String },
    /// Every byte of `components`, or of all where none are named, is there; the blob, until the engine has stepped on.
    Arrived { blob: Option<Bin>, components: Vec<String> },
    /// Nothing writes its pages any more.
    Failed { cause: String },
}

impl Receiving {
    pub(super) const fn new(pages: u32) -> Self {
        Self { positions: 0..pages, waits: None, state: State::Waiting }
    }

    pub(super) fn stage(&self) -> Stage {
        match self.state {
            State::Waiting => Stage::Waiting,
            State::Expecting | State::Unexpecting { .. } => Stage::Running,
            State::Arrived { .. } | State::Failed { .. } => Stage::Over,
        }
    }

    pub(super) fn failure(&self) -> Option<&str> {
        match &self.state {
            State::Waiting | State::Expecting | State::Arrived { .. } => None,
            State::Unexpecting { cause } | State::Failed { cause } => Some(cause),
        }
    }

    pub(super) fn pages(&self) -> u32 {
        self.positions.end - self.positions.start
    }

    /// Positions that may be written.
    pub(super) fn positions(&self) -> Range<u32> {
        self.positions.clone()
    }

    /// The engine goes on behind what came: it has read the blob.
    pub(super) fn stepped_on(&mut self) {
        match &mut self.state {
            State::Arrived { blob, .. } => *blob = None,
            State::Waiting | State::Expecting | State::Unexpecting { .. } | State::Failed { .. } => {}
        }
    }

    pub(super) fn check_invariants(&self, session: &Session) {
        match self.state {
            State::Expecting | State::Unexpecting { .. } => {
                assert!(session.committed <= self.positions.start, "{self:?}: a page that comes is visible");
            }
            State::Waiting | State::Arrived { .. } | State::Failed { .. } => {}
        }
        assert!(self.waits.is_none() || self.stage() != Stage::Over, "{self:?}: somebody waits for what is over");
    }
}

impl Index {
    pub(super) fn expect_pages(&mut self, now: Time, id: OpId, name: TryId, out: &mut Vec<Effect>) {
        let Some(session) = self.sessions.get(&id).filter(|session| session.load.is_none()) else { return };
        let Some(tokens) = self.handovers.tries.get(&name).map(|this| this.tokens) else { return };
        let Some(receiving) = self.handovers.receiving(name) else { return };
        receiving.positions.start = session.committed;
        receiving.state = State::Expecting;
        let (first, end) = (receiving.positions.start, receiving.positions.end);
        let pages = Pages(session.pages[first as usize..end as usize].to_vec());
        self.tell_receiver(now, name, Expect { attempt: name.attempt, tokens, first, pages }.into(), out);
    }

    fn tell_receiver(&mut self, now: Time, name: TryId, msg: ReceiverIn, out: &mut Vec<Effect>) {
        let Some(trace) = self.handovers.tries.get(&name).map(|this| this.trace.clone()) else { return };
        self.calls.call(now, (name.transfer, CALL_HANDOVER), Outgoing::Receiver(msg), &trace, out);
    }

    pub(in crate::prefix_index) fn expected(&mut self, op: OpId, msg: &Expected) {
        let name = TryId::new(op, msg.attempt);
        let expecting = self.handovers.receiving(name).is_some_and(|it| matches!(it.state, State::Expecting));
        if expecting {
            self.calls.answered((op, CALL_HANDOVER));
        }
    }

    /// The pages are not wanted any more. The receiver is told also when it never heard of them: its peer may ask.
    pub(super) fn unexpect(&mut self, now: Time, name: TryId, cause: &str, out: &mut Vec<Effect>) {
        let is_first = self.handovers.is_first(name);
        let Some(receiving) = self.handovers.receiving(name) else { return };
        let cause = brief(cause);
        match receiving.state {
            State::Waiting if !is_first => return self.receiving_failed(now, name, cause, out),
            State::Waiting => receiving.positions.start = receiving.positions.end,
            State::Expecting => {}
            State::Unexpecting { .. } | State::Arrived { .. } | State::Failed { .. } => return,
        }
        receiving.state = State::Unexpecting { cause: cause.clone() };
        self.tell_receiver(now, name, Unexpect { attempt: name.attempt, cause }.into(), out);
    }

    /// The session found no room and never ran: its attempt may come again, and who waits is told that nobody knows it.
    /// One that a higher attempt has given up stays until it is over, since that one waits for it.
    pub(in crate::prefix_index) fn withdraw_handover(&mut self, session: &Session, out: &mut Vec<Effect>) {
        let Some(name) = session.handover else { return };
        if let Some(given_up) = self.handovers.tries.get_mut(&name).filter(|this| this.stage() == Stage::Running) {
            given_up.keeper = Keeper::Held(Vec::new());
            return;
        }
        if let Some(Try { side: Side::Receives(receiving), .. }) = self.handovers.tries.remove(&name) {
            self.answer_waiting(receiving.waits, Refusal::from(Unknown::new("transfer", name.transfer)).into(), out);
        }
    }

    fn answer_waiting(&mut self, waits: Option<(ReplyTo, OpId)>, answer: Answer, out: &mut Vec<Effect>) {
        let Some((to, op)) = waits else { return };
        self.counts.refusals += u64::from(matches!(answer, Answer::Refused(_)));
        reply(Some(to), op, answer, out);
    }

    /// Whoever asks is answered when the pages are there.
    pub(in crate::prefix_index) fn handover(
        &mut self,
        from: &Sender,
        msg: &Handover,
        out: &mut Vec<Effect>,
    ) -> Result<(), Refusal> {
        let name = TryId::new(msg.transfer, msg.attempt);
        let unknown = || Refusal::from(Unknown::new("transfer", msg.transfer));
        let (newest, tenant) = self.handovers.newest(msg.transfer).ok_or_else(unknown)?;
        if tenant != msg.tenant || msg.attempt > newest {
            return Err(unknown());
        }
        let Some(this) = self.handovers.tries.get_mut(&name) else {
            let state = if msg.attempt < newest { format!("attempt {newest} is known") } else { "ended".to_owned() };
            return Err(WrongState::new(msg.transfer, &state).into());
        };
        let tokens = this.tokens;
        let Side::Receives(receiving) = &mut this.side else { return Err(unknown()) };
        match &receiving.state {
            // Whoever hears that it failed may compute: nothing writes the pages then.
            State::Waiting | State::Expecting | State::Unexpecting { .. } => {
                receiving.waits = from.reply.clone().map(|to| (to, from.op));
                Ok(())
            }
            State::Arrived { blob: Some(blob), components } => {
                let (received, blob, components) = (receiving.pages(), blob.clone(), components.clone());
                let answer = HandedOver { tokens, received, blob, components };
                reply(from.reply.clone(), from.op, answer, out);
                Ok(())
            }
            State::Arrived { blob: None, .. } => Err(WrongState::new(msg.transfer, "stepped on").into()),
            State::Failed { cause } => Err(failed(name, cause)),
        }
    }

    /// The set is complete, and nothing writes its pages any more.
    pub(in crate::prefix_index) fn arrived(&mut self, now: Time, op: OpId, msg: Arrived, out: &mut Vec<Effect>) {
        let name = TryId::new(op, msg.attempt);
        let Some(tokens) = self.ends_waiting(name, out) else { return settled(name, out) };
        let Some(receiving) = self.handovers.receiving(name) else { return };
        let (waits, received) = (receiving.waits.take(), receiving.pages());
        if msg.tokens != tokens {
            self.broken(op, out);
            let cause = format!("{} tokens came, {tokens} were expected", msg.tokens);
            self.not_received(now, name, cause, out);
            return settled(name, out);
        }
        let is_incomplete = !msg.components.is_empty() && !receiving.positions.is_empty();
        let incomplete_from = is_incomplete.then_some(receiving.positions.start);
        receiving.state = State::Arrived { blob: Some(msg.blob.clone()), components: msg.components.clone() };
        if let Some(Keeper::Session(id)) = self.handovers.tries.get(&name).map(|this| &this.keeper) {
            self.take_received(now, *id, tokens, incomplete_from, out);
        }
        self.answer_waiting(
            waits,
            HandedOver { tokens, received, blob: msg.blob, components: msg.components }.into(),
            out,
        );
        self.try_over(now, name, out);
        settled(name, out);
        self.finish_drained(now, out);
    }

    /// What came is computed: pages with keys are committed, and backed up like any others. Those that lack components
    /// stay the session's, with all behind them.
    fn take_received(&mut self, now: Time, id: OpId, tokens: u32, incomplete_from: Option<u32>, out: &mut Vec<Effect>) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        if let Some(first) = incomplete_from {
            session.lacks_from(first, LackOf::Handover);
        }
        session.frontier_tokens = tokens;
        session.computed_tokens = tokens;
        if !matches!(session.phase, Phase::Open { .. }) {
            return;
        }
        self.advance(now, id, out);
        if let Some(session) = self.sessions.get_mut(&id) {
            session.backup_to = session.backup_to.max(session.committed);
        }
        self.backup_missing(now, id, out);
    }

    /// Nothing writes the pages any more, and they are not complete.
    pub(in crate::prefix_index) fn not_arriving(
        &mut self,
        now: Time,
        op: OpId,
        msg: &NotArriving,
        out: &mut Vec<Effect>,
    ) {
        let name = TryId::new(op, msg.attempt);
        if self.ends_waiting(name, out).is_some() {
            self.not_received(now, name, brief(&msg.cause), out);
        }
        settled(name, out);
    }

    /// The tokens of an attempt whose pages may be written, if `name` is one: its end has come.
    fn ends_waiting(&mut self, name: TryId, out: &mut Vec<Effect>) -> Option<u32> {
        let tokens = self.handovers.tries.get(&name)?.tokens;
        match self.handovers.receiving(name)?.state {
            State::Waiting => {
                self.broken(name.transfer, out);
                None
            }
            State::Expecting | State::Unexpecting { .. } => {
                self.calls.answered((name.transfer, CALL_HANDOVER));
                Some(tokens)
            }
            State::Arrived { .. } | State::Failed { .. } => None,
        }
    }

    fn not_received(&mut self, now: Time, name: TryId, cause: String, out: &mut Vec<Effect>) {
        self.receiving_failed(now, name, cause, out);
        self.finish_drained(now, out);
    }

    fn receiving_failed(&mut self, now: Time, name: TryId, cause: String, out: &mut Vec<Effect>) {
        let Some(receiving) = self.handovers.receiving(name) else { return };
        // What made this side give up says more than the receiver's echo of it.
        let cause = receiving.failure().map_or(cause, str::to_owned);
        let refusal = failed(name, &cause);
        receiving.state = State::Failed { cause };
        let waits = receiving.waits.take();
        self.answer_waiting(waits, refusal.into(), out);
        self.try_over(now, name, out);
    }
}

fn failed(name: TryId, cause: &str) -> Refusal {
    WrongState::new(name.transfer, &format!("failed: {cause}")).into()
}

/// The receiver may forget this attempt.
fn settled(name: TryId, out: &mut Vec<Effect>) {
    let msg = Outgoing::Receiver(HandoverSettled { attempt: name.attempt }.into());
    out.push(Effect::Send { to: msg, op: name.transfer, trace: None });
}
