//! Many transfers at a time on a bus that loses, repeats, delays and reorders, between groups whose members give up
//! and die: whatever comes of it, what arrives is right, and what ends is proven.

use std::collections::BTreeMap;

use hicached_actors::calls::draw;
use hicached_actors::faults::Faults;
use hicached_actors::protocol::{OpId, Rank};

use crate::world::{CP, World, transfer};

/// What happens in one run: transfers by the attempt they are at.
struct Run {
    world: World,
    attempts: BTreeMap<OpId, u32>,
    lives: u8,
}

impl Run {
    fn new(seed: u64, faults: Faults) -> Self {
        let mut world = World::with_faults(seed, faults);
        world.bus.lost = 3;
        world.bus.twice = 10;
        world.bus.is_slow = true;
        world.prefill.holds = seed.is_multiple_of(2);
        Self { world, attempts: BTreeMap::new(), lives: 0x40 }
    }

    fn begin(&mut self, op: OpId) {
        let attempt = self.attempts.entry(op).or_insert(0);
        *attempt += 1;
        let tokens = 1 + (op.counter() * 97 % 700) as u32;
        self.world.begin(op, *attempt, tokens, 0);
    }

    /// Transfers whose attempt has ended on both sides without all pages: the next one begins.
    fn raise(&mut self) {
        for (op, attempt) in self.attempts.clone() {
            let ends = (self.world.prefill.over.get(&(op, attempt)), self.world.decode.ends.get(&(op, attempt)));
            if let (Some(_), Some(Err(_))) = ends {
                self.begin(op);
            }
        }
    }

    fn trouble(&mut self) {
        let chance = draw(&mut self.world.seed);
        let op = transfer(1 + chance / 64 % TRANSFERS);
        match chance % 64 {
            0..8 => self.world.stop(op),
            8..16 => self.world.unexpect(op),
            16..20 => {
                self.lives += 1;
                self.world.replace_prefill_rank(Rank((chance / 64 % u64::from(CP)) as u8), self.lives);
            }
            20..22 => {
                self.lives += 1;
                self.world.replace_decode_rank(self.lives);
            }
            22..40 => self.world.push_held(),
            _ => {}
        }
    }

    fn go(&mut self) {
        for n in 1..=TRANSFERS {
            self.begin(transfer(n));
        }
        for step in 0..STEPS {
            self.world.step();
            if step % 8 == 0 {
                self.trouble();
            }
            self.raise();
        }
        // Trouble ends: every transfer arrives in the end.
        self.world.prefill.holds = false;
        self.world.bus.lost = 0;
        while !self.world.is_quiet() {
            self.world.run();
            self.raise();
        }
        for (op, attempt) in &self.attempts {
            let end = self.world.decode.ends.get(&(*op, *attempt));
            assert_eq!(end, Some(&Ok(())), "{op:?} attempt {attempt}");
        }
    }
}

#[test]
fn whatever_the_bus_does_what_arrives_is_right_and_every_transfer_ends() {
    for seed in 0..SEEDS {
        Run::new(seed, Faults::NONE).go();
    }
}

#[cfg(feature = "planted-faults")]
mod planted {
    use super::*;
    use hicached_actors::faults::Fault;

    /// Panics of runs are expected here.
    fn is_found(fault: Fault) -> bool {
        (0..SEEDS).any(|seed| {
            let run = || Run::new(seed, Faults::planted(fault)).go();
            std::panic::catch_unwind(run).is_err()
        })
    }

    #[test]
    fn messages_of_an_older_attempt_that_are_taken_are_found() {
        assert!(is_found(Fault::StaleTransferAccepted));
    }
}

const SEEDS: u64 = 200;
const STEPS: u64 = 1_500;
const TRANSFERS: u64 = 6;
