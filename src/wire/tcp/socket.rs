//! Reads and writes of a connection: memory that other processes map goes in and out without ever being a slice.

use std::cell::RefCell;
use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use super::session::Session;
use crate::wire::pool::Span;

/// A connection that never blocks, of one thread.
#[derive(Debug)]
pub(in crate::wire) struct Socket {
    stream: TcpStream,
    /// When it is encrypted.
    session: Option<RefCell<Session>>,
}

/// What a call did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::wire) enum Moved {
    /// So many bytes, at least one.
    Bytes(usize),
    /// Nothing can be moved for the moment.
    Later,
}

/// What a connection is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::wire) enum Wait {
    /// Bytes to read.
    Read,
    /// Room to write.
    Write,
}

impl Socket {
    pub(in crate::wire) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        rustix::net::sockopt::set_socket_keepalive(&stream, true)?;
        rustix::net::sockopt::set_tcp_keepidle(&stream, KEEPALIVE_IDLE)?;
        rustix::net::sockopt::set_tcp_keepintvl(&stream, KEEPALIVE_PAUSE)?;
        rustix::net::sockopt::set_tcp_keepcnt(&stream, KEEPALIVE_TRIES)?;
        Ok(Self { stream, session: None })
    }

    /// Encrypts it from its first byte on, once both sides have agreed within `patience`.
    ///
    /// # Errors
    /// The system's, what keeps the sides from agreeing, or [`io::ErrorKind::TimedOut`].
    pub(in crate::wire) fn encrypt(&mut self, connection: rustls::Connection, patience: Duration) -> io::Result<()> {
        let began = Instant::now();
        let session = self.session.insert(RefCell::new(Session::new(connection)));
        while !session.get_mut().shake_hands(&self.stream)? {
            let left = patience.saturating_sub(began.elapsed());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let wants_write = session.get_mut().wants_write();
            poll(&self.stream, libc::POLLIN | if wants_write { libc::POLLOUT } else { 0 }, left)?;
        }
        Ok(())
    }

    /// Reads into the first spans.
    ///
    /// # Errors
    /// The system's; [`io::ErrorKind::UnexpectedEof`] when the other side has closed.
    pub(in crate::wire) fn read(&self, into: &[Span]) -> io::Result<Moved> {
        if let Some(session) = &self.session {
            return session.borrow_mut().read(&self.stream, into);
        }
        let mut parts = Parts::new(into);
        let mut message = parts.message();
        // SAFETY: `message` points to parts, each of which is mapped and writable memory that stays so for the call
        // (contract of `Span`); the descriptor is open.
        let read = unsafe { libc::recvmsg(self.stream.as_raw_fd(), &mut message, libc::MSG_DONTWAIT) };
        match moved(read)? {
            Moved::Bytes(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            moved => Ok(moved),
        }
    }

    /// Writes from the first spans.
    ///
    /// # Errors
    /// The system's.
    pub(in crate::wire) fn write(&self, from: &[Span]) -> io::Result<Moved> {
        if let Some(session) = &self.session {
            return session.borrow_mut().write(&self.stream, from);
        }
        let mut parts = Parts::new(from);
        let message = parts.message();
        // SAFETY: `message` points to parts, each of which is mapped memory that stays so for the call (contract of
        // `Span`); the descriptor is open.
        let written =
            unsafe { libc::sendmsg(self.stream.as_raw_fd(), &message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
        moved(written)
    }

    /// Closes it at once: what the system has not sent yet is never sent.
    pub(in crate::wire) fn reset(self) {
        let linger = libc::linger { l_onoff: 1, l_linger: 0 };
        let bytes = size_of::<libc::linger>() as libc::socklen_t;
        let (fd, option) = (self.stream.as_raw_fd(), std::ptr::from_ref(&linger).cast());
        // SAFETY: the descriptor is open, and `option` is a structure of so many bytes. Where it is refused the
        // connection closes in the ordinary way, and the receiver's gate keeps out what still comes.
        unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, option, bytes) };
    }

    /// Whether the other side has closed, or sent what nobody asked for.
    pub(in crate::wire) fn is_stale(&self) -> bool {
        let mut byte = [0];
        !matches!(self.stream.peek(&mut byte), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Waits until something can be moved, at most for `patience`; whether it may be.
    ///
    /// # Errors
    /// The system's.
    pub(in crate::wire) fn wait(&self, what: Wait, patience: Duration) -> io::Result<bool> {
        let mut events = match what {
            Wait::Read => libc::POLLIN,
            Wait::Write => libc::POLLOUT,
        };
        if let Some(session) = &self.session {
            let mut session = session.borrow_mut();
            if what == Wait::Read && session.has_plain() {
                return Ok(true);
            }
            if !session.flush(&self.stream)? {
                events |= libc::POLLOUT;
            }
        }
        poll(&self.stream, events, patience)
    }

    /// From how many bytes on there is something to read. A thread that wakes for each packet reads little at a time.
    /// Of an encrypted connection some of the bytes are here already, and any may be the last that come.
    ///
    /// # Errors
    /// The system's.
    pub(in crate::wire) fn set_low_water(&self, bytes: usize) -> io::Result<()> {
        if self.session.is_some() {
            return Ok(());
        }
        let value = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
        let (fd, option) = (self.stream.as_raw_fd(), std::ptr::from_ref(&value).cast());
        let option_bytes = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: the descriptor is open, and `option` is a number of so many bytes.
        let set = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, option, option_bytes) };
        if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Waits until something can be read.
    ///
    /// # Errors
    /// The system's, or [`io::ErrorKind::TimedOut`] after `idle`.
    pub(in crate::wire) fn readable(&self, idle: Duration) -> io::Result<()> {
        let began = Instant::now();
        while !self.wait(Wait::Read, idle)? {
            if began.elapsed() >= idle {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        Ok(())
    }

    /// Fills `bytes`; no pause is longer than `idle`.
    ///
    /// # Errors
    /// The system's, [`io::ErrorKind::UnexpectedEof`] or [`io::ErrorKind::TimedOut`].
    pub(in crate::wire) fn read_all(&self, bytes: &mut [u8], idle: Duration) -> io::Result<()> {
        let mut left = span_of(bytes);
        while left.bytes > 0 {
            match self.read(&[left])? {
                Moved::Bytes(read) => left = left.skip(read),
                Moved::Later => self.readable(idle)?,
            }
        }
        Ok(())
    }

    /// Writes all of `bytes`; no pause is longer than `idle`.
    ///
    /// # Errors
    /// The system's, or [`io::ErrorKind::TimedOut`].
    pub(in crate::wire) fn write_all(&self, bytes: &[u8], idle: Duration) -> io::Result<()> {
        let mut left = Span { start: std::ptr::NonNull::from(bytes).cast(), bytes: bytes.len() };
        let mut last = Instant::now();
        while left.bytes > 0 {
            match self.write(&[left])? {
                Moved::Bytes(written) => {
                    left = left.skip(written);
                    last = Instant::now();
                }
                Moved::Later => {
                    if !self.wait(Wait::Write, idle)? && last.elapsed() >= idle {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                }
            }
        }
        // What an encrypted connection has taken may still have to leave, and the next call may be to close it.
        while let Some(session) = &self.session
            && !session.borrow_mut().flush(&self.stream)?
        {
            if !self.wait(Wait::Write, idle)? && last.elapsed() >= idle {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        Ok(())
    }
}

/// Waits for any of `events` on `stream`, at most for `patience`; whether one came.
fn poll(stream: &TcpStream, events: libc::c_short, patience: Duration) -> io::Result<bool> {
    let mut poll = libc::pollfd { fd: stream.as_raw_fd(), events, revents: 0 };
    let ms = libc::c_int::try_from(patience.as_millis().max(1)).unwrap_or(libc::c_int::MAX);
    // SAFETY: one structure, which the call reads and writes.
    let ready = unsafe { libc::poll(&mut poll, 1, ms) };
    if ready >= 0 {
        return Ok(ready > 0);
    }
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::Interrupted { Ok(false) } else { Err(error) }
}

/// Pieces of memory as a call wants them.
struct Parts {
    parts: Vec<libc::iovec>,
}

impl Parts {
    fn new(spans: &[Span]) -> Self {
        let part = |span: &Span| libc::iovec { iov_base: span.start.as_ptr().cast(), iov_len: span.bytes };
        Self { parts: spans.iter().take(PARTS_MAX).map(part).collect() }
    }

    fn message(&mut self) -> libc::msghdr {
        // SAFETY: all bytes of the structure may be zero.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = self.parts.as_mut_ptr();
        message.msg_iovlen = self.parts.len();
        message
    }
}

/// Takes `moved` bytes off the front of `spans`.
pub(in crate::wire) fn advance(spans: &mut [Span], first: &mut usize, mut moved: usize) {
    while moved > 0 {
        let step = moved.min(spans[*first].bytes);
        spans[*first] = spans[*first].skip(step);
        moved -= step;
        if spans[*first].bytes == 0 {
            *first += 1;
        }
    }
}

/// Memory of this thread.
pub(in crate::wire) fn span_of(bytes: &mut [u8]) -> Span {
    Span { start: std::ptr::NonNull::from(&mut *bytes).cast(), bytes: bytes.len() }
}

fn moved(result: isize) -> io::Result<Moved> {
    if let Ok(bytes) = usize::try_from(result) {
        return Ok(Moved::Bytes(bytes));
    }
    let error = io::Error::last_os_error();
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(Moved::Later),
        _ => Err(error),
    }
}

/// A connection on which nothing has come for so long is asked whether its peer is still there: one that has lost its
/// network says no goodbye, and would keep its place for ever.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
const KEEPALIVE_PAUSE: Duration = Duration::from_secs(10);
const KEEPALIVE_TRIES: u32 = 3;
/// Pieces of memory one call takes.
const PARTS_MAX: usize = 1_024;
