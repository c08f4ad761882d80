//! Whether a page is lost: in an idle group what is free and what is cached are all there is (requirement E2).
//!
//! The allocator is asked at the heartbeat after the group fell idle, once. An answer counts only if nothing has
//! happened since the question.

use super::{CALL, Index};
use crate::machine::Effect;
use crate::protocol::{AllocatorIn, Count, Counted, OpId, Outgoing, Rank, Tier, Time};

/// What was asked last, and what came of it.
#[derive(Debug, Default)]
pub(super) struct Census {
    /// The question that is out.
    asked: Option<OpId>,
    /// Something has begun since the last question.
    due: bool,
    /// Pages that were neither free nor cached when last counted.
    pub(super) leaked: u64,
}

impl Census {
    /// Something begins or ends: what was counted before says nothing any more.
    pub(super) fn disturbed(&mut self) {
        self.asked = None;
        self.due = true;
    }
}

impl Index {
    /// Whether nothing runs: looks at the many that may run before it looks through those that have ended.
    pub(super) fn is_idle(&self) -> bool {
        self.sessions.is_empty() && self.parked_opens.is_empty() && self.is_serving() && self.in_flight() == 0
    }

    /// Asks what is free, if the group is idle and was not since the last question.
    pub(super) fn take_census(&mut self, now: Time, out: &mut Vec<Effect>) {
        if !self.is_idle() || !std::mem::take(&mut self.census.due) {
            return;
        }
        let op = self.ids.draw();
        self.census.asked = Some(op);
        self.calls.call(now, (op, CALL), Outgoing::Allocator(AllocatorIn::from(Count {})), &super::NO_TRACE, out);
    }

    /// Compares what is free with what is cached.
    pub(super) fn counted(&mut self, op: OpId, msg: &Counted, out: &mut Vec<Effect>) {
        if !matches!(self.calls.asked((op, CALL)), Some(Outgoing::Allocator(AllocatorIn::Count(_)))) {
            return;
        }
        self.calls.answered((op, CALL));
        if self.census.asked != Some(op) {
            return;
        }
        self.census.asked = None;
        let lanes = usize::from(self.config.cp_size());
        if msg.l1_free.len() != lanes || msg.l2_free.len() != lanes {
            return self.broken(op, out);
        }
        let pools = [
            (Tier::L1, &msg.l1_free, self.config.l1_physical_pages - 1),
            (Tier::L2, &msg.l2_free, self.config.l2_slots),
        ];
        let mut leaked = 0;
        for (tier, free, capacity) in pools {
            for (rank, free) in (0..).map(Rank).zip(free) {
                let known = u64::from(*free) + self.tree.counts(tier, rank).resident();
                leaked += known.abs_diff(capacity.into());
            }
        }
        self.census.leaked = leaked;
        if leaked > 0 {
            out.push(Effect::Mark { op: OpId::default(), name: "error.leaked_pages", value: leaked });
        }
    }
}
