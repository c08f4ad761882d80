//! Frames of the TCP backend, written by hand: what a peer of another make would send.

use std::io::{Read, Write};
use std::net::TcpStream;

use hicached::wire::Grant;
use hicached::wire::tcp::{ACK_BYTES, VERSION};

use crate::world::LONG;

/// A frame whose every field can be wrong.
#[derive(Clone, Debug)]
pub(crate) struct RawFrame {
    pub(crate) magic: [u8; 4],
    pub(crate) version: u16,
    pub(crate) flags: u8,
    pub(crate) rank: u8,
    pub(crate) secret: [u8; 16],
    pub(crate) attempt: u32,
    pub(crate) component: u8,
    pub(crate) layer: u16,
    pub(crate) runs: Vec<(u32, u32)>,
    /// What the header says instead of the runs there are.
    pub(crate) run_count: Option<u32>,
    pub(crate) number: u32,
    /// What the header says instead of the bytes there are.
    pub(crate) payload_bytes: Option<u64>,
    pub(crate) checksum: u32,
    pub(crate) payload: Vec<u8>,
}

impl RawFrame {
    /// Attempt 1, rank 0, `target.kv` layer 0, one page of 64 bytes at `position`.
    pub(crate) fn new(grant: &Grant, position: u32, payload: Vec<u8>) -> Self {
        Self {
            magic: *b"HCfr",
            version: VERSION,
            flags: 0,
            rank: 0,
            secret: grant.secret,
            attempt: 1,
            component: 0,
            layer: 0,
            runs: vec![(position, 1)],
            run_count: None,
            number: 1,
            payload_bytes: None,
            checksum: 0,
            payload,
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(self.magic);
        bytes.extend(self.version.to_le_bytes());
        bytes.extend([self.flags, self.rank]);
        bytes.extend(self.secret);
        bytes.extend(self.attempt.to_le_bytes());
        bytes.extend([self.component, 0]);
        bytes.extend(self.layer.to_le_bytes());
        bytes.extend(self.run_count.unwrap_or(self.runs.len() as u32).to_le_bytes());
        bytes.extend(self.number.to_le_bytes());
        bytes.extend(self.payload_bytes.unwrap_or(self.payload.len() as u64).to_le_bytes());
        bytes.extend(self.checksum.to_le_bytes());
        for (first, count) in &self.runs {
            bytes.extend(first.to_le_bytes());
            bytes.extend(count.to_le_bytes());
        }
        bytes.extend(&self.payload);
        bytes
    }
}

/// A connection to the landing that gave `grant`.
pub(crate) fn connect(grant: &Grant) -> TcpStream {
    let address = grant.endpoint.strip_prefix("tcp:").expect("an endpoint of tcp");
    let stream = TcpStream::connect(address).expect("a landing that listens");
    stream.set_read_timeout(Some(LONG)).expect("a timeout");
    stream
}

/// Sends `frame` and reads the code and the position of its answer.
pub(crate) fn ask(stream: &mut TcpStream, frame: &RawFrame) -> (u8, u32) {
    stream.write_all(&frame.encode()).expect("a connection");
    answer(stream)
}

pub(crate) fn answer(stream: &mut TcpStream) -> (u8, u32) {
    let mut ack = [0; ACK_BYTES];
    stream.read_exact(&mut ack).expect("an answer");
    (ack[4], u32::from_le_bytes(ack[8..].try_into().expect("four bytes")))
}

/// Whether the landing closes the connection, within a time that no good landing needs.
pub(crate) fn closes(stream: &mut TcpStream) -> bool {
    let mut byte = [0];
    match stream.read(&mut byte) {
        Ok(0) => true,
        Ok(_) => false,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}
