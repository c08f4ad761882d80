//! Taking an engine's pool: checked and mapped at once, used when the copies of its predecessor have stopped.

use std::sync::Arc;

use hicached_actors::machine::{Effect, Sender};
use hicached_actors::protocol::{Attach, AttachRefused, Attached, OpId, Refusal, Time, same};

use super::l1::L1;
use super::machine::RankMachine;
use super::telling::to_index;

impl RankMachine {
    /// Maps an engine's pool; the same engine again is answered from the state.
    pub(super) fn attach(&mut self, from: &Sender, msg: Attach, out: &mut Vec<Effect>) {
        let engine = msg.engine;
        let taken = match L1::attach(&self.layout, &msg, self.pool.path()) {
            Ok(l1) => match self.l1.as_ref().filter(|known| known.engine() == engine) {
                Some(known) => is_same_pool(known, &l1).map(|()| None),
                None => Ok(Some(Arc::new(l1))),
            },
            Err(refusal) => Err(refusal),
        };
        match taken {
            Ok(None) => self.say_attached(from.op, out),
            Ok(Some(l1)) => {
                self.stop_all("the engine was replaced");
                self.attaching = Some((msg, l1, from.op, from.trace.clone()));
            }
            Err(refusal) => {
                self.counts.refused += 1;
                to_index(AttachRefused { engine, refusal }.into(), from.op, out);
            }
        }
    }

    /// Changes the engine once nothing copies for the old one.
    pub(super) fn attach_if_idle(&mut self, now: Time, out: &mut Vec<Effect>) {
        if !self.is_idle() {
            return;
        }
        let Some((attach, l1, op, _)) = self.attaching.take() else { return };
        if self.pool.engine() != attach.engine {
            self.pool.set_engine(attach.engine);
        }
        self.l1 = Some(l1);
        self.say_attached(op, out);
        self.hello(now, OpId::default(), out);
    }

    fn say_attached(&self, op: OpId, out: &mut Vec<Effect>) {
        let attached = Attached {
            engine: self.pool.engine(),
            pool_file: self.pool.path().to_string_lossy().into_owned(),
            words_offset: self.pool.words_offset(),
            load_slots_offset: self.pool.load_slots_offset(),
            adoptions: self.adoptions,
        };
        to_index(attached.into(), op, out);
    }
}

/// One life of an engine has one pool.
fn is_same_pool(known: &L1, yours: &L1) -> Result<(), Refusal> {
    same("segment", yours.segment().0.to_string_lossy(), known.segment().0.to_string_lossy())?;
    same("segment_bytes", yours.segment().1, known.segment().1)?;
    same("pages", yours.layout().pages(), known.layout().pages())?;
    if yours.layout() == known.layout() {
        return Ok(());
    }
    same("regions", format!("{:?}", yours.layout()), format!("{:?}", known.layout()))
}
