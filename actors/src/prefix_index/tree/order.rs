//! The pages of one lane that may leave, in order.
//!
//! A path is stored, and evicted, page by page: each page is listed and, one step later, taken out again. The one
//! listed last is therefore kept in hand, and such a pair of steps never touches the set.

use std::collections::BTreeSet;

use super::arena::NodeId;

/// Rank in the order and the page; the smallest goes first.
pub(super) type Listed = (u64, NodeId);

/// Invariants: what is in hand is not in the set.
#[derive(Clone, Default)]
pub(super) struct Order {
    in_hand: Option<Listed>,
    set: BTreeSet<Listed>,
}

impl Order {
    pub(super) fn len(&self) -> usize {
        self.set.len() + usize::from(self.in_hand.is_some())
    }

    pub(super) fn first(&self) -> Option<Listed> {
        match (self.in_hand, self.set.first()) {
            (Some(in_hand), Some(first)) => Some(in_hand.min(*first)),
            (in_hand, first) => in_hand.or(first.copied()),
        }
    }

    pub(super) fn contains(&self, page: Listed) -> bool {
        self.in_hand == Some(page) || self.set.contains(&page)
    }

    /// All pages, the first to go first.
    pub(super) fn iter(&self) -> impl Iterator<Item = Listed> + '_ {
        // With nothing in hand all are before the last possible page.
        let split = self.in_hand.unwrap_or((u64::MAX, NodeId(u32::MAX)));
        self.set.range(..split).copied().chain(self.in_hand).chain(self.set.range(split..).copied())
    }

    pub(super) fn insert(&mut self, page: Listed) {
        debug_assert!(!self.contains(page), "{page:?} is listed");
        if let Some(put_down) = self.in_hand.replace(page) {
            let is_new = self.set.insert(put_down);
            assert!(is_new, "{put_down:?} is listed twice");
        }
    }

    pub(super) fn remove(&mut self, page: Listed) {
        if self.in_hand == Some(page) {
            self.in_hand = None;
        } else {
            assert!(self.set.remove(&page), "{page:?} is not listed");
        }
    }

    /// An estimate: B-tree nodes of 11 elements, two thirds full.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + self.set.len() * size_of::<Listed>() * 3 / 2
    }
}
