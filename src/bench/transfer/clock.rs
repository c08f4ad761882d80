//! Time on the wall and on the processors, the latter of all threads of the process: both sides run in it.

use std::ops::AddAssign;
use std::time::{Duration, Instant};

/// A piece of work that is being timed.
#[derive(Debug)]
pub(super) struct Clock {
    wall: Instant,
    cpu: Duration,
}

/// What a piece of work took.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spent {
    pub(super) wall: Duration,
    pub(super) cpu: Duration,
}

impl Clock {
    pub(super) fn start() -> Self {
        let cpu = cpu();
        Self { wall: Instant::now(), cpu }
    }

    pub(super) fn stop(self) -> Spent {
        let wall = self.wall.elapsed();
        Spent { wall, cpu: cpu().saturating_sub(self.cpu) }
    }
}

impl AddAssign for Spent {
    fn add_assign(&mut self, other: Self) {
        self.wall += other.wall;
        self.cpu += other.cpu;
    }
}

fn cpu() -> Duration {
    // SAFETY: all bytes of the structure may be zero.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: one structure, which the call writes. It fails for an unknown `who` alone.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) };
    let of = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec.unsigned_abs()) + Duration::from_micros(time.tv_usec.unsigned_abs())
    };
    of(usage.ru_utime) + of(usage.ru_stime)
}
