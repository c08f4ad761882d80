//! Which eviction took a page that is missing: for the traces of requests that would have used it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::protocol::{Key, OpId};
use crate::span::TraceContext;

/// An eviction that somebody records.
#[derive(Debug)]
pub(super) struct Eviction {
    pub(super) op: OpId,
    /// Its span.
    pub(super) context: TraceContext,
}

/// The newest keys that recorded evictions took, a bounded number.
#[derive(Debug)]
pub(super) struct EvictedKeys {
    keys_max: usize,
    by_key: BTreeMap<Key, (u64, Arc<Eviction>)>,
    /// In the order in which they went. What was taken again stands here twice, and counts for its newest place.
    order: VecDeque<(u64, Key)>,
    next: u64,
}

impl EvictedKeys {
    pub(super) const fn new(keys_max: usize) -> Self {
        Self { keys_max, by_key: BTreeMap::new(), order: VecDeque::new(), next: 0 }
    }

    /// `eviction` took these keys.
    pub(super) fn note(&mut self, keys: impl Iterator<Item = Key>, eviction: Eviction) {
        let eviction = Arc::new(eviction);
        for key in keys.take(self.keys_max) {
            if self.order.len() >= self.keys_max {
                self.forget_oldest();
            }
            self.next += 1;
            self.by_key.insert(key, (self.next, eviction.clone()));
            self.order.push_back((self.next, key));
        }
    }

    /// Who took `key`, as far as that is remembered.
    pub(super) fn who(&self, key: &Key) -> Option<&Eviction> {
        self.by_key.get(key).map(|(_, eviction)| eviction.as_ref())
    }

    pub(super) fn check_invariants(&self) {
        assert!(self.order.len() <= self.keys_max);
        assert!(self.by_key.len() <= self.order.len());
    }

    fn forget_oldest(&mut self) {
        let Some((number, key)) = self.order.pop_front() else { return };
        if self.by_key.get(&key).is_some_and(|(newest, _)| *newest == number) {
            self.by_key.remove(&key);
        }
    }
}
