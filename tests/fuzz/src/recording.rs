//! Inputs made of conversations that the simulator had: they get past every door, and a fuzzer changes them.

use hicached_actors::protocol::{Address, Envelope, Rank, Time};
use hicached_sim::{Birth, Chance, Heard, Mix, Options, heard};

use crate::handovers::{TROUBLES, Trouble, transfer};
use crate::machine::{LITERAL, PASS, WAKE};
use crate::speaker::{SHAPES, number_of, shape};

/// Inputs of a target, named by what they were made of.
pub type Inputs = Vec<(String, Vec<u8>)>;

/// What each target can be given from worlds of each shape, calm and unkind, and from transfers between two groups;
/// frames are made by hand.
pub fn recordings(target: &str) -> Inputs {
    match target {
        "sender" | "receiver" => transfers(target == "receiver"),
        "frames" => crate::frames::inputs(),
        _ => conversations(target),
    }
}

fn transfers(receives: bool) -> Inputs {
    let mut inputs = Inputs::new();
    for number in 0..SHAPES {
        // What goes wrong goes wrong alike with more ranks.
        for (name, trouble) in TROUBLES.iter().filter(|(_, trouble)| number < 2 || *trouble == Trouble::Nothing) {
            let [sent, received] = transfer(number, *trouble);
            let (shape, at, (birth, heard)) = match receives {
                false => (number, Address::Sender, sent),
                true => (0, Address::Receiver, received),
            };
            let input = machine(start(shape, &birth), &heard, at);
            // A receiver is given the same by groups of any size.
            if inputs.iter().all(|(_, known)| *known != input) {
                inputs.push((format!("{name}-{number}"), input));
            }
        }
    }
    inputs
}

fn conversations(target: &str) -> Inputs {
    let mut inputs = Inputs::new();
    for number in 0..SHAPES {
        for (mood, mix) in [("calm", calm()), ("unkind", Mix::draw(&mut Chance::new(u64::from(number) + 7)))] {
            let sizes = shape(number);
            let options = Options {
                sizes: Some(sizes.clone()),
                mix: Some(mix),
                quiet: true,
                ..Options::new(u64::from(number), 2_000)
            };
            let (birth, all) = heard(&options);
            let start = start(number, &birth);
            let name = format!("{mood}-{number}");
            match target {
                "group" => inputs.push((name, group(&start, &all))),
                "decoder" => envelopes(&mut inputs, &all),
                // Its rank is one of two.
                "rank" if sizes.cp == 2 => inputs.push((name, rank(&birth.life.0, &all))),
                _ => {
                    let Ok(at) = Address::parse(target) else { continue };
                    inputs.push((name, machine(start, &all, at)));
                }
            }
        }
    }
    inputs
}

/// What an input begins with.
fn start(number: u8, birth: &Birth) -> Vec<u8> {
    let mut start = vec![number];
    start.extend(birth.life.0);
    start.extend(birth.seed.to_le_bytes());
    start
}

/// Traffic without faults.
fn calm() -> Mix {
    Mix { sessions: 4, abort: 5, operator: 20, ..Mix::calm(300) }
}

/// What one machine was given, from the first on, while it fits.
fn machine(mut input: Vec<u8>, all: &[Heard], at: Address) -> Vec<u8> {
    let mut now = Time::ZERO;
    for heard in all.iter().filter(|heard| heard.at == at) {
        let mut step = Vec::new();
        match &heard.bytes {
            None => step.push(WAKE),
            Some(bytes) => {
                pass(&mut step, now, heard.now);
                step.push(LITERAL);
                literal(&mut step, bytes, heard.asked);
            }
        }
        now = heard.now;
        if input.len() + step.len() > INPUT_BYTES_MAX {
            break;
        }
        input.extend(step);
    }
    input
}

/// What ranks and engines said to a group, each time followed by all that comes of it.
fn group(start: &[u8], all: &[Heard]) -> Vec<u8> {
    let mut input = start.to_vec();
    let mut now = Time::ZERO;
    for heard in all {
        let Some(bytes) = &heard.bytes else { continue };
        let Ok(envelope) = Envelope::decode(bytes) else { continue };
        let from = Address::parse(&envelope.sender);
        if !matches!(from, Ok(Address::Rank(_) | Address::Engine)) || matches!(heard.at, Address::Rank(_)) {
            continue;
        }
        let mut step = Vec::new();
        pass(&mut step, now, heard.now);
        now = heard.now;
        step.extend([LITERAL, number_of(heard.at)]);
        literal(&mut step, bytes, heard.asked);
        step.push(DELIVER_ALL);
        if input.len() + step.len() > INPUT_BYTES_MAX {
            break;
        }
        input.extend(step);
    }
    input
}

fn pass(step: &mut Vec<u8>, from: Time, to: Time) {
    let us = to.ns.saturating_sub(from.ns) / 1_000;
    if us > 0 {
        step.push(PASS);
        step.extend(u32::try_from(us).unwrap_or(u32::MAX).to_le_bytes());
    }
}

/// An envelope as [`crate::speaker::Speaker::literal`] reads it. What is no envelope is left out.
fn literal(step: &mut Vec<u8>, bytes: &[u8], asked: bool) {
    let Ok(envelope) = Envelope::decode(bytes) else { return step.clear() };
    let Ok(from) = Address::parse(&envelope.sender) else { return step.clear() };
    step.extend([u8::from(asked) | u8::from(envelope.urgent) << 1, number_of(from)]);
    step.extend(envelope.incarnation.0);
    step.extend(envelope.control.0);
    step.extend(envelope.op.0);
    for part in [envelope.kind.as_bytes(), &envelope.body.0] {
        step.extend((part.len() as u16).to_le_bytes());
        step.extend(part);
    }
}

/// What a rank of a world was given, as if that had been the rank of the target.
fn rank(control: &[u8; 16], all: &[Heard]) -> Vec<u8> {
    let lives = all.iter().filter_map(|heard| Envelope::decode(heard.bytes.as_ref()?).ok());
    let life = lives.into_iter().find(|envelope| envelope.sender == "rank.0").map(|envelope| envelope.incarnation);
    let input = machine(control.to_vec(), all, Address::Rank(Rank(0)));
    replaced(&input, &life.unwrap_or_default().0, &crate::rank::LIFE.0)
}

fn replaced(bytes: &[u8], from: &[u8; 16], to: &[u8; 16]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let mut at = 0;
    while let Some(part) = bytes.get_mut(at..at + from.len()) {
        if part == from {
            part.copy_from_slice(to);
        }
        at += 1;
    }
    bytes
}

/// The first envelope of each kind, and its body behind the number of its kind.
fn envelopes(inputs: &mut Inputs, all: &[Heard]) {
    let kinds = crate::kinds();
    for bytes in all.iter().filter_map(|heard| heard.bytes.as_ref()) {
        let Ok(envelope) = Envelope::decode(bytes) else { continue };
        let name = envelope.kind.clone();
        let Some(kind) = kinds.iter().position(|kind| *kind == envelope.kind) else { continue };
        if inputs.iter().all(|(known, _)| *known != name) {
            let body = [&[kind as u8], &envelope.body.0[..]].concat();
            inputs.push((format!("{name}-body"), body));
            inputs.push((name, bytes.to_vec()));
        }
    }
}

/// Sizes of a world are small, so what one conversation teaches stands in its first part.
const INPUT_BYTES_MAX: usize = 2_500;
/// The step of a group that delivers everything.
const DELIVER_ALL: u8 = 8;
