//! A decode group whose machines are all real, the real sender of a prefill group, and virtual time. Engines, the
//! prefill index and the ranks do what a test says; the bus loses nothing and takes no time.

use std::collections::{BTreeMap, VecDeque};

use hicached_actors::allocator::Allocator;
use hicached_actors::host::{Dest, Output};
use hicached_actors::machine::is_urgent;
use hicached_actors::protocol::*;
use hicached_sim::{Birth, Control, Layout, Sizes, machines};

use crate::ranks::{Answers, DecodeRank, LAYERS, Pushing};

pub(crate) const PAGE_TOKENS: u32 = 64;
/// Ranks of the prefill group.
pub(crate) const CP: u8 = 4;
/// How long a receiver trusts a silent sender.
pub(crate) const LEASE_MS: u64 = 2_000;

pub(crate) struct World {
    pub(crate) now: Time,
    pub(crate) rank: DecodeRank,
    pub(crate) pushes: Vec<Pushing>,
    /// Orders to stop that ranks of the prefill group have not carried out, while they are kept.
    pub(crate) stops: Vec<(Rank, OpId, StopPush)>,
    pub(crate) keeps_stops: bool,
    sizes: Sizes,
    decode: Control,
    /// Its sender alone is used; `None` when the group is dead.
    prefill: Option<Control>,
    prefill_lives: u8,
    bus: VecDeque<Letter>,
    /// By sender, its life, who is told and how urgently.
    numbers: BTreeMap<(Side, Address, Incarnation, Address, bool), u64>,
    answers: BTreeMap<OpId, Vec<Answer>>,
    engine_ids: OpIds,
    hello_at: Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    Prefill,
    Decode,
}

struct Letter {
    side: Side,
    to: Address,
    bytes: Vec<u8>,
    is_request: bool,
}

impl World {
    /// A decode group of `l1_pages` usable pages and `l2_pages` host slots that serves, and a prefill group that lives.
    pub(crate) fn new(l1_pages: u32, l2_pages: u32) -> Self {
        let sizes = Sizes {
            l1_pages,
            l2_pages,
            page_tokens: PAGE_TOKENS,
            target_layers: LAYERS,
            draft_layers: 0,
            compute_tokens_min: 0,
            ..Sizes::default()
        };
        let birth = Birth { life: DECODE, number: 0, seed: 1, now: Time::ZERO };
        let (decode, first) = machines(&sizes, &birth);
        let mut world = Self {
            now: Time::ZERO,
            rank: DecodeRank::new(DECODE, ENGINE),
            pushes: Vec::new(),
            stops: Vec::new(),
            keeps_stops: false,
            sizes,
            decode,
            prefill: None,
            prefill_lives: 0,
            bus: VecDeque::new(),
            numbers: BTreeMap::new(),
            answers: BTreeMap::new(),
            engine_ids: OpIds::new(ENGINE),
            hello_at: Time::ZERO,
        };
        world.take(Side::Decode, first);
        world.settle();
        world.register();
        world.revive_prefill();
        world
    }

    fn register(&mut self) {
        let manifest = Layout::new(&self.sizes).manifest;
        let region = |layer: u32| Region {
            component: manifest.components[0].name.clone(),
            layer,
            offset: u64::from(layer) << 20,
            stride: 64,
            page_bytes: manifest.components[0].page_bytes[layer as usize],
        };
        let regions = (0..LAYERS).map(region).collect();
        let pages = self.sizes.l1_pages + 1;
        let register = Register {
            rank: Rank(0),
            engine: ENGINE,
            manifest: manifest.clone(),
            pages,
            segment: "segment".to_owned(),
            segment_bytes: 16 << 20,
            regions,
            last_step: 0,
            born_ms: 0,
        };
        let op = self.ask(register);
        assert!(matches!(self.answer(op), Answer::Registered(_)), "{:?}", self.answer(op));
    }

    /// The prefill group begins a new life.
    pub(crate) fn revive_prefill(&mut self) {
        self.prefill_lives += 1;
        let life = Incarnation([self.prefill_lives; 16]);
        let sizes = Sizes { cp: CP, ..self.sizes.clone() };
        let birth = Birth { life, number: 0, seed: 2, now: self.now };
        self.prefill = Some(machines(&sizes, &birth).0);
        for rank in (0..CP).map(Rank) {
            let is = RankIs { rank, incarnation: prefill_rank(rank) };
            self.tell_sender(OpId::new(life, u64::from(rank.0)), is);
        }
        self.settle();
    }

    /// The machines of the prefill group die; its ranks go on.
    pub(crate) fn kill_prefill(&mut self) {
        self.prefill = None;
        self.bus.retain(|letter| letter.side == Side::Decode);
    }

    /// The prefill index hands a prompt over: its pages are of these owners.
    pub(crate) fn send(&mut self, transfer: OpId, attempt: u32, tokens: u32, owners: &[u8]) {
        let pages = (1..).zip(owners).map(|(physical, owner)| PageId(physical * u32::from(CP) + u32::from(*owner)));
        let pages = Pages(pages.collect());
        self.tell_sender(transfer, SendOpen { attempt, to: "decode".to_owned(), session: transfer, tokens });
        self.tell_sender(transfer, SendPart { attempt, part: 0, first: 0, pages, step: 1 });
        self.tell_sender(transfer, SendEnd { attempt, parts: 1, tokens, blob: Bin(b"seed".to_vec()) });
        self.settle();
    }

    /// The prefill index gives a transfer up.
    pub(crate) fn stop_sending(&mut self, transfer: OpId, attempt: u32) {
        self.tell_sender(transfer, SendStop { attempt, cause: "aborted".to_owned() });
    }

    fn tell_sender(&mut self, op: OpId, msg: impl Into<SenderIn>) {
        let Some(life) = self.prefill.as_ref().map(|prefill| prefill.life) else { return };
        let to = Outgoing::Sender(msg.into());
        self.say(Side::Prefill, (Address::Index, life), op, to);
    }

    /// Layers of every push leave until so many have left; whoever is through says so.
    pub(crate) fn push_layers(&mut self, layers: u32) {
        for mut pushing in std::mem::take(&mut self.pushes) {
            let mut landed = true;
            while landed && pushing.layers < layers {
                let frame = pushing.next();
                landed = self.rank.land(&frame);
            }
            if landed && pushing.layers < LAYERS {
                self.pushes.push(pushing);
                continue;
            }
            let Pushing { rank, transfer, push: Push { attempt, part, .. }, .. } = pushing;
            let failed = if landed { vec![] } else { vec![WrongState::new(transfer, "revoked").into()] };
            let (complete, figures) = (landed, PushFigures::NONE);
            let pushed = Pushed { attempt, part, rank, complete, failed, figures };
            self.prefill_rank_says(rank, transfer, pushed);
        }
        self.settle();
    }

    /// Ranks of the prefill group stop what they were told to stop.
    pub(crate) fn carry_out_stops(&mut self) {
        for (rank, op, StopPush { attempt }) in std::mem::take(&mut self.stops) {
            self.pushes.retain(|pushing| (pushing.rank, pushing.transfer) != (rank, op));
            self.prefill_rank_says(rank, op, PushStopped { attempt, rank });
        }
        self.settle();
    }

    fn prefill_rank_says(&mut self, rank: Rank, op: OpId, msg: impl Into<SenderIn>) {
        let to = Outgoing::Sender(msg.into());
        self.say(Side::Prefill, (Address::Rank(rank), prefill_rank(rank)), op, to);
    }

    /// Asks the decode index, as its engine.
    pub(crate) fn ask(&mut self, request: impl Into<Request>) -> OpId {
        let op = self.engine_ids.draw();
        let request: Request = request.into();
        let bytes = self.envelope(
            Side::Decode,
            (Address::Engine, ENGINE),
            Address::Index,
            (request.code(), request.encode_body()),
            op,
        );
        self.bus.push_back(Letter { side: Side::Decode, to: Address::Index, bytes, is_request: true });
        self.settle();
        op
    }

    /// The newest answer to `op`.
    pub(crate) fn answer(&self, op: OpId) -> &Answer {
        self.answers(op).last().unwrap_or_else(|| panic!("{op:?} is not answered"))
    }

    /// All answers to `op`.
    pub(crate) fn answers(&self, op: OpId) -> &[Answer] {
        self.answers.get(&op).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn opened(&self, op: OpId) -> &Opened {
        match self.answer(op) {
            Answer::Opened(opened) => opened,
            other => panic!("not opened: {other:?}"),
        }
    }

    /// Usable L1 pages of the decode group that nobody has.
    pub(crate) fn free(&self) -> u32 {
        let allocator = self.decode.machine::<Allocator>(Address::Allocator).expect("every group has one");
        allocator.free_pages(Tier::L1)[0]
    }

    /// Host slots of the decode group that nobody has.
    pub(crate) fn free_host(&self) -> u32 {
        let allocator = self.decode.machine::<Allocator>(Address::Allocator).expect("every group has one");
        allocator.free_pages(Tier::L2)[0]
    }

    /// The decode index hears this, as from its receiver.
    pub(crate) fn receiver_says(&mut self, op: OpId, news: impl Into<IndexNews>) {
        self.say(Side::Decode, (Address::Receiver, DECODE), op, Outgoing::Index(news.into()));
        self.settle();
    }

    /// A figure of a machine of the decode group.
    pub(crate) fn figure(&self, at: Address, name: &str) -> u64 {
        self.decode.figure(at, name)
    }

    /// Full pages of a path that a request would find.
    pub(crate) fn matched(&mut self, keys: &[Key]) -> u32 {
        let op = self.ask(Probe { tenant: TENANT.to_owned(), salt: SALT, keys: Keys(keys.to_vec()) });
        match self.answer(op) {
            Answer::Probed(probed) => probed.l1 + probed.l2,
            other => panic!("not probed: {other:?}"),
        }
    }

    /// A step of the decode engine passes.
    pub(crate) fn pass(&mut self, step: u64) {
        self.rank.passed = step;
        if let Some((to, op)) = self.rank.tell_passed() {
            self.say(Side::Decode, (Address::Rank(Rank(0)), DECODE_RANK), op, to);
        }
        self.settle();
    }

    /// Lets time pass: whoever is due acts, and ranks say that they live.
    pub(crate) fn run_for(&mut self, ms: u64) {
        let end = self.now.plus_ms(ms);
        self.settle();
        while let Some((at, who)) = self.next().filter(|(at, _)| *at <= end) {
            self.now = at.max(self.now);
            match who {
                Due::Machine(side, address) => self.drive(side, address, |actor, now, out| actor.wake(now, out)),
                Due::Hello => {
                    self.hello_at = self.now.plus_ms(HELLO_MS);
                    let hello = Outgoing::Index(self.rank.hello(self.sizes.l2_pages));
                    self.say(Side::Decode, (Address::Rank(Rank(0)), DECODE_RANK), OpId::default(), hello);
                    self.ask(Heartbeat { engine: ENGINE, last_step: self.rank.passed });
                }
            }
            self.settle();
        }
        self.now = end;
    }

    fn next(&self) -> Option<(Time, Due)> {
        let of = |side: Side, control: &Control, address: Address| {
            control.next_deadline(address).map(|(at, _)| (at, Due::Machine(side, address)))
        };
        let decode = self.decode.addresses().into_iter().filter_map(|at| of(Side::Decode, &self.decode, at));
        let prefill = self.prefill.as_ref().and_then(|prefill| of(Side::Prefill, prefill, Address::Sender));
        decode.chain(prefill).chain([(self.hello_at, Due::Hello)]).min_by_key(|(at, _)| *at)
    }

    /// Delivers everything that is on its way, and what comes of it.
    fn settle(&mut self) {
        while let Some(Letter { side, to, bytes, is_request }) = self.bus.pop_front() {
            if let Address::Rank(rank) = to {
                self.order(side, rank, &bytes);
                continue;
            }
            let reply = is_request.then(|| "reply".into());
            self.drive(side, to, |actor, now, out| actor.deliver(now, &bytes, reply, None, out));
        }
    }

    fn drive(&mut self, side: Side, at: Address, act: impl FnOnce(&mut dyn hicached_sim::Actor, Time, &mut Output)) {
        let (now, mut out) = (self.now, Output::default());
        let control = match side {
            Side::Decode => &mut self.decode,
            Side::Prefill => match &mut self.prefill {
                Some(prefill) if at == Address::Sender => prefill,
                // The index of the prefill group is the test.
                Some(_) | None => return,
            },
        };
        control.drive(at, |actor| act(actor, now, &mut out)).unwrap_or_else(|violation| panic!("{violation:?}"));
        self.take(side, out);
    }

    fn take(&mut self, side: Side, out: Output) {
        for parcel in out.parcels {
            let (side, to) = match parcel.to {
                Dest::Actor(to) => (side, to),
                Dest::Peer(_, to) if side == Side::Prefill => (Side::Decode, to),
                Dest::Peer(_, to) => (Side::Prefill, to),
                Dest::Reply(_) => {
                    let Envelope { op, kind, body, .. } = Envelope::decode(&parcel.bytes).expect("an answer");
                    let answer = Answer::decode_body(&kind, &body.0).expect("a known answer").expect("a good one");
                    self.answers.entry(op).or_default().push(answer);
                    continue;
                }
                Dest::Events => continue,
            };
            self.bus.push_back(Letter { side, to, bytes: parcel.bytes, is_request: false });
        }
    }

    /// A rank hears what it has to do.
    fn order(&mut self, side: Side, rank: Rank, bytes: &[u8]) {
        let Envelope { op, kind, body, .. } = Envelope::decode(bytes).expect("an order");
        if kind == "resync" {
            return;
        }
        let msg = RankIn::decode_body(&kind, &body.0).expect("a known order").expect("a good one");
        match (side, msg) {
            (Side::Decode, msg) => {
                let mut said = Answers::new();
                self.rank.take(op, msg, self.sizes.l2_pages, &mut said);
                for (to, op) in said {
                    self.say(Side::Decode, (Address::Rank(rank), DECODE_RANK), op, to);
                }
            }
            (Side::Prefill, RankIn::Push(push)) => {
                let is_new = |known: &Pushing| (known.rank, known.transfer) != (rank, op);
                if self.pushes.iter().all(is_new) {
                    self.pushes.push(Pushing { rank, transfer: op, push, layers: 0 });
                }
            }
            (Side::Prefill, RankIn::StopPush(stop)) => {
                self.stops.push((rank, op, stop));
                if !self.keeps_stops {
                    self.carry_out_stops();
                }
            }
            (Side::Prefill, other) => panic!("{op:?}: {other:?}"),
        }
    }

    fn say(&mut self, side: Side, from: (Address, Incarnation), op: OpId, to: Outgoing) {
        let Some(at) = to.address() else { return };
        let (kind, body) = to.encode_body();
        let bytes = self.envelope(side, from, at, (kind, body), op);
        self.bus.push_back(Letter { side, to: at, bytes, is_request: false });
    }

    fn envelope(
        &mut self,
        side: Side,
        (from, incarnation): (Address, Incarnation),
        to: Address,
        (kind, body): (&str, Vec<u8>),
        op: OpId,
    ) -> Vec<u8> {
        let urgent = is_urgent(kind);
        let seq = self.numbers.entry((side, from, incarnation, to, urgent)).or_insert(0);
        *seq += 1;
        let control = match (side, &self.prefill) {
            (Side::Prefill, Some(prefill)) => prefill.life,
            (Side::Prefill, None) | (Side::Decode, _) => DECODE,
        };
        encode(&Envelope {
            version: VERSION,
            kind: kind.to_owned(),
            id: OpId::default(),
            op,
            sender: from.to_string(),
            incarnation,
            control,
            seq: *seq,
            urgent,
            remaining_ms: 1_000,
            body: Bin(body),
        })
    }
}

enum Due {
    Machine(Side, Address),
    Hello,
}

/// The `n`-th transfer that a router names.
pub(crate) fn transfer(n: u64) -> OpId {
    OpId::new(Incarnation([0x77; 16]), n)
}

/// Keys of a path of `pages` pages: `name` makes it differ from others from its first page on.
pub(crate) fn keys(name: u32, pages: u32) -> Vec<Key> {
    let key = |page: u32| {
        let mut key = [9; 16];
        key[..4].copy_from_slice(&name.to_le_bytes());
        key[4..8].copy_from_slice(&page.to_le_bytes());
        Key(key)
    };
    (0..pages).map(key).collect()
}

/// A request of the decode engine over `keys`, all of its pages at once; `wish` says what it receives.
pub(crate) fn open(keys: &[Key], wish: Option<(OpId, u32)>) -> Open {
    let tokens = keys.len() as u32 * PAGE_TOKENS;
    let handover = wish.map(|(transfer, attempt)| HandoverWish { transfer, attempt, to: String::new() });
    Open {
        tenant: TENANT.to_owned(),
        salt: SALT,
        keys: Keys(keys.to_vec()),
        tokens,
        reserve_tokens: tokens,
        owners: Owners(vec![]),
        priority: 0,
        no_match: false,
        handover: handover.into_iter().collect(),
    }
}

/// The engine gives a session up that no step has named.
pub(crate) fn abort(session: OpId) -> Abort {
    Abort { session, tenant: TENANT.to_owned(), last_step: 0 }
}

/// The engine asks for the end of a transfer.
pub(crate) fn handover(transfer: OpId, attempt: u32) -> Handover {
    Handover { transfer, attempt, tenant: TENANT.to_owned() }
}

fn prefill_rank(rank: Rank) -> Incarnation {
    Incarnation([0xA0 + rank.0; 16])
}

pub(crate) const TENANT: &str = "t";
const SALT: Key = Key([5; 16]);
const DECODE: Incarnation = Incarnation([0xD0; 16]);
const DECODE_RANK: Incarnation = Incarnation([0xD1; 16]);
pub(crate) const ENGINE: Incarnation = Incarnation([0xE0; 16]);
/// How often the rank and the engine of the decode group say that they live.
const HELLO_MS: u64 = 250;
