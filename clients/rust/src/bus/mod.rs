//! The message bus: opaque encoded bytes between named inboxes, over NATS or inside one process.
//!
//! The bus may lose, repeat, delay or reorder anything; it never claims otherwise. *Ok* of a [`Bus::send`] means
//! that the frame was handed over, not that anybody read it: only a reply is a success. Every queue has a bound,
//! and at the bound the caller gets [`BusError::Busy`]. Every wait has a deadline, and ends early when its
//! connection does.
//!
//! Not here: what the bytes mean (the protocol), sequence numbers, retries (the requester).

mod counters;
mod error;
mod frame;
mod inbox;
pub mod nats;
mod pending;

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use tokio::sync::watch;

pub use counters::{BusCounters, Count, Counters};
pub use error::BusError;
pub use frame::{Frame, HEADER_VALUE_BYTES_MAX, HEADERS_MAX, Headers, HeadersFull, SUBJECT_BYTES_MAX, check_subject};
pub use inbox::{BusyReply, Inbox, InboxSender, Rejected, RejectedBecause, inbox};
pub use pending::{Answer, Lost, Pending, Token, Waiting};

/// What frees before what takes: acknowledgements, aborts and heartbeats are urgent.
///
/// Urgent frames have a connection of their own from end to end, so a megabyte of ordinary traffic is never in
/// front of them. Over NATS an urgent frame for subject `s` is published to `s.urgent`; replies go to the subject
/// that the request named, unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Handled before anything normal.
    Urgent,
    /// Everything else.
    Normal,
}

impl Class {
    /// Both, in the order in which they are handled.
    pub const ALL: [Self; 2] = [Self::Urgent, Self::Normal];
}

/// Whether the broker can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connection {
    /// Every connection of the bus is up.
    Connected,
    /// At least one connection is down; sends of its class are refused.
    Disconnected {
        /// When the first of them was seen to be down.
        since: Instant,
    },
    /// Closed for good by [`Bus::close`].
    Closed,
}

/// A place to send frames to and to be reached at. The same tests run over every implementation.
pub trait Bus: Send + Sync + 'static {
    /// Hands over one frame without waiting. `Ok` means handed over, nothing more: a frame to a subject that nobody
    /// serves is lost and a frame on its way when the connection ends is lost, both without an error here.
    ///
    /// # Errors
    /// `TooLarge`, `BadSubject`, `Disconnected`, `Busy` (the queue to the connection, or in memory the receiver's
    /// inbox) and `Closed`. After an error the frame was not sent.
    fn send(&self, frame: Frame) -> Result<(), BusError>;

    /// Sends `frame` with a reply subject of the bus's own and waits for the first answer. The answer has the
    /// subject and class of the request. Dropping the future gives the place up; a later answer is counted and dropped.
    ///
    /// # Errors
    /// Those of [`Bus::send`]; `NoResponders` at once when nobody serves the subject, `Disconnected` at once when
    /// the connection ends (the request may still have been carried out), `TimedOut` at the deadline, and `Busy`
    /// when too many requests are open.
    fn request(&self, frame: Frame, deadline: Duration) -> BoxFuture<'_, Result<Frame, BusError>>;

    /// Delivers what arrives at `subject`, of both classes, into `inbox`. Resolves only after a message to itself
    /// came back in each class, so that the next request of anybody finds it; these never reach the inbox.
    /// Delivery ends when the returned value or the inbox is dropped.
    ///
    /// # Errors
    /// `BadSubject`, `Disconnected`, `TimedOut` when the message to itself does not come back, `Closed`.
    fn serve(&self, subject: &str, inbox: InboxSender) -> BoxFuture<'_, Result<Served, BusError>>;

    /// The most bytes one frame may have, payload and headers together ([`Frame::wire_bytes`]). It is the
    /// broker's limit and may change when the connection does.
    fn payload_bytes_max(&self) -> usize;

    /// Watches the connection.
    fn connection(&self) -> watch::Receiver<Connection>;

    /// What was counted since the bus was made.
    fn counters(&self) -> BusCounters;

    /// Ends the bus: open requests fail with `Closed`, and so does every later call.
    fn close(&self);
}

/// One served subject. Dropping it ends the delivery.
#[must_use = "dropping it ends the delivery"]
pub struct Served {
    subject: Arc<str>,
    release: Option<Box<dyn FnOnce() + Send + Sync>>,
}

impl Served {
    /// For implementations: `release` runs once, when the value is dropped.
    pub fn new(subject: Arc<str>, release: impl FnOnce() + Send + Sync + 'static) -> Self {
        Self { subject, release: Some(Box::new(release)) }
    }

    /// The subject it serves.
    pub fn subject(&self) -> &str {
        &self.subject
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(release) = self.release.take() {
            release();
        }
    }
}

impl std::fmt::Debug for Served {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Served").field("subject", &self.subject).finish_non_exhaustive()
    }
}
