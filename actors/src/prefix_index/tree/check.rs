//! What must hold between any two calls.

use super::arena::{LISTED, LIVE, NodeId, QUARANTINED, ix};
use super::{PrefixTree, Tier};

impl PrefixTree {
    /// Looks at every entry, order and slot.
    ///
    /// # Panics
    /// When one of the tree's invariants is broken.
    pub fn check_invariants(&self) {
        let (mut live, mut roots, mut linked) = (0, 0, 0);
        let mut resident = [vec![0; self.cp_size.into()], vec![0; self.cp_size.into()]];
        for node in self.nodes(0) {
            live += 1;
            roots += usize::from(self.arena[node].parent.get().is_none());
            linked += self.arena.children(node).count();
            assert_eq!(self.find(&self.arena[node].key), Some(node), "the table finds {node:?}");
            self.check_place(node);
            self.check_children(node);
            for tier in [Tier::L1, Tier::L2] {
                let entry = &self.arena[node];
                if entry.has(tier) {
                    resident[ix(tier)][entry.lane(tier, self.cp_size)] += 1;
                }
                self.check_order(node, tier);
            }
        }
        assert_eq!(roots + linked, live, "every page with a parent is among its children");
        assert_eq!(live, self.len(), "the table holds the live entries and no others");
        for tier in [Tier::L1, Tier::L2] {
            for (number, lane) in self.orders.lanes(tier).iter().enumerate() {
                assert_eq!(resident[ix(tier)][number], lane.counts.resident(), "{tier:?} lane {number}");
                for (order, node) in lane.order.iter() {
                    assert!(self.arena.is_live(node), "{node:?} is listed and free");
                    assert_eq!(self.arena[node].order, order, "{node:?} is listed where it was");
                    assert_eq!(self.arena[node].lane(tier, self.cp_size), number);
                }
            }
        }
        self.check_free_slots(live);
    }

    fn check_place(&self, node: NodeId) {
        let entry = &self.arena[node];
        let Some(parent) = entry.parent.get() else {
            assert_eq!(entry.position(), 0, "{node:?} has no parent");
            return;
        };
        assert!(self.arena.is_live(parent), "the parent of {node:?} is gone");
        let above = &self.arena[parent];
        assert_eq!(entry.position(), above.position() + 1, "{node:?}");
        assert_eq!(entry.salt, above.salt, "{node:?}");
        for tier in [Tier::L1, Tier::L2] {
            assert!(!entry.has(tier) || above.has(tier), "{node:?} is in {tier:?} and its parent is not");
        }
    }

    fn check_children(&self, node: NodeId) {
        let mut children = [0; 2];
        for child in self.arena.children(node) {
            assert!(self.arena.is_live(child), "{child:?} is a child and free");
            assert_eq!(self.arena[child].parent.get(), Some(node), "{child:?}");
            for tier in [Tier::L1, Tier::L2] {
                children[ix(tier)] += u32::from(self.arena[child].has(tier));
            }
        }
        assert_eq!(children, self.arena[node].children, "{node:?}");
    }

    fn check_order(&self, node: NodeId, tier: Tier) {
        let entry = &self.arena[node];
        let is_listed = entry.flag(LISTED[ix(tier)]);
        assert_eq!(is_listed, entry.is_evictable(tier), "{node:?} in the order of {tier:?}");
        if is_listed {
            let lane = &self.orders.lanes(tier)[entry.lane(tier, self.cp_size)];
            assert!(lane.order.contains((entry.order, node)), "{node:?} in the order of {tier:?}");
        }
        assert!(entry.pins[ix(tier)] == 0 || entry.has(tier), "{node:?} is pinned in {tier:?} and has no copy");
        assert!(!entry.flag(QUARANTINED) || entry.has(Tier::L2), "{node:?} is quarantined and has no record");
    }

    fn check_free_slots(&self, live: usize) {
        let mut free = 0;
        for node in self.arena.free_list() {
            free += 1;
            assert!(!self.arena[node].flag(LIVE), "{node:?} is live and free");
        }
        assert_eq!(free, self.arena.free_slots());
        assert_eq!(live + free, self.slots(), "every slot is live or free");
    }
}
