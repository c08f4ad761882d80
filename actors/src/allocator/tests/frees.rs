//! Pages that come back, and those that must not.

use super::*;
use crate::protocol::{Count, Counted};

#[test]
fn a_page_that_is_free_padding_or_nowhere_is_not_freed_and_nothing_changes() {
    let mut allocator = allocator(2, 4, 4);
    let pages = given(&allocator.say(Address::Index, op(10), reserve(1, &[0, 1])))[0].1.clone();
    assert_eq!(pages, [2, 3]);
    given(&allocator.say(Address::Index, op(11), reserve(2, &[1])));
    let both = Free { l1: Pages(vec![PageId(2)]), ..free_l2(&[(1, 1)]) };
    let unpaired = Free { l2_owners: Owners(vec![1, 1]), ..free_l2(&[(1, 0)]) };
    let rows = [
        (free_l1(&[2, 4]), "WrongState"),
        (free_l1(&[2, 2]), "WrongState"),
        (free_l1(&[2, 0]), "Malformed"),
        (free_l1(&[2, 10]), "Malformed"),
        (free_l1(&[2, u32::MAX]), "Malformed"),
        (free_l2(&[(1, 0), (0, 0)]), "WrongState"),
        (free_l2(&[(1, 0), (1, 4)]), "Malformed"),
        (free_l2(&[(2, 0)]), "Malformed"),
        (unpaired, "Malformed"),
        (both, "WrongState"),
    ];
    for (n, (msg, code)) in (20..).zip(rows) {
        for _ in 0..2 {
            assert_eq!(refused(&allocator.say(Address::Index, op(n), msg.clone())), code, "{msg:?}");
            assert_eq!(allocator.machine.free_pages(Tier::L1), [3, 3]);
            assert_eq!(allocator.machine.free_pages(Tier::L2), [4, 3]);
        }
        assert_eq!(allocator.mark(op(n), "error.free_refused"), Some(1));
    }
    assert_eq!((allocator.counter("allocator.refused_frees"), allocator.counter("allocator.duplicates")), (10, 10));
}

#[test]
fn a_free_that_was_refused_stays_refused_when_the_page_is_given_again() {
    let mut allocator = allocator(1, 1, 1);
    assert_eq!(refused(&allocator.say(Address::Index, op(10), free_l1(&[1]))), "WrongState");
    assert_eq!(given(&allocator.say(Address::Index, op(11), reserve(1, &[0]))), [(op(11), vec![1])]);
    assert_eq!(refused(&allocator.say(Address::Index, op(10), free_l1(&[1]))), "WrongState");
    assert_eq!(allocator.machine.free_pages(Tier::L1), [0]);
}

#[test]
fn a_repeated_free_leaves_the_next_owner_alone() {
    let mut allocator = allocator(1, 1, 1);
    allocator.say(Address::Index, op(10), reserve(1, &[0]));
    allocator.say(Address::Index, op(11), free_l1(&[1]));
    assert_eq!(given(&allocator.say(Address::Index, op(12), reserve(1, &[0]))), [(op(12), vec![1])]);
    assert_eq!(said(&allocator.say(Address::Index, op(11), free_l1(&[1]))), ["index freed"]);
    assert_eq!(allocator.machine.free_pages(Tier::L1), [0]);
}

#[test]
fn one_op_frees_one_list() {
    let mut allocator = allocator(1, 2, 1);
    allocator.say(Address::Index, op(10), reserve(1, &[0, 0]));
    assert_eq!(said(&allocator.say(Address::Index, op(11), free_l1(&[1]))), ["index freed"]);
    assert_eq!(refused(&allocator.say(Address::Index, op(11), free_l1(&[2]))), "WrongState");
    assert_eq!(allocator.machine.free_pages(Tier::L1), [1]);
}

#[test]
fn writer_and_loader_free_what_they_reserved_and_the_index_what_it_was_handed() {
    let mut allocator = allocator(1, 4, 4);
    allocator.say(Address::Writer, op(10), reserve(2, &[0, 0]));
    assert_eq!(refused(&allocator.say(Address::Loader, op(11), free_l2(&[(0, 0)]))), "WrongState");
    assert_eq!(said(&allocator.say(Address::Writer, op(10), free_l2(&[(0, 0)]))), ["writer freed"]);
    assert_eq!(said(&allocator.say(Address::Index, op(12), free_l2(&[(0, 1)]))), ["index freed"]);
    assert_eq!(allocator.machine.free_pages(Tier::L2), [4]);
}

#[test]
fn outcomes_are_forgotten_at_their_deadline() {
    let mut allocator = allocator(1, 4, 4);
    allocator.pass(1);
    allocator.say(Address::Writer, op(10), reserve(2, &[0; 5]));
    allocator.pass(1);
    allocator.say(Address::Writer, op(11), reserve(2, &[0]));
    allocator.say(Address::Writer, op(11), free_l2(&[(0, 0)]));
    for reason in ["ended restore", "ended op", "ended free"] {
        assert_eq!(allocator.wake(reason), []);
    }
    assert_eq!((allocator.next_reason(), allocator.counter("allocator.reservations")), (None, 0));
}

#[cfg(feature = "planted-faults")]
#[test]
fn a_planted_double_free_takes_a_page_from_its_next_owner() {
    use crate::faults::{Fault, Faults};
    let mut allocator = allocator_with(1, 1, 1, |config| config.faults = Faults::planted(Fault::DoubleFree));
    allocator.say(Address::Index, op(10), reserve(1, &[0]));
    allocator.say(Address::Index, op(11), free_l1(&[1]));
    allocator.say(Address::Index, op(12), reserve(1, &[0]));
    allocator.say(Address::Index, op(11), free_l1(&[1]));
    assert_eq!(allocator.machine.free_pages(Tier::L1), [1], "and the next owner still writes it");
}

#[test]
fn free_pages_are_counted_for_the_index_alone() {
    let mut allocator = allocator(2, 4, 4);
    allocator.say(Address::Index, op(10), reserve(1, &[0, 0, 1]));
    let sent = allocator.say(Address::Index, op(11), Count {});
    let counted = Counted { l1_free: vec![2, 3], l2_free: vec![4, 4] };
    assert_eq!(sent, [(op(11), Outgoing::Index(counted.into()))]);
    assert!(allocator.say(Address::Writer, op(12), Count {}).is_empty());
}
