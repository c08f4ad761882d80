//! One connection of a launch: bytes go by NIXL, what they are is announced behind them, and acknowledgements come in.

use std::collections::VecDeque;
use std::io;
use std::net::{TcpStream, ToSocketAddrs as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hicached_client::shm::Segment;

use super::agent::{Agent, PeerName, Registration, Side, Transfer};
use super::berths::Cut;
use super::{NixlSettings, Runtime, greeting};
use crate::wire::Cause;
use crate::wire::peers::Peer;
use crate::wire::piece::Piece;
use crate::wire::pool::Span;
use crate::wire::pushes::Running;
use crate::wire::tcp::frame::{ACK_BYTES, Ack, Header};
use crate::wire::tcp::socket::{Moved, Socket, Wait, span_of};

/// What a thread sends, and how.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sending<'a> {
    pub(super) peer: &'a Peer,
    pub(super) running: &'a Running,
    pub(super) settings: &'a NixlSettings,
    pub(super) runtime: &'a Runtime,
}

impl<'a> Sending<'a> {
    /// Sends what stands in the lane until it is closed.
    pub(super) fn work(self) {
        // Before a piece is taken, for its time begins then: to make an agent takes longer than most pushes. Where it
        // fails the first piece finds out why.
        let mut link = Link::connect(self, self.cut(0)).ok();
        while let Some(piece) = self.peer.lane.wait() {
            let mut next = Some(piece);
            while let Some(piece) = next.take() {
                if piece.job.is_stopping() {
                    self.running.dropped(&piece);
                    continue;
                }
                // A receiver that was restarted at the same address has left a connection that only looks alive;
                // pages that are larger than those before need larger berths.
                link = link.filter(|link| !link.socket.is_stale() && piece.bytes <= link.cut.berth_bytes);
                let Some(mut open) = link.take().or_else(|| self.connect(&piece)) else { continue };
                match open.drive(piece) {
                    Ok(left) => (link, next) = (Some(open), left),
                    Err(error) => open.abandon(&error),
                }
            }
        }
    }

    /// A connection for `piece`; without one it is lost, and so is what waits behind it.
    fn connect(self, piece: &Piece) -> Option<Link<'a>> {
        let page_bytes = piece.job.source.buffers().as_slice().iter().map(|buffer| buffer.page_bytes).max();
        let connected = Link::connect(self, self.cut(page_bytes.unwrap_or_default()));
        connected
            .inspect_err(|error| {
                let cause = Cause::Unreachable { endpoint: self.peer.address.clone(), error: error.to_string() };
                self.running.lost(piece, cause.clone());
                self.running.fail_queued(&self.peer.lane, &cause);
            })
            .ok()
    }

    /// Berths for pages of at most `page_bytes`.
    fn cut(self, page_bytes: u64) -> Cut {
        let berth_bytes = self.settings.piece_bytes.max(page_bytes);
        let berths = (self.settings.window_bytes / berth_bytes).clamp(1, u64::from(BERTHS_MAX));
        Cut { berth_bytes, berths: berths as u32 }
    }
}

/// An open connection. Its fields are dropped in their order: transfers, then the agent, which ends them, then the
/// pools that it read.
#[derive(Debug)]
struct Link<'a> {
    sending: Sending<'a>,
    socket: Socket,
    /// Frames whose bytes are on their way, oldest first.
    writing: VecDeque<(u32, Piece, Transfer)>,
    /// Announced frames without an answer, oldest first.
    flying: VecDeque<(u32, Piece)>,
    agent: Agent,
    receiver: PeerName,
    /// Pools that the agent may read.
    registered: Vec<(Arc<Segment>, Registration)>,
    cut: Cut,
    /// Where the berths stand, at the receiver.
    address: u64,
    number: u32,
    /// An acknowledgement as it comes.
    ack: [u8; ACK_BYTES],
    ack_bytes: usize,
    /// When something last moved.
    moved: Instant,
}

impl<'a> Link<'a> {
    fn connect(sending: Sending<'a>, cut: Cut) -> io::Result<Self> {
        let (connect, idle) = (sending.settings.connect, sending.settings.idle);
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the address stands for no host");
        for address in sending.peer.address.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, connect).and_then(Socket::new) {
                Ok(socket) => return Self::greet(sending, socket, cut, idle),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn greet(sending: Sending<'a>, socket: Socket, cut: Cut, idle: Duration) -> io::Result<Self> {
        socket.write_all(&greeting::ask(cut), idle)?;
        let mut agent = sending.runtime.agent(Side::Sends)?;
        let mut welcome = [0; greeting::BYTES];
        socket.read_all(&mut welcome, idle)?;
        let welcome = greeting::answered(&welcome)?;
        let end = cut.bytes().and_then(|bytes| welcome.address.checked_add(bytes));
        end.ok_or_else(|| wrong("berths that no memory holds"))?;
        let mut description = vec![0; welcome.description_bytes];
        socket.read_all(&mut description, idle)?;
        let receiver = agent.meet(&description)?;
        Ok(Self {
            sending,
            socket,
            writing: VecDeque::new(),
            flying: VecDeque::new(),
            agent,
            receiver,
            registered: Vec::new(),
            cut,
            address: welcome.address,
            number: 0,
            ack: [0; ACK_BYTES],
            ack_bytes: 0,
            moved: Instant::now(),
        })
    }

    /// Sends `piece` and what is ready behind it, until every frame is answered and nothing is ready, or until a piece
    /// comes that fits no berth of this connection, which is given back.
    fn drive(&mut self, piece: Piece) -> io::Result<Option<Piece>> {
        let mut too_large = None;
        match self.send(piece, &mut too_large) {
            Ok(()) => Ok(too_large),
            Err(error) => {
                self.flying.extend(too_large.map(|piece| (self.number, piece)));
                Err(error)
            }
        }
    }

    fn send(&mut self, piece: Piece, too_large: &mut Option<Piece>) -> io::Result<()> {
        self.moved = Instant::now();
        self.write(piece)?;
        loop {
            while too_large.is_none()
                && self.has_berth()
                && let Some(piece) = self.sending.peer.lane.try_take()
            {
                if piece.job.is_stopping() {
                    self.sending.running.dropped(&piece);
                } else if piece.bytes > self.cut.berth_bytes {
                    *too_large = Some(piece);
                } else {
                    self.write(piece)?;
                }
            }
            if self.writing.is_empty() && self.flying.is_empty() {
                return Ok(());
            }
            if !self.announce()? && !self.read_acks()? {
                self.pause()?;
            }
        }
    }

    /// Whether the next frame has a berth of its own.
    fn has_berth(&self) -> bool {
        self.writing.len() + self.flying.len() < self.cut.berths as usize
    }

    /// Begins to write the bytes of `piece`.
    fn write(&mut self, piece: Piece) -> io::Result<()> {
        self.number = self.number.wrapping_add(1);
        let spans = piece.spans();
        // Its pages are the push's until it is told to be lost, whatever happens to the transfer.
        let begun = self.register(&piece).and_then(|()| {
            let to = self.address + self.cut.offset(self.number);
            Ok(self.agent.write(&spans, to, &self.receiver)?)
        });
        match begun {
            Ok(transfer) => {
                self.writing.push_back((self.number, piece, transfer));
                Ok(())
            }
            Err(error) => {
                self.flying.push_back((self.number, piece));
                Err(error)
            }
        }
    }

    /// Lets the agent read the pool of `piece`, and those that nobody else has any more no longer.
    fn register(&mut self, piece: &Piece) -> io::Result<()> {
        let segment = piece.job.source.segment();
        if self.registered.iter().any(|(known, _)| Arc::ptr_eq(known, segment)) {
            return Ok(());
        }
        let (gone, kept): (Vec<_>, Vec<_>) =
            self.registered.drain(..).partition(|(segment, _)| Arc::strong_count(segment) == 1);
        self.registered = kept;
        for (_, registration) in gone {
            self.agent.give_back(registration)?;
        }
        let bytes = segment.len_bytes();
        let start = segment.pointer(0, bytes).map_err(io::Error::other)?;
        let registration = self.agent.register(Span { start, bytes: bytes as usize })?;
        self.registered.push((segment.clone(), registration));
        Ok(())
    }

    /// Announces the frames whose bytes have arrived; whether any had.
    fn announce(&mut self) -> io::Result<bool> {
        let mut any = false;
        while let Some((_, _, transfer)) = self.writing.front_mut() {
            if !transfer.is_over()? {
                break;
            }
            if let Some((number, piece, _)) = self.writing.pop_front() {
                let rows = piece.positions();
                let frame = Header::of(&piece.claiming(&rows), number, None).encode(&rows);
                self.flying.push_back((number, piece));
                self.socket.write_all(&frame, self.sending.settings.idle)?;
                (any, self.moved) = (true, Instant::now());
            }
        }
        Ok(any)
    }

    /// Takes the acknowledgements that are there; whether any bytes were.
    fn read_acks(&mut self) -> io::Result<bool> {
        let mut any = false;
        while !self.flying.is_empty() {
            let Moved::Bytes(bytes) = self.socket.read(&[span_of(&mut self.ack[self.ack_bytes..])])? else { break };
            (any, self.moved) = (true, Instant::now());
            self.ack_bytes += bytes;
            if self.ack_bytes == ACK_BYTES {
                self.ack_bytes = 0;
                let ack = Ack::decode(&self.ack).ok_or_else(|| wrong("an acknowledgement that nobody gives"))?;
                self.answered(ack)?;
            }
        }
        Ok(any)
    }

    fn answered(&mut self, ack: Ack) -> io::Result<()> {
        let Some((_, piece)) = self.flying.pop_front_if(|(number, _)| *number == ack.number || ack.number == 0) else {
            return Err(wrong("an acknowledgement of another frame"));
        };
        match ack.refusal {
            None => self.sending.running.landed(&piece),
            Some(refusal) => self.sending.running.refused(&piece, refusal),
        }
        Ok(())
    }

    /// Waits for the socket, or for a moment when bytes are on their way: NIXL has to be asked.
    ///
    /// # Errors
    /// The lane was closed, or nothing has moved for too long: less is enough when a push is being stopped.
    fn pause(&mut self) -> io::Result<()> {
        if self.writing.is_empty() {
            if self.socket.wait(Wait::Read, if self.has_berth() { LOOK } else { PATIENCE })? {
                return Ok(());
            }
        } else {
            std::thread::sleep(ASK);
        }
        if self.sending.peer.lane.is_closed() {
            return Err(wrong("the sending rank ends"));
        }
        let still = self.moved.elapsed();
        let mut pieces =
            self.writing.iter().map(|(_, piece, _)| piece).chain(self.flying.iter().map(|(_, piece)| piece));
        let settings = self.sending.settings;
        if still >= settings.idle || (still >= settings.stop && pieces.any(|piece| piece.job.is_stopping())) {
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
        let Self { sending, socket, writing, flying, agent, .. } = self;
        let (transfers, written): (Vec<_>, Vec<_>) =
            writing.into_iter().map(|(_, piece, transfer)| (transfer, piece)).unzip();
        // Ended first: of what is told to be lost nothing is read from the pool any more.
        drop(transfers);
        drop(agent);
        socket.reset();
        for piece in written.into_iter().chain(flying.into_iter().map(|(_, piece)| piece)) {
            sending.running.lost(&piece, cause.clone());
        }
    }
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Between two looks at a lane while acknowledgements are waited for and a berth is free.
const LOOK: Duration = Duration::from_millis(1);
/// Between two looks at whether a peer that takes nothing is to be given up.
const PATIENCE: Duration = Duration::from_millis(20);
/// Between two questions whether bytes have arrived: a piece takes some hundred microseconds.
const ASK: Duration = Duration::from_micros(20);
/// Berths of small pieces; more are of no use.
const BERTHS_MAX: u32 = 1_024;
