//! What one message may hold, and what may not grow.

use super::*;

fn events(script: &Script) -> Vec<CacheEvent> {
    let events = script.sent.iter().filter_map(|(_, msg)| match msg {
        Outgoing::Event(event) => Some(event.clone()),
        _ => None,
    });
    events.collect()
}

fn many_keys(pages: u32) -> Vec<Key> {
    let key = |at: u32| Key([[9; 12].as_slice(), &at.to_le_bytes()].concat().try_into().expect("16 bytes"));
    (0..pages).map(key).collect()
}

/// A group with room for `pages` whose one engine can be replaced.
fn large(pages: u32) -> Script {
    let config =
        IndexConfig { compute_tokens_min: 0, request_pages_max: pages, ..IndexConfig::new(manifest(1), pages + 1, 0) };
    Script::of(config)
}

#[test]
fn more_pages_than_a_message_carries_go_back_in_several() {
    let mut script = large(70_000);
    let session = script.open(&many_keys(70_000));
    script.compute(session, 1, 0..70_000, true);
    script.close(session, 1);
    script.sent.clear();
    let next = Incarnation([0xe1; 16]);
    let msg = Register {
        rank: Rank(0),
        engine: next,
        manifest: manifest(1),
        pages: 70_001,
        segment: "b".to_owned(),
        segment_bytes: 1,
        regions: vec![],
        last_step: 0,
        born_ms: 0,
    };
    script.deliver(Address::Engine, next, OpId::new(next, 1), IndexIn::Request(msg.into()));
    assert_eq!(script.freed().len(), 70_000);
    let largest = script.sent.iter().map(|(_, msg)| msg.encode_body().1.len()).max();
    assert!(largest < Some(1 << 20), "{largest:?} bytes");
}

#[test]
fn the_events_of_a_long_path_are_a_chain_and_replays_fit_a_message() {
    let mut script = large(40_000);
    let path = many_keys(40_000);
    let session = script.open(&path);
    script.compute(session, 1, 0..40_000, true);
    let events = events(&script);
    assert_eq!(events.iter().flat_map(|event| event.keys.0.clone()).collect::<Vec<_>>(), path);
    assert_eq!(events[0].parent, Key::default());
    for pair in events.windows(2) {
        assert_eq!((pair[1].number, pair[1].parent), (pair[0].number + 1, *pair[0].keys.0.last().unwrap()));
    }
    let (mut from, mut seen) = (1, Vec::new());
    while seen.len() < events.len() {
        let op = script.ask(Replay { from, limit: u32::MAX });
        let Answer::Replayed(part) = script.answer(op).clone() else { panic!("not replayed") };
        assert!(script.answer(op).encode_body().len() < 1 << 19);
        assert!(!part.events.is_empty());
        from = part.events.last().unwrap().number + 1;
        seen.extend(part.events);
    }
    assert_eq!(seen, events);
}

#[test]
fn an_event_names_the_page_before_its_first_also_behind_pages_of_another_session() {
    let mut script = Script::serving(0);
    let path = keys(1, 3);
    let (first, second) = (script.open(&path[..2]), script.open(&path));
    script.compute(first, 1, 0..2, true);
    script.compute(second, 2, 0..3, true);
    let newest = events(&script).pop().unwrap();
    assert_eq!((newest.keys.0, newest.parent), (vec![path[2]], path[1]));
}
