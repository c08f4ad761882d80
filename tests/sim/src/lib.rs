//! Deterministic world in which the machines of hicached are attacked.
