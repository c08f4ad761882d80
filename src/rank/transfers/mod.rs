//! A rank's part in handovers: grants for what lands in its engine's pool, pushes of what leaves it.
//!
//! A grant claims its pages for writing until nothing can land, a push claims its pages for reading until nothing is
//! sent: no copy of this rank comes between. Messages are answered from the state of the attempt they name, and an
//! attempt that was revoked or stopped begins nothing any more.
//!
//! Not here: bytes (`wire`), which pages and when (sender, receiver).

mod landing;
mod pushing;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use hicached_actors::machine::Trace;
use hicached_actors::protocol::{OpId, Pushed, Refusal, Time, Unsupported, WrongState};

use super::claims::Claim;
use super::copies::Notify;
use super::machine::RankMachine;
use crate::wire::{Backend, Event, Events, Grant, Landing, LandingFigures, Launch, Name, PushKey, StartError};

/// The data plane of a rank and what runs on it.
#[derive(Debug)]
pub(super) struct Wire {
    landing: Box<dyn Landing>,
    launch: Arc<dyn Launch>,
    inbox: Receiver<Event>,
    grants: BTreeMap<Name, Granted>,
    pushes: BTreeMap<PushKey, Pushing>,
    /// Ends of pushes, for repeats.
    pushed: Newest<PushKey, Pushed>,
    /// Attempts that may land nothing any more, by transfer: this one and those before it.
    revoked: Newest<OpId, u32>,
    /// Attempts that may send nothing any more, by transfer.
    stopped: Newest<OpId, u32>,
    /// Attempts whose end somebody waits for.
    stopping: BTreeMap<Name, Trace>,
    counts: Counts,
}

/// Pages that bytes may land in.
#[derive(Debug)]
struct Granted {
    grant: Grant,
    positions: Vec<u32>,
    pages: Vec<u32>,
    components: Vec<String>,
    claim: Claim,
    state: GrantState,
}

/// ```text
/// Open -> Revoking -> (gone)
/// ```
#[derive(Debug)]
enum GrantState {
    /// Bytes may land.
    Open,
    /// Something may still be written; who asked is told when it is not. Nobody is, when another control incarnation
    /// has taken the rank.
    Revoking { asked: Option<Trace> },
}

/// Pages that are sent.
#[derive(Debug)]
struct Pushing {
    claim: Claim,
    trace: Trace,
    /// Of an older control incarnation: nobody hears of its end.
    old: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    grants: u64,
    pushes: u64,
    pushes_failed: u64,
    bytes: u64,
    runs: u64,
    descriptors: u64,
}

impl Wire {
    /// Starts both halves on `backend`; `notify` is called when something has ended.
    ///
    /// # Errors
    /// What the backend cannot start with.
    pub(super) fn start(backend: &dyn Backend, notify: Notify) -> Result<Self, StartError> {
        let (to, inbox) = channel();
        let events = Events::new(to, notify);
        Ok(Self {
            landing: backend.landing(events.clone())?,
            launch: backend.launch(events)?.into(),
            inbox,
            grants: BTreeMap::new(),
            pushes: BTreeMap::new(),
            pushed: Newest::default(),
            revoked: Newest::default(),
            stopped: Newest::default(),
            stopping: BTreeMap::new(),
            counts: Counts::default(),
        })
    }

    /// Whether nothing lands, nothing is sent and nothing of either is claimed.
    pub(super) fn is_idle(&self) -> bool {
        self.grants.is_empty() && self.pushes.is_empty()
    }

    /// Grants and pushes of older control incarnations that have not ended.
    pub(super) fn old(&self) -> usize {
        let forgotten = |granted: &&Granted| matches!(granted.state, GrantState::Revoking { asked: None });
        self.grants.values().filter(forgotten).count() + self.pushes.values().filter(|push| push.old).count()
    }

    /// Lets nothing land and nothing leave any more.
    pub(super) fn stop_all(&mut self) {
        self.landing.revoke_all();
        self.launch.stop_all();
        for (name, granted) in &mut self.grants {
            self.revoked.put_highest(name.transfer, name.attempt);
            if let GrantState::Open = granted.state {
                granted.state = GrantState::Revoking { asked: None };
            }
        }
    }

    /// Another control incarnation begins: nobody hears of what the old one ordered.
    pub(super) fn forget_control(&mut self) {
        self.grants.values_mut().for_each(|granted| granted.state = GrantState::Revoking { asked: None });
        self.pushes.values_mut().for_each(|push| push.old = true);
        (self.pushed, self.revoked, self.stopped) = (Newest::default(), Newest::default(), Newest::default());
        self.stopping.clear();
    }

    /// Named figures.
    pub(super) fn figures(&self) -> Vec<(&'static str, u64)> {
        let Counts { grants, pushes, pushes_failed, bytes, runs, descriptors } = self.counts;
        let landed: LandingFigures = self.landing.figures();
        vec![
            ("rank.grants", grants),
            ("rank.grants_open", self.grants.len() as u64),
            ("rank.landed_bytes", landed.bytes),
            ("rank.land_refused", landed.refused),
            ("rank.land_late", landed.late),
            ("rank.land_broken", landed.broken),
            ("rank.pushes", pushes),
            ("rank.pushes_open", self.pushes.len() as u64),
            ("rank.pushes_failed", pushes_failed),
            ("rank.pushed_bytes", bytes),
            ("rank.pushed_runs", runs),
            ("rank.pushed_descriptors", descriptors),
        ]
    }
}

impl RankMachine {
    /// Takes in what has ended on the wire.
    pub(super) fn collect_wire(&mut self, now: Time, out: &mut Vec<hicached_actors::machine::Effect>) {
        let Some(wire) = &self.wire else { return };
        let (events, had_old): (Vec<Event>, bool) = (wire.inbox.try_iter().collect(), wire.old() > 0);
        for event in events {
            match event {
                Event::Revoked(name) => self.grant_gone(name, out),
                Event::Pushed(key, end, figures) => self.push_ended(key, end, figures, out),
                Event::Stopped(name) => self.push_stopped(name, out),
            }
        }
        if had_old && self.old_ops() == 0 {
            self.hello(now, OpId::default(), out);
        }
    }

    fn wire(&mut self) -> Result<&mut Wire, Refusal> {
        self.wire.as_mut().ok_or_else(|| {
            let (field, limit) = ("transfer.backend".to_owned(), "tcp, shm or nixl".to_owned());
            Unsupported { field, value: "none".to_owned(), limit }.into()
        })
    }
}

/// The newest entries by name, at most [`NEWEST_MAX`].
#[derive(Debug)]
struct Newest<K, V> {
    all: BTreeMap<K, V>,
    order: VecDeque<K>,
}

impl<K, V> Default for Newest<K, V> {
    fn default() -> Self {
        Self { all: BTreeMap::new(), order: VecDeque::new() }
    }
}

impl<K: Copy + Ord, V> Newest<K, V> {
    fn get(&self, key: K) -> Option<&V> {
        self.all.get(&key)
    }

    fn put(&mut self, key: K, value: V) {
        if self.all.insert(key, value).is_none() {
            self.order.push_back(key);
        }
        if self.order.len() > NEWEST_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.all.remove(&oldest);
        }
    }
}

impl Newest<OpId, u32> {
    fn put_highest(&mut self, transfer: OpId, attempt: u32) {
        let highest = self.get(transfer).copied().unwrap_or(0).max(attempt);
        self.put(transfer, highest);
    }

    /// Whether this attempt, or a later one, is in it.
    fn covers(&self, name: Name) -> bool {
        self.get(name.transfer).is_some_and(|highest| name.attempt <= *highest)
    }
}

fn over(name: Name, how: &str) -> Refusal {
    WrongState::new(name.transfer, &format!("attempt {} {how}", name.attempt)).into()
}

/// Refuses positions that do not ascend.
fn ascending(positions: &[u32]) -> Result<(), Refusal> {
    match positions.windows(2).find(|pair| pair[0] >= pair[1]) {
        Some(pair) => {
            let limit = format!("above {}, each position once and in order", pair[0]);
            Err(hicached_actors::protocol::Malformed::new("positions", pair[1], limit).into())
        }
        None => Ok(()),
    }
}

/// Longer than anything of an ended attempt is late.
const NEWEST_MAX: usize = 4_096;
