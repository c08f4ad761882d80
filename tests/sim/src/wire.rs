//! What crosses the wire between two groups: frames of pages one way, answers the other.
//!
//! Each sending rank has one connection. It loses nothing quietly: what is lost breaks the connection a moment later,
//! and with it everything that was unanswered on it. Frames of a broken connection may still arrive.

use std::collections::BTreeMap;

use hicached_actors::protocol::{Bin, OpId, Rank, Time};

use crate::net::{Event, Net};

/// One layer of one component of some pages, on its way to the slots that it names.
#[derive(Clone, Debug)]
pub struct Frame {
    /// The rank that sends.
    pub from: Rank,
    /// Which life of its process.
    pub lives: u32,
    /// Its number in that life.
    pub number: u64,
    /// The transfer.
    pub transfer: OpId,
    /// The attempt.
    pub attempt: u32,
    /// What it has to carry to be taken.
    pub grant: Bin,
    /// The component.
    pub component: String,
    /// Its layer.
    pub layer: u32,
    /// The pages.
    pub pages: Vec<FramePage>,
}

/// One page of a frame.
#[derive(Clone, Debug)]
pub struct FramePage {
    /// Position in the request.
    pub position: u32,
    /// Physical page at the receiver.
    pub slot: u32,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// What the receiving rank says of a frame.
#[derive(Clone, Debug)]
pub struct FrameAnswer {
    /// The rank that sent it.
    pub to: Rank,
    /// Which life of its process.
    pub lives: u32,
    /// The frame.
    pub number: u64,
    /// Why it was not taken.
    pub refused: Option<&'static str>,
}

/// Something that happens on the wire.
#[derive(Clone, Debug)]
pub enum Passing {
    /// A frame arrives.
    Frame(Frame),
    /// An answer arrives.
    Answer(FrameAnswer),
    /// This use of a rank's connection breaks, if it has not yet.
    Break(Rank, u32),
}

/// The connections of the sending ranks.
#[derive(Debug, Default)]
pub(crate) struct Wire {
    /// How often each rank's connection has broken.
    breaks: BTreeMap<Rank, u32>,
    /// Nothing crosses a rank's connection before.
    cut_until: BTreeMap<Rank, Time>,
    /// When the newest of each direction arrives.
    last: BTreeMap<(Rank, bool), Time>,
    /// Frames that crossed.
    pub(crate) frames: u64,
    /// Connections that broke.
    pub(crate) broken: u64,
}

impl Wire {
    /// Puts a frame, or the answer to one, on the connection of `rank`.
    pub(crate) fn carry(&mut self, net: &mut Net, rank: Rank, passing: &Passing) {
        let is_cut = self.cut_until.get(&rank).is_some_and(|until| *until > net.now);
        if is_cut || net.chance.happens(net.mix.drop) {
            return self.breaks_soon(net, rank);
        }
        if net.chance.happens(net.mix.repeat) {
            self.deliver(net, rank, passing);
        }
        self.deliver(net, rank, passing);
    }

    fn deliver(&mut self, net: &mut Net, rank: Rank, passing: &Passing) {
        let us = match net.mix.late > 0 && net.chance.happens(net.mix.late) {
            true => net.chance.within(1_000, 2_000_000),
            false => net.chance.within(5, (net.mix.delay_us / 4).max(10)),
        };
        let mut at = Time { ns: net.now.ns + us * 1_000 };
        if !net.mix.reorder {
            let last = self.last.entry((rank, matches!(passing, Passing::Frame(_)))).or_insert(Time::ZERO);
            at = at.max(*last);
            *last = at;
        }
        self.frames += u64::from(matches!(passing, Passing::Frame(_)));
        net.at(at, Event::Wire(passing.clone()));
    }

    /// The connection of a rank breaks when the loss is noticed.
    pub(crate) fn breaks_soon(&self, net: &mut Net, rank: Rank) {
        let us = net.chance.within(100, 50_000);
        net.after_us(us, Event::Wire(Passing::Break(rank, self.use_of(rank))));
    }

    /// Which use of its connection a rank is at.
    pub(crate) fn use_of(&self, rank: Rank) -> u32 {
        self.breaks.get(&rank).copied().unwrap_or(0)
    }

    /// The connection of a rank breaks; the next frame makes another one.
    pub(crate) fn breaks(&mut self, rank: Rank) {
        *self.breaks.entry(rank).or_insert(0) += 1;
        self.broken += 1;
    }

    /// Nothing crosses the connection of a rank for so long.
    pub(crate) fn cut(&mut self, now: Time, rank: Rank, ms: u64) {
        self.cut_until.insert(rank, now.plus_ms(ms));
    }

    /// Every fault of the wire ends.
    pub(crate) fn heal(&mut self) {
        self.cut_until.clear();
    }
}
