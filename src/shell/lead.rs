//! Decides what belongs to one control incarnation: which process hosts which machine, and when it is over.
//!
//! The process with the index leads. A machine belongs to the incarnation from the claim that says so; when the
//! process that hosted it is silent for a lease, or another one has its place, the incarnation is over as a whole,
//! because what that machine remembered is gone. Nothing here reads a clock or draws a life: time, claims and
//! incarnations come in.

use std::collections::{BTreeMap, BTreeSet};

use hicached_actors::protocol::{Address, Claim, Incarnation, LeadAnswer, Malformed, Taken, Time, same};

use crate::config::CONTROL;

/// The leader's view of a control group.
#[derive(Debug)]
pub(super) struct Lead {
    life: Incarnation,
    /// Machines of this process.
    mine: BTreeSet<Address>,
    agreed: Vec<(String, String)>,
    lease_ms: u64,
    control: Incarnation,
    places: BTreeMap<Address, Place>,
    is_over: bool,
}

/// The place of a machine that another process hosts.
#[derive(Clone, Copy, Debug)]
struct Place {
    life: Incarnation,
    silent_at: Time,
    /// Whether the machine runs under this incarnation.
    is_hosted: bool,
}

/// What to do about another process that leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rival {
    /// It is this one.
    Myself,
    /// It hears that this one leads.
    Tell,
    /// This one gives way.
    GiveWay,
}

impl Lead {
    /// The leader in the process `life` that hosts `mine` itself. Claims are kept apart from `agreed`.
    pub(super) fn new(
        life: Incarnation,
        mine: BTreeSet<Address>,
        agreed: Vec<(String, String)>,
        lease_ms: u64,
    ) -> Self {
        let (control, places) = (Incarnation::default(), BTreeMap::new());
        Self { life, mine, agreed, lease_ms, control, places, is_over: true }
    }

    /// `control` begins. Processes that live keep their places; none hosts anything under it.
    pub(super) fn begin(&mut self, control: Incarnation) {
        self.control = control;
        self.is_over = false;
        self.places.values_mut().for_each(|place| place.is_hosted = false);
    }

    /// It ends here.
    pub(super) fn end(&mut self) {
        self.is_over = true;
    }

    /// The incarnation that counts.
    pub(super) fn control(&self) -> Incarnation {
        self.control
    }

    /// Whether the incarnation has ended, and the next one has to begin.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Whether every machine of another process runs under this incarnation.
    pub(super) fn is_complete(&self) -> bool {
        let is_hosted = |actor: &Address| self.places.get(actor).is_some_and(|place| place.is_hosted);
        !self.is_over && CONTROL.iter().filter(|actor| !self.mine.contains(actor)).all(is_hosted)
    }

    /// Machines that nobody hosts under this incarnation.
    pub(super) fn missing(&self) -> Vec<Address> {
        let is_hosted = |actor: &Address| self.places.get(actor).is_some_and(|place| place.is_hosted);
        CONTROL.into_iter().filter(|actor| !self.mine.contains(actor) && !is_hosted(actor)).collect()
    }

    /// The process `life`, which hosts under `hosted`, asks for places.
    ///
    /// # Errors
    /// It differs in what all must be told alike, names what nobody hosts, or another process has a place: then the
    /// answer says since when that is silent.
    pub(super) fn claim(
        &mut self,
        now: Time,
        life: Incarnation,
        hosted: Incarnation,
        claim: &Claim,
    ) -> Result<Incarnation, LeadAnswer> {
        for (name, mine) in &self.agreed {
            // A process of another version may know other names.
            if let Some((_, yours)) = claim.agreed.iter().find(|(other, _)| other == name) {
                same(name, yours, mine).map_err(LeadAnswer::Refused)?;
            }
        }
        let mut actors = Vec::with_capacity(claim.actors.len().min(CONTROL.len()));
        for name in &claim.actors {
            let actor = Address::parse(name).ok().filter(|actor| CONTROL.contains(actor));
            let Some(actor) = actor else {
                let malformed = Malformed::new("actors", name, "a machine of the control group");
                return Err(LeadAnswer::Refused(malformed.into()));
            };
            if self.mine.contains(&actor) {
                return Err(taken(actor, self.life, 0));
            }
            if let Some(place) = self.places.get(&actor).filter(|place| place.life != life && now < place.silent_at) {
                let left_ms = now.ms_until(place.silent_at);
                return Err(taken(actor, place.life, self.lease_ms.saturating_sub(left_ms)));
            }
            actors.push(actor);
        }
        let silent_at = now.plus_ms(self.lease_ms);
        for actor in actors {
            let had = self.places.get(&actor).copied().filter(|place| place.is_hosted);
            self.is_over |= had.is_some_and(|place| place.life != life);
            // A claim that was late takes nothing back.
            let is_hosted = hosted == self.control || had.is_some_and(|place| place.life == life);
            self.places.insert(actor, Place { life, silent_at, is_hosted });
        }
        Ok(self.control)
    }

    /// The process `life` has ended.
    pub(super) fn leave(&mut self, life: Incarnation) {
        self.give_up(|place| place.life == life);
    }

    /// Gives up the places of processes that have been silent for a lease.
    pub(super) fn wake(&mut self, now: Time) {
        self.give_up(|place| place.silent_at <= now);
    }

    fn give_up(&mut self, is_gone: impl Fn(&Place) -> bool) {
        let is_over = &mut self.is_over;
        self.places.retain(|_, place| {
            let gone = is_gone(place);
            *is_over |= gone && place.is_hosted;
            !gone
        });
    }

    /// Nobody could be heard until `now`: silence counts from here.
    pub(super) fn heard_nobody(&mut self, now: Time) {
        let silent_at = now.plus_ms(self.lease_ms);
        self.places.values_mut().for_each(|place| place.silent_at = silent_at);
    }

    /// When the next place is given up.
    pub(super) fn next_deadline(&self) -> Option<Time> {
        self.places.values().map(|place| place.silent_at).min()
    }

    /// Another process says that it leads. Both hear each other, so the lives decide for both alike.
    pub(super) fn rival(&self, life: Incarnation) -> Rival {
        match life.cmp(&self.life) {
            std::cmp::Ordering::Equal => Rival::Myself,
            std::cmp::Ordering::Greater => Rival::Tell,
            std::cmp::Ordering::Less => Rival::GiveWay,
        }
    }
}

fn taken(actor: Address, by: Incarnation, silent_ms: u64) -> LeadAnswer {
    Taken { actor: actor.to_string(), by, silent_ms }.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINE: Incarnation = Incarnation([1; 16]);
    const A: Incarnation = Incarnation([2; 16]);
    const B: Incarnation = Incarnation([3; 16]);
    const NONE: Incarnation = Incarnation([0; 16]);
    const FIRST: Incarnation = Incarnation([10; 16]);
    const SECOND: Incarnation = Incarnation([11; 16]);
    const LEASE_MS: u64 = 1_000;

    fn at(ms: u64) -> Time {
        Time::ZERO.plus_ms(ms)
    }

    fn claim(actors: &[&str]) -> Claim {
        let actors = actors.iter().map(|name| (*name).to_owned()).collect();
        Claim { actors, agreed: vec![("l2.pages".to_owned(), "64".to_owned())] }
    }

    /// Leads all but the allocator and the writer.
    fn lead() -> Lead {
        let mine = [Address::Index, Address::Loader, Address::Evictor, Address::Sender, Address::Receiver].into();
        let mut lead = Lead::new(MINE, mine, claim(&[]).agreed, LEASE_MS);
        assert!(lead.is_over(), "none has begun");
        lead.begin(FIRST);
        lead
    }

    /// And another process hosts these.
    fn complete() -> Lead {
        let mut lead = lead();
        for hosted in [NONE, FIRST] {
            assert_eq!(lead.claim(at(0), A, hosted, &claim(&["allocator", "writer"])), Ok(FIRST));
        }
        assert!(lead.is_complete());
        lead
    }

    #[test]
    fn it_is_complete_when_every_machine_runs_under_the_incarnation() {
        let mut lead = lead();
        for (life, hosted, actor, is_complete) in [
            (A, NONE, "allocator", false),
            (B, NONE, "writer", false),
            (A, FIRST, "allocator", false),
            (B, SECOND, "writer", false),
            (B, FIRST, "writer", true),
        ] {
            assert_eq!(lead.claim(at(0), life, hosted, &claim(&[actor])), Ok(FIRST));
            assert_eq!(lead.is_complete(), is_complete, "{life:?} hosts {actor} under {hosted:?}");
        }
        assert!(lead.missing().is_empty());
        let alone = Lead::new(MINE, CONTROL.into(), Vec::new(), LEASE_MS);
        assert!(alone.missing().is_empty());
    }

    #[test]
    fn it_is_over_when_a_process_that_hosted_is_silent_for_a_lease() {
        let mut lead = complete();
        assert_eq!(lead.next_deadline(), Some(at(LEASE_MS)));
        lead.wake(at(LEASE_MS - 1));
        assert!(!lead.is_over());
        lead.wake(at(LEASE_MS));
        assert!(lead.is_over() && !lead.is_complete());
        lead.begin(SECOND);
        assert_eq!(lead.missing(), [Address::Allocator, Address::Writer]);
        assert_eq!(lead.next_deadline(), None);
    }

    #[test]
    fn it_is_over_at_once_when_a_process_that_hosted_says_that_it_ends() {
        let mut lead = complete();
        lead.leave(B);
        assert!(lead.is_complete(), "it had no place");
        lead.leave(A);
        assert!(lead.is_over());
        lead.begin(SECOND);
        assert_eq!(lead.missing(), [Address::Allocator, Address::Writer]);
        lead.claim(at(0), B, NONE, &claim(&["allocator", "writer"])).expect("the places are free");
        lead.claim(at(0), B, SECOND, &claim(&["allocator", "writer"])).expect("its own");
        lead.leave(A);
        assert!(lead.is_complete(), "a goodbye that was late takes nothing away");
    }

    #[test]
    fn a_process_that_hosted_nothing_goes_without_a_trace() {
        let mut lead = lead();
        lead.claim(at(0), A, NONE, &claim(&["allocator"])).expect("a place");
        lead.leave(A);
        assert!(!lead.is_over());
        lead.claim(at(0), A, NONE, &claim(&["allocator"])).expect("a place");
        lead.wake(at(LEASE_MS));
        assert!(!lead.is_over());
        lead.claim(at(LEASE_MS), B, NONE, &claim(&["allocator"])).expect("the place is free");
    }

    #[test]
    fn another_process_is_refused_while_the_first_lives_and_ends_the_incarnation_after_it() {
        let mut lead = complete();
        let newcomer = claim(&["allocator"]);
        let taken = |silent_ms| Err(Taken { actor: "allocator".to_owned(), by: A, silent_ms }.into());
        for (ms, answer) in [(0, taken(0)), (LEASE_MS - 1, taken(LEASE_MS - 1)), (LEASE_MS, Ok(FIRST))] {
            assert_eq!(lead.claim(at(ms), B, NONE, &newcomer), answer, "after {ms} ms");
            assert_eq!(lead.is_over(), answer.is_ok());
        }
        lead.begin(SECOND);
        assert_eq!(lead.claim(at(LEASE_MS), A, FIRST, &claim(&["writer"])), Ok(SECOND), "the other place is kept");
        let taken = Taken { actor: "allocator".to_owned(), by: B, silent_ms: 0 };
        assert_eq!(lead.claim(at(LEASE_MS), A, FIRST, &newcomer), Err(taken.into()));
    }

    #[test]
    fn a_claim_that_was_late_takes_nothing_back() {
        let mut lead = complete();
        lead.claim(at(5), A, NONE, &claim(&["allocator", "writer"])).expect("its own places");
        assert!(lead.is_complete());
    }

    #[test]
    fn claims_that_do_not_fit_are_refused_and_change_nothing() {
        let mut lead = lead();
        let other = Claim { agreed: vec![("l2.pages".to_owned(), "32".to_owned())], ..claim(&["allocator"]) };
        for (claim, code) in [
            (claim(&["allocator", "index"]), "taken"),
            (claim(&["allocator", "rank.0"]), "refused"),
            (claim(&["allocator", "prefetcher"]), "refused"),
            (other, "refused"),
        ] {
            assert_eq!(lead.claim(at(0), A, NONE, &claim).expect_err("refused").code(), code, "{claim:?}");
        }
        assert_eq!(lead.missing(), [Address::Allocator, Address::Writer]);
        assert_eq!(lead.next_deadline(), None);
    }

    #[test]
    fn silence_does_not_count_while_nobody_can_be_heard() {
        let mut lead = complete();
        lead.heard_nobody(at(5 * LEASE_MS));
        lead.wake(at(5 * LEASE_MS));
        assert!(!lead.is_over());
        assert_eq!(lead.next_deadline(), Some(at(6 * LEASE_MS)));
    }

    #[test]
    fn of_two_leaders_one_gives_way() {
        let (mine, other) = (lead(), Lead::new(A, [Address::Index].into(), Vec::new(), LEASE_MS));
        assert_eq!((mine.rival(A), other.rival(MINE)), (Rival::Tell, Rival::GiveWay));
        assert_eq!(mine.rival(MINE), Rival::Myself);
    }
}
