//! Handovers: which pages of a session leave for another group, and which come from one.

use super::Index;
use crate::machine::{Effect, Sender};
use crate::protocol::{Arrived, Expected, Handover, NotArriving, OpId, Refusal, SendOver, SendTaken, Time, Unknown};

impl Index {
    pub(super) fn handover(&mut self, _: Time, _: &Sender, msg: &Handover, _: &mut Vec<Effect>) -> Result<(), Refusal> {
        Err(Unknown::new("transfer", msg.transfer).into())
    }

    pub(super) fn send_taken(&mut self, _: Time, _: OpId, _: &SendTaken, _: &mut Vec<Effect>) {}

    pub(super) fn send_over(&mut self, _: Time, _: OpId, _: SendOver, _: &mut Vec<Effect>) {}

    pub(super) fn expected(&mut self, _: Time, _: OpId, _: &Expected, _: &mut Vec<Effect>) {}

    pub(super) fn arrived(&mut self, _: Time, _: OpId, _: Arrived, _: &mut Vec<Effect>) {}

    pub(super) fn not_arriving(&mut self, _: Time, _: OpId, _: NotArriving, _: &mut Vec<Effect>) {}
}
