//! One seed: faults, healing, the end of everything, and what must be true then.

use std::fmt;

use hicached_actors::faults::Fault;
use hicached_actors::protocol::{Answer, Flush, Flushed, Keys, Request, Time};

use crate::chance::Chance;
use crate::checks::Violation;
use crate::engine::traffic::Load;
use crate::group;
use crate::mix::{Mix, Sizes};
use crate::net::Stats;
use crate::world::{Birth, Heard, Sim};

/// What a run is asked for.
#[derive(Clone, Debug)]
pub struct Options {
    /// All chance grows from it.
    pub seed: u64,
    /// Machine steps (messages handled and wakes) before everything is asked to end.
    pub steps: u64,
    /// A fault planted in the machines; needs the feature `planted-faults`.
    pub fault: Fault,
    /// The mix, when it is not the seed's.
    pub mix: Option<Mix>,
    /// The sizes, when they are not the seed's.
    pub sizes: Option<Sizes>,
    /// Says every message on standard error.
    pub traced: bool,
    /// Says nothing on failure.
    pub quiet: bool,
}

/// What came of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// Machine steps, those of the end included.
    pub steps: u64,
    /// Hash of every message, in order, with its time.
    pub trace_hash: u64,
    /// What was found.
    pub violation: Option<Violation>,
    /// Counts.
    pub stats: Stats,
}

impl Options {
    /// A run of `steps` machine steps of `seed`.
    pub const fn new(seed: u64, steps: u64) -> Self {
        Self { seed, steps, fault: Fault::None, mix: None, sizes: None, traced: false, quiet: false }
    }

    /// The command that repeats this run.
    pub fn command(&self) -> String {
        format!("hicached sim --seed {} --steps {}", self.seed, self.steps)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}: {} steps, trace {:016x}, ", self.seed, self.steps, self.trace_hash)?;
        match &self.violation {
            None => write!(f, "nothing found")?,
            Some(violation) => write!(f, "{}: {}", violation.checker, violation.detail)?,
        }
        write!(f, "; {:?}", self.stats)
    }
}

/// What every member of a world was given, and what its first control incarnation began with. The end is left out.
pub fn heard(options: &Options) -> (Birth, Vec<Heard>) {
    let (mut sim, _, _) = world(options);
    sim.heard = Some(Vec::new());
    while sim.steps < options.steps && sim.happen(FOREVER).is_ok() {}
    (sim.birth, sim.heard.unwrap_or_default())
}

/// The world of a seed.
fn world(options: &Options) -> (Sim, Sizes, Mix) {
    let mut chance = Chance::new(options.seed);
    let (drawn_sizes, drawn_mix) = (Sizes::draw(&mut chance), Mix::draw(&mut chance));
    let sizes = options.sizes.clone().unwrap_or(drawn_sizes);
    let mix = options.mix.clone().unwrap_or(drawn_mix);
    let mut sim = Sim::new(sizes.clone(), mix.clone(), chance, group::maker(options.fault));
    sim.traced = options.traced;
    (sim, sizes, mix)
}

/// Runs one seed to its end.
pub fn run(options: &Options) -> Report {
    let (mut sim, sizes, mix) = world(options);
    let violation = live(&mut sim, options.steps).err();
    if let Some(violation) = &violation
        && !options.quiet
    {
        eprintln!("{}: {}", violation.checker, violation.detail);
        eprintln!("at {:?} after {} steps, {sizes:?}, {mix:?}", sim.net.now, sim.steps);
        for at in sim.control.addresses() {
            let figures = sim.control.figures(at);
            let told: Vec<String> =
                figures.iter().filter(|(_, value)| *value > 0).map(|(name, value)| format!("{name} {value}")).collect();
            eprintln!("{at}: {}", told.join(", "));
        }
        eprintln!("reproduce: {}", options.command());
    }
    let (steps, trace_hash, stats) = (sim.steps, sim.net.trace_hash, sim.net.stats);
    Report { seed: options.seed, steps, trace_hash, violation, stats }
}

/// Faults, then traffic without faults, then the end.
fn live(sim: &mut Sim, steps: u64) -> Result<(), Violation> {
    while sim.steps < steps * 6 / 10 {
        sim.happen(FOREVER)?;
    }
    sim.heal();
    while sim.steps < steps * 8 / 10 {
        sim.happen(FOREVER)?;
    }
    sim.load = Load::Finish;
    sim.end()
}

impl Sim {
    /// Lets everything end, gives every page up, and checks that nothing is left (E2).
    ///
    /// # Errors
    /// What has not ended, or what is left.
    pub fn end(&mut self) -> Result<(), Violation> {
        self.until_ended()?;
        self.until_flushed()?;
        // A reservation whose answer was lost is asked about when it is a minute old, and an op whose answer was lost
        // ends with the next repeat of what it waits for.
        let until = self.net.now.plus_ms(END_MS);
        loop {
            let (left, said) = (group::leaks(self), self.spans.all_said());
            if left.is_empty() && said.is_ok() {
                return Ok(());
            }
            if !self.happen(until)? {
                return if left.is_empty() { said } else { Err(Violation { checker: "E2", detail: left.join("; ") }) };
            }
        }
    }

    fn until_ended(&mut self) -> Result<(), Violation> {
        let until = self.net.now.plus_ms(END_MS);
        while !self.is_idle() {
            if !self.happen(until)? || self.net.now >= until {
                return Err(Violation { checker: "liveness", detail: self.unfinished() });
            }
        }
        Ok(())
    }

    fn is_idle(&self) -> bool {
        let asks = self.engine.pending.values();
        let heartbeat = |pending: &crate::engine::Pending| matches!(pending.ask, crate::engine::Ask::Heartbeat(_));
        self.engine.is_ready(&self.memory.layout)
            && self.engine.sessions.is_empty()
            && self.engine.steps.is_empty()
            && asks.filter(|pending| !heartbeat(pending)).count() == 0
    }

    fn until_flushed(&mut self) -> Result<(), Violation> {
        for mut pin in std::mem::take(&mut self.pins) {
            pin.on = false;
            self.request(pin.into())?;
        }
        let mut last = None;
        for _ in 0..FLUSHES_MAX {
            let flush = |quarantined| Flush { tier: 0, salt: Vec::new(), prefix: Keys::default(), quarantined };
            self.request(flush(true).into())?;
            let answer = self.request(flush(false).into())?;
            if let Answer::Flushed(Flushed { l1_kept: 0, l2_kept: 0, in_flight: 0, .. }) = &answer {
                return Ok(());
            }
            last = Some(answer);
            let until = self.net.now.plus_ms(500);
            while self.happen(until)? {}
        }
        Err(Violation { checker: "liveness", detail: format!("a flush keeps on keeping: {last:?}") })
    }

    /// Asks the index and waits for the answer.
    ///
    /// # Errors
    /// What must never be, or no answer within a minute.
    pub fn request(&mut self, request: Request) -> Result<Answer, Violation> {
        let what = request.code();
        let number = self.engine.plain(&mut self.net, request);
        let until = self.net.now.plus_ms(END_MS);
        loop {
            if let Some(answer) = self.engine.plain.remove(&number) {
                return Ok(answer);
            }
            if !self.happen(until)? {
                return Err(Violation { checker: "liveness", detail: format!("{what} is not answered") });
            }
        }
    }
}

const FOREVER: Time = Time { ns: u64::MAX };

/// Virtual time in which everything ends once faults have stopped: leases and the longest pauses included.
const END_MS: u64 = 180_000;

/// Flushes that may find something in use after all sessions have ended.
const FLUSHES_MAX: usize = 40;
