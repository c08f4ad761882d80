//! Sessions from open to close.

use super::*;

#[test]
fn a_page_is_matched_once_its_step_has_passed_and_not_before() {
    let mut script = Script::serving(0);
    let path = keys(1, 3);
    let first = script.open(&path);
    let second = script.open(&path);
    assert_eq!(script.opened(second).l1_hit, 0, "nothing is computed");
    script.compute(first, 1, 0..3, true);
    let third = script.open(&path);
    assert_eq!((script.opened(third).l1_hit, script.opened(third).pages.0.len()), (3, 3));
    assert_eq!(script.close(first, 1).l1_pages, 3);
}

#[test]
fn the_second_session_of_a_prefix_keeps_its_pages_until_its_close_and_reports_them() {
    let mut script = Script::serving(0);
    let path = keys(1, 2);
    let (first, second) = (script.open(&path), script.open(&path));
    script.compute(first, 1, 0..2, true);
    script.compute(second, 2, 0..2, true);
    assert_eq!(script.index.private_pages().len(), 2);
    let closed = script.close(second, 2);
    assert_eq!((closed.l1_pages, closed.duplicates), (2, 2));
    assert_eq!(script.close(first, 1).duplicates, 0);
}

#[test]
fn a_session_whose_draft_never_ran_is_never_cached_and_is_told() {
    let mut script = Script::serving(8);
    let session = script.open(&keys(1, 2));
    script.compute(session, 1, 0..2, false);
    assert_eq!(script.count_of("backup"), 0);
    let closed = script.close(session, 1);
    assert_eq!((closed.l1_pages, closed.uncached, closed.reason.as_str()), (0, 2, "draft_never_ran"));
    assert_eq!(script.counter("index.draft_never_ran"), 1);
}

#[test]
fn a_close_waits_for_a_step_whose_message_has_not_come() {
    let mut script = Script::serving(0);
    let session = script.open(&keys(1, 1));
    let close = script.ask(Close {
        session,
        tenant: "a".to_owned(),
        last_step: 1,
        keys: Keys(vec![]),
        first_key: 0,
        drafted: 0,
        accepted: 0,
        blob: Bin(vec![]),
    });
    script.pass(1);
    assert!(
        script
            .answers
            .iter()
            .all(|(op, _)| *op != close && *op != session || matches!(script.answer(session), Answer::Opened(_)))
    );
    let step = Step { number: 1, entries: vec![], engine: ENGINE, all_layers_at_end: false };
    script.ask(step);
    assert!(matches!(script.answers.last().unwrap().1, Answer::Closed(_) | Answer::Stepped(_)));
    assert!(script.index.private_pages().is_empty());
}

#[test]
fn a_backup_is_visible_at_its_verdict_and_only_behind_a_parent_in_l2() {
    let mut script = Script::serving(8);
    let path = keys(1, 2);
    let session = script.open(&path);
    script.compute(session, 1, 0..1, true);
    let head = script.op_of("backup");
    script.compute(session, 2, 1..2, true);
    let tail = script.op_of("backup");
    assert_ne!(head, tail);
    script.news(Address::Writer, tail, BackupComplete { slots: Slots(vec![HostSlot(5)]) }.into());
    assert_eq!(script.counter("index.cached_l2"), 0, "its parent is on the way");
    assert_eq!(script.count_of("backup_verdict"), 0);
    script.news(Address::Writer, head, BackupComplete { slots: Slots(vec![HostSlot(4)]) }.into());
    assert_eq!(script.counter("index.cached_l2"), 2);
    assert_eq!(script.count_of("backup_verdict"), 2);
    script.news(Address::Writer, head, OpSettled {}.into());
    script.news(Address::Writer, tail, OpSettled {}.into());
    assert_eq!(script.close(session, 2).l2_pages, 2);
    assert_eq!(script.counter("index.in_flight"), 0);
}

#[test]
fn a_backup_of_pages_that_were_never_computed_is_forfeited_whole() {
    let mut script = Script::serving(8);
    let session = script.open(&keys(1, 1));
    let held = script.opened(session).pages.clone();
    let entry = StepEntry {
        session,
        first_token: 0,
        tokens: 64,
        pages: held,
        draft: true,
        keys: Keys(vec![]),
        first_key: 0,
        load_read: false,
    };
    script.ask(Step { number: 1, entries: vec![entry], engine: ENGINE, all_layers_at_end: false });
    let backup = script.op_of("backup");
    script.ask(Abort { session, tenant: "a".to_owned(), last_step: 1 });
    script.pass(1);
    assert_eq!(script.count_of("free"), 0, "the copy still reads the page");
    script.news(Address::Writer, backup, BackupComplete { slots: Slots(vec![HostSlot(0)]) }.into());
    assert_eq!(script.count_of("free"), 1);
    let verdict = script.sent.iter().find_map(|(_, msg)| match msg {
        Outgoing::Writer(WriterIn::BackupVerdict(verdict)) => Some(verdict.kept.0.clone()),
        _ => None,
    });
    assert_eq!(verdict, Some(vec![0]));
    assert_eq!(script.counter("index.cached_l2"), 0);
}

#[test]
fn a_repeated_request_is_answered_as_the_first_was() {
    let mut script = Script::serving(0);
    let session = script.open(&keys(1, 2));
    let first = script.answer(session).clone();
    script.ask_as(session, open(&keys(1, 2), 128));
    assert_eq!(script.answer(session), &first);
    assert_eq!(script.answers.len(), 2);
    assert_eq!(script.count_of("reserve"), 1);
    script.compute(session, 1, 0..2, true);
    let closed = script.close(session, 1);
    assert_eq!(script.close(session, 1), closed);
}

#[test]
fn what_an_expired_session_only_read_is_let_go_and_its_own_pages_wait_for_the_engine() {
    let mut script = Script::serving(0);
    let path = keys(1, 1);
    let first = script.open(&path);
    script.compute(first, 1, 0..1, true);
    script.close(first, 1);
    let reader = script.open(&[path.clone(), keys(2, 1)].concat()[..1]);
    let extend = Extend { session: reader, tenant: "a".to_owned(), tokens: 64, owners: Owners(vec![]), first: 1 };
    script.ask(extend);
    let reserve = script.op_of("reserve");
    script.news(Address::Allocator, reserve, Reserved { pages: Pages(vec![PageId(40)]) }.into());
    script.now = script.now.plus_ms(30_001);
    let mut out = Vec::new();
    script.index.wake(script.now, &mut out);
    script.take(out);
    assert_eq!(script.index.tree().evictable_pages(Tier::L1, Rank(0)), 1, "what it read may leave");
    assert_eq!(script.index.private_pages(), [PageId(40)]);
    script.ask(Abort { session: reader, tenant: "a".to_owned(), last_step: 0 });
    assert!(script.index.private_pages().is_empty());
}
