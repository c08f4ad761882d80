//! Whether the connections are up, and what happens to open requests when one is not.
//!
//! Invariant: a request entered into [`Line::pending`] before [`Line::is_up`] said yes is ended by the loss of the
//! connection: the mark is set first and the waiting requests are failed after it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use async_nats::{Client, Event};
use tokio::sync::watch;

use crate::bus::{Class, Connection, Count, Counters, Lost, Pending};

/// The state of the bus as a whole: up when both connections are.
#[derive(Debug)]
pub(super) struct Link {
    down_since: Mutex<[Option<Instant>; 2]>,
    shown: watch::Sender<Connection>,
    closed: AtomicBool,
}

impl Link {
    pub(super) fn new() -> Self {
        let since = Instant::now();
        Self {
            down_since: Mutex::new([Some(since); 2]),
            shown: watch::Sender::new(Connection::Disconnected { since }),
            closed: AtomicBool::new(false),
        }
    }

    pub(super) fn watch(&self) -> watch::Receiver<Connection> {
        self.shown.subscribe()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Marks the bus closed; true the first time.
    pub(super) fn close(&self) -> bool {
        let first = !self.closed.swap(true, Ordering::SeqCst);
        self.shown.send_replace(Connection::Closed);
        first
    }

    fn show(&self, class: Class, down_since: Option<Instant>) {
        // Held while showing: two connections that change at once must not show the older of two states.
        let mut down = self.down_since.lock().unwrap_or_else(PoisonError::into_inner);
        down[class as usize] = down_since;
        let state = match down.iter().flatten().min() {
            Some(&since) => Connection::Disconnected { since },
            None => Connection::Connected,
        };
        self.shown.send_if_modified(|shown| {
            let changes = *shown != state && *shown != Connection::Closed;
            if changes {
                *shown = state;
            }
            changes
        });
    }
}

/// One connection as its callbacks see it.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) class: Class,
    pub(super) pending: Pending,
    pub(super) counters: Arc<Counters>,
    pub(super) link: Arc<Link>,
    up: AtomicBool,
    was_up: AtomicBool,
}

impl Line {
    pub(super) fn new(class: Class, requests_max: usize, counters: Arc<Counters>, link: Arc<Link>) -> Self {
        let (up, was_up) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { class, pending: Pending::new(requests_max), counters, link, up, was_up }
    }

    /// Asks the client library, which may know before its event was handled, or after the event was lost: events
    /// are dropped when 128 of them wait.
    pub(super) fn is_up(&self, client: &Client) -> bool {
        let up = client.connection_state() == async_nats::connection::State::Connected;
        if up != self.up.load(Ordering::SeqCst) {
            self.set(up);
        }
        up
    }

    pub(super) fn on_event(&self, event: &Event) {
        match event {
            Event::Connected => self.set(true),
            Event::Disconnected | Event::Closed => self.set(false),
            Event::SlowConsumer(_) => self.counters.bump(Count::Dropped),
            Event::ServerError(error) => {
                self.counters.bump(Count::BrokerErrors);
                tracing::warn!(class = ?self.class, %error, "the broker reported an error");
            }
            Event::ClientError(error) => tracing::debug!(class = ?self.class, %error, "connecting failed"),
            Event::LameDuckMode => tracing::info!(class = ?self.class, "the broker is about to stop"),
            Event::Draining => {}
        }
    }

    fn set(&self, up: bool) {
        if self.up.swap(up, Ordering::SeqCst) == up {
            return;
        }
        if up {
            if self.was_up.swap(true, Ordering::SeqCst) {
                self.counters.bump(Count::Reconnects);
                // As loud as the loss was: who reads of one wants to read of the other.
                tracing::warn!(class = ?self.class, "connection to the broker restored");
            }
            self.link.show(self.class, None);
        } else if self.link.is_closed() {
            // Our own doing: nothing was lost.
            self.pending.fail_all(Lost::Disconnected);
        } else {
            self.counters.bump(Count::Disconnects);
            let requests_lost = self.pending.fail_all(Lost::Disconnected);
            self.link.show(self.class, Some(Instant::now()));
            if self.link.is_closed() {
                tracing::debug!(class = ?self.class, requests_lost, "connection to the broker closed");
            } else {
                tracing::warn!(class = ?self.class, requests_lost, "connection to the broker lost");
            }
        }
    }
}
