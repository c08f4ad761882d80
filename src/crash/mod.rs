//! Named points at which this process dies on purpose, as by SIGKILL: nothing is flushed, nobody is told.
//!
//! A point is armed once, before anything starts, by `serve --crash-at NAME`; the first time it is reached the
//! process is gone. Two kinds: around a message that a member of the group handles ([`MESSAGES`] by [`Moment`]), and
//! inside a rank, between two writes to memory that outlives it ([`Inside`]). A build whose machines cannot be given
//! faults cannot die on purpose either: there every call here is empty.

mod points;

use std::sync::OnceLock;
use std::time::Duration;

use hicached_actors::faults::PLANTABLE;
use hicached_actors::protocol::{Address, Envelope};

pub use points::{Inside, MESSAGES, Moment, Point, names};

/// Why no point is armed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotArmed {
    /// This build does not die on purpose.
    #[error("--crash-at {0}: only a build with the feature planted-faults dies on purpose")]
    Impossible(String),
    /// No point of that name.
    #[error("--crash-at {name}: there is no such point, name one of: {}", names().join(", "))]
    Unknown {
        /// What was asked for.
        name: String,
    },
    /// A process dies once.
    #[error("--crash-at {0}: another point is armed")]
    Twice(String),
}

static ARMED: OnceLock<Point> = OnceLock::new();

/// Arms the point called `name`: reaching it ends this process.
///
/// # Errors
/// A build that cannot, a name that no point has, a point that is armed already.
pub fn arm(name: &str) -> Result<(), NotArmed> {
    if !PLANTABLE {
        return Err(NotArmed::Impossible(name.to_owned()));
    }
    let point = Point::parse(name).ok_or_else(|| NotArmed::Unknown { name: name.to_owned() })?;
    ARMED.set(point).map_err(|_| NotArmed::Twice(name.to_owned()))
}

/// One message on its way through the member that handles it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Passage(Option<Moment>);

impl Passage {
    /// The message in `payload` reaches `member`.
    pub(crate) fn of(member: Address, payload: &[u8]) -> Self {
        if !PLANTABLE {
            return Self(None);
        }
        let Some(Point::Message { actor, kind, moment }) = ARMED.get() else { return Self(None) };
        let is_meant = points::actor_of(member) == *actor
            && Envelope::decode(payload).is_ok_and(|envelope| envelope.kind == *kind);
        Self(is_meant.then_some(*moment))
    }

    /// `moment` has come.
    pub(crate) fn at(self, moment: Moment) {
        if self.0 == Some(moment) {
            if moment == Moment::Sent {
                // Frames go out on another thread; this one, and all machines on it, do nothing more.
                std::thread::sleep(SENDING);
            }
            die();
        }
    }
}

/// A place inside a rank is reached.
pub(crate) fn reach(place: Inside) {
    if PLANTABLE && ARMED.get() == Some(&Point::Inside(place)) {
        die();
    }
}

fn die() -> ! {
    // A process may always kill itself; should it ever not, it must not go on either.
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).ok();
    std::process::abort()
}

/// How long frames that were handed to the bus may take to leave the process.
const SENDING: Duration = Duration::from_millis(10);
