//! Pure machines of hicached and the typed protocol they speak.
//!
//! A machine decides and never does: time and a message go in, effects come out. Nothing in this crate
//! owns a socket, a task, a lock or a clock, so the same inputs give the same effects everywhere.

mod alarms;
pub mod allocator;
mod attempts;
pub mod calls;
pub mod copy_ack;
mod course;
pub mod ended;
pub mod evictor;
pub mod faults;
pub mod host;
pub mod link;
pub mod lives;
pub mod loader;
pub mod machine;
pub mod makers;
pub mod prefix_index;
pub mod protocol;
pub mod receiver;
#[cfg(test)]
mod script;
pub mod sender;
pub mod span;
mod spread;
pub mod writer;
