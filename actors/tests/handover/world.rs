//! Two groups on one bus: their machines, and indexes and ranks that do what is asked of them.

use std::collections::BTreeMap;

use hicached_actors::calls::draw;
use hicached_actors::faults::Faults;
use hicached_actors::machine::{Effect, Machine, Sender as Speaker};
use hicached_actors::protocol::{
    Address, ComponentSpec, Incarnation, IndexNews, Manifest, OpId, Outgoing, Rank, RankIn, Time,
};
use hicached_actors::receiver::{Receiver, ReceiverConfig};
use hicached_actors::sender::{Sender, SenderConfig};

use crate::decode::Decode;
use crate::prefill::Prefill;

/// Ranks of the prefill group.
pub(crate) const CP: u8 = 4;
pub(crate) const PAGE_TOKENS: u32 = 64;

/// The two groups, and what is on its way between their members.
pub(crate) struct World {
    pub(crate) now: Time,
    pub(crate) seed: u64,
    pub(crate) bus: Bus,
    pub(crate) sender: Sender,
    pub(crate) receiver: Receiver,
    pub(crate) prefill: Prefill,
    pub(crate) decode: Decode,
    faults: Faults,
}

/// What is on its way, and what becomes of it there.
#[derive(Default)]
pub(crate) struct Bus {
    letters: BTreeMap<(Time, u64), Letter>,
    sent: u64,
    /// Of a hundred messages so many are lost, and so many come twice.
    pub(crate) lost: u64,
    pub(crate) twice: u64,
    /// Whether messages take their time and overtake each other; a few come when others have stopped waiting.
    pub(crate) is_slow: bool,
}

/// One of the two groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Prefill,
    Decode,
}

#[derive(Clone, Debug)]
struct Letter {
    side: Side,
    from: Address,
    incarnation: Incarnation,
    control: Incarnation,
    op: OpId,
    to: Outgoing,
}

/// What members of a group other than its machines say: from whom, about what, to whom.
pub(crate) type Said = Vec<(Address, OpId, Outgoing)>;

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        Self::with_faults(seed, Faults::NONE)
    }

    pub(crate) fn with_faults(seed: u64, faults: Faults) -> Self {
        let (prefill, decode) = (Prefill::new(life(1)), Decode::new(life(2)));
        let mut world = Self {
            now: Time::ZERO,
            seed,
            bus: Bus::default(),
            sender: sender(prefill.control, faults),
            receiver: receiver(faults),
            prefill,
            decode,
            faults,
        };
        world.say(Side::Prefill, |world, said| world.prefill.tell_lives(world.now, said));
        world.say(Side::Decode, |world, said| world.decode.tell_life(world.now, said));
        world
    }

    /// Both sides open the same attempt of a transfer; `here` pages of it are in the decode group.
    pub(crate) fn begin(&mut self, transfer: OpId, attempt: u32, tokens: u32, here: u32) {
        self.open_prefill(transfer, attempt, tokens);
        self.open_decode(transfer, attempt, tokens, here);
    }

    pub(crate) fn open_prefill(&mut self, transfer: OpId, attempt: u32, tokens: u32) {
        self.say(Side::Prefill, |world, said| {
            world.prefill.open(world.now, &mut world.seed, (transfer, attempt), tokens, said);
        });
    }

    pub(crate) fn open_decode(&mut self, transfer: OpId, attempt: u32, tokens: u32, here: u32) {
        self.say(Side::Decode, |world, said| world.decode.open(world.now, (transfer, attempt), tokens, here, said));
    }

    /// The prefill index gives a transfer up.
    pub(crate) fn stop(&mut self, transfer: OpId) {
        self.say(Side::Prefill, |world, said| world.prefill.stop(world.now, transfer, said));
    }

    /// The decode index gives a transfer up.
    pub(crate) fn unexpect(&mut self, transfer: OpId) {
        self.say(Side::Decode, |world, said| world.decode.unexpect(world.now, transfer, said));
    }

    /// The machines and the index of the prefill group die and begin again; its ranks go on for the old ones.
    pub(crate) fn replace_prefill(&mut self, nth: u8) {
        self.prefill.control = life(nth);
        self.prefill.forget();
        self.sender = sender(self.prefill.control, self.faults);
        self.say(Side::Prefill, |world, said| world.prefill.tell_lives(world.now, said));
    }

    /// The ranks of the prefill group obey its new machines, and nothing of the old ones goes on.
    pub(crate) fn adopt_prefill(&mut self) {
        self.prefill.stop_everything();
    }

    /// The machines and the index of the decode group die and begin again, and its rank obeys them.
    pub(crate) fn replace_decode(&mut self, nth: u8) {
        self.decode.control = life(nth);
        self.decode.forget();
        self.receiver = receiver(self.faults);
        self.say(Side::Decode, |world, said| world.decode.tell_life(world.now, said));
    }

    /// A rank of the prefill group dies, and another life of it begins.
    pub(crate) fn replace_prefill_rank(&mut self, rank: Rank, nth: u8) {
        self.say(Side::Prefill, |world, said| world.prefill.replace_rank(world.now, rank, life(nth), said));
    }

    /// The rank of the decode group dies, and another life of it begins.
    pub(crate) fn replace_decode_rank(&mut self, nth: u8) {
        self.say(Side::Decode, |world, said| world.decode.replace_rank(world.now, life(nth), said));
    }

    /// Runs until nothing of any transfer is left.
    pub(crate) fn run(&mut self) {
        let end = self.now.plus_ms(HANG_MS);
        while !self.is_quiet() {
            assert!(self.now < end, "{} seed hangs:\n{:#?}\n{:#?}", self.seed, self.sender, self.receiver);
            assert!(self.step(), "nothing runs, and somebody waits");
        }
    }

    /// Runs for so long.
    pub(crate) fn run_for(&mut self, ms: u64) {
        let end = self.now.plus_ms(ms);
        while self.next_time().is_some_and(|at| at <= end) {
            self.step();
        }
        self.now = end;
    }

    /// Delivers the next message, or acts on the next deadline when that comes first; whether there is any.
    pub(crate) fn step(&mut self) -> bool {
        let Some(at) = self.next_time() else { return false };
        self.now = self.now.max(at);
        match self.bus.letters.first_entry() {
            Some(letter) if letter.key().0 <= self.now => {
                let letter = letter.remove();
                self.deliver(letter);
            }
            Some(_) | None => self.wake(),
        }
        true
    }

    /// Whether nothing runs and nobody waits.
    pub(crate) fn is_quiet(&self) -> bool {
        let running = [counter(&self.sender, "sender.running"), counter(&self.receiver, "receiver.running")];
        running == [0, 0] && self.prefill.calls.is_empty() && self.decode.calls.is_empty()
    }

    fn next_time(&self) -> Option<Time> {
        let machines = [self.sender.next_deadline(), self.receiver.next_deadline()];
        let indexes = [self.prefill.calls.next_deadline(), self.decode.calls.next_deadline()];
        let letter = self.bus.letters.keys().next().map(|(due, _)| *due);
        machines.into_iter().flatten().map(|(at, _)| at).chain(indexes.into_iter().flatten()).chain(letter).min()
    }

    fn wake(&mut self) {
        let mut out = Vec::new();
        self.sender.wake(self.now, &mut out);
        self.sender.check_invariants();
        self.post(Side::Prefill, Address::Sender, out);
        let mut out = Vec::new();
        self.receiver.wake(self.now, &mut out);
        self.receiver.check_invariants();
        self.post(Side::Decode, Address::Receiver, out);
        self.say(Side::Prefill, |world, said| world.prefill.wake(world.now, said));
        self.say(Side::Decode, |world, said| world.decode.wake(world.now, said));
        if !self.prefill.holds {
            self.push_held();
        }
    }

    /// Ranks that held pushes back carry them out.
    pub(crate) fn push_held(&mut self) {
        self.say(Side::Prefill, |world, said| world.prefill.push_held(&mut world.decode, said));
    }

    fn deliver(&mut self, letter: Letter) {
        let Letter { side, from, incarnation, control, op, to } = letter;
        let is_between_groups = matches!(to, Outgoing::PeerSender(..) | Outgoing::PeerReceiver(..));
        if !is_between_groups && control != self.control(side) {
            return;
        }
        let speaker = Speaker { address: from, incarnation, control, op, reply: None, remaining_ms: 0, trace: None };
        let mut out = Vec::new();
        match to {
            Outgoing::Sender(msg) | Outgoing::PeerSender(_, msg) => {
                self.sender.handle(self.now, &speaker, msg, &mut out);
                self.sender.check_invariants();
                self.post(Side::Prefill, Address::Sender, out);
            }
            Outgoing::Receiver(msg) | Outgoing::PeerReceiver(_, msg) => {
                self.receiver.handle(self.now, &speaker, msg, &mut out);
                self.receiver.check_invariants();
                self.post(Side::Decode, Address::Receiver, out);
            }
            Outgoing::Index(msg) => self.tell_index(side, op, msg),
            Outgoing::Rank(rank, msg) => self.tell_rank(side, rank, op, msg),
            other => panic!("nobody here takes {other:?}"),
        }
    }

    fn tell_index(&mut self, side: Side, op: OpId, msg: IndexNews) {
        self.say(side, |world, said| match side {
            Side::Prefill => world.prefill.hear(world.now, op, msg, said),
            Side::Decode => world.decode.hear(op, msg, said),
        });
    }

    fn tell_rank(&mut self, side: Side, rank: Rank, op: OpId, msg: RankIn) {
        self.say(side, |world, said| match side {
            Side::Prefill => world.prefill.order(&mut world.decode, rank, op, msg, said),
            Side::Decode => world.decode.order(&world.prefill, op, msg, said),
        });
    }

    fn post(&mut self, side: Side, from: Address, effects: Vec<Effect>) {
        for effect in effects {
            if let Effect::Send { to, op, .. } = effect {
                let control = self.control(side);
                self.send(Letter { side, from, incarnation: control, control, op, to });
            }
        }
    }

    fn say(&mut self, side: Side, act: impl FnOnce(&mut Self, &mut Said)) {
        let mut said = Said::new();
        act(self, &mut said);
        for (from, op, to) in said {
            let control = self.control(side);
            let incarnation = match (side, from) {
                (Side::Prefill, Address::Rank(rank)) => self.prefill.life_of(rank),
                (Side::Decode, Address::Rank(_)) => self.decode.life,
                (Side::Prefill | Side::Decode, _) => control,
            };
            self.send(Letter { side, from, incarnation, control, op, to });
        }
    }

    fn send(&mut self, letter: Letter) {
        let fate = draw(&mut self.seed) % 100;
        if fate < self.bus.lost {
            return;
        }
        let copies = 1 + u64::from(fate < self.bus.lost + self.bus.twice);
        for _ in 0..copies {
            let delay_ms = match (self.bus.is_slow, draw(&mut self.seed)) {
                (false, _) => 0,
                (true, chance) if chance.is_multiple_of(50) => chance / 50 % LATE_MS,
                (true, chance) => chance / 50 % SLOW_MS,
            };
            self.bus.sent += 1;
            self.bus.letters.insert((self.now.plus_ms(delay_ms), self.bus.sent), letter.clone());
        }
    }

    const fn control(&self, side: Side) -> Incarnation {
        match side {
            Side::Prefill => self.prefill.control,
            Side::Decode => self.decode.control,
        }
    }
}

/// A counter of a machine.
pub(crate) fn counter(machine: &impl Machine, name: &str) -> u64 {
    let all = machine.counters();
    all.iter().find(|(known, _)| *known == name).unwrap_or_else(|| panic!("no counter {name}")).1
}

/// The `n`-th transfer that a router names.
pub(crate) fn transfer(n: u64) -> OpId {
    OpId::new(Incarnation([0x77; 16]), n)
}

/// The `nth` life that somebody lives.
pub(crate) fn life(nth: u8) -> Incarnation {
    Incarnation([nth; 16])
}

fn sender(control: Incarnation, faults: Faults) -> Sender {
    let config = SenderConfig::new("prefill".into(), &manifest(CP));
    Sender::new(SenderConfig { faults, ..config }, control, 5)
}

fn receiver(faults: Faults) -> Receiver {
    Receiver::new(ReceiverConfig { faults, ..ReceiverConfig::new(&manifest(1)) }, 6)
}

fn manifest(cp_size: u8) -> Manifest {
    let component = ComponentSpec { name: "target.kv".to_owned(), dtype: "u8".to_owned(), page_bytes: vec![16, 0, 16] };
    Manifest {
        page_tokens: PAGE_TOKENS,
        cp_size,
        tile_pages: 1,
        draft_lookahead_tokens: 0,
        components: vec![component],
    }
}

/// How long a slow message takes.
const SLOW_MS: u64 = 30;
/// How long a late message takes: longer than leases, and than an attempt.
const LATE_MS: u64 = 10_000;
/// Whoever waits longer than two of the longest timers waits for ever.
const HANG_MS: u64 = 700_000;
