//! Reservations, their repeats and their owners.

use serde_json::Value;

use super::*;
use crate::protocol::{Free, Whose, WhoseIs};

const MINE: WhoseIs = WhoseIs { mine: true };
const NOT_MINE: WhoseIs = WhoseIs { mine: false };

#[test]
fn f22_the_same_message_twice() {
    let mut allocator = allocator(1, 16, 0);
    let first = allocator.say(Address::Index, op(10), reserve(1, &[0; 4]));
    allocator.pass(1_000);
    let again = allocator.say(Address::Index, op(10), reserve(1, &[0; 4]));
    assert_eq!(given(&first), given(&again), "both answers name the same pages");
    assert_eq!(allocator.machine.free_pages(Tier::L1), [12]);
    let pages = given(&first)[0].1.clone();
    for _ in 0..3 {
        assert_eq!(said(&allocator.say(Address::Index, op(11), free_l1(&pages))), ["index freed"]);
        assert_eq!(allocator.machine.free_pages(Tier::L1), [16]);
    }
    assert_eq!(refused(&allocator.say(Address::Index, op(10), MINE)), "WrongState", "a commit after the release");
    assert_eq!(allocator.counter("allocator.duplicates"), 3);
}

#[test]
fn every_vector_of_the_lanes_holds_in_both_tiers() {
    let vectors: Value = serde_json::from_str(include_str!("../../../../tests/data/lanes.json")).expect("vectors");
    let rows = vectors["alloc_with_owners"].as_array().filter(|rows| !rows.is_empty()).expect("rows");
    let list = |row: &Value, name: &str| -> Vec<u32> { serde_json::from_value(row[name].clone()).expect("numbers") };
    for (row, tier) in rows.iter().flat_map(|row| [(row, Tier::L1), (row, Tier::L2)]) {
        let free = list(row, "free_pages_per_lane");
        let owners: Vec<u8> = list(row, "owners").iter().map(|owner| *owner as u8).collect();
        let pages = free.iter().max().copied().unwrap_or(0) + 8;
        let mut allocator = allocator(free.len() as u8, pages, pages);
        let number = if tier == Tier::L1 { 1 } else { 2 };
        let filled: Vec<u8> = (0..).zip(&free).flat_map(|(lane, free)| vec![lane; (pages - free) as usize]).collect();
        allocator.say(Address::Index, op(10), reserve(number, &filled));
        assert_eq!(allocator.machine.free_pages(tier), free);
        let mut sent = allocator.say(Address::Index, op(11), reserve(number, &owners));
        if let [(round, _, _)] = rounds(&sent).as_slice() {
            sent = allocator.say(Address::Evictor, *round, room(&vec![0; free.len()]));
        }
        if row["granted"] == true {
            let pages = &given(&sent)[0].1;
            assert_eq!(pages.len(), owners.len());
            for (owner, page) in owners.iter().zip(pages).filter(|_| tier == Tier::L1) {
                assert_eq!(PageId(*page).owner(free.len() as u8).0, *owner, "{row}");
            }
        } else {
            assert_eq!(short(&sent), [(op(11), list(row, "shortfall_per_lane"))], "{row}");
        }
        assert_eq!(allocator.machine.free_pages(tier), list(row, "free_after"), "{row}");
    }
}

#[test]
fn nothing_is_given_before_the_restore_is_whole_and_l1_is_open() {
    let config = AllocatorConfig { free_room: None, ..AllocatorConfig::new(2, 3, 4) };
    let mut allocator = Script::new(Allocator::new(config, CONTROL, 1).expect("pools that fit"));
    let ask = |allocator: &mut Script<Allocator>, n, tier| allocator.say(Address::Index, op(n), reserve(tier, &[0]));
    assert_eq!(short(&ask(&mut allocator, 10, 2)), [(op(10), vec![1, 0])]);
    assert_eq!(refused(&allocator.say(Address::Index, op(2), OpenLanes {})), "WrongState");
    assert_eq!(said(&allocator.say(Address::Index, op(1), restore(1, &[(1, 3)], true))), ["index restored"]);
    assert_eq!(short(&ask(&mut allocator, 11, 2)), [(op(11), vec![1, 0])], "part 0 is missing");
    for _ in 0..2 {
        let part = restore(0, &[(0, 0), (0, 1), (0, 2)], false);
        assert_eq!(said(&allocator.say(Address::Index, op(1), part)), ["index restored"]);
    }
    assert_eq!(allocator.machine.free_pages(Tier::L2), [1, 3]);
    assert_eq!(given(&ask(&mut allocator, 12, 2)), [(op(12), vec![3])]);
    assert_eq!(short(&ask(&mut allocator, 13, 1)), [(op(13), vec![1, 0])]);
    for _ in 0..2 {
        assert_eq!(said(&allocator.say(Address::Index, op(2), OpenLanes {})), ["index freed"]);
    }
    assert_eq!(given(&ask(&mut allocator, 14, 1)).len(), 1);
    assert_eq!(short(&ask(&mut allocator, 13, 1)), [(op(13), vec![1, 0])], "an answer does not change");
}

#[test]
fn slots_of_a_rank_that_came_back_are_taken_whole_or_not_at_all() {
    let mut allocator = allocator(2, 1, 4);
    assert_eq!(given(&allocator.say(Address::Writer, op(10), reserve(2, &[1]))), [(op(10), vec![0])]);
    let rows = [
        (restore(0, &[(0, 1), (1, 0)], true), "WrongState"),
        (restore(0, &[(0, 1), (0, 1)], true), "WrongState"),
        (restore(0, &[(0, 1), (0, 4)], true), "Malformed"),
        (restore(0, &[(0, 1), (2, 1)], true), "Malformed"),
        (restore(u32::MAX, &[], true), "TooLarge"),
    ];
    for (msg, code) in rows {
        assert_eq!(refused(&allocator.say(Address::Index, op(20), msg)), code);
        assert_eq!(allocator.machine.free_pages(Tier::L2), [4, 3]);
    }
    for _ in 0..2 {
        assert_eq!(said(&allocator.say(Address::Index, op(21), restore(0, &[(0, 1)], true))), ["index restored"]);
    }
    assert_eq!(allocator.machine.free_pages(Tier::L2), [3, 3]);
    assert_eq!(refused(&allocator.say(Address::Index, op(21), restore(1, &[(0, 2)], true))), "WrongState");
}

#[test]
fn what_is_malformed_or_from_nobody_who_owns_pages_is_refused() {
    let mut allocator = allocator(2, 4, 4);
    assert_eq!(refused(&allocator.say(Address::Index, op(10), reserve(3, &[0]))), "Malformed");
    assert_eq!(refused(&allocator.say(Address::Index, op(10), reserve(1, &[0, 2]))), "Malformed");
    assert_eq!(allocator.say(Address::Engine, op(11), free_l1(&[2])), []);
    assert_eq!(allocator.refusals(), ["Unsupported"]);
    assert_eq!(allocator.say(Address::Evictor, op(12), reserve(1, &[0])), []);
    assert_eq!(allocator.say(Address::Writer, op(13), OpenLanes {}), []);
    assert_eq!(allocator.counter("allocator.foreign"), 3);
    given(&allocator.say(Address::Index, op(14), reserve(1, &[0])));
    assert_eq!(refused(&allocator.say(Address::Index, op(14), reserve(1, &[1]))), "WrongState");
    assert_eq!(refused(&allocator.say(Address::Loader, op(14), reserve(1, &[0]))), "WrongState");
}

#[test]
fn a_reservation_of_nothing_is_given_nothing() {
    let mut allocator = allocator(1, 1, 1);
    for _ in 0..2 {
        assert_eq!(given(&allocator.say(Address::Index, op(10), reserve(2, &[]))), [(op(10), vec![])]);
    }
    assert_eq!(allocator.pass(200_000), [], "and nobody is asked about it");
    assert_eq!(allocator.counter("allocator.reservations"), 0);
}

/// Reserves two slots for the writer and lets them grow old.
fn old() -> Script<Allocator> {
    let mut allocator = allocator(1, 1, 4);
    allocator.pass(1);
    allocator.say(Address::Writer, op(10), reserve(2, &[0, 0]));
    allocator.wake("ended restore");
    let sent = allocator.wake("old reservation");
    assert_eq!(sent, [(op(10), Outgoing::Writer(Whose {}.into()))]);
    allocator
}

#[test]
fn the_owner_of_an_old_reservation_is_asked_and_silence_frees_nothing() {
    let mut allocator = old();
    assert!(said(&allocator.pass(600_000)).iter().all(|said| said == "writer whose"));
    assert_eq!(said(&allocator.resync(Address::Writer)), ["writer whose"]);
    assert_eq!(allocator.machine.free_pages(Tier::L2), [2]);
    assert_eq!(refused(&allocator.say(Address::Loader, op(10), NOT_MINE)), "WrongState");
    assert_eq!(allocator.machine.free_pages(Tier::L2), [2]);
}

#[test]
fn an_owner_that_speaks_for_its_reservation_keeps_the_pages() {
    for early in [true, false] {
        let mut allocator = if early { allocator(1, 1, 4) } else { old() };
        allocator.say(Address::Writer, op(10), reserve(2, &[0, 0]));
        for _ in 0..2 {
            assert_eq!(allocator.say(Address::Writer, op(10), MINE), []);
        }
        assert_eq!(allocator.counter("allocator.reservations"), 0);
        assert_eq!(refused(&allocator.say(Address::Writer, op(10), reserve(2, &[0, 0]))), "WrongState");
        assert_eq!(allocator.say(Address::Writer, op(10), NOT_MINE), [], "too late to take back");
        assert_eq!(allocator.machine.free_pages(Tier::L2), [2]);
        assert_eq!(said(&allocator.say(Address::Index, op(11), free_l2(&[(0, 0), (0, 1)]))), ["index freed"]);
    }
}

#[test]
fn an_owner_that_does_not_know_its_reservation_frees_what_is_left_of_it() {
    let mut allocator = old();
    allocator.say(Address::Writer, op(11), free_l2(&[(0, 0)]));
    assert_eq!(given(&allocator.say(Address::Loader, op(12), reserve(2, &[0]))), [(op(12), vec![0])]);
    for _ in 0..2 {
        assert_eq!(allocator.say(Address::Writer, op(10), NOT_MINE), []);
    }
    assert_eq!(allocator.machine.free_pages(Tier::L2), [3], "slot 0 is another reservation's");
    assert_eq!(allocator.counter("allocator.disowned_pages"), 1);
}

#[test]
fn nobody_disowns_what_it_was_not_asked_about() {
    let mut allocator = allocator(1, 1, 4);
    allocator.say(Address::Writer, op(10), reserve(2, &[0, 0]));
    assert_eq!(refused(&allocator.say(Address::Writer, op(10), NOT_MINE)), "WrongState");
    assert_eq!(refused(&allocator.say(Address::Writer, op(11), NOT_MINE)), "Unknown");
    assert_eq!(allocator.machine.free_pages(Tier::L2), [2]);
}

#[test]
fn a_reservation_that_is_freed_whole_is_not_asked_about() {
    let mut allocator = old();
    allocator.say(Address::Writer, op(11), free_l2(&[(0, 1)]));
    assert_eq!(refused(&allocator.say(Address::Writer, op(10), reserve(2, &[0, 0]))), "WrongState");
    allocator.say(Address::Writer, op(12), free_l2(&[(0, 0)]));
    assert_eq!(allocator.pass(200_000), []);
    assert_eq!((allocator.counter("allocator.reservations"), allocator.next_reason()), (0, None));
}

#[test]
fn a_request_of_the_writer_from_before_what_was_forgotten_reserves_nothing() {
    use crate::makers::{Maker, MakerIds};
    let mut allocator = allocator(1, 1, 4);
    let mut ids = MakerIds::new(CONTROL, Maker::Writer);
    let (late, old) = (ids.draw(), ids.draw());
    given(&allocator.say(Address::Writer, old, reserve(2, &[0])));
    allocator.say(Address::Writer, old, free_l2(&[(0, 0)]));
    allocator.pass(200_000);
    for op in [late, old] {
        assert_eq!(refused(&allocator.say(Address::Writer, op, reserve(2, &[0]))), "WrongState");
    }
    assert_eq!(given(&allocator.say(Address::Writer, ids.draw(), reserve(2, &[0]))).len(), 1);
    let nothing = Free { l1: Pages::default(), l2_owners: Owners::default(), l2: Slots::default() };
    assert_eq!(said(&allocator.say(Address::Writer, op(90), nothing)), ["writer freed"]);
}
