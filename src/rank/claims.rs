//! Which pages and slots the running jobs of a rank read or write: the op that owns them is their only lock.

use std::collections::BTreeMap;

use hicached_actors::protocol::{Refusal, WrongState};

/// Pages and slots in use.
#[derive(Debug, Default)]
pub(super) struct Claims {
    l1: BTreeMap<u32, Use>,
    l2: BTreeMap<u32, Use>,
}

/// What one job claims; given back by [`Claims::give_back`].
#[derive(Debug, Default)]
#[must_use = "give the claim back when nothing reads or writes any more"]
pub(super) struct Claim {
    l1: Vec<(u32, Use)>,
    l2: Vec<(u32, Use)>,
}

/// How a page or slot is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Read { readers: u32 },
    Write,
}

const READ: Use = Use::Read { readers: 1 };

impl Claims {
    /// L1 pages are read and host slots written.
    pub(super) fn down(&mut self, l1: &[u32], l2: &[u32]) -> Result<Claim, Refusal> {
        self.take(l1.iter().map(|page| (*page, READ)).collect(), l2.iter().map(|slot| (*slot, Use::Write)).collect())
    }

    /// Host slots are read and L1 pages written.
    pub(super) fn up(&mut self, l1: &[u32], l2: &[u32]) -> Result<Claim, Refusal> {
        self.take(l1.iter().map(|page| (*page, Use::Write)).collect(), l2.iter().map(|slot| (*slot, READ)).collect())
    }

    /// Whether a job reads or writes this slot.
    pub(super) fn uses_slot(&self, slot: u32) -> bool {
        self.l2.contains_key(&slot)
    }

    /// The job has ended.
    pub(super) fn give_back(&mut self, claim: Claim) {
        for (uses, keys) in [(&mut self.l1, claim.l1), (&mut self.l2, claim.l2)] {
            for (key, _) in keys {
                match uses.get_mut(&key) {
                    Some(Use::Read { readers }) if *readers > 1 => *readers -= 1,
                    Some(Use::Read { .. } | Use::Write) => drop(uses.remove(&key)),
                    None => unreachable!("page or slot {key} was claimed and is not in use"),
                }
            }
        }
    }

    /// Pages and slots in use.
    pub(super) fn len(&self) -> usize {
        self.l1.len() + self.l2.len()
    }

    /// All or nothing. No list names a page twice: the runs of a job are disjoint.
    fn take(&mut self, l1: Vec<(u32, Use)>, l2: Vec<(u32, Use)>) -> Result<Claim, Refusal> {
        free("page", &self.l1, &l1)?;
        free("slot", &self.l2, &l2)?;
        for (uses, keys) in [(&mut self.l1, &l1), (&mut self.l2, &l2)] {
            for (key, wanted) in keys {
                match uses.get_mut(key) {
                    Some(Use::Read { readers }) => *readers += 1,
                    Some(Use::Write) | None => drop(uses.insert(*key, *wanted)),
                }
            }
        }
        Ok(Claim { l1, l2 })
    }
}

fn free(what: &str, uses: &BTreeMap<u32, Use>, wanted: &[(u32, Use)]) -> Result<(), Refusal> {
    for (key, wanted) in wanted {
        let state = match (uses.get(key), wanted) {
            (None, _) | (Some(Use::Read { .. }), Use::Read { .. }) => continue,
            (Some(Use::Read { .. }), Use::Write) => "read by another op",
            (Some(Use::Write), _) => "written by another op",
        };
        return Err(WrongState { what: format!("{what} {key}"), state: state.to_owned() }.into());
    }
    Ok(())
}
