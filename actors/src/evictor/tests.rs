use super::*;
use crate::script::{CONTROL, Script, Sent, op};
use crate::span::Fact;

fn script(config: EvictorConfig) -> Script<Evictor> {
    Script::new(Evictor::new(config, CONTROL, 1))
}

fn make_room(wants: &[u32]) -> MakeRoom {
    MakeRoom { tier: 2, wants: wants.to_vec() }
}

fn evicted(freed: &[u32], collateral: u32, pending: u32) -> Evicted {
    Evicted { freed: freed.to_vec(), collateral, pending }
}

fn asked(sent: &Sent) -> (OpId, Vec<u32>) {
    match sent.as_slice() {
        [(op, Outgoing::Index(IndexNews::Evict(evict)))] => (*op, evict.wants.clone()),
        other => panic!("no batch: {other:?}"),
    }
}

fn room(freed: &[u32], pending: u32) -> Outgoing {
    Outgoing::Allocator(RoomMade { freed: freed.to_vec(), pending }.into())
}

#[test]
fn room_is_made_batch_by_batch_until_the_lanes_have_what_they_want() {
    let mut evictor = script(EvictorConfig { batch_pages_max: 4, ..EvictorConfig::new(2) });
    let (first, wants) = asked(&evictor.say(Address::Allocator, op(1), make_room(&[6, 1])));
    assert_eq!(wants, [3, 1]);
    let (second, wants) = asked(&evictor.say(Address::Index, first, evicted(&[3, 2], 1, 0)));
    assert_eq!((wants, first == second), (vec![3, 0], false));
    let sent = evictor.say(Address::Index, second, evicted(&[3, 0], 0, 0));
    assert_eq!(sent, [(op(1), room(&[6, 2], 0))]);
    let [span] = evictor.take_spans().try_into().expect("one span");
    assert_eq!((span.name, span.op), ("evict", op(1)));
    for (name, fact) in [
        ("evict.wanted_pages", Fact::Counts(vec![6, 1])),
        ("evict.freed_pages", Fact::Counts(vec![6, 2])),
        ("evict.batches", Fact::Count(2)),
        ("evict.met", Fact::Flag(true)),
    ] {
        assert!(span.facts.contains(&(name, fact)), "{name}: {span:?}");
    }
    assert_eq!(evictor.mark(op(1), "evict.rounds"), Some(2));
    assert_eq!(evictor.mark(op(1), "evict.collateral"), Some(1));
    assert_eq!(evictor.counter("evictor.freed_pages"), 8);
}

#[test]
fn a_round_that_frees_nothing_and_a_bound_both_end_the_op() {
    let mut evictor = script(EvictorConfig { rounds_max: 2, ..EvictorConfig::new(1) });
    for (n, answers, freed, pending) in [
        (1, vec![evicted(&[0], 0, 0)], 0, 0),
        (2, vec![evicted(&[0], 0, 3)], 0, 3),
        (3, vec![evicted(&[2], 0, 6)], 2, 6),
        (4, vec![evicted(&[1], 0, 0), evicted(&[1], 0, 0)], 2, 0),
        (5, vec![evicted(&[], 0, 0)], 0, 0),
    ] {
        let mut sent = evictor.say(Address::Allocator, op(n), make_room(&[8]));
        for answer in answers {
            sent = evictor.say(Address::Index, asked(&sent).0, answer);
        }
        assert_eq!(sent, [(op(n), room(&[freed], pending))], "op {n}");
    }
}

#[test]
fn every_message_twice_gives_the_same_answer_once_more() {
    let mut evictor = script(EvictorConfig::new(1));
    let (batch, _) = asked(&evictor.say(Address::Allocator, op(1), make_room(&[1])));
    assert_eq!(evictor.say(Address::Allocator, op(1), make_room(&[1])), []);
    let made = evictor.say(Address::Index, batch, evicted(&[1], 0, 0));
    assert_eq!(evictor.say(Address::Index, batch, evicted(&[1], 0, 0)), []);
    assert_eq!(evictor.say(Address::Allocator, op(1), make_room(&[1])), made);
    assert_eq!((evictor.counter("evictor.duplicates"), evictor.counter("evictor.late")), (2, 1));
}

#[test]
fn a_lost_batch_is_asked_for_again_and_an_old_answer_is_forgotten() {
    let mut evictor = script(EvictorConfig::new(1));
    let (batch, wants) = asked(&evictor.say(Address::Allocator, op(1), make_room(&[1])));
    assert_eq!(asked(&evictor.wake("repeat")), (batch, wants.clone()));
    assert_eq!(asked(&evictor.resync(Address::Index)), (batch, wants));
    assert_eq!(evictor.resync(Address::Allocator), []);
    evictor.say(Address::Index, batch, evicted(&[1], 0, 0));
    evictor.wake("ended op");
    assert_eq!((evictor.counter("evictor.ended"), evictor.machine.next_deadline()), (0, None));
}

#[test]
fn at_the_bound_and_for_what_is_malformed_nothing_is_freed() {
    let mut evictor = script(EvictorConfig { ops_max: 1, ..EvictorConfig::new(2) });
    evictor.say(Address::Allocator, op(1), make_room(&[1, 0]));
    assert_eq!(evictor.say(Address::Allocator, op(2), make_room(&[1, 0])), [(op(2), room(&[0, 0], 0))]);
    assert_eq!(evictor.say(Address::Allocator, op(3), make_room(&[1])), [(op(3), room(&[0, 0], 0))]);
    assert_eq!(evictor.say(Address::Engine, op(4), make_room(&[1, 0])), []);
    assert_eq!(evictor.say(Address::Engine, op(5), MakeRoom { tier: 3, wants: vec![1, 0] }), []);
    assert_eq!(evictor.refusals(), ["Busy", "Malformed"]);
    assert_eq!(evictor.counter("evictor.refused"), 4);
}

#[test]
fn an_operator_is_told_what_was_given_up_and_nobody_else_may_ask() {
    let mut evictor = script(EvictorConfig::new(1));
    let (batch, _) = asked(&evictor.say(Address::Engine, op(1), make_room(&[2])));
    evictor.say(Address::Index, batch, evicted(&[2], 0, 0));
    assert_eq!(evictor.replies, [Answer::from(Flushed { l1: 0, l2: 2, l1_kept: 0, l2_kept: 0, in_flight: 0 })]);
    assert_eq!(evictor.say(Address::Writer, op(2), make_room(&[2])), []);
    assert_eq!(evictor.say(Address::Writer, batch, evicted(&[2], 0, 0)), []);
    assert_eq!(evictor.counter("evictor.foreign"), 2);
}

#[test]
fn a_batch_takes_from_the_lanes_that_want_most() {
    for (wants, pages_max, batch) in [
        (vec![1, 2, 3], 6, vec![1, 2, 3]),
        (vec![1, 2, 3], 5, vec![1, 2, 2]),
        (vec![9, 2, 0], 4, vec![2, 2, 0]),
        (vec![9, 9, 9], 4, vec![1, 1, 2]),
        (vec![u32::MAX, u32::MAX], 1, vec![0, 1]),
    ] {
        let round = Round::new(Time::ZERO, Requester::Allocator, make_room(&wants), None);
        assert_eq!(round.next_batch(pages_max), batch, "{wants:?} in {pages_max}");
    }
}
