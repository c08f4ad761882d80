//! Conformance of a rank: real shared memory, an engine that writes pages layer by layer, messages as bytes.

#[path = "rank_rig/damaged.rs"]
mod damaged;
mod rank_rig;
#[path = "rank_rig/refusals.rs"]
mod refusals;
#[path = "rank_rig/spans.rs"]
mod spans;
#[path = "rank_rig/transfers.rs"]
mod transfers;
#[path = "rank_rig/who_sends.rs"]
mod who_sends;

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use hicached::rank::{CopyThreads, PoolError, RankError};
use hicached_actors::calls::draw;
use hicached_actors::protocol::*;
use hicached_client::shm::{LoadState, Track as Word};
use hicached_kernels::layout::Component;

use rank_rig::*;

/// Waits until `done` of a repeated message says so.
fn progress(rig: &mut Rig, op: OpId, msg: &BackupCopy, done: impl Fn(&CopyAck) -> bool) {
    let until = Instant::now() + LONG;
    loop {
        rig.send_op(Address::Writer, op, RankIn::BackupCopy(msg.clone()));
        let ack = rig.hear_ack(op);
        assert!(ack.failed.is_empty());
        if done(&ack) {
            return;
        }
        assert!(Instant::now() < until, "no progress: {ack:?}");
        std::thread::yield_now();
    }
}

fn bit(ack: &CopyAck, bit: usize) -> bool {
    ack.layers.0[bit / 8] >> (bit % 8) & 1 == 1
}

fn threads() -> Arc<CopyThreads> {
    CopyThreads::start(2).unwrap()
}

/// F06: the write of layer 7 of page 2 is late; counted from 1 there, from 0 here.
#[test]
fn f06_backup_against_running_compute() {
    let mut rig = Rig::new();
    let (pages, slots, tags) = ([3, 4, 9], [7, 2, 3], [70, 20, 30]);
    let msg = rig.backup_msg(1, &pages, &slots);
    let (release, released) = channel::<()>();
    let engine = rig.engine.clone();
    let compute = std::thread::spawn(move || {
        for (word, layers) in [(Word::Target, TARGET_LAYERS), (Word::Draft, DRAFT_LAYERS)] {
            for layer in 0..layers {
                for at in 0..3 {
                    if (word, layer, at) == (Word::Target, 6, 1) {
                        released.recv().unwrap();
                    }
                    engine.write_layer(word, layer, pages[at], tags[at]);
                }
                engine.announce(word, 1, layer + 1);
            }
        }
    });
    let op = rig.send(Address::Writer, RankIn::BackupCopy(msg.clone()));
    progress(&mut rig, op, &msg, |ack| (0..6).all(|layer| bit(ack, layer)));
    progress(&mut rig, op, &msg, |ack| {
        let kv_late = (6..TARGET_LAYERS as usize).any(|layer| bit(ack, layer));
        assert!(!kv_late && !bit(ack, 24), "neither a later layer nor the draft was copied");
        true
    });
    for slot in slots {
        for component in [Component::TargetKv, Component::TargetIndex] {
            assert!(rig.record_layer(slot, component, 6).iter().all(|byte| *byte == POISON));
        }
    }
    release.send(()).unwrap();
    compute.join().unwrap();
    let ack = rig.hear_ack(op);
    assert!(ack.complete && ack.failed.is_empty() && (0..26).all(|at| bit(&ack, at)));
    for (slot, tag) in slots.into_iter().zip(tags) {
        rig.assert_record(slot, tag);
    }
    assert_eq!(rig.sealed_slots(), [0; 0], "complete is not committed");
    f06_repeats(&mut rig);
}

/// 200 rounds of backup beside compute, loss of L1, load back into other pages; delays from one seed.
fn f06_repeats(rig: &mut Rig) {
    let mut chance = 0x6;
    for round in 2..202 {
        let mut deal = |of: u32, from: u32| {
            let mut all: Vec<u32> = (from..of).collect();
            (0..3).map(|_| all.swap_remove(draw(&mut chance) as usize % all.len())).collect::<Vec<u32>>()
        };
        let (pages, slots, back) = (deal(L1_PAGES, 1), deal(SLOTS, 0), deal(L1_PAGES, 1));
        let written: Vec<(u32, u64)> = pages.iter().map(|page| (*page, round * 100 + u64::from(*page))).collect();
        let (engine, work, mut seed) = (rig.engine.clone(), written.clone(), draw(&mut chance));
        let compute = std::thread::spawn(move || {
            engine.compute(round, &work, |_, _| {
                let pause = Duration::from_nanos(draw(&mut seed) % 60_000);
                let until = Instant::now() + pause;
                while Instant::now() < until {
                    std::thread::yield_now();
                }
            });
        });
        let msg = rig.backup_msg(round, &pages, &slots);
        let op = rig.send(Address::Writer, RankIn::BackupCopy(msg));
        assert!(rig.hear_ack(op).complete, "round {round}");
        compute.join().unwrap();
        slots.iter().zip(&written).for_each(|(slot, (_, tag))| rig.assert_record(*slot, *tag));

        rig.engine.fill(POISON);
        let load = rig.load_msg(&back, &slots, 5, round);
        let end = load.base + LAYERS;
        let op = rig.send(Address::Loader, RankIn::LoadCopy(load));
        assert!(rig.hear_ack(op).complete, "round {round}");
        assert_eq!(rig.host.machine().pool().ring().state(5, round), LoadState::Done);
        assert_eq!(rig.host.machine().pool().ring().value(5), end);
        back.iter().zip(&written).for_each(|(page, (_, tag))| rig.engine.assert_page(*page, *tag));
    }
    let record: u64 = manifest(1).record_bytes();
    assert_eq!(rig.counter("rank.bytes_down"), 201 * 3 * record);
    assert_eq!(rig.counter("rank.bytes_up"), 200 * 3 * record);
    let bytes: u64 = rig.marks.iter().filter(|(_, name, _)| *name == "load.bytes").map(|(.., value)| value).sum();
    assert_eq!(bytes, 200 * 3 * record);
}

#[test]
fn a_slot_loses_its_seal_before_its_first_new_byte_and_gets_one_on_the_verdict_only() {
    let mut rig = Rig::new();
    rig.store(&[1, 2], &[4, 5]);
    assert_eq!(rig.sealed_slots(), [4, 5]);
    let row = rig.host.machine().pool().table().sealed(5).unwrap();
    assert_eq!((row.key, row.parent, row.position), (Key([5; 16]), Key([4; 16]), 6));

    let msg = rig.backup_msg(9, &[3, 6], &[5, 0]);
    let op = rig.send(Address::Writer, RankIn::BackupCopy(msg));
    assert_eq!(rig.sealed_slots(), [4], "reserved again, and not one byte is written yet");
    rig.assert_record(5, 5);
    assert!(
        matches!(rig.seal(op, &[5, 0], &[1, 1]), Said::Writer(WriterIn::Rejected(_))),
        "a running op has no verdict"
    );
    rig.engine.compute(9, &[(3, 333), (6, 666)], |_, _| ());
    assert!(rig.hear_ack(op).complete);
    assert_eq!(rig.sealed_slots(), [4], "complete is not committed");
    assert!(matches!(rig.seal(op, &[5, 1], &[1, 1]), Said::Writer(WriterIn::Rejected(_))), "slot 1 is not of the op");
    assert_eq!(rig.sealed_slots(), [4], "a refused verdict seals nothing");
    let sealed = Said::Writer(WriterIn::Sealed(Sealed { rank: Rank(0) }));
    assert_eq!(rig.seal(op, &[5, 0], &[0, 1]), sealed);
    assert_eq!(rig.sealed_slots(), [0, 4], "one kept, one forfeited");
    assert_eq!(rig.seal(op, &[5, 0], &[0, 1]), sealed, "a repeat is answered from the state");
    let row = rig.host.machine().pool().table().sealed(0).unwrap();
    assert_eq!((row.key, row.parent, row.position, row.salt), (Key([0; 16]), Key([5; 16]), 6, Key([0x5A; 16])));
}

#[test]
fn a_late_verdict_does_not_touch_a_later_use_of_its_slot() {
    let mut rig = Rig::new();
    let msg = rig.backup_msg(0, &[1], &[4]);
    let old = rig.send(Address::Writer, RankIn::BackupCopy(msg));
    assert!(rig.hear_ack(old).complete);
    rig.store(&[2], &[4]);
    assert!(matches!(rig.seal(old, &[4], &[1]), Said::Writer(WriterIn::Rejected(_))));
    assert!(matches!(rig.seal(old, &[4], &[0]), Said::Writer(WriterIn::Sealed(_))));
    assert_eq!(rig.sealed_slots(), [4]);
    assert_eq!(rig.host.machine().pool().table().sealed(4).unwrap().generation, 2);
}

#[test]
fn after_a_kill_exactly_the_sealed_rows_are_left() {
    let scratch = Arc::new(Scratch::new());
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "rank_to_be_killed", "--ignored", "--nocapture"])
        .env("RANK_SCRATCH", &scratch.0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("rank is ready")));
    let Err(RankError::Pool(PoolError::InUse { .. })) = Rig::unadopted(threads(), scratch.clone(), |_| ()) else {
        panic!("taken over from a living process")
    };
    child.kill().unwrap();
    child.wait().unwrap();

    let mismatch = Rig::unadopted(threads(), scratch.clone(), |setup| setup.host_slots = SLOTS + 1).map(drop);
    let Err(RankError::Pool(PoolError::Mismatch { field: "slots", file, mine, .. })) = mismatch else {
        panic!("{mismatch:?}")
    };
    assert_eq!((file.as_str(), mine.as_str()), ("11", "12"));

    let mut rig = Rig::unadopted(threads(), scratch, |_| ()).unwrap();
    rig.send_as(CONTROL, Address::Index, OpId::default(), RankIn::Adopt(Adopt { lease_ms: LEASE_MS }));
    let mut found = Vec::new();
    let mut cursor = 0;
    while cursor != u32::MAX {
        let op = rig.send(Address::Index, RankIn::Inventory(Inventory { cursor }));
        let Said::Index(IndexNews::InventoryPart(part)) = rig.hear(op) else { panic!("no inventory") };
        assert_eq!(part.cursor, cursor);
        cursor = part.next;
        found.extend(part.rows.into_iter().map(|row| (row.slot, row.key, row.parent, row.position, row.generation)));
    }
    let key = |byte: u8| Key([byte; 16]);
    assert_eq!(found, [(1, key(1), key(0xEE), 5, 1), (2, key(2), key(1), 6, 1)]);
    rig.assert_record(1, 1);
    rig.assert_record(2, 2);
    rig.attach();
    rig.engine.fill(POISON);
    let load = rig.load_msg(&[8, 9], &[1, 2], 0, 1);
    let op = rig.send(Address::Loader, RankIn::LoadCopy(load));
    assert!(rig.hear_ack(op).complete);
    rig.engine.assert_page(9, 2);
}

#[test]
fn a_record_that_has_left_l2_is_not_in_the_next_inventory_and_another_in_its_slot_is() {
    let mut rig = Rig::new();
    rig.store(&[1, 2, 3], &[1, 2, 3]);
    let key = |byte: u8| Key([byte; 16]);
    let (slots, keys) = (Slots(vec![HostSlot(1), HostSlot(3)]), Keys(vec![key(1), key(77)]));
    let unseal = RankIn::Unseal(Unseal { slots, keys });
    for _ in 0..2 {
        let op = rig.send(Address::Index, unseal.clone());
        let Said::Index(IndexNews::OpSettled(_)) = rig.hear(op) else { panic!("no answer") };
    }
    let op = rig.send(Address::Index, RankIn::Inventory(Inventory { cursor: 0 }));
    let Said::Index(IndexNews::InventoryPart(part)) = rig.hear(op) else { panic!("no inventory") };
    assert_eq!(part.rows.iter().map(|row| row.slot).collect::<Vec<_>>(), [2, 3]);
    for (slots, keys, field) in [(vec![HostSlot(SLOTS)], vec![key(1)], "slots"), (vec![HostSlot(2)], vec![], "keys")] {
        let op = rig.send(Address::Index, RankIn::Unseal(Unseal { slots: Slots(slots), keys: Keys(keys) }));
        let Said::Index(IndexNews::Rejected(rejected)) = rig.hear(op) else { panic!("{field} is taken") };
        assert!(matches!(&rejected.refusal, Refusal::Malformed(malformed) if malformed.field == field));
    }
}

/// Two sealed slots, one complete without verdict, one overwritten in part, one sealed and reserved again.
#[test]
#[ignore = "the other process of a test that kills it"]
fn rank_to_be_killed() {
    let Some(path) = std::env::var_os("RANK_SCRATCH") else {
        return println!("skipped: no test waits for this process");
    };
    let mut rig = Rig::on(threads(), Arc::new(Scratch(path.into())), |_| ());
    rig.store(&[1, 2], &[1, 2]);
    rig.store(&[3], &[3]);
    let unjudged = rig.backup_msg(0, &[4], &[4]);
    let op = rig.send(Address::Writer, RankIn::BackupCopy(unjudged));
    assert!(rig.hear_ack(op).complete);
    let half = rig.backup_msg(7, &[5, 6], &[3, 6]);
    let op = rig.send(Address::Writer, RankIn::BackupCopy(half.clone()));
    rig.engine.announce(Word::Target, 7, 4);
    progress(&mut rig, op, &half, |ack| bit(ack, 3));
    println!("rank is ready");
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

#[test]
fn a_stop_is_answered_when_nothing_copies_any_more_and_holds_for_a_try_that_comes_later() {
    let mut rig = Rig::new();
    let msg = rig.backup_msg(3, &[1, 2], &[0, 1]);
    let op = rig.send(Address::Writer, RankIn::BackupCopy(msg.clone()));
    rig.engine.announce(Word::Target, 3, 7);
    progress(&mut rig, op, &msg, |ack| (0..7).all(|layer| bit(ack, layer)));
    rig.send_op(Address::Writer, op, RankIn::Stop(Stop { attempt: 1 }));
    let ack = rig.hear_ack(op);
    assert!(!ack.complete && matches!(ack.failed[..], [Refusal::WrongState(_)]) && bit(&ack, 6) && !bit(&ack, 7));
    rig.fill_pool(POISON);
    rig.engine.compute(3, &[(1, 1), (2, 2)], |_, _| ());
    rig.store(&[3], &[1]);
    assert!(rig.record_layer(0, Component::TargetKv, 9).iter().all(|byte| *byte == POISON), "nothing writes any more");
    rig.send_op(Address::Writer, op, RankIn::BackupCopy(msg.clone()));
    assert_eq!(rig.hear_ack(op), ack, "a repeat is answered from the state");
    rig.send_op(Address::Writer, op, RankIn::BackupCopy(BackupCopy { attempt: 2, step: 0, ..msg.clone() }));
    assert!(rig.hear_ack(op).failed.is_empty(), "a failed try may be followed by another");

    for (from, stopped) in [(Address::Writer, rig.draw()), (Address::Loader, rig.draw())] {
        rig.send_op(from, stopped, RankIn::Stop(Stop { attempt: 1 }));
        assert!(!rig.hear_ack(stopped).failed.is_empty());
        let late = match from {
            Address::Loader => RankIn::LoadCopy(rig.load_msg(&[5], &[6], 9, 4)),
            _ => RankIn::BackupCopy(rig.backup_msg(0, &[5], &[6])),
        };
        rig.send_op(from, stopped, late);
        assert!(!rig.hear_ack(stopped).failed.is_empty(), "overtaken by its stop");
    }
    let ring = rig.host.machine().pool().ring().clone();
    assert_eq!((ring.state(9, 4), ring.value(9)), (LoadState::Failed, 4 * (LAYERS + 1) + LAYERS), "no stream waits on");
}

#[test]
fn a_load_that_the_engine_gave_up_is_reported_failed_and_a_load_without_pages_is_done_at_once() {
    let mut rig = Rig::new();
    rig.store(&[1], &[3]);
    let ring = rig.host.machine().pool().ring().clone();
    let load = rig.load_msg(&[2], &[3], 0, 6);
    ring.fail(0, 6, load.base + LAYERS).unwrap();
    let before = rig.engine.all_bytes();
    let op = rig.send(Address::Loader, RankIn::LoadCopy(load));
    let ack = rig.hear_ack(op);
    assert!(!ack.complete && matches!(ack.failed[..], [Refusal::WrongState(_)]));
    assert!(before == rig.engine.all_bytes());

    let again = rig.load_msg(&[2], &[3], 0, 6);
    let op = rig.send(Address::Loader, RankIn::LoadCopy(again));
    assert!(!rig.hear_ack(op).failed.is_empty(), "a use is begun once");

    let nothing = rig.load_msg(&[], &[], 0, 7);
    let op = rig.send(Address::Loader, RankIn::LoadCopy(nothing));
    assert!(rig.hear_ack(op).complete);
    assert_eq!((ring.state(0, 7), ring.value(0)), (LoadState::Done, 7 * (LAYERS + 1) + LAYERS));
}

#[test]
fn a_load_of_an_older_life_ends_its_slot_and_is_answered_however_often_it_is_said() {
    let mut rig = Rig::new();
    rig.store(&[1], &[3]);
    let ring = rig.host.machine().pool().ring().clone();
    let before = rig.engine.all_bytes();
    let load = LoadCopy { lives: vec![Incarnation([9; 16])], ..rig.load_msg(&[2], &[3], 0, 6) };
    let op = rig.send(Address::Loader, RankIn::LoadCopy(load.clone()));
    assert!(matches!(rig.hear_ack(op).failed[..], [Refusal::WrongState(_)]));
    assert_eq!((ring.state(0, 6), ring.value(0)), (LoadState::Failed, load.base + LAYERS));
    rig.send_op(Address::Loader, op, RankIn::LoadCopy(load));
    assert!(matches!(rig.hear_ack(op).failed[..], [Refusal::WrongState(_)]));
    assert!(before == rig.engine.all_bytes());
}

#[test]
fn a_watched_step_is_answered_when_both_words_have_passed_it() {
    let mut rig = Rig::new();
    let watch = |rig: &mut Rig, step| rig.send(Address::Index, RankIn::Watch(Watch { step }));
    let (first, second) = (watch(&mut rig, 1), watch(&mut rig, 2));
    rig.engine.announce(Word::Target, 1, TARGET_LAYERS);
    let ready = LayerReady { step: 1, draft: true, layers_done: 1 };
    let stranger = rig.draw();
    rig.send_as(Incarnation([0xE9; 16]), Address::Engine, stranger, ready.clone().into());
    assert!(matches!(rig.hear(stranger), Said::Answer(Answer::Refused(Refusal::Mismatch(_)))));
    assert!(rig.heard(first).is_empty());
    for (msg, taken) in [(LayerReady { layers_done: 2, ..ready.clone() }, false), (ready, true)] {
        let op = rig.draw();
        rig.send_as(Incarnation([0xE0; 16]), Address::Engine, op, msg.into());
        assert_eq!(matches!(rig.hear(op), Said::Answer(Answer::Done(_))), taken);
    }
    let passed = |step| Said::Index(Passed { step, engine: Incarnation([0xE0; 16]) }.into());
    assert_eq!(rig.hear(first), passed(1));
    assert!(rig.heard(second).is_empty());
    rig.engine.compute(3, &[], |_, _| ());
    assert_eq!(rig.hear(second), passed(3), "words may jump");
    let late = watch(&mut rig, 3);
    assert_eq!(rig.heard(late), [passed(3)], "at once");
}

#[test]
fn a_rank_obeys_one_control_incarnation_and_a_successor_waits_for_the_lease_and_the_old_copies() {
    let mut rig = Rig::new();
    let rival = Incarnation([0xC1; 16]);
    let hello = |said: Said| match said {
        Said::Index(IndexNews::RankHello(hello)) => (hello.adopted_by, hello.old_ops),
        other => panic!("{other:?}"),
    };
    let backup = rig.backup_msg(5, &[1], &[1]);
    let old = rig.send(Address::Writer, RankIn::BackupCopy(backup.clone()));
    let (adopt, op) = (RankIn::Adopt(Adopt { lease_ms: LEASE_MS }), OpId::new(rival, 1));
    rig.send_as(rival, Address::Index, op, adopt.clone());
    let refusal = NewIncarnation { old: rival, new: CONTROL }.into();
    assert_eq!(rig.hear(op), Said::Index(Rejected { refusal }.into()));
    assert_eq!(rig.heard(op), [], "it presents itself when the lease is over, not at every try");
    rig.send_as(rival, Address::Writer, OpId::new(rival, 2), backup.clone().into());
    assert_eq!((rig.counter("host.stale"), rig.counter("rank.copies_in_flight")), (1, 1));

    rig.now = Time::ZERO.plus_ms(LEASE_MS);
    rig.send_as(rival, Address::Index, op, adopt);
    assert_eq!(hello(rig.hear(op)), (rival, 1), "adopted, and the old copy is not gone yet");
    assert_eq!(hello(rig.hear(OpId::default())), (rival, 0));
    rig.send_as(CONTROL, Address::Writer, old, backup.clone().into());
    assert_eq!(rig.heard(old), [], "nobody hears of the old op, and its control incarnation is not followed");
    let op = OpId::new(rival, 3);
    rig.send_as(rival, Address::Writer, op, BackupCopy { step: 0, ..backup }.into());
    assert!(rig.hear_ack(op).complete);

    rig.now = rig.now.plus_ms(2 * LEASE_MS);
    let op = OpId::new(CONTROL, 9);
    rig.send_as(CONTROL, Address::Index, op, RankIn::Adopt(Adopt { lease_ms: LEASE_MS }));
    let refusal = NewIncarnation { old: CONTROL, new: rival }.into();
    assert_eq!(rig.hear(op), Said::Index(Rejected { refusal }.into()), "its time is over, whoever leads by now");
}

#[test]
fn each_rank_of_a_group_copies_its_own_pages_and_one_without_pages_is_complete_at_once() {
    let mut rig = Rig::with(|setup| (setup.manifest.cp_size, setup.rank) = (2, Rank(1)));
    let msg = rig.backup_msg(0, &[2 * 3, 2 * 4 + 1, 2 * 5], &[9, 9, 8]);
    rig.engine.compute(1, &[(3, 3), (4, 4), (5, 5)], |_, _| ());
    let op = rig.send(Address::Writer, RankIn::BackupCopy(msg));
    assert!(rig.hear_ack(op).complete);
    rig.assert_record(9, 4);
    assert!(rig.record_layer(8, Component::TargetKv, 0).iter().all(|byte| *byte == POISON));
    let msg = rig.backup_msg(7, &[2, 4], &[1, 2]);
    let op = rig.send(Address::Writer, RankIn::BackupCopy(msg));
    let ack = rig.hear_ack(op);
    assert!(ack.complete && (0..26).all(|at| bit(&ack, at)));
}

#[test]
fn all_layers_at_the_end_is_counted_and_copies_nothing_before_both_tracks_have_passed() {
    let mut rig = Rig::new();
    let msg = BackupCopy { all_layers_at_end: true, ..rig.backup_msg(2, &[1], &[1]) };
    let op = rig.send(Address::Writer, RankIn::BackupCopy(msg.clone()));
    let watched = rig.send(Address::Index, RankIn::Watch(Watch { step: 1 }));
    rig.engine.announce(Word::Target, 2, TARGET_LAYERS);
    rig.engine.announce(Word::Draft, 1, DRAFT_LAYERS);
    rig.hear(watched);
    progress(&mut rig, op, &msg, |ack| {
        assert!(ack.layers.0.iter().all(|byte| *byte == 0));
        true
    });
    rig.engine.compute(2, &[(1, 11)], |_, _| ());
    assert!(rig.hear_ack(op).complete);
    rig.assert_record(1, 11);
    assert_eq!(rig.counter("rank.all_layers_at_end"), 1);
}

#[test]
fn a_busy_thread_takes_loads_first_and_then_backups_in_the_order_of_their_steps() {
    let mut rig = Rig::on(CopyThreads::start(1).unwrap(), Arc::new(Scratch::new()), |_| ());
    rig.store(&[1], &[1]);
    let (hold, copies) = (rig.hold.clone(), rig.copies.clone());
    let until_queued = |tasks: usize| {
        let until = Instant::now() + LONG;
        while copies.queued() != tasks {
            assert!(Instant::now() < until, "{} tasks are queued, not {tasks}", copies.queued());
            std::thread::yield_now();
        }
    };
    let held = hold.lock().unwrap();
    let first = rig.backup_msg(0, &[1], &[2]);
    let first = rig.send(Address::Writer, RankIn::BackupCopy(first));
    until_queued(0);
    for (word, layers) in [(Word::Target, TARGET_LAYERS), (Word::Draft, DRAFT_LAYERS)] {
        rig.engine.announce(word, 4, layers);
    }
    let mut started = Vec::new();
    for (step, page) in [(4, 2), (3, 3)] {
        let msg = rig.backup_msg(step, &[page], &[page + 1]);
        started.push(rig.send(Address::Writer, RankIn::BackupCopy(msg)));
        until_queued(started.len() * LAYERS as usize);
    }
    let load = rig.load_msg(&[9], &[1], 0, 1);
    started.push(rig.send(Address::Loader, RankIn::LoadCopy(load)));
    drop(held);
    rig.hear_ack(first);
    let mut ended: Vec<OpId> = Vec::new();
    while ended.len() < 3 {
        rig.collect();
        ended.extend(started.iter().filter(|op| !rig.heard(**op).is_empty()));
    }
    let in_order: Vec<OpId> =
        rig.marks.iter().filter(|(_, name, _)| name.ends_with(".pages")).map(|(op, ..)| *op).collect();
    assert_eq!(in_order[in_order.len() - 3..], [started[2], started[1], started[0]]);
}
