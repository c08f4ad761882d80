//! How far a list of keys is known, and whether it may be stored.

use super::arena::{Link, NodeId, QUARANTINED, SaltId};
use super::{PrefixTree, Tier};
use crate::protocol::Key;

/// How far a path is served: `l1` pages from the first on have an L1 copy, the `l2` pages behind these have a
/// valid L2 copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// Pages with an L1 copy.
    pub l1: u32,
    /// Further pages with a valid L2 copy.
    pub l2: u32,
    /// The last page with an L1 copy.
    pub last_l1: Option<NodeId>,
    /// The last page of all.
    pub last: Option<NodeId>,
    /// The page whose quarantined record ended the match.
    pub cut_short: Option<NodeId>,
}

/// Where a key is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// Key of the page before it, none for the first of a path.
    pub parent: Option<Key>,
    /// Its number in the path.
    pub position: u32,
    /// The namespace of its path.
    pub salt: SaltId,
}

/// Why a path cannot be stored: its keys are not those of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// The key stands at another place already.
    #[error("{key:?} is known at position {} of salt {}, behind {:?}", known.position, known.salt.0, known.parent)]
    KeyConflict {
        /// The key.
        key: Key,
        /// Where it is known.
        known: Known,
    },
    /// The path names one key twice.
    #[error("{key:?} stands twice in one path")]
    Repeated {
        /// The key.
        key: Key,
    },
}

impl PrefixTree {
    /// How far the path `keys` from its first page on is served. Changes nothing: no pin, no touch.
    pub fn match_prefix(&self, salt: SaltId, keys: &[Key]) -> Match {
        self.walk(salt, keys, |_| {})
    }

    /// As [`Self::match_prefix`]; the pages that are served are appended to `nodes`, `l1 + l2` of them.
    pub fn match_into(&self, salt: SaltId, keys: &[Key], nodes: &mut Vec<NodeId>) -> Match {
        self.walk(salt, keys, |node| nodes.push(node))
    }

    fn walk(&self, salt: SaltId, keys: &[Key], mut each: impl FnMut(NodeId)) -> Match {
        let mut found = Match::default();
        for key in keys {
            let Some(node) = self.step(found.last, salt, key) else { break };
            let entry = &self.arena[node];
            if found.l2 == 0 && entry.has(Tier::L1) {
                found.l1 += 1;
                found.last_l1 = Some(node);
            } else if !entry.has(Tier::L2) {
                break;
            } else if entry.flag(QUARANTINED) {
                found.cut_short = Some(node);
                break;
            } else {
                found.l2 += 1;
            }
            found.last = Some(node);
            each(node);
        }
        found
    }

    /// The page `key` behind `from`. Most pages stand right behind their parent.
    #[inline]
    fn step(&self, from: Option<NodeId>, salt: SaltId, key: &Key) -> Option<NodeId> {
        let behind = from.map(|from| NodeId(from.0 + 1)).filter(|behind| {
            let entry = self.arena.get(behind.index());
            entry.is_some_and(|entry| entry.parent == Link::from(from) && entry.key == *key)
        });
        behind.or_else(|| {
            let node = self.find(key)?;
            let entry = &self.arena[node];
            (entry.parent == Link::from(from) && entry.salt == salt).then_some(node)
        })
    }

    /// Whether `keys` may be stored behind `parent`: each key is unknown, or known at just this place, and none
    /// stands twice. Changes nothing.
    ///
    /// # Errors
    /// The first key that is known at another place, else one that stands twice.
    pub fn validate_path(&self, salt: SaltId, parent: Option<NodeId>, keys: &[Key]) -> Result<(), PathError> {
        let mut at = parent;
        let mut new = keys;
        while let [key, rest @ ..] = new {
            let Some(node) = self.step(at, salt, key) else { break };
            at = Some(node);
            new = rest;
        }
        // Behind a page that is not known no page can be: whatever is found there is known elsewhere.
        for key in new {
            if let Some(node) = self.find(key) {
                return Err(self.conflict(node));
            }
        }
        // Known pages of one path differ from one another and from all new ones.
        let mut sorted = new.iter().map(|key| u128::from_le_bytes(key.0)).collect::<Vec<_>>();
        sorted.sort_unstable();
        match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(PathError::Repeated { key: Key(pair[0].to_le_bytes()) }),
            None => Ok(()),
        }
    }

    /// Whether the known page `node` stands behind `parent` in the namespace `salt`.
    pub(super) fn expect_at(&self, node: NodeId, parent: Option<NodeId>, salt: SaltId) -> Result<(), PathError> {
        let entry = &self.arena[node];
        if entry.parent == Link::from(parent) && entry.salt == salt { Ok(()) } else { Err(self.conflict(node)) }
    }

    fn conflict(&self, node: NodeId) -> PathError {
        let entry = &self.arena[node];
        let parent = entry.parent.get().map(|parent| self.arena[parent].key);
        PathError::KeyConflict { key: entry.key, known: Known { parent, position: entry.position(), salt: entry.salt } }
    }
}
