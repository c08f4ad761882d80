//! What large messages leave behind. A process of its own: other tests would be counted too.

use hicached_actors::host::{Host, Output};
use hicached_actors::machine::{Effect, Machine, ReplyTo, Sender};
use hicached_actors::prefix_index::{Index, IndexConfig};
use hicached_actors::protocol::*;

const STEPS: u32 = 2_000;
const PAGES: u32 = 3;
const CONTROL: Incarnation = Incarnation([0xc0; 16]);
const ENGINE: Incarnation = Incarnation([0xe0; 16]);
const RANK: Incarnation = Incarnation([0xa0; 16]);

/// A group of one rank, whose other members are this test.
struct Group {
    host: Host<Index>,
    sent: Vec<(OpId, Outgoing)>,
    answers: Vec<Answer>,
    ids: OpIds,
}

impl Group {
    fn serving() -> Self {
        let component = |name: &str, layers| ComponentSpec {
            name: name.to_owned(),
            dtype: "fp8".to_owned(),
            page_bytes: vec![64; layers],
        };
        let manifest = Manifest {
            page_tokens: 64,
            cp_size: 1,
            tile_pages: 1,
            draft_lookahead_tokens: 0,
            components: vec![component("target.kv", 12), component("draft.kv", 1)],
        };
        let pages = STEPS * PAGES + 2;
        let config = IndexConfig { compute_tokens_min: 0, ..IndexConfig::new(manifest.clone(), pages, 0) };
        let host = Host::new(Index::new(config, CONTROL, 1), Address::Index, CONTROL, CONTROL, 1 << 20);
        let mut group = Self { host, sent: vec![], answers: vec![], ids: OpIds::new(ENGINE) };
        let hello = RankHello {
            rank: Rank(0),
            host_slots: 0,
            adopted_by: CONTROL,
            old_ops: 0,
            engine: ENGINE,
            passed: 0,
            adoptions: 1,
        };
        group.news(Address::Rank(Rank(0)), OpId::default(), hello.into());
        let table = InventoryPart { cursor: 0, rows: vec![], next: u32::MAX };
        group.news(Address::Rank(Rank(0)), OpId::default(), table.into());
        let op = group.op_of("restore");
        group.news(Address::Allocator, op, Restored { part: 0 }.into());
        group.ask(Register {
            rank: Rank(0),
            engine: ENGINE,
            manifest,
            pages,
            segment: "a".to_owned(),
            segment_bytes: 1,
            regions: vec![],
            last_step: 0,
            born_ms: 0,
        });
        let op = group.op_of("attach");
        let attached =
            Attached { engine: ENGINE, pool_file: String::new(), words_offset: 0, load_slots_offset: 0, adoptions: 1 };
        group.news(Address::Rank(Rank(0)), op, attached.into());
        let op = group.op_of("open_lanes");
        group.news(Address::Allocator, op, Freed {}.into());
        group
    }

    fn handle(&mut self, address: Address, incarnation: Incarnation, op: OpId, msg: IndexIn) {
        let reply = (address == Address::Engine).then(|| ReplyTo("inbox".into()));
        let from = Sender { address, incarnation, control: CONTROL, op, reply, remaining_ms: 1_000, trace: None };
        let mut effects = Vec::new();
        self.host.machine.handle(Time { ns: 1 }, &from, msg, &mut effects);
        self.sent.clear();
        self.answers.clear();
        for effect in effects {
            match effect {
                Effect::Send { to, op, .. } => self.sent.push((op, to)),
                Effect::Reply { answer, .. } => self.answers.push(answer),
                Effect::Mark { .. } | Effect::Span(_) | Effect::Link(_) => {}
            }
        }
    }

    fn news(&mut self, from: Address, op: OpId, news: IndexNews) {
        let life = if from == Address::Rank(Rank(0)) { RANK } else { CONTROL };
        self.handle(from, life, op, IndexIn::News(news));
    }

    fn ask(&mut self, request: impl Into<Request>) -> OpId {
        let op = self.ids.draw();
        self.handle(Address::Engine, ENGINE, op, IndexIn::Request(request.into()));
        op
    }

    fn op_of(&self, kind: &str) -> OpId {
        self.sent.iter().find(|(_, msg)| msg.encode_body().0 == kind).unwrap_or_else(|| panic!("no {kind}")).0
    }

    /// Gives the pages that were just asked for.
    fn grant(&mut self, pages: &[PageId]) {
        let op = self.op_of("reserve");
        self.news(Address::Allocator, op, Reserved { pages: Pages(pages.to_vec()) }.into());
    }
}

/// Resident memory of this process in bytes.
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("a Linux proc file system");
    let pages: u64 = statm.split(' ').nth(1).and_then(|field| field.parse().ok()).expect("a resident size");
    pages * 4_096
}

/// A step with a trailing field that no version knows, as bytes on the bus.
fn padded_step(step: &Step, op: OpId, padding_bytes: usize) -> Vec<u8> {
    let fields = (step.number, &step.entries, step.engine, step.all_layers_at_end, Bin(vec![7; padding_bytes]));
    let envelope = Envelope {
        version: VERSION,
        kind: "step".to_owned(),
        id: op,
        op,
        sender: "engine".to_owned(),
        incarnation: ENGINE,
        control: CONTROL,
        seq: step.number,
        urgent: false,
        remaining_ms: 1_000,
        body: Bin(encode(&fields)),
    };
    envelope.encode(1 << 20).expect("under the limit")
}

#[test]
fn f02_small_things_that_keep_big_things_alive() {
    let mut group = Group::serving();
    let root = Key([7; 16]);
    let path: Vec<Key> = (0..STEPS * PAGES).map(|at| page_key(root, &[at], &[])).collect();
    let mut pages: Vec<PageId> = Vec::new();
    let session = group.ask(Open {
        tenant: "a".to_owned(),
        salt: root,
        keys: Keys(vec![]),
        tokens: 1,
        reserve_tokens: 0,
        owners: Owners(vec![]),
        priority: 0,
        no_match: false,
        handover: vec![],
    });
    let before = resident_bytes();
    let mut message_bytes = 0;
    for number in 1..=STEPS {
        let first = pages.len() as u32;
        let (tokens, owners, tenant) = (PAGES * 64, Owners(vec![]), "a".to_owned());
        group.ask(Extend { session, tenant, tokens, owners, first });
        let granted: Vec<PageId> = (first + 1..=first + PAGES).map(PageId).collect();
        pages.extend(&granted);
        group.grant(&granted);
        let entry = StepEntry {
            session,
            first_token: first * 64,
            tokens,
            pages: Pages(granted),
            draft: true,
            keys: Keys(path[first as usize..(first + PAGES) as usize].to_vec()),
            first_key: first,
            load_read: false,
        };
        let step = Step { number: number.into(), entries: vec![entry], engine: ENGINE, all_layers_at_end: false };
        let bytes = padded_step(&step, group.ids.draw(), 512 * 1_024);
        message_bytes += bytes.len();
        group.host.deliver(Time { ns: 1 }, &bytes, None, None, &mut Output::default());
        drop(bytes);
        let passed = Passed { step: number.into(), engine: ENGINE };
        group.news(Address::Rank(Rank(0)), OpId::default(), passed.into());
    }
    assert!(message_bytes > 1_000 << 20, "{message_bytes} bytes");
    assert_eq!(group.host.machine.tree().len(), path.len());
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 16 << 20, "grew by {grown} bytes");
    let (keys, tenant) = (Keys(vec![]), "a".to_owned());
    let last_step = STEPS.into();
    let blob = Bin(vec![]);
    group.ask(Close { session, tenant, last_step, keys, first_key: 0, drafted: 0, accepted: 0, blob });
    group.ask(Flush { tier: 0, salt: vec![], prefix: Keys(vec![]), quarantined: false });
    let freed = group.sent.iter().find_map(|(_, msg)| match msg {
        Outgoing::Allocator(AllocatorIn::Free(free)) => Some(free.l1.0.len()),
        _ => None,
    });
    assert_eq!(freed, Some(path.len()), "every page is given back");
    assert!(group.host.machine.tree().is_empty());
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 4 << 20, "keeps {grown} bytes");
}
