//! What actors, ranks and engines say to each other: typed, versioned, checked at the edge.

pub mod codec;
mod engine;
mod envelope;
mod ids;
mod internal;
mod keys;
mod lead;
mod manifest;
mod rank;
mod refusal;
mod transfer;

pub use codec::{Bin, Keys, Owners, Pages, PeerPages, Positions, Slots, decode, encode};
pub use engine::*;
pub use envelope::*;
pub use ids::*;
pub use internal::*;
pub use keys::*;
pub use lead::*;
pub use manifest::*;
pub use rank::*;
pub use refusal::*;
pub use transfer::*;
