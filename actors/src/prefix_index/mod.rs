//! What is cached: the tree of page keys, sessions and leases.

pub mod tree;
