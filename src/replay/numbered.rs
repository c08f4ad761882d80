//! The requests of a run by their numbers: whoever is given a number makes the same prompt of it, so that an engine
//! can be replaced by another one that goes on.
//!
//! Numbers go on for ever; what they stand for begins again after each lap.

use hicached_actors::protocol::Manifest;
use hicached_client::engine::Prompt;
use hicached_client::tokens::BlockPlans;

use super::prompts::{plans, prompt};
use super::trace::Trace;
use super::workload::Workload;

/// The requests of one run.
#[derive(Debug)]
pub struct Numbered {
    lap: u64,
    source: Source,
}

#[derive(Debug)]
enum Source {
    Demo { seed: u64, manifest: Box<Manifest>, workload: Box<Workload>, next: u64 },
    Trace { trace: Box<Trace>, plans: Box<BlockPlans> },
}

impl Numbered {
    /// The first `lap` requests of the demo of `seed`, again and again.
    pub fn demo(seed: u64, lap: u64, manifest: &Manifest) -> Self {
        let workload = Box::new(Workload::new(seed, manifest));
        let source = Source::Demo { seed, manifest: Box::new(manifest.clone()), workload, next: 0 };
        Self { lap: lap.max(1), source }
    }

    /// The requests of `trace`, again and again.
    pub fn trace(trace: Trace, manifest: &Manifest) -> Self {
        let plans = Box::new(plans(&trace, manifest));
        Self { lap: trace.requests.len() as u64, source: Source::Trace { trace: Box::new(trace), plans } }
    }

    /// Requests of one lap.
    pub fn lap(&self) -> u64 {
        self.lap
    }

    /// Request `number`. Quick when the numbers come in their order.
    pub fn prompt(&mut self, number: u64) -> Prompt {
        let place = number % self.lap;
        match &mut self.source {
            Source::Trace { trace, plans } => prompt(plans, trace, place as usize, false),
            Source::Demo { seed, manifest, workload, next } => {
                if place < *next {
                    (**workload, *next) = (Workload::new(*seed, manifest), 0);
                }
                let skipped = usize::try_from(place - *next).expect("a lap that a machine can count");
                *next = place + 1;
                workload.nth(skipped).expect("the workload does not end")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::options::built_in;

    #[test]
    fn a_number_stands_for_the_same_prompt_in_every_order() {
        let group = built_in(&[]).unwrap().checked().unwrap();
        let keys = |prompt: Prompt| (prompt.tenant, prompt.plan.keys.to_vec(), prompt.output_seed);
        let in_order: Vec<_> = Workload::new(3, &group.manifest).take(8).map(keys).collect();
        let mut numbered = Numbered::demo(3, 8, &group.manifest);
        for number in [0, 1, 5, 2, 7, 8, 19, 3] {
            assert_eq!(keys(numbered.prompt(number)), in_order[number as usize % 8], "{number}");
        }
    }
}
