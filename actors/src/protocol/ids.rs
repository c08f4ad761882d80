//! Ids as types: nothing here is an alias, so a page id cannot be passed where a slot is meant.

use std::fmt;

/// Nanoseconds since the world began: virtual in the simulator, monotonic in the shell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time {
    /// Nanoseconds since the origin.
    pub ns: u64,
}

impl Time {
    /// The origin.
    pub const ZERO: Self = Self { ns: 0 };

    /// This instant moved by `ms` milliseconds, saturating.
    pub const fn plus_ms(self, ms: u64) -> Self {
        Self { ns: self.ns.saturating_add(ms.saturating_mul(1_000_000)) }
    }

    /// Microseconds from `self` until `later`, 0 when it has passed.
    pub const fn us_until(self, later: Self) -> u64 {
        later.ns.saturating_sub(self.ns) / 1_000
    }

    /// Milliseconds from `self` until `later`, 0 when it has passed.
    pub const fn ms_until(self, later: Self) -> u64 {
        later.ns.saturating_sub(self.ns) / 1_000_000
    }
}

/// Where a copy of a page lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// Device memory, made by the engine.
    L1,
    /// Host memory, made by the rank.
    L2,
}

/// Logical page of L1, group-wide: `owner = l mod cp_size`, `physical = l / cp_size`.
/// Physical page 0 of each rank is padding, so ids below `cp_size` are never given out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageId(pub u32);

impl PageId {
    /// The rank that owns this page.
    pub const fn owner(self, cp_size: u8) -> Rank {
        Rank((self.0 % cp_size as u32) as u8)
    }

    /// The slot in its owner's pool.
    pub const fn physical(self, cp_size: u8) -> u32 {
        self.0 / cp_size as u32
    }

    /// The page that stands at `physical` in the pool of `owner`.
    pub const fn at(owner: Rank, physical: u32, cp_size: u8) -> Self {
        Self(physical * cp_size as u32 + owner.0 as u32)
    }
}

/// Place of a page in its request, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(pub u32);

/// Physical page in the pool of the rank that receives a transfer: an id of another group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerPage(pub u32);

/// Slot of one page record in the host pool of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostSlot(pub u32);

/// A rank of the group, `0..cp_size`, at most 64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank(pub u8);

/// Most ranks one group can have: sets of ranks are one `u64`.
pub const CP_SIZE_MAX: u8 = 64;

/// Chained 128-bit key of a page: first 16 bytes of a SHA-256 (requirement E4).
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(pub [u8; 16]);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "key:{:016x}", u64::from_be_bytes(self.0[..8].try_into().unwrap_or_default()))
    }
}

/// One life of a process or of a control group: a UUID drawn by the shell.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub [u8; 16]);

impl fmt::Debug for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "inc:{:08x}", u32::from_be_bytes([self.0[0], self.0[1], self.0[2], self.0[3]]))
    }
}

/// One backup, load, eviction, reservation or transfer: a UUIDv8 of the first 8 bytes of the incarnation
/// that made it and a counter, so that a machine needs no chance to make one.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub [u8; 16]);

impl OpId {
    /// Counters are below this: two bits of the second half are the UUID variant.
    pub const COUNTER_END: u64 = 1 << 62;

    /// The `counter`-th op of `incarnation`.
    ///
    /// # Panics
    /// When `counter` is not below [`Self::COUNTER_END`]: at one op a nanosecond that takes 146 years.
    pub fn new(incarnation: Incarnation, counter: u64) -> Self {
        assert!(counter < Self::COUNTER_END);
        let mut bytes = incarnation.0;
        bytes[6] = (bytes[6] & 0x0f) | 0x80;
        bytes[8..].copy_from_slice(&(counter | 1 << 63).to_be_bytes());
        Self(bytes)
    }

    /// Whether `incarnation` made this op.
    pub fn is_of(self, incarnation: Incarnation) -> bool {
        self.0[..8] == Self::new(incarnation, 0).0[..8]
    }

    /// The counter it was made with.
    pub fn counter(self) -> u64 {
        let [_, _, _, _, _, _, _, _, tail @ ..] = self.0;
        u64::from_be_bytes(tail) & (Self::COUNTER_END - 1)
    }
}

impl fmt::Debug for OpId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = u32::from_be_bytes([self.0[0], self.0[1], self.0[2], self.0[3]]);
        write!(f, "op:{head:08x}.{}", self.counter())
    }
}

/// Makes the op ids of one incarnation.
#[derive(Clone, Debug)]
pub struct OpIds {
    incarnation: Incarnation,
    next: u64,
}

impl OpIds {
    /// Starts at counter 0 of `incarnation`.
    pub const fn new(incarnation: Incarnation) -> Self {
        Self { incarnation, next: 0 }
    }

    /// A new id.
    pub fn draw(&mut self) -> OpId {
        let id = OpId::new(self.incarnation, self.next);
        self.next += 1;
        id
    }

    /// Whether this maker has drawn `op`.
    pub fn has_drawn(&self, op: OpId) -> bool {
        op.is_of(self.incarnation) && op.counter() < self.next
    }

    /// The incarnation whose ids these are.
    pub const fn incarnation(&self) -> Incarnation {
        self.incarnation
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_op_id_is_a_version_8_uuid_and_keeps_its_counter() {
        let incarnation = Incarnation([0xff; 16]);
        for counter in [0, 1, 77, OpId::COUNTER_END - 1] {
            let op = OpId::new(incarnation, counter);
            assert_eq!(op.counter(), counter);
            assert_eq!(op.0[6] >> 4, 8, "version");
            assert_eq!(op.0[8] >> 6, 0b10, "variant");
            assert!(op.is_of(incarnation));
        }
    }

    #[test]
    fn a_page_id_splits_into_owner_and_slot_and_back() {
        for l in [8, 9, 15, 16, 4_000_000_000] {
            let page = PageId(l);
            assert_eq!(PageId::at(page.owner(8), page.physical(8), 8), page);
        }
    }
}
