//! Roots of keys, named by a number that fits a tree entry.

use std::collections::BTreeMap;

use super::Index;
use super::tree::SaltId;
use crate::protocol::{Key, Refusal, TooLarge};

/// The salts that something is stored under, and some that nothing is: those are found when there are many.
#[derive(Debug)]
pub(super) struct Salts {
    ids: BTreeMap<Key, SaltId>,
    keys: Vec<Key>,
    unused: Vec<SaltId>,
    /// With this many salts those in use are looked for.
    sweep_at: usize,
}

impl Default for Salts {
    fn default() -> Self {
        Self { ids: BTreeMap::new(), keys: Vec::new(), unused: Vec::new(), sweep_at: SWEEP_MIN }
    }
}

impl Salts {
    pub(super) fn get(&self, salt: Key) -> Option<SaltId> {
        self.ids.get(&salt).copied()
    }

    pub(super) fn len(&self) -> usize {
        self.ids.len()
    }

    pub(super) fn key(&self, id: SaltId) -> Key {
        self.keys[id.0 as usize]
    }

    fn insert(&mut self, salt: Key) -> Result<SaltId, Refusal> {
        if self.ids.len() >= SALTS_MAX {
            return Err(TooLarge::new("salts", SALTS_MAX as u64 + 1, SALTS_MAX as u64).into());
        }
        let id = self.unused.pop().unwrap_or(SaltId(self.keys.len() as u32));
        match self.keys.get_mut(id.0 as usize) {
            Some(key) => *key = salt,
            None => self.keys.push(salt),
        }
        self.ids.insert(salt, id);
        Ok(id)
    }

    /// Forgets the salts that `used` has no mark for.
    fn sweep(&mut self, used: &[bool]) {
        let unused = &mut self.unused;
        self.ids.retain(|_, id| {
            let is_used = used[id.0 as usize];
            if !is_used {
                unused.push(*id);
            }
            is_used
        });
        self.sweep_at = (2 * self.ids.len()).clamp(SWEEP_MIN, SALTS_MAX);
    }
}

impl Index {
    /// The number of a salt. Looks for those in use whenever there are twice as many as there were then: the work
    /// is spread over the salts that came since.
    pub(super) fn intern(&mut self, salt: Key) -> Result<SaltId, Refusal> {
        if let Some(id) = self.salts.get(salt) {
            return Ok(id);
        }
        if self.salts.len() >= self.salts.sweep_at {
            let mut used = vec![false; self.salts.keys.len()];
            let of_pages = self.tree.nodes(0).map(|node| self.tree.page(node).salt);
            let of_sessions = self.sessions.values().map(|session| session.salt);
            for id in of_pages.chain(of_sessions).chain(self.salts_of_backups()) {
                used[id.0 as usize] = true;
            }
            self.salts.sweep(&used);
        }
        self.salts.insert(salt)
    }
}

/// Fewer salts than this are never looked through.
const SWEEP_MIN: usize = 1_024;
/// Different tenants or models of one group.
const SALTS_MAX: usize = 1 << 20;
