//! Damaged records: they end a match, and what stands behind them leaves.

use super::*;

const FLUSH: Flush = Flush { tier: 0, salt: Vec::new(), prefix: Keys(Vec::new()), quarantined: false };

fn damage(script: &mut Script, slot: u32) {
    let damaged = Damaged { rank: Rank(0), slot, component: "draft.kv".to_owned() };
    script.news_from_rank(OpId::new(RANK, u64::from(slot)), damaged.into());
}

#[test]
fn a_damaged_record_ends_the_match_and_is_freed_by_a_flush_of_the_quarantined() {
    let mut script = Script::serving(8);
    let path = keys(1, 4);
    script.cache(&path, 1, 0);
    script.evict(1, 4);
    damage(&mut script, 2);
    assert_eq!(script.probe(&path), Probed { l1: 0, l2: 2 });
    let open = script.ask(open(&path, 256));
    assert_eq!(script.counter("index.cut_short"), 1);
    let load = script.op_of("load");
    script.news(Address::Loader, load, LoadMissed { short: vec![2] }.into());
    let reserve = script.op_of("reserve");
    script.news(Address::Allocator, reserve, Short { short: vec![4] }.into());
    assert!(matches!(script.refusal(open), Refusal::OutOfPages(_)));
    let pin = script.ask(Pin { salt: root(), keys: Keys(path.clone()), on: true });
    let missing = ComponentMissing { key: path[2], component: "draft.kv".to_owned() };
    assert_eq!(script.refusal(pin), &missing.into());
    assert_eq!(script.counter("index.cached_l2"), 3, "what stood behind it is gone");
    let flushed = script.flush(Flush { quarantined: true, ..FLUSH });
    assert_eq!((flushed.l2, flushed.l2_kept), (1, 0));
    assert_eq!(script.probe(&path), Probed { l1: 0, l2: 2 });
}

#[test]
fn records_in_use_behind_a_damaged_one_leave_when_nobody_uses_them() {
    let mut script = Script::serving(8);
    let path = keys(1, 3);
    script.cache(&path, 1, 0);
    let reader = script.open(&path);
    damage(&mut script, 0);
    assert_eq!(script.counter("index.cached_l2"), 3, "an open session pins both copies of its path");
    script.close(reader, 0);
    assert_eq!(script.counter("index.cached_l2"), 1);
    script.evict(1, 3);
    assert_eq!(script.probe(&path), Probed { l1: 0, l2: 0 });
}

#[test]
fn nothing_is_copied_to_stand_behind_a_damaged_record() {
    let mut script = Script::serving(8);
    let path = keys(1, 2);
    script.cache(&path[..1], 1, 0);
    damage(&mut script, 0);
    let backups = script.count_of("backup");
    let session = script.open(&path);
    script.compute(session, 2, 1..2, true);
    assert_eq!(script.close(session, 2).l2_pages, 1);
    assert_eq!(script.count_of("backup"), backups);
    script.flush(Flush { tier: 2, quarantined: true, ..FLUSH });
    let again = script.open(&path);
    script.close(again, 2);
    assert_eq!(script.count_of("backup"), backups + 1, "both pages are missing now");
    assert_eq!(script.backup().keys.0, path);
}

#[test]
fn whatever_stands_behind_a_damaged_record_leaves_l1_without_a_copy() {
    let config = IndexConfig {
        compute_tokens_min: 0,
        write_policy: crate::prefix_index::WritePolicy::WriteBack,
        ..IndexConfig::new(manifest(1), 65, 8)
    };
    let mut script = Script::of(config);
    let path = keys(1, 3);
    let first = script.open(&path[..1]);
    script.compute(first, 1, 0..1, true);
    script.close(first, 1);
    script.evict(1, 1);
    let backup = script.op_of("backup");
    script.back_up(backup, 0..1);
    script.take_frees();
    assert_eq!(script.probe(&path), Probed { l1: 0, l2: 1 });
    let second = script.ask(open(&path, 192));
    let load = script.op_of("load");
    let pages = Pages(vec![PageId(9), PageId(10), PageId(11)]);
    script.news(Address::Loader, load, LoadStarted { pages, ring_slot: 0, base: 0 }.into());
    script.news(Address::Loader, load, LoadEnded { ok: true }.into());
    script.compute(second, 2, 1..3, true);
    script.close(second, 2);
    damage(&mut script, 0);
    let backups = script.count_of("backup");
    assert_eq!(script.evict(1, 3).freed, [3], "the tail is two pages behind the record");
    assert_eq!((script.count_of("backup"), script.counter("index.cached_l1")), (backups, 0));
}

#[test]
fn a_flush_says_what_it_kept_of_what_it_was_asked_for() {
    let mut script = Script::serving(8);
    let (one, two) = (keys(1, 2), keys(2, 3));
    script.cache(&one, 1, 0);
    script.cache(&two, 2, 2);
    let reader = script.open(&two);
    let flushed = script.flush(Flush { prefix: Keys(one[..1].to_vec()), ..FLUSH });
    assert_eq!(flushed, Flushed { l1: 2, l2: 2, l1_kept: 0, l2_kept: 0, in_flight: 1 });
    let flushed = script.flush(Flush { tier: 1, ..FLUSH });
    assert_eq!((flushed.l1, flushed.l1_kept, flushed.l2, flushed.l2_kept), (0, 3, 0, 0));
    let elsewhere = Flush { salt: vec![Key([1; 16])], ..FLUSH };
    assert_eq!(script.flush(elsewhere).l1_kept, 0);
    script.close(reader, 2);
    let flushed = script.flush(FLUSH);
    assert_eq!(flushed, Flushed { l1: 3, l2: 3, l1_kept: 0, l2_kept: 0, in_flight: 0 });
    assert!(script.index.tree().is_empty());
}
