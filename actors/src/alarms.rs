//! What a machine has to act on at a time: at most one time for each thing.

use std::collections::{BTreeMap, BTreeSet};

use crate::protocol::Time;

/// Times by what they are for, in one order.
#[derive(Debug)]
pub(crate) struct Alarms<K> {
    of: BTreeMap<K, Time>,
    due: BTreeSet<(Time, K)>,
}

impl<K: Clone + Ord> Alarms<K> {
    /// None set.
    pub(crate) const fn new() -> Self {
        Self { of: BTreeMap::new(), due: BTreeSet::new() }
    }

    /// Sets the time of `what`, replacing the one it had.
    pub(crate) fn set(&mut self, what: K, at: Time) {
        self.clear(&what);
        self.due.insert((at, what.clone()));
        self.of.insert(what, at);
    }

    /// Takes the time of `what` away, if it has one.
    pub(crate) fn clear(&mut self, what: &K) {
        if let Some((what, at)) = self.of.remove_entry(what) {
            self.due.remove(&(at, what));
        }
    }

    /// Takes out what comes first and has come by `now`.
    pub(crate) fn pop(&mut self, now: Time) -> Option<K> {
        let (at, what) = self.due.pop_first()?;
        if at > now {
            self.due.insert((at, what));
            return None;
        }
        self.of.remove(&what);
        Some(what)
    }

    /// The earliest time and what it is for.
    pub(crate) fn next(&self) -> Option<(Time, &K)> {
        self.due.first().map(|(at, what)| (*at, what))
    }

    /// Whether `what` has a time.
    pub(crate) fn is_set(&self, what: &K) -> bool {
        self.of.contains_key(what)
    }

    /// Times set.
    pub(crate) fn len(&self) -> usize {
        self.of.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thing_has_one_time_and_the_earliest_comes_first() {
        let at = |ms| Time::ZERO.plus_ms(ms);
        let mut alarms = Alarms::new();
        for (what, ms) in [("a", 5), ("b", 3), ("a", 2), ("c", 9), ("c", 4)] {
            alarms.set(what, at(ms));
        }
        alarms.clear(&"b");
        alarms.clear(&"b");
        assert_eq!((alarms.len(), alarms.next()), (2, Some((at(2), &"a"))));
        assert!(alarms.is_set(&"c") && !alarms.is_set(&"b"));
        assert_eq!([1, 2, 3, 4].map(|ms| alarms.pop(at(ms))), [None, Some("a"), None, Some("c")]);
        assert_eq!((alarms.len(), alarms.next()), (0, None));
    }
}
