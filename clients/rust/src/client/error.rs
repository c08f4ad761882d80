//! Why a call had no result, in shapes a caller can act on.

use std::time::Duration;

use hicached_actors::protocol::{Incarnation, Malformed, NewIncarnation, Refusal, TooLarge};

use crate::bus::BusError;

/// A call that did not end with its answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// The daemon said no, with the numbers that explain it; nothing was changed.
    #[error("refused: {0:?}")]
    Refused(Refusal),
    /// The control group is another one: register every rank again, then open again.
    #[error("the control incarnation {old:?} is replaced by {new:?}")]
    NewIncarnation {
        /// The one this client meant.
        old: Incarnation,
        /// The one that lives.
        new: Incarnation,
    },
    /// No answer came. The request may have been carried out.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// What came back is no answer to this request.
    #[error("not an answer: {0:?}")]
    Decode(Malformed),
    /// The daemon is away and the policy is [`super::Away::Bypass`]: compute this request without the cache.
    #[error("uncached, the daemon is away: {because}")]
    Uncached {
        /// What the bus said.
        because: BusError,
    },
}

impl ClientError {
    /// When asking again makes sense: the hint of `OutOfPages` and `Busy`, `None` for everything else.
    pub fn room_hint(&self) -> Option<Duration> {
        let Self::Refused(refusal) = self else { return None };
        let retry_ms = match refusal {
            Refusal::OutOfPages(short) => short.retry_ms,
            Refusal::Busy(busy) => busy.retry_ms,
            Refusal::NewIncarnation(_)
            | Refusal::Expired(_)
            | Refusal::Mismatch(_)
            | Refusal::ComponentMissing(_)
            | Refusal::KeyConflict(_)
            | Refusal::NotOwner(_)
            | Refusal::Unknown(_)
            | Refusal::Gap(_)
            | Refusal::WrongState(_)
            | Refusal::TooLarge(_)
            | Refusal::Unsupported(_)
            | Refusal::Malformed(_) => return None,
        };
        Some(Duration::from_millis(u64::from(retry_ms.clamp(RETRY_MS_MIN, RETRY_MS_MAX))))
    }

    /// Whether the request may have been carried out all the same: a refusal changes nothing.
    pub fn leaves_doubt(&self) -> bool {
        match self {
            Self::Bus(_) | Self::Decode(_) | Self::Uncached { .. } => true,
            Self::Refused(_) | Self::NewIncarnation { .. } => false,
        }
    }

    /// One word for it: the code of a refusal, or what kept an answer from coming.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Refused(refusal) => refusal.code(),
            Self::NewIncarnation { .. } => "new_incarnation",
            Self::Decode(_) => "malformed_answer",
            Self::Uncached { because } | Self::Bus(because) => match because {
                BusError::TooLarge { .. } => "too_large",
                BusError::NoResponders { .. } => "no_responders",
                BusError::Disconnected { .. } => "disconnected",
                BusError::TimedOut { .. } => "timed_out",
                BusError::Busy { .. } => "queue_full",
                BusError::BadSubject { .. } => "bad_subject",
                BusError::Closed => "closed",
            },
        }
    }

    /// Whether the daemon could not be reached, as opposed to having refused.
    pub fn is_away(&self) -> bool {
        match self {
            Self::Bus(error) => is_away(error) || matches!(error, BusError::TimedOut { .. }),
            Self::Refused(_) | Self::NewIncarnation { .. } | Self::Decode(_) | Self::Uncached { .. } => false,
        }
    }
}

impl From<Refusal> for ClientError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::NewIncarnation(NewIncarnation { old, new }) => Self::NewIncarnation { old, new },
            other => Self::Refused(other),
        }
    }
}

impl From<TooLarge> for ClientError {
    fn from(too_large: TooLarge) -> Self {
        Self::Refused(too_large.into())
    }
}

/// Whether nobody can be reached at all.
pub(super) fn is_away(error: &BusError) -> bool {
    match error {
        BusError::NoResponders { .. } | BusError::Disconnected { .. } => true,
        BusError::TooLarge { .. }
        | BusError::TimedOut { .. }
        | BusError::Busy { .. }
        | BusError::BadSubject { .. }
        | BusError::Closed => false,
    }
}

/// Whether the same frame can fare better later.
pub(super) fn can_repeat(error: &BusError) -> bool {
    match error {
        BusError::NoResponders { .. }
        | BusError::Disconnected { .. }
        | BusError::TimedOut { .. }
        | BusError::Busy { .. } => true,
        BusError::TooLarge { .. } | BusError::BadSubject { .. } | BusError::Closed => false,
    }
}

/// A hint of 0 would be a busy loop.
const RETRY_MS_MIN: u32 = 1;
/// A hint is a guess of the daemon; nobody sleeps longer on one.
const RETRY_MS_MAX: u32 = 10_000;
