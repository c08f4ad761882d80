//! Room in L2: backups that wait for it, and write-backs that make it in L1.

use super::*;

fn write_back(l2_slots: u32) -> Script {
    let config = IndexConfig {
        compute_tokens_min: 0,
        write_policy: crate::prefix_index::WritePolicy::WriteBack,
        ..IndexConfig::new(manifest(1), 65, l2_slots)
    };
    Script::of(config)
}

fn computed(script: &mut Script, path: &[Key], number: u64) {
    let session = script.open(path);
    script.compute(session, number, 0..path.len() as u32, true);
    script.close(session, number);
}

#[test]
fn a_refused_backup_is_tried_again_once_when_its_lane_gains_room_and_not_before() {
    let mut script = Script::serving(4);
    script.cache(&keys(1, 4), 1, 0);
    let reader = script.open(&keys(1, 4));
    let other = keys(2, 1);
    let writer = script.open(&other);
    script.compute(writer, 2, 0..1, true);
    let refuse = |script: &mut Script| {
        let backup = script.op_of("backup");
        script.news(Address::Writer, backup, BackupRefused { short: vec![1] }.into());
    };
    refuse(&mut script);
    let tries = script.count_of("backup");
    for number in 3..50 {
        script.ask(Step { number, entries: vec![], engine: ENGINE, all_layers_at_end: false });
        script.pass(number);
        script.pass_ms(100);
    }
    assert_eq!(script.count_of("backup"), tries, "nothing was gained");
    script.close(reader, 0);
    assert_eq!(script.count_of("backup"), tries + 1, "a page may leave that could not");
    refuse(&mut script);
    script.pass_ms(10_000);
    assert_eq!(script.count_of("backup"), tries + 1);
    script.evict(2, 1);
    assert_eq!(script.count_of("backup"), tries + 2, "a page is free");
    assert_eq!((script.counter("index.backups_refused"), script.counter("index.parked_backups")), (2, 0));
}

#[test]
fn a_write_back_copies_what_its_pages_stand_on_and_empties_what_is_wanted() {
    let mut script = write_back(8);
    let path = keys(1, 4);
    computed(&mut script, &path, 1);
    assert_eq!(script.evict(1, 1), Evicted { freed: vec![0], collateral: 0, pending: 1 });
    assert_eq!(script.backup().keys.0, path, "no page stands in L2 without those before it");
    let backup = script.op_of("backup");
    assert_eq!(script.evict(1, 1).pending, 0, "it is on its way");
    script.back_up(backup, 0..4);
    assert_eq!((script.counter("index.cached_l1"), script.counter("index.cached_l2")), (3, 4));
    assert_eq!(script.evict(1, 3).freed, [3], "their copies are there");
    assert_eq!(script.probe(&path), Probed { l1: 0, l2: 4 });
}

#[test]
fn pages_that_the_host_has_no_room_for_leave_without_a_copy() {
    let mut script = write_back(2);
    let path = keys(1, 4);
    computed(&mut script, &path, 1);
    assert_eq!(script.evict(1, 3).pending, 3);
    let backup = script.op_of("backup");
    script.news(Address::Writer, backup, BackupRefused { short: vec![2] }.into());
    script.take_frees();
    assert_eq!(script.probe(&path), Probed { l1: 1, l2: 0 });
    assert_eq!((script.freed().len(), script.counter("index.in_flight")), (3, 0));
}

#[test]
fn a_write_back_that_is_refused_beside_others_stays_until_they_are_done() {
    let mut script = write_back(2);
    computed(&mut script, &keys(1, 2), 1);
    computed(&mut script, &keys(2, 2), 2);
    assert_eq!(script.evict(1, 4).pending, 4);
    let ops: Vec<OpId> = script.sent.iter().filter(|(_, m)| m.encode_body().0 == "backup").map(|s| s.0).collect();
    script.news(Address::Writer, ops[1], BackupRefused { short: vec![2] }.into());
    assert_eq!(script.counter("index.cached_l1"), 4);
    script.back_up(ops[0], 0..2);
    script.take_frees();
    assert_eq!((script.counter("index.cached_l1"), script.counter("index.cached_l2")), (2, 2));
}
