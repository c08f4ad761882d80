//! Members that say what is not theirs to say, or give what was not asked for.

use super::*;

#[test]
fn an_engine_cannot_speak_for_a_member_of_the_group() {
    let mut script = Script::serving(8);
    let session = script.ask(open(&keys(1, 1), 64));
    let reserve = script.op_of("reserve");
    let reserved = IndexNews::from(Reserved { pages: Pages(vec![PageId(5)]) });
    for from in [Address::Engine, Address::Rank(Rank(0)), Address::Writer] {
        let life = if from == Address::Rank(Rank(0)) { life(RANK, Rank(0)) } else { CONTROL };
        script.deliver(from, life, reserve, IndexIn::News(reserved.clone()));
    }
    assert_eq!(script.counter("index.foreign"), 3);
    assert!(matches!(script.refusal(reserve), Refusal::Malformed(wrong) if wrong.field == "sender"));
    script.news(Address::Allocator, reserve, reserved);
    assert_eq!(script.opened(session).pages.0, [PageId(5)]);
}

#[test]
fn a_rank_speaks_for_itself_alone() {
    let mut script = Script::serving(8);
    let damaged = Damaged { rank: Rank(1), slot: 0, component: "target.kv".to_owned() };
    script.news_from_rank(OpId::default(), damaged.into());
    assert_eq!(script.counter("index.foreign"), 1);
}

#[test]
fn a_request_to_one_member_is_not_answered_by_another() {
    let mut script = Script::serving(8);
    let session = script.ask(open(&keys(1, 1), 64));
    let reserve = script.op_of("reserve");
    script.news(Address::Writer, reserve, OpSettled {}.into());
    script.news(Address::Loader, reserve, LoadMissed { short: vec![] }.into());
    assert_eq!(script.counter("index.contradicted"), 2);
    script.pass_ms(500);
    assert!(script.count_of("reserve") > 1, "it is still asked");
    script.news(Address::Allocator, reserve, Reserved { pages: Pages(vec![PageId(5)]) }.into());
    assert_eq!(script.opened(session).pages.0, [PageId(5)]);
}

#[test]
fn numbers_of_more_lanes_than_there_are_say_nothing() {
    let mut script = Script::serving(8);
    script.pass_ms(2_000);
    let count = script.op_of("count");
    script.news(Address::Allocator, count, Counted { l1_free: vec![64, 64], l2_free: vec![8] }.into());
    assert_eq!((script.counter("index.contradicted"), script.counter("index.leaked_pages")), (1, 0));
    let session = script.open(&keys(1, 1));
    script.compute(session, 1, 0..1, true);
    let backup = script.op_of("backup");
    script.news(Address::Writer, backup, BackupRefused { short: vec![1; 300] }.into());
    assert_eq!(script.counter("index.parked_backups"), 1);
}

#[test]
fn pages_that_were_not_asked_for_end_their_open_and_are_nobodys() {
    for wrong in [vec![], vec![5], vec![5, 6, 7], vec![5, 5], vec![0, 5], vec![5, 65], vec![5, u32::MAX]] {
        let mut script = Script::serving(0);
        let session = script.ask(open(&keys(1, 2), 128));
        let reserve = script.op_of("reserve");
        let pages = Pages(wrong.iter().copied().map(PageId).collect());
        script.news(Address::Allocator, reserve, Reserved { pages }.into());
        assert!(matches!(script.refusal(session), Refusal::Malformed(wrong) if wrong.field == "pages"), "{wrong:?}");
        assert_eq!((script.counter("index.contradicted"), script.counter("index.in_flight")), (1, 0));
        script.news(Address::Allocator, reserve, Whose {}.into());
        let answer = script.sent.iter().rev().find_map(|(_, msg)| match msg {
            Outgoing::Allocator(AllocatorIn::WhoseIs(answer)) => Some(answer.mine),
            _ => None,
        });
        assert_eq!(answer, Some(false), "{wrong:?}");
    }
}

#[test]
fn an_extension_of_other_pages_than_asked_for_is_refused() {
    let mut script = Script::serving(0);
    let session = script.open(&keys(1, 1));
    let extend = Extend { session, tenant: "a".to_owned(), tokens: 64, owners: Owners::default(), first: 1 };
    let asked = script.ask(extend.clone());
    let reserve = script.op_of("reserve");
    script.news(Address::Allocator, reserve, Reserved { pages: Pages(vec![PageId(8), PageId(9)]) }.into());
    assert!(matches!(script.refusal(asked), Refusal::Malformed(_)));
    let again = script.ask(extend);
    let reserve = script.op_of("reserve");
    script.news(Address::Allocator, reserve, Reserved { pages: Pages(vec![PageId(9)]) }.into());
    assert_eq!(script.answer(again), &Extended { pages: Pages(vec![PageId(9)]) }.into());
}

#[test]
fn a_load_into_other_pages_than_asked_for_is_not_used_and_gives_its_slot_back() {
    for wrong in [vec![], vec![9], vec![9, 9], vec![0, 9], vec![9, 65]] {
        let mut script = Script::serving(8);
        let path = keys(1, 2);
        script.cache(&path, 1, 0);
        assert_eq!(script.evict(1, 2).freed, [2]);
        let session = script.ask(open(&path, 128));
        let load = script.op_of("load");
        let pages = Pages(wrong.iter().copied().map(PageId).collect());
        script.news(Address::Loader, load, LoadStarted { pages, ring_slot: 0, base: 0 }.into());
        assert!(matches!(script.refusal(session), Refusal::Malformed(_)), "{wrong:?}");
        script.news(Address::Loader, load, LoadEnded { ok: true }.into());
        assert_eq!(script.probe(&path), Probed { l1: 0, l2: 2 });
        let release = script.op_of("release_slot");
        script.news(Address::Loader, release, OpSettled {}.into());
        assert_eq!((script.counter("index.contradicted"), script.counter("index.in_flight")), (1, 0));
    }
}

#[test]
fn a_backup_to_other_slots_than_there_are_fails_and_gives_them_back() {
    for wrong in [vec![], vec![0], vec![0, 0], vec![0, 8], vec![0, u32::MAX]] {
        let mut script = Script::serving(8);
        let path = keys(1, 2);
        let session = script.open(&path);
        script.compute(session, 1, 0..2, true);
        script.close(session, 1);
        let backup = script.op_of("backup");
        let slots = Slots(wrong.iter().copied().map(HostSlot).collect());
        script.news(Address::Writer, backup, BackupComplete { slots }.into());
        assert_eq!((script.counter("index.contradicted"), script.counter("index.backups_failed")), (1, 1));
        assert_eq!(script.op_of("backup_verdict"), backup);
        script.news(Address::Writer, backup, OpSettled {}.into());
        assert_eq!((script.counter("index.in_flight"), script.counter("index.cached_l2")), (0, 0), "{wrong:?}");
        script.pass_ms(10_000);
        assert_eq!(script.count_of("backup_verdict"), 1, "{wrong:?}");
    }
}
