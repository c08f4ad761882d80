//! What stands between a socket and plain bytes when a connection is encrypted.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;

use super::socket::Moved;
use crate::wire::pool::Span;

/// One encrypted connection over a socket that never blocks.
pub(super) struct Session {
    connection: rustls::Connection,
    /// Plain bytes pass through here: memory of pools is never a slice.
    part: Vec<u8>,
    /// Plain bytes that the connection holds.
    plain_bytes: usize,
}

impl Session {
    pub(super) fn new(connection: rustls::Connection) -> Self {
        Self { connection, part: vec![0; PART_BYTES], plain_bytes: 0 }
    }

    /// Goes on with the handshake; whether it is over, and all of it has left.
    ///
    /// # Errors
    /// The system's; [`io::ErrorKind::InvalidData`] when the two sides do not agree.
    pub(super) fn shake_hands(&mut self, wire: &TcpStream) -> io::Result<bool> {
        self.flush(wire)?;
        while self.connection.is_handshaking() && self.pull(wire)? {
            self.flush(wire)?;
        }
        Ok(!self.connection.is_handshaking() && self.flush(wire)?)
    }

    /// Reads into the first spans, which have room for one byte or more.
    ///
    /// # Errors
    /// As those of a plain socket; [`io::ErrorKind::InvalidData`] for what is not of this connection.
    pub(super) fn read(&mut self, wire: &TcpStream, into: &[Span]) -> io::Result<Moved> {
        self.flush(wire)?;
        // Once: records without plain bytes may come for ever, and whoever reads may hold a grant open.
        if self.plain_bytes == 0 {
            self.pull(wire)?;
        }
        if self.plain_bytes == 0 {
            return Ok(Moved::Later);
        }
        let room = into.iter().map(|span| span.bytes).sum::<usize>().min(self.part.len());
        let read = self.connection.reader().read(&mut self.part[..room])?;
        self.plain_bytes -= read;
        let mut left = &self.part[..read];
        for span in into {
            let bytes = span.bytes.min(left.len());
            span.write(&left[..bytes]);
            left = &left[bytes..];
        }
        Ok(Moved::Bytes(read))
    }

    /// Takes from the first spans what one call can take. It may still have to leave: reading and waiting see to it.
    ///
    /// # Errors
    /// As those of a plain socket.
    pub(super) fn write(&mut self, wire: &TcpStream, from: &[Span]) -> io::Result<Moved> {
        if !self.flush_or_say_why(wire)? {
            return Ok(Moved::Later);
        }
        let mut gathered = 0;
        for span in from {
            let room = &mut self.part[gathered..];
            let bytes = span.bytes.min(room.len());
            span.read(&mut room[..bytes]);
            gathered += bytes;
        }
        let taken = self.connection.writer().write(&self.part[..gathered])?;
        self.flush_or_say_why(wire)?;
        Ok(Moved::Bytes(taken))
    }

    /// Whether plain bytes can be read without the socket.
    pub(super) fn has_plain(&self) -> bool {
        self.plain_bytes > 0
    }

    /// Whether bytes have yet to leave.
    pub(super) fn wants_write(&self) -> bool {
        self.connection.wants_write()
    }

    /// Lets leave what the socket takes; whether that was all.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn flush(&mut self, mut wire: &TcpStream) -> io::Result<bool> {
        while self.connection.wants_write() {
            match self.connection.write_tls(&mut wire) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if is_later(&error) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// The same. A peer that refuses a certificate says so and closes: why is read before it is called a broken pipe,
    /// if the system still has it.
    fn flush_or_say_why(&mut self, wire: &TcpStream) -> io::Result<bool> {
        self.flush(wire).map_err(|error| match self.pull(wire) {
            Err(why) if why.kind() == io::ErrorKind::InvalidData => why,
            Ok(_) | Err(_) => error,
        })
    }

    /// Takes bytes from the socket; whether there were any.
    fn pull(&mut self, mut wire: &TcpStream) -> io::Result<bool> {
        match self.connection.read_tls(&mut wire) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => {}
            Err(error) if is_later(&error) => return Ok(false),
            Err(error) => return Err(error),
        }
        let state = self.connection.process_new_packets().map_err(|error| {
            // The other side is told why, as far as it can be.
            self.connection.write_tls(&mut wire).ok();
            io::Error::new(io::ErrorKind::InvalidData, error)
        })?;
        self.plain_bytes = state.plaintext_bytes_to_read();
        if state.peer_has_closed() && self.plain_bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(true)
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Session")
    }
}

fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Four records of the largest size, which is also what a connection keeps at most before it leaves.
const PART_BYTES: usize = 64 << 10;
