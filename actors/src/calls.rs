//! Requests a machine has open: each is said again until it is answered.
//!
//! Losing or repeating a message is ordinary, so every request is idempotent by its op and its sender
//! repeats it, with jitter from a seed, more and more rarely. A gap in a peer's numbers makes it ask for
//! everything at once ([`Calls::resync`]).

use std::collections::{BTreeMap, BTreeSet};

use crate::machine::{Effect, Trace};
use crate::protocol::{Address, OpId, Outgoing, Time};

/// One open request: the op, and which of the op's requests it is.
pub type CallId = (OpId, u16);

/// The open requests of one machine.
#[derive(Debug)]
pub struct Calls {
    open: BTreeMap<CallId, Call>,
    due: BTreeSet<(Time, CallId)>,
    chance: u64,
    repeats: u64,
}

#[derive(Debug)]
struct Call {
    msg: Outgoing,
    trace: Trace,
    due: Time,
    tries: u32,
}

impl Calls {
    /// None open; `seed` spreads the repeats of different machines.
    pub const fn new(seed: u64) -> Self {
        Self { open: BTreeMap::new(), due: BTreeSet::new(), chance: seed, repeats: 0 }
    }

    /// Sends `msg` and repeats it until [`Self::answered`]; a call of the same id is replaced.
    pub fn call(&mut self, now: Time, id: CallId, msg: Outgoing, trace: &Trace, out: &mut Vec<Effect>) {
        self.answered(id);
        let due = now.plus_ms(self.pause_ms(0));
        out.push(Effect::Send { to: msg.clone(), op: id.0, trace: trace.clone() });
        self.open.insert(id, Call { msg, trace: trace.clone(), due, tries: 0 });
        self.due.insert((due, id));
    }

    /// Ends the call; whether it was open.
    pub fn answered(&mut self, id: CallId) -> bool {
        let Some(call) = self.open.remove(&id) else { return false };
        self.due.remove(&(call.due, id));
        true
    }

    /// What this call asks, while it is open.
    pub fn asked(&self, id: CallId) -> Option<&Outgoing> {
        self.open.get(&id).map(|call| &call.msg)
    }

    /// Whether this call is open.
    pub fn is_open(&self, id: CallId) -> bool {
        self.open.contains_key(&id)
    }

    /// Repeats what is due.
    pub fn wake(&mut self, now: Time, out: &mut Vec<Effect>) {
        while let Some((due, id)) = self.due.first().copied().filter(|(due, _)| *due <= now) {
            self.due.remove(&(due, id));
            self.repeat(now, id, out);
        }
    }

    /// Repeats everything that is open towards `peer`.
    pub fn resync(&mut self, now: Time, peer: Address, out: &mut Vec<Effect>) {
        let open: Vec<CallId> =
            self.open.iter().filter(|(_, call)| call.msg.address() == Some(peer)).map(|(id, _)| *id).collect();
        for id in open {
            if let Some(call) = self.open.get(&id) {
                self.due.remove(&(call.due, id));
            }
            self.repeat(now, id, out);
        }
    }

    /// When the next repeat is due.
    pub fn next_deadline(&self) -> Option<Time> {
        self.due.first().map(|(due, _)| *due)
    }

    /// Open calls.
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// Whether none is open.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Repeats so far.
    pub const fn repeats(&self) -> u64 {
        self.repeats
    }

    fn repeat(&mut self, now: Time, id: CallId, out: &mut Vec<Effect>) {
        let tries = self.open.get(&id).map_or(0, |call| call.tries + 1);
        let due = now.plus_ms(self.pause_ms(tries));
        let Some(call) = self.open.get_mut(&id) else { return };
        call.tries = tries;
        call.due = due;
        self.due.insert((due, id));
        self.repeats += 1;
        out.push(Effect::Send { to: call.msg.clone(), op: id.0, trace: call.trace.clone() });
    }

    /// The pause after `tries` repeats: doubling, up to a bound, three quarters to all of it.
    fn pause_ms(&mut self, tries: u32) -> u64 {
        let whole = (PAUSE_MS_MIN << tries.min(8)).min(PAUSE_MS_MAX);
        whole - draw(&mut self.chance) % (whole / 4)
    }
}

/// The next number of a SplitMix64 sequence: chance that is part of the state.
pub fn draw(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A first repeat comes well after any answer that is not lost.
const PAUSE_MS_MIN: u64 = 250;
/// A peer that came back is not kept waiting for longer.
const PAUSE_MS_MAX: u64 = 4_000;
