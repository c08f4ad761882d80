//! The only clock that machines see.

use std::time::{Duration, Instant};

use hicached_actors::protocol::Time;

/// Monotonic nanoseconds since the shell began. A copy is the same clock.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
}

impl Clock {
    /// Begins at zero.
    pub fn start() -> Self {
        Self { origin: Instant::now() }
    }

    /// The time since the origin; 584 years fit.
    pub fn now(&self) -> Time {
        Time { ns: self.origin.elapsed().as_nanos() as u64 }
    }

    /// How long from `now` until `at`, zero when it has passed.
    pub fn until(now: Time, at: Time) -> Duration {
        Duration::from_nanos(at.ns.saturating_sub(now.ns))
    }
}
