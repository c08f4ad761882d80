//! All chance of a world grows from one seed.

use hicached_actors::calls::draw;

/// A seeded sequence; the same seed gives the same world.
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    /// The sequence of `seed`.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Any number.
    pub fn any(&mut self) -> u64 {
        draw(&mut self.0)
    }

    /// A number of `low..=high`.
    pub fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.any() % (high - low + 1)
    }

    /// An index below `len`, which is not 0.
    pub fn index(&mut self, len: usize) -> usize {
        (self.any() % len as u64) as usize
    }

    /// Happens `per_mille` times in a thousand.
    pub fn happens(&mut self, per_mille: u32) -> bool {
        self.any() % 1_000 < u64::from(per_mille)
    }

    /// One of `choices`, which is not empty.
    pub fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.index(choices.len())]
    }

    /// A UUID of random bits: version 4.
    pub fn uuid(&mut self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.any().to_le_bytes());
        bytes[8..].copy_from_slice(&self.any().to_le_bytes());
        bytes[6] = (bytes[6] & 0x0f) | 0x40;
        bytes[8] = (bytes[8] & 0x3f) | 0x80;
        bytes
    }
}
