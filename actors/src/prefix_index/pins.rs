//! `probe` and `pin`: looking at a prefix, and keeping one.

use super::tree::{Match, NodeId};
use super::{Index, reply};
use crate::machine::{Effect, Sender};
use crate::protocol::{Busy, ComponentMissing, Malformed, Pin, Pinned, Probe, Probed, Refusal, Tier, Unknown};

impl Index {
    pub(super) fn probe(&mut self, from: &Sender, msg: &Probe, out: &mut Vec<Effect>) -> Result<(), Refusal> {
        if msg.tenant.is_empty() {
            return Err(Malformed::new("tenant", "", "1 or more bytes").into());
        }
        let found = match self.salts.get(msg.salt) {
            Some(salt) => self.served(salt, &msg.keys.0, &mut Vec::new()),
            None => Match::default(),
        };
        reply(from.reply.clone(), from.op, Probed { l1: found.l1, l2: found.l2 }, out);
        Ok(())
    }

    pub(super) fn pin(&mut self, from: &Sender, msg: &Pin, out: &mut Vec<Effect>) -> Result<(), Refusal> {
        let Some(name) = msg.keys.0.last().copied() else {
            return Err(Malformed::new("keys", "none", "1 or more").into());
        };
        if !msg.on {
            let (l1, l2) = self.admin_pins.remove(&name).ok_or_else(|| Unknown::new("pin", name))?;
            self.unpin_path(l1, l2);
            reply(from.reply.clone(), from.op, Pinned { l1: 0, l2: 0 }, out);
            return Ok(());
        }
        let salt = self.salts.get(msg.salt).ok_or_else(|| Unknown::new("salt", msg.salt))?;
        let mut nodes = Vec::new();
        let found = self.served(salt, &msg.keys.0, &mut nodes);
        if let Some(node) = found.cut_short {
            let component = self.damaged_component(node);
            return Err(ComponentMissing { key: self.tree.page(node).key, component }.into());
        }
        if !self.admin_pins.contains_key(&name) {
            if self.admin_pins.len() >= ADMIN_PINS_MAX {
                return Err(self.busy("pins", ADMIN_PINS_MAX as u32));
            }
            self.pin_path(&found, &nodes)?;
            self.admin_pins.insert(name, (found.last_l1, self.l2_tail(&found, &nodes)));
        }
        let l2 = nodes.iter().filter(|node| self.tree.page(**node).l2.is_some()).count() as u32;
        reply(from.reply.clone(), from.op, Pinned { l1: found.l1, l2 }, out);
        Ok(())
    }

    /// Keeps the path: the deepest page of each tier, since its resident pages are closed under parents.
    pub(super) fn pin_path(&mut self, found: &Match, nodes: &[NodeId]) -> Result<(), Refusal> {
        let full = |_| Refusal::from(Busy { queue: "pins".to_owned(), bound: u16::MAX.into(), retry_ms: 1_000 });
        let l2 = self.l2_tail(found, nodes);
        if let Some(node) = found.last_l1 {
            self.tree.pin(node, Tier::L1).map_err(full)?;
        }
        if let Some(node) = l2
            && let Err(in_use) = self.tree.pin(node, Tier::L2)
        {
            if let Some(node) = found.last_l1 {
                self.tree.unpin(node, Tier::L1);
            }
            return Err(full(in_use));
        }
        Ok(())
    }

    /// The deepest page of the path with an L2 copy.
    pub(super) fn l2_tail(&self, found: &Match, nodes: &[NodeId]) -> Option<NodeId> {
        if self.config.l2_slots == 0 {
            return None;
        }
        if found.l2 > 0 {
            return found.last;
        }
        nodes.iter().rev().copied().find(|node| self.tree.page(*node).l2.is_some())
    }

    pub(super) fn unpin_path(&mut self, l1: Option<NodeId>, l2: Option<NodeId>) {
        if let Some(node) = l1 {
            self.tree.unpin(node, Tier::L1);
        }
        if let Some(node) = l2 {
            self.tree.unpin(node, Tier::L2);
        }
    }
}

/// Most pins by operators.
const ADMIN_PINS_MAX: usize = 4_096;
