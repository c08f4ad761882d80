//! Virtual time and the bus: an event queue that carries encoded bytes and, by seed, delays, loses,
//! repeats, reorders and cuts.

use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;

use hicached_actors::host::{Dest, Parcel};
use hicached_actors::machine::Trace;
use hicached_actors::protocol::{Address, OpId, Rank, Time};

use crate::chance::Chance;
use crate::mix::Mix;
use crate::rank::PushKey;
use crate::wire::Passing;

/// Something that will happen.
#[derive(Clone, Debug)]
pub enum Event {
    /// A message arrives.
    Deliver(Message),
    /// A machine's deadline.
    Wake(Address),
    /// A copy of a rank's life moves on.
    Copy(Rank, u32, OpId),
    /// A rank's timers.
    RankTimer(Rank, u32),
    /// A layer of an engine rank's stream ends.
    Layer(Rank, u32),
    /// The engine looks around; its requests are repeated.
    Engine,
    /// A process comes back.
    Restart(Rank),
    /// Faults are drawn.
    Fault,
    /// A cut heals.
    Heal(Address, Address),
    /// The frame that a life of a rank is sending leaves.
    Push(Rank, u32),
    /// The time of a push may be over.
    Overdue(Rank, u32, PushKey),
    /// The frame that a life of a rank is writing is written.
    Land(Rank, u32, u64),
    /// Something arrives on the wire between two groups.
    Wire(Passing),
}

/// Bytes on their way.
#[derive(Clone, Debug)]
pub struct Message {
    /// Who sent it.
    pub from: Address,
    /// Where to.
    pub to: To,
    /// The envelope.
    pub bytes: Arc<[u8]>,
    /// Where an answer goes.
    pub reply: Option<Arc<str>>,
    /// The trace it belongs to.
    pub trace: Trace,
}

/// Where a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum To {
    /// A member of the group.
    Actor(Address),
    /// The engine's request of this number.
    Request(u64),
    /// Whoever listens to events.
    Events,
}

/// Keeps messages of one kind back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// The kind of the body.
    pub kind: String,
    /// Only from this member.
    pub from: Option<Address>,
    /// Only to this member.
    pub to: Option<Address>,
}

/// Counts of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Messages delivered.
    pub delivered: u64,
    /// Messages lost.
    pub drops: u64,
    /// Messages delivered twice.
    pub repeats: u64,
    /// Cuts between two members.
    pub partitions: u64,
    /// Ranks that died.
    pub rank_deaths: u64,
    /// Engines that died.
    pub engine_deaths: u64,
    /// Control groups that died.
    pub control_deaths: u64,
    /// Of those of ranks and control groups: with a part of what they had to say on its way, the rest lost.
    pub deaths_while_sending: u64,
    /// Sessions opened.
    pub opens: u64,
    /// Opened sessions with hits in L1.
    pub l1_hits: u64,
    /// Opened sessions with hits in L2.
    pub l2_hits: u64,
    /// Loads that ended well.
    pub loads: u64,
    /// Loads that failed.
    pub loads_failed: u64,
    /// Backups completed by a rank.
    pub backups: u64,
    /// Requests refused.
    pub refusals: u64,
    /// Steps launched.
    pub steps: u64,
    /// Sessions closed.
    pub closes: u64,
    /// Sessions aborted.
    pub aborts: u64,
    /// Pages compared byte by byte.
    pub pages_checked: u64,
    /// Evictions the index was asked for.
    pub evictions: u64,
}

impl Stats {
    /// These and those of another group.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            delivered: self.delivered + other.delivered,
            drops: self.drops + other.drops,
            repeats: self.repeats + other.repeats,
            partitions: self.partitions + other.partitions,
            rank_deaths: self.rank_deaths + other.rank_deaths,
            engine_deaths: self.engine_deaths + other.engine_deaths,
            control_deaths: self.control_deaths + other.control_deaths,
            deaths_while_sending: self.deaths_while_sending + other.deaths_while_sending,
            opens: self.opens + other.opens,
            l1_hits: self.l1_hits + other.l1_hits,
            l2_hits: self.l2_hits + other.l2_hits,
            loads: self.loads + other.loads,
            loads_failed: self.loads_failed + other.loads_failed,
            backups: self.backups + other.backups,
            refusals: self.refusals + other.refusals,
            steps: self.steps + other.steps,
            closes: self.closes + other.closes,
            aborts: self.aborts + other.aborts,
            pages_checked: self.pages_checked + other.pages_checked,
            evictions: self.evictions + other.evictions,
        }
    }
}

/// Counts of handovers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransferStats {
    /// Requests that both groups served together.
    pub requests: u64,
    /// Attempts whose pages came over.
    pub done: u64,
    /// Pages that came over.
    pub pages: u64,
    /// Of the attempts that came over: with a prefix that decode had.
    pub with_prefix: u64,
    /// Of those: with a last page that was not full.
    pub with_tail: u64,
    /// Attempts that came to nothing.
    pub failed: u64,
    /// Attempts above the first.
    pub repeated: u64,
    /// Attempts that one side gave up while it ran.
    pub aborted: u64,
    /// Opens by an attempt below one that was opened before.
    pub ghosts: u64,
    /// Deaths in the group that sends, and in the one that receives, while an attempt ran.
    pub deaths: [u64; 2],
    /// Frames that crossed the wire.
    pub frames: u64,
    /// Frames that were refused where they arrived.
    pub frames_refused: u64,
    /// Connections that broke.
    pub broken: u64,
    /// Pushes that took too long.
    pub overdue: u64,
    /// Pushes said to be complete that were not.
    pub lies: u64,
}

/// Virtual time, the queue and the bus.
#[derive(Debug)]
pub struct Net {
    /// What the clock says.
    pub now: Time,
    /// The world's chance.
    pub chance: Chance,
    /// How unkind the world is.
    pub mix: Mix,
    /// Counts.
    pub stats: Stats,
    /// Counts of handovers.
    pub transfers: TransferStats,
    /// Hash of everything delivered so far.
    pub trace_hash: u64,
    queue: BinaryHeap<Entry>,
    made: u64,
    cuts: BTreeSet<(Address, Address)>,
    last: BTreeMap<(Address, To, bool), Time>,
    holds: Vec<Hold>,
    held: Vec<Message>,
    /// A member that dies in the middle of sending, and how many messages still leave it.
    last_words: Option<(Address, u64)>,
}

#[derive(Debug)]
struct Entry {
    at: Time,
    seq: u64,
    event: Event,
}

impl Net {
    /// An empty queue at time zero.
    pub fn new(chance: Chance, mix: Mix) -> Self {
        Self {
            now: Time::ZERO,
            chance,
            mix,
            stats: Stats::default(),
            transfers: TransferStats::default(),
            trace_hash: 0,
            queue: BinaryHeap::new(),
            made: 0,
            cuts: BTreeSet::new(),
            last: BTreeMap::new(),
            holds: Vec::new(),
            held: Vec::new(),
            last_words: None,
        }
    }

    /// Lets `event` happen at `at`, not before now.
    pub fn at(&mut self, at: Time, event: Event) {
        self.made += 1;
        self.queue.push(Entry { at: at.max(self.now), seq: self.made, event });
    }

    /// Lets `event` happen after `us` microseconds.
    pub fn after_us(&mut self, us: u64, event: Event) {
        self.at(Time { ns: self.now.ns + us * 1_000 }, event);
    }

    /// The next event, not later than `until`; the clock moves to it.
    pub fn next(&mut self, until: Time) -> Option<Event> {
        if self.queue.peek().is_none_or(|entry| entry.at > until) {
            return None;
        }
        let entry = self.queue.pop()?;
        self.now = entry.at;
        Some(entry.event)
    }

    /// When the next event happens.
    pub fn next_at(&self) -> Option<Time> {
        self.queue.peek().map(|entry| entry.at)
    }

    /// Messages of the group on their way.
    pub fn in_flight(&self) -> usize {
        self.queue.iter().filter(|entry| matches!(entry.event, Event::Deliver(_))).count()
    }

    /// Puts a host's parcel on the bus.
    pub fn post(&mut self, from: Address, parcel: Parcel) {
        let to = match parcel.to {
            Dest::Actor(address) => To::Actor(address),
            Dest::Reply(reply) => To::Request(reply.0.parse().unwrap_or(0)),
            // The world of two groups carries it between them.
            Dest::Peer(..) => return,
            Dest::Events => To::Events,
        };
        self.send(Message { from, to, bytes: parcel.bytes.into(), reply: None, trace: parcel.trace }, parcel.urgent);
    }

    /// Of what `from` sends from now on only the next `messages` leave it.
    pub fn cut_short(&mut self, from: Address, messages: u64) {
        self.last_words = Some((from, messages));
    }

    /// Whoever was cut short has died.
    pub fn has_died(&mut self) {
        self.last_words = None;
        self.stats.deaths_while_sending += 1;
    }

    /// Puts a message on the bus.
    pub fn send(&mut self, message: Message, urgent: bool) {
        if let Some((_, left)) = self.last_words.as_mut().filter(|(from, _)| *from == message.from) {
            if *left == 0 {
                return;
            }
            *left -= 1;
        }
        if self.is_held(&message) {
            self.held.push(message);
            return;
        }
        if self.is_cut(&message) || self.chance.happens(self.mix.drop) {
            self.stats.drops += 1;
            return;
        }
        if self.chance.happens(self.mix.repeat) {
            self.stats.repeats += 1;
            self.carry(message.clone(), urgent);
        }
        self.carry(message, urgent);
    }

    fn carry(&mut self, message: Message, urgent: bool) {
        let delay_us = if self.mix.late > 0 && self.chance.happens(self.mix.late) {
            self.chance.within(1_000, 2_000_000)
        } else {
            self.chance.within(self.mix.delay_us / 20 + 1, self.mix.delay_us)
        };
        let mut at = Time { ns: self.now.ns + delay_us * 1_000 };
        if !self.mix.reorder {
            let last = self.last.entry((message.from, message.to, urgent)).or_insert(Time::ZERO);
            at = at.max(*last);
            *last = at;
        }
        self.at(at, Event::Deliver(message));
    }

    /// Notes what was delivered in the trace.
    pub fn delivered(&mut self, message: &Message) {
        self.stats.delivered += 1;
        self.note(&message.bytes);
    }

    /// Mixes `bytes` and the time into the trace.
    pub fn note(&mut self, bytes: &[u8]) {
        let mut hash = self.trace_hash ^ self.now.ns;
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            hash = (hash ^ u64::from_le_bytes(*word)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        }
        for byte in rest {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        self.trace_hash = hash;
    }

    /// Cuts two members off from each other until a heal.
    pub fn cut(&mut self, a: Address, b: Address, ms: u64) {
        self.stats.partitions += 1;
        self.cuts.insert((a.min(b), a.max(b)));
        self.at(self.now.plus_ms(ms), Event::Heal(a.min(b), a.max(b)));
    }

    /// Ends a cut.
    pub fn heal(&mut self, a: Address, b: Address) {
        self.cuts.remove(&(a, b));
    }

    /// Ends every fault of the bus.
    pub fn heal_all(&mut self) {
        self.cuts.clear();
        self.mix = Mix { sessions: self.mix.sessions, ..Mix::calm(self.mix.delay_us) };
    }

    fn is_cut(&self, message: &Message) -> bool {
        let to = match message.to {
            To::Actor(address) => address,
            To::Request(_) => Address::Engine,
            To::Events => return false,
        };
        !self.cuts.is_empty() && self.cuts.contains(&(message.from.min(to), message.from.max(to)))
    }

    /// Keeps messages like this back from now on.
    pub fn hold(&mut self, hold: Hold) {
        self.holds.push(hold);
    }

    /// Ends the holds of `kind` and delivers what they kept.
    pub fn release(&mut self, kind: &str) {
        self.holds.retain(|hold| hold.kind != kind);
        for message in std::mem::take(&mut self.held) {
            self.send(message, false);
        }
    }

    /// Delivers what was kept of `kind` so far, each message once, and keeps nothing any more.
    pub fn release_each_once(&mut self, kind: &str) {
        self.holds.retain(|hold| hold.kind != kind);
        let mut seen = BTreeSet::new();
        for message in std::mem::take(&mut self.held) {
            if seen.insert(message.to) {
                self.send(message, false);
            }
        }
    }

    /// Loses what the holds have kept so far.
    pub fn forget_held(&mut self) -> usize {
        std::mem::take(&mut self.held).len()
    }

    fn is_held(&self, message: &Message) -> bool {
        if self.holds.is_empty() {
            return false;
        }
        let Ok(envelope) = hicached_actors::protocol::Envelope::decode(&message.bytes) else { return false };
        let to = if let To::Actor(address) = message.to { Some(address) } else { None };
        self.holds.iter().any(|hold| {
            hold.kind == envelope.kind
                && hold.from.is_none_or(|from| from == message.from)
                && (hold.to.is_none() || hold.to == to)
        })
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    /// The heap gives the greatest first, so the earliest is the greatest.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (other.at, other.seq).cmp(&(self.at, self.seq))
    }
}
