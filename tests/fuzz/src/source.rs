//! Bytes of a fuzzer as small numbers; zeros once they are used up.

/// What is left of an input.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source<'a>(&'a [u8]);

impl<'a> Source<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next `len` bytes, or what is left.
    pub(crate) fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// The next `N` bytes, zeros where there are none.
    pub(crate) fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let taken = self.take(N);
        array[..taken.len()].copy_from_slice(taken);
        array
    }

    pub(crate) fn u8(&mut self) -> u8 {
        u8::from_le_bytes(self.array())
    }

    pub(crate) fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    pub(crate) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    pub(crate) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// Bytes behind their length.
    pub(crate) fn counted(&mut self) -> &'a [u8] {
        let len = usize::from(self.u16());
        self.take(len)
    }

    /// A number: mostly small, sometimes at an edge, sometimes any.
    pub(crate) fn number(&mut self) -> u64 {
        match self.u8() {
            small @ 0..=239 => u64::from(small),
            240..=247 => u64::from(self.u16()),
            248..=251 => self.u64(),
            252 => u64::MAX,
            253 => u64::from(u32::MAX),
            254 => u64::from(u32::MAX) + 1,
            255 => u64::MAX - 1,
        }
    }

    /// One of `all`, which is not empty.
    pub(crate) fn one_of<'b, T>(&mut self, all: &'b [T]) -> &'b T {
        &all[usize::from(self.u8()) % all.len()]
    }
}
