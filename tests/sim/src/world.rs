//! The world: machines, ranks and an engine around one queue, one event at a time.

use std::sync::Arc;

use hicached_actors::host::{Dest, Output, Parcel};
use hicached_actors::protocol::{Address, Incarnation, Rank, Time};

use crate::chance::Chance;
use crate::checks::{Checks, Truths, Violation, transfers};
use crate::control::{Actor, Control};
use crate::engine::{Engine, traffic};
use crate::layout::Layout;
use crate::memory::Memory;
use crate::mix::{Mix, Sizes};
use crate::net::{Event, Message, Net, To};
use crate::rank::RankProcess;
use crate::spans::SpanChecks;

/// Makes the machines of a control incarnation.
pub(crate) type MakeControl = Box<dyn Fn(&Sizes, &Birth) -> (Control, Output)>;

/// What a control incarnation begins with.
#[derive(Clone, Copy, Debug)]
pub struct Birth {
    /// Its life.
    pub life: Incarnation,
    /// Which life of the group's control it is, from 0.
    pub number: u32,
    /// Seed of its machines.
    pub seed: u64,
    /// When.
    pub now: Time,
}

/// What one member of a group was given: enough to give it the same again.
#[derive(Clone, Debug)]
pub struct Heard {
    /// When.
    pub now: Time,
    /// Who.
    pub at: Address,
    /// The envelope; `None` when time alone came.
    pub bytes: Option<Arc<[u8]>>,
    /// Whether an answer was waited for.
    pub asked: bool,
}

/// A world of one group.
pub struct Sim {
    /// Time, queue and bus.
    pub net: Net,
    /// Bytes.
    pub memory: Memory,
    /// The control group.
    pub control: Control,
    /// The ranks.
    pub ranks: Vec<RankProcess>,
    /// The engine.
    pub engine: Engine,
    /// Sizes and policies.
    pub sizes: Sizes,
    /// Machine steps so far: messages handled and wakes.
    pub steps: u64,
    /// What the engine is asked to do.
    pub load: traffic::Load,
    /// Says every message on standard error.
    pub traced: bool,
    /// Whether the engine acts by itself; a script acts for it.
    pub scripted: bool,
    /// The control group handles so many more messages, and dies while it sends what comes of the next.
    pub(crate) control_dies_after: Option<u64>,
    /// So does a rank.
    pub(crate) rank_dies_after: Option<(Rank, u64)>,
    /// What every member was given, when it is to be kept.
    pub heard: Option<Vec<Heard>>,
    /// What the first control incarnation began with.
    pub birth: Birth,
    pub(crate) pins: Vec<hicached_actors::protocol::Pin>,
    /// What its machines have to say to another group, and who.
    pub(crate) across: Vec<(Address, Parcel)>,
    checks: Checks,
    pub(crate) spans: SpanChecks,
    control_lives: u32,
    make: MakeControl,
    armed: std::collections::BTreeMap<Address, Time>,
}

impl Sim {
    /// A world at time zero; nothing has happened.
    pub(crate) fn new(sizes: Sizes, mix: Mix, mut chance: Chance, make: MakeControl) -> Self {
        let layout = Layout::new(&sizes);
        let birth = Birth { life: Incarnation(chance.uuid()), number: 0, seed: chance.any(), now: Time::ZERO };
        let (control, first) = make(&sizes, &birth);
        let mut net = Net::new(chance, mix);
        let mut memory = Memory::new(layout, sizes.l1_pages, sizes.l2_pages);
        let ranks = (0..sizes.cp).map(|rank| RankProcess::start(Rank(rank), &mut net)).collect();
        let engine = Engine::new(&mut net, &mut memory, sizes.l1_pages, PAYLOAD_BYTES_MAX);
        let mut sim = Self {
            net,
            memory,
            control,
            ranks,
            engine,
            sizes,
            steps: 0,
            load: traffic::Load::Open,
            traced: false,
            scripted: false,
            control_dies_after: None,
            rank_dies_after: None,
            heard: None,
            birth,
            pins: Vec::new(),
            across: Vec::new(),
            checks: Checks::default(),
            spans: SpanChecks::default(),
            control_lives: 0,
            make,
            armed: std::collections::BTreeMap::new(),
        };
        sim.net.after_us(1, Event::Engine);
        sim.net.after_us(20_000, Event::Fault);
        sim.born(first);
        sim
    }

    /// Lets the next event happen, not later than `until`; `false` when there is none.
    ///
    /// # Errors
    /// What must never be.
    pub fn happen(&mut self, until: Time) -> Result<bool, Violation> {
        let Some(event) = self.net.next(until) else { return Ok(false) };
        match event {
            Event::Deliver(message) => self.deliver(&message)?,
            Event::Wake(at) => self.wake(at)?,
            Event::Copy(rank, lives, op) => self.ranks[at(rank)].tick(&mut self.net, &mut self.memory, lives, op),
            Event::RankTimer(rank, lives) => self.ranks[at(rank)].timer(&mut self.net, &self.memory, lives),
            Event::Layer(rank, life) => self.engine.layer_done(&mut self.net, &mut self.memory, rank, life)?,
            Event::Engine => self.engine_looks()?,
            Event::Restart(rank) => self.rank_restarts(rank),
            Event::Fault => self.draw_faults()?,
            Event::Heal(a, b) => self.net.heal(a, b),
            Event::Push(rank, lives) => self.ranks[at(rank)].frame_leaves(&mut self.net, &mut self.memory, lives),
            Event::Overdue(rank, lives, key) => self.ranks[at(rank)].overdue(&mut self.net, &self.memory, lives, key),
            Event::Land(rank, lives, write) => {
                let written = self.ranks[at(rank)].land(&mut self.net, &mut self.memory, lives, write);
                written.map_or(Ok(()), |written| transfers::landed(&self.engine, &written))?;
            }
            // It lies between two groups.
            Event::Wire(_) => {}
        }
        self.follow_words()?;
        Ok(true)
    }

    /// Copies wait for words, streams wait for load words.
    pub(crate) fn follow_words(&mut self) -> Result<(), Violation> {
        while self.memory.words_moved != 0 || self.memory.ring_moved != 0 {
            let words = std::mem::take(&mut self.memory.words_moved);
            let ring = std::mem::take(&mut self.memory.ring_moved);
            for rank in 0..self.sizes.cp {
                if words >> rank & 1 == 1 {
                    self.ranks[usize::from(rank)].words_moved(&mut self.net, &self.memory);
                }
                if ring >> rank & 1 == 1 {
                    self.engine.run_stream(&mut self.net, &mut self.memory, Rank(rank))?;
                }
            }
        }
        Ok(())
    }

    pub(crate) fn deliver(&mut self, message: &Message) -> Result<(), Violation> {
        self.net.delivered(message);
        if self.traced {
            eprintln!("{}", crate::trace::arrived(self.net.now, message));
        }
        if let To::Actor(at) = message.to {
            self.keep(at, Some(message));
        }
        match message.to {
            To::Actor(Address::Rank(rank)) => {
                if usize::from(rank.0) < self.ranks.len() {
                    self.deliver_to_rank(rank, &message.bytes);
                }
                Ok(())
            }
            To::Actor(to) => {
                let now = self.net.now;
                let trace = self.spans.handled(to, message, self.control.life);
                self.drive(to, |actor, out| actor.deliver(now, &message.bytes, message.reply.clone(), trace, out))
            }
            To::Request(number) => self.engine.take(&mut self.net, &self.memory, number, &message.bytes),
            To::Events => Ok(()),
        }
    }

    fn deliver_to_rank(&mut self, rank: Rank, bytes: &[u8]) {
        let due = self.rank_dies_after.as_mut().filter(|(mortal, _)| *mortal == rank).is_some_and(|(_, left)| {
            *left = left.saturating_sub(1);
            *left == 0
        });
        let dies = due && self.ranks[at(rank)].is_alive();
        if dies {
            let said = self.net.chance.within(0, 2);
            self.net.cut_short(Address::Rank(rank), said);
        }
        self.ranks[at(rank)].deliver(&mut self.net, &mut self.memory, bytes);
        if due {
            self.rank_dies_after = None;
        }
        if dies {
            self.kill_rank(rank);
            self.net.has_died();
        }
    }

    fn keep(&mut self, at: Address, message: Option<&Message>) {
        let now = self.net.now;
        if let Some(heard) = &mut self.heard {
            let asked = message.is_some_and(|message| message.reply.is_some());
            heard.push(Heard { now, at, bytes: message.map(|message| message.bytes.clone()), asked });
        }
    }

    fn wake(&mut self, to: Address) -> Result<(), Violation> {
        let now = self.net.now;
        if self.armed.get(&to).is_some_and(|armed| *armed <= now) {
            self.armed.remove(&to);
        }
        if self.control.next_deadline(to).is_none_or(|(due, _)| due > now) {
            self.arm(to);
            return Ok(());
        }
        self.keep(to, None);
        self.drive(to, |actor, out| actor.wake(now, out))?;
        match self.control.next_deadline(to).filter(|(due, _)| *due <= now) {
            None => Ok(()),
            Some((_, why)) => {
                let detail = format!("{to} acted on time and still is due for {why}");
                Err(Violation { checker: "deadline", detail })
            }
        }
    }

    fn drive(&mut self, to: Address, act: impl FnOnce(&mut dyn Actor, &mut Output)) -> Result<(), Violation> {
        let mut out = Output::default();
        self.steps += 1;
        self.control.drive(to, |actor| act(actor, &mut out))?;
        self.spans.said(to, &out.spans)?;
        let dies = self.control_dies_after.as_mut().is_some_and(|left| {
            *left = left.saturating_sub(1);
            *left == 0
        });
        if dies {
            let said = self.net.chance.within(0, out.parcels.len() as u64);
            out.parcels.truncate(said as usize);
        }
        let truths = Truths { memory: &self.memory, ranks: &self.ranks, engine: &self.engine };
        for parcel in out.parcels {
            if self.traced {
                eprintln!("{}", crate::trace::sent(self.net.now, to, &parcel));
            }
            self.checks.look(to, &parcel, &truths, &mut self.net.stats)?;
            self.spans.look(to, &parcel);
            self.net.note(&parcel.bytes);
            match parcel.to {
                Dest::Peer(..) => self.across.push((to, parcel)),
                Dest::Actor(_) | Dest::Reply(_) | Dest::Events => self.net.post(to, parcel),
            }
        }
        if dies {
            self.control_dies_after = None;
            self.control_dies();
            self.net.has_died();
        }
        self.arm(to);
        Ok(())
    }

    /// Makes sure that a machine is woken at its next deadline.
    fn arm(&mut self, to: Address) {
        let Some((due, _)) = self.control.next_deadline(to) else { return };
        if self.armed.get(&to).is_none_or(|armed| *armed > due) {
            let due = due.max(self.net.now);
            self.armed.insert(to, due);
            self.net.at(due, Event::Wake(to));
        }
    }

    fn engine_looks(&mut self) -> Result<(), Violation> {
        let gone = self.gone();
        self.engine.give_up_loads(&mut self.net, &mut self.memory, gone)?;
        if self.scripted {
            self.engine.repeat_due(&mut self.net);
            self.engine.keep_alive(&mut self.net, &self.memory.layout);
            self.engine.ask_for_pages(&mut self.net);
        } else {
            self.engine.look(&mut self.net, &mut self.memory, self.load)?;
        }
        let us = self.net.chance.within(400, 3_000);
        self.net.after_us(us, Event::Engine);
        Ok(())
    }

    pub(crate) fn gone(&self) -> u64 {
        let dead = self.ranks.iter().enumerate().filter(|(_, rank)| !rank.is_alive());
        dead.fold(0, |gone, (rank, _)| gone | 1 << rank)
    }

    fn rank_restarts(&mut self, rank: Rank) {
        if !self.ranks[at(rank)].is_alive() {
            // Loads of the old life are given up before a new one could be asked for.
            let gone = self.gone();
            let _ = self.engine.give_up_loads(&mut self.net, &mut self.memory, gone);
            self.ranks[at(rank)].restart(&mut self.net);
            self.engine.rank_restarted(&mut self.net, &self.memory, rank.0);
        }
    }

    /// The control group dies and begins again.
    pub fn control_dies(&mut self) {
        self.net.stats.control_deaths += 1;
        self.control_lives += 1;
        let life = Incarnation(self.net.chance.uuid());
        let birth = Birth { life, number: self.control_lives, seed: self.net.chance.any(), now: self.net.now };
        let (control, first) = (self.make)(&self.sizes, &birth);
        self.control = control;
        self.checks = Checks::default();
        self.spans = SpanChecks::default();
        self.armed.clear();
        self.born(first);
    }

    fn born(&mut self, first: Output) {
        first.parcels.into_iter().for_each(|parcel| self.net.post(Address::Index, parcel));
        self.control.addresses().into_iter().for_each(|at| self.arm(at));
    }

    /// One line about everything that has not ended, for a failure of liveness.
    pub fn unfinished(&self) -> String {
        let asks: Vec<String> = self.engine.pending.values().map(|pending| format!("{:?}", pending.ask)).collect();
        let phases: Vec<String> = self
            .engine
            .sessions
            .iter()
            .map(|(number, session)| {
                let load = session.load.as_ref().map(|load| load.slot);
                format!("{number}:{:?}@{}/{} load {load:?}", session.phase, session.frontier, session.end())
            })
            .collect();
        format!(
            "requests {asks:?}; sessions {phases:?}; registered {:b}; steps {:?}",
            self.engine.registered,
            self.engine.steps.keys()
        )
    }
}

fn at(rank: Rank) -> usize {
    usize::from(rank.0)
}

/// What the bus of a world carries.
pub(crate) const PAYLOAD_BYTES_MAX: usize = 1 << 20;
