//! One machine alone, and whatever anybody might say to it.
//!
//! An input is a shape, a life, a seed and steps; see [`step`]. After each the machine is asked whether it
//! contradicts itself, and a deadline that it acted on must be gone.

use hicached_actors::host::Output;
use hicached_actors::protocol::{Address, Time};
use hicached_sim::{Actor, Control, Layout, machines};

use crate::known::Known;
use crate::source::Source;
use crate::speaker::{Said, Speaker, birth, known};
use crate::transfers::{Around, is_of_transfers};

/// The prefix index.
pub fn index(data: &[u8]) {
    converse(Address::Index, data);
}

/// The allocator.
pub fn allocator(data: &[u8]) {
    converse(Address::Allocator, data);
}

/// The evictor.
pub fn evictor(data: &[u8]) {
    converse(Address::Evictor, data);
}

/// The writer.
pub fn writer(data: &[u8]) {
    converse(Address::Writer, data);
}

/// The loader.
pub fn loader(data: &[u8]) {
    converse(Address::Loader, data);
}

/// The transfer sender.
pub fn sender(data: &[u8]) {
    converse(Address::Sender, data);
}

/// The transfer receiver.
pub fn receiver(data: &[u8]) {
    converse(Address::Receiver, data);
}

fn converse(at: Address, data: &[u8]) {
    Alone::after(at, data);
}

/// A machine that hears what an input says.
struct Alone {
    control: Control,
    at: Address,
    known: Known,
    around: Around,
    speaker: Speaker,
    now: Time,
}

impl Alone {
    /// The machine at `at` in the group with which an input begins.
    fn begin(at: Address, src: &mut Source<'_>) -> Self {
        let (sizes, birth) = birth(src);
        let (control, first) = machines(&sizes, &birth);
        let mut known = known(&sizes, birth.life);
        hear(&first, &mut known);
        let around = Around::new(birth.life, Layout::new(&sizes).manifest);
        let mut alone = Self { control, at, known, around, speaker: Speaker::default(), now: Time::ZERO };
        if matches!(at, Address::Sender | Address::Receiver) {
            for told in alone.around.lives(at) {
                let said = alone.speaker.told(alone.control.life, told);
                alone.hand(&said, &mut Output::default());
            }
        }
        alone
    }

    /// When it has heard all of an input.
    fn after(at: Address, data: &[u8]) -> Self {
        let mut src = Source::new(data);
        let mut alone = Self::begin(at, &mut src);
        for _ in 0..STEPS_MAX {
            if src.is_empty() {
                break;
            }
            alone.step(&mut src);
        }
        alone
    }

    /// One step: 0 wakes at the next deadline, 1 lets time pass, 2 says raw bytes, 3 says what was recorded, anything
    /// else draws a message; see [`is_of_transfers`].
    fn step(&mut self, src: &mut Source<'_>) {
        let mut out = Output::default();
        match src.u8() % 8 {
            WAKE => {
                let Some((due, _)) = self.control.next_deadline(self.at) else { return };
                self.now = due.max(self.now);
                wake(&mut self.control, self.at, self.now, &mut out);
            }
            PASS => {
                self.now.ns = self.now.ns.saturating_add(u64::from(src.u32()) * 1_000);
                if self.control.next_deadline(self.at).is_some_and(|(due, _)| due <= self.now) {
                    wake(&mut self.control, self.at, self.now, &mut out);
                }
            }
            kind => {
                let said = match kind {
                    RAW => Said { bytes: src.counted().to_vec(), asked: true },
                    LITERAL => self.speaker.literal(src),
                    kind if is_of_transfers(self.at, kind) => {
                        let told = self.around.say(self.at, src, &self.known);
                        self.speaker.told(self.control.life, told)
                    }
                    _ => self.speaker.drawn(self.at, src, &self.known),
                };
                self.hand(&said, &mut out);
            }
        }
        hear(&out, &mut self.known);
        self.around.hear(&out);
    }

    fn hand(&mut self, said: &Said, out: &mut Output) {
        self.known.learn(&said.bytes);
        self.around.told(&said.bytes);
        let (now, reply) = (self.now, said.asked.then(|| "reply".into()));
        drive(&mut self.control, self.at, |actor| actor.deliver(now, &said.bytes, reply, None, out));
    }
}

/// Acts on everything that is due.
pub(crate) fn wake(control: &mut Control, at: Address, now: Time, out: &mut Output) {
    drive(control, at, |actor| actor.wake(now, out));
    if let Some((due, why)) = control.next_deadline(at) {
        assert!(due > now, "{at} acted on time and still is due for {why}");
    }
}

pub(crate) fn drive(control: &mut Control, at: Address, act: impl FnOnce(&mut dyn Actor)) {
    if let Err(violation) = control.drive(at, act) {
        panic!("{violation:?}");
    }
}

pub(crate) fn hear(out: &Output, known: &mut Known) {
    out.parcels.iter().for_each(|parcel| known.learn(&parcel.bytes));
}

pub(crate) const WAKE: u8 = 0;
pub(crate) const PASS: u8 = 1;
pub(crate) const RAW: u8 = 2;
pub(crate) const LITERAL: u8 = 3;
/// Longer conversations find nothing that shorter ones do not.
const STEPS_MAX: usize = 1_000;

#[cfg(test)]
mod tests {
    use hicached_sim::Chance;

    use super::*;

    /// Figures of a machine, over many inputs.
    fn reached(at: Address, names: &[&str], all: impl Iterator<Item = Alone>) -> Vec<u64> {
        let mut sums = vec![0; names.len()];
        for alone in all {
            names.iter().zip(&mut sums).for_each(|(name, sum)| *sum += alone.control.figure(at, name));
        }
        sums
    }

    const SENDER: [&str; 5] = ["sender.transfers", "sender.pushes", "sender.received", "sender.failed", "sender.stale"];
    const RECEIVER: [&str; 6] = [
        "receiver.transfers",
        "receiver.arrived",
        "receiver.drained",
        "receiver.fenced",
        "receiver.failed",
        "receiver.lost_peers",
    ];

    #[test]
    fn what_is_drawn_of_transfers_leads_to_every_end() {
        for (at, names) in [(Address::Sender, SENDER.as_slice()), (Address::Receiver, RECEIVER.as_slice())] {
            let mut chance = Chance::new(1);
            let all = (0..400).map(|_| {
                let mut alone = Alone::begin(at, &mut Source::new(&[0, 1]));
                for _ in 0..120 {
                    let kind = if chance.happens(60) { WAKE } else { 7 };
                    let step: Vec<u8> = std::iter::once(kind).chain((0..48).map(|_| chance.any() as u8)).collect();
                    alone.step(&mut Source::new(&step));
                }
                alone
            });
            let sums = reached(at, names, all);
            assert!(sums.iter().all(|sum| *sum > 0), "{names:?} are {sums:?}");
        }
    }

    #[test]
    fn recorded_transfers_lead_to_every_end() {
        for (at, names) in [(Address::Sender, SENDER.as_slice()), (Address::Receiver, RECEIVER.as_slice())] {
            let inputs = crate::recordings(&at.to_string());
            let sums = reached(at, names, inputs.iter().map(|(_, input)| Alone::after(at, input)));
            assert!(
                sums.iter().zip(names).all(|(sum, name)| *sum > 0 || name.ends_with("stale")),
                "{names:?}: {sums:?}"
            );
        }
    }
}
