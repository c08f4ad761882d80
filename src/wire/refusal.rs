//! Why bytes were not taken, and why a push failed.

use hicached_actors::protocol::{Refusal, WrongState};

/// Why a landing takes a frame's bytes to nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameRefusal {
    /// No grant has this secret.
    #[error("no grant has its secret")]
    Grant,
    /// The grant is of another attempt.
    #[error("its grant is of another attempt")]
    Attempt,
    /// The grant was revoked.
    #[error("its grant was revoked")]
    Late,
    /// A rank that no group has.
    #[error("it names a rank that no group has")]
    Rank,
    /// The receiver has no such (component, layer) with bytes.
    #[error("it names a layer that the receiver does not store")]
    Buffer,
    /// The bytes are not those of so many pages.
    #[error("its length is not that of its pages")]
    Bytes,
    /// A position that the grant does not have.
    #[error("position {0} is not granted")]
    Position(u32),
    /// A position whose bytes are there, or on their way.
    #[error("position {0} has landed, or is landing")]
    Twice(u32),
    /// The bytes are not those that were sent.
    #[error("its checksum differs")]
    Checksum,
    /// Not a frame: the connection ends.
    #[error("it is no frame of this version")]
    Garbage,
}

impl FrameRefusal {
    /// Code and position of an acknowledgement; code 0 stands for no refusal.
    pub(super) fn code(self) -> (u8, u32) {
        match self {
            Self::Grant => (1, 0),
            Self::Attempt => (2, 0),
            Self::Late => (3, 0),
            Self::Rank => (4, 0),
            Self::Buffer => (5, 0),
            Self::Bytes => (6, 0),
            Self::Position(position) => (7, position),
            Self::Twice(position) => (8, position),
            Self::Checksum => (9, 0),
            Self::Garbage => (10, 0),
        }
    }

    /// The refusal of a code; `None` for a code that no refusal has.
    pub(super) fn of(code: u8, position: u32) -> Option<Self> {
        let all = [
            Self::Grant,
            Self::Attempt,
            Self::Late,
            Self::Rank,
            Self::Buffer,
            Self::Bytes,
            Self::Position(position),
            Self::Twice(position),
            Self::Checksum,
            Self::Garbage,
        ];
        all.into_iter().find(|refusal| refusal.code().0 == code)
    }
}

/// Why a push failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// It took longer than it may.
    #[error("not complete {ms} ms after its first byte and its last layer")]
    Deadline {
        /// How long it may take.
        ms: u64,
    },
    /// The receiver cannot be reached.
    #[error("cannot reach {endpoint}: {error}")]
    Unreachable {
        /// Where it should be.
        endpoint: String,
        /// What the system said.
        error: String,
    },
    /// The connection broke with bytes of this push on the way.
    #[error("the connection to {endpoint} broke: {error}")]
    Broken {
        /// Where to.
        endpoint: String,
        /// What the system said.
        error: String,
    },
    /// The receiver took and acknowledged nothing for so long.
    #[error("{endpoint} took nothing for {ms} ms")]
    Stalled {
        /// Where to.
        endpoint: String,
        /// How long.
        ms: u64,
    },
    /// The receiver refused bytes.
    #[error("{component} layer {layer} was refused: {refusal}")]
    Refused {
        /// The component.
        component: &'static str,
        /// The layer.
        layer: u32,
        /// Why.
        refusal: FrameRefusal,
    },
}

impl From<Cause> for Refusal {
    fn from(cause: Cause) -> Self {
        WrongState { what: "push".to_owned(), state: cause.to_string() }.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_stands_for_one_refusal_and_0_for_none() {
        let known: Vec<FrameRefusal> = (0..=u8::MAX).filter_map(|code| FrameRefusal::of(code, 7)).collect();
        assert_eq!(known.len(), 10);
        for refusal in known {
            let (code, position) = refusal.code();
            assert!(code > 0);
            assert_eq!(FrameRefusal::of(code, position), Some(refusal));
        }
    }
}
