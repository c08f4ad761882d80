//! What crosses a connection: a header, the runs of positions, the bytes of their pages; back comes one
//! acknowledgement a frame, in the order of the frames. All numbers are little-endian.
//!
//! ```text
//! header  magic 4 | version 2 | flags 1 | source rank 1 | secret 16 | attempt 4 | component 1 | 0 1 | layer 2
//!         | runs 4 | number 4 | payload bytes 8 | CRC-32 of the payload, or 0 4
//! runs    first position 4 | count 4, again and again
//! ack     number 4 | code 1 (0: landed) | 0 3 | position 4
//! ```

use hicached_actors::protocol::Rank;

use crate::wire::claim::Claiming;
use crate::wire::{FrameRefusal, SECRET_BYTES};

/// A header as it was read; `runs` follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::wire) struct Header {
    pub(in crate::wire) checked: bool,
    pub(in crate::wire) rank: Rank,
    pub(in crate::wire) secret: [u8; SECRET_BYTES],
    pub(in crate::wire) attempt: u32,
    pub(in crate::wire) component: u8,
    pub(in crate::wire) layer: u16,
    pub(in crate::wire) runs: u32,
    pub(in crate::wire) number: u32,
    pub(in crate::wire) payload_bytes: u64,
    pub(in crate::wire) checksum: u32,
}

/// The answer to one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::wire) struct Ack {
    pub(in crate::wire) number: u32,
    pub(in crate::wire) refusal: Option<FrameRefusal>,
}

impl Header {
    /// The header of a frame that says `claiming` of itself; `checksum` when it carries one.
    ///
    /// # Panics
    /// When the layer is beyond those a layout can have, or the runs are more than a frame has pages.
    pub(in crate::wire) fn of(claiming: &Claiming<'_>, number: u32, checksum: Option<u32>) -> Self {
        let Claiming { secret, attempt, rank, component, layer, runs, bytes } = *claiming;
        assert!(runs.len() <= RUNS_MAX as usize, "{} runs in a frame", runs.len());
        let layer = u16::try_from(layer).expect("a layout has no so many layers");
        Self {
            checked: checksum.is_some(),
            rank,
            secret,
            attempt,
            component,
            layer,
            runs: runs.len() as u32,
            number,
            payload_bytes: bytes,
            checksum: checksum.unwrap_or_default(),
        }
    }

    /// Its bytes, with those of `runs` behind them.
    pub(in crate::wire) fn encode(&self, runs: &[(u32, u32)]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + RUN_BYTES * runs.len());
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend([u8::from(self.checked), self.rank.0]);
        bytes.extend(self.secret);
        bytes.extend(self.attempt.to_le_bytes());
        bytes.extend([self.component, 0]);
        bytes.extend(self.layer.to_le_bytes());
        bytes.extend(self.runs.to_le_bytes());
        bytes.extend(self.number.to_le_bytes());
        bytes.extend(self.payload_bytes.to_le_bytes());
        bytes.extend(self.checksum.to_le_bytes());
        for (first, count) in runs {
            bytes.extend(first.to_le_bytes());
            bytes.extend(count.to_le_bytes());
        }
        bytes
    }

    /// Reads a header.
    ///
    /// # Errors
    /// [`FrameRefusal::Garbage`]: another magic or version, or more runs or bytes than a frame may have; where such a
    /// frame ends cannot be known.
    pub(in crate::wire) fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, FrameRefusal> {
        let mut fields = Fields { bytes, at: 0 };
        let (magic, version, [flags, rank]) = (fields.take(), u16::from_le_bytes(fields.take()), fields.take());
        let secret = fields.take();
        let attempt = u32::from_le_bytes(fields.take());
        let [component, _] = fields.take();
        let layer = u16::from_le_bytes(fields.take());
        let (runs, number) = (u32::from_le_bytes(fields.take()), u32::from_le_bytes(fields.take()));
        let payload_bytes = u64::from_le_bytes(fields.take());
        let checksum = u32::from_le_bytes(fields.take());
        let is_frame = magic == MAGIC && version == VERSION && flags <= 1;
        if !is_frame || runs > RUNS_MAX || payload_bytes > PAYLOAD_BYTES_MAX {
            return Err(FrameRefusal::Garbage);
        }
        let (checked, rank) = (flags == 1, Rank(rank));
        Ok(Self { checked, rank, secret, attempt, component, layer, runs, number, payload_bytes, checksum })
    }

    /// What it says of itself, with its runs.
    pub(in crate::wire) fn claiming<'a>(&self, runs: &'a [(u32, u32)]) -> Claiming<'a> {
        Claiming {
            secret: self.secret,
            attempt: self.attempt,
            rank: self.rank,
            component: self.component,
            layer: u32::from(self.layer),
            runs,
            bytes: self.payload_bytes,
        }
    }
}

impl Ack {
    pub(in crate::wire) fn encode(self) -> [u8; ACK_BYTES] {
        let (code, position) = self.refusal.map_or((0, 0), FrameRefusal::code);
        let mut bytes = [0; ACK_BYTES];
        bytes[..4].copy_from_slice(&self.number.to_le_bytes());
        bytes[4] = code;
        bytes[8..].copy_from_slice(&position.to_le_bytes());
        bytes
    }

    /// Reads one; `None` for a code that nobody gives.
    pub(in crate::wire) fn decode(bytes: &[u8; ACK_BYTES]) -> Option<Self> {
        let mut fields = Fields { bytes, at: 0 };
        let number = u32::from_le_bytes(fields.take());
        let [code, ..]: [u8; 4] = fields.take();
        let position = u32::from_le_bytes(fields.take());
        let refusal = if code == 0 { None } else { Some(FrameRefusal::of(code, position)?) };
        Some(Self { number, refusal })
    }
}

/// The runs behind a header.
pub(in crate::wire) fn decode_runs(bytes: &[u8]) -> Vec<(u32, u32)> {
    let (pairs, _) = bytes.as_chunks::<RUN_BYTES>();
    let number = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("four of eight bytes"));
    pairs.iter().map(|pair| (number(&pair[..4]), number(&pair[4..]))).collect()
}

struct Fields<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Fields<'_> {
    /// The next `N` bytes; the caller asks for no more than there are.
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let field = self.bytes[self.at..self.at + N].try_into().expect("as long as the range");
        self.at += N;
        field
    }
}

const MAGIC: [u8; 4] = *b"HCfr";
/// Version of frames.
pub const VERSION: u16 = 1;
/// Bytes of a header.
pub const HEADER_BYTES: usize = 52;
/// Bytes of an acknowledgement.
pub const ACK_BYTES: usize = 12;
/// Bytes of one run.
pub(in crate::wire) const RUN_BYTES: usize = 8;
/// Most runs of a frame: each is one piece of a read, and the system takes so many.
pub(in crate::wire) const RUNS_MAX: u32 = 1_024;
/// Most bytes of a frame: what a refused one costs to throw away.
pub(in crate::wire) const PAYLOAD_BYTES_MAX: u64 = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            checked: true,
            rank: Rank(5),
            secret: [9; 16],
            attempt: 3,
            component: 1,
            layer: 77,
            runs: 2,
            number: 42,
            payload_bytes: 8_448,
            checksum: 0xdead_beef,
        }
    }

    #[test]
    fn what_is_encoded_is_read_back() {
        let runs = [(7, 2), (11, 1)];
        let bytes = header().encode(&runs);
        let (head, rest) = bytes.split_first_chunk().expect("a header");
        assert_eq!(Header::decode(head), Ok(header()));
        assert_eq!(decode_runs(rest), runs);
        for refusal in [None, Some(FrameRefusal::Twice(9)), Some(FrameRefusal::Late)] {
            let ack = Ack { number: 4, refusal };
            assert_eq!(Ack::decode(&ack.encode()), Some(ack));
        }
        assert_eq!(Ack::decode(&[0, 0, 0, 0, 99, 0, 0, 0, 0, 0, 0, 0]), None);
    }

    #[test]
    fn what_is_no_frame_is_garbage() {
        let good: [u8; HEADER_BYTES] = header().encode(&[])[..].try_into().expect("a header alone");
        for (at, byte, what) in
            [(0, b'X', "magic"), (4, 9, "version"), (6, 2, "flags"), (35, 1, "runs"), (45, 1, "bytes")]
        {
            let mut bytes = good;
            bytes[at] = byte;
            assert_eq!(Header::decode(&bytes), Err(FrameRefusal::Garbage), "{what}");
        }
    }
}
