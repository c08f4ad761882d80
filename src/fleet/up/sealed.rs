//! Whether a page that was once stored on a host is stored there still.
//!
//! The page tables of the ranks are read from outside, with nobody's help: a key that was ever sealed in one has to be
//! sealed in one at the end, and the index has to find it there.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use hicached_actors::protocol::{Flush, Key, Keys, Probe};
use hicached_client::client::{Client, ClientError};

use crate::rank::{PoolError, PoolView, Row};

/// What was ever seen sealed.
#[derive(Debug, Default)]
pub(super) struct Sealed {
    ever: BTreeSet<Key>,
}

/// What became of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Kept {
    /// Keys ever seen sealed.
    pub(super) ever: u64,
    /// Of those, sealed in no table.
    pub(super) unsealed: u64,
    /// Of those that are sealed, unknown to the index.
    pub(super) unknown: u64,
}

impl Sealed {
    /// Notes what is sealed in `pools` at the moment.
    pub(super) fn look(&mut self, pools: &[PathBuf]) -> Result<(), PoolError> {
        self.ever.extend(rows(pools)?.into_keys());
        Ok(())
    }

    /// Counts what is gone. Gives up the device copies first, so that what the index finds is on the hosts.
    pub(super) async fn check(&mut self, pools: &[PathBuf], client: &Client) -> Result<Kept, SealedError> {
        client.flush(Flush { tier: 1, salt: Vec::new(), prefix: Keys::default(), quarantined: false }).await?;
        let rows = rows(pools)?;
        self.ever.extend(rows.keys());
        let mut known = BTreeSet::new();
        for (salt, path) in paths(&rows) {
            let probed = client.probe(Probe { tenant: TENANT.to_owned(), salt, keys: Keys(path.clone()) }).await?;
            known.extend(path.into_iter().take((probed.l1 + probed.l2) as usize));
        }
        let unsealed = self.ever.iter().filter(|key| !rows.contains_key(key)).count() as u64;
        let unknown = self.ever.iter().filter(|key| rows.contains_key(key) && !known.contains(key)).count() as u64;
        Ok(Kept { ever: self.ever.len() as u64, unsealed, unknown })
    }
}

/// Why it cannot be said.
#[derive(Debug, thiserror::Error)]
pub enum SealedError {
    /// A pool file cannot be read.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The group does not answer.
    #[error(transparent)]
    Client(#[from] ClientError),
}

fn rows(pools: &[PathBuf]) -> Result<BTreeMap<Key, Row>, PoolError> {
    let mut rows = BTreeMap::new();
    for pool in pools {
        rows.extend(PoolView::open(pool)?.sealed().map(|(_, row)| (row.key, row)));
    }
    Ok(rows)
}

/// The salt and the keys of every path from a root to a page without a page behind it. A page whose path has a gap is
/// on none.
fn paths(rows: &BTreeMap<Key, Row>) -> Vec<(Key, Vec<Key>)> {
    let parents: BTreeSet<Key> = rows.values().map(|row| row.parent).collect();
    let path = |leaf: &Row| {
        let mut path = vec![leaf.key];
        let mut at = leaf;
        while at.position > 0 {
            at = rows.get(&at.parent).filter(|parent| parent.position + 1 == at.position)?;
            path.push(at.key);
        }
        path.reverse();
        Some((leaf.salt, path))
    };
    rows.values().filter(|row| !parents.contains(&row.key)).filter_map(path).collect()
}

/// Whose probes these are.
const TENANT: &str = "up";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_from_a_root_to_every_leaf() {
        let row = |key: u8, parent: u8, position| Row {
            key: Key([key; 16]),
            parent: Key([parent; 16]),
            salt: Key([9; 16]),
            position,
            generation: 1,
            sums: None,
        };
        // 1 > 2 > 3 and 1 > 4; 6 hangs below a page that is not there.
        let rows = [row(1, 9, 0), row(2, 1, 1), row(3, 2, 2), row(4, 1, 1), row(6, 5, 3)];
        let rows = rows.into_iter().map(|row| (row.key, row)).collect();
        let found: Vec<Vec<u8>> =
            paths(&rows).into_iter().map(|(_, path)| path.into_iter().map(|key| key.0[0]).collect()).collect();
        assert_eq!(found, [vec![1, 2, 3], vec![1, 4]]);
    }
}
