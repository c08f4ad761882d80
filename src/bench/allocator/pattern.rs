//! The states a pool is measured in, and the chance that makes them.

use serde::Serialize;

/// A stream of numbers that one seed determines (SplitMix64).
#[derive(Clone, Debug)]
pub(super) struct Chance {
    state: u64,
}

impl Chance {
    pub(super) const fn seeded(seed: u64) -> Self {
        Self { state: seed }
    }

    pub(super) fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`, which is above 0.
    pub(super) fn below(&mut self, end: usize) -> usize {
        (self.draw() % end as u64) as usize
    }
}

/// The state a pool is in when a call is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// Everything is free.
    Empty,
    /// 90 % of the pages are taken, each by itself, at random.
    Random,
    /// Every second page is free.
    Comb,
    /// Up to 32 reservations are outstanding and one of them, at random, is freed before each call.
    Churn,
}

impl Pattern {
    pub(super) const ALL: [Self; 4] = [Self::Empty, Self::Random, Self::Comb, Self::Churn];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::Random => "random",
            Self::Comb => "comb",
            Self::Churn => "churn",
        }
    }

    /// Whether all slots are free before the first call.
    pub(super) const fn starts_empty(self) -> bool {
        match self {
            Self::Empty | Self::Churn => true,
            Self::Random | Self::Comb => false,
        }
    }

    /// Whether `slot` of `lane` is free before the first call.
    pub(super) fn is_free(self, seed: u64, lane: usize, slot: u32) -> bool {
        match self {
            Self::Empty | Self::Churn => true,
            Self::Random => {
                Chance::seeded(seed ^ (lane as u64 + 1) << 40 ^ u64::from(slot) << 3).draw().is_multiple_of(10)
            }
            Self::Comb => slot.is_multiple_of(2),
        }
    }
}
