//! When which kind of process is killed: drawn from a seed, so that a run can be had again.
//!
//! Each kind gets its share. A kill comes a while after the group serves again, or, once in a while, soon after the
//! one before it, whatever state the group is in.

use std::time::Duration;

use hicached_actors::calls::draw;
use tokio::time::Instant;

use super::options::Kind;

/// What is to be killed.
#[derive(Debug)]
pub(super) struct Kills {
    chance: u64,
    kinds: Vec<Kind>,
    /// Kinds of the round that runs, last first.
    round: Vec<Kind>,
    left: u32,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The group has to serve first; a request has to end after `over` had.
    Settling { since: Instant, over: u64 },
    /// The next kill comes then.
    Due { at: Instant },
}

impl Kills {
    pub(super) fn new(kills: u32, kinds: &[Kind], seed: u64, now: Instant) -> Self {
        let mut kinds = kinds.to_vec();
        kinds.sort();
        kinds.dedup();
        let phase = Phase::Settling { since: now, over: 0 };
        Self { chance: seed ^ KILLS_SEED, kinds, round: Vec::new(), left: kills, phase }
    }

    /// Whether none is left, and the group serves behind the last one.
    pub(super) fn are_over(&self) -> bool {
        self.left == 0 && self.unsettled_since().is_none()
    }

    /// When the next kill is due, if that is known.
    pub(super) fn due(&self) -> Option<Instant> {
        match self.phase {
            Phase::Due { at } if self.left > 0 => Some(at),
            Phase::Due { .. } | Phase::Settling { .. } => None,
        }
    }

    /// Since when the group has not served, if that is waited for.
    pub(super) fn unsettled_since(&self) -> Option<Instant> {
        match self.phase {
            Phase::Settling { since, .. } => Some(since),
            Phase::Due { .. } => None,
        }
    }

    /// The group serves, and `over` requests are over.
    pub(super) fn serves(&mut self, now: Instant, over: u64) {
        if let Phase::Settling { over: before, .. } = self.phase
            && over > before
        {
            let at = now + self.between(CALM_MS);
            self.phase = Phase::Due { at };
        }
    }

    /// The kind to kill, and a number that says which process of that kind. `over` requests are over.
    pub(super) fn kill(&mut self, now: Instant, over: u64) -> Option<(Kind, u64)> {
        self.left = self.left.checked_sub(1)?;
        if self.round.is_empty() {
            self.round.clone_from(&self.kinds);
            for at in (1..self.round.len()).rev() {
                let with = draw(&mut self.chance) as usize % (at + 1);
                self.round.swap(at, with);
            }
        }
        let kind = self.round.pop()?;
        let which = draw(&mut self.chance);
        // Behind the last one nothing follows but the question whether the group serves.
        let is_early = draw(&mut self.chance) % 1_000 < EARLY_PERMILLE && self.left > 0;
        self.phase = match is_early {
            true => Phase::Due { at: now + self.between(EARLY_MS) },
            false => Phase::Settling { since: now, over },
        };
        Some((kind, which))
    }

    /// No process of `kind` ran: the kill is made up for soon.
    pub(super) fn missed(&mut self, kind: Kind, now: Instant) {
        self.left += 1;
        self.round.push(kind);
        self.phase = Phase::Due { at: now + MISSED_PAUSE };
    }

    fn between(&mut self, (least, most): (u64, u64)) -> Duration {
        Duration::from_millis(least + draw(&mut self.chance) % (most - least + 1))
    }
}

/// Apart from the seed of the workload.
const KILLS_SEED: u64 = 0x6b69_6c6c;
/// From the first request that ended after a kill to the next kill.
const CALM_MS: (u64, u64) = (50, 1_500);
/// Kills of a thousand after which the next one does not wait for that.
const EARLY_PERMILLE: u64 = 200;
const EARLY_MS: (u64, u64) = (0, 600);
/// A process that was killed is started again in less.
const MISSED_PAUSE: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_gets_its_share_and_the_same_seed_the_same_kills() {
        let now = Instant::now();
        let all = [Kind::Control, Kind::Rank, Kind::Engine, Kind::Broker];
        let run = |seed| {
            let mut kills = Kills::new(40, &all, seed, now);
            let mut killed = Vec::new();
            let mut early = 0;
            while !kills.are_over() {
                match kills.due() {
                    Some(at) if kills.unsettled_since().is_none() => {
                        assert!(at >= now);
                        killed.push(kills.kill(now, 7).unwrap());
                        early += u32::from(kills.due().is_some());
                    }
                    _ => {
                        kills.serves(now, 7);
                        assert!(killed.is_empty() || kills.due().is_none(), "no request has ended yet");
                        kills.serves(now, 8);
                    }
                }
            }
            assert!((1..20).contains(&early), "{early}");
            killed
        };
        let killed = run(3);
        for kind in all {
            assert_eq!(killed.iter().filter(|(have, _)| *have == kind).count(), 10);
        }
        assert!(killed == run(3) && killed != run(4));
    }
}
