//! Policies of a group, and sessions that wait, drain or expire.

use super::*;
use crate::prefix_index::WritePolicy;

#[test]
fn selective_pages_are_copied_when_a_second_open_covers_them() {
    let config = IndexConfig {
        compute_tokens_min: 0,
        write_policy: WritePolicy::Selective,
        ..IndexConfig::new(manifest(1), 65, 8)
    };
    let mut script = Script::of(config);
    let path = keys(1, 3);
    let session = script.open(&path);
    script.compute(session, 1, 0..3, true);
    script.close(session, 1);
    assert_eq!(script.count_of("backup"), 0);
    let second = script.open(&path[..2]);
    assert_eq!(script.backup().keys.0, path[..2]);
    let backup = script.op_of("backup");
    script.back_up(backup, 0..2);
    script.close(second, 1);
    script.open(&path);
    assert_eq!((script.backup().keys.0, script.count_of("backup")), (path[2..].to_vec(), 2));
}

#[test]
fn an_open_behind_a_running_load_waits_until_its_deadline_and_is_matched_when_the_load_ends() {
    let mut script = Script::serving(8);
    let path = keys(1, 2);
    script.cache(&path, 1, 0);
    script.evict(1, 2);
    let first = script.ask(open(&path, 128));
    let load = script.op_of("load");
    let started = LoadStarted { pages: Pages(vec![PageId(9), PageId(10)]), ring_slot: 0, base: 0 };
    script.news(Address::Loader, load, started.into());
    assert_eq!(script.opened(first).l2_hit, 2);
    let (late, patient) = (script.ask(open(&path, 128)), script.engine_ids.draw());
    script.pass_ms(999);
    script.ask_as(patient, open(&path, 128));
    script.pass_ms(1);
    assert!(matches!(script.refusal(late), Refusal::Busy(_)));
    script.news(Address::Loader, load, LoadEnded { ok: true }.into());
    assert_eq!(script.opened(patient).l1_hit, 2);
    assert_eq!(script.counter("index.loads"), 1);
}

#[test]
fn a_draining_group_ends_what_runs_and_begins_nothing() {
    let mut script = Script::serving(0);
    let session = script.open(&keys(1, 1));
    let drain = script.ask(Drain { on: true });
    assert_eq!(script.answer(drain), &Drained { sessions: 1, ops: 1 }.into());
    let refused = script.ask(open(&keys(2, 1), 64));
    assert!(matches!(script.refusal(refused), Refusal::WrongState(_)));
    script.compute(session, 1, 0..1, true);
    script.close(session, 1);
    let drain = script.ask(Drain { on: false });
    assert_eq!(script.answer(drain), &Drained { sessions: 0, ops: 0 }.into());
    let again = script.open(&keys(2, 1));
    assert_eq!(script.opened(again).pages.0.len(), 1);
}

#[test]
fn keys_of_a_step_are_known_at_no_other_place() {
    let mut script = Script::serving(0);
    let known = keys(1, 2);
    let first = script.open(&known);
    script.compute(first, 1, 0..2, true);
    let grown = script.ask(open(&[], 128));
    let reserve = script.op_of("reserve");
    script.news(Address::Allocator, reserve, Reserved { pages: Pages(vec![PageId(20), PageId(21)]) }.into());
    let foreign = script.ask(Open { salt: Key([8; 16]), ..open(&[], 64) });
    let reserve = script.op_of("reserve");
    script.news(Address::Allocator, reserve, Reserved { pages: Pages(vec![PageId(22)]) }.into());
    let other = Key([77; 16]);
    for (session, pages, keys, what) in [
        (grown, vec![20, 21], vec![known[1]], "position"),
        (grown, vec![20, 21], vec![other, known[1]], "parent"),
        (grown, vec![20, 21], vec![other, other], "repeated"),
        (foreign, vec![22], vec![known[0]], "salt"),
    ] {
        let entry = StepEntry {
            session,
            first_token: 0,
            tokens: pages.len() as u32 * 64,
            pages: Pages(pages.into_iter().map(PageId).collect()),
            draft: true,
            keys: Keys(keys),
            first_key: 0,
            load_read: false,
        };
        let step = Step { number: 2, entries: vec![entry], engine: ENGINE, all_layers_at_end: false };
        match super::refusals::refused(&mut script, step) {
            Refusal::KeyConflict(conflict) => assert_eq!(conflict.what, what),
            other => panic!("{what}: {other:?}"),
        }
    }
}

#[test]
fn an_expired_session_is_refused_everything_but_its_end() {
    let mut script = Script::serving(0);
    let session = script.open(&keys(1, 2));
    script.pass_ms(30_001);
    script.hello(RANK, 0);
    let tenant = || "a".to_owned();
    let extend = Extend { session, tenant: tenant(), tokens: 64, owners: Owners(vec![]), first: 2 };
    let expired = Refusal::from(Expired { session, lease_ms: 30_000 });
    assert_eq!(super::refusals::refused(&mut script, extend), expired);
    let close = Close {
        session,
        tenant: tenant(),
        last_step: 0,
        keys: Keys(vec![]),
        first_key: 0,
        drafted: 0,
        accepted: 0,
        blob: Bin(vec![]),
    };
    assert_eq!(super::refusals::refused(&mut script, close), expired);
    script.ask(Abort { session, tenant: tenant(), last_step: 0 });
    assert_eq!((script.freed().len(), script.counter("index.sessions")), (2, 0));
}
