//! Page layout, page validation and the copy engines.

pub mod layout;
pub mod pages;
pub mod runs;
