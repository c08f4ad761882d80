//! The sending side of a rank: pushes begin, follow the words of their step, and end.

use std::time::Duration;

use hicached_actors::machine::{Effect, Sender};
use hicached_actors::protocol::{
    Malformed, Outgoing, Push, PushFigures, PushStopped, Pushed, Refusal, SenderIn, StopPush,
};

use super::{Pushing, ascending, over};
use crate::rank::machine::RankMachine;
use crate::rank::orders::same_length;
use crate::wire::{LayersReady, Name, PushEnd, PushKey, PushOrder, SECRET_BYTES};

impl RankMachine {
    /// Sends pages that this rank owns; the same again is answered from the state of the push.
    pub(in crate::rank) fn push(&mut self, from: &Sender, msg: &Push, out: &mut Vec<Effect>) {
        let name = Name { transfer: from.op, attempt: msg.attempt };
        let key = PushKey { name, part: msg.part };
        let known = self.wire.as_ref().and_then(|wire| {
            let runs = wire.pushes.contains_key(&key).then(|| self.pushed(key, Vec::new(), NOTHING));
            wire.pushed.get(key).cloned().or(runs)
        });
        let answer = match known {
            Some(answer) => answer,
            None => match self.begin_push(from, key, msg) {
                Ok(()) => return,
                Err(refusal) => {
                    self.counts.refused += 1;
                    let answer = self.pushed(key, vec![refusal], NOTHING);
                    if let Some(wire) = &mut self.wire {
                        wire.pushed.put(key, answer.clone());
                    }
                    answer
                }
            },
        };
        out.push(Effect::Send { to: Outgoing::Sender(answer.into()), op: from.op, trace: from.trace.clone() });
    }

    fn begin_push(&mut self, from: &Sender, key: PushKey, msg: &Push) -> Result<(), Refusal> {
        if self.wire()?.stopped.covers(key.name) {
            return Err(over(key.name, "was stopped"));
        }
        self.room()?;
        let pages = self.own_pages(&msg.pages.0)?;
        same_length("positions", msg.positions.0.len(), pages.len())?;
        same_length("slots", msg.slots.0.len(), pages.len())?;
        let positions: Vec<u32> = msg.positions.0.iter().map(|position| position.0).collect();
        ascending(&positions)?;
        let secret = <[u8; SECRET_BYTES]>::try_from(msg.grant.0.as_slice());
        let wrong_length = |_| Malformed::new("grant", msg.grant.0.len(), format_args!("{SECRET_BYTES} bytes"));
        let (secret, source) = (secret.map_err(wrong_length)?, self.pool_of(&msg.components)?);
        let claim = self.claims.down(&pages, &[])?;
        let order = PushOrder {
            key,
            rank: self.rank,
            source,
            positions,
            pages,
            slots: msg.slots.0.iter().map(|slot| slot.0).collect(),
            endpoint: msg.endpoint.clone(),
            secret,
            deadline: Duration::from_millis(msg.deadline_ms),
            ready: if msg.step == 0 { LayersReady::ALL } else { LayersReady { target: 0, draft: 0 } },
        };
        let wire = self.wire.as_mut().expect("looked at above");
        if let Err(refusal) = wire.launch.push(order) {
            self.claims.give_back(claim);
            return Err(refusal);
        }
        wire.counts.pushes += 1;
        wire.pushes.insert(key, Pushing { claim, trace: from.trace.clone(), old: false });
        if msg.step > 0 {
            self.copies.push_behind(self.watch_id, wire.launch.clone(), key, msg.step);
        }
        Ok(())
    }

    /// A push has ended: nothing of it is read any more.
    pub(super) fn push_ended(&mut self, key: PushKey, end: PushEnd, figures: PushFigures, out: &mut Vec<Effect>) {
        self.copies.forget_push(self.watch_id, key);
        let failed = match end {
            PushEnd::Complete => Vec::new(),
            PushEnd::Failed(cause) => {
                let Name { transfer, attempt } = key.name;
                tracing::warn!(rank = self.rank.0, ?transfer, attempt, %cause, "pages did not go over");
                vec![Refusal::from(cause)]
            }
            PushEnd::Stopped => vec![over(key.name, "was stopped")],
        };
        let answer = Pushed { complete: failed.is_empty(), ..self.pushed(key, failed, figures) };
        let Some(wire) = &mut self.wire else { return };
        let Some(pushing) = wire.pushes.remove(&key) else { return };
        wire.counts.pushes_failed += u64::from(!answer.complete);
        wire.counts.bytes += answer.figures.bytes;
        wire.counts.runs += answer.figures.runs;
        wire.counts.descriptors += answer.figures.descriptors;
        self.claims.give_back(pushing.claim);
        if !pushing.old {
            wire.pushed.put(key, answer.clone());
            let (to, op) = (Outgoing::Sender(answer.into()), key.name.transfer);
            out.push(Effect::Send { to, op, trace: pushing.trace });
        }
    }

    /// Stops an attempt; the answer comes when nothing of it is read or written.
    pub(in crate::rank) fn stop_push(&mut self, from: &Sender, msg: &StopPush, out: &mut Vec<Effect>) {
        let name = Name { transfer: from.op, attempt: msg.attempt };
        let wire = match self.wire() {
            Ok(wire) => wire,
            Err(refusal) => return self.reject(from, refusal, out),
        };
        wire.stopped.put_highest(name.transfer, name.attempt);
        if !wire.pushes.keys().any(|key| key.name == name) {
            let stopped = PushStopped { attempt: name.attempt, rank: self.rank };
            out.push(Effect::Send { to: Outgoing::Sender(stopped.into()), op: from.op, trace: from.trace.clone() });
            return;
        }
        if wire.stopping.insert(name, from.trace.clone()).is_none() {
            wire.launch.stop(name);
        }
    }

    /// Nothing of an attempt is read or written any more.
    pub(super) fn push_stopped(&mut self, name: Name, out: &mut Vec<Effect>) {
        let rank = self.rank;
        let Some(trace) = self.wire.as_mut().and_then(|wire| wire.stopping.remove(&name)) else { return };
        let to = Outgoing::Sender(PushStopped { attempt: name.attempt, rank }.into());
        out.push(Effect::Send { to, op: name.transfer, trace });
    }

    /// Says the newest ends of pushes again.
    pub(in crate::rank) fn pushed_again(&self, limit: usize, out: &mut Vec<Effect>) {
        let Some(wire) = &self.wire else { return };
        for key in wire.pushed.order.iter().rev().take(limit) {
            if let Some(answer) = wire.pushed.get(*key) {
                let to = Outgoing::Sender(SenderIn::Pushed(answer.clone()));
                out.push(Effect::Send { to, op: key.name.transfer, trace: None });
            }
        }
    }

    fn pushed(&self, key: PushKey, failed: Vec<Refusal>, figures: PushFigures) -> Pushed {
        Pushed { attempt: key.name.attempt, part: key.part, rank: self.rank, complete: false, failed, figures }
    }
}

/// Nothing was sent.
const NOTHING: PushFigures =
    PushFigures { bytes: 0, runs: 0, descriptors: 0, queue_us: 0, layers_us: 0, wire_us: 0, total_us: 0 };
