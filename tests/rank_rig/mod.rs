//! A rank under test: real files, a control group that speaks bytes to it, and an engine that writes pages.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hicached::rank::{CopyThreads, RankError, RankHost, RankSetup, layout_of};
use hicached_actors::host::{Dest, Output};
use hicached_actors::machine::Trace;
use hicached_actors::protocol::*;
use hicached_actors::span::Span;
use hicached_client::shm::{Segment, Track as Word, Words, word_value};
use hicached_kernels::layout::{Component, HostPage, L1Layout, L1Page, Layout};

/// Longer than anything here takes on a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(20);
/// Pages of the engine, the padding page included.
pub(crate) const L1_PAGES: u32 = 16;
/// Host slots.
pub(crate) const SLOTS: u32 = 11;
pub(crate) const TARGET_LAYERS: u32 = 12;
pub(crate) const DRAFT_LAYERS: u32 = 1;
pub(crate) const LAYERS: u64 = (TARGET_LAYERS + DRAFT_LAYERS) as u64;
pub(crate) const LEASE_MS: u64 = 10_000;
pub(crate) const CONTROL: Incarnation = Incarnation([0xC0; 16]);
pub(crate) const POISON: u8 = 0xA5;

/// A folder of one test, removed at its end.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("hicached-rank-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

pub(crate) fn manifest(cp_size: u8) -> Manifest {
    let component =
        |name: &str, page_bytes: Vec<u32>| ComponentSpec { name: name.into(), dtype: "u8".into(), page_bytes };
    let layers = |even: u32, odd: u32| (0..TARGET_LAYERS).map(|l| if l % 2 == 0 { even } else { odd }).collect();
    let components = vec![
        component("target.kv", layers(1_024, 512)),
        component("target.index", layers(256, 0)),
        component("draft.kv", vec![768]),
        component("draft.index", vec![64]),
    ];
    Manifest { page_tokens: 64, cp_size, tile_pages: 4, draft_lookahead_tokens: 0, components }
}

/// The bytes that page `tag` has in one layer of one component: every place differs from its neighbours.
pub(crate) fn page_bytes(tag: u64, component: Component, layer: u32, bytes: u64) -> Vec<u8> {
    let seed = tag.wrapping_mul(31).wrapping_add(component as u64).wrapping_mul(1_031).wrapping_add(u64::from(layer));
    (0..bytes)
        .map(|at| ((seed.wrapping_mul(0x9E37_79B9) + at).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8)
        .collect()
}

/// An engine of the test: a segment of its own and, once attached, the words.
#[derive(Clone)]
pub(crate) struct Engine {
    pub(crate) segment: Arc<Segment>,
    pub(crate) layout: Layout,
    pub(crate) l1: L1Layout,
    pub(crate) words: Option<Words>,
}

impl Engine {
    pub(crate) fn new(path: &Path) -> Self {
        let layout = layout_of(&manifest(1)).unwrap();
        let l1 = L1Layout::packed(&layout, L1_PAGES);
        Self { segment: Arc::new(Segment::create(path, l1.segment_bytes()).unwrap()), layout, l1, words: None }
    }

    pub(crate) fn regions(&self) -> Vec<Region> {
        let region = |piece: hicached_kernels::layout::Piece| Region {
            component: piece.component.name().into(),
            layer: piece.layer,
            offset: self.l1.region(piece.component, piece.layer).unwrap().base_offset_bytes,
            stride: piece.page_bytes,
            page_bytes: piece.page_bytes as u32,
        };
        self.layout.record().filter(|piece| piece.page_bytes > 0).map(region).collect()
    }

    /// Writes one layer of `page`, of both components of its track.
    pub(crate) fn write_layer(&self, word: Word, layer: u32, page: u32, tag: u64) {
        let track = hicached_kernels::layout::Track::ALL[word as usize];
        for piece in self.layout.pieces(track, layer).unwrap() {
            let at = self.l1.l1_offset(L1Page(page), piece.component, layer).unwrap();
            self.segment.write(at, &page_bytes(tag, piece.component, layer, piece.page_bytes)).unwrap();
        }
    }

    /// Says that `layers_done` layers of a track are done.
    pub(crate) fn announce(&self, word: Word, step: u64, layers_done: u32) {
        let layers = [TARGET_LAYERS, DRAFT_LAYERS][word as usize];
        self.words.as_ref().unwrap().advance(word, word_value(step, layers, layers_done));
    }

    /// Computes a whole step: `pages` are (page, tag).
    pub(crate) fn compute(&self, step: u64, pages: &[(u32, u64)], mut before: impl FnMut(Word, u32)) {
        for (word, layers) in [(Word::Target, TARGET_LAYERS), (Word::Draft, DRAFT_LAYERS)] {
            for layer in 0..layers {
                before(word, layer);
                pages.iter().for_each(|(page, tag)| self.write_layer(word, layer, *page, *tag));
                self.announce(word, step, layer + 1);
            }
        }
    }

    pub(crate) fn fill(&self, byte: u8) {
        self.segment.write(0, &vec![byte; self.segment.len_bytes() as usize]).unwrap();
    }

    pub(crate) fn all_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.segment.len_bytes() as usize];
        self.segment.read(0, &mut bytes).unwrap();
        bytes
    }

    /// Panics unless `page` holds `tag` in every layer.
    pub(crate) fn assert_page(&self, page: u32, tag: u64) {
        for piece in self.layout.record() {
            let at = self.l1.l1_offset(L1Page(page), piece.component, piece.layer).unwrap();
            let mut found = vec![0; piece.page_bytes as usize];
            self.segment.read(at, &mut found).unwrap();
            let wanted = page_bytes(tag, piece.component, piece.layer, piece.page_bytes);
            assert!(found == wanted, "page {page}, {} layer {}", piece.component, piece.layer);
        }
    }
}

/// What the rank said, and to whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    Index(IndexNews),
    Writer(WriterIn),
    Loader(LoaderIn),
    Sender(SenderIn),
    Receiver(ReceiverIn),
    Answer(Answer),
}

pub(crate) struct Rig {
    pub(crate) host: RankHost,
    pub(crate) engine: Engine,
    pub(crate) pool: Segment,
    pub(crate) now: Time,
    pub(crate) copies: Arc<CopyThreads>,
    /// While it is locked, a copying thread that ends a job stands still.
    pub(crate) hold: Arc<Mutex<()>>,
    heard: Vec<(OpId, Said)>,
    pub(crate) marks: Vec<(OpId, &'static str, u64)>,
    /// The trace of what is sent to it.
    pub(crate) trace: Trace,
    pub(crate) spans: Vec<Span>,
    notified: Receiver<()>,
    given: BTreeMap<(Incarnation, String), u64>,
    op: u64,
    pub(crate) scratch: Arc<Scratch>,
}

pub(crate) fn setup(scratch: &Path, cp_size: u8, rank: u8) -> RankSetup {
    RankSetup {
        manifest: manifest(cp_size),
        rank: Rank(rank),
        incarnation: Incarnation([0xA0 + rank; 16]),
        pool_file: scratch.join("pool"),
        host_slots: SLOTS,
        fingerprints: false,
        payload_bytes_max: 1 << 20,
        wire: None,
    }
}

impl Rig {
    /// Adopted and attached, rank 0 of 1, with poisoned memory.
    pub(crate) fn new() -> Self {
        Self::with(|_| ())
    }

    pub(crate) fn with(change: impl FnOnce(&mut RankSetup)) -> Self {
        Self::on(CopyThreads::start(2).unwrap(), Arc::new(Scratch::new()), change)
    }

    pub(crate) fn on(copies: Arc<CopyThreads>, scratch: Arc<Scratch>, change: impl FnOnce(&mut RankSetup)) -> Self {
        let mut rig = Self::unadopted(copies, scratch, change).unwrap();
        rig.fill_pool(POISON);
        rig.engine.fill(POISON);
        rig.send_as(CONTROL, Address::Index, OpId::default(), RankIn::Adopt(Adopt { lease_ms: LEASE_MS }));
        rig.attach();
        rig.heard.clear();
        rig
    }

    pub(crate) fn unadopted(
        copies: Arc<CopyThreads>,
        scratch: Arc<Scratch>,
        change: impl FnOnce(&mut RankSetup),
    ) -> Result<Self, RankError> {
        let mut setup = setup(&scratch.0, 1, 0);
        change(&mut setup);
        let hold = Arc::new(Mutex::new(()));
        let held = hold.clone();
        let (to, notified) = channel();
        let path = setup.pool_file.clone();
        let notify = move || {
            drop(held.lock());
            // Nobody listens once the rig is being dropped.
            to.send(()).ok();
        };
        let host = RankHost::start(setup, copies.clone(), Arc::new(notify))?;
        let engine = Engine::new(&scratch.0.join(format!("engine-{}", OpSeed::next())));
        let pool = Segment::open(&path).unwrap();
        let (heard, marks) = (Vec::new(), Vec::new());
        let now = Time::ZERO;
        Ok(Self {
            host,
            engine,
            pool,
            now,
            copies,
            hold,
            heard,
            marks,
            trace: None,
            spans: Vec::new(),
            notified,
            given: BTreeMap::new(),
            op: 0,
            scratch,
        })
    }

    pub(crate) fn attach_msg(&self, engine: u8) -> Attach {
        Attach {
            engine: Incarnation([engine; 16]),
            pages: L1_PAGES,
            segment: self.engine.segment.path().to_str().unwrap().into(),
            segment_bytes: self.engine.segment.len_bytes(),
            regions: self.engine.regions(),
            last_step: 0,
        }
    }

    pub(crate) fn attach(&mut self) {
        let msg = self.attach_msg(0xE0);
        let op = self.send(Address::Index, RankIn::Attach(msg));
        let Said::Index(IndexNews::Attached(attached)) = self.hear(op) else { panic!("not attached") };
        let shared = Arc::new(Segment::open(Path::new(&attached.pool_file)).unwrap());
        self.engine.words = Some(Words::at(shared, attached.words_offset).unwrap());
    }

    pub(crate) fn draw(&mut self) -> OpId {
        self.op += 1;
        OpId::new(CONTROL, self.op)
    }

    /// Sends under a new op.
    pub(crate) fn send(&mut self, from: Address, msg: RankIn) -> OpId {
        let op = self.draw();
        self.send_op(from, op, msg);
        op
    }

    pub(crate) fn send_op(&mut self, from: Address, op: OpId, msg: RankIn) {
        self.send_as(CONTROL, from, op, msg);
    }

    pub(crate) fn send_as(&mut self, life: Incarnation, from: Address, op: OpId, msg: RankIn) {
        let seq = self.given.entry((life, from.to_string())).or_insert(0);
        *seq += 1;
        let seq = *seq;
        let envelope = Envelope {
            version: VERSION,
            kind: msg.code().into(),
            id: OpId::default(),
            op,
            sender: from.to_string(),
            incarnation: life,
            control: life,
            seq,
            urgent: false,
            remaining_ms: 1_000,
            body: Bin(msg.encode_body()),
        };
        let mut out = Output::default();
        let reply = (from == Address::Engine).then(|| "reply".into());
        let trace = self.trace.clone();
        self.host.deliver(self.now, &envelope.encode(1 << 20).unwrap(), reply, trace, &mut out);
        self.take(out);
    }

    pub(crate) fn wake_at(&mut self, now: Time) {
        self.now = now;
        let mut out = Output::default();
        self.host.wake(now, &mut out);
        self.take(out);
    }

    fn take(&mut self, out: Output) {
        use hicached_actors::machine::Machine as _;
        self.marks.extend(out.marks);
        self.spans.extend(out.spans);
        for parcel in out.parcels {
            let envelope = Envelope::decode(&parcel.bytes).unwrap();
            let (kind, body) = (envelope.kind.as_str(), &envelope.body.0[..]);
            let said = match parcel.to {
                Dest::Actor(Address::Index) => Said::Index(IndexNews::decode_body(kind, body).unwrap().unwrap()),
                Dest::Actor(Address::Writer) => Said::Writer(WriterIn::decode_body(kind, body).unwrap().unwrap()),
                Dest::Actor(Address::Loader) => Said::Loader(LoaderIn::decode_body(kind, body).unwrap().unwrap()),
                Dest::Actor(Address::Sender) => Said::Sender(SenderIn::decode_body(kind, body).unwrap().unwrap()),
                Dest::Actor(Address::Receiver) => Said::Receiver(ReceiverIn::decode_body(kind, body).unwrap().unwrap()),
                Dest::Reply(_) => Said::Answer(Answer::decode_body(kind, body).unwrap().unwrap()),
                Dest::Actor(_) | Dest::Peer(..) | Dest::Events => panic!("a rank does not speak to {:?}", parcel.to),
            };
            self.heard.push((envelope.op, said));
        }
        self.host.machine().check_invariants();
    }

    /// What was said of `op` so far, in order.
    pub(crate) fn heard(&mut self, op: OpId) -> Vec<Said> {
        let (of_op, rest) = self.heard.drain(..).partition(|(of, _)| *of == op);
        self.heard = rest;
        let of_op: Vec<(OpId, Said)> = of_op;
        of_op.into_iter().map(|(_, said)| said).collect()
    }

    /// The next thing said of `op`; collects until it comes.
    pub(crate) fn hear(&mut self, op: OpId) -> Said {
        let until = Instant::now() + LONG;
        loop {
            if let Some(at) = self.heard.iter().position(|(of, _)| *of == op) {
                return self.heard.remove(at).1;
            }
            let left = until.saturating_duration_since(Instant::now());
            self.notified.recv_timeout(left).unwrap_or_else(|_| panic!("nothing was said of {op:?}"));
            self.collect();
        }
    }

    pub(crate) fn collect(&mut self) {
        let mut out = Output::default();
        self.host.collect(self.now, &mut out);
        self.take(out);
    }

    pub(crate) fn hear_ack(&mut self, op: OpId) -> CopyAck {
        match self.hear(op) {
            Said::Writer(WriterIn::CopyAck(ack)) | Said::Loader(LoaderIn::CopyAck(ack)) => ack,
            other => panic!("{other:?} is no acknowledgement"),
        }
    }

    pub(crate) fn backup_msg(&self, step: u64, pages: &[u32], slots: &[u32]) -> BackupCopy {
        BackupCopy {
            attempt: 1,
            step,
            pages: Pages(pages.iter().copied().map(PageId).collect()),
            slots: Slots(slots.iter().copied().map(HostSlot).collect()),
            keys: Keys(slots.iter().map(|slot| Key([*slot as u8; 16])).collect()),
            parent: Key([0xEE; 16]),
            first: 5,
            salt: Key([0x5A; 16]),
            all_layers_at_end: false,
            lives: Vec::new(),
        }
    }

    pub(crate) fn load_msg(&self, pages: &[u32], slots: &[u32], ring_slot: u32, use_count: u64) -> LoadCopy {
        let BackupCopy { pages, slots, .. } = self.backup_msg(0, pages, slots);
        let owners = Owners(vec![0; pages.0.len()]);
        LoadCopy { attempt: 1, pages, owners, slots, ring_slot, base: use_count * (LAYERS + 1), lives: Vec::new() }
    }

    pub(crate) fn seal(&mut self, op: OpId, slots: &[u32], kept: &[u8]) -> Said {
        let slots = Slots(slots.iter().copied().map(HostSlot).collect());
        let msg = Seal { kept: Bin(kept.to_vec()), owners: Owners(vec![0; slots.0.len()]), slots };
        self.send_op(Address::Writer, op, RankIn::Seal(msg));
        self.hear(op)
    }

    /// Backs up computed pages and seals them; the pages hold their slot's number as tag.
    pub(crate) fn store(&mut self, pages: &[u32], slots: &[u32]) {
        for (page, slot) in pages.iter().zip(slots) {
            (0..TARGET_LAYERS).for_each(|l| self.engine.write_layer(Word::Target, l, *page, u64::from(*slot)));
            (0..DRAFT_LAYERS).for_each(|l| self.engine.write_layer(Word::Draft, l, *page, u64::from(*slot)));
        }
        let msg = self.backup_msg(0, pages, slots);
        let op = self.send(Address::Writer, RankIn::BackupCopy(msg));
        assert!(self.hear_ack(op).complete);
        assert_eq!(
            self.seal(op, slots, &vec![1; slots.len()]),
            Said::Writer(WriterIn::Sealed(Sealed { rank: Rank(0) }))
        );
    }

    pub(crate) fn sealed_slots(&mut self) -> Vec<u32> {
        (0..SLOTS).filter(|slot| self.host.machine().pool().table().sealed(*slot).is_some()).collect()
    }

    pub(crate) fn record_place(&mut self, slot: u32, component: Component, layer: u32) -> u64 {
        let offset = self.engine.layout.host_offset(HostPage(slot), component, layer).unwrap();
        self.host.machine().pool().records_offset() + offset
    }

    pub(crate) fn record_layer(&mut self, slot: u32, component: Component, layer: u32) -> Vec<u8> {
        let at = self.record_place(slot, component, layer);
        let mut bytes = vec![0; self.engine.layout.piece(component, layer).unwrap().page_bytes as usize];
        self.pool.read(at, &mut bytes).unwrap();
        bytes
    }

    /// Panics unless the record in `slot` holds `tag` in every layer.
    pub(crate) fn assert_record(&mut self, slot: u32, tag: u64) {
        for piece in self.engine.layout.clone().record() {
            let found = self.record_layer(slot, piece.component, piece.layer);
            let wanted = page_bytes(tag, piece.component, piece.layer, piece.page_bytes);
            assert!(found == wanted, "slot {slot}, {} layer {}", piece.component, piece.layer);
        }
    }

    pub(crate) fn fill_pool(&mut self, byte: u8) {
        let at = self.host.machine().pool().records_offset();
        let bytes = vec![byte; (self.pool.len_bytes() - at) as usize];
        self.pool.write(at, &bytes).unwrap();
    }

    pub(crate) fn pool_bytes(&mut self) -> Vec<u8> {
        let at = self.host.machine().pool().records_offset();
        let mut bytes = vec![0; (self.pool.len_bytes() - at) as usize];
        self.pool.read(at, &mut bytes).unwrap();
        bytes
    }

    pub(crate) fn counter(&self, name: &str) -> u64 {
        self.host.counters().iter().find(|(of, _)| *of == name).unwrap().1
    }
}

/// Numbers that make file names of one process differ.
struct OpSeed;

impl OpSeed {
    fn next() -> u32 {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed)
    }
}
