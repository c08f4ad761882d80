//! A rank with real files and threads, and whatever a control group or an engine might say to it.

use std::sync::{Arc, OnceLock};

use hicached::rank::{CopyThreads, RankHost, RankSetup, layout_of};
use hicached_actors::host::Output;
use hicached_actors::machine::Machine as _;
use hicached_actors::protocol::*;
use hicached_client::shm::Segment;
use hicached_kernels::layout::L1Layout;

use crate::known::Known;
use crate::machine::{LITERAL, PASS, RAW, WAKE, hear};
use crate::scratch::Scratch;
use crate::source::Source;
use crate::speaker::{Said, Speaker};

/// Rank 0 of two, adopted, with an engine's pool attached; then steps as for a machine alone, and 4, which takes in
/// what copies have said.
pub fn rank(data: &[u8]) {
    let mut src = Source::new(data);
    let control = Incarnation(src.array());
    let mut world = World::new(control);
    world.say_literal(Address::Index, RankIn::from(Adopt { lease_ms: 10_000 }));
    let attach = world.attach();
    world.say_literal(Address::Index, RankIn::from(attach));
    for _ in 0..STEPS_MAX {
        if src.is_empty() {
            break;
        }
        world.step(&mut src);
    }
    world.end();
}

struct World {
    host: RankHost,
    known: Known,
    speaker: Speaker,
    now: Time,
    control: Incarnation,
    engine: Segment,
    l1: L1Layout,
    /// Removed behind everything that maps them.
    _files: [Scratch; 2],
}

impl World {
    fn new(control: Incarnation) -> Self {
        let manifest = manifest();
        let layout = layout_of(&manifest).expect("a layout of these sizes");
        let files = [Scratch::new("pool"), Scratch::new("engine")];
        let l1 = L1Layout::packed(&layout, L1_PAGES);
        let engine = Segment::create(files[1].path(), l1.segment_bytes()).expect("room for a small file");
        let setup = RankSetup {
            manifest: manifest.clone(),
            rank: Rank(0),
            incarnation: LIFE,
            pool_file: files[0].path().to_owned(),
            host_slots: SLOTS,
            fingerprints: false,
            payload_bytes_max: 1 << 20,
            wire: None,
        };
        let host = RankHost::start(setup, copies(), Arc::new(|| ())).expect("room for a small file");
        let mut known = Known::new(control, 2, encode(&manifest));
        known.learn(&encode(&(LIFE, ENGINE)));
        known.segment = engine.path().to_string_lossy().into_owned();
        let mut world =
            Self { host, known, speaker: Speaker::default(), now: Time::ZERO, control, engine, l1, _files: files };
        world.known.regions = encode(&world.attach().regions);
        world
    }

    fn attach(&self) -> Attach {
        let layout = layout_of(&manifest()).expect("a layout of these sizes");
        let region = |piece: hicached_kernels::layout::Piece| {
            let place = self.l1.region(piece.component, piece.layer).ok()?;
            Some(Region {
                component: piece.component.name().to_owned(),
                layer: piece.layer,
                offset: place.base_offset_bytes,
                stride: piece.page_bytes,
                page_bytes: piece.page_bytes as u32,
            })
        };
        Attach {
            engine: ENGINE,
            pages: L1_PAGES,
            segment: self.known.segment.clone(),
            segment_bytes: self.engine.len_bytes(),
            regions: layout.record().filter(|piece| piece.page_bytes > 0).filter_map(region).collect(),
            last_step: 0,
        }
    }

    fn step(&mut self, src: &mut Source<'_>) {
        match src.u8() % 10 {
            WAKE => {
                self.now = self.host.next_deadline().map_or(self.now, |(due, _)| due.max(self.now));
                self.wake();
            }
            PASS => {
                self.now.ns = self.now.ns.saturating_add(u64::from(src.u32()) * 1_000);
                self.wake();
            }
            RAW => self.hand(&Said { bytes: src.counted().to_vec(), asked: true }),
            LITERAL => {
                let said = self.speaker.literal(src);
                self.hand(&said);
            }
            4 => self.collect(),
            5 | 6 => {
                // As the members of its own control group speak.
                let from = [Address::Index, Address::Writer, Address::Loader][usize::from(src.u8() % 3)];
                let op = OpId(self.known.id(src));
                let (kind, body) = crate::drawn::message(Address::Rank(Rank(0)), src, &self.known);
                let said = self.speaker.plain(from, self.control, op, kind, body);
                self.hand(&said);
            }
            _ => {
                let said = self.speaker.drawn(Address::Rank(Rank(0)), src, &self.known);
                self.hand(&said);
            }
        }
    }

    fn say_literal(&mut self, from: Address, msg: RankIn) {
        let said = self.speaker.plain(from, self.control, OpId::default(), msg.code().to_owned(), msg.encode_body());
        self.hand(&said);
    }

    fn hand(&mut self, said: &Said) {
        self.known.learn(&said.bytes);
        let (mut out, reply) = (Output::default(), said.asked.then(|| "reply".into()));
        self.host.deliver(self.now, &said.bytes, reply, None, &mut out);
        self.look(&out);
    }

    fn wake(&mut self) {
        let mut out = Output::default();
        self.host.wake(self.now, &mut out);
        if let Some((due, why)) = self.host.next_deadline() {
            assert!(due > self.now, "the rank acted on time and still is due for {why}");
        }
        self.look(&out);
    }

    fn collect(&mut self) {
        let mut out = Output::default();
        self.host.collect(self.now, &mut out);
        self.look(&out);
    }

    fn look(&mut self, out: &Output) {
        hear(out, &mut self.known);
        self.host.machine().check_invariants();
    }

    /// Stops what runs and waits for it: files of an input do not outlive it, and what was stopped ends.
    fn end(&mut self) {
        self.host.machine().stop_all("the input ends");
        for _ in 0..END_LOOKS_MAX {
            self.collect();
            if self.host.machine().is_idle() {
                return;
            }
            std::thread::yield_now();
        }
        panic!("copies that were stopped do not end");
    }
}

fn copies() -> Arc<CopyThreads> {
    static COPIES: OnceLock<Arc<CopyThreads>> = OnceLock::new();
    COPIES.get_or_init(|| CopyThreads::start(1).expect("threads")).clone()
}

pub(crate) fn manifest() -> Manifest {
    let component = |name: &str, page_bytes: &[u32]| ComponentSpec {
        name: name.into(),
        dtype: "u8".into(),
        page_bytes: page_bytes.to_vec(),
    };
    let components = vec![
        component("target.kv", &[128, 64, 32]),
        component("target.index", &[64, 0, 64]),
        component("draft.kv", &[32]),
        component("draft.index", &[64]),
    ];
    Manifest { page_tokens: 64, cp_size: 2, tile_pages: 2, draft_lookahead_tokens: 0, components }
}

/// Life of the rank.
pub(crate) const LIFE: Incarnation = Incarnation([0xA0; 16]);
/// Life of its engine.
pub(crate) const ENGINE: Incarnation = Incarnation([0xE0; 16]);
const L1_PAGES: u32 = 9;
pub(crate) const SLOTS: u32 = 7;
/// Longer conversations find nothing that shorter ones do not.
const STEPS_MAX: usize = 500;
/// A minute and more, also on a machine where every look gives the processor away.
const END_LOOKS_MAX: u64 = 100_000_000;
