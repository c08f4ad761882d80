//! Decides under which incarnation a process without the index hosts its machines.
//!
//! A process that hears nothing keeps its machines: they act only on messages of their incarnation, and ranks obey
//! only one. Nothing here reads a clock.

use hicached_actors::protocol::{Incarnation, Refusal, Time};

/// A process that follows the one with the index.
#[derive(Debug)]
pub(super) struct Follow {
    hosted: Incarnation,
    patience_ms: u64,
    refused_since: Option<Time>,
}

/// What to do about an answer of the leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Follows {
    /// Nothing.
    Keep,
    /// End what is hosted and host it under this incarnation.
    Host(Incarnation),
    /// End: a living process has the place, or the configurations differ.
    GiveUp(Refusal),
}

impl Follow {
    /// Hosts nothing yet. A predecessor that has just died keeps its place for a lease: a refusal is final when it
    /// stands for twice as long.
    pub(super) fn new(lease_ms: u64) -> Self {
        Self { hosted: Incarnation::default(), patience_ms: 2 * lease_ms, refused_since: None }
    }

    /// The incarnation under which the machines are hosted; all zero while they are not.
    pub(super) fn hosted(&self) -> Incarnation {
        self.hosted
    }

    /// Every machine runs under `control`.
    pub(super) fn hosts(&mut self, control: Incarnation) {
        self.hosted = control;
    }

    /// The leader has answered.
    pub(super) fn heard(&mut self, now: Time, answer: Result<Incarnation, Refusal>) -> Follows {
        match answer {
            Ok(control) => {
                self.refused_since = None;
                let is_new = control != Incarnation::default() && control != self.hosted;
                if is_new { Follows::Host(control) } else { Follows::Keep }
            }
            Err(refusal @ Refusal::WrongState(_)) => {
                let since = *self.refused_since.get_or_insert(now);
                let is_final = since.ms_until(now) >= self.patience_ms;
                if is_final { Follows::GiveUp(refusal) } else { Follows::Keep }
            }
            Err(refusal) => Follows::GiveUp(refusal),
        }
    }
}

#[cfg(test)]
mod tests {
    use hicached_actors::protocol::{Mismatch, WrongState};

    use super::*;

    const FIRST: Incarnation = Incarnation([1; 16]);
    const SECOND: Incarnation = Incarnation([2; 16]);

    fn taken() -> Refusal {
        WrongState { what: "writer".to_owned(), state: "hosted".to_owned() }.into()
    }

    #[test]
    fn it_hosts_under_the_incarnation_that_it_hears() {
        let mut follow = Follow::new(1_000);
        for (heard, does) in [
            (Incarnation::default(), Follows::Keep),
            (FIRST, Follows::Host(FIRST)),
            (FIRST, Follows::Keep),
            (SECOND, Follows::Host(SECOND)),
            (SECOND, Follows::Keep),
        ] {
            let answer = follow.heard(Time::ZERO, Ok(heard));
            assert_eq!(answer, does);
            if let Follows::Host(control) = answer {
                follow.hosts(control);
            }
        }
        assert_eq!(follow.hosted(), SECOND);
    }

    #[test]
    fn a_place_that_stays_taken_is_given_up_and_one_that_becomes_free_is_not() {
        let at = |ms| Time::ZERO.plus_ms(ms);
        let mut follow = Follow::new(1_000);
        for (ms, answer, does) in [
            (0, Err(taken()), Follows::Keep),
            (1_999, Err(taken()), Follows::Keep),
            (1_999, Ok(FIRST), Follows::Host(FIRST)),
            (2_000, Err(taken()), Follows::Keep),
            (3_999, Err(taken()), Follows::Keep),
            (4_000, Err(taken()), Follows::GiveUp(taken())),
        ] {
            assert_eq!(follow.heard(at(ms), answer), does, "at {ms} ms");
        }
    }

    #[test]
    fn configurations_that_differ_are_given_up_at_once() {
        let mismatch = Mismatch { field: "l2.pages".to_owned(), yours: "1".to_owned(), mine: "2".to_owned() };
        let answer = Follow::new(1_000).heard(Time::ZERO, Err(mismatch.clone().into()));
        assert_eq!(answer, Follows::GiveUp(mismatch.into()));
    }
}
