//! Records that changed between their store and their load, with checksums and without.

use super::*;

fn with_fingerprints() -> Rig {
    Rig::with(|setup| setup.fingerprints = true)
}

/// Changes one bit of the record in `slot`.
fn flip(rig: &mut Rig, slot: u32, component: Component, layer: u32) {
    let at = rig.record_place(slot, component, layer) + 8;
    let mut word = [0; 8];
    rig.pool.read(at, &mut word).unwrap();
    word[3] ^= 4;
    rig.pool.write(at, &word).unwrap();
}

/// The report under the `number`-th op of the rank.
fn report(rig: &mut Rig, number: u64) -> (OpId, Damaged) {
    let op = OpId::new(Incarnation([0xA0; 16]), number);
    match rig.hear(op) {
        Said::Index(IndexNews::Damaged(damaged)) => (op, damaged),
        other => panic!("{other:?} is no report"),
    }
}

fn damaged(slot: u32, component: &str) -> Damaged {
    Damaged { rank: Rank(0), slot, component: component.into() }
}

#[test]
fn whole_records_are_compared_and_loaded() {
    let mut rig = with_fingerprints();
    rig.store(&[1, 2], &[3, 8]);
    // One whose verdict is on its way is loaded as well: the index has committed it.
    let msg = rig.backup_msg(0, &[1], &[5]);
    let unsealed = rig.send(Address::Writer, RankIn::BackupCopy(msg));
    assert!(rig.hear_ack(unsealed).complete);
    rig.engine.fill(POISON);
    let load = rig.load_msg(&[9, 4, 7], &[3, 8, 5], 0, 1);
    let op = rig.send(Address::Loader, RankIn::LoadCopy(load));
    assert!(rig.hear_ack(op).complete);
    for (page, tag) in [(9, 3), (4, 8), (7, 3)] {
        rig.engine.assert_page(page, tag);
    }
    assert_eq!((rig.counter("rank.verified"), rig.counter("rank.unsummed"), rig.counter("rank.damaged")), (3, 0, 0));
}

#[test]
fn a_load_of_a_damaged_record_fails_before_its_first_layer_and_is_reported_until_the_index_has_heard() {
    for (component, layer) in [(Component::TargetKv, 0), (Component::TargetIndex, 10), (Component::DraftIndex, 0)] {
        let mut rig = with_fingerprints();
        rig.store(&[1, 2, 3], &[3, 8, 2]);
        flip(&mut rig, 8, component, layer);
        rig.engine.fill(POISON);
        let load = rig.load_msg(&[4, 5, 6], &[3, 8, 2], 7, 1);
        let (base, end) = (load.base, load.base + LAYERS);
        let ring = rig.host.machine().pool().ring().clone();
        let op = rig.send(Address::Loader, RankIn::LoadCopy(load));
        let until = Instant::now() + LONG;
        while ring.state(7, 1) == LoadState::Pending {
            assert!(ring.value(7) <= base || ring.state(7, 1) == LoadState::Failed, "a layer was said to be there");
            assert!(Instant::now() < until, "never settled");
        }
        let ack = rig.hear_ack(op);
        assert!(!ack.complete && ack.layers.0.iter().all(|byte| *byte == 0), "{ack:?}");
        let missing = ComponentMissing { key: Key([8; 16]), component: component.name().into() };
        assert_eq!(ack.failed, [missing.into()]);
        assert_eq!((ring.state(7, 1), ring.value(7)), (LoadState::Failed, end), "no stream waits on");
        assert!(rig.engine.all_bytes().iter().all(|byte| *byte == POISON), "not one byte was loaded");
        assert_eq!(rig.sealed_slots(), [2, 3], "no restart brings it back");
        assert_eq!((rig.counter("rank.damaged"), rig.counter("rank.failed")), (1, 1));

        let (report_op, said) = report(&mut rig, 0);
        assert_eq!(said, damaged(8, component.name()));
        rig.wake_at(Time::ZERO.plus_ms(300));
        assert_eq!(rig.heard(report_op), [Said::Index(said.into())], "said again");
        rig.send_op(Address::Index, report_op, RankIn::OpSettled(OpSettled {}));
        rig.wake_at(Time::ZERO.plus_ms(9_000));
        assert_eq!(rig.heard(report_op), []);

        let others = rig.load_msg(&[4, 6], &[3, 2], 7, 2);
        let op = rig.send(Address::Loader, RankIn::LoadCopy(others));
        assert!(rig.hear_ack(op).complete, "nothing is held by the load that failed");
        rig.engine.assert_page(6, 2);
        rig.store(&[1], &[8]);
        assert_eq!(rig.sealed_slots(), [2, 3, 8], "the slot is good for another record");
    }
}

#[test]
fn a_record_that_nobody_vouches_for_is_not_loaded() {
    let mut rig = with_fingerprints();
    rig.store(&[1], &[3]);
    rig.host.machine().pool().table().clear(3);
    let load = rig.load_msg(&[4], &[3], 7, 1);
    let op = rig.send(Address::Loader, RankIn::LoadCopy(load));
    assert!(matches!(rig.hear_ack(op).failed[..], [Refusal::ComponentMissing(_)]));
    assert_eq!(report(&mut rig, 0).1, damaged(3, "record"));
    assert_eq!(rig.host.machine().pool().ring().state(7, 1), LoadState::Failed);
    let again = rig.backup_msg(0, &[1], &[3]);
    let op = rig.send(Address::Writer, RankIn::BackupCopy(again));
    assert!(rig.hear_ack(op).complete, "its slot is not claimed any more");
}

#[test]
fn a_load_stopped_amid_its_checks_is_no_damage() {
    let mut rig = with_fingerprints();
    rig.store(&[1, 2], &[3, 8]);
    let load = rig.load_msg(&[4, 5], &[3, 8], 7, 1);
    rig.host.machine().pool().ring().fail(7, 1, load.base + LAYERS).unwrap();
    let op = rig.send(Address::Loader, RankIn::LoadCopy(load));
    assert!(!rig.hear_ack(op).complete);
    for use_count in 2..50 {
        let load = rig.load_msg(&[4, 5], &[3, 8], 7, use_count);
        let op = rig.send(Address::Loader, RankIn::LoadCopy(load));
        rig.send_op(Address::Loader, op, RankIn::Stop(Stop { attempt: 1 }));
        let ack = rig.hear_ack(op);
        assert_ne!(ack.complete, !ack.failed.is_empty());
        rig.heard(op);
        assert_ne!(rig.host.machine().pool().ring().state(7, use_count), LoadState::Pending);
    }
    assert_eq!((rig.counter("rank.damaged"), rig.sealed_slots()), (0, vec![3, 8]));
}

#[test]
fn without_fingerprints_nothing_is_computed_and_records_sealed_so_are_loaded_and_counted() {
    let scratch = Arc::new(Scratch::new());
    let mut rig = Rig::on(threads(), scratch.clone(), |_| ());
    rig.store(&[1], &[3]);
    assert_eq!(rig.host.machine().pool().table().sealed(3).unwrap().sums, None);
    flip(&mut rig, 3, Component::TargetKv, 0);
    let load = rig.load_msg(&[4], &[3], 7, 1);
    let op = rig.send(Address::Loader, RankIn::LoadCopy(load));
    assert!(rig.hear_ack(op).complete, "nobody looks");
    assert_eq!(
        (rig.counter("rank.verified"), rig.counter("rank.unsummed"), rig.counter("rank.fingerprints")),
        (0, 0, 0)
    );
    drop(rig);

    let mut rig = Rig::unadopted(threads(), scratch, |setup| setup.fingerprints = true).unwrap();
    rig.send_as(CONTROL, Address::Index, OpId::default(), RankIn::Adopt(Adopt { lease_ms: LEASE_MS }));
    rig.attach();
    let load = rig.load_msg(&[4], &[3], 7, 2);
    let op = rig.send(Address::Loader, RankIn::LoadCopy(load));
    assert!(rig.hear_ack(op).complete, "there is nothing to compare it with");
    assert_eq!(
        (rig.counter("rank.verified"), rig.counter("rank.unsummed"), rig.counter("rank.fingerprints")),
        (0, 1, 1)
    );
}
