//! The bus over NATS: one connection for urgent frames and one for normal ones.
//!
//! The client library keeps requests for ten seconds after a loss and drops messages of a full subscription
//! silently, so requests are kept here: they end the moment their connection does, and drops are counted.
//! What was handed over in the instant before a loss may still be written after it: receivers see it late.
//!
//! Not here: delivery guarantees. There are none.

mod config;
mod delivery;
mod lane;
mod link;

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::watch;

use super::{
    Bus, BusCounters, BusError, Class, Connection, Count, Counters, Frame, InboxSender, Served, check_subject,
};
pub use config::{NatsAuth, NatsConfig, NatsTls, masked};
use lane::Lane;
use link::Link;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum NatsError {
    /// Not an address.
    #[error("not the address of a NATS server: {url:?}")]
    Address {
        /// What was given, without credentials.
        url: String,
        /// Why not.
        source: std::io::Error,
    },
    /// No server of the list took the connection.
    #[error("cannot connect to NATS")]
    Connect {
        /// The last attempt's error.
        source: async_nats::ConnectError,
    },
    /// The connection ended while it was being set up.
    #[error("the connection to NATS ended at once")]
    Gone,
}

/// A bus over NATS. Dropping it ends both connections; served subjects end with their own values.
#[derive(Debug)]
pub struct NatsBus {
    urgent: Lane,
    normal: Lane,
    counters: Arc<Counters>,
    link: Arc<Link>,
    serve_deadline: Duration,
}

impl NatsBus {
    /// Connects both classes. Has to run inside a tokio runtime, which drives the connections from then on.
    ///
    /// # Errors
    /// No server can be reached within `connect_deadline_ms`, or it refuses the credentials.
    pub async fn connect(config: &NatsConfig) -> Result<Self, NatsError> {
        let (counters, link) = (Arc::new(Counters::default()), Arc::new(Link::new()));
        let urgent = Lane::connect(config, Class::Urgent, counters.clone(), link.clone()).await?;
        let normal = Lane::connect(config, Class::Normal, counters.clone(), link.clone()).await?;
        // The library reports the connection by an event; wait until it was handled.
        let mut state = link.watch();
        let up = state.wait_for(|state| *state == Connection::Connected);
        let deadline = Duration::from_millis(config.connect_deadline_ms);
        tokio::time::timeout(deadline, up).await.map_err(|_| NatsError::Gone)?.map_err(|_| NatsError::Gone)?;
        let serve_deadline = Duration::from_millis(config.serve_deadline_ms);
        Ok(Self { urgent, normal, counters, link, serve_deadline })
    }

    fn lane(&self, class: Class) -> &Lane {
        match class {
            Class::Urgent => &self.urgent,
            Class::Normal => &self.normal,
        }
    }

    fn counted<T>(&self, result: Result<T, BusError>) -> Result<T, BusError> {
        let count = match &result {
            Ok(_) | Err(BusError::BadSubject { .. } | BusError::Closed) => return result,
            Err(BusError::TooLarge { .. }) => Count::TooLarge,
            Err(BusError::NoResponders { .. }) => Count::NoResponders,
            Err(BusError::Disconnected { .. }) => Count::Disconnected,
            Err(BusError::TimedOut { .. }) => Count::TimedOut,
            Err(BusError::Busy { .. }) => Count::BusySending,
        };
        self.counters.bump(count);
        result
    }

    async fn serve(&self, subject: &str, inbox: InboxSender) -> Result<Served, BusError> {
        let subject: Arc<str> = subject.into();
        check_subject(&subject)?;
        if self.link.is_closed() {
            return Err(BusError::Closed);
        }
        let urgent = self.urgent.serve(&subject, inbox.clone(), self.serve_deadline).await?;
        let normal = self.normal.serve(&subject, inbox, self.serve_deadline).await?;
        Ok(Served::new(subject, move || drop((urgent, normal))))
    }
}

impl Bus for NatsBus {
    fn send(&self, frame: Frame) -> Result<(), BusError> {
        self.counted(self.lane(frame.class).send(frame))
    }

    fn request(&self, frame: Frame, deadline: Duration) -> BoxFuture<'_, Result<Frame, BusError>> {
        async move { self.counted(self.lane(frame.class).request(frame, deadline).await) }.boxed()
    }

    fn serve(&self, subject: &str, inbox: InboxSender) -> BoxFuture<'_, Result<Served, BusError>> {
        let subject = subject.to_owned();
        async move { self.serve(&subject, inbox).await }.boxed()
    }

    fn payload_bytes_max(&self) -> usize {
        self.normal.client.max_payload()
    }

    fn connection(&self) -> watch::Receiver<Connection> {
        self.link.watch()
    }

    fn counters(&self) -> BusCounters {
        self.counters.snapshot()
    }

    fn close(&self) {
        if self.link.close() {
            self.urgent.close();
            self.normal.close();
        }
    }
}
