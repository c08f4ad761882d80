//! What has to come of the bytes of a connection: read, refused and written here by the letter of the format, one
//! plain step behind the other.

use hicached::wire::{NOBODY, Pool};

/// A grant as the model keeps it.
#[derive(Clone, Debug)]
pub(super) struct Granted {
    pub(super) secret: [u8; 16],
    pub(super) attempt: u32,
    pub(super) positions: Vec<u32>,
    pub(super) pages: Vec<u32>,
    pub(super) is_revoked: bool,
    /// Who filled each position, buffer by buffer.
    pub(super) marks: Vec<Vec<u8>>,
}

/// One buffer: component, layer, first byte and bytes of a page.
#[derive(Clone, Copy, Debug)]
struct Buffer {
    component: u8,
    layer: u32,
    base: u64,
    page_bytes: u64,
}

/// The pool, the grants and the counts of a landing.
#[derive(Debug)]
pub(super) struct Model {
    buffers: Vec<Buffer>,
    pub(super) grants: Vec<Granted>,
    pub(super) bytes: Vec<u8>,
    pub(super) landed_bytes: u64,
    pub(super) refused: u64,
    pub(super) late: u64,
    pub(super) broken: u64,
}

/// What one frame says of itself.
struct Frame<'a> {
    checked: bool,
    rank: u8,
    secret: &'a [u8],
    attempt: u32,
    component: u8,
    layer: u32,
    number: u32,
    payload_bytes: u64,
    checksum: u32,
    runs: Vec<(u32, u32)>,
}

impl Model {
    pub(super) fn new(pool: &Pool, bytes: Vec<u8>) -> Self {
        let buffer = |buffer: &hicached::wire::Buffer| Buffer {
            component: buffer.component as u8,
            layer: buffer.layer,
            base: buffer.base,
            page_bytes: buffer.page_bytes,
        };
        let buffers = pool.buffers().as_slice().iter().map(buffer).collect();
        Self { buffers, grants: Vec::new(), bytes, landed_bytes: 0, refused: 0, late: 0, broken: 0 }
    }

    pub(super) fn grant(&mut self, secret: [u8; 16], attempt: u32, positions: &[u32], pages: &[u32]) {
        let marks = vec![vec![NOBODY; positions.len()]; self.buffers.len()];
        let (positions, pages) = (positions.to_vec(), pages.to_vec());
        self.grants.push(Granted { secret, attempt, positions, pages, is_revoked: false, marks });
    }

    /// Component, layer and bytes of a page of a buffer by any number.
    pub(super) fn named(&self, number: u8) -> (u8, u32, u64) {
        let buffer = self.buffers[usize::from(number) % self.buffers.len()];
        (buffer.component, buffer.layer, buffer.page_bytes)
    }

    /// Takes everything that a connection brings before it closes; the answers to it.
    pub(super) fn take(&mut self, mut bytes: &[u8]) -> Vec<[u8; 12]> {
        let mut answers = Vec::new();
        while !bytes.is_empty() {
            match self.take_frame(&mut bytes) {
                Some((number, code, position)) => answers.push(answer(number, code, position)),
                // It stops in the middle.
                None => {
                    self.broken += 1;
                    break;
                }
            }
            if answers.last().is_some_and(|answer| answer[4] == GARBAGE) {
                self.broken += 1;
                break;
            }
        }
        answers
    }

    /// Number, code and position of the answer to the next frame; `None` when it is not all there.
    fn take_frame(&mut self, bytes: &mut &[u8]) -> Option<(u32, u8, u32)> {
        let head = take(bytes, 52)?;
        let runs = number(&head[32..36]);
        let payload_bytes = u64::from_le_bytes(head[40..48].try_into().ok()?);
        let is_frame = head[..4] == *b"HCfr" && head[4..6] == [1, 0] && head[6] <= 1;
        if !is_frame || runs > 1_024 || payload_bytes > 64 << 20 {
            return Some((0, GARBAGE, 0));
        }
        let runs = take(bytes, 8 * runs as usize)?;
        let runs = runs.as_chunks::<8>().0.iter().map(|run| (number(&run[..4]), number(&run[4..]))).collect();
        let frame = Frame {
            checked: head[6] == 1,
            rank: head[7],
            secret: &head[8..24],
            attempt: number(&head[24..28]),
            component: head[28],
            layer: u32::from(u16::from_le_bytes(head[30..32].try_into().ok()?)),
            number: number(&head[36..40]),
            payload_bytes,
            checksum: number(&head[48..52]),
            runs,
        };
        let places = self.places(&frame);
        let payload = &bytes[..bytes.len().min(payload_bytes as usize)];
        let (code, position) = match places {
            Ok((grant, buffer, places)) => self.land(&frame, (grant, buffer), &places, payload),
            Err(refusal) => refusal,
        };
        let is_whole = payload.len() as u64 == payload_bytes;
        self.refused += u64::from(code > 0);
        self.late += u64::from(code == LATE);
        *bytes = &bytes[payload.len()..];
        is_whole.then_some((frame.number, code, position))
    }

    /// The grant, the buffer and the places of a frame, or code and position of its refusal.
    fn places(&self, frame: &Frame<'_>) -> Result<(usize, usize, Vec<usize>), (u8, u32)> {
        let found = self.grants.iter().position(|grant| grant.secret == *frame.secret);
        let at = found.ok_or((1, 0))?;
        let grant = &self.grants[at];
        if grant.attempt != frame.attempt {
            return Err((2, 0));
        }
        if grant.is_revoked {
            return Err((LATE, 0));
        }
        if frame.rank >= 64 {
            return Err((4, 0));
        }
        let is_named = |buffer: &Buffer| (buffer.component, buffer.layer) == (frame.component, frame.layer);
        let buffer = self.buffers.iter().position(is_named).ok_or((5, 0))?;
        let pages: u128 = frame.runs.iter().map(|(_, count)| u128::from(*count)).sum();
        if pages == 0 || pages * u128::from(self.buffers[buffer].page_bytes) != u128::from(frame.payload_bytes) {
            return Err((6, 0));
        }
        let mut places: Vec<usize> = Vec::new();
        for (first, count) in &frame.runs {
            // A run names its first position also when it has none.
            grant.positions.iter().position(|granted| granted == first).ok_or((7, *first))?;
            for nth in 0..*count {
                let position = first.checked_add(nth).ok_or((7, *first))?;
                let granted = grant.positions.iter().position(|granted| *granted == position);
                let place = granted.ok_or((7, position))?;
                if grant.marks[buffer][place] != NOBODY || places.contains(&place) {
                    return Err((8, position));
                }
                places.push(place);
            }
        }
        Ok((at, buffer, places))
    }

    /// Writes what there is of a frame; code and position of the answer.
    fn land(&mut self, frame: &Frame<'_>, at: (usize, usize), places: &[usize], payload: &[u8]) -> (u8, u32) {
        let ((grant, buffer), page_bytes) = (at, self.buffers[at.1].page_bytes as usize);
        for (place, bytes) in places.iter().zip(payload.chunks(page_bytes)) {
            let page = u64::from(self.grants[grant].pages[*place]);
            let start = (self.buffers[buffer].base + page * self.buffers[buffer].page_bytes) as usize;
            self.bytes[start..start + bytes.len()].copy_from_slice(bytes);
        }
        if (payload.len() as u64) < frame.payload_bytes {
            return (0, 0);
        }
        if frame.checked && crc32(payload) != frame.checksum {
            return (CHECKSUM, 0);
        }
        for place in places {
            self.grants[grant].marks[buffer][*place] = frame.rank;
        }
        self.landed_bytes += frame.payload_bytes;
        (0, 0)
    }

    /// Who filled each position of a grant in every buffer.
    pub(super) fn owners(&self, grant: usize) -> Vec<u8> {
        let grant = &self.grants[grant];
        let owner = |place: usize| {
            let marks: Vec<u8> = grant.marks.iter().map(|of_buffer| of_buffer[place]).collect();
            if marks.iter().all(|mark| *mark == marks[0]) { marks[0] } else { NOBODY }
        };
        (0..grant.positions.len()).map(owner).collect()
    }
}

pub(super) fn answer(number: u32, code: u8, position: u32) -> [u8; 12] {
    let mut answer = [0; 12];
    answer[..4].copy_from_slice(&number.to_le_bytes());
    answer[4] = code;
    answer[8..].copy_from_slice(&position.to_le_bytes());
    answer
}

fn take<'a>(bytes: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(taken)
}

fn number(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(bytes.try_into().expect("four bytes"))
}

/// The CRC-32 of Ethernet, bit by bit.
pub(super) fn crc32(bytes: &[u8]) -> u32 {
    let mut sum = u32::MAX;
    for byte in bytes {
        sum ^= u32::from(*byte);
        for _ in 0..8 {
            sum = if sum & 1 == 1 { sum >> 1 ^ 0xEDB8_8320 } else { sum >> 1 };
        }
    }
    !sum
}

const LATE: u8 = 3;
const CHECKSUM: u8 = 9;
const GARBAGE: u8 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_is_the_one_that_everybody_has() {
        assert_eq!(crc32(b"123456789"), 0xCBF4_3926);
    }
}
