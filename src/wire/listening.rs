//! Where a landing takes connections: one thread that takes them, and one for each of them.

use std::collections::BTreeMap;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use super::StartError;
use super::tcp::socket::Socket;

/// Serves one connection until it ends; an error says that it broke.
pub(super) type Serve = dyn Fn(Socket, &AtomicBool) -> io::Result<()> + Send + Sync;

/// A listener and its connections. Dropping it ends them and waits for their threads.
#[derive(Debug)]
pub(super) struct Listening {
    shared: Arc<Shared>,
    listener: TcpListener,
    address: String,
    accepts: Option<JoinHandle<()>>,
}

struct Shared {
    serve: Box<Serve>,
    connections_max: usize,
    connections: Mutex<BTreeMap<u64, TcpStream>>,
    changed: Condvar,
    closed: AtomicBool,
    broken: AtomicU64,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("connections", &self.connections).finish_non_exhaustive()
    }
}

impl Listening {
    /// Listens at `listen`, with at most `connections_max` connections at a time. Peers are told the host `advertise`,
    /// when there is one.
    ///
    /// # Errors
    /// What the operating system refused.
    pub(super) fn start(
        listen: SocketAddr,
        advertise: Option<&str>,
        connections_max: usize,
        serve: Box<Serve>,
    ) -> Result<Self, StartError> {
        let failed = |source| {
            let doing = format!("listen for transfers on {listen} (port 0 has each rank draw one of its own)");
            StartError::Io { doing, source }
        };
        let listener = TcpListener::bind(listen).map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        let address = match advertise {
            Some(host) => format!("{host}:{}", bound.port()),
            None => bound.to_string(),
        };
        let shared = Arc::new(Shared {
            serve,
            connections_max,
            connections: Mutex::default(),
            changed: Condvar::new(),
            closed: AtomicBool::new(false),
            broken: AtomicU64::new(0),
        });
        let (of_thread, taken) = (shared.clone(), listener.try_clone().map_err(failed)?);
        let accepts = super::spawn("wire-accept", move || of_thread.accept(&taken))?;
        Ok(Self { shared, listener, address, accepts: Some(accepts) })
    }

    /// The address that peers are told.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// Connections that broke, and those that were not taken.
    pub(super) fn broken(&self) -> u64 {
        self.shared.broken.load(Ordering::Relaxed)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Release);
        // SAFETY: the descriptor is open. Shutting a listener down wakes the thread that waits in it.
        unsafe { libc::shutdown(self.listener.as_raw_fd(), libc::SHUT_RD) };
        if let Some(accepts) = self.accepts.take() {
            // A panic of that thread has ended the process.
            accepts.join().ok();
        }
        let mut connections = self.shared.lock();
        for connection in connections.values() {
            // A connection that is gone already has nothing to be told.
            connection.shutdown(Shutdown::Both).ok();
        }
        while !connections.is_empty() {
            connections = self.shared.changed.wait(connections).expect(NO_PANIC);
        }
    }
}

impl Shared {
    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        loop {
            let accepted = listener.accept();
            if self.closed.load(Ordering::Acquire) {
                return;
            }
            match accepted.and_then(|(stream, peer)| self.take(stream, peer)) {
                Ok(()) => {}
                Err(error) => {
                    self.broken.fetch_add(1, Ordering::Relaxed);
                    tracing::warn!(%error, "a connection for transfers was not taken");
                    std::thread::sleep(ACCEPT_PAUSE);
                }
            }
        }
    }

    fn take(self: &Arc<Self>, stream: TcpStream, peer: SocketAddr) -> io::Result<()> {
        let mut connections = self.lock();
        if connections.len() >= self.connections_max {
            let full = format!("{} connections, as many as there may be", connections.len());
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, full));
        }
        let number = connections.last_key_value().map_or(0, |(last, _)| last + 1);
        let socket = Socket::new(stream.try_clone()?)?;
        let shared = self.clone();
        crate::threads::spawn("wire-land".to_owned(), move || shared.serve(number, peer, socket))?;
        connections.insert(number, stream);
        Ok(())
    }

    fn serve(&self, number: u64, peer: SocketAddr, socket: Socket) {
        if let Err(error) = (self.serve)(socket, &self.closed)
            && !self.closed.load(Ordering::Acquire)
        {
            self.broken.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(%peer, %error, "a connection for transfers broke");
        }
        if let Some(stream) = self.lock().remove(&number) {
            // The other side may be gone already.
            stream.shutdown(Shutdown::Both).ok();
        }
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, TcpStream>> {
        self.connections.lock().expect(NO_PANIC)
    }
}

/// After a connection that could not be taken: what is short may be there again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);
const NO_PANIC: &str = "no thread panics with the connections locked";
