//! Records that have left L2: their seals are taken away, and no restart brings them back.

use super::*;

const FLUSH: Flush = Flush { tier: 0, salt: Vec::new(), prefix: Keys(Vec::new()), quarantined: false };
const NEXT_RANK: Incarnation = Incarnation([0xa1; 16]);

fn row(path: &[Key], at: usize, slot: u32) -> InventoryRow {
    let parent = at.checked_sub(1).map_or(root(), |before| path[before]);
    InventoryRow { slot, key: path[at], parent, salt: root(), position: at as u32, generation: 1 }
}

/// The rank in its next life shows these rows.
fn show(script: &mut Script, rows: Vec<InventoryRow>) {
    let part = InventoryPart { cursor: 0, rows, next: u32::MAX };
    script.deliver(Address::Rank(Rank(0)), NEXT_RANK, OpId::default(), IndexIn::News(part.into()));
}

#[test]
fn an_eviction_has_its_seals_taken_away_and_waits_for_no_rank() {
    let mut script = Script::serving(8);
    let path = keys(1, 2);
    script.cache(&path, 1, 4);
    script.sent.clear();
    assert_eq!(script.evict(2, 1).freed, [1], "answered when the allocator has the page");
    let [(Rank(0), op, unseal)] = &script.unseals()[..] else { panic!("{:?}", script.unseals()) };
    assert_eq!((&unseal.slots.0[..], &unseal.keys.0[..]), (&[HostSlot(5)][..], &path[1..]));
    let op = *op;
    script.pass_ms(300);
    assert_eq!(script.count_of("unseal"), 2, "said again until it is answered");
    script.news_from_rank(op, OpSettled {}.into());
    script.sent.clear();
    script.pass_ms(5_000);
    assert_eq!(script.count_of("unseal"), 0);
}

#[test]
fn a_flush_is_answered_when_no_seal_is_left_of_what_has_left_before_either() {
    let mut script = Script::serving(8);
    let path = keys(1, 2);
    script.cache(&path, 1, 4);
    script.evict(2, 1);
    let op = script.ask(FLUSH);
    script.take_frees();
    let unseals: Vec<OpId> = script.unseals().into_iter().map(|(_, op, _)| op).collect();
    assert_eq!(unseals.len(), 2, "one of the eviction, one of the flush");
    let is_answered = |script: &Script| script.answers.iter().any(|(of, _)| *of == op);
    script.news_from_rank(unseals[1], OpSettled {}.into());
    assert!(!is_answered(&script), "the record that was evicted may still come back");
    script.news_from_rank(unseals[0], OpSettled {}.into());
    assert_eq!(*script.answer(op), Flushed { l1: 2, l2: 1, l1_kept: 0, l2_kept: 0, in_flight: 0 }.into());
}

#[test]
fn a_rank_that_comes_back_does_not_bring_what_has_left() {
    let mut script = Script::serving(8);
    let (stays, leaves) = (keys(1, 1), keys(2, 1));
    script.cache(&leaves, 1, 4);
    script.cache(&stays, 2, 5);
    script.evict(2, 1);
    script.hello(NEXT_RANK, 8);
    script.sent.clear();
    show(&mut script, vec![row(&leaves, 0, 4), row(&stays, 0, 5)]);
    assert_eq!(script.count_of("restore"), 0, "nothing of it is new");
    let tree = script.index.tree();
    let in_l2 = |path: &[Key]| tree.find(&path[0]).is_some_and(|node| tree.page(node).l2.is_some());
    assert_eq!((in_l2(&leaves), in_l2(&stays)), (false, true));
    script.pass_ms(5_000);
    assert!(script.count_of("unseal") > 0, "the next life is asked, too");
}

#[test]
fn records_that_cannot_stand_in_the_tree_lose_their_seals() {
    let mut script = Script::serving(8);
    let path = keys(1, 2);
    script.hello(NEXT_RANK, 8);
    script.sent.clear();
    show(&mut script, vec![row(&path, 1, 6)]);
    let restore = script.op_of("restore");
    script.news(Address::Allocator, restore, Restored { part: 0 }.into());
    let [(Rank(0), _, unseal)] = &script.unseals()[..] else { panic!("{:?}", script.unseals()) };
    assert_eq!((&unseal.slots.0[..], &unseal.keys.0[..]), (&[HostSlot(6)][..], &path[1..]), "its parent is not there");
}
