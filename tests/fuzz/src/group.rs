//! A whole control group whose machines hear each other, late, twice or not at all, and ranks and engines that
//! say anything: here every peer of a machine is one that keeps the protocol, or one that a door must keep out.

use std::collections::VecDeque;

use hicached_actors::host::{Dest, Output, Parcel};
use hicached_actors::protocol::*;
use hicached_sim::{Control, Layout, machines};

use crate::known::Known;
use crate::machine::{LITERAL, PASS, RAW, WAKE, drive, hear, wake};
use crate::source::Source;
use crate::speaker::{Said, Speaker, birth, known};
use crate::transfers::Around;

/// A group under fire; see `Group::step`.
pub fn group(data: &[u8]) {
    let mut src = Source::new(data);
    let (sizes, birth) = birth(&mut src);
    let (control, first) = machines(&sizes, &birth);
    let known = known(&sizes, birth.life);
    let around = Around::new(birth.life, Layout::new(&sizes).manifest);
    let (under_way, speaker) = (VecDeque::new(), Speaker::default());
    let mut group = Group { control, known, around, now: Time::ZERO, under_way, speaker };
    group.take(first);
    for _ in 0..STEPS_MAX {
        if src.is_empty() {
            break;
        }
        group.step(&mut src);
    }
}

struct Group {
    control: Control,
    known: Known,
    around: Around,
    now: Time,
    /// Between machines of the group.
    under_way: VecDeque<(Address, Parcel)>,
    speaker: Speaker,
}

impl Group {
    /// One step: the four of a machine alone, said to any of them by a rank, an engine or a peer; then deliver, lose,
    /// repeat one message, or deliver all; 11 says something of transfers.
    fn step(&mut self, src: &mut Source<'_>) {
        match src.u8() % 12 {
            WAKE => {
                let at = self.member(src);
                if let Some((due, _)) = self.control.next_deadline(at) {
                    self.now = due.max(self.now);
                    self.wake_due();
                }
            }
            PASS => {
                self.now.ns = self.now.ns.saturating_add(u64::from(src.u32()) * 1_000);
                self.wake_due();
            }
            RAW => {
                let at = self.member(src);
                let said = Said { bytes: src.counted().to_vec(), asked: true };
                self.say(at, &said);
            }
            LITERAL => {
                let at = self.member(src);
                let said = self.speaker.literal(src);
                self.say(at, &said);
            }
            4 | 5 => self.deliver(src.u8()),
            6 => drop(self.remove(src.u8())),
            7 => {
                let at = usize::from(src.u8());
                if let Some((to, parcel)) = self.under_way.get(at % self.under_way.len().max(1)).cloned()
                    && self.under_way.len() < UNDER_WAY_MAX
                {
                    self.under_way.push_back((to, parcel));
                }
            }
            8 => (0..ALL_MAX).for_each(|_| self.deliver(0)),
            11 => {
                let at = [Address::Index, Address::Sender, Address::Receiver][usize::from(src.u8() % 3)];
                let told = self.around.say(at, src, &self.known);
                let said = self.speaker.told(self.control.life, told);
                self.say(at, &said);
            }
            _ => {
                let at = self.member(src);
                let said = self.speaker.drawn(at, src, &self.known);
                self.say(at, &said);
            }
        }
    }

    fn member(&self, src: &mut Source<'_>) -> Address {
        MEMBERS[usize::from(src.u8()) % MEMBERS.len()]
    }

    /// What a rank, an engine or a peer in another group says; what anybody else says comes from the machines
    /// themselves.
    fn say(&mut self, at: Address, said: &Said) {
        let Ok(envelope) = Envelope::decode(&said.bytes) else { return self.hand(at, &said.bytes, said.asked) };
        let is_of_group = match (Address::parse(&envelope.sender), at) {
            (Ok(Address::Rank(_) | Address::Engine) | Err(_), _)
            | (Ok(Address::Sender), Address::Receiver)
            | (Ok(Address::Receiver), Address::Sender) => false,
            (Ok(_), _) => true,
        };
        if !is_of_group {
            self.hand(at, &said.bytes, said.asked);
        }
    }

    fn hand(&mut self, at: Address, bytes: &[u8], asked: bool) {
        self.known.learn(bytes);
        self.around.told(bytes);
        let mut out = Output::default();
        let (now, reply) = (self.now, asked.then(|| "reply".into()));
        drive(&mut self.control, at, |actor| actor.deliver(now, bytes, reply, None, &mut out));
        self.take(out);
    }

    fn wake_due(&mut self) {
        for at in self.control.addresses() {
            if self.control.next_deadline(at).is_some_and(|(due, _)| due <= self.now) {
                let mut out = Output::default();
                wake(&mut self.control, at, self.now, &mut out);
                self.take(out);
            }
        }
    }

    fn take(&mut self, out: Output) {
        hear(&out, &mut self.known);
        self.around.hear(&out);
        for parcel in out.parcels {
            match parcel.to {
                Dest::Actor(to) if !matches!(to, Address::Rank(_) | Address::Engine) => {
                    if self.under_way.len() < UNDER_WAY_MAX {
                        self.under_way.push_back((to, parcel));
                    }
                }
                Dest::Actor(_) | Dest::Peer(..) | Dest::Reply(_) | Dest::Events => {}
            }
        }
    }

    fn deliver(&mut self, at: u8) {
        if let Some((to, parcel)) = self.remove(at) {
            self.hand(to, &parcel.bytes, false);
        }
    }

    fn remove(&mut self, at: u8) -> Option<(Address, Parcel)> {
        let at = usize::from(at) % self.under_way.len().max(1);
        self.under_way.remove(at)
    }
}

/// In the order of their numbers, and the two of transfers behind them.
const MEMBERS: [Address; 7] = [
    Address::Index,
    Address::Allocator,
    Address::Evictor,
    Address::Writer,
    Address::Loader,
    Address::Sender,
    Address::Receiver,
];
/// What is sent when so much is under way is lost.
const UNDER_WAY_MAX: usize = 512;
/// Messages that follow from one: a long conversation of all machines.
const ALL_MAX: usize = 100;
/// Longer conversations find nothing that shorter ones do not.
const STEPS_MAX: usize = 1_000;
