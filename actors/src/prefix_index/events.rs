//! What is stored and removed, told to whoever listens, with numbers to notice a loss by.

use std::collections::VecDeque;

use super::Index;
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

    /// Events from a number on, as many as one message carries: whoever wants more asks from the number behind.
    pub(super) fn replay(&self, from: u64, limit: u32) -> Replayed {
        let oldest = self.next - self.kept.len() as u64;
        let skip = usize::try_from(from.saturating_sub(oldest)).unwrap_or(usize::MAX);
        let mut keys = 0;
        let fits = |event: &&CacheEvent| {
            keys += event.keys.0.len();
            keys <= REPLAY_KEYS_MAX
        };
        let events = self.kept.iter().skip(skip).take(limit.min(REPLAY_MAX) as usize).take_while(fits);
        Replayed { events: events.cloned().collect(), next: self.next }
    }
}

impl Index {
    /// Pages of one path, each behind the one before, now have a copy in `tier`.
    pub(super) fn stored(&mut self, tier: Tier, keys: &[Key], out: &mut Vec<Effect>) {
        let first = keys.first().and_then(|key| self.tree.find(key));
        let parent = first.and_then(|node| self.tree.page(node).parent);
        let mut parent = parent.map(|node| self.tree.page(node).key).unwrap_or_default();
        for keys in keys.chunks(EVENT_KEYS_MAX) {
            self.events.record(tier, true, parent, keys.to_vec(), out);
            parent = keys[keys.len() - 1];
        }
    }

    /// Pages lost their copy in `tier`.
    pub(super) fn removed(&mut self, tier: Tier, keys: &[Key], out: &mut Vec<Effect>) {
        for keys in keys.chunks(EVENT_KEYS_MAX) {
            self.events.record(tier, false, Key::default(), keys.to_vec(), out);
        }
    }
}

/// Most keys in one event: what is kept for replay has a bound in bytes, too.
const EVENT_KEYS_MAX: usize = 1_024;
/// Most keys in one answer: a quarter of what a bus carries.
const REPLAY_KEYS_MAX: usize = 16 * EVENT_KEYS_MAX;
/// Most events in one answer.
const REPLAY_MAX: u32 = 256;
