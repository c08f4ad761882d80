//! The receiving half over TCP: one thread that takes connections, and one for each of them.

use std::collections::BTreeMap;
use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use hicached_actors::protocol::Refusal;

use super::socket::Socket;
use super::tls::Tls;
use super::{NAME, TcpSettings, stream};
use crate::wire::board::Board;
use crate::wire::grants::Grants;
use crate::wire::{Events, Grant, GrantSpec, Landing, LandingFigures, Name, Report, StartError};

/// The landing of one rank.
#[derive(Debug)]
pub(super) struct TcpLanding {
    shared: Arc<Shared>,
    listener: TcpListener,
    endpoint: String,
    accepts: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    grants: Grants,
    idle: Duration,
    tls: Option<Tls>,
    connections_max: usize,
    connections: Mutex<BTreeMap<u64, TcpStream>>,
    changed: Condvar,
    closed: AtomicBool,
    broken: AtomicU64,
}

impl TcpLanding {
    pub(super) fn start(settings: &TcpSettings, tls: Option<Tls>, events: Events) -> Result<Self, StartError> {
        let listen = settings.listen;
        let failed = |source| StartError::Io { doing: format!("listen for transfers on {listen}"), source };
        let listener = TcpListener::bind(listen).map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        let endpoint = match &settings.advertise {
            Some(host) => format!("{NAME}:{host}:{}", bound.port()),
            None => format!("{NAME}:{bound}"),
        };
        let shared = Arc::new(Shared {
            grants: Grants::start(events)?,
            idle: settings.idle,
            tls,
            connections_max: settings.connections_max,
            connections: Mutex::default(),
            changed: Condvar::new(),
            closed: AtomicBool::new(false),
            broken: AtomicU64::new(0),
        });
        let (of_thread, taken) = (shared.clone(), listener.try_clone().map_err(failed)?);
        let accepts = crate::wire::spawn("wire-accept", move || of_thread.accept(&taken))?;
        Ok(Self { shared, listener, endpoint, accepts: Some(accepts) })
    }
}

impl Landing for TcpLanding {
    fn accept(&self, spec: GrantSpec) -> Result<Grant, Refusal> {
        let make = |secret| Ok(Board::on_heap(&spec, secret));
        self.shared.grants.accept(&spec, make, |_| self.endpoint.clone())
    }

    fn report(&self, name: Name) -> Option<Report> {
        self.shared.grants.report(name)
    }

    fn revoke(&self, name: Name, _drained: bool) {
        self.shared.grants.revoke(name);
    }

    fn revoke_all(&self) {
        self.shared.grants.revoke_all();
    }

    fn is_still(&self) -> bool {
        self.shared.grants.is_still()
    }

    fn figures(&self) -> LandingFigures {
        self.shared.grants.figures(self.shared.broken.load(Ordering::Relaxed))
    }
}

impl Drop for TcpLanding {
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
            match accepted.and_then(|(stream, _)| self.take(stream)) {
                Ok(()) => {}
                Err(error) => {
                    self.broken.fetch_add(1, Ordering::Relaxed);
                    tracing::warn!(%error, "a connection for transfers was not taken");
                    std::thread::sleep(ACCEPT_PAUSE);
                }
            }
        }
    }

    fn take(self: &Arc<Self>, stream: TcpStream) -> io::Result<()> {
        let mut connections = self.lock();
        if connections.len() >= self.connections_max {
            let full = format!("{} connections, as many as there may be", connections.len());
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, full));
        }
        let number = connections.last_key_value().map_or(0, |(last, _)| last + 1);
        let socket = Socket::new(stream.try_clone()?)?;
        let shared = self.clone();
        crate::threads::spawn("wire-land".to_owned(), move || shared.serve(number, socket))?;
        connections.insert(number, stream);
        Ok(())
    }

    fn serve(&self, number: u64, mut socket: Socket) {
        let agreed = match &self.tls {
            Some(tls) => tls.accept().and_then(|connection| socket.encrypt(connection, self.idle)),
            None => Ok(()),
        };
        let served = agreed.and_then(|()| stream::serve(&socket, &self.grants, self.idle));
        if let Err(error) = served
            && !self.closed.load(Ordering::Acquire)
        {
            self.broken.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(%error, "a connection for transfers broke");
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
