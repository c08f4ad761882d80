//! One connection: it carries the frames of one class and the answers to the requests of that class.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::client::PublishErrorKind;
use async_nats::client::traits::Publisher;
use async_nats::message::OutboundMessage;
use async_nats::{Client, ConnectErrorKind, HeaderMap, StatusCode, Subject, Subscriber};
use futures_util::{FutureExt, StreamExt};
use tokio::task::AbortHandle;

use super::config::Backoff;
use super::link::{Line, Link};
use super::{NatsConfig, NatsError, masked};
use crate::bus::{BusError, Class, Count, Counters, Frame, Headers, Lost, Token};

/// Appended to the subject of an urgent frame.
pub(super) const URGENT_SUFFIX: &str = ".urgent";

/// One connection with its reply inbox.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) line: Arc<Line>,
    pub(super) client: Client,
    /// Replies come to this prefix and one token.
    reply_prefix: String,
    send_queue_frames_max: usize,
    _replies: Task,
}

/// A task that ends with its owner.
#[derive(Debug)]
pub(super) struct Task(AbortHandle);

impl Task {
    pub(super) fn spawn(work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(work).abort_handle())
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Lane {
    /// Connects and listens for replies. Returns once the connection is up.
    pub(super) async fn connect(
        config: &NatsConfig,
        class: Class,
        counters: Arc<Counters>,
        link: Arc<Link>,
    ) -> Result<Self, NatsError> {
        let line = Arc::new(Line::new(class, config.requests_max, counters, link));
        let id = uuid::Uuid::new_v4();
        let client = connect(config, &line, id.as_u64_pair().1).await?;
        let reply_prefix = format!("_INBOX.{}.", id.simple());
        let replies = client.subscribe(format!("{reply_prefix}*")).await.map_err(|_| NatsError::Gone)?;
        let replies = Task::spawn(read_replies(line.clone(), replies, reply_prefix.len()));
        let send_queue_frames_max = config.send_queue_frames_max;
        Ok(Self { line, client, reply_prefix, send_queue_frames_max, _replies: replies })
    }

    /// Sends without waiting, after every check.
    pub(super) fn send(&self, frame: Frame) -> Result<(), BusError> {
        self.check(&frame)?;
        let reply_to = frame.reply_to.as_deref().map(Subject::from);
        self.publish(frame, reply_to)
    }

    /// Sends and waits for the answer.
    pub(super) async fn request(&self, frame: Frame, deadline: Duration) -> Result<Frame, BusError> {
        self.check(&frame)?;
        self.line.counters.bump(Count::Requests);
        let (subject, class) = (frame.subject.clone(), frame.class);
        let Some(mut waiting) = self.line.pending.insert() else {
            return Err(BusError::Busy { subject, queue: "requests", bound: self.line.pending.bound() });
        };
        let mut reply_to = String::with_capacity(self.reply_prefix.len() + Token::DIGITS);
        reply_to.push_str(&self.reply_prefix);
        waiting.token.write(&mut reply_to);
        self.publish(frame, Some(reply_to.into()))?;
        match tokio::time::timeout(deadline, &mut waiting.answer).await {
            Ok(Ok(Ok((headers, payload)))) => {
                self.line.counters.bump(Count::Replies);
                Ok(Frame { subject, reply_to: None, class, verbatim: false, headers, payload })
            }
            Ok(Ok(Err(Lost::NoResponders))) => Err(BusError::NoResponders { subject }),
            Ok(Ok(Err(Lost::Disconnected))) => Err(BusError::Disconnected { subject }),
            Ok(Ok(Err(Lost::Closed)) | Err(_)) => Err(BusError::Closed),
            Err(_) => Err(BusError::TimedOut { subject, after_ms: deadline.as_millis() as u64 }),
        }
    }

    /// Ends open requests, and the connection once what was handed over is written.
    pub(super) fn close(&self) {
        self.line.pending.fail_all(Lost::Closed);
        // A full queue or a lost connection means that there is nothing left to write in order.
        tokio::task::unconstrained(self.client.drain()).now_or_never();
    }

    fn check(&self, frame: &Frame) -> Result<(), BusError> {
        if self.line.link.is_closed() {
            return Err(BusError::Closed);
        }
        frame.check(self.client.max_payload())
    }

    fn publish(&self, frame: Frame, reply: Option<Subject>) -> Result<(), BusError> {
        let Frame { subject: asked, class, verbatim, headers, payload, .. } = frame;
        // Both are asked after a request was entered as waiting: a loss or a close after this ends it.
        if self.line.link.is_closed() {
            return Err(BusError::Closed);
        }
        if !self.line.is_up(&self.client) {
            return Err(BusError::Disconnected { subject: asked });
        }
        let subject = wire_subject(&asked, if verbatim { Class::Normal } else { class });
        let bytes = headers.wire_bytes() + payload.len();
        let message = OutboundMessage { subject, reply, payload, headers: to_wire(&headers) };
        // Polled once: a place in the queue is there or not. Unconstrained, because a task that used up its budget
        // would find no place although there is one.
        match tokio::task::unconstrained(self.client.publish_message(message)).now_or_never() {
            Some(Ok(())) => {
                self.line.counters.bump(Count::Sent);
                Ok(())
            }
            Some(Err(error)) => Err(match error.kind() {
                PublishErrorKind::MaxPayloadExceeded => BusError::TooLarge { bytes, limit: self.client.max_payload() },
                PublishErrorKind::InvalidSubject => BusError::BadSubject { subject: asked },
                PublishErrorKind::Send => BusError::Closed,
            }),
            None => Err(BusError::Busy { subject: asked, queue: "connection", bound: self.send_queue_frames_max }),
        }
    }
}

/// Tries until the deadline: the daemon may start before its broker. Credentials that are refused are not tried again.
async fn connect(config: &NatsConfig, line: &Arc<Line>, seed: u64) -> Result<Client, NatsError> {
    let addresses = config
        .urls
        .iter()
        .map(|url| url.parse().map_err(|source| NatsError::Address { url: masked(url), source }))
        .collect::<Result<Vec<async_nats::ServerAddr>, _>>()?;
    let backoff = Arc::new(Backoff::new(config.reconnect_delay_ms_max, seed));
    let deadline = Instant::now() + Duration::from_millis(config.connect_deadline_ms);
    let mut failed_attempts = 0;
    loop {
        let (events, waits, counters) = (line.clone(), backoff.clone(), line.counters.clone());
        let options = config
            .options(line.class)
            .event_callback(move |event| {
                events.on_event(&event);
                std::future::ready(())
            })
            .reconnect_delay_callback(move |attempt| {
                counters.bump(Count::ConnectAttempts);
                waits.delay(attempt)
            });
        let source = match options.connect(&addresses[..]).await {
            Ok(client) => return Ok(client),
            Err(source) => source,
        };
        failed_attempts += 1;
        let wait = backoff.delay(failed_attempts + 1);
        let refused = match source.kind() {
            ConnectErrorKind::TimedOut | ConnectErrorKind::Io | ConnectErrorKind::Dns => false,
            ConnectErrorKind::ServerParse
            | ConnectErrorKind::Authentication
            | ConnectErrorKind::AuthorizationViolation
            | ConnectErrorKind::Tls
            | ConnectErrorKind::MaxReconnects => true,
        };
        if refused || Instant::now() + wait > deadline {
            return Err(NatsError::Connect { source });
        }
        tokio::time::sleep(wait).await;
    }
}

/// The subject on the wire of a frame to `subject` of `class`.
pub(super) fn wire_subject(subject: &str, class: Class) -> Subject {
    match class {
        Class::Urgent => {
            let mut urgent = String::with_capacity(subject.len() + URGENT_SUFFIX.len());
            urgent.push_str(subject);
            urgent.push_str(URGENT_SUFFIX);
            urgent.into()
        }
        Class::Normal => subject.into(),
    }
}

fn to_wire(headers: &Headers) -> Option<HeaderMap> {
    if headers.is_empty() {
        return None;
    }
    let mut map = HeaderMap::new();
    for (name, value) in headers.iter() {
        map.append(name, value);
    }
    Some(map)
}

/// Takes the headers that fit; trace context that does not fit is a missing one, no reason to lose the message.
pub(super) fn from_wire(map: Option<&HeaderMap>, counters: &Counters) -> Headers {
    let mut headers = Headers::default();
    for (name, values) in map.into_iter().flat_map(HeaderMap::iter) {
        for value in values {
            if headers.push(AsRef::<str>::as_ref(name).to_owned(), value.as_str()).is_err() {
                counters.bump(Count::HeadersDropped);
            }
        }
    }
    headers
}

async fn read_replies(line: Arc<Line>, mut replies: Subscriber, prefix_bytes: usize) {
    while let Some(message) = replies.next().await {
        let answer = match message.status {
            Some(StatusCode::NO_RESPONDERS) => Err(Lost::NoResponders),
            Some(_) | None => Ok((from_wire(message.headers.as_ref(), &line.counters), message.payload)),
        };
        let token = message.subject.get(prefix_bytes..).and_then(Token::read);
        if !token.is_some_and(|token| line.pending.resolve(token, answer)) {
            line.counters.bump(Count::LateReplies);
        }
    }
}
