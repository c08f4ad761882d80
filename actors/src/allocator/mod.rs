//! Which pages are free: L1 lanes and L2 pools of every rank as bitmaps with run summaries.
