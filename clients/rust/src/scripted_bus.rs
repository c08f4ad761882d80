//! A bus for tests: a closure is the daemon. It answers at once, stays silent until the deadline, or is not there.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use hicached_actors::protocol::{Answer, Bin, Envelope, Incarnation, OpId, Request, VERSION};
use tokio::sync::watch;

use crate::bus::{Bus, BusCounters, BusError, Class, Connection, Frame, InboxSender, Served};

/// What the daemon does with a request.
pub(crate) enum Reaction {
    /// Answers.
    Answer(Box<Answer>),
    /// Takes it and says nothing.
    Silence,
    /// Nobody serves the subject.
    Nobody,
}

impl<T: Into<Answer>> From<T> for Reaction {
    fn from(answer: T) -> Self {
        Self::Answer(Box::new(answer.into()))
    }
}

/// A request as it came.
pub(crate) struct Came {
    pub(crate) subject: String,
    pub(crate) class: Class,
    pub(crate) envelope: Envelope,
    /// `None` for a kind that is no request.
    pub(crate) request: Option<Request>,
}

type Daemon = Box<dyn FnMut(Came) -> Reaction + Send>;

/// The bus. Frames that ask for no answer reach the daemon too.
pub(crate) struct ScriptedBus {
    daemon: Mutex<Daemon>,
    connection: watch::Sender<Connection>,
    pub(crate) limit: usize,
}

impl ScriptedBus {
    pub(crate) fn new(daemon: impl FnMut(Came) -> Reaction + Send + 'static) -> Arc<Self> {
        Self::with_limit(1_048_576, daemon)
    }

    pub(crate) fn with_limit(limit: usize, daemon: impl FnMut(Came) -> Reaction + Send + 'static) -> Arc<Self> {
        let connection = watch::Sender::new(Connection::Connected);
        Arc::new(Self { daemon: Mutex::new(Box::new(daemon)), connection, limit })
    }

    fn deliver(&self, frame: &Frame) -> (OpId, Reaction) {
        let envelope = Envelope::decode(&frame.payload).expect("a client sends envelopes");
        let request = Request::decode_body(&envelope.kind, &envelope.body.0).map(|body| body.expect("a sound body"));
        let (op, subject, class) = (envelope.op, frame.subject.to_string(), frame.class);
        let came = Came { subject, class, envelope, request };
        (op, self.daemon.lock().expect("no test fails inside it")(came))
    }
}

impl Bus for ScriptedBus {
    fn send(&self, frame: Frame) -> Result<(), BusError> {
        self.deliver(&frame);
        Ok(())
    }

    fn request(&self, frame: Frame, deadline: Duration) -> BoxFuture<'_, Result<Frame, BusError>> {
        async move {
            let (op, reaction) = self.deliver(&frame);
            match reaction {
                Reaction::Answer(answer) => {
                    let envelope = Envelope {
                        version: VERSION,
                        kind: answer.code().to_owned(),
                        id: OpId::default(),
                        op,
                        sender: "index".to_owned(),
                        incarnation: Incarnation([9; 16]),
                        control: Incarnation([9; 16]),
                        seq: 0,
                        urgent: false,
                        remaining_ms: 0,
                        body: Bin(answer.encode_body()),
                    };
                    Ok(Frame::new(frame.subject, envelope.encode(self.limit).expect("a short answer")))
                }
                Reaction::Silence => {
                    tokio::time::sleep(deadline).await;
                    Err(BusError::TimedOut { subject: frame.subject, after_ms: deadline.as_millis() as u64 })
                }
                Reaction::Nobody => Err(BusError::NoResponders { subject: frame.subject }),
            }
        }
        .boxed()
    }

    fn serve(&self, subject: &str, _: InboxSender) -> BoxFuture<'_, Result<Served, BusError>> {
        let subject = Arc::from(subject);
        async move { Err(BusError::BadSubject { subject }) }.boxed()
    }

    fn payload_bytes_max(&self) -> usize {
        self.limit
    }

    fn connection(&self) -> watch::Receiver<Connection> {
        self.connection.subscribe()
    }

    fn counters(&self) -> BusCounters {
        BusCounters::default()
    }

    fn close(&self) {}
}
