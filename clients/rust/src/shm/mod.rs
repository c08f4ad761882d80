//! Memory that a rank and its engine share: a file both map, progress words, and the ring of load slots.
//!
//! A rank makes one pool file; its words and its load ring stand in it. The engine opens the same file and
//! writes the words of its tracks; the rank writes the words of the loads. Every word stands on a cache line
//! of its own and is touched by atomics only, so that a CPU store can release a waiting device stream.
//!
//! Invariants: a word never falls within the life of who writes it; the status of a load slot changes once per
//! use. Not here: what stands in the rest of the pool file (the rank), who may write which page (the daemon).

mod load_ring;
mod segment;
#[cfg(test)]
mod tests;
mod words;

pub use load_ring::{LOAD_RING_BYTES, LOAD_SLOT_BYTES, LOAD_SLOTS, LoadRing, LoadState, SlotTaken};
pub use segment::{Segment, ShmError};
pub use words::{Track, WORDS_BYTES, Words, passed_step, word_value};
