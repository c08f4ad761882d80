//! Decides under which incarnation a process without the index hosts its machines.
//!
//! A process that hears nothing keeps its machines: they act only on messages of their incarnation, and ranks obey
//! only one. Nothing here reads a clock.

use hicached_actors::protocol::{Incarnation, LeadAnswer, Led, Time};

use super::build::StartError;

/// A process that follows the one with the index.
#[derive(Debug)]
pub(super) struct Follow {
    hosted: Incarnation,
    patience_ms: u64,
    refused_since: Option<Time>,
}

/// What to do about an answer of the leader.
#[derive(Debug)]
pub(super) enum Follows {
    /// Nothing.
    Keep,
    /// End what is hosted and host it under this incarnation.
    Host(Incarnation),
    /// End: a living process has the place, or the configurations differ.
    GiveUp(StartError),
}

impl Follow {
    /// Hosts nothing yet. A predecessor that has just died keeps its place for a lease, and what it sent last may
    /// still come: a place is given up to a process that speaks a quarter of a lease after the first refusal.
    pub(super) fn new(lease_ms: u64) -> Self {
        Self { hosted: Incarnation::default(), patience_ms: lease_ms / 4, refused_since: None }
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
    pub(super) fn heard(&mut self, now: Time, answer: LeadAnswer) -> Follows {
        match answer {
            LeadAnswer::Led(Led { control }) => {
                self.refused_since = None;
                let is_new = control != Incarnation::default() && control != self.hosted;
                if is_new { Follows::Host(control) } else { Follows::Keep }
            }
            LeadAnswer::Taken(taken) => {
                let since = *self.refused_since.get_or_insert(now);
                let spoke_after_ms = since.ms_until(now).checked_sub(taken.silent_ms);
                let lives = spoke_after_ms.is_some_and(|after_ms| after_ms >= self.patience_ms);
                if lives { Follows::GiveUp(StartError::Taken { taken }) } else { Follows::Keep }
            }
            LeadAnswer::Refused(refusal) => Follows::GiveUp(StartError::Refused { refusal }),
        }
    }
}

#[cfg(test)]
mod tests {
    use hicached_actors::protocol::{Mismatch, Refusal, Taken};

    use super::*;

    const FIRST: Incarnation = Incarnation([1; 16]);
    const SECOND: Incarnation = Incarnation([2; 16]);

    fn led(control: Incarnation) -> LeadAnswer {
        Led { control }.into()
    }

    fn taken(silent_ms: u64) -> LeadAnswer {
        Taken { actor: "writer".to_owned(), by: FIRST, silent_ms }.into()
    }

    #[test]
    fn it_hosts_under_the_incarnation_that_it_hears() {
        let mut follow = Follow::new(1_000);
        for (heard, hosts) in [
            (Incarnation::default(), None),
            (FIRST, Some(FIRST)),
            (FIRST, None),
            (SECOND, Some(SECOND)),
            (SECOND, None),
        ] {
            match follow.heard(Time::ZERO, led(heard)) {
                Follows::Keep => assert_eq!(hosts, None, "{heard:?}"),
                Follows::Host(control) => {
                    assert_eq!(hosts, Some(control), "{heard:?}");
                    follow.hosts(control);
                }
                Follows::GiveUp(error) => panic!("{error}"),
            }
        }
        assert_eq!(follow.hosted(), SECOND);
    }

    #[test]
    fn a_place_is_given_up_to_a_process_that_goes_on_speaking() {
        let gives_up = |follow: &mut Follow, ms, answer| {
            matches!(follow.heard(Time::ZERO.plus_ms(ms), answer), Follows::GiveUp(StartError::Taken { .. }))
        };
        let mut follow = Follow::new(1_000);
        for (ms, answer, is_final) in [
            (0, taken(0), false),
            (999, taken(999), false),
            (400, taken(151), false),
            (1_000, led(FIRST), false),
            (2_000, taken(0), false),
            (2_249, taken(0), false),
            (2_300, taken(50), true),
        ] {
            assert_eq!(gives_up(&mut follow, ms, answer.clone()), is_final, "{answer:?} at {ms} ms");
        }
    }

    #[test]
    fn configurations_that_differ_are_given_up_at_once() {
        let mismatch = Mismatch { field: "l2.pages".to_owned(), yours: "1".to_owned(), mine: "2".to_owned() };
        let answer = LeadAnswer::Refused(Refusal::Mismatch(mismatch));
        let follows = Follow::new(1_000).heard(Time::ZERO, answer);
        assert!(matches!(follows, Follows::GiveUp(StartError::Refused { .. })), "{follows:?}");
    }
}
