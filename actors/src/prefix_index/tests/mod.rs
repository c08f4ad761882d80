//! The index in scripts: the test plays everybody else.

mod arriving;
mod bounds;
mod bytes;
mod given;
mod late;
mod life;
mod lives;
mod policies;
mod quarantine;
mod receiving;
mod refusals;
mod room;
mod sending;
mod spans;
mod unseals;

use crate::machine::{Effect, Machine, ReplyTo, Sender, Trace};
use crate::prefix_index::{Index, IndexConfig};
use crate::protocol::*;
use crate::span::{Span, TraceContext};

/// An index and the messages it has sent.
struct Script {
    index: Index,
    now: Time,
    sent: Vec<(OpId, Outgoing)>,
    answers: Vec<(OpId, Answer)>,
    engine_ids: OpIds,
    next_page: u32,
    manifest: Manifest,
    /// The trace of what is delivered.
    trace: Trace,
    spans: Vec<Span>,
    links: Vec<TraceContext>,
    /// The trace in which each message was sent, in order.
    sent_in: Vec<(OpId, Trace)>,
}

const CONTROL: Incarnation = Incarnation([0xc0; 16]);
const ENGINE: Incarnation = Incarnation([0xe0; 16]);
const RANK: Incarnation = Incarnation([0xa0; 16]);

fn manifest(cp_size: u8) -> Manifest {
    let component = |name: &str, layers| ComponentSpec {
        name: name.to_owned(),
        dtype: "fp8".to_owned(),
        page_bytes: vec![64; layers],
    };
    Manifest {
        page_tokens: 64,
        cp_size,
        tile_pages: 1,
        draft_lookahead_tokens: 0,
        components: vec![component("target.kv", 12), component("draft.kv", 1)],
    }
}

fn root() -> Key {
    Key([7; 16])
}

/// Keys of a path: `name` makes it differ from others from its first page on.
fn keys(name: u8, pages: usize) -> Vec<Key> {
    (0..pages).map(|at| Key([name, at as u8, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, name, at as u8])).collect()
}

impl Script {
    /// A group of one rank that serves, with `l2_slots` host pages.
    fn serving(l2_slots: u32) -> Self {
        let config = IndexConfig { compute_tokens_min: 0, ..IndexConfig::new(manifest(1), 65, l2_slots) };
        Self::of(config)
    }

    /// An index that nobody has spoken to.
    fn deaf(config: IndexConfig) -> Self {
        Self {
            manifest: config.manifest.clone(),
            index: Index::new(config, CONTROL, 1),
            now: Time { ns: 1 },
            sent: vec![],
            answers: vec![],
            engine_ids: OpIds::new(ENGINE),
            next_page: 1,
            trace: None,
            spans: vec![],
            links: vec![],
            sent_in: vec![],
        }
    }

    fn of(config: IndexConfig) -> Self {
        let script_ranks = config.cp_size();
        let (l1_pages, l2_slots) = (config.l1_physical_pages, config.l2_slots);
        let mut script = Self::deaf(config);
        let mut out = Vec::new();
        script.index.start(script.now, &mut out);
        let ranks = || (0..script_ranks).map(Rank);
        for rank in ranks() {
            script.hello_of(rank, life(RANK, rank), l2_slots);
            let all = InventoryPart { cursor: 0, rows: vec![], next: u32::MAX };
            script.news_of(rank, OpId::default(), all.into());
        }
        let restore = script.op_of("restore");
        script.news(Address::Allocator, restore, Restored { part: 0 }.into());
        for rank in ranks() {
            let engine = life(ENGINE, rank);
            script.register(rank, engine, l1_pages);
            script.attached(rank, engine);
        }
        let lanes = script.op_of("open_lanes");
        script.news(Address::Allocator, lanes, Freed {}.into());
        assert!(script.index.is_serving());
        script.sent.clear();
        script.answers.clear();
        script
    }

    fn hello(&mut self, life: Incarnation, host_slots: u32) {
        self.hello_of(Rank(0), life, host_slots);
    }

    fn hello_of(&mut self, rank: Rank, life: Incarnation, host_slots: u32) {
        let hello =
            RankHello { rank, host_slots, adopted_by: CONTROL, old_ops: 0, engine: ENGINE, passed: 0, adoptions: 1 };
        self.deliver(Address::Rank(rank), life, OpId::default(), IndexIn::News(hello.into()));
    }

    /// The pool of an engine rank, which begins at a byte of its own.
    fn registration(&self, rank: Rank, engine: Incarnation, pages: u32) -> Register {
        let offset = u64::from(rank.0) * 4_096;
        let region = Region { component: "target.kv".to_owned(), layer: 0, offset, stride: 16, page_bytes: 16 };
        Register {
            rank,
            engine,
            manifest: self.manifest.clone(),
            pages,
            segment: "a".to_owned(),
            segment_bytes: 1,
            regions: vec![region],
            last_step: 0,
            born_ms: 0,
        }
    }

    fn register(&mut self, rank: Rank, engine: Incarnation, pages: u32) {
        self.ask(self.registration(rank, engine, pages));
    }

    fn attached(&mut self, rank: Rank, engine: Incarnation) {
        let attach = self.op_of("attach");
        let attached =
            Attached { engine, pool_file: String::new(), words_offset: 0, load_slots_offset: 0, adoptions: 1 };
        self.news_of(rank, attach, attached.into());
    }

    fn deliver(&mut self, address: Address, incarnation: Incarnation, op: OpId, msg: IndexIn) {
        let reply = (address == Address::Engine).then(|| ReplyTo("inbox".into()));
        let (control, trace) = (CONTROL, self.trace.clone());
        let from = Sender { address, incarnation, control, op, reply, remaining_ms: 1_000, trace };
        let mut out = Vec::new();
        self.index.handle(self.now, &from, msg, &mut out);
        self.take(out);
    }

    fn take(&mut self, out: Vec<Effect>) {
        for effect in out {
            match effect {
                Effect::Send { to, op, trace } => {
                    self.sent.push((op, to));
                    self.sent_in.push((op, trace));
                }
                Effect::Reply { op, answer, .. } => self.answers.push((op, answer)),
                Effect::Mark { .. } => {}
                Effect::Span(span) => self.spans.push(*span),
                Effect::Link(to) => self.links.push(to),
            }
        }
        self.index.check_invariants();
    }

    fn news(&mut self, from: Address, op: OpId, news: IndexNews) {
        self.deliver(from, CONTROL, op, IndexIn::News(news));
    }

    fn news_from_rank(&mut self, op: OpId, news: IndexNews) {
        self.news_of(Rank(0), op, news);
    }

    /// News of a rank in its first life.
    fn news_of(&mut self, rank: Rank, op: OpId, news: IndexNews) {
        self.deliver(Address::Rank(rank), life(RANK, rank), op, IndexIn::News(news));
    }

    /// Sends a request with an op of its own; the answers stay for [`Self::answer`].
    fn ask(&mut self, request: impl Into<Request>) -> OpId {
        let op = self.engine_ids.draw();
        self.ask_as(op, request);
        op
    }

    fn ask_as(&mut self, op: OpId, request: impl Into<Request>) {
        self.deliver(Address::Engine, ENGINE, op, IndexIn::Request(request.into()));
    }

    /// The newest answer to `op`.
    fn answer(&self, op: OpId) -> &Answer {
        &self.answers.iter().rev().find(|(of, _)| *of == op).expect("an answer").1
    }

    fn refusal(&self, op: OpId) -> &Refusal {
        match self.answer(op) {
            Answer::Refused(refusal) => refusal,
            other => panic!("not refused: {other:?}"),
        }
    }

    /// The op of the newest message of `kind`.
    fn op_of(&self, kind: &str) -> OpId {
        let newest = self.sent.iter().rev().find(|(_, msg)| msg.encode_body().0 == kind);
        newest.unwrap_or_else(|| panic!("no {kind} was sent")).0
    }

    fn count_of(&self, kind: &str) -> usize {
        self.sent.iter().filter(|(_, msg)| msg.encode_body().0 == kind).count()
    }

    /// Opens a session over `keys` with room for all its pages, and grants the pages.
    fn open(&mut self, keys: &[Key]) -> OpId {
        self.open_as(open(keys, keys.len() as u32 * 64))
    }

    /// Opens a session, and grants the pages it asks for.
    fn open_as(&mut self, msg: Open) -> OpId {
        let op = self.ask(msg);
        let asked = self.sent.iter().rev().find_map(|(of, msg)| match msg {
            Outgoing::Allocator(AllocatorIn::Reserve(msg)) => Some((*of, msg.owners.0.clone())),
            _ => None,
        });
        if let (Some((reserve, owners)), None) = (asked, self.answers.iter().find(|(of, _)| *of == op)) {
            let granted = owners.iter().map(|owner| self.next_page_of(*owner)).collect();
            self.news(Address::Allocator, reserve, Reserved { pages: Pages(granted) }.into());
        }
        op
    }

    /// The next page of this owner that is not padding.
    fn next_page_of(&mut self, owner: u8) -> PageId {
        let cp_size = self.manifest.cp_size;
        let is_next = |page: &PageId| page.owner(cp_size).0 == owner && page.physical(cp_size) > 0;
        let page = (self.next_page..).map(PageId).find(is_next).expect("pages go on");
        self.next_page = page.0 + 1;
        page
    }

    fn opened(&self, op: OpId) -> &Opened {
        match self.answer(op) {
            Answer::Opened(opened) => opened,
            other => panic!("not opened: {other:?}"),
        }
    }

    /// One step that computes the session's pages `from..to`, announced and passed.
    fn compute(&mut self, session: OpId, number: u64, pages: std::ops::Range<u32>, draft: bool) {
        self.announce(session, number, pages.start * 64..pages.end * 64, draft);
        self.pass(number);
    }

    /// One step that computes these tokens of the session, announced.
    fn announce(&mut self, session: OpId, number: u64, tokens: std::ops::Range<u32>, draft: bool) -> OpId {
        let entry = self.entry(session, tokens, draft);
        self.ask(Step { number, entries: vec![entry], engine: ENGINE, all_layers_at_end: false })
    }

    /// What a step that computes these tokens says of the session.
    fn entry(&self, session: OpId, tokens: std::ops::Range<u32>, draft: bool) -> StepEntry {
        let pages = self.opened(session).pages.0[tokens.start as usize / 64..tokens.end.div_ceil(64) as usize].to_vec();
        StepEntry {
            session,
            first_token: tokens.start,
            tokens: tokens.end - tokens.start,
            pages: Pages(pages),
            draft,
            keys: Keys(vec![]),
            first_key: 0,
            load_read: false,
        }
    }

    fn pass(&mut self, step: u64) {
        self.news_from_rank(OpId::default(), Passed { step, engine: ENGINE }.into());
    }

    fn close(&mut self, session: OpId, last_step: u64) -> Closed {
        self.ask(close(session, last_step, &[]));
        match &self.answers.last().expect("an answer").1 {
            Answer::Closed(closed) => closed.clone(),
            other => panic!("not closed: {other:?}"),
        }
    }

    /// Caches `path` in both tiers at the slots from `slot` on: a session computes, backs up and closes it as step
    /// `number`.
    fn cache(&mut self, path: &[Key], number: u64, slot: u32) {
        let session = self.open(path);
        let first = self.opened(session).l1_hit;
        self.compute(session, number, first..path.len() as u32, true);
        self.close(session, number);
        let backup = self.op_of("backup");
        self.back_up(backup, slot..slot + path.len() as u32 - first);
    }

    /// The writer copies a backup to `slots` and carries the verdict out.
    fn back_up(&mut self, op: OpId, slots: std::ops::Range<u32>) {
        self.news(Address::Writer, op, BackupComplete { slots: Slots(slots.map(HostSlot).collect()) }.into());
        self.news(Address::Writer, op, OpSettled {}.into());
    }

    /// Evicts `pages` of a tier; the allocator takes them back. Returns what the evictor hears.
    fn evict(&mut self, tier: u8, pages: u32) -> Evicted {
        let op = OpId::new(CONTROL, (2 << 56) + self.sent.len() as u64);
        self.news(Address::Evictor, op, Evict { tier, wants: vec![pages] }.into());
        self.take_frees();
        let answer = self.sent.iter().rev().find_map(|(of, msg)| match msg {
            Outgoing::Evictor(EvictorIn::Evicted(answer)) if *of == op => Some(answer.clone()),
            _ => None,
        });
        answer.expect("an eviction that is answered")
    }

    /// The allocator takes every free it was sent.
    fn take_frees(&mut self) {
        let frees: Vec<OpId> = self.sent.iter().filter(|(_, msg)| msg.encode_body().0 == "free").map(|s| s.0).collect();
        frees.into_iter().for_each(|op| self.news(Address::Allocator, op, Freed {}.into()));
    }

    /// Every rank takes the seals away that it was asked to.
    fn take_unseals(&mut self) {
        let unseals: Vec<(Rank, OpId)> = self.unseals().into_iter().map(|(rank, op, _)| (rank, op)).collect();
        unseals.into_iter().for_each(|(rank, op)| self.news_of(rank, op, OpSettled {}.into()));
    }

    /// What ranks were asked to unseal.
    fn unseals(&self) -> Vec<(Rank, OpId, Unseal)> {
        let unseals = self.sent.iter().filter_map(|(op, msg)| match msg {
            Outgoing::Rank(rank, RankIn::Unseal(unseal)) => Some((*rank, *op, unseal.clone())),
            _ => None,
        });
        unseals.collect()
    }

    /// The newest backup asked of the writer.
    fn backup(&self) -> Backup {
        let newest = self.sent.iter().rev().find_map(|(_, msg)| match msg {
            Outgoing::Writer(WriterIn::Backup(backup)) => Some(backup.clone()),
            _ => None,
        });
        newest.expect("a backup")
    }

    fn flush(&mut self, flush: Flush) -> Flushed {
        let op = self.ask(flush);
        self.take_frees();
        self.take_unseals();
        match self.answer(op) {
            Answer::Flushed(flushed) => flushed.clone(),
            other => panic!("not flushed: {other:?}"),
        }
    }

    /// Pages that were freed, in the order of the frees.
    fn freed(&self) -> Vec<PageId> {
        let frees = self.sent.iter().filter_map(|(_, msg)| match msg {
            Outgoing::Allocator(AllocatorIn::Free(free)) => Some(free.l1.0.clone()),
            _ => None,
        });
        frees.flatten().collect()
    }

    /// Goes `ms` on and acts on every deadline of that time.
    fn pass_ms(&mut self, ms: u64) {
        let end = self.now.plus_ms(ms);
        while let Some((at, _)) = self.index.next_deadline().filter(|(at, _)| *at <= end) {
            self.now = at.max(self.now);
            let mut out = Vec::new();
            self.index.wake(self.now, &mut out);
            self.take(out);
        }
        self.now = end;
    }

    fn probe(&mut self, path: &[Key]) -> Probed {
        let op = self.ask(Probe { tenant: "a".to_owned(), salt: root(), keys: Keys(path.to_vec()) });
        match self.answer(op) {
            Answer::Probed(probed) => probed.clone(),
            other => panic!("not probed: {other:?}"),
        }
    }

    fn counter(&self, name: &str) -> u64 {
        self.index.counters().into_iter().find(|(of, _)| *of == name).expect("a counter").1
    }
}

/// The life of `rank` that is `first` of rank 0.
fn life(first: Incarnation, rank: Rank) -> Incarnation {
    Incarnation([first.0[0] ^ rank.0 << 3; 16])
}

fn close(session: OpId, last_step: u64, blob: &[u8]) -> Close {
    let (tenant, keys, blob) = ("a".to_owned(), Keys(vec![]), Bin(blob.to_vec()));
    Close { session, tenant, last_step, keys, first_key: 0, drafted: 0, accepted: 0, blob }
}

fn abort(session: OpId, last_step: u64) -> Abort {
    Abort { session, tenant: "a".to_owned(), last_step }
}

/// The id a router gave.
const TRANSFER: OpId = OpId([0x77; 16]);

/// An open that takes part in the handover; `to` is empty for one that receives.
fn handing_over(attempt: u32, to: &str, msg: Open) -> Open {
    Open { handover: vec![HandoverWish { transfer: TRANSFER, attempt, to: to.to_owned() }], ..msg }
}

fn open(keys: &[Key], tokens: u32) -> Open {
    Open {
        tenant: "a".to_owned(),
        salt: root(),
        keys: Keys(keys.to_vec()),
        tokens,
        reserve_tokens: tokens,
        owners: Owners(vec![]),
        priority: 0,
        no_match: false,
        handover: vec![],
    }
}
