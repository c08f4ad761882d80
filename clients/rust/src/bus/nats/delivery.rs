//! Serving a subject: what arrives goes into an inbox, and readiness is a message to oneself that came back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::client::traits::Publisher;
use async_nats::message::OutboundMessage;
use async_nats::{Client, Message, Subject, Subscriber};
use bytes::Bytes;
use futures_util::future::{Either, select};
use futures_util::{FutureExt, StreamExt};
use tokio::sync::oneshot;

use super::lane::{Lane, Task, from_wire, wire_subject};
use super::link::Line;
use crate::bus::{BusError, Connection, Count, Frame, InboxSender, RejectedBecause};

/// Reply subject of a probe. Nobody listens there; it only tells a probe from a message.
const PROBE_PREFIX: &str = "_PROBE.";
/// The first wait for a probe; it doubles with each attempt.
const PROBE_WAIT_MIN: Duration = Duration::from_millis(50);

/// Delivers one class of one subject.
struct Delivery {
    subject: Arc<str>,
    inbox: InboxSender,
    line: Arc<Line>,
    client: Client,
    probe: Subject,
    came_back: Option<oneshot::Sender<()>>,
}

/// Whether the delivery goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    GoOn,
    Stop,
}

impl Lane {
    /// Subscribes to `subject` in the class of this connection and returns once a message to itself came back.
    pub(super) async fn serve(
        &self,
        subject: &Arc<str>,
        inbox: InboxSender,
        deadline: Duration,
    ) -> Result<Task, BusError> {
        let disconnected = || BusError::Disconnected { subject: subject.clone() };
        if !self.line.is_up(&self.client) {
            return Err(disconnected());
        }
        let wire = wire_subject(subject, self.line.class);
        let messages = self.client.subscribe(wire.clone()).await.map_err(|_| disconnected())?;
        let (came_back, mut back) = oneshot::channel();
        let probe = Subject::from(format!("{PROBE_PREFIX}{}", uuid::Uuid::new_v4().simple()));
        let delivery = Delivery {
            subject: subject.clone(),
            inbox,
            line: self.line.clone(),
            client: self.client.clone(),
            probe: probe.clone(),
            came_back: Some(came_back),
        };
        let task = Task::spawn(delivery.run(messages));
        let (started, mut wait) = (Instant::now(), PROBE_WAIT_MIN);
        while started.elapsed() < deadline {
            if !self.line.is_up(&self.client) {
                return Err(disconnected());
            }
            publish(&self.client, wire.clone(), Some(probe.clone()), Bytes::new());
            match tokio::time::timeout(wait, &mut back).await {
                Ok(Ok(())) => return Ok(task),
                // The delivery ended: the inbox or the bus is gone.
                Ok(Err(_)) => return Err(BusError::Closed),
                Err(_) => wait *= 2,
            }
        }
        Err(BusError::TimedOut { subject: subject.clone(), after_ms: started.elapsed().as_millis() as u64 })
    }
}

impl Delivery {
    async fn run(mut self, mut messages: Subscriber) {
        let (inbox, mut connection) = (self.inbox.clone(), self.line.link.watch());
        let stop = async {
            let closed = connection.wait_for(|state| *state == Connection::Closed).map(drop);
            select(std::pin::pin!(closed), std::pin::pin!(inbox.closed())).await;
        };
        let mut stop = std::pin::pin!(stop);
        while let Either::Left((Some(message), _)) = select(messages.next(), &mut stop).await {
            if self.deliver(message) == Next::Stop {
                break;
            }
        }
    }

    fn deliver(&mut self, message: Message) -> Next {
        let counters = &self.line.counters;
        if let Some(reply) = message.reply.as_deref().filter(|reply| reply.starts_with(PROBE_PREFIX)) {
            if reply == self.probe.as_str()
                && let Some(came_back) = self.came_back.take()
            {
                // An error means that nobody waits any more.
                came_back.send(()).ok();
            }
            return Next::GoOn;
        }
        if message.status.is_some() {
            // The broker's word that a frame with this subject to reply to found nobody; it does not say which.
            counters.bump(Count::Unrouted);
            return Next::GoOn;
        }
        let frame = Frame {
            subject: self.subject.clone(),
            reply_to: message.reply.as_deref().map(Arc::from),
            class: self.line.class,
            verbatim: false,
            headers: from_wire(message.headers.as_ref(), counters),
            payload: message.payload,
        };
        let Err(rejected) = self.inbox.try_send(frame) else {
            counters.bump(Count::Received);
            return Next::GoOn;
        };
        match rejected.because {
            RejectedBecause::Closed => Next::Stop,
            RejectedBecause::Full { .. } => {
                counters.bump(Count::BusyInbox);
                let answer = message.reply.zip(self.inbox.busy_reply(&rejected.frame));
                if let Some((subject, payload)) = answer {
                    publish(&self.client, subject, None, payload);
                }
                Next::GoOn
            }
        }
    }
}

/// Publishes if there is room: a probe is sent again, and a requester without a busy answer has its deadline.
fn publish(client: &Client, subject: Subject, reply: Option<Subject>, payload: Bytes) {
    let message = OutboundMessage { subject, reply, payload, headers: None };
    tokio::task::unconstrained(client.publish_message(message)).now_or_never();
}
