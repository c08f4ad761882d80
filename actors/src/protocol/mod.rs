//! What actors, ranks and engines say to each other: typed, versioned, checked at the edge.

mod ids;

pub use ids::*;
