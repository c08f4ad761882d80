//! One connection of a launch: frames out, as many as the window holds, acknowledgements in.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::time::{Duration, Instant};

use super::frame::{ACK_BYTES, Ack, Header};
use super::socket::{Moved, Socket, Wait, advance, span_of};
use super::tls::Tls;
use super::{TcpSettings, checksum};
use crate::wire::Cause;
use crate::wire::peers::Peer;
use crate::wire::piece::Piece;
use crate::wire::pushes::Running;

/// What a thread sends, and how.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sending<'a> {
    pub(super) peer: &'a Peer,
    pub(super) running: &'a Running,
    pub(super) settings: &'a TcpSettings,
    pub(super) tls: Option<&'a Tls>,
}

impl<'a> Sending<'a> {
    /// Sends what stands in the lane until it is closed.
    pub(super) fn work(self) {
        let mut link: Option<Link<'a>> = None;
        while let Some(piece) = self.peer.lane.wait() {
            if piece.job.is_stopping() {
                self.running.dropped(&piece);
                continue;
            }
            // A receiver that was restarted at the same address has left a connection that only looks alive.
            link = link.filter(|link| !link.socket.is_stale());
            let connected = match link.take() {
                Some(link) => Ok(link),
                None => Link::connect(self),
            };
            let mut open = match connected {
                Ok(open) => open,
                Err(error) => {
                    let cause = Cause::Unreachable { endpoint: self.peer.address.clone(), error: error.to_string() };
                    self.running.lost(&piece, cause.clone());
                    self.running.fail_queued(&self.peer.lane, &cause);
                    continue;
                }
            };
            match open.drive(piece) {
                Ok(()) => link = Some(open),
                Err(error) => open.abandon(&error),
            }
        }
    }

    fn connect(self, address: &SocketAddr) -> io::Result<Socket> {
        let connect = self.settings.connect;
        let mut socket = Socket::new(TcpStream::connect_timeout(address, connect)?)?;
        if let Some(tls) = self.tls {
            socket.encrypt(tls.to(&self.peer.address)?, connect)?;
        }
        Ok(socket)
    }

    fn window_bytes(self) -> u64 {
        self.settings.window_bytes.div_ceil(self.settings.streams as u64)
    }
}

/// An open connection.
#[derive(Debug)]
struct Link<'a> {
    sending: Sending<'a>,
    socket: Socket,
    /// Frames without an answer, oldest first; the last may be on its way out.
    flying: VecDeque<(u32, Piece)>,
    flying_bytes: u64,
    number: u32,
    /// Acknowledgements as they come, the last of them perhaps in part.
    acks: [u8; ACK_BYTES * ACKS_AT_ONCE],
    acks_bytes: usize,
    /// Where bytes pass through that are summed up; empty when none are.
    part: Vec<u8>,
    /// When something last moved.
    moved: Instant,
}

impl<'a> Link<'a> {
    fn connect(sending: Sending<'a>) -> io::Result<Self> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the address stands for no host");
        for address in sending.peer.address.to_socket_addrs()? {
            match sending.connect(&address) {
                Ok(socket) => {
                    return Ok(Self {
                        sending,
                        socket,
                        flying: VecDeque::new(),
                        flying_bytes: 0,
                        number: 0,
                        acks: [0; ACK_BYTES * ACKS_AT_ONCE],
                        acks_bytes: 0,
                        part: vec![0; if sending.settings.checksum { checksum::PART_BYTES } else { 0 }],
                        moved: Instant::now(),
                    });
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Sends `piece` and what is ready behind it, until every frame is answered and nothing is ready.
    fn drive(&mut self, piece: Piece) -> io::Result<()> {
        self.moved = Instant::now();
        self.send(piece)?;
        loop {
            while self.flying_bytes < self.sending.window_bytes()
                && let Some(piece) = self.sending.peer.lane.try_take()
            {
                if piece.job.is_stopping() {
                    self.sending.running.dropped(&piece);
                } else {
                    self.send(piece)?;
                }
            }
            if self.flying.is_empty() {
                return Ok(());
            }
            if !self.read_acks()? {
                // With room in the window it looks for further pieces soon.
                let room = self.flying_bytes < self.sending.window_bytes();
                self.pause(Wait::Read, if room { LOOK } else { PATIENCE })?;
            }
        }
    }

    fn send(&mut self, piece: Piece) -> io::Result<()> {
        let rows = piece.positions();
        let spans = piece.spans();
        let sum = self.sending.settings.checksum.then(|| checksum::of(&spans, &mut self.part));
        self.number = self.number.wrapping_add(1);
        let mut head = Header::of(&piece.claiming(&rows), self.number, sum).encode(&rows);
        let mut parts = Vec::with_capacity(1 + spans.len());
        parts.push(span_of(&mut head));
        parts.extend(spans);
        self.flying_bytes += piece.bytes;
        self.flying.push_back((self.number, piece));
        let (mut first, mut left) = (0, parts.iter().map(|part| part.bytes).sum::<usize>());
        while left > 0 {
            match self.socket.write(&parts[first..])? {
                Moved::Bytes(bytes) => {
                    advance(&mut parts, &mut first, bytes);
                    left -= bytes;
                    self.moved = Instant::now();
                }
                Moved::Later => {
                    // Acknowledgements wake nobody here: they come between frames, and without room none is of use.
                    if !self.read_acks()? {
                        self.pause(Wait::Write, PATIENCE)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Takes the acknowledgements that are there; whether any bytes were.
    fn read_acks(&mut self) -> io::Result<bool> {
        let mut any = false;
        while !self.flying.is_empty() {
            let room = &mut self.acks[self.acks_bytes..];
            let room_bytes = room.len();
            let Moved::Bytes(bytes) = self.socket.read(&[span_of(room)])? else { break };
            any = true;
            self.moved = Instant::now();
            let acks_bytes = self.acks_bytes + bytes;
            let whole_bytes = acks_bytes - acks_bytes % ACK_BYTES;
            for at in (0..whole_bytes).step_by(ACK_BYTES) {
                let ack = self.acks[at..].first_chunk().and_then(Ack::decode);
                self.answered(ack.ok_or_else(|| wrong("an acknowledgement that nobody gives"))?)?;
            }
            self.acks.copy_within(whole_bytes..acks_bytes, 0);
            self.acks_bytes = acks_bytes - whole_bytes;
            if bytes < room_bytes {
                break;
            }
        }
        Ok(any)
    }

    fn answered(&mut self, ack: Ack) -> io::Result<()> {
        let Some((_, piece)) = self.flying.pop_front_if(|(number, _)| *number == ack.number || ack.number == 0) else {
            return Err(wrong("an acknowledgement of another frame"));
        };
        self.flying_bytes -= piece.bytes;
        match ack.refusal {
            None => self.sending.running.landed(&piece),
            Some(refusal) => self.sending.running.refused(&piece, refusal),
        }
        Ok(())
    }

    /// Waits for the socket.
    ///
    /// # Errors
    /// The lane was closed, or nothing has moved for too long: less is enough when a push is being stopped.
    fn pause(&mut self, what: Wait, patience: Duration) -> io::Result<()> {
        if self.socket.wait(what, patience)? {
            return Ok(());
        }
        if self.sending.peer.lane.is_closed() {
            return Err(wrong("the sending rank ends"));
        }
        let still = self.moved.elapsed();
        let stopping = || self.flying.iter().any(|(_, piece)| piece.job.is_stopping());
        if still >= self.sending.settings.idle || (still >= self.sending.settings.stop && stopping()) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(())
    }

    /// The connection ends, and with it what is on its way.
    fn abandon(self, error: &io::Error) {
        let endpoint = self.sending.peer.address.clone();
        let cause = match error.kind() {
            io::ErrorKind::TimedOut => Cause::Stalled { endpoint, ms: self.moved.elapsed().as_millis() as u64 },
            _ => Cause::Broken { endpoint, error: error.to_string() },
        };
        // Closed first: of what is told to be lost nothing is read from the pool any more.
        self.socket.reset();
        for (_, piece) in self.flying {
            self.sending.running.lost(&piece, cause.clone());
        }
    }
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Acknowledgements that one call reads.
const ACKS_AT_ONCE: usize = 32;
/// Between two looks at a lane while acknowledgements are waited for and the window has room.
const LOOK: Duration = Duration::from_millis(1);
/// Between two looks at whether a peer that takes nothing is to be given up.
const PATIENCE: Duration = Duration::from_millis(20);
