//! From parcels to frames: whoever a machine writes to becomes a subject, and failures become counts.
//!
//! A frame that was not sent is never sent again from here: requests are repeated by the machine that made them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hicached_actors::host::{Dest, Parcel};
use hicached_actors::protocol::{Address, Rank, events_subject};

use crate::bus::{Bus, BusError, Class, Frame, Headers};
use crate::config::CONTROL;
use crate::telemetry::Telemetry;

/// The way out of a group's actors. Shared by all actors of one process.
pub struct Post {
    bus: Arc<dyn Bus>,
    subjects: BTreeMap<Address, Arc<str>>,
    events: Arc<str>,
    telemetry: Telemetry,
    busy: AtomicU64,
    disconnected: AtomicU64,
    refused: AtomicU64,
}

/// Frames that were not sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PostFigures {
    /// A queue was full.
    pub busy: u64,
    /// The connection was down, or the bus closed.
    pub disconnected: u64,
    /// Too large, or no subject.
    pub refused: u64,
}

impl Post {
    /// The way out of the group `name` of `cp_size` ranks onto `bus`.
    pub fn new(bus: Arc<dyn Bus>, name: &str, cp_size: u8) -> Self {
        let ranks = (0..cp_size).map(|rank| Address::Rank(Rank(rank)));
        let subjects = CONTROL.into_iter().chain(ranks).map(|to| (to, to.subject(name).into())).collect();
        Self {
            bus,
            subjects,
            events: events_subject(name).into(),
            telemetry: Telemetry::default(),
            busy: AtomicU64::new(0),
            disconnected: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    /// The same, with the recorder of this process.
    #[must_use]
    pub fn traced(self, telemetry: Telemetry) -> Self {
        Self { telemetry, ..self }
    }

    /// The recorder of this process.
    pub fn telemetry(&self) -> &Telemetry {
        &self.telemetry
    }

    /// The bus below.
    pub fn bus(&self) -> &Arc<dyn Bus> {
        &self.bus
    }

    /// Every member of the group.
    pub fn members(&self) -> impl Iterator<Item = Address> {
        self.subjects.keys().copied()
    }

    /// The subject of a member; `None` outside the group.
    pub fn subject(&self, of: Address) -> Option<&Arc<str>> {
        self.subjects.get(&of)
    }

    /// Sends one parcel or counts why not.
    pub fn send(&self, parcel: Parcel) {
        let subject = match parcel.to {
            Dest::Actor(address) => self.subjects.get(&address).cloned(),
            Dest::Peer(group, address) => Some(address.subject(&group).into()),
            Dest::Reply(to) => Some(to.0),
            Dest::Events => Some(self.events.clone()),
        };
        let Some(subject) = subject else {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let mut frame = Frame::new(subject, parcel.bytes);
        frame.class = if parcel.urgent { Class::Urgent } else { Class::Normal };
        if let Some(trace) = parcel.trace {
            frame.headers = Headers::of_trace(&trace);
        }
        if let Err(error) = self.bus.send(frame) {
            self.count(&error);
        }
    }

    /// What was not sent so far.
    pub fn figures(&self) -> PostFigures {
        PostFigures {
            busy: self.busy.load(Ordering::Relaxed),
            disconnected: self.disconnected.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
        }
    }

    /// Names and values of what was not sent and of what became of the spans of this process, in a fixed order.
    pub fn named_figures(&self) -> Vec<(&'static str, u64)> {
        let PostFigures { busy, disconnected, refused } = self.figures();
        let unsent = [("post.busy", busy), ("post.disconnected", disconnected), ("post.refused", refused)];
        unsent.into_iter().chain(self.telemetry.figures().named()).collect()
    }

    fn count(&self, error: &BusError) {
        let count = match error {
            BusError::Busy { .. } => &self.busy,
            BusError::Disconnected { .. }
            | BusError::NoResponders { .. }
            | BusError::TimedOut { .. }
            | BusError::Closed => &self.disconnected,
            BusError::TooLarge { .. } | BusError::BadSubject { .. } => &self.refused,
        };
        count.fetch_add(1, Ordering::Relaxed);
        tracing::debug!(%error, "not sent");
    }
}

impl std::fmt::Debug for Post {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Post").field("figures", &self.figures()).finish_non_exhaustive()
    }
}
