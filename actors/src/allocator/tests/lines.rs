//! Reservations that stand in line while room is made.

use super::*;
use crate::allocator::Contiguity;
use crate::protocol::PageId;
use crate::span::Fact;

/// Two lanes of four pages, all taken by `op(5)`: lane 0 has pages 2, 4, 6, 8 and lane 1 pages 3, 5, 7, 9.
fn full() -> Script<Allocator> {
    full_with(|_| ())
}

fn full_with(change: impl FnOnce(&mut AllocatorConfig)) -> Script<Allocator> {
    let mut allocator = allocator_with(2, 4, 4, change);
    let pages = given(&allocator.say(Address::Index, op(5), reserve(1, &[0, 0, 0, 0, 1, 1, 1, 1])))[0].1.clone();
    assert_eq!(pages, [2, 4, 6, 8, 3, 5, 7, 9]);
    allocator
}

/// The op of the only round that began.
fn round(sent: &Sent) -> OpId {
    match rounds(sent).as_slice() {
        [(op, ..)] => *op,
        other => panic!("no round: {other:?}"),
    }
}

#[test]
fn room_is_made_once_and_the_reservation_is_tried_once_more() {
    for (freed, fits) in [(vec![2, 4], true), (vec![2], false)] {
        let mut allocator = full();
        let sent = allocator.say(Address::Loader, op(10), reserve(1, &[0, 0]));
        let [(room_op, 1, wants)] = &rounds(&sent)[..] else { panic!("{sent:?}") };
        assert_eq!(*wants, [2, 0], "exactly what is short");
        assert_eq!(allocator.say(Address::Loader, op(10), reserve(1, &[0, 0])), [], "parked");
        let mut sent = allocator.say(Address::Index, op(20), free_l1(&freed));
        sent.extend(allocator.say(Address::Evictor, *room_op, room(&[freed.len() as u32, 0])));
        if fits {
            assert_eq!(given(&sent), [(op(10), vec![2, 4])]);
        } else {
            assert_eq!(short(&sent), [(op(10), vec![1, 0])]);
            assert_eq!(allocator.machine.free_pages(Tier::L1), [1, 0], "nothing was taken");
        }
        assert_eq!(rounds(&sent), []);
        assert_eq!(allocator.say(Address::Evictor, *room_op, room(&[9, 9])), [], "a late answer does nothing");
        assert_eq!(allocator.counter("allocator.late"), 1);
    }
}

#[test]
fn a_reservation_says_how_it_was_answered_and_the_round_what_it_was_for() {
    for (freed, fault) in [(vec![2, 4], None), (vec![2], Some("OutOfPages"))] {
        let mut allocator = full();
        let [given] = allocator.take_spans().try_into().expect("one span");
        assert_eq!((given.name, given.op, given.fault), ("reserve", op(5), None));
        assert!(given.facts.contains(&("reserve.runs", Fact::Count(2))), "{:?}", given.facts);
        let room_op = round(&allocator.say(Address::Loader, op(10), reserve(1, &[0, 0])));
        allocator.say(Address::Index, op(20), free_l1(&freed));
        allocator.say(Address::Evictor, room_op, room(&[freed.len() as u32, 0]));
        let spans = allocator.take_spans();
        let find = |name: &str| spans.iter().find(|span| span.name == name).expect("a span");
        assert_eq!((spans.len(), find("reserve").op, find("make_room").op), (2, op(10), room_op));
        assert_eq!(find("reserve").fault.as_deref(), fault);
        let facts = [&find("reserve").facts[..], &find("make_room").facts[..]].concat();
        let mut expected = vec![
            ("reserve.parked", Fact::Flag(true)),
            ("reserve.room_made", Fact::Flag(true)),
            ("room.wanted_pages", Fact::Counts(vec![2, 0])),
            ("room.ahead_of_need", Fact::Flag(false)),
        ];
        expected.extend(fault.map(|_| ("reserve.short_pages", Fact::Counts(vec![1, 0]))));
        for fact in expected {
            assert!(facts.contains(&fact), "{fact:?} in {facts:?}");
        }
    }
}

#[test]
fn a_round_that_is_lost_is_asked_for_again() {
    let mut allocator = full();
    let sent = allocator.say(Address::Loader, op(10), reserve(1, &[0]));
    let repeated = allocator.wake("repeat");
    assert_eq!(repeated, sent);
    assert_eq!(allocator.resync(Address::Evictor), sent);
}

#[test]
fn what_comes_free_goes_to_the_line_in_order_and_nobody_overtakes() {
    let mut allocator = full();
    let first = allocator.say(Address::Index, op(10), reserve(1, &[0, 0, 1]));
    assert_eq!(allocator.say(Address::Index, op(11), reserve(1, &[0])), [], "one round at a time");
    assert_eq!(
        said(&allocator.say(Address::Index, op(20), free_l1(&[2]))),
        ["index freed"],
        "not enough for the first"
    );
    assert_eq!(allocator.say(Address::Index, op(12), reserve(1, &[0])), [], "a new one does not overtake");
    let sent = allocator.say(Address::Index, op(21), free_l1(&[4, 6, 3]));
    assert_eq!(given(&sent), [(op(10), vec![2, 4, 3]), (op(11), vec![6])]);
    let sent = allocator.say(Address::Evictor, round(&first), room(&[3, 1]));
    assert_eq!(rounds(&sent)[0].2, [1, 0], "the third is still short");
    allocator.say(Address::Index, op(22), free_l1(&[8]));
    assert_eq!(allocator.counter("allocator.reserved"), 4);
}

#[test]
fn a_lane_that_nobody_waits_for_is_given_at_once() {
    let mut allocator = full();
    allocator.say(Address::Index, op(20), free_l1(&[3, 2]));
    allocator.say(Address::Index, op(10), reserve(1, &[0, 0]));
    assert_eq!(given(&allocator.say(Address::Index, op(11), reserve(1, &[1]))), [(op(11), vec![3])]);
    assert_eq!(
        given(&allocator.say(Address::Index, op(12), reserve(2, &[0]))).len(),
        1,
        "nor does the other tier wait"
    );
}

#[test]
fn each_reservation_sees_a_round_that_began_after_it_was_parked() {
    let mut allocator = full();
    let first = round(&allocator.say(Address::Index, op(10), reserve(1, &[0])));
    allocator.say(Address::Index, op(11), reserve(1, &[1]));
    let sent = allocator.say(Address::Evictor, first, room(&[0, 0]));
    assert_eq!(short(&sent), [(op(10), vec![1, 0])]);
    let second = rounds(&sent);
    assert_eq!(second[0].2, [0, 1]);
    let sent = allocator.say(Address::Evictor, second[0].0, room(&[0, 0]));
    assert_eq!((short(&sent), rounds(&sent)), (vec![(op(11), vec![0, 1])], vec![]));
    assert_eq!(allocator.say(Address::Index, op(10), reserve(1, &[0])).len(), 1, "the answer stays");
}

#[test]
fn what_can_never_fit_and_what_stands_behind_a_full_line_is_short_at_once() {
    let mut allocator = full_with(|config| config.parked_max = 1);
    let sent = allocator.say(Address::Index, op(10), reserve(1, &[0; 5]));
    assert_eq!((short(&sent), rounds(&sent)), (vec![(op(10), vec![5, 0])], vec![]));
    allocator.say(Address::Index, op(11), reserve(1, &[0, 0]));
    assert_eq!(short(&allocator.say(Address::Index, op(12), reserve(1, &[1]))), [(op(12), vec![0, 1])]);
    allocator.say(Address::Index, op(20), free_l1(&[2]));
    let sent = allocator.say(Address::Index, op(13), reserve(1, &[0]));
    assert_eq!(short(&sent), [(op(13), vec![1, 0])], "the free page is promised");
}

#[test]
fn a_reservation_is_not_parked_for_ever() {
    let mut allocator = full_with(|config| config.parked_ms = 100);
    allocator.say(Address::Index, op(10), reserve(1, &[0, 0]));
    allocator.say(Address::Index, op(20), free_l1(&[2]));
    allocator.pass(50);
    allocator.say(Address::Index, op(11), reserve(1, &[0]));
    let sent = allocator.wake("parked reservation");
    assert_eq!(short(&sent), [(op(10), vec![1, 0])]);
    assert_eq!(given(&sent), [(op(11), vec![2])], "who waited behind it is served");
}

#[test]
fn room_is_kept_between_the_marks() {
    let marks = |low, high| Marks::new(low, high).expect("low is below high");
    let free_room = FreeRoom { l1: marks(2, 3), l2: Marks::OFF };
    let mut allocator = allocator_with(2, 6, 6, |config| config.free_room = Some(free_room));
    assert_eq!(rounds(&allocator.say(Address::Index, op(10), reserve(1, &[0, 0, 0, 0, 1]))), [], "two are left");
    let sent = allocator.say(Address::Index, op(11), reserve(1, &[0]));
    assert_eq!(given(&sent).len(), 1, "the engine does not wait");
    let [(first, 1, wants)] = &rounds(&sent)[..] else { panic!("{sent:?}") };
    assert_eq!(*wants, [2, 0], "up to the high mark");
    let sent = allocator.say(Address::Index, op(12), reserve(1, &[0, 0]));
    assert_eq!(sent, [], "one round at a time");
    let sent = allocator.say(Address::Evictor, *first, room(&[0, 0]));
    let [(second, 1, wants)] = &rounds(&sent)[..] else { panic!("{sent:?}") };
    assert_eq!(*wants, [4, 0], "what is short, and up to the high mark behind it");
    allocator.say(Address::Index, op(20), free_l1(&[2, 4]));
    assert_eq!(allocator.say(Address::Evictor, *second, room(&[2, 0])), [], "no room without a reason");
    assert_eq!(rounds(&allocator.say(Address::Index, op(13), reserve(2, &[0; 6]))), [], "off");
}

#[test]
fn default_marks_are_shares_rounded_up() {
    for (pages, low, high) in [(0, 0, 0), (1, 1, 1), (50, 1, 1), (101, 2, 3), (55_000, 550, 1_100)] {
        let room = FreeRoom::shares(pages, pages);
        assert_eq!((room.l1.low_pages(), room.l2.high_pages()), (low, high), "{pages} pages");
    }
}

#[test]
fn required_runs_are_made_by_evicting_although_enough_is_free() {
    let mut allocator = allocator_with(1, 1, 4, |config| config.contiguity = Contiguity::Require);
    given(&allocator.say(Address::Writer, op(10), reserve(2, &[0; 4])));
    allocator.say(Address::Writer, op(11), free_l2(&[(0, 0), (0, 2)]));
    let sent = allocator.say(Address::Writer, op(12), reserve(2, &[0, 0]));
    let [(room_op, 2, wants)] = &rounds(&sent)[..] else { panic!("{sent:?}") };
    assert_eq!(*wants, [1]);
    let sent = allocator.say(Address::Index, op(20), free_l2(&[(0, 1)]));
    assert_eq!(given(&sent), [(op(12), vec![0, 1])]);
    assert_eq!(allocator.say(Address::Evictor, *room_op, room(&[1])), []);
}

#[test]
fn one_owner_1_page_is_evicted_and_the_owners_are_those_asked_for() {
    let mut allocator = allocator(2, 4, 0);
    let taken = given(&allocator.say(Address::Index, op(5), reserve(1, &[1, 1, 1])))[0].1.clone();
    let sent = allocator.say(Address::Loader, op(10), reserve(1, &[0, 1, 1, 0]));
    let [(room_op, 1, wants)] = &rounds(&sent)[..] else { panic!("{sent:?}") };
    assert_eq!(*wants, [0, 1]);
    let sent = allocator.say(Address::Index, op(20), free_l1(&taken[..1]));
    let owners: Vec<u8> = given(&sent)[0].1.iter().map(|page| PageId(*page).owner(2).0).collect();
    assert_eq!(owners, [0, 1, 1, 0]);
    allocator.say(Address::Evictor, *room_op, room(&[0, 1]));
    assert_eq!(allocator.machine.free_pages(Tier::L1), [2, 0]);
}
