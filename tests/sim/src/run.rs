//! One seed: faults, healing, the end of everything, and what must be true then.

use std::fmt;

use hicached_actors::faults::Fault;
use hicached_actors::protocol::{Answer, Flush, Flushed, Keys, Request, Time};

use crate::chance::Chance;
use crate::checks::Violation;
use crate::engine::traffic::Load;
use crate::group;
use crate::mix::{Mix, Sizes};
use crate::net::{Stats, TransferStats};
use crate::pair;
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
    /// Two groups, one of which hands its prompts over; sizes and mix are the seed's.
    pub transfers: bool,
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
    /// Counts of handovers.
    pub transfers: TransferStats,
}

impl Options {
    /// A run of `steps` machine steps of `seed`.
    pub const fn new(seed: u64, steps: u64) -> Self {
        let (fault, mix, sizes) = (Fault::None, None, None);
        Self { seed, steps, fault, mix, sizes, transfers: false, traced: false, quiet: false }
    }

    /// The command that repeats this run.
    pub fn command(&self) -> String {
        let transfers = if self.transfers { " --transfers" } else { "" };
        format!("hicached sim --seed {} --steps {}{transfers}", self.seed, self.steps)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}: {} steps, trace {:016x}, ", self.seed, self.steps, self.trace_hash)?;
        match &self.violation {
            None => write!(f, "nothing found")?,
            Some(violation) => write!(f, "{}: {}", violation.checker, violation.detail)?,
        }
        write!(f, "; {:?}, {:?}", self.stats, self.transfers)
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
    if options.transfers {
        return pair::run(options);
    }
    let (mut sim, sizes, mix) = world(options);
    let violation = live(&mut sim, options.steps).err();
    if let Some(violation) = &violation
        && !options.quiet
    {
        eprintln!("{}: {}", violation.checker, violation.detail);
        eprintln!("at {:?} after {} steps, {sizes:?}, {mix:?}", sim.net.now, sim.steps);
        tell_figures(&sim);
        eprintln!("reproduce: {}", options.command());
    }
    let (steps, trace_hash, stats) = (sim.steps, sim.net.trace_hash, sim.net.stats);
    Report { seed: options.seed, steps, trace_hash, violation, stats, transfers: TransferStats::default() }
}

/// Says what the machines of a group have counted, on standard error.
pub(crate) fn tell_figures(sim: &Sim) {
    for at in sim.control.addresses() {
        let figures = sim.control.figures(at);
        let told: Vec<String> =
            figures.iter().filter(|(_, value)| *value > 0).map(|(name, value)| format!("{name} {value}")).collect();
        eprintln!("{at}: {}", told.join(", "));
    }
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

/// What can be run to its end: a group, or two of them.
pub(crate) trait World {
    /// Lets the next event happen, not later than `until`; `false` when there is none.
    ///
    /// # Errors
    /// What must never be.
    fn happen(&mut self, until: Time) -> Result<bool, Violation>;

    /// What the clock says.
    fn now(&self) -> Time;

    /// Its groups.
    fn groups(&self) -> Vec<&Sim>;

    /// One of them.
    fn group(&mut self, at: usize) -> &mut Sim;

    /// Whether every request has ended.
    fn is_idle(&self) -> bool;

    /// One line about everything that has not ended, for a failure of liveness.
    fn unfinished(&self) -> String;
}

impl World for Sim {
    fn happen(&mut self, until: Time) -> Result<bool, Violation> {
        Self::happen(self, until)
    }

    fn now(&self) -> Time {
        self.net.now
    }

    fn groups(&self) -> Vec<&Sim> {
        vec![self]
    }

    fn group(&mut self, _at: usize) -> &mut Sim {
        self
    }

    fn is_idle(&self) -> bool {
        self.is_at_rest()
    }

    fn unfinished(&self) -> String {
        Self::unfinished(self)
    }
}

impl Sim {
    /// Lets everything end, gives every page up, and checks that nothing is left (E2).
    ///
    /// # Errors
    /// What has not ended, or what is left.
    pub fn end(&mut self) -> Result<(), Violation> {
        end(self)
    }

    /// Asks the index and waits for the answer.
    ///
    /// # Errors
    /// What must never be, or no answer within a minute.
    pub fn request(&mut self, request: Request) -> Result<Answer, Violation> {
        ask(self, 0, request)
    }

    /// Whether every session has ended and every request is answered.
    pub(crate) fn is_at_rest(&self) -> bool {
        let asks = self.engine.pending.values();
        let heartbeat = |pending: &crate::engine::Pending| matches!(pending.ask, crate::engine::Ask::Heartbeat(_));
        self.engine.is_ready(&self.memory.layout)
            && self.engine.sessions.is_empty()
            && self.engine.steps.is_empty()
            && asks.filter(|pending| !heartbeat(pending)).count() == 0
    }
}

/// Lets everything of a world end, gives every page up, and checks that nothing is left (E2).
///
/// # Errors
/// What has not ended, or what is left.
pub(crate) fn end(world: &mut impl World) -> Result<(), Violation> {
    until_ended(world)?;
    (0..world.groups().len()).try_for_each(|at| until_flushed(world, at))?;
    // A reservation whose answer was lost is asked about when it is a minute old, and an op whose answer was lost
    // ends with the next repeat of what it waits for.
    let until = world.now().plus_ms(END_MS);
    loop {
        let left: Vec<String> = world.groups().into_iter().flat_map(group::leaks).collect();
        let said = world.groups().into_iter().try_for_each(|sim| sim.spans.all_said());
        if left.is_empty() && said.is_ok() {
            return Ok(());
        }
        if !world.happen(until)? {
            return if left.is_empty() { said } else { Err(Violation { checker: "E2", detail: left.join("; ") }) };
        }
    }
}

fn until_ended(world: &mut impl World) -> Result<(), Violation> {
    let until = world.now().plus_ms(END_MS);
    while !world.is_idle() {
        if !world.happen(until)? || world.now() >= until {
            return Err(Violation { checker: "liveness", detail: world.unfinished() });
        }
    }
    Ok(())
}

/// Takes back what operators have pinned in one group.
pub(crate) fn unpin(world: &mut impl World, at: usize) -> Result<(), Violation> {
    for mut pin in std::mem::take(&mut world.group(at).pins) {
        pin.on = false;
        ask(world, at, pin.into())?;
    }
    Ok(())
}

fn until_flushed(world: &mut impl World, at: usize) -> Result<(), Violation> {
    unpin(world, at)?;
    let mut last = None;
    for _ in 0..FLUSHES_MAX {
        let flush = |quarantined| Flush { tier: 0, salt: Vec::new(), prefix: Keys::default(), quarantined };
        ask(world, at, flush(true).into())?;
        let answer = ask(world, at, flush(false).into())?;
        if let Answer::Flushed(Flushed { l1_kept: 0, l2_kept: 0, in_flight: 0, .. }) = &answer {
            return Ok(());
        }
        last = Some(answer);
        let until = world.now().plus_ms(500);
        while world.happen(until)? {}
    }
    Err(Violation { checker: "liveness", detail: format!("a flush keeps on keeping: {last:?}") })
}

/// Asks the index of one group of a world and waits for the answer.
///
/// # Errors
/// What must never be, or no answer within a minute.
pub(crate) fn ask(world: &mut impl World, at: usize, request: Request) -> Result<Answer, Violation> {
    let what = request.code();
    let sim = world.group(at);
    let number = sim.engine.plain(&mut sim.net, request);
    let until = world.now().plus_ms(END_MS);
    loop {
        if let Some(answer) = world.group(at).engine.plain.remove(&number) {
            return Ok(answer);
        }
        if !world.happen(until)? {
            return Err(Violation { checker: "liveness", detail: format!("{what} is not answered") });
        }
    }
}

pub(crate) const FOREVER: Time = Time { ns: u64::MAX };

/// Virtual time in which everything ends once faults have stopped: leases and the longest pauses included.
const END_MS: u64 = 180_000;

/// Flushes that may find something in use after all sessions have ended.
const FLUSHES_MAX: usize = 40;
