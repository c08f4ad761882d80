//! What hostile bytes are fed to, as functions that a fuzzer and ordinary tests call.
//!
//! Each target takes any bytes and panics when something happens that must never be. `fuzz/` runs them under
//! cargo-fuzz; the tests of this crate replay `fuzz/corpus/TARGET/*`.

mod configuration;
mod decoder;
mod drawn;
mod frames;
mod group;
mod handovers;
mod known;
mod machine;
mod pool_file;
mod rank;
mod recording;
mod scratch;
mod source;
mod speaker;
mod traces;
mod transfers;

pub use configuration::configuration;
pub use decoder::{decoder, kinds};
pub use frames::frames;
pub use group::group;
pub use machine::{allocator, evictor, index, loader, receiver, sender, writer};
pub use pool_file::pool_file;
pub use rank::rank;
pub use recording::{Inputs, recordings};
pub use traces::trace;

/// What is done with the bytes of one file.
pub type Target = fn(&[u8]);

/// Every target by the name of its corpus.
pub const TARGETS: [(&str, Target); 14] = [
    ("allocator", allocator),
    ("configuration", configuration),
    ("decoder", decoder),
    ("evictor", evictor),
    ("frames", frames),
    ("group", group),
    ("index", index),
    ("loader", loader),
    ("pool_file", pool_file),
    ("rank", rank),
    ("receiver", receiver),
    ("sender", sender),
    ("trace", trace),
    ("writer", writer),
];
