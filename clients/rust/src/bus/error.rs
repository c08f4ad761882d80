//! Why a frame was not sent or not answered, with the numbers that explain it.

use std::sync::Arc;

/// A failure of the bus, never of the receiver: a refusal by a receiver is an ordinary reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BusError {
    /// Headers and payload together are over the broker's limit. Sending it again unchanged fails again.
    #[error("frame of {bytes} bytes is over the limit of {limit}")]
    TooLarge {
        /// Bytes of headers and payload.
        bytes: usize,
        /// The broker's limit.
        limit: usize,
    },
    /// Nobody serves the subject.
    #[error("nobody serves {subject}")]
    NoResponders {
        /// The subject asked.
        subject: Arc<str>,
    },
    /// The connection is down, or went down while the answer was awaited. A request may have been carried out.
    #[error("connection lost, {subject} not reached or not answered")]
    Disconnected {
        /// The subject asked.
        subject: Arc<str>,
    },
    /// No answer came before the deadline. The request may have been carried out.
    #[error("no answer from {subject} in {after_ms} ms")]
    TimedOut {
        /// The subject asked.
        subject: Arc<str>,
        /// The deadline that passed.
        after_ms: u64,
    },
    /// A queue is at its bound.
    #[error("{queue} for {subject} is full at {bound}")]
    Busy {
        /// The subject the frame was for.
        subject: Arc<str>,
        /// Which queue.
        queue: &'static str,
        /// Its bound, in frames.
        bound: usize,
    },
    /// Empty, too long, or with a blank, a wildcard or an empty token.
    #[error("not a subject: {subject:?}")]
    BadSubject {
        /// What was given.
        subject: Arc<str>,
    },
    /// The bus was closed.
    #[error("the bus is closed")]
    Closed,
}
