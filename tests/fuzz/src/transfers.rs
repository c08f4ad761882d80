//! What members around a machine say of transfers: one of few transfers and attempts, pages and positions that fit
//! most of the time, so that a conversation gets far, and some that do not.

use hicached_actors::host::Output;
use hicached_actors::protocol::*;

use crate::known::Known;
use crate::source::Source;

/// Somebody and what it says.
pub(crate) struct Told {
    pub(crate) from: Address,
    pub(crate) life: Incarnation,
    pub(crate) op: OpId,
    pub(crate) kind: String,
    pub(crate) body: Vec<u8>,
}

/// Everybody around a machine of one group.
pub(crate) struct Around {
    control: Incarnation,
    manifest: Manifest,
    /// The newest op under which the sender meets a peer.
    meets: OpId,
    /// The last `open` that an engine said, and its life.
    open: Option<(Incarnation, Open)>,
    /// Attempts that have not ended, as far as the machine has said.
    attempts: [u32; TRANSFERS.len()],
    ops: OpIds,
}

/// Whether a step of this kind says something of transfers to the machine at `at`: to those that know nothing else
/// most of the time.
pub(crate) fn is_of_transfers(at: Address, kind: u8) -> bool {
    match at {
        Address::Sender | Address::Receiver => kind >= 5,
        Address::Index => kind == 7,
        _ => false,
    }
}

impl Around {
    pub(crate) fn new(control: Incarnation, manifest: Manifest) -> Self {
        let (meets, attempts) = (OpId::default(), [1; TRANSFERS.len()]);
        Self { control, manifest, meets, open: None, attempts, ops: OpIds::new(control) }
    }

    /// Keeps what later messages refer to of what a machine said.
    pub(crate) fn hear(&mut self, out: &Output) {
        for parcel in &out.parcels {
            let Ok(envelope) = Envelope::decode(&parcel.bytes) else { continue };
            if envelope.kind == "meet" {
                self.meets = envelope.op;
            }
            let ended = match IndexNews::decode_body(&envelope.kind, &envelope.body.0) {
                Some(Ok(IndexNews::SendOver(SendOver { attempt, .. })))
                | Some(Ok(IndexNews::Arrived(Arrived { attempt, .. })))
                | Some(Ok(IndexNews::NotArriving(NotArriving { attempt, .. }))) => attempt,
                _ => continue,
            };
            let known = TRANSFERS.iter().zip(&mut self.attempts).find(|(transfer, _)| **transfer == envelope.op);
            if let Some((_, attempt)) = known.filter(|(_, attempt)| **attempt == ended) {
                *attempt = attempt.saturating_add(1);
            }
        }
    }

    /// What the index says first to a sender or a receiver: which ranks live.
    pub(crate) fn lives(&mut self, at: Address) -> Vec<Told> {
        let mut src = Source::new(&[]);
        let ranks = 0..self.manifest.cp_size;
        ranks.map(|rank| self.life_told(at, Rank(rank), &mut src)).collect()
    }

    /// Keeps what later messages repeat of what a machine was told.
    pub(crate) fn told(&mut self, bytes: &[u8]) {
        if let Ok(envelope) = Envelope::decode(bytes)
            && let Some(Ok(Request::Open(open))) = Request::decode_body(&envelope.kind, &envelope.body.0)
        {
            self.open = Some((envelope.incarnation, open));
        }
    }

    /// Something for the index, the sender or the receiver, whichever is at `at`.
    pub(crate) fn say(&mut self, at: Address, src: &mut Source<'_>, known: &Known) -> Told {
        match at {
            Address::Sender => self.for_sender(src),
            Address::Receiver => self.for_receiver(src),
            _ => self.for_index(src, known),
        }
    }

    fn for_sender(&mut self, src: &mut Source<'_>) -> Told {
        let kind = src.u8() % 32;
        let (op, attempt) = self.attempt(src);
        let mut from = Address::Index;
        let msg: SenderIn = match kind {
            0 | 1 => return self.rank_is(Address::Sender, src),
            2 | 3 => SendOpen { attempt, to: group(src), session: OpId([1; 16]), tokens: self.tokens(src) }.into(),
            4..=9 => self.part(attempt, src).into(),
            10..=12 => {
                let (parts, tokens) = (if src.u8() < 200 { 2 } else { number(src, 4) }, self.tokens(src));
                SendEnd { attempt, parts, tokens, blob: blob(src) }.into()
            }
            13 => match src.u8() % 4 {
                0 => SendStop { attempt, cause: "enough".to_owned() }.into(),
                of => {
                    from = [Address::Index, Address::Receiver, Address::Rank(Rank(0))][usize::from(of - 1)];
                    Rejected { refusal: refusal() }.into()
                }
            },
            14..=21 => self.pushed(attempt, &mut from, src).into(),
            22 => PushStopped { attempt, rank: self.rank(src, &mut from) }.into(),
            _ => {
                from = Address::Receiver;
                match kind {
                    23 | 24 => {
                        let lease_ms = if src.u8() < 200 { 2_000 } else { src.number() };
                        let op = if src.u8() < 240 { self.meets } else { op };
                        return self.tell(from, peer(src), op, SenderIn::from(Met { lease_ms }));
                    }
                    25..=28 => wanted(attempt, src).into(),
                    29 | 30 => Received { attempt }.into(),
                    _ if src.u8() < 192 => CeasedHeard { attempt }.into(),
                    _ => Cease { attempt, cause: "enough".to_owned() }.into(),
                }
            }
        };
        let life = self.life_of(from, src);
        self.tell(from, life, op, msg)
    }

    /// The first two pages, or the third.
    fn part(&self, attempt: u32, src: &mut Source<'_>) -> SendPart {
        let step = u64::from(src.u8() % 3);
        match src.u8() {
            fits @ 0..=207 => {
                let part = u32::from(fits % 2);
                let first = PageId(u32::from(self.manifest.cp_size) + 2 * part);
                let pages = if part == 0 { vec![first, PageId(first.0 + 1)] } else { vec![first] };
                SendPart { attempt, part, first: 2 * part, pages: Pages(pages), step }
            }
            _ => {
                let (part, first) = (number(src, 3), number(src, 3));
                SendPart { attempt, part, first, pages: self.pages(src), step }
            }
        }
    }

    fn pushed(&self, attempt: u32, from: &mut Address, src: &mut Source<'_>) -> Pushed {
        let (rank, part) = (self.rank(src, from), number(src, 2));
        let (complete, failed) = match src.u8() {
            0..=207 => (true, Vec::new()),
            208..=247 => (false, Vec::new()),
            _ => (src.u8().is_multiple_of(2), vec![refusal()]),
        };
        let figures = PushFigures { bytes: src.number(), total_us: src.number(), ..PushFigures::NONE };
        Pushed { attempt, part, rank, complete, failed, figures }
    }

    fn for_receiver(&mut self, src: &mut Source<'_>) -> Told {
        let kind = src.u8() % 32;
        let (op, attempt) = self.attempt(src);
        let mut from = Address::Index;
        let msg: ReceiverIn = match kind {
            0 | 1 => return self.rank_is(Address::Receiver, src),
            2..=5 => self.expect(attempt, src).into(),
            6 => Unexpect { attempt, cause: "enough".to_owned() }.into(),
            7 | 8 => HandoverSettled { attempt }.into(),
            9..=12 => {
                let (rank, endpoint) = (self.rank(src, &mut from), "tcp:127.0.0.1:1".to_owned());
                Accepting { attempt, rank, endpoint, grant: blob(src) }.into()
            }
            13..=16 => {
                let (rank, owners) = (self.rank(src, &mut from), owners(src));
                let figures = LandFigures { bytes: src.number(), buffers: 3, refused: src.number() };
                Landed { attempt, rank, owners, figures }.into()
            }
            17..=20 => Revoked { attempt, rank: self.rank(src, &mut from) }.into(),
            21 => {
                from = [Address::Index, Address::Sender, Address::Rank(Rank(0))][usize::from(src.u8() % 3)];
                Rejected { refusal: refusal() }.into()
            }
            _ => {
                from = Address::Sender;
                match kind {
                    22 | 23 => {
                        let mut manifest = Manifest { cp_size: 1 + src.u8() % 4, ..self.manifest.clone() };
                        match src.u8() {
                            0..=207 => {}
                            // As groups in the middle of an upgrade.
                            208..=239 => drop(manifest.components.pop()),
                            _ => manifest.page_tokens = src.number() as u32,
                        }
                        Meet { group: group(src), manifest }.into()
                    }
                    24..=26 => Offer { attempt, group: group(src), tokens: self.tokens(src) }.into(),
                    27..=30 => {
                        let (tokens, owners, straggler) = (self.tokens(src), owners(src), Rank(src.u8() % 65));
                        Finished { attempt, tokens, owners, straggler, blob: blob(src) }.into()
                    }
                    _ => Ceased { attempt, cause: "enough".to_owned() }.into(),
                }
            }
        };
        let life = self.life_of(from, src);
        self.tell(from, life, op, msg)
    }

    /// Three pages, or some.
    fn expect(&self, attempt: u32, src: &mut Source<'_>) -> Expect {
        let (tokens, padding) = (self.tokens(src), u32::from(self.manifest.cp_size));
        match src.u8() {
            fits @ 0..=207 => {
                let first = u32::from(fits % 16 / 13);
                let pages = Pages((first..3).map(|at| PageId(padding + at)).collect());
                Expect { attempt, tokens, first, pages }
            }
            _ => Expect { attempt, tokens, first: number(src, 3), pages: self.pages(src) },
        }
    }

    fn for_index(&mut self, src: &mut Source<'_>, known: &Known) -> Told {
        let kind = src.u8() % 10;
        let (op, attempt) = self.attempt(src);
        let from = if kind.is_multiple_of(2) { Address::Sender } else { Address::Receiver };
        let msg: IndexNews = match kind {
            0 => SendTaken { attempt, parts: number(src, 3) }.into(),
            2 => SendOver { attempt, ok: src.u8() < 128, cause: "enough".to_owned() }.into(),
            1 => Expected { attempt }.into(),
            3 => Arrived { attempt, tokens: self.tokens(src), blob: blob(src), components: components(src) }.into(),
            5 => NotArriving { attempt, cause: "enough".to_owned() }.into(),
            4 => Rejected { refusal: refusal() }.into(),
            _ => return self.of_engine(src, known, op, attempt),
        };
        self.tell(from, self.control, op, msg)
    }

    /// An engine's side: the last `open` again as a part of a transfer, a question for its end, and what ends it.
    fn of_engine(&mut self, src: &mut Source<'_>, known: &Known, transfer: OpId, attempt: u32) -> Told {
        let op = self.ops.draw();
        let (life, open) = self.open.clone().unwrap_or_else(|| (Incarnation(known.id(src)), plain_open()));
        let tenant = open.tenant.clone();
        let msg: Request = match src.u8() % 6 {
            0..=2 => {
                let to = if src.u8().is_multiple_of(2) { String::new() } else { group(src) };
                Open { handover: vec![HandoverWish { transfer, attempt, to }], ..open }.into()
            }
            3 => Handover { transfer, attempt, tenant }.into(),
            4 => Close {
                session: OpId(known.id(src)),
                tenant,
                last_step: u64::from(src.u8() % 4),
                keys: Keys(Vec::new()),
                first_key: 0,
                drafted: 0,
                accepted: 0,
                blob: blob(src),
            }
            .into(),
            _ => Abort { session: OpId(known.id(src)), tenant, last_step: u64::from(src.u8() % 4) }.into(),
        };
        let (kind, body) = (msg.code().to_owned(), msg.encode_body());
        Told { from: Address::Engine, life, op, kind, body }
    }

    fn rank_is(&mut self, at: Address, src: &mut Source<'_>) -> Told {
        let rank = Rank(src.u8() % (self.manifest.cp_size + 1) % self.manifest.cp_size.max(1));
        self.life_told(at, rank, src)
    }

    fn life_told(&mut self, at: Address, rank: Rank, src: &mut Source<'_>) -> Told {
        let is = RankIs { rank, incarnation: rank_life(rank, src) };
        let op = self.ops.draw();
        match at {
            Address::Sender => self.tell(Address::Index, self.control, op, SenderIn::from(is)),
            _ => self.tell(Address::Index, self.control, op, ReceiverIn::from(is)),
        }
    }

    fn tell<M: Spoken>(&self, from: Address, life: Incarnation, op: OpId, msg: M) -> Told {
        Told { from, life, op, kind: msg.kind(), body: msg.body() }
    }

    /// A transfer and an attempt of it: mostly the one that runs.
    fn attempt(&self, src: &mut Source<'_>) -> (OpId, u32) {
        let at = match src.u8() {
            0..=223 => 0,
            224..=239 => 1,
            _ => 2,
        };
        let attempt = match src.u8() {
            0..=243 => self.attempts[at],
            244..=249 => self.attempts[at] - 1,
            250..=252 => self.attempts[at].saturating_add(1),
            _ => src.number() as u32,
        };
        (TRANSFERS[at], attempt)
    }

    /// The life in which `from` speaks.
    fn life_of(&self, from: Address, src: &mut Source<'_>) -> Incarnation {
        match from {
            Address::Rank(rank) => rank_life(rank, src),
            Address::Sender | Address::Receiver => peer(src),
            _ => self.control,
        }
    }

    /// One of the group, as who speaks.
    fn rank(&self, src: &mut Source<'_>, from: &mut Address) -> Rank {
        let rank = Rank(src.u8() % self.manifest.cp_size.max(1));
        *from = Address::Rank(rank);
        rank
    }

    /// Mostly three pages, the last one not full.
    fn tokens(&self, src: &mut Source<'_>) -> u32 {
        match src.u8() {
            0..=219 => 3 * self.manifest.page_tokens - 5,
            220..=245 => u32::from(src.u8() % 8) * self.manifest.page_tokens,
            _ => src.number() as u32,
        }
    }

    /// Pages that stand behind those of padding.
    fn pages(&self, src: &mut Source<'_>) -> Pages {
        let (count, first) = (u32::from(src.u8() % 4), u32::from(src.u8() % 8));
        let page = |nth: u32| PageId(u32::from(self.manifest.cp_size) + first + nth);
        let mut pages: Vec<PageId> = (0..count).map(page).collect();
        if src.u8() > 240 {
            pages.push(PageId(src.number() as u32));
        }
        Pages(pages)
    }
}

/// A message by its kind and body.
trait Spoken {
    fn kind(&self) -> String;
    fn body(&self) -> Vec<u8>;
}

macro_rules! spoken {
    ($($inbox:ty),*) => {$(
        impl Spoken for $inbox {
            fn kind(&self) -> String {
                self.code().to_owned()
            }

            fn body(&self) -> Vec<u8> {
                self.encode_body()
            }
        }
    )*};
}
spoken!(SenderIn, ReceiverIn, IndexNews);

/// The ids that a router gives.
pub(crate) const TRANSFERS: [OpId; 3] = [OpId([0x71; 16]), OpId([0x72; 16]), OpId([0x73; 16])];

/// Lives of a peer's sender or receiver.
const PEERS: [Incarnation; 2] = [Incarnation([0xD0; 16]), Incarnation([0xD1; 16])];

/// All three pages, or some, each into a slot of its own.
fn wanted(attempt: u32, src: &mut Source<'_>) -> Wanted {
    let whole = src.u8() < 240;
    let positions = if whole { Positions((0..3).map(Position).collect()) } else { positions(src) };
    let mut slots: Vec<PeerPage> = positions.0.iter().map(|at| PeerPage(9 - at.0 % 9)).collect();
    if !whole && src.u8() > 192 {
        slots.push(PeerPage(src.number() as u32));
    }
    let grant = if whole { Bin(vec![7; 16]) } else { blob(src) };
    let components = if whole { Vec::new() } else { components(src) };
    Wanted { attempt, positions, slots: PeerPages(slots), endpoint: "tcp:127.0.0.1:1".to_owned(), grant, components }
}

/// Mostly below `below`.
fn number(src: &mut Source<'_>, below: u32) -> u32 {
    match src.u8() {
        small @ 0..=239 => u32::from(small) % below,
        _ => src.number() as u32,
    }
}

fn group(src: &mut Source<'_>) -> String {
    let group = match src.u8() {
        0..=199 => "decode",
        200..=229 => "prefill",
        230..=239 => "group",
        240..=247 => "",
        _ => "no.token",
    };
    group.to_owned()
}

fn peer(src: &mut Source<'_>) -> Incarnation {
    PEERS[usize::from(src.u8() >= 240)]
}

fn rank_life(rank: Rank, src: &mut Source<'_>) -> Incarnation {
    match src.u8() {
        0..=247 => Incarnation([0xA0 + rank.0; 16]),
        248..=252 => Incarnation([0xB0 + rank.0; 16]),
        _ => Incarnation::default(),
    }
}

/// Those of three pages, ascending, each once, most of the time.
fn positions(src: &mut Source<'_>) -> Positions {
    let set = match src.u8() {
        0..=127 => 0b111,
        set => set & 0b111,
    };
    let mut positions: Vec<Position> = (0..3).filter(|at| set >> at & 1 != 0).map(Position).collect();
    if src.u8() > 240 {
        positions.push(Position(src.number() as u32));
    }
    Positions(positions)
}

fn owners(src: &mut Source<'_>) -> Owners {
    match src.u8() {
        0..=207 => Owners(vec![0; 3]),
        208..=231 => Owners(vec![0; usize::from(src.u8() % 4)]),
        _ => Owners((0..src.u8() % 5).map(|_| src.u8()).collect()),
    }
}

fn components(src: &mut Source<'_>) -> Vec<String> {
    let named: &[&str] = match src.u8() {
        0..=199 => &[],
        200..=239 => &["target.kv"],
        240..=249 => &["draft.kv"],
        _ => &["target.kv", "target.kv"],
    };
    named.iter().map(|name| (*name).to_owned()).collect()
}

fn blob(src: &mut Source<'_>) -> Bin {
    match src.u8() {
        0..=219 => Bin(vec![7; 16]),
        220..=251 => Bin(src.counted().to_vec()),
        _ => Bin(vec![7; BLOB_BYTES_MAX + 1]),
    }
}

/// Before an engine has opened anything.
fn plain_open() -> Open {
    Open {
        tenant: "t".to_owned(),
        salt: Key([9; 16]),
        keys: Keys(Vec::new()),
        tokens: 20,
        reserve_tokens: 20,
        owners: Owners(Vec::new()),
        priority: 0,
        no_match: false,
        handover: Vec::new(),
    }
}

fn refusal() -> Refusal {
    WrongState { what: "push".to_owned(), state: "broken".to_owned() }.into()
}
