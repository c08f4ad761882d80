//! Page layout, page validation and the copy engines.
