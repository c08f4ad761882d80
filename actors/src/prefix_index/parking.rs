//! Opens that wait for a running load on their path: they are matched again when it has ended.

use super::spans::{Op, OpenSpan, opening_over};
use super::{Due, Index};
use crate::machine::{Effect, Sender};
use crate::protocol::{OpId, Open, Refusal, Time, Unknown};

/// An open whose path runs through a running load.
#[derive(Debug)]
pub(super) struct ParkedOpen {
    from: Sender,
    msg: Open,
    until: Time,
    load: OpId,
    /// When its `open` came, and when it began to wait for this load.
    began: Time,
    since: Time,
    span: OpenSpan,
}

impl Index {
    pub(super) fn park(
        &mut self,
        now: Time,
        began: Time,
        from: &Sender,
        msg: Open,
        load: OpId,
        span: &mut OpenSpan,
    ) -> Result<(), Refusal> {
        if self.parked_opens.len() >= self.config.parked_opens_max as usize {
            return Err(self.busy("opens behind a load", self.config.parked_opens_max));
        }
        let until = now.plus_ms(from.remaining_ms.into());
        self.deadlines.insert((until, Due::ParkedOpen(from.op)));
        let (from, span) = (from.clone(), span.take());
        self.parked_opens.push_back(ParkedOpen { from, msg, until, load, began, since: now, span });
        Ok(())
    }

    /// The load has ended: everybody who waited for it is matched again.
    pub(super) fn unpark(&mut self, now: Time, load: OpId, out: &mut Vec<Effect>) {
        let all = std::mem::take(&mut self.parked_opens);
        let (again, wait): (Vec<ParkedOpen>, Vec<ParkedOpen>) = all.into_iter().partition(|p| p.load == load);
        self.parked_opens = wait.into();
        for mut parked in again {
            self.deadlines.remove(&(parked.until, Due::ParkedOpen(parked.from.op)));
            let mut span = parked.waited(now);
            let ParkedOpen { from, msg, until, began, .. } = parked;
            let from = Sender { remaining_ms: now.ms_until(until) as u32, ..from };
            let done = match self.open_again(&from, &msg, out) {
                Ok(true) => Ok(()),
                Ok(false) => self.try_open(now, began, &from, msg, &mut span, out),
                Err(refusal) => Err(refusal),
            };
            if let Err(refusal) = done {
                opening_over(now, span, Some(&refusal), out);
                self.refuse(&from, refusal, out);
            }
        }
    }

    pub(super) fn parked_open_expired(&mut self, now: Time, op: OpId, out: &mut Vec<Effect>) {
        if let Some(at) = self.parked_opens.iter().position(|parked| parked.from.op == op)
            && let Some(mut parked) = self.parked_opens.remove(at)
        {
            let busy = self.busy("opens behind a load", self.config.parked_opens_max);
            opening_over(now, parked.waited(now), Some(&busy), out);
            self.refuse(&parked.from, busy, out);
        }
    }

    /// Whether this is a repeat of an open that waits; it is answered instead.
    pub(super) fn parked_again(&mut self, from: &Sender, msg: &Open) -> Result<bool, Refusal> {
        match self.parked_opens.iter_mut().find(|parked| parked.from.op == from.op) {
            None => Ok(false),
            Some(parked) if parked.msg.tenant != msg.tenant => Err(Unknown::new("session", from.op).into()),
            Some(parked) => {
                parked.from.reply.clone_from(&from.reply);
                Ok(true)
            }
        }
    }
}

impl ParkedOpen {
    /// Its span, with how long it has waited for the load.
    fn waited(&mut self, now: Time) -> OpenSpan {
        let (since, load) = (self.since, self.load);
        self.span
            .take()
            .map(|span| Box::new(span.text("open.parked_behind_load", Op(load)).micros("open.parked_us", since, now)))
    }
}
