//! Refusals: ordinary answers, each with the numbers that explain it and whether to try again.

use std::fmt::Display;

use super::codec::{wire, wire_enum};
use super::{Incarnation, Key, OpId, Rank};

wire! {
    /// A tier has too few pages for the request; ask again after the hint.
    pub struct OutOfPages {
        /// Pages missing on each lane, by rank.
        pub short: Vec<u32>,
        /// When asking again makes sense.
        pub retry_ms: u32,
    }
    /// A bounded queue is full; ask again after the hint.
    pub struct Busy {
        /// Which queue.
        pub queue: String,
        /// How many it may hold.
        pub bound: u64,
        /// When asking again makes sense.
        pub retry_ms: u32,
    }
    /// The control incarnation changed: register, then open again.
    pub struct NewIncarnation {
        /// The one the message was meant for.
        pub old: Incarnation,
        /// The one that lives.
        pub new: Incarnation,
    }
    /// The session's lease ran out.
    pub struct Expired {
        /// The session.
        pub session: OpId,
        /// How long its lease was.
        pub lease_ms: u64,
    }
    /// The deployment does not fit together.
    pub struct Mismatch {
        /// Which field differs.
        pub field: String,
        /// The sender's value.
        pub yours: String,
        /// The group's value.
        pub mine: String,
    }
    /// A record lacks a component and is quarantined whole.
    pub struct ComponentMissing {
        /// The page's key.
        pub key: Key,
        /// Which component.
        pub component: String,
    }
    /// A key is known under another parent, position or salt id, or stands twice in one path.
    pub struct KeyConflict {
        /// The key.
        pub key: Key,
        /// Which of `parent`, `position`, `salt`, `repeated` differs.
        pub what: String,
        /// What is known.
        pub known: String,
        /// What was sent.
        pub got: String,
    }
    /// A page was named to, or by, a rank that does not own it, or to a session that was not given it.
    pub struct NotOwner {
        /// The page.
        pub page: u32,
        /// Its owner.
        pub owner: Rank,
        /// Who was named.
        pub rank: Rank,
    }
    /// Nobody knows this id; the same answer for what is another tenant's.
    pub struct Unknown {
        /// What was looked for.
        pub what: String,
        /// Its id.
        pub id: String,
    }
    /// Numbers must follow each other.
    pub struct Gap {
        /// The expected number.
        pub expected: u64,
        /// The number that came.
        pub got: u64,
    }
    /// The op or page is not in a state that allows this.
    pub struct WrongState {
        /// The op or page.
        pub what: String,
        /// Its state.
        pub state: String,
    }
    /// The message or list is over its limit.
    pub struct TooLarge {
        /// What is too large.
        pub what: String,
        /// Its size.
        pub size: u64,
        /// The limit.
        pub limit: u64,
    }
    /// Unknown kind or version.
    pub struct Unsupported {
        /// `kind` or `version`.
        pub field: String,
        /// What came.
        pub value: String,
        /// What is known.
        pub limit: String,
    }
    /// The message does not follow its schema.
    pub struct Malformed {
        /// The field at fault.
        pub field: String,
        /// What stood there.
        pub value: String,
        /// What may stand there.
        pub limit: String,
    }
}

wire_enum! {
    /// Why a request was refused; nothing was changed.
    pub enum Refusal {
        /// Too few pages.
        "OutOfPages" => OutOfPages(OutOfPages),
        /// A queue is full.
        "Busy" => Busy(Busy),
        /// The control group is another one.
        "NewIncarnation" => NewIncarnation(NewIncarnation),
        /// The lease ran out.
        "Expired" => Expired(Expired),
        /// Two parts do not fit.
        "Mismatch" => Mismatch(Mismatch),
        /// A record is damaged.
        "ComponentMissing" => ComponentMissing(ComponentMissing),
        /// A key contradicts what is known.
        "KeyConflict" => KeyConflict(KeyConflict),
        /// A page belongs to somebody else.
        "NotOwner" => NotOwner(NotOwner),
        /// No such thing.
        "Unknown" => Unknown(Unknown),
        /// A number was skipped or repeated.
        "Gap" => Gap(Gap),
        /// Not in this state.
        "WrongState" => WrongState(WrongState),
        /// Over a limit.
        "TooLarge" => TooLarge(TooLarge),
        /// Unknown kind or version.
        "Unsupported" => Unsupported(Unsupported),
        /// Not following the schema.
        "Malformed" => Malformed(Malformed),
    }
}

impl Refusal {
    /// The code, and of a mismatch the field and both values.
    pub fn cause(&self) -> String {
        match self {
            Self::Mismatch(Mismatch { field, yours, mine }) => {
                brief(&format!("Mismatch: {field} is {} and {}", brief(yours), brief(mine)))
            }
            other => other.code().to_owned(),
        }
    }
}

impl Malformed {
    /// A malformed `field`, with what stood there and what may stand there.
    pub fn new(field: &str, value: impl Display, limit: impl Display) -> Self {
        Self { field: field.to_owned(), value: brief(&value.to_string()), limit: limit.to_string() }
    }
}

impl Unknown {
    /// Nobody knows the `what` of this `id`.
    pub fn new(what: &str, id: impl std::fmt::Debug) -> Self {
        Self { what: what.to_owned(), id: format!("{id:?}") }
    }
}

impl WrongState {
    /// `what` is in `state`.
    pub fn new(what: impl std::fmt::Debug, state: &str) -> Self {
        Self { what: format!("{what:?}"), state: state.to_owned() }
    }
}

impl TooLarge {
    /// `what` has `size`, over `limit`.
    pub fn new(what: &str, size: u64, limit: u64) -> Self {
        Self { what: what.to_owned(), size, limit }
    }
}

/// The beginning of a text from outside: as much as is kept or said again.
pub fn brief(text: &str) -> String {
    text.chars().take(VALUE_CHARS_MAX).collect()
}

/// A refusal repeats at most this much of what was sent: hostile input does not grow an answer.
const VALUE_CHARS_MAX: usize = 120;
