//! What a rank refuses, with which words, and that nothing changes by it.

use hicached_actors::protocol::*;
use hicached_client::shm::Track as Word;

use crate::rank_rig::*;

#[test]
fn what_is_wrong_is_refused_with_its_field_and_not_a_byte_changes() {
    let mut rig = Rig::new();
    rig.store(&[1], &[1]);
    rig.fill_pool(POISON);
    rig.engine.fill(POISON);
    let good = rig.backup_msg(0, &[2, 3], &[2, 3]);
    let load = rig.load_msg(&[2, 3], &[2, 3], 1, 1);
    let pages = |ids: [u32; 2]| Pages(ids.map(PageId).to_vec());
    let slots = |ids: [u32; 2]| Slots(ids.map(HostSlot).to_vec());
    let malformed = |field: &str| Some(field.to_owned());
    let table: Vec<(RankIn, Option<String>)> = vec![
        (BackupCopy { pages: pages([2, L1_PAGES]), ..good.clone() }.into(), malformed("pages")),
        (BackupCopy { pages: pages([2, u32::MAX]), ..good.clone() }.into(), malformed("pages")),
        (BackupCopy { pages: pages([0, 2]), ..good.clone() }.into(), malformed("pages")),
        (BackupCopy { pages: pages([2, 2]), ..good.clone() }.into(), malformed("pages")),
        (BackupCopy { slots: slots([2, SLOTS]), ..good.clone() }.into(), malformed("slots")),
        (BackupCopy { slots: slots([2, 2]), ..good.clone() }.into(), malformed("slots")),
        (BackupCopy { slots: Slots(vec![HostSlot(2)]), ..good.clone() }.into(), malformed("slots")),
        (BackupCopy { keys: Keys(vec![]), ..good.clone() }.into(), malformed("keys")),
        (BackupCopy { first: u32::MAX, ..good.clone() }.into(), malformed("first")),
        (LoadCopy { pages: pages([2, L1_PAGES]), ..load.clone() }.into(), malformed("pages")),
        (LoadCopy { slots: slots([SLOTS, 1]), ..load.clone() }.into(), malformed("slots")),
        (LoadCopy { owners: Owners(vec![0]), ..load.clone() }.into(), malformed("owners")),
        (LoadCopy { owners: Owners(vec![0, 1]), ..load.clone() }.into(), None),
        (LoadCopy { ring_slot: 64, ..load.clone() }.into(), malformed("ring_slot")),
        (LoadCopy { base: load.base + 1, ..load.clone() }.into(), malformed("base")),
        (LoadCopy { base: u64::MAX - u64::MAX % (LAYERS + 1), ..load.clone() }.into(), malformed("base")),
    ];
    let (l1, l2) = (rig.engine.all_bytes(), rig.pool_bytes());
    for (number, (msg, field)) in table.into_iter().enumerate() {
        let from = if matches!(msg, RankIn::LoadCopy(_)) { Address::Loader } else { Address::Writer };
        let op = rig.send(from, msg);
        match (&rig.hear_ack(op).failed[..], field) {
            ([Refusal::Malformed(refusal)], Some(field)) => assert_eq!(refusal.field, field, "row {number}"),
            ([Refusal::NotOwner(refusal)], None) => assert_eq!((refusal.page, refusal.rank), (3, Rank(1))),
            (other, field) => panic!("row {number}: {other:?}, not {field:?}"),
        }
    }
    assert!(l1 == rig.engine.all_bytes() && l2 == rig.pool_bytes());
    assert_eq!(rig.sealed_slots(), [1], "and no seal was taken");

    let gated = rig.backup_msg(5, &[2], &[2]);
    let first = rig.send(Address::Writer, RankIn::BackupCopy(gated.clone()));
    let same_slot = rig.backup_msg(0, &[3], &[2]);
    for other in [RankIn::BackupCopy(same_slot), RankIn::BackupCopy(BackupCopy { attempt: 0, ..gated })] {
        let op = if matches!(&other, RankIn::BackupCopy(msg) if msg.attempt == 0) { first } else { rig.draw() };
        rig.send_op(Address::Writer, op, other);
        assert!(matches!(rig.hear_ack(op).failed[..], [Refusal::WrongState(_)]), "another op or try has it");
    }
    assert!(l2 == rig.pool_bytes());
}

#[test]
fn an_engine_that_does_not_fit_is_refused_and_a_new_one_starts_its_words_at_0() {
    let mut rig = Rig::new();
    rig.engine.compute(4, &[], |_, _| ());
    let good = rig.attach_msg(0xE1);
    let changed = |change: &dyn Fn(&mut Attach)| {
        let mut msg = good.clone();
        change(&mut msg);
        msg
    };
    let pool_file = rig.scratch.0.join("pool").to_str().unwrap().to_owned();
    let table: [(Attach, &str); 7] = [
        (changed(&|msg| msg.pages = 1), "pages"),
        (changed(&|msg| msg.regions[2].page_bytes += 16), "target.kv.page_bytes[2]"),
        (changed(&|msg| msg.regions[1].stride += 16), "target.kv.stride[1]"),
        (changed(&|msg| drop(msg.regions.pop())), "regions"),
        (changed(&|msg| msg.segment_bytes += 4_096), "segment_bytes"),
        (changed(&|msg| msg.segment = "/nonexistent".into()), "segment"),
        (changed(&|msg| msg.segment = pool_file.clone()), "segment"),
    ];
    for (msg, field) in table {
        let op = rig.send(Address::Index, RankIn::Attach(msg));
        let Said::Index(IndexNews::AttachRefused(refused)) = rig.hear(op) else { panic!("{field} was taken") };
        match refused.refusal {
            Refusal::Mismatch(found) => assert_eq!(found.field, field),
            Refusal::Malformed(found) => assert_eq!(found.field, field),
            other => panic!("{field}: {other:?}"),
        }
    }
    let waiting = rig.backup_msg(5, &[1], &[1]);
    let backup = rig.send(Address::Writer, RankIn::BackupCopy(waiting));
    rig.attach();
    assert_eq!(rig.heard(backup), [], "the same engine again changes nothing");
    assert_eq!(rig.engine.words.as_ref().unwrap().value(Word::Draft), 4 * 2 + 1);
    let op = rig.send(Address::Index, RankIn::Attach(good));
    assert!(!rig.hear_ack(backup).failed.is_empty(), "the pages of the old engine are void");
    assert!(matches!(rig.hear(op), Said::Index(IndexNews::Attached(_))));
    assert_eq!(rig.engine.words.as_ref().unwrap().value(Word::Target), 0);
}
