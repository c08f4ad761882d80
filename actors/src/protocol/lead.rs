//! What the processes of one control group say to each other: who leads, who hosts what, which incarnation counts.
//!
//! Of the envelope, `incarnation` is the life of the process that sends and `control` the incarnation under which it
//! hosts its machines, all zero before the first.

use super::Incarnation;
use super::Refusal;
use super::codec::{wire, wire_enum};

wire! {
    /// The sender leads the group, or wants to. A request is answered by whoever leads; without one it is a sign of
    /// life of a leader, and of two leaders one gives way.
    pub struct Lead {}
    /// The sender hosts, or wants to host, these machines, and asks under which incarnation.
    pub struct Claim {
        /// Names as in subjects: `allocator`.
        pub actors: Vec<String>,
        /// What all processes of a group must be told alike: name and value, in a fixed order.
        pub agreed: Vec<(String, String)>,
    }
    /// The sender ends: it hosts nothing any more. What is lost of this is silence.
    pub struct Leave {}
    /// Another process has the place of a machine.
    pub struct Taken {
        /// The machine.
        pub actor: String,
        /// The process.
        pub by: Incarnation,
        /// How long ago it claimed that place.
        pub silent_ms: u64,
    }
    /// This incarnation counts.
    pub struct Led {
        /// The control incarnation; all zero while none has begun.
        pub control: Incarnation,
    }
}

wire_enum! {
    /// What the leader of a group hears.
    pub enum LeadIn {
        /// From another process that wants to lead.
        "lead" => Lead(Lead),
        /// From a process that follows.
        "claim" => Claim(Claim),
        /// From a process that followed and ends.
        "leave" => Leave(Leave),
    }
}

wire_enum! {
    /// What it answers.
    pub enum LeadAnswer {
        /// To all of them.
        "led" => Led(Led),
        /// To a claim: ask again, the other process may be gone.
        "taken" => Taken(Taken),
        /// To a claim that will never be granted.
        "refused" => Refused(Refusal),
    }
}

/// The subject on which the leader of a group is reached.
pub fn lead_subject(group: &str) -> String {
    format!("hicached.v1.{group}.lead")
}
