//! Bad input: each refusal names field, value and limit, and changes nothing.

use super::*;

/// What the index is, apart from how often it refused.
fn state(script: &Script) -> Vec<(&'static str, u64)> {
    script.index.counters().into_iter().filter(|(name, _)| *name != "index.refusals").collect()
}

pub(super) fn refused(script: &mut Script, request: impl Into<Request>) -> Refusal {
    let before = state(script);
    let sent = script.sent.len();
    let op = script.ask(request);
    let refusal = script.refusal(op).clone();
    assert_eq!(state(script), before, "a refusal changes nothing");
    assert_eq!(script.sent.len(), sent, "a refusal sends nothing else");
    refusal
}

#[test]
fn an_open_that_breaks_the_rules_is_refused_with_its_field() {
    let path = keys(1, 2);
    let rows: Vec<(&str, Open, &str)> = vec![
        ("no tenant", Open { tenant: String::new(), ..open(&path, 128) }, "tenant"),
        ("a long tenant", Open { tenant: "x".repeat(257), ..open(&path, 128) }, "tenant"),
        ("more keys than pages", open(&path, 127), "keys"),
        ("an owner beyond the group", Open { owners: Owners(vec![0, 1]), ..open(&path, 128) }, "owners"),
    ];
    for (name, msg, field) in rows {
        let mut script = Script::serving(0);
        match refused(&mut script, msg) {
            Refusal::Malformed(malformed) => assert_eq!(malformed.field, field, "{name}"),
            other => panic!("{name}: {other:?}"),
        }
    }
    let mut script = Script::serving(0);
    let tokens = 64 * 16_385;
    assert!(
        matches!(refused(&mut script, open(&path, tokens)), Refusal::TooLarge(r) if r.size == 16_385 && r.limit == 16_384)
    );
}

#[test]
fn a_key_at_another_place_is_a_conflict_that_says_what_is_known() {
    let mut script = Script::serving(0);
    let path = keys(1, 3);
    let session = script.open(&path);
    script.compute(session, 1, 0..3, true);
    let other_salt = Open { salt: Key([8; 16]), ..open(&path, 192) };
    let moved = [path[1], path[0], path[2]];
    let repeated = [path[0], Key([9; 16]), Key([9; 16])];
    for (name, msg, what) in [
        ("salt", other_salt, "salt"),
        ("order", open(&moved, 192), "parent"),
        ("twice", open(&repeated, 192), "repeated"),
    ] {
        match refused(&mut script, msg) {
            Refusal::KeyConflict(conflict) => assert_eq!(conflict.what, what, "{name}"),
            other => panic!("{name}: {other:?}"),
        }
    }
}

#[test]
fn another_tenants_session_is_unknown() {
    let mut script = Script::serving(0);
    let session = script.open(&keys(1, 1));
    let tenant = || "b".to_owned();
    let extend = Extend { session, tenant: tenant(), tokens: 64, owners: Owners(vec![]), first: 1 };
    assert!(matches!(refused(&mut script, extend), Refusal::Unknown(_)));
    assert!(matches!(refused(&mut script, Abort { session, tenant: tenant(), last_step: 0 }), Refusal::Unknown(_)));
}

#[test]
fn steps_follow_each_other_and_name_pages_of_their_sessions() {
    let mut script = Script::serving(0);
    let session = script.open(&keys(1, 2));
    let pages = script.opened(session).pages.clone();
    let entry = StepEntry {
        session,
        first_token: 0,
        tokens: 128,
        pages,
        draft: true,
        keys: Keys(vec![]),
        first_key: 0,
        load_read: false,
    };
    let step =
        |number, entry: StepEntry| Step { number, entries: vec![entry], engine: ENGINE, all_layers_at_end: false };
    let gap = refused(&mut script, step(3, entry.clone()));
    assert_eq!(gap, Gap { expected: 1, got: 3 }.into());
    let foreign = StepEntry { pages: Pages(vec![PageId(1), PageId(60)]), ..entry.clone() };
    assert!(matches!(refused(&mut script, step(1, foreign)), Refusal::NotOwner(r) if r.page == 60));
    let short = StepEntry { pages: Pages(vec![PageId(1)]), ..entry.clone() };
    assert!(matches!(refused(&mut script, step(1, short)), Refusal::Malformed(r) if r.field == "pages"));
    let beyond = StepEntry { tokens: 129, ..entry.clone() };
    assert!(matches!(refused(&mut script, step(1, beyond)), Refusal::Malformed(r) if r.field == "tokens"));
    let ahead = StepEntry { first_token: 64, tokens: 64, pages: Pages(vec![entry.pages.0[1]]), ..entry.clone() };
    assert_eq!(refused(&mut script, step(1, ahead)), Gap { expected: 0, got: 64 }.into());
    let nobody = StepEntry { session: OpId::new(ENGINE, 999), ..entry.clone() };
    assert!(matches!(refused(&mut script, step(1, nobody)), Refusal::Unknown(_)));
    let twice = Step { entries: vec![entry.clone(), entry.clone()], ..step(1, entry.clone()) };
    assert!(matches!(refused(&mut script, twice), Refusal::Malformed(r) if r.field == "entries"));
}

#[test]
fn f25_a_worker_that_does_not_fit() {
    let config = IndexConfig { compute_tokens_min: 0, ..IndexConfig::new(manifest(1), 65, 0) };
    let mut script = Script::deaf(config);
    let fits = Register {
        rank: Rank(0),
        engine: ENGINE,
        manifest: manifest(1),
        pages: 65,
        segment: "a".to_owned(),
        segment_bytes: 1,
        regions: vec![],
        last_step: 0,
        born_ms: 0,
    };
    let mut page_16 = fits.clone();
    page_16.manifest.page_tokens = 16;
    let mut layers_11 = fits.clone();
    layers_11.manifest.components[0].page_bytes.pop();
    let mut dtype = fits.clone();
    dtype.manifest.components[0].dtype = "bf16".to_owned();
    for (msg, field, yours, mine) in [
        (page_16, "page_tokens", "16", "64"),
        (layers_11, "target.kv.layers", "11", "12"),
        (dtype, "target.kv.dtype", "bf16", "fp8"),
    ] {
        let want = Mismatch { field: field.to_owned(), yours: yours.to_owned(), mine: mine.to_owned() };
        assert_eq!(refused(&mut script, msg), want.into());
        assert!(script.index.tree().is_empty());
    }
    let mut script = Script::serving(0);
    let session = script.open(&keys(1, 2));
    script.compute(session, 1, 0..2, true);
    let op = script.ask(Probe { tenant: "a".to_owned(), salt: root(), keys: Keys(keys(1, 2)) });
    assert_eq!(script.answer(op), &Probed { l1: 2, l2: 0 }.into());
}

#[test]
fn a_group_that_is_gone_says_which_one_lives() {
    let mut script = Script::serving(0);
    let old = Incarnation([1; 16]);
    let from = Sender {
        address: Address::Engine,
        incarnation: ENGINE,
        control: old,
        op: OpId::new(ENGINE, 500),
        reply: Some(ReplyTo("inbox".into())),
        remaining_ms: 1,
        trace: None,
    };
    let mut out = Vec::new();
    let msg = IndexIn::Request(open(&keys(1, 1), 64).into());
    script.index.handle(script.now, &from, msg, &mut out);
    script.take(out);
    assert_eq!(script.answers.last().unwrap().1, Answer::Refused(NewIncarnation { old, new: CONTROL }.into()));
}

#[test]
fn a_session_that_has_ended_is_unknown_to_other_tenants() {
    let mut script = Script::serving(0);
    let session = script.open(&keys(1, 1));
    script.compute(session, 1, 0..1, true);
    script.close(session, 1);
    let tenant = || "b".to_owned();
    let close = Close {
        session,
        tenant: tenant(),
        last_step: 1,
        keys: Keys(vec![]),
        first_key: 0,
        drafted: 0,
        accepted: 0,
        blob: Bin(vec![]),
    };
    assert!(matches!(refused(&mut script, close), Refusal::Unknown(_)));
    assert!(matches!(refused(&mut script, Abort { session, tenant: tenant(), last_step: 1 }), Refusal::Unknown(_)));
    script.ask_as(session, Open { tenant: tenant(), ..open(&keys(1, 1), 64) });
    assert!(matches!(script.refusal(session), Refusal::Unknown(_)));
    script.ask_as(session, open(&keys(1, 1), 64));
    assert!(matches!(script.refusal(session), Refusal::WrongState(_)));
}

#[test]
fn owners_that_do_not_fit_are_refused_before_anything_is_touched() {
    let mut script = Script::serving(0);
    let path = keys(1, 3);
    let session = script.open(&path[..1]);
    script.compute(session, 1, 0..1, true);
    let node = script.index.tree().find(&path[0]).expect("a page");
    let before = script.index.tree().page(node);
    let short = Open { owners: Owners(vec![0]), priority: 3, ..open(&path, 192) };
    match refused(&mut script, short) {
        Refusal::Malformed(malformed) => {
            assert_eq!((malformed.field.as_str(), malformed.value.as_str()), ("owners", "1"))
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(script.index.tree().page(node), before);
    for owners in [vec![0], vec![0, 0, 0]] {
        let extend = Extend { session, tenant: "a".to_owned(), tokens: 128, owners: Owners(owners), first: 1 };
        assert!(matches!(refused(&mut script, extend), Refusal::Malformed(r) if r.field == "owners"));
    }
}

#[test]
fn an_open_that_is_refused_leaves_no_salt_and_salts_nobody_uses_are_forgotten() {
    let mut script = Script::serving(0);
    let path = keys(1, 1);
    let session = script.open(&path);
    script.compute(session, 1, 0..1, true);
    refused(&mut script, Open { salt: Key([8; 16]), ..open(&path, 64) });
    for n in 0..5_000u32 {
        let salt = Key([[5; 12].as_slice(), &n.to_le_bytes()].concat().try_into().expect("16 bytes"));
        let op = script.ask(Open { salt, ..open(&[], 0) });
        assert!(matches!(script.answer(op), Answer::Opened(_)));
        script.ask(Abort { session: op, tenant: "a".to_owned(), last_step: 0 });
    }
    assert!(script.counter("index.salts") <= 1_025, "{}", script.counter("index.salts"));
    assert_eq!(script.probe(&path).l1, 1);
}

#[test]
fn with_a_lookahead_the_last_full_page_cannot_be_keyed_yet() {
    let mut manifest = manifest(1);
    manifest.draft_lookahead_tokens = 1;
    let mut script = Script::of(IndexConfig { compute_tokens_min: 0, ..IndexConfig::new(manifest, 65, 0) });
    let path = keys(1, 2);
    match refused(&mut script, open(&path, 128)) {
        Refusal::Malformed(malformed) => {
            assert_eq!((malformed.field.as_str(), malformed.value.as_str()), ("keys", "2"))
        }
        other => panic!("{other:?}"),
    }
    let op = script.ask(open(&path, 129));
    assert_eq!(script.count_of("reserve"), 1);
    assert!(script.answers.iter().all(|(of, _)| *of != op));
}

#[test]
fn a_heartbeat_of_an_engine_that_never_registered_is_refused() {
    let mut script = Script::serving(0);
    let engine = Incarnation([0xee; 16]);
    assert_eq!(refused(&mut script, Heartbeat { engine, last_step: 0 }), Unknown::new("engine", engine).into());
}

#[test]
fn an_end_behind_a_step_that_never_comes_is_refused() {
    let mut script = Script::serving(0);
    let session = script.open(&keys(1, 1));
    let abort = |last_step| Abort { session, tenant: "a".to_owned(), last_step };
    match refused(&mut script, abort(u64::MAX)) {
        Refusal::Malformed(malformed) => assert_eq!(malformed.field, "last_step"),
        other => panic!("{other:?}"),
    }
    script.ask(abort(0));
    assert_eq!(script.counter("index.sessions"), 0);
}
