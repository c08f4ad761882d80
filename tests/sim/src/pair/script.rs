//! Two groups for scenarios: fixed sizes, no faults, and engines that do what a test says.

use hicached_actors::faults::Fault;
use hicached_actors::protocol::{Address, HandoverWish, Incarnation, OpId, Rank};

use super::{DECODE, Pair, PairMix, PairSizes};
use crate::chance::Chance;
use crate::engine::traffic::Load;
use crate::engine::{Engine, Phase};
use crate::group::{self, Patience};
use crate::mix::{Mix, Sizes};
use crate::run::World;
use crate::script::Prompt;
use crate::world::Sim;

/// A scripted pair of groups. Every method panics when something happens that must never be.
pub struct PairScript {
    /// The world.
    pub pair: Pair,
}

impl PairScript {
    /// Two groups that serve, of these sizes; one push may take `deadline_ms`, the time in its queue left out.
    pub fn new(prefill: Sizes, decode: Sizes, deadline_ms: u64) -> Self {
        let sizes = PairSizes { prefill, decode, patience: Patience { wait_ms: 60_000, deadline_ms } };
        let mix = PairMix { prefill: Mix::calm(100), decode: Mix::calm(100), between: Mix::calm(100) };
        let mut pair = Pair::new(&sizes, mix, Chance::new(1), Fault::None);
        pair.set_load(Load::Finish);
        for sim in [&mut pair.prefill, &mut pair.decode] {
            sim.scripted = true;
            sim.engine.patient = true;
        }
        let mut script = Self { pair };
        script.until("serving", |pair| {
            let serves = |sim: &&Sim| sim.engine.is_ready(&sim.memory.layout) && group::index(sim).is_serving();
            pair.groups().iter().all(serves)
        });
        script
    }

    /// Lets the world run until `done`.
    pub fn until(&mut self, what: &str, done: impl Fn(&Pair) -> bool) {
        let until = self.pair.now().plus_ms(WAIT_MS);
        while !done(&self.pair) {
            let happened = self.pair.happen(until).unwrap_or_else(|found| panic!("{found:?}"));
            assert!(happened, "{what} never came: {}", self.pair.unfinished());
        }
    }

    /// Computes a prompt in the group that sends, and closes: its pages wait for the other side. The session's number.
    pub fn send(&mut self, transfer: u64, prompt: &Prompt) -> u64 {
        let number = open(&mut self.pair.prefill, transfer, prompt, DECODE);
        self.until("opened", |pair| pair.prefill.engine.sessions[&number].phase == Phase::Live);
        let Sim { net, memory, engine, .. } = &mut self.pair.prefill;
        let session = &engine.sessions[&number];
        let run = (number, session.end(), session.spec.draft);
        let step = engine.step(net, memory, &[run]).unwrap_or_else(|found| panic!("{found:?}"));
        self.pair.prefill.follow_words().unwrap_or_else(|found| panic!("{found:?}"));
        self.until("step", |pair| pair.prefill.engine.last_done >= step);
        let Sim { net, memory, engine, .. } = &mut self.pair.prefill;
        engine.close(net, &memory.layout, number);
        number
    }

    /// Opens the side that receives; the session's number.
    pub fn receive(&mut self, transfer: u64, prompt: &Prompt) -> u64 {
        open(&mut self.pair.decode, transfer, prompt, "")
    }

    /// Whether every byte of a session's prompt has come, and was compared.
    pub fn has_come(&self, number: u64) -> bool {
        self.pair.decode.engine.sessions[&number].came
    }

    /// A figure of one rank that the sender tells of.
    pub fn rank_figure(&self, rank: Rank, name: &str) -> u64 {
        let name = format!("sender.rank.{}.{name}", rank.0);
        self.sender_tells(&name).unwrap_or_else(|| panic!("nothing is told of {name}"))
    }

    /// Any figure that the sender tells of its ranks.
    pub fn sender_tells(&self, name: &str) -> Option<u64> {
        let told = self.pair.prefill.control.rank_figures(Address::Sender);
        told.into_iter().find(|(known, _)| known == name).map(|(_, value)| value)
    }

    /// Ends the sessions that have come, and then everything: nothing is left on either side.
    pub fn end(&mut self) {
        let Sim { net, memory, engine, .. } = &mut self.pair.decode;
        for number in engine.with_phase(Phase::Live) {
            engine.close(net, &memory.layout, number);
        }
        self.until("closed", |pair| {
            let is_over = |sim: &&Sim| sim.engine.sessions.values().all(|session| session.phase == Phase::Ended);
            pair.groups().iter().all(is_over)
        });
        for sim in [&mut self.pair.prefill, &mut self.pair.decode] {
            sim.engine.sessions.clear();
        }
        crate::run::end(&mut self.pair).unwrap_or_else(|found| panic!("{found:?}"));
    }
}

fn open(sim: &mut Sim, transfer: u64, prompt: &Prompt, to: &str) -> u64 {
    let transfer = OpId::new(Incarnation([0x77; 16]), transfer);
    let wish = HandoverWish { transfer, attempt: 1, to: to.to_owned() };
    let mut spec = prompt.spec(Engine::salt(&sim.memory.layout, b"salt"));
    if to.is_empty() {
        // The group that receives has one rank.
        spec.owners.clear();
    }
    spec.handover = Some(wish);
    sim.engine.open(&mut sim.net, &sim.memory.layout, spec)
}

/// Nothing a test waits for takes longer.
const WAIT_MS: u64 = 60_000;
