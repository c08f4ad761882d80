//! The hicached command line.
fn main() {}
