//! One machine alone, and whatever anybody might say to it.
//!
//! An input is a shape, a life, a seed and steps; see [`step`]. After each the machine is asked whether it
//! contradicts itself, and a deadline that it acted on must be gone.

use hicached_actors::host::Output;
use hicached_actors::protocol::{Address, Time};
use hicached_sim::{Actor, Control, machines};

use crate::known::Known;
use crate::source::Source;
use crate::speaker::{Speaker, birth, known};

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

fn converse(at: Address, data: &[u8]) {
    let mut src = Source::new(data);
    let (sizes, birth) = birth(&mut src);
    let (mut control, first) = machines(&sizes, &birth);
    let mut known = known(&sizes, birth.life);
    hear(&first, &mut known);
    let (mut speaker, mut now) = (Speaker::default(), Time::ZERO);
    for _ in 0..STEPS_MAX {
        if src.is_empty() {
            break;
        }
        step(&mut control, at, &mut src, &mut speaker, &mut known, &mut now);
    }
}

/// One step: 0 wakes at the next deadline, 1 lets time pass, 2 says raw bytes, 3 says what was recorded, anything
/// else draws a message.
fn step(
    control: &mut Control,
    at: Address,
    src: &mut Source<'_>,
    speaker: &mut Speaker,
    known: &mut Known,
    now: &mut Time,
) {
    let mut out = Output::default();
    match src.u8() % 8 {
        WAKE => {
            let Some((due, _)) = control.next_deadline(at) else { return };
            *now = due.max(*now);
            wake(control, at, *now, &mut out);
        }
        PASS => {
            now.ns = now.ns.saturating_add(u64::from(src.u32()) * 1_000);
            if control.next_deadline(at).is_some_and(|(due, _)| due <= *now) {
                wake(control, at, *now, &mut out);
            }
        }
        kind => {
            let said = match kind {
                RAW => crate::speaker::Said { bytes: src.counted().to_vec(), asked: true },
                LITERAL => speaker.literal(src),
                _ => speaker.drawn(at, src, known),
            };
            known.learn(&said.bytes);
            let reply = said.asked.then(|| "reply".into());
            drive(control, at, |actor| actor.deliver(*now, &said.bytes, reply, None, &mut out));
        }
    }
    hear(&out, known);
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
