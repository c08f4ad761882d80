//! Field cases of transfers, under their names and with their numbers: every machine that has a part in them is the
//! real one, bytes are counted layer by layer, and time is virtual.

mod ranks;
mod world;

use hicached_actors::protocol::*;

use ranks::{LAYERS, written};
use world::{ENGINE, LEASE_MS, TENANT, World, abort, handover, keys, open, transfer};

#[test]
fn f07_pages_that_are_still_arriving() {
    for arrives in [true, false] {
        let (mut world, path, of) = (World::new(8, 8), keys(1, 4), transfer(1));
        let session = world.ask(open(&path, Some((of, 1))));
        let pages = world.opened(session).pages.clone();
        world.send(of, 1, 256, &[0, 1, 2, 3]);
        world.push_layers(5);
        assert_eq!(world.matched(&path), 0);
        let step = world.ask(Step {
            number: 1,
            entries: vec![entry(session, 0, 256, pages.0.clone(), &path)],
            engine: ENGINE,
            all_layers_at_end: false,
        });
        assert!(matches!(world.answer(step), Answer::Refused(Refusal::WrongState(_))), "{:?}", world.answer(step));
        assert_eq!((world.figure(Address::Index, "index.cached_l2"), world.free_host()), (0, 8));
        if arrives {
            world.push_layers(LAYERS);
            world.run_for(10);
            assert_eq!(world.matched(&path), 4);
            assert_eq!(world.figure(Address::Index, "index.cached_l2"), 4, "the backup ran");
            assert_eq!((world.free(), world.free_host()), (4, 4));
            for (page, position) in pages.0.iter().zip(0..) {
                assert_eq!(world.rank.content(*page), Some(written(of, position)));
            }
            let mut host: Vec<u64> = (0..8).filter_map(|slot| world.rank.host_content(slot)).collect();
            host.sort_unstable();
            assert_eq!(host, [0, 1, 2, 3].map(|position| written(of, position)));
        } else {
            world.push_layers(9);
            world.stop_sending(of, 1);
            world.run_for(10);
            world.ask(abort(session));
            world.run_for(10);
            assert_eq!(world.matched(&path), 0);
            assert_eq!((world.free(), world.free_host()), (8, 8));
        }
    }
}

#[test]
fn f17_late_writes_after_an_abort() {
    let (mut world, of) = (World::new(8, 0), transfer(1));
    world.keeps_stops = true;
    let first = world.ask(open(&keys(1, 6), Some((of, 1))));
    world.opened(first);
    world.send(of, 1, 384, &[0; 6]);
    world.push_layers(5);
    let [pushing] = &mut world.pushes[..] else { panic!("one rank sends") };
    let late: Vec<_> = (5..LAYERS).map(|_| pushing.next()).collect();
    world.ask(abort(first));
    // Nobody has said that it stopped: no timer frees what may still be written.
    for _ in 0..40 {
        assert_eq!(world.free(), 2);
        let waits = world.ask(open(&keys(2, 6), None));
        assert!(matches!(world.answer(waits), Answer::Refused(Refusal::OutOfPages(short)) if short.short == [4]));
        world.run_for(500);
    }
    world.carry_out_stops();
    assert_eq!(world.free(), 8);
    let second = world.ask(open(&keys(2, 6), None));
    let pages = world.opened(second).pages.0.clone();
    assert_eq!((pages.len(), world.free()), (6, 2));
    for (page, position) in pages.iter().zip(0..) {
        world.rank.l1.extend((0..LAYERS).map(|layer| ((page.0, layer), written(transfer(2), position))));
    }
    for frame in &late {
        assert!(!world.rank.land(frame), "layer {} of an attempt that is over", frame.layer);
    }
    assert_eq!((late.len(), world.rank.dropped), (7, 7));
    for (page, position) in pages.iter().zip(0..) {
        assert_eq!(world.rank.content(*page), Some(written(transfer(2), position)));
    }
}

#[test]
fn f18_an_abort_is_told_to_the_other_side() {
    const REQUESTS: u64 = 64;
    let mut world = World::new(256, 0);
    let mut waiting = Vec::new();
    for n in 1..=REQUESTS {
        let session = world.ask(open(&keys(n as u32, 4), Some((transfer(n), 1))));
        assert_eq!(world.opened(session).pages.0.len(), 4);
        waiting.push((session, world.ask(handover(transfer(n), 1))));
        world.send(transfer(n), 1, 256, &[0, 1, 2, 3]);
    }
    world.push_layers(3);
    world.run_for(1_000);
    assert_eq!((world.free(), world.pushes.len()), (0, 4 * REQUESTS as usize));
    assert!(world.pushes.iter().all(|pushing| pushing.layers == 3));
    let refused = world.ask(open(&keys(65, 4), None));
    assert!(matches!(world.answer(refused), Answer::Refused(Refusal::OutOfPages(_))));
    let began = world.now;
    (1..=REQUESTS).for_each(|n| world.stop_sending(transfer(n), 1));
    let all = waiting.clone();
    while world.free() < 256 {
        assert!(world.now <= began.plus_ms(2_000), "{} are not told", waiting.len());
        world.run_for(10);
        // The engine gives up what it hears of.
        let told: Vec<OpId> =
            waiting.extract_if(.., |(_, wait)| !world.answers(*wait).is_empty()).map(|(session, _)| session).collect();
        for session in told {
            world.ask(abort(session));
        }
    }
    assert!(world.now <= began.plus_ms(2_000));
    let next = world.ask(open(&keys(65, 4), None));
    assert_eq!(world.opened(next).pages.0.len(), 4, "admitted at once");
    // Longer than the timeout: nobody has waited for it, and nobody hears of a second end.
    world.run_for(301_000);
    for (_, wait) in all {
        let [Answer::Refused(Refusal::WrongState(wrong))] = world.answers(wait) else {
            panic!("not one end: {:?}", world.answers(wait))
        };
        assert!(wrong.state.starts_with("failed: "), "{wrong:?}");
    }
    let left = ["receiver.running", "receiver.offers"].map(|name| world.figure(Address::Receiver, name));
    assert_eq!(left, [0, 0]);
}

#[test]
fn f19_the_sender_dies() {
    let mut world = World::new(8, 0);
    for repeat in 1..=100 {
        let of = transfer(repeat);
        let session = world.ask(open(&keys(repeat as u32, 6), Some((of, 1))));
        assert_eq!(world.opened(session).pages.0.len(), 6);
        world.send(of, 1, 384, &[0, 1, 2, 3, 0, 1]);
        world.push_layers(4);
        // A second of life: the lease is renewed at some time in it.
        world.run_for(1_000);
        let late = world.pushes[0].next();
        world.kill_prefill();
        let killed = world.now;
        world.ask(abort(session));
        let lost = |world: &World| world.figure(Address::Receiver, "receiver.lost_peers");
        while lost(&world) < repeat {
            assert_eq!(world.free(), 2, "the dead may write");
            assert!(world.now < killed.plus_ms(LEASE_MS), "the lease does not end");
            world.run_for(10);
        }
        assert!(world.now >= killed.plus_ms(LEASE_MS / 2), "the lease ended early");
        let ended = world.now;
        while world.free() < 8 {
            assert!(world.now < ended.plus_ms(1_000), "not fenced");
            world.run_for(10);
        }
        assert_eq!(world.figure(Address::Receiver, "receiver.fenced"), repeat);
        let to_3_s = killed.plus_ms(3_000).ns - world.now.ns;
        world.run_for(to_3_s / 1_000_000);
        assert!(!world.rank.land(&late));
        assert_eq!((world.rank.dropped, world.free()), (repeat, 8));
        world.pushes.clear();
        world.revive_prefill();
    }
    assert_eq!(world.free(), 8);
}

#[test]
fn f20_the_same_request_id_a_second_time() {
    let (mut world, of) = (World::new(8, 0), transfer(1));
    let (one, two) = (keys(1, 4), keys(2, 6));
    let first = world.ask(open(&one, Some((of, 1))));
    world.opened(first);
    world.send(of, 1, 256, &[0, 1, 2, 3]);
    world.push_layers(LAYERS);
    let wait = world.ask(handover(of, 1));
    assert!(matches!(world.answer(wait), Answer::HandedOver(over) if over.received == 4), "it has its KV");
    let other = world.ask(open(&two[..4], None));
    let mut pages = world.opened(other).pages.0.clone();
    let extend = |first| Extend { session: other, tenant: TENANT.into(), tokens: 64, owners: Owners(vec![]), first };
    let fifth = world.ask(extend(4));
    world.run_for(100);
    assert!(matches!(world.answer(fifth), Answer::Refused(Refusal::OutOfPages(_))));
    world.ask(abort(first));
    for first in [4, 5] {
        let op = world.ask(extend(first));
        let Answer::Extended(extended) = world.answer(op) else { panic!("{:?}", world.answer(op)) };
        pages.extend(&extended.pages.0);
    }
    assert_eq!((pages.len(), world.free()), (6, 0));
    // The second attempt waits: not for pages that are said to be there, but for room.
    let early = world.ask(open(&one, Some((of, 2))));
    assert!(matches!(world.answer(early), Answer::Refused(Refusal::OutOfPages(_))), "{:?}", world.answer(early));
    let step = entry(other, 0, 384, pages, &two);
    world.ask(Step { number: 1, entries: vec![step], engine: ENGINE, all_layers_at_end: false });
    world.pass(1);
    let (session, tenant, keys) = (other, TENANT.to_owned(), Keys(vec![]));
    let closed =
        Close { session, tenant, last_step: 1, keys, first_key: 0, drafted: 0, accepted: 0, blob: Bin(vec![]) };
    world.ask(closed);
    let second = world.ask(open(&one, Some((of, 2))));
    let (hit, pages) = (world.opened(second).l1_hit, world.opened(second).pages.0.clone());
    let wait = world.ask(handover(of, 2));
    world.send(of, 2, 256, &[0, 1, 2, 3]);
    world.push_layers(5);
    // Words of the first attempt, late.
    world.receiver_says(of, NotArriving { attempt: 1, cause: "late".to_owned() });
    world.receiver_says(of, Arrived { attempt: 1, tokens: 256, blob: Bin(vec![]), components: vec![] });
    world.run_for(1_000);
    assert!(world.answers(wait).is_empty(), "it waits for the second attempt");
    world.push_layers(LAYERS);
    let Answer::HandedOver(over) = world.answer(wait) else { panic!("{:?}", world.answer(wait)) };
    assert_eq!((over.tokens, over.received), (256, 4 - hit));
    for (page, position) in pages.iter().zip(0..) {
        assert_eq!(world.rank.content(*page), Some(written(of, position)));
    }
    world.ask(abort(second));
    world.run_for(100);
    let cached = world.figure(Address::Index, "index.cached_l1");
    assert_eq!((u64::from(world.free()) + cached, world.figure(Address::Index, "index.private_l1")), (8, 0));
    world.ask(Flush { tier: 0, salt: vec![], prefix: Keys(vec![]), quarantined: false });
    world.run_for(100);
    assert_eq!(world.free(), 8);
}

/// What a step that computes tokens of a session says of it.
fn entry(session: OpId, first_token: u32, tokens: u32, pages: Vec<PageId>, keys: &[Key]) -> StepEntry {
    let keys = Keys(keys.to_vec());
    StepEntry { session, first_token, tokens, pages: Pages(pages), draft: false, keys, first_key: 0, load_read: false }
}
