//! The data plane of handovers: bytes of pages from the ranks of a prefill group into the pool of a decode rank.
//!
//! A [`Backend`] has two halves. The receiving rank owns a [`Landing`], the sending rank a [`Launch`]; what they say
//! to whoever drives them comes as an [`Event`] through a channel, and a bell says that one waits.
//!
//! How a receiving rank uses it (`accept`, `report`, `revoke` of `actors::protocol`):
//! - [`Landing::accept`] with the positions of an attempt, their physical pages and the mapped pool gives a [`Grant`]:
//!   its endpoint and secret go into `accepting`. The same spec again gives the same grant; another one of the same
//!   name is refused.
//! - [`Landing::report`] says which rank's bytes stand at each position, [`NOBODY`] where a layer of a component is
//!   missing, and what was counted; `None` for a name that has no grant.
//! - [`Landing::revoke`] returns at once. [`Event::Revoked`] follows when nothing of the grant is being written and
//!   nothing of it will be: only then may its pages be used again. It also follows for a name that is not known.
//! - Before a rank attaches another engine or is adopted by another control incarnation, it calls
//!   [`Landing::revoke_all`] and [`Launch::stop_all`] and waits until [`Landing::is_still`] and [`Launch::is_still`].
//!
//! How a sending rank uses it (`push`, `stop_push`):
//! - [`Launch::push`] takes a [`PushOrder`]: one part, with the layers that are ready from the start (all of them for
//!   step 0). [`Launch::ready`] says which further layers are; they leave at once, while later ones are computed.
//! - [`Event::Pushed`] ends every push that was taken: complete when the landing has acknowledged every byte, failed
//!   with a cause, or stopped. Until it comes the pages are read.
//! - [`Launch::stop`] returns at once; [`Event::Stopped`] follows when nothing of the attempt is read or written by
//!   this rank. A push that comes later is a new one: whoever drives remembers what it has stopped.
//!
//! Bytes are paired by (component, layer) and position, never by place in a list: [`Buffers`] describes both sides.
//! Invariants: no byte is written that was not checked against a live grant first; a position lands once in each
//! buffer; writers enter and leave a grant around each write, so that revoking waits for writes and never for peers.
//! Not here: which pages to send or take (sender, receiver), when layers are done (the words of a rank).

mod board;
mod claim;
mod grants;
mod job;
mod lane;
mod listening;
pub mod nixl;
mod peers;
mod piece;
mod pool;
mod pushes;
mod refusal;
pub mod shm;
pub mod tcp;

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;
use std::time::Duration;

use hicached_actors::protocol::{LandFigures, OpId, PushFigures, Rank, Refusal, Unsupported};

pub use hicached_actors::protocol::NOBODY;
pub use pool::{Buffer, Buffers, MissingBuffer, Pool, PoolFault};
pub use refusal::{Cause, FrameRefusal};

/// Moves bytes of pages between ranks.
pub trait Backend: Send + Sync + fmt::Debug {
    /// The name a configuration gives it.
    fn name(&self) -> &'static str;

    /// What it can promise.
    fn contract(&self) -> Contract;

    /// The receiving half of one rank. Dropping it ends its threads; grants that live then are revoked.
    ///
    /// # Errors
    /// What the operating system refused, with what was tried.
    fn landing(&self, events: Events) -> Result<Box<dyn Landing>, StartError>;

    /// The sending half of one rank. Dropping it ends its threads, and what it sends stays incomplete.
    ///
    /// # Errors
    /// As [`Self::landing`].
    fn launch(&self, events: Events) -> Result<Box<dyn Launch>, StartError>;
}

/// The receiving half.
pub trait Landing: Send + Sync + fmt::Debug {
    /// Lets bytes of the named positions land in the named pages.
    ///
    /// # Errors
    /// Lists that do not pair up, are out of order or leave the pool; a name that has another grant; too many grants.
    fn accept(&self, spec: GrantSpec) -> Result<Grant, Refusal>;

    /// What has landed so far; `None` without a grant of that name.
    fn report(&self, name: Name) -> Option<Report>;

    /// Lets nothing of the attempt land any more. `drained` says that its sender has stopped; otherwise this is a
    /// fence against a sender that may still write. [`Event::Revoked`] tells when it is done.
    fn revoke(&self, name: Name, drained: bool);

    /// Revokes every grant as a fence.
    fn revoke_all(&self);

    /// Whether no grant lives and none is being revoked.
    fn is_still(&self) -> bool;

    /// Counts of its life.
    fn figures(&self) -> LandingFigures;
}

/// The sending half.
pub trait Launch: Send + Sync + fmt::Debug {
    /// Sends one part, each layer once it is ready.
    ///
    /// # Errors
    /// Lists that do not pair up, a page twice or outside the pool, an endpoint of another backend, a push of this
    /// key that runs, or too many pushes or peers. Nothing is sent then, and no event comes.
    fn push(&self, order: PushOrder) -> Result<(), Refusal>;

    /// Layers before these are complete; a push that has ended ignores it.
    fn ready(&self, key: PushKey, layers: LayersReady);

    /// Ends every push of an attempt; [`Event::Stopped`] tells when nothing of them is read or written any more.
    fn stop(&self, name: Name);

    /// Ends every push.
    fn stop_all(&self);

    /// Whether no push runs.
    fn is_still(&self) -> bool;
}

/// What a backend promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contract {
    /// It takes explicit pairs of source page and destination slot.
    pub addressed: bool,
    /// The end of a push says that none of its bytes is on the way.
    pub drain_proof: bool,
    /// A grant can be revoked without the sender's help.
    pub fence: bool,
}

impl Contract {
    /// Whether a group of `cp_size` ranks may use the backend `name` of this contract.
    ///
    /// # Errors
    /// [`Refusal::Unsupported`] naming what it lacks: several ranks fill one request, so bytes that are paired by
    /// order land in a neighbour's page, and pages are free only when nothing can write them.
    pub fn accepts_group(self, name: &str, cp_size: u8) -> Result<(), Refusal> {
        let promises = [("addressed", self.addressed), ("drain_proof", self.drain_proof), ("fence", self.fence)];
        let lacks: Vec<&str> = promises.into_iter().filter(|(_, kept)| !kept).map(|(promise, _)| promise).collect();
        if cp_size <= 1 || lacks.is_empty() {
            return Ok(());
        }
        let limit =
            format!("cp_size 1, or a backend that is addressed and has drain_proof and fence ({cp_size} ranks)");
        let value = format!("{name} without {}", lacks.join(", "));
        Err(Unsupported { field: "transfer.backend".to_owned(), value, limit }.into())
    }
}

/// One attempt of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    /// The transfer.
    pub transfer: OpId,
    /// The attempt.
    pub attempt: u32,
}

/// What may land where.
#[derive(Clone, Debug)]
pub struct GrantSpec {
    /// The attempt.
    pub name: Name,
    /// Positions in ascending order.
    pub positions: Vec<u32>,
    /// The physical page of each.
    pub pages: Vec<u32>,
    /// The pool they stand in.
    pub pool: Arc<Pool>,
}

/// What a sender needs to land bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Where to, with the backend's name.
    pub endpoint: String,
    /// What every frame carries.
    pub secret: [u8; SECRET_BYTES],
}

/// What has landed of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The rank whose bytes stand at each position in every buffer, in the order of the positions; else [`NOBODY`].
    pub owners: Vec<u8>,
    /// The first position that is not complete, in the order of buffers.
    pub missing: Option<Missing>,
    /// What was counted.
    pub figures: LandFigures,
}

/// A place where bytes are missing, or came from two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The position.
    pub position: u32,
    /// The component.
    pub component: &'static str,
    /// The layer.
    pub layer: u32,
}

/// One part of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PushKey {
    /// The attempt.
    pub name: Name,
    /// The part.
    pub part: u32,
}

/// Layers that are complete, counted from the first of each track.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayersReady {
    /// Layers of `target.kv` and `target.index`.
    pub target: u32,
    /// Layers of `draft.kv` and `draft.index`.
    pub draft: u32,
}

impl LayersReady {
    /// Every layer.
    pub const ALL: Self = Self { target: u32::MAX, draft: u32::MAX };
}

/// Pages to send.
#[derive(Clone, Debug)]
pub struct PushOrder {
    /// Which part of which attempt.
    pub key: PushKey,
    /// The rank that sends.
    pub rank: Rank,
    /// Its pool.
    pub source: Arc<Pool>,
    /// Positions in ascending order.
    pub positions: Vec<u32>,
    /// The physical page of each here.
    pub pages: Vec<u32>,
    /// The physical page of each at the receiver.
    pub slots: Vec<u32>,
    /// The grant's endpoint.
    pub endpoint: String,
    /// The grant's secret.
    pub secret: [u8; SECRET_BYTES],
    /// How long it may take from its first byte, or from the moment all its layers are ready, whichever is later.
    pub deadline: Duration,
    /// Layers that are complete already.
    pub ready: LayersReady,
}

/// What a half tells whoever drives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Nothing of a grant is being written, and nothing of it will be.
    Revoked(Name),
    /// A push has ended: its pages are not read any more.
    Pushed(PushKey, PushEnd, PushFigures),
    /// Nothing of an attempt is read or written any more.
    Stopped(Name),
}

/// How a push has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PushEnd {
    /// The landing has acknowledged every byte.
    Complete,
    /// It did not complete.
    Failed(Cause),
    /// It was told to stop.
    Stopped,
}

/// Where events go: a channel, and a bell for whoever reads it. The bell must not block, nor call into a half.
#[derive(Clone)]
pub struct Events {
    to: Sender<Event>,
    bell: Arc<dyn Fn() + Send + Sync>,
}

impl Events {
    /// Events go `to` a channel; then `bell` rings.
    pub fn new(to: Sender<Event>, bell: Arc<dyn Fn() + Send + Sync>) -> Self {
        Self { to, bell }
    }

    /// Hands `event` over. Never called with a lock held.
    pub fn send(&self, event: Event) {
        // Nobody listens once the rank is dropped; then nobody needs the event.
        if self.to.send(event).is_ok() {
            (self.bell)();
        }
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Events")
    }
}

/// Counts of a landing's life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LandingFigures {
    /// Bytes that landed.
    pub bytes: u64,
    /// Frames refused before a byte of them was written, late ones included.
    pub refused: u64,
    /// Frames that came for a grant that was revoked.
    pub late: u64,
    /// Connections closed because what came was no frame, stopped in the middle of one, or went unread.
    pub broken: u64,
}

/// Why a half cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A setting that this build cannot follow.
    #[error("{setting} is {value}: {change}")]
    Setting {
        /// The key.
        setting: &'static str,
        /// Its value.
        value: String,
        /// What to change.
        change: String,
    },
    /// The operating system refused.
    #[error("cannot {doing}: {source}")]
    Io {
        /// What was tried.
        doing: String,
        /// Its error.
        source: std::io::Error,
    },
}

/// Bytes of a grant's secret.
pub const SECRET_BYTES: usize = 16;
/// Grants one rank can have at a time.
pub const GRANTS_MAX: usize = 1_024;
/// Positions of one grant or push: a request of 4 million tokens at 64 a page.
pub const POSITIONS_MAX: usize = 1 << 16;
/// Pushes one rank can have at a time.
pub const PUSHES_MAX: usize = 4_096;

/// Starts a thread of the data plane.
fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, StartError> {
    let spawned = crate::threads::spawn(name.to_owned(), run);
    spawned.map_err(|source| StartError::Io { doing: format!("start the thread {name}"), source })
}
