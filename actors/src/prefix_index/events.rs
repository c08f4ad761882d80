//! What is stored and removed, told to whoever listens, with numbers to notice a loss by.

use std::collections::VecDeque;

use super::Index;
use super::tree::NodeId;
use crate::machine::Effect;
use crate::protocol::{CacheEvent, Incarnation, Key, Keys, OpId, Outgoing, Replayed, Tier};

/// The newest events of one incarnation.
#[derive(Debug)]
pub(super) struct Events {
    control: Incarnation,
    next: u64,
    kept: VecDeque<CacheEvent>,
    kept_max: usize,
}

impl Events {
    pub(super) fn new(control: Incarnation, kept_max: usize) -> Self {
        Self { control, next: 1, kept: VecDeque::new(), kept_max }
    }

    fn record(&mut self, tier: Tier, stored: bool, parent: Key, keys: Vec<Key>, out: &mut Vec<Effect>) {
        let tier = match tier {
            Tier::L1 => 1,
            Tier::L2 => 2,
        };
        let event = CacheEvent { number: self.next, control: self.control, tier, stored, keys: Keys(keys), parent };
        self.next += 1;
        if self.kept_max > 0 {
            if self.kept.len() == self.kept_max {
                self.kept.pop_front();
            }
            self.kept.push_back(event.clone());
        }
        out.push(Effect::Send { to: Outgoing::Event(event), op: OpId::default(), trace: None });
    }

    pub(super) fn replay(&self, from: u64, limit: u32) -> Replayed {
        let events = self.kept.iter().filter(|event| event.number >= from);
        Replayed { events: events.take(limit.min(REPLAY_MAX) as usize).cloned().collect(), next: self.next }
    }
}

impl Index {
    /// Pages behind `parent` now have a copy in `tier`.
    pub(super) fn stored(&mut self, tier: Tier, parent: Option<NodeId>, keys: Vec<Key>, out: &mut Vec<Effect>) {
        if keys.is_empty() {
            return;
        }
        let parent = parent.map(|node| self.tree.page(node).key).unwrap_or_default();
        self.events.record(tier, true, parent, keys, out);
    }

    /// Pages lost their copy in `tier`.
    pub(super) fn removed(&mut self, tier: Tier, keys: Vec<Key>, out: &mut Vec<Effect>) {
        if !keys.is_empty() {
            self.events.record(tier, false, Key::default(), keys, out);
        }
    }
}

/// Most events in one answer.
const REPLAY_MAX: u32 = 256;
