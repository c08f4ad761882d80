//! Which life each rank of the group is in, as the index says, and sets of ranks.

use crate::protocol::{CP_SIZE_MAX, Incarnation, OpId, Rank};

/// A set of ranks of one group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RankSet(u64);

impl RankSet {
    /// No rank.
    pub const EMPTY: Self = Self(0);

    /// Ranks `0..cp_size`.
    pub fn all(cp_size: u8) -> Self {
        (0..cp_size).map(Rank).collect()
    }

    /// Adds a rank.
    pub const fn insert(&mut self, rank: Rank) {
        self.0 |= 1 << rank.0;
    }

    /// Takes a rank out; whether it was in.
    pub const fn remove(&mut self, rank: Rank) -> bool {
        let was_in = self.contains(rank);
        self.0 &= !(1 << rank.0);
        was_in
    }

    /// Whether a rank is in.
    pub const fn contains(self, rank: Rank) -> bool {
        self.0 & 1 << rank.0 != 0
    }

    /// Whether none is in.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// How many are in.
    pub const fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// Those of `self` that are not in `other`.
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// The ranks in ascending order.
    pub fn iter(self) -> impl Iterator<Item = Rank> {
        (0..CP_SIZE_MAX).map(Rank).filter(move |rank| self.contains(*rank))
    }
}

impl FromIterator<Rank> for RankSet {
    fn from_iter<I: IntoIterator<Item = Rank>>(ranks: I) -> Self {
        let mut set = Self::EMPTY;
        ranks.into_iter().for_each(|rank| set.insert(rank));
        set
    }
}

/// What the index has said of each rank's life.
#[derive(Debug)]
pub struct RankLives {
    of: Vec<Life>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Life {
    /// All zero while the rank is gone or not heard of.
    incarnation: Incarnation,
    /// The op that said so.
    said_by: Option<OpId>,
}

/// What came of a `rank_is`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learnt {
    /// The rank lives another life, or is gone: what it ran is over.
    Changed,
    /// Known already.
    Same,
    /// Said before what is known, and overtaken on the way.
    Overtaken,
    /// The group has no such rank.
    NoSuchRank,
}

impl RankLives {
    /// Nothing heard of `cp_size` ranks.
    pub fn new(cp_size: u8) -> Self {
        Self { of: vec![Life::default(); usize::from(cp_size)] }
    }

    /// Takes in what the index said with `op`; its counters tell the order in which it spoke.
    pub fn learn(&mut self, op: OpId, rank: Rank, incarnation: Incarnation) -> Learnt {
        let Some(life) = self.of.get_mut(usize::from(rank.0)) else { return Learnt::NoSuchRank };
        if life.said_by.is_some_and(|newest| newest.counter() > op.counter()) {
            return Learnt::Overtaken;
        }
        life.said_by = Some(op);
        let before = std::mem::replace(&mut life.incarnation, incarnation);
        if before == incarnation { Learnt::Same } else { Learnt::Changed }
    }

    /// Whether `incarnation` is the life that `rank` is in.
    pub fn is_current(&self, rank: Rank, incarnation: Incarnation) -> bool {
        let known = self.of.get(usize::from(rank.0)).map(|life| life.incarnation);
        incarnation != Incarnation::default() && known == Some(incarnation)
    }

    /// The life of every rank, all zero for one that is gone.
    pub fn list(&self) -> Vec<Incarnation> {
        self.of.iter().map(|life| life.incarnation).collect()
    }

    /// Ranks that live.
    pub fn alive(&self) -> RankSet {
        let lives = (0..).map(Rank).zip(&self.of);
        lives.filter(|(_, life)| life.incarnation != Incarnation::default()).map(|(rank, _)| rank).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_life_follows_the_order_in_which_the_index_spoke() {
        let op = |n| OpId::new(Incarnation([9; 16]), n);
        let (gone, first, second) = (Incarnation::default(), Incarnation([1; 16]), Incarnation([2; 16]));
        let mut lives = RankLives::new(2);
        for (n, rank, life, learnt) in [
            (1, 1, first, Learnt::Changed),
            (1, 1, first, Learnt::Same),
            (5, 1, second, Learnt::Changed),
            (3, 1, gone, Learnt::Overtaken),
            (1, 1, first, Learnt::Overtaken),
            (6, 2, first, Learnt::NoSuchRank),
        ] {
            assert_eq!(lives.learn(op(n), Rank(rank), life), learnt, "op {n}");
        }
        assert!(lives.is_current(Rank(1), second) && !lives.is_current(Rank(1), first));
        assert!(!lives.is_current(Rank(0), gone), "a rank not heard of has no life");
        assert_eq!(lives.alive().iter().collect::<Vec<_>>(), [Rank(1)]);
    }
}
