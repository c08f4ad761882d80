//! The world of two groups, one of which hands its prompts over to the other.
//!
//! Each group has its own queue, bus, memory and engine; this drives both on one clock: whatever is due first happens
//! next, in whichever of them it is. Between them lie a bus on which sender and receiver talk, and the wire of frames.

mod faults;
mod router;
mod run;
mod script;

use hicached_actors::faults::Fault;
use hicached_actors::host::Dest;
use hicached_actors::protocol::{Address, Rank, Time};

use crate::chance::Chance;
use crate::checks::Violation;
use crate::engine::traffic::Load;
use crate::group::{self, Patience};
use crate::mix::{Mix, Sizes};
use crate::net::{Event, Message, Net, To, TransferStats};
use crate::run::World;
use crate::wire::{Passing, Wire};
use crate::world::Sim;
use router::Router;
pub(crate) use run::run;
pub use script::PairScript;

/// Two groups.
pub struct Pair {
    /// The group that computes prompts.
    pub prefill: Sim,
    /// The group that decodes, of one rank.
    pub decode: Sim,
    /// What lies between them: a bus with faults of its own, and the wire.
    pub between: Net,
    wire: Wire,
    router: Router,
}

/// What two groups are made of.
#[derive(Clone, Debug)]
pub(crate) struct PairSizes {
    pub(crate) prefill: Sizes,
    pub(crate) decode: Sizes,
    pub(crate) patience: Patience,
}

/// How unkind the world is to the members of each group, and to what lies between.
#[derive(Clone, Debug)]
pub(crate) struct PairMix {
    pub(crate) prefill: Mix,
    pub(crate) decode: Mix,
    pub(crate) between: Mix,
}

impl PairSizes {
    /// The sizes of a seed: both groups store the same, at the same page size.
    pub(crate) fn draw(chance: &mut Chance) -> Self {
        let (prefill, other) = (Sizes::draw(chance), Sizes::draw(chance));
        let decode = Sizes {
            cp: 1,
            l1_pages: chance.one_of(&[8, 12, 16, 24, 48]),
            l2_pages: chance.one_of(&[0, 4, 8, 16, 32]),
            compute_tokens_min: other.compute_tokens_min,
            write: other.write,
            free_room: other.free_room,
            ..prefill.clone()
        };
        let (wait_ms, deadline_ms) = (chance.one_of(&[500, 2_000, 20_000]), chance.one_of(&[100, 1_000, 10_000]));
        Self { prefill, decode, patience: Patience { wait_ms, deadline_ms } }
    }
}

impl PairMix {
    /// The mix of a seed: most requests are served by both groups.
    pub(crate) fn draw(chance: &mut Chance) -> Self {
        let mut draw = || {
            let mix = Mix::draw(chance);
            Mix { sessions: mix.sessions / 3, ..mix }
        };
        Self { prefill: draw(), decode: draw(), between: draw() }
    }
}

impl Pair {
    /// Two groups at time zero; nothing has happened.
    pub(crate) fn new(sizes: &PairSizes, mix: PairMix, mut chance: Chance, fault: Fault) -> Self {
        let mut group = |name, sizes: &Sizes, patience, mix| {
            let make = group::maker_of_pair(fault, name, patience);
            let mut sim = Sim::new(sizes.clone(), mix, Chance::new(chance.any()), make);
            sim.engine.tells_launched = true;
            sim
        };
        let PairSizes { prefill, decode, patience } = sizes;
        let prefill = group(PREFILL, prefill, *patience, mix.prefill);
        let decode = group(DECODE, decode, *patience, mix.decode);
        let router = Router::new(&mut chance);
        let mut between = Net::new(chance, mix.between);
        between.after_us(1_000, Event::Engine);
        between.after_us(20_000, Event::Fault);
        Self { prefill, decode, between, wire: Wire::default(), router }
    }

    /// Counts of handovers so far.
    pub fn transfers(&self) -> TransferStats {
        let (wire, mut sum) = (&self.wire, self.between.transfers);
        for part in [self.prefill.net.transfers, self.decode.net.transfers] {
            sum.done += part.done;
            sum.pages += part.pages;
            sum.with_prefix += part.with_prefix;
            sum.with_tail += part.with_tail;
            sum.overdue += part.overdue;
            sum.lies += part.lies;
        }
        TransferStats { frames: wire.frames, broken: wire.broken, ..sum }
    }

    /// What lies between the groups and is due happens.
    fn pass(&mut self, event: Event) -> Result<(), Violation> {
        match event {
            Event::Deliver(message) => match message.to {
                To::Actor(Address::Sender) => self.prefill.deliver(&message)?,
                To::Actor(_) => self.decode.deliver(&message)?,
                To::Request(_) | To::Events => {}
            },
            Event::Wire(Passing::Frame(frame)) => {
                let Sim { net, memory, ranks, .. } = &mut self.decode;
                ranks[0].take_frame(net, memory, frame);
            }
            Event::Wire(Passing::Answer(answer)) => {
                self.between.transfers.frames_refused += u64::from(answer.refused.is_some());
                let Sim { net, memory, ranks, .. } = &mut self.prefill;
                ranks[usize::from(answer.to.0)].frame_answered(net, memory, &answer);
            }
            Event::Wire(Passing::Break(rank, of)) => {
                if self.wire.use_of(rank) == of {
                    self.break_connection(rank);
                }
            }
            Event::Engine => self.route(),
            Event::Fault => self.draw_faults(),
            Event::Heal(a, b) => self.between.heal(a, b),
            Event::Wake(_)
            | Event::Copy(..)
            | Event::RankTimer(..)
            | Event::Layer(..)
            | Event::Restart(_)
            | Event::Push(..)
            | Event::Overdue(..)
            | Event::Land(..) => {}
        }
        Ok(())
    }

    fn break_connection(&mut self, rank: Rank) {
        self.wire.breaks(rank);
        let Sim { net, memory, ranks, .. } = &mut self.prefill;
        ranks[usize::from(rank.0)].connection_broke(net, memory);
    }

    /// What each group has for the other one is put on its way.
    fn exchange(&mut self) {
        let said = self.prefill.across.drain(..).chain(self.decode.across.drain(..));
        for (from, parcel) in said {
            let Dest::Peer(_, to) = parcel.to else { continue };
            let (to, bytes) = (To::Actor(to), parcel.bytes.into());
            self.between.send(Message { from, to, bytes, reply: None, trace: parcel.trace }, parcel.urgent);
        }
        for rank in &mut self.prefill.ranks {
            for frame in rank.take_frames() {
                self.wire.carry(&mut self.between, frame.from, &Passing::Frame(frame.clone()));
            }
        }
        for answer in self.decode.ranks[0].take_answers() {
            self.wire.carry(&mut self.between, answer.to, &Passing::Answer(answer.clone()));
        }
        for at in 0..self.prefill.ranks.len() {
            if self.prefill.ranks[at].takes_connection_down() {
                self.break_connection(Rank(at as u8));
            }
        }
    }
}

impl World for Pair {
    fn happen(&mut self, until: Time) -> Result<bool, Violation> {
        let nexts = [self.prefill.net.next_at(), self.decode.net.next_at(), self.between.next_at()];
        let first = nexts.into_iter().zip(0..).filter_map(|(at, which)| Some((at?, which))).min();
        let Some((at, which)) = first.filter(|(at, _)| *at <= until) else { return Ok(false) };
        for net in [&mut self.prefill.net, &mut self.decode.net, &mut self.between] {
            net.now = at;
        }
        let (deaths, runs) = (self.deaths(), self.router.runs());
        match which {
            0 => {
                self.prefill.happen(at)?;
            }
            1 => {
                self.decode.happen(at)?;
            }
            _ => {
                if let Some(event) = self.between.next(at) {
                    self.pass(event)?;
                }
                // What came from between may have moved words or rings on.
                self.prefill.follow_words()?;
                self.decode.follow_words()?;
            }
        }
        self.exchange();
        for (at, (before, after)) in deaths.into_iter().zip(self.deaths()).enumerate() {
            self.between.transfers.deaths[at] += if runs { after - before } else { 0 };
        }
        Ok(true)
    }

    fn now(&self) -> Time {
        self.between.now
    }

    fn groups(&self) -> Vec<&Sim> {
        vec![&self.prefill, &self.decode]
    }

    fn group(&mut self, at: usize) -> &mut Sim {
        if at == 0 { &mut self.prefill } else { &mut self.decode }
    }

    fn is_idle(&self) -> bool {
        self.router.is_idle() && self.groups().into_iter().all(Sim::is_at_rest)
    }

    fn unfinished(&self) -> String {
        let [prefill, decode] = [&self.prefill, &self.decode].map(Sim::unfinished);
        format!("{}; prefill: {prefill}; decode: {decode}", self.router.unfinished())
    }
}

impl Pair {
    fn deaths(&self) -> [u64; 2] {
        [&self.prefill, &self.decode].map(|sim| {
            let stats = &sim.net.stats;
            stats.rank_deaths + stats.engine_deaths + stats.control_deaths
        })
    }

    /// What the engines and the router are asked to do.
    fn set_load(&mut self, load: Load) {
        (self.prefill.load, self.decode.load, self.router.load) = (load, load, load);
    }
}

/// Names of the two groups.
pub(crate) const PREFILL: &str = "prefill";
/// See [`PREFILL`].
pub(crate) const DECODE: &str = "decode";
