//! One seed of two groups: faults, healing, the end of everything, and what must be true then.

use super::{Pair, PairMix, PairSizes};
use crate::chance::Chance;
use crate::checks::Violation;
use crate::engine::traffic::Load;
use crate::run::{FOREVER, Options, Report, World, end, tell_figures, unpin};

/// Runs one seed to its end.
pub(crate) fn run(options: &Options) -> Report {
    let mut chance = Chance::new(options.seed);
    let (sizes, mix) = (PairSizes::draw(&mut chance), PairMix::draw(&mut chance));
    let mut pair = Pair::new(&sizes, mix.clone(), chance, options.fault);
    (pair.prefill.traced, pair.decode.traced) = (options.traced, options.traced);
    let violation = live(&mut pair, options.steps).err();
    if let Some(violation) = &violation
        && !options.quiet
    {
        eprintln!("{}: {}", violation.checker, violation.detail);
        eprintln!("at {:?} after {} steps, {sizes:?}, {mix:?}", pair.between.now, pair.steps());
        for (name, sim) in [("prefill", &pair.prefill), ("decode", &pair.decode)] {
            eprintln!("{name}:");
            tell_figures(sim);
        }
        eprintln!("reproduce: {}", options.command());
    }
    let nets = [&pair.prefill.net, &pair.decode.net, &pair.between];
    let trace_hash = nets.into_iter().fold(0, |hash: u64, net| hash.rotate_left(21) ^ net.trace_hash);
    let stats = pair.prefill.net.stats.plus(&pair.decode.net.stats);
    Report { seed: options.seed, steps: pair.steps(), trace_hash, violation, stats, transfers: pair.transfers() }
}

/// Faults, then traffic without faults, then the end.
fn live(pair: &mut Pair, steps: u64) -> Result<(), Violation> {
    while pair.steps() < steps * 6 / 10 {
        pair.happen(FOREVER)?;
    }
    pair.heal();
    // Every request is served in the end: nobody keeps pages that it needs.
    unpin(pair, 0)?;
    unpin(pair, 1)?;
    while pair.steps() < steps * 8 / 10 {
        pair.happen(FOREVER)?;
    }
    pair.set_load(Load::Finish);
    end(pair)
}

impl Pair {
    /// Machine steps of both groups.
    pub(crate) fn steps(&self) -> u64 {
        self.prefill.steps + self.decode.steps
    }
}
