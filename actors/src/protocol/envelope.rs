//! The envelope around every message, and the addresses it travels between.

use std::fmt;

use super::codec::{Bin, decode, encode, wire};
use super::{GroupName, Incarnation, Malformed, OpId, Rank, Refusal, TooLarge, Unsupported};

/// The version of the protocol that this build speaks.
pub const VERSION: u32 = 1;

/// Bytes kept free for the headers of a message: trace context and what the broker counts with it.
pub const HEADER_BYTES_MAX: usize = 512;

wire! {
    /// What surrounds every body.
    pub struct Envelope {
        /// Version of the protocol.
        pub version: u32,
        /// Kind of the body.
        pub kind: String,
        /// The message's own id.
        pub id: OpId,
        /// The op or session it speaks of.
        pub op: OpId,
        /// Who sends: `index`, `rank.3`, `engine`.
        pub sender: String,
        /// The sender's life.
        pub incarnation: Incarnation,
        /// The control incarnation it is meant for; all zero when the sender knows none.
        pub control: Incarnation,
        /// Number within (sender, receiver, urgency), from 1.
        pub seq: u64,
        /// Whether it rides with what frees.
        pub urgent: bool,
        /// How long the sender still waits.
        pub remaining_ms: u32,
        /// The body of that kind.
        pub body: Bin,
    }
}

impl Envelope {
    /// Writes the envelope, refusing what no broker would carry.
    ///
    /// # Errors
    /// [`TooLarge`] with the size, headers included, and the limit.
    pub fn encode(&self, payload_bytes_max: usize) -> Result<Vec<u8>, TooLarge> {
        let bytes = encode(self);
        let size = bytes.len() + HEADER_BYTES_MAX;
        if size > payload_bytes_max {
            return Err(TooLarge::new(&self.kind, size as u64, payload_bytes_max as u64));
        }
        Ok(bytes)
    }

    /// Reads an envelope and refuses versions that this build does not speak.
    ///
    /// # Errors
    /// [`Refusal::Malformed`] or [`Refusal::Unsupported`].
    pub fn decode(bytes: &[u8]) -> Result<Self, Refusal> {
        let envelope: Self = decode(bytes)?;
        if envelope.version != VERSION {
            let field = "version".to_owned();
            let (value, limit) = (envelope.version.to_string(), VERSION.to_string());
            return Err(Unsupported { field, value, limit }.into());
        }
        Ok(envelope)
    }
}

/// A member of a group, or whoever asks it from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Address {
    /// The prefix index: also the group's door for engines.
    Index,
    /// The allocator.
    Allocator,
    /// The evictor.
    Evictor,
    /// The backup writer.
    Writer,
    /// The loader.
    Loader,
    /// The transfer sender.
    Sender,
    /// The transfer receiver.
    Receiver,
    /// One rank.
    Rank(Rank),
    /// An engine, router or operator: reached by reply only.
    Engine,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Index => f.write_str("index"),
            Self::Allocator => f.write_str("allocator"),
            Self::Evictor => f.write_str("evictor"),
            Self::Writer => f.write_str("writer"),
            Self::Loader => f.write_str("loader"),
            Self::Sender => f.write_str("sender"),
            Self::Receiver => f.write_str("receiver"),
            Self::Rank(rank) => write!(f, "rank.{}", rank.0),
            Self::Engine => f.write_str("engine"),
        }
    }
}

impl Address {
    /// The subject of this member of `group`: `hicached.v1.<group>.<actor>`.
    pub fn subject(self, group: &str) -> String {
        format!("hicached.v1.{group}.{self}")
    }

    /// Reads what [`fmt::Display`] writes.
    ///
    /// # Errors
    /// [`Malformed`] when nobody has that name.
    pub fn parse(text: &str) -> Result<Self, Malformed> {
        Ok(match text {
            "index" => Self::Index,
            "allocator" => Self::Allocator,
            "evictor" => Self::Evictor,
            "writer" => Self::Writer,
            "loader" => Self::Loader,
            "sender" => Self::Sender,
            "receiver" => Self::Receiver,
            "engine" => Self::Engine,
            _ => {
                let rank = text.strip_prefix("rank.").and_then(|n| n.parse().ok()).filter(|n| *n < super::CP_SIZE_MAX);
                Self::Rank(Rank(rank.ok_or_else(|| Malformed::new("sender", text, "an actor, rank.0..63 or engine"))?))
            }
        })
    }
}

/// The subject on which a group publishes what is stored and removed.
pub fn events_subject(group: &str) -> String {
    format!("hicached.v1.{group}.events")
}

/// Reads the name of a group, which stood in `field`: it is one token of a subject.
///
/// # Errors
/// [`Malformed`] when it is empty, too long, or has other characters than letters, digits, `-` and `_`.
pub fn group_name(field: &str, name: &str) -> Result<GroupName, Malformed> {
    let is_token = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
    if !is_token || !(1..=GROUP_NAME_BYTES_MAX).contains(&name.len()) {
        let limit = format!("1..={GROUP_NAME_BYTES_MAX} letters, digits, - and _");
        return Err(Malformed::new(field, name, limit));
    }
    Ok(name.into())
}

/// Longest name of a group: every subject begins with it.
pub const GROUP_NAME_BYTES_MAX: usize = 64;
