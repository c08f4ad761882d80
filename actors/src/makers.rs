//! Op ids of the machines that share one control incarnation.
//!
//! An op id is the incarnation and a counter, so two machines of one incarnation that both counted from 0
//! would make the same ids. Each maker counts in a range of its own; the index has the one that begins at 0.

use crate::protocol::{Incarnation, OpId};

/// A machine of the control group that makes ops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Maker {
    /// The prefix index.
    Index = 0,
    /// The allocator.
    Allocator = 1,
    /// The evictor.
    Evictor = 2,
    /// The writer.
    Writer = 3,
    /// The loader.
    Loader = 4,
    /// The transfer sender.
    Sender = 5,
}

impl Maker {
    const fn first(self) -> u64 {
        (self as u64) << MAKER_SHIFT
    }
}

/// Makes the ops of one maker in one incarnation.
#[derive(Clone, Debug)]
pub struct MakerIds {
    incarnation: Incarnation,
    maker: Maker,
    next: u64,
}

impl MakerIds {
    /// Starts at the first counter of `maker`.
    pub const fn new(incarnation: Incarnation, maker: Maker) -> Self {
        Self { incarnation, maker, next: maker.first() }
    }

    /// A new id.
    ///
    /// # Panics
    /// After 2^56 ids: at one op a microsecond that takes 2,283 years.
    pub fn draw(&mut self) -> OpId {
        assert!(self.next < self.maker.first() + (1 << MAKER_SHIFT));
        let id = OpId::new(self.incarnation, self.next);
        self.next += 1;
        id
    }

    /// Whether this maker has drawn `op`.
    pub fn has_drawn(&self, op: OpId) -> bool {
        op.is_of(self.incarnation) && (self.maker.first()..self.next).contains(&op.counter())
    }

    /// The incarnation whose ids these are.
    pub const fn incarnation(&self) -> Incarnation {
        self.incarnation
    }
}

/// The range of counters that `op` lies in: one per maker.
pub fn range_of(op: OpId) -> u64 {
    op.counter() >> MAKER_SHIFT
}

/// Counters of one maker: 56 bits.
const MAKER_SHIFT: u32 = 56;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn makers_of_one_incarnation_never_make_the_same_op() {
        let life = Incarnation([7; 16]);
        let makers = [Maker::Index, Maker::Allocator, Maker::Evictor, Maker::Writer, Maker::Loader, Maker::Sender];
        let mut ops: Vec<OpId> = Vec::new();
        for (range, maker) in (0..).zip(makers) {
            let mut ids = MakerIds::new(life, maker);
            for _ in 0..3 {
                let op = ids.draw();
                assert!(ids.has_drawn(op) && range_of(op) == range, "{maker:?}");
                ops.push(op);
            }
        }
        let drawn = ops.len();
        ops.sort();
        ops.dedup();
        assert_eq!(ops.len(), drawn);
        assert!(!MakerIds::new(life, Maker::Writer).has_drawn(ops[0]));
    }
}
