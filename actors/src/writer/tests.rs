use super::*;
use crate::protocol::{
    AllocatorIn, Backup, BackupComplete, BackupFailed, BackupRefused, BackupVerdict, Bin, ComponentSpec, CopyAck,
    Freed, HostSlot, Key, Keys, OpSettled, PageId, Pages, Rank, RankIn, RankIs, Refusal, Rejected, Reserved, Sealed,
    Short, Slots, Unknown, Whose,
};
use crate::script::{CONTROL, Script, Sent, TRACE, life, op};
use crate::span::{Fact, Span};

const RANK_0: Address = Address::Rank(Rank(0));
const RANK_1: Address = Address::Rank(Rank(1));

/// Two target layers and one of the draft: bits 0, 1 and 2.
fn manifest(cp_size: u8) -> Manifest {
    let component = |name: &str, layers: usize| ComponentSpec {
        name: name.to_owned(),
        dtype: "u8".to_owned(),
        page_bytes: vec![16; layers],
    };
    let components = vec![component("target.kv", 2), component("draft.kv", 1)];
    Manifest { page_tokens: 64, cp_size, tile_pages: 1, draft_lookahead_tokens: 0, components }
}

/// A writer of three ranks that live; pages 6 and 9 are rank 0's, page 7 is rank 1's.
fn writer_with(change: impl FnOnce(&mut WriterConfig)) -> Script<Writer> {
    let mut config = WriterConfig::new(&manifest(3));
    change(&mut config);
    let mut writer = Script::new(Writer::new(config, CONTROL, 1));
    for rank in 0..3 {
        assert_eq!(is(&mut writer, u64::from(rank), rank, life(rank, 1)).len(), 1);
    }
    writer
}

fn writer() -> Script<Writer> {
    writer_with(|_| ())
}

/// The index says, with op `n`, which life a rank is in.
fn is(writer: &mut Script<Writer>, n: u64, rank: u8, incarnation: Incarnation) -> Sent {
    writer.say(Address::Index, op(n), RankIs { rank: Rank(rank), incarnation })
}

fn backup(pages: &[u32]) -> Backup {
    let keys = pages.iter().map(|page| Key([*page as u8; 16])).collect();
    Backup {
        step: 3,
        pages: Pages(pages.iter().copied().map(PageId).collect()),
        keys: Keys(keys),
        parent: Key([0; 16]),
        first: 0,
        salt: Key([1; 16]),
        all_layers_at_end: false,
    }
}

fn reserved(slots: &[u32]) -> Reserved {
    Reserved { pages: Pages(slots.iter().copied().map(PageId).collect()) }
}

fn acked(rank: u8, layers: u8) -> CopyAck {
    CopyAck { attempt: 1, rank: Rank(rank), layers: Bin(vec![layers]), complete: true, failed: vec![] }
}

fn done(rank: u8) -> CopyAck {
    acked(rank, 0b111)
}

fn failed(rank: u8) -> CopyAck {
    let refusal: Refusal = Unknown::new("slot", 1).into();
    CopyAck { complete: false, failed: vec![refusal], ..acked(rank, 0) }
}

fn verdict(kept: &[u8]) -> BackupVerdict {
    BackupVerdict { kept: Bin(kept.to_vec()) }
}

fn complete(slots: &[u32]) -> Outgoing {
    Outgoing::Index(BackupComplete { slots: Slots(slots.iter().copied().map(HostSlot).collect()) }.into())
}

fn refused(cause: &str) -> Outgoing {
    Outgoing::Index(BackupFailed { cause: cause.to_owned() }.into())
}

fn settled() -> Outgoing {
    Outgoing::Index(OpSettled {}.into())
}

/// Code and destination of what was sent.
fn codes(sent: &Sent) -> Vec<String> {
    sent.iter().map(|(_, to)| format!("{} {}", to.address().expect("an address"), to.encode_body().0)).collect()
}

/// Begins backup `op(10)` of pages 6, 7 and 9; returns the op that the allocator was asked with.
fn asked(writer: &mut Script<Writer>) -> OpId {
    let sent = writer.say(Address::Index, op(10), backup(&[6, 7, 9]));
    let [(pages_op, Outgoing::Allocator(AllocatorIn::Reserve(reserve)))] = sent.as_slice() else { panic!("{sent:?}") };
    assert_eq!((reserve.tier, reserve.owners.0.as_slice()), (2, [0, 1, 0].as_slice()));
    *pages_op
}

/// As [`asked`], with slots 4, 4 and 5 given and the ranks told to copy.
fn copying(writer: &mut Script<Writer>) -> OpId {
    let pages_op = asked(writer);
    let sent = writer.say(Address::Allocator, pages_op, reserved(&[4, 4, 5]));
    assert_eq!(codes(&sent), ["rank.0 backup_copy", "rank.1 backup_copy", "rank.2 backup_copy"]);
    pages_op
}

/// As [`copying`], with both owners done.
fn completed(writer: &mut Script<Writer>) -> OpId {
    let pages_op = copying(writer);
    assert_eq!(writer.say(RANK_0, op(10), done(0)), []);
    assert_eq!(writer.say(RANK_1, op(10), done(1)), [(op(10), complete(&[4, 4, 5]))]);
    pages_op
}

fn freed_slots(sent: &Sent) -> (OpId, Vec<(u8, u32)>) {
    let [(pages_op, Outgoing::Allocator(AllocatorIn::Free(free)))] = sent.as_slice() else { panic!("{sent:?}") };
    assert_eq!(free.l1.0, []);
    (*pages_op, free.l2_owners.0.iter().copied().zip(free.l2.0.iter().map(|slot| slot.0)).collect())
}

#[test]
fn a_backup_is_reserved_copied_complete_decided_sealed_and_settled() {
    let mut writer = writer();
    let pages_op = completed(&mut writer);
    let sent = writer.say(Address::Index, op(10), verdict(&[1, 1, 0]));
    assert_eq!(codes(&sent), ["rank.0 seal", "rank.1 seal"]);
    assert_eq!(writer.say(RANK_1, op(10), Sealed { rank: Rank(1) }), []);
    let sent = writer.say(RANK_0, op(10), Sealed { rank: Rank(0) });
    assert_eq!(freed_slots(&sent), (pages_op, vec![(0, 5)]), "only after the seals");
    assert_eq!(writer.say(Address::Allocator, pages_op, Freed {}), [(op(10), settled())]);
    assert_eq!(writer.mark(op(10), "backup.ranks"), Some(2));
    assert_eq!((writer.counter("writer.kept_pages"), writer.counter("writer.forfeited_pages")), (2, 1));
}

#[test]
fn a_rank_without_pages_is_told_once_and_not_waited_for() {
    let mut writer = writer();
    copying(&mut writer);
    writer.say(RANK_0, op(10), done(0));
    let repeats = writer.pass(1_000);
    assert!(!repeats.is_empty() && codes(&repeats).iter().all(|code| code == "rank.1 backup_copy"), "{repeats:?}");
    assert_eq!(writer.say(Address::Rank(Rank(2)), op(10), done(2)), []);
    assert_eq!(writer.say(RANK_1, op(10), done(1)).len(), 1);
}

#[test]
fn every_message_twice_changes_nothing_and_is_answered_alike() {
    let mut writer = writer();
    let pages_op = asked(&mut writer);
    assert_eq!(writer.say(Address::Index, op(10), backup(&[6, 7, 9])), []);
    assert_eq!(writer.say(Address::Allocator, pages_op, reserved(&[4, 4, 5])).len(), 3);
    assert_eq!(writer.say(Address::Allocator, pages_op, reserved(&[8, 8, 9])), []);
    assert_eq!(writer.say(Address::Allocator, pages_op, Short { short: vec![1, 0, 0] }), []);
    writer.say(RANK_0, op(10), done(0));
    assert_eq!(writer.say(RANK_0, op(10), done(0)), []);
    assert_eq!(writer.say(RANK_0, op(10), failed(0)), [], "its fate is known");
    let told = writer.say(RANK_1, op(10), done(1));
    assert_eq!(writer.say(Address::Index, op(10), backup(&[6, 7, 9])), told);
    assert_eq!(writer.resync(Address::Index), told);
    writer.say(Address::Index, op(10), verdict(&[0, 1, 1]));
    assert_eq!(writer.say(Address::Index, op(10), verdict(&[0, 1, 1])), []);
    assert_eq!(codes(&writer.say(Address::Index, op(10), verdict(&[1, 1, 1]))), ["index rejected"]);
    writer.say(RANK_0, op(10), Sealed { rank: Rank(0) });
    assert_eq!(writer.say(RANK_0, op(10), Sealed { rank: Rank(0) }), []);
    assert_eq!(freed_slots(&writer.say(RANK_1, op(10), Sealed { rank: Rank(1) })).1, [(0, 4)]);
    let end = writer.say(Address::Allocator, pages_op, Freed {});
    assert_eq!(writer.say(Address::Allocator, pages_op, Freed {}), []);
    assert_eq!(writer.say(Address::Index, op(10), verdict(&[0, 1, 1])), end);
    assert_eq!(writer.say(Address::Index, op(10), backup(&[6, 7, 9])), end);
}

#[test]
fn lost_requests_are_said_again_at_their_deadline_and_on_resync() {
    let mut writer = writer();
    let pages_op = asked(&mut writer);
    assert_eq!(codes(&writer.wake("repeat")), ["allocator reserve"]);
    writer.say(Address::Allocator, pages_op, reserved(&[4, 4, 5]));
    assert_eq!(codes(&writer.resync(RANK_1)), ["rank.1 backup_copy"]);
    writer.say(RANK_0, op(10), done(0));
    assert_eq!(codes(&writer.wake("repeat")), ["rank.1 backup_copy"]);
    writer.say(RANK_1, op(10), failed(1));
    assert_eq!(codes(&writer.wake("repeat")), ["allocator free"]);
    writer.say(Address::Allocator, pages_op, Freed {});
    assert_eq!(writer.wake("ended op"), []);
    assert_eq!(writer.wake("ended pages"), []);
    assert_eq!((writer.counter("writer.ended"), writer.machine.next_deadline()), (0, None));
}

#[test]
fn no_room_ends_the_op_and_reserves_nothing() {
    let mut writer = writer();
    let pages_op = asked(&mut writer);
    let short = Short { short: vec![2, 0, 0] };
    let told = [(op(10), Outgoing::Index(BackupRefused { short: vec![2, 0, 0] }.into()))];
    assert_eq!(writer.say(Address::Allocator, pages_op, short), told);
    assert_eq!(writer.say(Address::Index, op(10), backup(&[6, 7, 9])), told);
    assert_eq!(writer.say(Address::Index, op(10), verdict(&[1, 1, 1])), told);
    assert_eq!(writer.counter("writer.refused"), 1);
}

#[test]
fn a_failed_copy_stops_the_others_before_anything_is_freed() {
    for second in [done(1), failed(1)] {
        let mut writer = writer();
        let pages_op = copying(&mut writer);
        assert_eq!(codes(&writer.say(RANK_0, op(10), failed(0))), ["rank.1 stop"]);
        assert_eq!(codes(&writer.wake("repeat")), ["rank.1 stop"], "a timer frees nothing");
        let sent = writer.say(RANK_1, op(10), second);
        assert_eq!(freed_slots(&sent), (pages_op, vec![(0, 4), (1, 4), (0, 5)]));
        assert_eq!(codes(&writer.say(Address::Index, op(10), verdict(&[1, 1, 1]))), ["index rejected"]);
        let told = [(op(10), refused("rank 0: Unknown"))];
        assert_eq!(writer.say(Address::Allocator, pages_op, Freed {}), told);
        assert_eq!(writer.say(Address::Index, op(10), verdict(&[1, 1, 1])), told);
    }
}

#[test]
fn a_rank_that_refuses_to_copy_or_to_stop_does_neither() {
    let rejected = || Rejected { refusal: Unknown::new("op", 10).into() };
    let mut writer = writer();
    copying(&mut writer);
    assert_eq!(codes(&writer.say(RANK_0, op(10), rejected())), ["rank.1 stop"]);
    assert_eq!(freed_slots(&writer.say(RANK_1, op(10), rejected())).1.len(), 3);
}

#[test]
fn a_dead_owner_counts_as_stopped_and_the_others_are_waited_for() {
    let mut writer = writer();
    let pages_op = copying(&mut writer);
    assert_eq!(codes(&is(&mut writer, 20, 0, Incarnation::default())), ["rank.1 stop", "index op_settled"]);
    let sent = writer.say(RANK_1, op(10), done(1));
    assert_eq!(freed_slots(&sent).1.len(), 3);
    assert_eq!(writer.say(Address::Allocator, pages_op, Freed {}), [(op(10), refused("rank 0 died"))]);
    let sent = writer.say(Address::Index, op(11), backup(&[6, 7]));
    assert_eq!(sent, [(op(11), refused("gone: rank 0"))], "nothing is asked for a rank that is gone");
}

#[test]
fn a_rank_that_dies_while_it_is_stopped_is_stopped() {
    let mut writer = writer();
    copying(&mut writer);
    writer.say(RANK_0, op(10), failed(0));
    assert_eq!(codes(&is(&mut writer, 20, 1, life(1, 2))), ["allocator free", "index op_settled"]);
}

#[test]
fn a_rank_that_dies_before_its_pages_are_given_fails_the_op_and_gives_them_back() {
    let mut writer = writer();
    let pages_op = asked(&mut writer);
    assert_eq!(codes(&is(&mut writer, 20, 1, Incarnation::default())), ["index op_settled"]);
    let sent = writer.say(Address::Allocator, pages_op, reserved(&[4, 4, 5]));
    assert_eq!(freed_slots(&sent).1.len(), 3);
    assert_eq!(writer.say(Address::Allocator, pages_op, Freed {}), [(op(10), refused("gone: rank 1"))]);
}

#[test]
fn a_rank_that_dies_after_completion_is_not_asked_to_seal() {
    let mut writer = writer();
    completed(&mut writer);
    is(&mut writer, 20, 0, life(0, 2));
    assert_eq!(codes(&writer.say(Address::Index, op(10), verdict(&[0, 1, 0]))), ["rank.1 seal"]);
    let sent = is(&mut writer, 21, 1, life(1, 2));
    assert_eq!(codes(&sent), ["allocator free", "index op_settled"], "a dead rank seals nothing");
}

#[test]
fn an_older_life_another_attempt_and_the_wrong_rank_are_dropped_and_counted() {
    let mut writer = writer();
    copying(&mut writer);
    is(&mut writer, 20, 2, life(2, 2));
    assert_eq!(writer.say_as(RANK_0, life(0, 9), op(10), done(0)), []);
    assert_eq!(writer.say(RANK_0, op(10), CopyAck { attempt: 2, ..done(0) }), []);
    assert_eq!(writer.say(Address::Rank(Rank(2)), op(10), done(2)), [], "its first life is over");
    assert_eq!(writer.counter("writer.stale"), 3);
    assert_eq!(writer.say(RANK_0, op(10), done(1)), []);
    assert_eq!(writer.say(Address::Loader, op(10), backup(&[6])), []);
    assert_eq!(writer.counter("writer.foreign"), 2);
    is(&mut writer, 1, 2, life(2, 1));
    assert_eq!(writer.counter("writer.stale"), 4, "overtaken on the way");
    writer.say(RANK_0, op(10), done(0));
    assert_eq!(writer.say(RANK_1, op(10), done(1)).len(), 1);
}

#[test]
fn an_acknowledgement_that_lacks_a_draft_layer_fails_the_op() {
    let mut writer = writer();
    let pages_op = copying(&mut writer);
    writer.say(RANK_0, op(10), done(0));
    assert_eq!(codes(&writer.say(RANK_1, op(10), acked(1, 0b011))), ["allocator free"]);
    let told = [(op(10), refused("rank 1: ComponentMissing"))];
    assert_eq!(writer.say(Address::Allocator, pages_op, Freed {}), told);
}

#[test]
fn progress_is_not_completion() {
    let mut writer = writer();
    copying(&mut writer);
    assert_eq!(writer.say(RANK_0, op(10), CopyAck { complete: false, ..done(0) }), []);
    assert_eq!(writer.say(RANK_1, op(10), done(1)), []);
}

#[test]
fn what_is_malformed_and_what_is_too_much_is_refused_without_a_trace() {
    let mut writer = writer_with(|config| (config.backups_max, config.pages_max) = (1, 3));
    let short_keys = Backup { keys: Keys(vec![]), ..backup(&[6]) };
    let rows = [
        (short_keys, "Malformed"),
        (backup(&[]), "Malformed"),
        (backup(&[2]), "Malformed"),
        (backup(&[6, 6]), "Malformed"),
        (backup(&[6, 7, 8, 9]), "TooLarge"),
    ];
    let code = |sent: &Sent| match sent.as_slice() {
        [(_, Outgoing::Index(IndexNews::Rejected(rejected)))] => rejected.refusal.code(),
        other => panic!("{other:?}"),
    };
    for (msg, refusal) in rows {
        assert_eq!(code(&writer.say(Address::Index, op(11), msg)), refusal);
    }
    let pages_op = asked(&mut writer);
    assert_eq!(code(&writer.say(Address::Index, op(11), backup(&[6]))), "Busy");
    writer.say(Address::Allocator, pages_op, Short { short: vec![1, 0, 0] });
    assert_eq!(codes(&writer.say(Address::Index, op(11), backup(&[6]))), ["allocator reserve"], "room again");
    assert_eq!(code(&writer.say(Address::Index, op(12), verdict(&[1]))), "Unknown");
    assert_eq!(code(&is(&mut writer, 21, 3, life(3, 1))), "Malformed");
}

#[test]
fn a_rank_that_refuses_to_seal_is_seen_and_not_waited_for() {
    let mut writer = writer();
    completed(&mut writer);
    writer.say(Address::Index, op(10), verdict(&[1, 1, 1]));
    writer.say(RANK_0, op(10), Rejected { refusal: Unknown::new("op", 10).into() });
    assert_eq!(writer.say(RANK_1, op(10), Sealed { rank: Rank(1) }), [(op(10), settled())]);
    assert_eq!(writer.mark(op(10), "error.seal_refused"), Some(1));
}

#[test]
fn a_verdict_of_the_wrong_length_changes_nothing() {
    let mut writer = writer();
    completed(&mut writer);
    assert_eq!(codes(&writer.say(Address::Index, op(10), verdict(&[1]))), ["index rejected"]);
    assert_eq!(writer.say(Address::Index, op(10), verdict(&[1, 1, 1])).len(), 2);
}

#[test]
fn a_complete_backup_that_the_index_does_not_know_is_forfeited() {
    let mut writer = writer();
    completed(&mut writer);
    let rejected = Rejected { refusal: Unknown::new("backup", 10).into() };
    assert_eq!(codes(&writer.say(Address::Index, op(10), rejected)), ["rank.0 seal", "rank.1 seal"]);
    writer.say(RANK_0, op(10), Sealed { rank: Rank(0) });
    assert_eq!(freed_slots(&writer.say(RANK_1, op(10), Sealed { rank: Rank(1) })).1.len(), 3);
}

#[test]
fn the_allocator_hears_whose_pages_are_and_silence_about_what_is_forgotten() {
    let mut writer = writer_with(|config| config.ended_max = 1);
    let mine = |sent: &Sent| match sent.as_slice() {
        [(_, Outgoing::Allocator(AllocatorIn::WhoseIs(whose)))] => Some(whose.mine),
        [] => None,
        other => panic!("{other:?}"),
    };
    let kept = completed(&mut writer);
    assert_eq!(mine(&writer.say(Address::Allocator, kept, Whose {})), Some(true), "it runs");
    writer.say(Address::Index, op(10), verdict(&[1, 1, 1]));
    writer.say(RANK_0, op(10), Sealed { rank: Rank(0) });
    writer.say(RANK_1, op(10), Sealed { rank: Rank(1) });
    assert_eq!(mine(&writer.say(Address::Allocator, kept, Whose {})), Some(true), "the index has them");
    for n in 0..4 {
        let sent = writer.say(Address::Index, op(30 + n), backup(&[6]));
        writer.say(Address::Allocator, sent[0].0, Short { short: vec![1, 0, 0] });
        assert_eq!(mine(&writer.say(Address::Allocator, sent[0].0, Whose {})), Some(false), "none were given");
    }
    assert_eq!(mine(&writer.say(Address::Allocator, kept, Whose {})), None, "forgotten");
    assert_eq!(mine(&writer.say(Address::Allocator, op(77), Whose {})), Some(false), "never heard of");
}

#[test]
fn a_pool_for_two_of_three_backups_in_one_sweep_refuses_the_third_and_mixes_nothing() {
    let mut writer = writer();
    let mut running = Vec::new();
    for (n, pages, slots) in [(1, [6, 9], Some([0, 1])), (2, [12, 15], Some([2, 3])), (3, [18, 21], None)] {
        let pages_op = writer.say(Address::Index, op(10 + n), backup(&pages))[0].0;
        match slots {
            Some(slots) => running.push((n, slots, writer.say(Address::Allocator, pages_op, reserved(&slots)))),
            None => {
                let sent = writer.say(Address::Allocator, pages_op, Short { short: vec![2, 0, 0] });
                assert_eq!(codes(&sent), ["index backup_refused"]);
            }
        }
    }
    for (n, slots, told) in running.into_iter().rev() {
        let (_, Outgoing::Rank(_, RankIn::BackupCopy(copy))) = &told[0] else { panic!("{told:?}") };
        assert_eq!(copy.slots.0, slots.map(HostSlot));
        assert_eq!(writer.say(RANK_0, op(10 + n), done(0)), [(op(10 + n), complete(&slots))]);
    }
}

#[cfg(feature = "planted-faults")]
mod planted {
    use super::*;
    use crate::faults::Fault;

    fn planted(fault: Fault) -> Script<Writer> {
        writer_with(|config| config.faults = Faults::planted(fault))
    }

    #[test]
    fn a_backup_is_visible_before_its_last_acknowledgement() {
        let mut writer = planted(Fault::VisibleBeforeLastAck);
        copying(&mut writer);
        assert_eq!(writer.say(RANK_0, op(10), done(0)), [(op(10), complete(&[4, 4, 5]))]);
    }

    #[test]
    fn the_draft_is_not_needed() {
        let mut writer = planted(Fault::DraftAckNotNeeded);
        copying(&mut writer);
        writer.say(RANK_0, op(10), acked(0, 0b011));
        assert_eq!(writer.say(RANK_1, op(10), acked(1, 0b011)).len(), 1);
    }

    #[test]
    fn slots_are_freed_while_a_copy_can_still_write() {
        let mut writer = planted(Fault::FreedWhileCopyCanStillWrite);
        copying(&mut writer);
        assert_eq!(codes(&writer.say(RANK_0, op(10), failed(0))), ["allocator free"]);
    }

    #[test]
    fn a_stale_acknowledgement_is_accepted() {
        let mut writer = planted(Fault::StaleAttemptAccepted);
        copying(&mut writer);
        writer.say_as(RANK_0, life(0, 9), op(10), done(0));
        assert_eq!(writer.say(RANK_1, op(10), CopyAck { attempt: 9, ..done(1) }).len(), 1);
    }
}

#[test]
fn every_backup_ends_in_one_span_that_says_how_it_went() {
    let fact = |span: &Span, name: &str| span.facts.iter().find(|(of, _)| *of == name).map(|(_, fact)| fact.clone());
    let mut script = writer();
    let pages_op = completed(&mut script);
    assert_eq!(script.spans, [], "it is not over");
    script.say(Address::Index, op(10), verdict(&[1, 1, 0]));
    script.say(RANK_1, op(10), Sealed { rank: Rank(1) });
    script.say(RANK_0, op(10), Sealed { rank: Rank(0) });
    script.say(Address::Allocator, pages_op, Freed {});
    let [span] = script.take_spans().try_into().expect("one span");
    assert_eq!((span.name, span.op, &span.parent, &span.fault), ("backup", op(10), &TRACE, &None));
    for (name, value) in [("backup.kept_pages", 2), ("backup.forfeited_pages", 1), ("copy.straggler_rank", 1)] {
        assert_eq!(fact(&span, name), Some(Fact::Count(value)), "{name}");
    }
    let mut script = writer();
    let pages_op = copying(&mut script);
    script.say(RANK_0, op(10), failed(0));
    script.say(RANK_1, op(10), done(1));
    script.say(Address::Allocator, pages_op, Freed {});
    let [span] = script.take_spans().try_into().expect("one span");
    assert_eq!(span.fault.as_deref(), Some("BackupFailed"));
    assert_eq!(fact(&span, "backup.cause"), Some(Fact::Text("rank 0: Unknown".to_owned())));
    let mut script = writer();
    let pages_op = asked(&mut script);
    script.say(Address::Allocator, pages_op, Short { short: vec![2, 0, 0] });
    let [span] = script.take_spans().try_into().expect("one span");
    assert_eq!(span.fault.as_deref(), Some("OutOfPages"));
    assert_eq!(fact(&span, "backup.short_pages"), Some(Fact::Counts(vec![2, 0, 0])));
}
