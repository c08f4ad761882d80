//! Messages that come late, twice, or to somebody who no longer waits.

use super::*;

#[test]
fn a_load_of_a_session_that_has_expired_becomes_ordinary_pages() {
    let mut script = Script::serving(8);
    let path = keys(1, 2);
    script.cache(&path, 1, 0);
    assert_eq!(script.evict(1, 2).freed, [2]);
    let session = script.ask(open(&path, 128));
    let load = script.op_of("load");
    script.pass_ms(30_001);
    assert!(matches!(script.refusal(session), Refusal::Expired(_)));
    let started = LoadStarted { pages: Pages(vec![PageId(9), PageId(10)]), ring_slot: 0, base: 0 };
    script.news(Address::Loader, load, started.into());
    script.news(Address::Loader, load, LoadEnded { ok: true }.into());
    script.pass(1);
    assert_eq!(script.probe(&path).l1, 2);
    let release = script.op_of("release_slot");
    script.news(Address::Loader, release, OpSettled {}.into());
    script.ask(Abort { session, tenant: "a".to_owned(), last_step: 0 });
    assert_eq!((script.counter("index.sessions"), script.counter("index.in_flight")), (0, 0));
    assert!(script.index.private_pages().is_empty());
}

#[test]
fn a_copy_of_a_refused_open_opens_nothing() {
    let mut script = Script::serving(0);
    let path = keys(1, 2);
    let session = script.ask(open(&path, 128));
    let reserve = script.op_of("reserve");
    script.news(Address::Allocator, reserve, Short { short: vec![2] }.into());
    assert!(matches!(script.refusal(session), Refusal::OutOfPages(_)));
    script.ask_as(session, open(&path, 128));
    assert_eq!(script.count_of("reserve"), 1);
    assert_eq!(script.refusal(session), &OutOfPages { short: vec![2], retry_ms: 5 }.into());
    assert_eq!(script.counter("index.sessions"), 0);
}

#[test]
fn pages_on_their_way_are_not_spoken_for() {
    let mut script = Script::serving(0);
    let session = script.ask(open(&keys(1, 1), 64));
    let reserve = script.op_of("reserve");
    script.news(Address::Allocator, reserve, Whose {}.into());
    assert_eq!(script.count_of("whose_is"), 0, "the allocator would forget what it gave, and give again");
    script.news(Address::Allocator, reserve, Reserved { pages: Pages(vec![PageId(5)]) }.into());
    script.news(Address::Allocator, reserve, Whose {}.into());
    assert_eq!(script.count_of("whose_is"), 1);
    assert_eq!(script.opened(session).pages.0, [PageId(5)]);
}

#[test]
fn a_reservation_that_is_rejected_ends_its_open() {
    let mut script = Script::serving(0);
    let session = script.ask(open(&keys(1, 1), 64));
    let reserve = script.op_of("reserve");
    let rejected = Rejected { refusal: WrongState::new(reserve, "kept").into() };
    script.news(Address::Allocator, reserve, rejected.into());
    assert!(matches!(script.refusal(session), Refusal::OutOfPages(_)));
    assert_eq!(script.counter("index.in_flight"), 0);
}

#[test]
fn a_verdict_that_the_writer_has_forgotten_was_carried_out() {
    let mut script = Script::serving(8);
    let path = keys(1, 1);
    let session = script.open(&path);
    script.compute(session, 1, 0..1, true);
    let backup = script.op_of("backup");
    script.news(Address::Writer, backup, BackupComplete { slots: Slots(vec![HostSlot(0)]) }.into());
    script.close(session, 1);
    let rejected = Rejected { refusal: Unknown::new("backup", backup).into() };
    script.news(Address::Writer, backup, rejected.into());
    assert_eq!(script.counter("index.in_flight"), 0);
    assert_eq!(script.evict(2, 1).freed, [1], "nothing holds it any more");
}

#[test]
fn pages_that_are_neither_free_nor_cached_in_an_idle_group_are_seen() {
    let mut script = Script::serving(8);
    script.pass_ms(501);
    script.hello(RANK, 8);
    assert_eq!(script.count_of("count"), 1, "a group that begins is counted");
    script.cache(&keys(1, 2), 1, 0);
    let late = script.op_of("count");
    script.news(Address::Allocator, late, Counted { l1_free: vec![0], l2_free: vec![0] }.into());
    assert_eq!(script.counter("index.leaked_pages"), 0, "it was asked before something happened");
    for (l1_free, l2_free, leaked) in [(62, 6, 0), (61, 6, 1), (62, 8, 2)] {
        let reader = script.open(&keys(1, 2));
        script.close(reader, 1);
        script.pass_ms(501);
        let count = script.op_of("count");
        script.news(Address::Allocator, count, Counted { l1_free: vec![l1_free], l2_free: vec![l2_free] }.into());
        assert_eq!(script.counter("index.leaked_pages"), leaked, "{l1_free} and {l2_free} free");
        let asked = script.sent.len();
        script.pass_ms(501);
        assert!(script.sent[asked..].iter().all(|(_, msg)| msg.encode_body().0 != "count"), "once each time");
    }
}
