//! The points by name.

use std::fmt;

use hicached_actors::protocol::Address;

/// A point at which the process dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// While a member handles a message of this kind.
    Message {
        /// The member: `index`, `allocator`, `evictor`, `writer`, `loader`, or `rank` for any rank.
        actor: &'static str,
        /// The kind.
        kind: &'static str,
        /// Before, between or after.
        moment: Moment,
    },
    /// Inside a rank.
    Inside(Inside),
}

/// How far a message has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// It was taken from the inbox; nothing has happened.
    Taken,
    /// It was handled; none of its effects is sent.
    Handled,
    /// Its effects were sent.
    Sent,
}

/// Places inside a rank, each between two writes to memory that outlives the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inside {
    /// The seals of a backup's slots are gone, and no byte is written.
    SealCleared,
    /// Half of the layers of a backup are copied.
    HalfCopied,
    /// All bytes of a backup are copied, and nobody has heard of it.
    Copied,
    /// A row is written, its seal is not.
    RowWritten,
    /// Some slots of an op are sealed, others are not.
    HalfSealed,
    /// Half of the layers of a load are in L1.
    HalfLoaded,
}

impl Moment {
    /// In the order in which they come.
    pub const ALL: [Self; 3] = [Self::Taken, Self::Handled, Self::Sent];

    const fn name(self) -> &'static str {
        match self {
            Self::Taken => "taken",
            Self::Handled => "handled",
            Self::Sent => "sent",
        }
    }
}

impl Inside {
    /// In the order in which a page meets them.
    pub const ALL: [Self; 6] =
        [Self::SealCleared, Self::HalfCopied, Self::Copied, Self::RowWritten, Self::HalfSealed, Self::HalfLoaded];

    const fn name(self) -> &'static str {
        match self {
            Self::SealCleared => "rank.seal_cleared",
            Self::HalfCopied => "rank.half_copied",
            Self::Copied => "rank.copied",
            Self::RowWritten => "rank.row_written",
            Self::HalfSealed => "rank.half_sealed",
            Self::HalfLoaded => "rank.half_loaded",
        }
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Message { actor, kind, moment } => write!(f, "{actor}.{kind}.{}", moment.name()),
            Self::Inside(place) => f.write_str(place.name()),
        }
    }
}

impl Point {
    /// Every point, members in the order of [`MESSAGES`].
    pub fn all() -> impl Iterator<Item = Self> {
        let messages = MESSAGES.iter().flat_map(|(actor, kinds)| kinds.iter().map(move |kind| (*actor, *kind)));
        let messages = messages
            .flat_map(|(actor, kind)| Moment::ALL.into_iter().map(move |moment| Self::Message { actor, kind, moment }));
        messages.chain(Inside::ALL.into_iter().map(Self::Inside))
    }

    /// Reads what [`fmt::Display`] writes.
    pub fn parse(name: &str) -> Option<Self> {
        Self::all().find(|point| point.to_string() == name)
    }

    /// Whether a rank dies of it, not the control group.
    pub fn is_of_rank(&self) -> bool {
        match self {
            Self::Message { actor, .. } => *actor == RANK,
            Self::Inside(_) => true,
        }
    }
}

/// The names of all points.
pub fn names() -> Vec<String> {
    Point::all().map(|point| point.to_string()).collect()
}

/// The member as points name it.
pub(super) const fn actor_of(member: Address) -> &'static str {
    match member {
        Address::Index => "index",
        Address::Allocator => "allocator",
        Address::Evictor => "evictor",
        Address::Writer => "writer",
        Address::Loader => "loader",
        Address::Sender => "sender",
        Address::Receiver => "receiver",
        Address::Rank(_) => RANK,
        Address::Engine => "engine",
    }
}

const RANK: &str = "rank";

/// Messages whose handling can be cut short: every kind that ordinary traffic, a start and a recovery make.
pub const MESSAGES: [(&str, &[&str]); 6] = [
    ("allocator", &["restore", "open_lanes", "reserve", "free", "room_made"]),
    ("evictor", &["make_room", "evicted"]),
    (
        "index",
        &[
            "rank_hello",
            "inventory_part",
            "restored",
            "register",
            "attached",
            "open",
            "extend",
            "reserved",
            "step",
            "passed",
            "backup_complete",
            "op_settled",
            "evict",
            "load_started",
            "load_ended",
            "close",
            "freed",
        ],
    ),
    ("writer", &["rank_is", "backup", "reserved", "copy_ack", "backup_verdict", "sealed"]),
    ("loader", &["rank_is", "load", "reserved", "copy_ack", "release_slot"]),
    (RANK, &["adopt", "inventory", "attach", "watch", "backup_copy", "load_copy", "seal", "unseal"]),
];

#[cfg(test)]
mod tests {
    use super::*;
    use hicached_actors::protocol::{AllocatorIn, EvictorIn, IndexIn, LoaderIn, RankIn, WriterIn};

    #[test]
    fn every_name_is_read_back_and_stands_once() {
        let names = names();
        assert_eq!(names.len(), 43 * 3 + 6);
        for name in &names {
            assert_eq!(Point::parse(name).map(|point| point.to_string()).as_ref(), Some(name));
            assert_eq!(names.iter().filter(|other| *other == name).count(), 1, "{name}");
        }
        assert_eq!(Point::parse("index.open"), None, "a message without its moment");
    }

    #[test]
    fn every_message_is_one_that_its_member_takes() {
        for (actor, kinds) in MESSAGES {
            for kind in kinds {
                let is_known = match actor {
                    "allocator" => AllocatorIn::decode_body(kind, &[]).is_some(),
                    "evictor" => EvictorIn::decode_body(kind, &[]).is_some(),
                    "index" => IndexIn::decode_body(kind, &[]).is_some(),
                    "writer" => WriterIn::decode_body(kind, &[]).is_some(),
                    "loader" => LoaderIn::decode_body(kind, &[]).is_some(),
                    _ => RankIn::decode_body(kind, &[]).is_some(),
                };
                assert!(is_known, "{actor} takes no {kind}");
            }
        }
    }
}
