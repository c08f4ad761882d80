//! One connection of a landing: frames in, acknowledgements out.

use std::io;
use std::ops::Range;
use std::time::Duration;

use super::checksum;
use super::frame::{ACK_BYTES, Ack, HEADER_BYTES, Header, RUN_BYTES, decode_runs};
use super::socket::{Moved, Socket, Wait, advance, span_of};
use crate::wire::FrameRefusal;
use crate::wire::claim::Claim;
use crate::wire::grants::Grants;
use crate::wire::pool::Span;

/// Serves a connection until the other side closes it between two frames.
///
/// # Errors
/// The connection broke, stopped in the middle of a frame, went unread, or brought what is no frame.
pub(super) fn serve(socket: &Socket, grants: &Grants, idle: Duration) -> io::Result<()> {
    let acks = Vec::with_capacity(ACKS_MAX * ACK_BYTES);
    let scratch = vec![0; checksum::PART_BYTES];
    let ahead = Ahead { bytes: [0; AHEAD_BYTES], read: 0..0 };
    let mut stream = Stream { socket, idle, ahead, low_water: 1, acks, acked_bytes: 0, scratch };
    while let Some(head) = stream.head()? {
        let header = match Header::decode(&head) {
            Ok(header) => header,
            Err(refusal) => {
                stream.answer(Ack { number: 0, refusal: Some(refusal) }, 0)?;
                stream.flush()?;
                return Err(io::ErrorKind::InvalidData.into());
            }
        };
        let mut runs = vec![0; RUN_BYTES * header.runs as usize];
        stream.fill(&mut runs)?;
        let runs = decode_runs(&runs);
        let claim = grants.find(&header.secret).and_then(|board| Claim::take(&board, &header.claiming(&runs)));
        let refusal = match claim {
            Ok(claim) => stream.land(claim, &header)?,
            Err(refusal) => {
                stream.discard(header.payload_bytes)?;
                Some(refusal)
            }
        };
        stream.answer(Ack { number: header.number, refusal }, header.payload_bytes)?;
    }
    // Whoever has said everything may still wait for what came of it.
    stream.flush()
}

/// A connection with the acknowledgements that have not left. They leave together, for each one wakes the sender: once
/// they are of many bytes, or when the next bytes are waited for.
struct Stream<'a> {
    socket: &'a Socket,
    /// No pause in a frame is longer.
    idle: Duration,
    ahead: Ahead,
    /// Bytes from which on the system says that there is something to read.
    low_water: usize,
    acks: Vec<u8>,
    /// Bytes of the frames that they answer.
    acked_bytes: u64,
    scratch: Vec<u8>,
}

/// What came behind the bytes of a frame in the same read: the next header, its runs, and of a small frame more.
struct Ahead {
    bytes: [u8; AHEAD_BYTES],
    read: Range<usize>,
}

impl Stream<'_> {
    /// The next header. It may be long in coming; `None` when the other side closes instead.
    fn head(&mut self) -> io::Result<Option<[u8; HEADER_BYTES]>> {
        while self.ahead.read.is_empty() {
            match self.socket.read(&[self.ahead.room()]) {
                Ok(Moved::Bytes(bytes)) => self.ahead.add(bytes),
                Ok(Moved::Later) => {
                    self.flush()?;
                    self.set_low_water(1)?;
                    self.socket.wait(Wait::Read, LONG)?;
                }
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        let mut head = [0; HEADER_BYTES];
        self.fill(&mut head)?;
        Ok(Some(head))
    }

    /// Reads the bytes of a frame to where they belong. The grant is held open for the time of a read, never for a
    /// wait.
    fn land(&mut self, claim: Claim, header: &Header) -> io::Result<Option<FrameRefusal>> {
        let whole = claim.spans();
        let (mut spans, mut first, mut left) = (whole.clone(), 0, header.payload_bytes);
        while left > 0 {
            let moved = match claim.enter() {
                Ok(writing) => {
                    let moved = self.read(&mut spans, first, left);
                    drop(writing);
                    moved?
                }
                Err(late) => {
                    self.discard(left)?;
                    return Ok(Some(late));
                }
            };
            match moved {
                Moved::Bytes(bytes) => {
                    advance(&mut spans, &mut first, bytes);
                    left -= bytes as u64;
                }
                Moved::Later => self.readable(left)?,
            }
        }
        if header.checked && checksum::of(&whole, &mut self.scratch) != header.checksum {
            return Ok(Some(claim.spoil()));
        }
        Ok(claim.land().err())
    }

    /// Reads the next of `left` bytes into the spans from the `first` on, which hold as many; what comes behind them
    /// in the same read is kept.
    fn read(&mut self, spans: &mut Vec<Span>, first: usize, left: u64) -> io::Result<Moved> {
        if !self.ahead.read.is_empty() {
            let bytes = self.ahead.take(spans[first].bytes);
            spans[first].write(bytes);
            return Ok(Moved::Bytes(bytes.len()));
        }
        spans.push(self.ahead.room());
        let moved = self.socket.read(&spans[first..]);
        spans.pop();
        let Moved::Bytes(bytes) = moved? else { return Ok(Moved::Later) };
        let of_frame = left.min(bytes as u64) as usize;
        self.ahead.add(bytes - of_frame);
        Ok(Moved::Bytes(of_frame))
    }

    /// Reads bytes to nowhere.
    fn discard(&mut self, mut bytes: u64) -> io::Result<()> {
        let mut scratch = std::mem::take(&mut self.scratch);
        while bytes > 0 {
            let part = bytes.min(scratch.len() as u64) as usize;
            self.fill(&mut scratch[..part])?;
            bytes -= part as u64;
        }
        self.scratch = scratch;
        Ok(())
    }

    /// Fills `bytes`, which belong to a frame that has begun.
    fn fill(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        let ahead = self.ahead.take(bytes.len());
        bytes[..ahead.len()].copy_from_slice(ahead);
        let begun = ahead.len();
        let mut left = span_of(&mut bytes[begun..]);
        while left.bytes > 0 {
            match self.socket.read(&[left])? {
                Moved::Bytes(read) => left = left.skip(read),
                Moved::Later => self.readable(left.bytes as u64)?,
            }
        }
        Ok(())
    }

    /// Waits for the next of `left` bytes of a frame: shortly for many of them, then for any.
    fn readable(&mut self, left: u64) -> io::Result<()> {
        self.set_low_water(left.min(LOW_WATER_BYTES) as usize)?;
        if self.socket.wait(Wait::Read, SOON)? {
            return Ok(());
        }
        self.flush()?;
        self.set_low_water(1)?;
        self.socket.readable(self.idle)
    }

    fn answer(&mut self, ack: Ack, bytes: u64) -> io::Result<()> {
        self.acks.extend(ack.encode());
        self.acked_bytes += bytes;
        if self.acked_bytes >= ACKED_BYTES_MAX || self.acks.len() >= ACKS_MAX * ACK_BYTES {
            self.flush()
        } else {
            Ok(())
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.write_all(&self.acks, self.idle)?;
        self.acks.clear();
        self.acked_bytes = 0;
        Ok(())
    }

    fn set_low_water(&mut self, bytes: usize) -> io::Result<()> {
        if self.low_water != bytes {
            self.socket.set_low_water(bytes)?;
            self.low_water = bytes;
        }
        Ok(())
    }
}

impl Ahead {
    /// Where bytes go that come behind all others; nothing else is in it then.
    fn room(&mut self) -> Span {
        span_of(&mut self.bytes)
    }

    /// `bytes` bytes were written to its room.
    fn add(&mut self, bytes: usize) {
        assert!(self.read.is_empty(), "what was read before is taken first");
        self.read = 0..bytes;
    }

    /// The next bytes, at most `bytes_max`.
    fn take(&mut self, bytes_max: usize) -> &[u8] {
        let taken = self.read.start..self.read.end.min(self.read.start + bytes_max);
        self.read.start = taken.end;
        &self.bytes[taken]
    }
}

/// Between two looks at a connection on which nothing has begun.
const LONG: Duration = Duration::from_secs(60);
/// Many bytes come within so long, or the link is slow and a wake-up for a few is cheap.
const SOON: Duration = Duration::from_millis(1);
/// Bytes that one wake-up is worth: 40 us at 6 GB/s.
const LOW_WATER_BYTES: u64 = 256 << 10;
/// A small part of a window, which is not to run dry.
const ACKED_BYTES_MAX: u64 = 512 << 10;
/// A header and most lists of runs; what of it belongs to pages is copied once more.
const AHEAD_BYTES: usize = 1 << 10;
/// Frames of a few bytes.
const ACKS_MAX: usize = 64;
