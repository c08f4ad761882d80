//! The index in scripts.
