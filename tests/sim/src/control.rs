//! The machines of a control group, driven as bytes; they live and die together.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use hicached_actors::host::{Host, Output};
use hicached_actors::machine::{Machine, Trace};
use hicached_actors::protocol::{Address, Incarnation, Time};

use crate::checks::Violation;

/// A hosted machine, whatever its inbox.
pub trait Actor {
    /// Takes the bytes of one message.
    fn deliver(&mut self, now: Time, bytes: &[u8], reply: Option<Arc<str>>, trace: Trace, out: &mut Output);
    /// Acts on time.
    fn wake(&mut self, now: Time, out: &mut Output);
    /// The earliest deadline and what it is for.
    fn next_deadline(&self) -> Option<(Time, &'static str)>;
    /// Panics when the machine contradicts itself.
    fn check(&self);
    /// Named figures.
    fn counters(&self) -> Vec<(&'static str, u64)>;
    /// Figures of each rank apart.
    fn rank_counters(&self) -> Vec<(String, u64)>;
    /// The machine itself.
    fn machine(&self) -> &dyn Any;
}

impl<M: Machine + 'static> Actor for Host<M> {
    fn deliver(&mut self, now: Time, bytes: &[u8], reply: Option<Arc<str>>, trace: Trace, out: &mut Output) {
        Self::deliver(self, now, bytes, reply, trace, out);
    }

    fn wake(&mut self, now: Time, out: &mut Output) {
        Self::wake(self, now, out);
    }

    fn next_deadline(&self) -> Option<(Time, &'static str)> {
        Self::next_deadline(self)
    }

    fn check(&self) {
        self.machine.check_invariants();
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        Self::counters(self)
    }

    fn rank_counters(&self) -> Vec<(String, u64)> {
        self.machine.rank_counters()
    }

    fn machine(&self) -> &dyn Any {
        &self.machine
    }
}

/// One life of a control group.
pub struct Control {
    /// Its incarnation.
    pub life: Incarnation,
    actors: BTreeMap<Address, Box<dyn Actor>>,
}

impl Control {
    /// A group of these actors.
    pub fn new(life: Incarnation, actors: impl IntoIterator<Item = (Address, Box<dyn Actor>)>) -> Self {
        Self { life, actors: actors.into_iter().collect() }
    }

    /// One more actor in it.
    pub(crate) fn host(&mut self, at: Address, actor: Box<dyn Actor>) {
        self.actors.insert(at, actor);
    }

    /// Everybody in it.
    pub fn addresses(&self) -> Vec<Address> {
        self.actors.keys().copied().collect()
    }

    /// Runs `act` on one actor and checks that it does not contradict itself; `false` when nobody is there.
    ///
    /// # Errors
    /// The panic of the machine, as a violation that names it.
    pub fn drive(&mut self, at: Address, act: impl FnOnce(&mut dyn Actor)) -> Result<bool, Violation> {
        let Some(actor) = self.actors.get_mut(&at) else { return Ok(false) };
        catch_unwind(AssertUnwindSafe(|| {
            act(actor.as_mut());
            actor.check();
        }))
        .map_err(|panic| {
            let said = panic.downcast_ref::<String>().map(String::as_str);
            let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no text");
            Violation { checker: "invariant", detail: format!("{at}: {said}") }
        })?;
        Ok(true)
    }

    /// The earliest deadline of one actor.
    pub fn next_deadline(&self, at: Address) -> Option<(Time, &'static str)> {
        self.actors.get(&at).and_then(|actor| actor.next_deadline())
    }

    /// A machine, to look at.
    pub fn machine<M: 'static>(&self, at: Address) -> Option<&M> {
        self.actors.get(&at)?.machine().downcast_ref()
    }

    /// Figures of one actor by name; 0 when it has none of that name.
    pub fn figure(&self, at: Address, name: &str) -> u64 {
        let figures = self.actors.get(&at).map(|actor| actor.counters()).unwrap_or_default();
        figures.iter().find(|(of, _)| *of == name).map_or(0, |(_, value)| *value)
    }

    /// What one actor tells of each rank apart.
    pub fn rank_figures(&self, at: Address) -> Vec<(String, u64)> {
        self.actors.get(&at).map(|actor| actor.rank_counters()).unwrap_or_default()
    }

    /// All figures of one actor.
    pub fn figures(&self, at: Address) -> Vec<(&'static str, u64)> {
        self.actors.get(&at).map(|actor| actor.counters()).unwrap_or_default()
    }
}
