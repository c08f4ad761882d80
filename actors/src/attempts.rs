//! Attempts of a transfer: a router raises them, the higher one counts, and a lower one changes nothing.

use crate::faults::{Fault, Faults};

/// How an attempt that a message names stands to what is known of its transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Neither it nor a higher one is known, and none runs.
    New,
    /// It runs.
    Running,
    /// A lower one runs.
    Above,
    /// It is the last one that has ended, and none runs.
    Over,
    /// A higher one is known: whatever it did is over.
    Stale,
}

impl Standing {
    /// Of the attempt `named`, where `running` runs and `ended` is the last that has ended.
    pub(crate) fn of(named: u32, running: Option<u32>, ended: Option<u32>, faults: Faults) -> Self {
        match (running, ended) {
            (Some(running), _) if named == running => Self::Running,
            (Some(running), _) if named > running => Self::Above,
            (Some(_), _) if faults.is(Fault::StaleTransferAccepted) => Self::Running,
            (Some(_), _) => Self::Stale,
            (None, Some(ended)) if named == ended => Self::Over,
            (None, Some(ended)) if named < ended => Self::Stale,
            (None, Some(_) | None) => Self::New,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_higher_attempt_counts() {
        for (named, running, ended, standing) in [
            (1, None, None, Standing::New),
            (2, None, Some(1), Standing::New),
            (1, None, Some(1), Standing::Over),
            (1, None, Some(2), Standing::Stale),
            (2, Some(2), Some(1), Standing::Running),
            (3, Some(2), Some(1), Standing::Above),
            (1, Some(2), Some(1), Standing::Stale),
        ] {
            assert_eq!(Standing::of(named, running, ended, Faults::NONE), standing, "{named} {running:?} {ended:?}");
        }
    }

    #[cfg(feature = "planted-faults")]
    #[test]
    fn a_lower_attempt_is_taken_for_the_one_that_runs() {
        let faults = Faults::planted(Fault::StaleTransferAccepted);
        assert_eq!(Standing::of(1, Some(2), None, faults), Standing::Running);
    }
}
