//! The bus of one process: the same encoded bytes, limits and errors as over NATS, without a broker.
//!
//! Invariants: nothing waits here but requests, and these in a bounded table; a frame goes into the inboxes of its
//! subject in the caller's own call, so a full inbox is the sender's `Busy`.
//! Not here: faults. The simulator has a network of its own.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::watch;

use super::{
    Bus, BusCounters, BusError, Connection, Count, Counters, Frame, InboxSender, Lost, Pending, RejectedBecause,
    Served, Token, check_subject,
};

/// Bounds of a memory bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryConfig {
    /// Most bytes of headers and payload of one frame. The default is that of a NATS server: 1,048,576.
    pub payload_bytes_max: usize,
    /// Most requests waiting at once.
    pub requests_max: usize,
}

impl Default for MemoryConfig {
    fn default() -> Self {
        Self { payload_bytes_max: 1_048_576, requests_max: 4_096 }
    }
}

/// A bus in memory. A clone is the same bus.
#[derive(Clone, Debug)]
pub struct MemoryBus {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    config: MemoryConfig,
    routes: RwLock<Routes>,
    pending: Pending,
    counters: Counters,
    connection: watch::Sender<Connection>,
}

/// Who reads what. As over NATS, two that serve one subject both get every frame.
#[derive(Debug, Default)]
struct Routes {
    next_id: u64,
    closed: bool,
    inboxes: HashMap<Arc<str>, Vec<(u64, InboxSender)>>,
}

/// Replies go to subjects under this prefix, which nobody can serve.
const REPLY_PREFIX: &str = "_INBOX.memory.";

impl MemoryBus {
    /// An empty bus.
    pub fn new(config: MemoryConfig) -> Self {
        let shared = Shared {
            config,
            routes: RwLock::default(),
            pending: Pending::new(config.requests_max),
            counters: Counters::default(),
            connection: watch::Sender::new(Connection::Connected),
        };
        Self { shared: Arc::new(shared) }
    }
}

impl Bus for MemoryBus {
    fn send(&self, frame: Frame) -> Result<(), BusError> {
        let shared = &*self.shared;
        shared.check(&frame)?;
        if let Some(digits) = frame.subject.strip_prefix(REPLY_PREFIX) {
            shared.answer(digits, frame.headers, frame.payload);
            return Ok(());
        }
        match shared.deliver(frame) {
            Ok(()) => Ok(()),
            // A publish to nobody is no error over NATS either: only a request learns of it.
            Err(BusError::NoResponders { .. }) => {
                shared.counters.bump(Count::Sent);
                shared.counters.bump(Count::Unrouted);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn request(&self, frame: Frame, deadline: Duration) -> BoxFuture<'_, Result<Frame, BusError>> {
        self.shared.request(frame, deadline).boxed()
    }

    fn serve(&self, subject: &str, inbox: InboxSender) -> BoxFuture<'_, Result<Served, BusError>> {
        let served = serve(&self.shared, subject, inbox);
        std::future::ready(served).boxed()
    }

    fn payload_bytes_max(&self) -> usize {
        self.shared.config.payload_bytes_max
    }

    fn connection(&self) -> watch::Receiver<Connection> {
        self.shared.connection.subscribe()
    }

    fn counters(&self) -> BusCounters {
        self.shared.counters.snapshot()
    }

    fn close(&self) {
        let inboxes = {
            let mut routes = self.shared.write();
            routes.closed = true;
            std::mem::take(&mut routes.inboxes)
        };
        // Outside the lock: the last sender of an inbox wakes its reader.
        drop(inboxes);
        self.shared.pending.fail_all(Lost::Closed);
        self.shared.connection.send_replace(Connection::Closed);
    }
}

impl Shared {
    fn check(&self, frame: &Frame) -> Result<(), BusError> {
        if self.read().closed {
            return Err(BusError::Closed);
        }
        let checked = frame.check(self.config.payload_bytes_max);
        if matches!(checked, Err(BusError::TooLarge { .. })) {
            self.counters.bump(Count::TooLarge);
        }
        checked
    }

    async fn request(&self, mut frame: Frame, deadline: Duration) -> Result<Frame, BusError> {
        self.check(&frame)?;
        self.counters.bump(Count::Requests);
        let (subject, class) = (frame.subject.clone(), frame.class);
        let Some(mut waiting) = self.pending.insert() else {
            self.counters.bump(Count::BusySending);
            return Err(BusError::Busy { subject, queue: "requests", bound: self.pending.bound() });
        };
        let mut reply_to = String::with_capacity(REPLY_PREFIX.len() + Token::DIGITS);
        reply_to.push_str(REPLY_PREFIX);
        waiting.token.write(&mut reply_to);
        frame.reply_to = Some(reply_to.into());
        if let Err(error) = self.deliver(frame) {
            if matches!(error, BusError::NoResponders { .. }) {
                self.counters.bump(Count::NoResponders);
            }
            return Err(error);
        }
        // `close` marks the routes before it ends the waiting requests: one of the two sees this request.
        if self.read().closed {
            return Err(BusError::Closed);
        }
        match tokio::time::timeout(deadline, &mut waiting.answer).await {
            Ok(Ok(Ok((headers, payload)))) => {
                self.counters.bump(Count::Replies);
                Ok(Frame { subject, reply_to: None, class, verbatim: false, headers, payload })
            }
            Ok(Ok(Err(Lost::NoResponders))) => Err(BusError::NoResponders { subject }),
            Ok(Ok(Err(Lost::Disconnected))) => Err(BusError::Disconnected { subject }),
            Ok(Ok(Err(Lost::Closed)) | Err(_)) => Err(BusError::Closed),
            Err(_) => {
                self.counters.bump(Count::TimedOut);
                Err(BusError::TimedOut { subject, after_ms: deadline.as_millis() as u64 })
            }
        }
    }

    /// Puts the frame into every inbox of its subject. The first error is reported; the other inboxes still get it.
    fn deliver(&self, frame: Frame) -> Result<(), BusError> {
        let routes = self.read();
        let Some((last, others)) = routes.inboxes.get(&frame.subject).and_then(|inboxes| inboxes.split_last()) else {
            return Err(BusError::NoResponders { subject: frame.subject });
        };
        let mut result = Ok(());
        for (_, inbox) in others {
            result = result.and(self.put(inbox, frame.clone()));
        }
        result.and(self.put(&last.1, frame))
    }

    fn put(&self, inbox: &InboxSender, frame: Frame) -> Result<(), BusError> {
        match inbox.try_send(frame) {
            Ok(()) => {
                self.counters.bump(Count::Sent);
                self.counters.bump(Count::Received);
                Ok(())
            }
            Err(rejected) => {
                match rejected.because {
                    RejectedBecause::Full { .. } => self.counters.bump(Count::BusyInbox),
                    RejectedBecause::Closed => {}
                }
                Err(rejected.into_error())
            }
        }
    }

    fn answer(&self, digits: &str, headers: super::Headers, payload: bytes::Bytes) {
        self.counters.bump(Count::Sent);
        let found = Token::read(digits).is_some_and(|token| self.pending.resolve(token, Ok((headers, payload))));
        if !found {
            self.counters.bump(Count::LateReplies);
        }
    }

    fn release(&self, subject: &Arc<str>, id: u64) {
        let mut routes = self.write();
        let Some(inboxes) = routes.inboxes.get_mut(subject) else {
            return;
        };
        let removed = inboxes.iter().position(|(have, _)| *have == id).map(|at| inboxes.remove(at));
        if inboxes.is_empty() {
            routes.inboxes.remove(subject);
        }
        drop(routes);
        // Outside the lock: the last sender of an inbox wakes its reader.
        drop(removed);
    }

    fn read(&self) -> RwLockReadGuard<'_, Routes> {
        // No writer can panic between two writes that belong together.
        self.routes.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Routes> {
        self.routes.write().unwrap_or_else(PoisonError::into_inner)
    }
}

fn serve(shared: &Arc<Shared>, subject: &str, inbox: InboxSender) -> Result<Served, BusError> {
    let subject: Arc<str> = subject.into();
    check_subject(&subject)?;
    if subject.starts_with(REPLY_PREFIX) {
        return Err(BusError::BadSubject { subject });
    }
    let mut routes = shared.write();
    if routes.closed {
        return Err(BusError::Closed);
    }
    let id = routes.next_id;
    routes.next_id += 1;
    routes.inboxes.entry(subject.clone()).or_default().push((id, inbox));
    drop(routes);
    let (bus, released): (Weak<Shared>, Arc<str>) = (Arc::downgrade(shared), subject.clone());
    Ok(Served::new(subject, move || {
        if let Some(shared) = bus.upgrade() {
            shared.release(&released, id);
        }
    }))
}
