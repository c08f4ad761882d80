//! One bounded inbox in two classes: the urgent queue is drained before the normal one.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::sync::mpsc;

use super::{BusError, Class, Frame};

/// Makes the bytes that tell a requester that the inbox is full; `None` sends nothing.
pub type BusyReply = Arc<dyn Fn(&Frame) -> Option<Bytes> + Send + Sync>;

/// Makes an inbox with room for `bound_per_class` frames of each class.
///
/// # Panics
/// When `bound_per_class` is 0.
pub fn inbox(bound_per_class: usize, busy_reply: Option<BusyReply>) -> (InboxSender, Inbox) {
    assert!(bound_per_class > 0, "an inbox without room takes nothing");
    let (urgent_in, urgent) = mpsc::channel(bound_per_class);
    let (normal_in, normal) = mpsc::channel(bound_per_class);
    (InboxSender { urgent: urgent_in, normal: normal_in, busy_reply }, Inbox { urgent, normal })
}

/// The end that the bus fills. It never waits.
#[derive(Clone)]
pub struct InboxSender {
    urgent: mpsc::Sender<Frame>,
    normal: mpsc::Sender<Frame>,
    busy_reply: Option<BusyReply>,
}

/// A frame given back because the inbox did not take it.
#[derive(Debug)]
pub struct Rejected {
    /// The frame, unchanged.
    pub frame: Box<Frame>,
    /// Why.
    pub because: RejectedBecause,
}

/// Why an inbox did not take a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectedBecause {
    /// The queue of its class is at its bound.
    Full {
        /// The bound, in frames.
        bound: usize,
    },
    /// Nobody reads any more.
    Closed,
}

impl InboxSender {
    /// Puts `frame` into the queue of its class.
    ///
    /// # Errors
    /// Gives the frame back when the queue is full or the inbox is gone.
    pub fn try_send(&self, frame: Frame) -> Result<(), Rejected> {
        let queue = self.queue(frame.class);
        queue.try_send(frame).map_err(|e| match e {
            mpsc::error::TrySendError::Full(frame) => {
                Rejected { frame: Box::new(frame), because: RejectedBecause::Full { bound: queue.max_capacity() } }
            }
            mpsc::error::TrySendError::Closed(frame) => {
                Rejected { frame: Box::new(frame), because: RejectedBecause::Closed }
            }
        })
    }

    /// What to tell the sender of a frame that found the inbox full.
    pub fn busy_reply(&self, frame: &Frame) -> Option<Bytes> {
        self.busy_reply.as_ref().and_then(|make| make(frame))
    }

    /// Frames waiting in the queue of `class`.
    pub fn queued(&self, class: Class) -> usize {
        let queue = self.queue(class);
        queue.max_capacity() - queue.capacity()
    }

    /// Whether the reading end is gone.
    pub fn is_closed(&self) -> bool {
        self.normal.is_closed()
    }

    /// Resolves when the reading end is gone.
    pub async fn closed(&self) {
        self.normal.closed().await;
    }

    fn queue(&self, class: Class) -> &mpsc::Sender<Frame> {
        match class {
            Class::Urgent => &self.urgent,
            Class::Normal => &self.normal,
        }
    }
}

impl std::fmt::Debug for InboxSender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let queued = Class::ALL.map(|class| self.queued(class));
        f.debug_struct("InboxSender").field("queued", &queued).finish_non_exhaustive()
    }
}

impl Rejected {
    /// The rejection as the sender's error.
    pub fn into_error(self) -> BusError {
        let queue = match self.frame.class {
            Class::Urgent => "urgent inbox",
            Class::Normal => "inbox",
        };
        match self.because {
            RejectedBecause::Full { bound } => BusError::Busy { subject: self.frame.subject, queue, bound },
            RejectedBecause::Closed => BusError::NoResponders { subject: self.frame.subject },
        }
    }
}

/// The end that an actor reads.
#[derive(Debug)]
pub struct Inbox {
    urgent: mpsc::Receiver<Frame>,
    normal: mpsc::Receiver<Frame>,
}

impl Inbox {
    /// The next frame, urgent ones first; `None` once every sender is gone and both queues are empty.
    pub async fn recv(&mut self) -> Option<Frame> {
        poll_fn(|cx| self.poll_recv(cx)).await
    }

    /// [`Inbox::recv`] for hand-written futures and streams.
    pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<Frame>> {
        match self.urgent.poll_recv(cx) {
            Poll::Ready(Some(frame)) => Poll::Ready(Some(frame)),
            Poll::Ready(None) => self.normal.poll_recv(cx),
            Poll::Pending => match self.normal.poll_recv(cx) {
                Poll::Ready(Some(frame)) => Poll::Ready(Some(frame)),
                // A sender holds both halves: the urgent half's end is about to wake this task.
                Poll::Ready(None) => Poll::Pending,
                Poll::Pending => Poll::Pending,
            },
        }
    }

    /// The next frame if one is there, urgent ones first.
    pub fn try_recv(&mut self) -> Option<Frame> {
        self.urgent.try_recv().or_else(|_| self.normal.try_recv()).ok()
    }
}
