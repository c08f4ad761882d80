//! One connection of a landing: frames in, acknowledgements out.

use std::io;
use std::time::Duration;

use super::checksum;
use super::frame::{Ack, HEADER_BYTES, Header, RUN_BYTES, decode_runs};
use super::socket::{Moved, Socket, advance};
use crate::wire::FrameRefusal;
use crate::wire::claim::Claim;
use crate::wire::grants::Grants;

/// Serves a connection until the other side closes it between two frames.
///
/// # Errors
/// The connection broke, stopped in the middle of a frame, went unread, or brought what is no frame.
pub(super) fn serve(socket: &Socket, grants: &Grants, idle: Duration) -> io::Result<()> {
    let mut scratch = vec![0; SCRATCH_BYTES];
    while socket.begins()? {
        let mut head = [0; HEADER_BYTES];
        socket.fill(&mut head, idle)?;
        let header = match Header::decode(&head) {
            Ok(header) => header,
            Err(refusal) => {
                socket.write_all(&Ack { number: 0, refusal: Some(refusal) }.encode(), idle)?;
                return Err(io::ErrorKind::InvalidData.into());
            }
        };
        let mut runs = vec![0; RUN_BYTES * header.runs as usize];
        socket.fill(&mut runs, idle)?;
        let runs = decode_runs(&runs);
        let claim = grants.find(&header.secret).and_then(|board| Claim::take(&board, &header.claiming(&runs)));
        let refusal = match claim {
            Ok(claim) => land(socket, claim, &header, &mut scratch, idle)?,
            Err(refusal) => {
                discard(socket, header.payload_bytes, &mut scratch, idle)?;
                Some(refusal)
            }
        };
        socket.write_all(&Ack { number: header.number, refusal }.encode(), idle)?;
    }
    Ok(())
}

/// Reads the bytes of a frame to where they belong. The grant is held open for the time of a read, never for a wait.
fn land(
    socket: &Socket,
    claim: Claim,
    header: &Header,
    scratch: &mut [u8],
    idle: Duration,
) -> io::Result<Option<FrameRefusal>> {
    let whole = claim.spans();
    let (mut spans, mut first, mut left) = (whole.clone(), 0, header.payload_bytes);
    while left > 0 {
        let moved = match claim.enter() {
            Ok(writing) => {
                let moved = socket.read(&spans[first..]);
                drop(writing);
                moved?
            }
            Err(late) => {
                discard(socket, left, scratch, idle)?;
                return Ok(Some(late));
            }
        };
        match moved {
            Moved::Bytes(bytes) => {
                advance(&mut spans, &mut first, bytes);
                left -= bytes as u64;
            }
            Moved::Later => socket.readable(idle)?,
        }
    }
    if header.checked && checksum::of(&whole) != header.checksum {
        return Ok(Some(claim.spoil()));
    }
    Ok(claim.land().err())
}

/// Reads bytes to nowhere.
fn discard(socket: &Socket, mut bytes: u64, scratch: &mut [u8], idle: Duration) -> io::Result<()> {
    while bytes > 0 {
        let part = bytes.min(scratch.len() as u64) as usize;
        socket.fill(&mut scratch[..part], idle)?;
        bytes -= part as u64;
    }
    Ok(())
}

/// What is thrown away at once.
const SCRATCH_BYTES: usize = 64 << 10;
