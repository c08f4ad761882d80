//! Engines and ranks that go and come back: whose pages the L1 copies are.

use super::*;

const NEXT_ENGINE: Incarnation = Incarnation([0xe1; 16]);
const NEXT_RANK: Incarnation = Incarnation([0xa1; 16]);

fn register_as(script: &mut Script, engine: Incarnation) -> OpId {
    register_born(script, engine, 0)
}

fn register_born(script: &mut Script, engine: Incarnation, born_ms: u64) -> OpId {
    let op = OpId::new(engine, 1);
    let msg = Register {
        rank: Rank(0),
        engine,
        manifest: manifest(1),
        pages: 65,
        segment: format!("{engine:?}"),
        segment_bytes: 1,
        regions: vec![],
        last_step: 0,
        born_ms,
    };
    script.deliver(Address::Engine, engine, op, IndexIn::Request(msg.into()));
    op
}

#[test]
fn an_engine_hears_where_the_pools_of_its_peers_stand() {
    let mut script = Script::of(IndexConfig::new(manifest(2), 65, 0));
    let engine = life(ENGINE, Rank(0));
    let op = script.ask(script.registration(Rank(0), engine, 65));
    script.attached(Rank(0), engine);
    let Answer::Registered(registered) = script.answer(op) else { panic!("{:?}", script.answer(op)) };
    assert_eq!(registered.peers, ["a", "a"]);
    let offsets: Vec<u64> = registered.peer_regions.iter().flatten().map(|region| region.offset).collect();
    assert_eq!(offsets, [0, 4_096]);
}

#[test]
fn pages_of_an_engine_whose_pool_could_not_be_mapped_again_are_not_served_to_the_next() {
    let mut script = Script::serving(0);
    let path = keys(1, 2);
    let session = script.open(&path);
    script.compute(session, 1, 0..2, true);
    script.close(session, 1);
    script.hello(NEXT_RANK, 0);
    let attach = script.op_of("attach");
    let gone = AttachRefused { engine: ENGINE, refusal: Unknown::new("segment", "a").into() };
    script.deliver(Address::Rank(Rank(0)), NEXT_RANK, attach, IndexIn::News(gone.into()));
    register_as(&mut script, NEXT_ENGINE);
    assert_eq!(script.probe(&path), Probed { l1: 0, l2: 0 }, "another pool holds other bytes");
    assert_eq!(script.freed(), [PageId(2), PageId(1)]);
    let op = register_as(&mut script, ENGINE);
    assert!(matches!(script.refusal(op), Refusal::Unknown(_)), "a replaced life is refused for good");
}

#[test]
fn a_late_message_of_an_engine_that_died_unheard_does_not_replace_its_successor() {
    let mut script = Script::serving(0);
    let (successor, dead) = (Incarnation([0xe2; 16]), Incarnation([0xe3; 16]));
    register_born(&mut script, successor, 9);
    let attach = script.op_of("attach");
    let op = register_born(&mut script, dead, 8);
    assert!(matches!(script.refusal(op), Refusal::Busy(_)));
    assert_eq!(script.op_of("attach"), attach, "the successor keeps its place");
    script.pass_ms(script.index.config.lease_ms);
    register_born(&mut script, dead, 8);
    assert_ne!(script.op_of("attach"), attach, "one that is silent is replaced, whatever clocks say");
}

fn row(path: &[Key], at: usize, slot: u32) -> InventoryRow {
    let parent = at.checked_sub(1).map_or(root(), |before| path[before]);
    InventoryRow { slot, key: path[at], parent, salt: root(), position: at as u32, generation: 1 }
}

/// What the writer was told of the rank's life last.
fn told(script: &Script) -> Incarnation {
    let newest = script.sent.iter().rev().find_map(|(_, msg)| match msg {
        Outgoing::Writer(WriterIn::RankIs(is)) => Some(is.incarnation),
        _ => None,
    });
    newest.expect("the writer hears of the rank")
}

#[test]
fn copies_to_a_rank_that_came_back_begin_when_its_records_have_their_slots() {
    let mut script = Script::serving(8);
    let path = keys(1, 1);
    script.hello(NEXT_RANK, 8);
    assert_eq!(told(&script), Incarnation::default(), "a copy would write over a record that is being read");
    let part = InventoryPart { cursor: 0, rows: vec![row(&path, 0, 3)], next: u32::MAX };
    script.deliver(Address::Rank(Rank(0)), NEXT_RANK, OpId::default(), IndexIn::News(part.into()));
    assert_eq!(told(&script), Incarnation::default());
    let restore = script.op_of("restore");
    script.news(Address::Allocator, restore, Restored { part: 0 }.into());
    assert_eq!(told(&script), NEXT_RANK);
    assert_eq!(script.probe(&path), Probed { l1: 0, l2: 1 });
}

#[test]
fn records_shown_by_a_life_that_is_over_do_not_enter() {
    let mut script = Script::serving(8);
    let path = keys(1, 1);
    script.hello(NEXT_RANK, 8);
    let part = InventoryPart { cursor: 0, rows: vec![row(&path, 0, 3)], next: u32::MAX };
    script.deliver(Address::Rank(Rank(0)), NEXT_RANK, OpId::default(), IndexIn::News(part.into()));
    let restore = script.op_of("restore");
    let third = Incarnation([0xa2; 16]);
    script.hello(third, 8);
    let part = InventoryPart { cursor: 0, rows: vec![], next: u32::MAX };
    script.deliver(Address::Rank(Rank(0)), third, OpId::default(), IndexIn::News(part.into()));
    script.news(Address::Allocator, restore, Restored { part: 0 }.into());
    assert_eq!(script.probe(&path), Probed { l1: 0, l2: 0 });
    assert_eq!((script.count_of("free"), told(&script)), (1, third));
}

#[test]
fn a_record_that_leaves_while_the_allocator_is_told_is_freed_when_it_knows() {
    let mut script = Script::deaf(IndexConfig::new(manifest(1), 65, 8));
    let (path, mut out) = (keys(1, 2), Vec::new());
    script.index.start(script.now, &mut out);
    script.hello(RANK, 8);
    let rows = vec![row(&path, 0, 3), row(&path, 1, 5)];
    script.news_from_rank(OpId::default(), InventoryPart { cursor: 0, rows, next: u32::MAX }.into());
    let restore = script.op_of("restore");
    script
        .news_from_rank(OpId::default(), Damaged { rank: Rank(0), slot: 3, component: "target.kv".to_owned() }.into());
    assert_eq!(script.count_of("free"), 0, "a free that overtakes the restore is refused, and the slot is lost");
    script.news(Address::Allocator, restore, Restored { part: 0 }.into());
    assert_eq!(script.count_of("free"), 1);
    let freed = script.sent.iter().find_map(|(_, msg)| match msg {
        Outgoing::Allocator(AllocatorIn::Free(free)) => Some(free.l2.0.clone()),
        _ => None,
    });
    assert_eq!(freed, Some(vec![HostSlot(5)]), "what stands behind a damaged record");
}

#[test]
fn of_a_restarted_rank_only_what_its_new_life_shows_is_served() {
    let mut script = Script::serving(8);
    let (p, q, r) = (keys(1, 4), keys(2, 1), keys(3, 1));
    script.cache(&p, 1, 0);
    script.evict(1, 4);
    assert_eq!(script.probe(&p).l2, 4);
    script.hello(NEXT_RANK, 8);
    assert_eq!(script.probe(&p).l2, 0, "nothing of a new life is trusted before its page table is read");
    let part = InventoryPart { cursor: 0, rows: vec![row(&q, 0, 0)], next: u32::MAX };
    script.deliver(Address::Rank(Rank(0)), NEXT_RANK, OpId::default(), IndexIn::News(part.into()));
    script.take_frees();
    let restore = script.op_of("restore");
    script.news(Address::Allocator, restore, Restored { part: 0 }.into());
    let stale = script.counter("index.stale");
    script.news_from_rank(OpId::default(), Passed { step: 9, engine: ENGINE }.into());
    assert_eq!(script.counter("index.stale"), stale + 1, "what an older life said is dropped");
    assert_eq!((script.probe(&p).l2, script.probe(&q).l2, script.probe(&r).l2), (0, 1, 0));
    assert_eq!(script.counter("index.cached_l2"), 1);
    script.pass_ms(2_001);
    assert_eq!(script.probe(&q).l2, 0, "a rank that stays silent serves nothing after one lease");
}

#[test]
fn an_engine_that_registers_again_after_a_failed_mapping_keeps_its_pages() {
    let mut script = Script::serving(0);
    let path = keys(1, 2);
    let session = script.open(&path);
    script.compute(session, 1, 0..2, true);
    script.hello(NEXT_RANK, 0);
    let attach = script.op_of("attach");
    let busy = AttachRefused { engine: ENGINE, refusal: Unknown::new("segment", "a").into() };
    script.deliver(Address::Rank(Rank(0)), NEXT_RANK, attach, IndexIn::News(busy.into()));
    register_as(&mut script, ENGINE);
    assert_eq!(script.probe(&path), Probed { l1: 2, l2: 0 });
    assert_eq!(script.close(session, 1).l1_pages, 2);
}

#[test]
fn pages_that_a_surviving_engine_rank_may_still_write_are_not_freed() {
    let config = IndexConfig { compute_tokens_min: 0, ..IndexConfig::new(manifest(2), 65, 0) };
    let mut script = Script::of(config);
    script.next_page = 2;
    let session = script.open(&keys(1, 4));
    let pages = script.opened(session).pages.clone();
    let lane = |pages: &[PageId], rank| pages.iter().copied().filter(|page| page.owner(2) == Rank(rank)).collect();
    let (dead, alive): (Vec<PageId>, Vec<PageId>) = (lane(&pages.0, 0), lane(&pages.0, 1));
    let entry = StepEntry {
        session,
        first_token: 0,
        tokens: 256,
        pages,
        draft: true,
        keys: Keys(vec![]),
        first_key: 0,
        load_read: false,
    };
    script.ask(Step { number: 1, entries: vec![entry], engine: ENGINE, all_layers_at_end: false });
    script.register(Rank(0), NEXT_ENGINE, 65);
    assert_eq!(script.freed(), dead, "rank 1 still runs the step");
    assert_eq!(script.index.private_pages(), alive);
    script.news_of(Rank(1), OpId::default(), Passed { step: 1, engine: life(ENGINE, Rank(1)) }.into());
    assert_eq!(script.freed(), [dead, alive].concat());
    assert!(script.index.private_pages().is_empty());
}

#[test]
fn pages_of_an_engine_whose_ranks_are_all_replaced_are_freed_without_its_word() {
    let config = IndexConfig { compute_tokens_min: 0, ..IndexConfig::new(manifest(2), 65, 0) };
    let mut script = Script::of(config);
    script.next_page = 2;
    let session = script.open(&keys(1, 4));
    script.ask(Step { number: 1, entries: vec![], engine: ENGINE, all_layers_at_end: false });
    script.register(Rank(0), NEXT_ENGINE, 65);
    assert_eq!(script.freed().len(), 2);
    script.register(Rank(1), life(NEXT_ENGINE, Rank(1)), 65);
    assert_eq!(script.freed().len(), 4);
    script.take_frees();
    assert_eq!((script.counter("index.sessions"), script.counter("index.in_flight")), (0, 0));
    assert!(matches!(script.answer(session), Answer::Opened(_)));
}

#[test]
fn a_rank_that_has_obeyed_another_since_ends_the_incarnation() {
    for by_hello in [true, false] {
        let mut script = Script::serving(8);
        let mut late = RankHello {
            rank: Rank(0),
            host_slots: 8,
            adopted_by: NEXT_RANK,
            old_ops: 0,
            engine: ENGINE,
            passed: 0,
            adoptions: 0,
        };
        let rank = life(RANK, Rank(0));
        script.deliver(Address::Rank(Rank(0)), rank, OpId::default(), IndexIn::News(late.clone().into()));
        assert!(!script.index.is_over(), "what it said before it obeyed this one comes late");
        if by_hello {
            late.adoptions = 2;
            script.deliver(Address::Rank(Rank(0)), rank, OpId::default(), IndexIn::News(late.into()));
        } else {
            // Its answer to the engine that registers again is the first that is heard of it.
            script.register(Rank(0), life(ENGINE, Rank(0)), 65);
            assert!(script.answers.is_empty(), "{:?}", script.answers);
            let engine = life(ENGINE, Rank(0));
            let attached =
                Attached { engine, pool_file: String::new(), words_offset: 0, load_slots_offset: 0, adoptions: 3 };
            let attach = script.op_of("attach");
            script.news_of(Rank(0), attach, attached.into());
        }
        assert!(script.index.is_over() && script.index.next_deadline().is_none());
        script.answers.clear();
        script.ask(Heartbeat { engine: life(ENGINE, Rank(0)), last_step: 0 });
        assert!(matches!(script.answers[..], [(_, Answer::Refused(Refusal::Busy(_)))]), "{:?}", script.answers);
    }
}
