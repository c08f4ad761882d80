use super::*;
use crate::protocol::{
    AllocatorIn, Bin, ComponentSpec, CopyAck, Freed, HostSlot, Load, LoadBusy, LoadEnded, LoadMissed, LoadStarted,
    OpSettled, Owners, PageId, Pages, Rank, RankIn, RankIs, Refusal, Rejected, ReleaseSlot, Reserved, Short, Slots,
    Unknown, Whose,
};
use crate::script::{CONTROL, Script, Sent, TRACE, life, op};
use crate::span::{Fact, Span};

const RANK_0: Address = Address::Rank(Rank(0));
const RANK_1: Address = Address::Rank(Rank(1));

/// Two target layers and one of the draft: bits 0, 1 and 2; a word counts three layers.
fn manifest() -> Manifest {
    let component = |name: &str, layers: usize| ComponentSpec {
        name: name.to_owned(),
        dtype: "u8".to_owned(),
        page_bytes: vec![16; layers],
    };
    let components = vec![component("target.kv", 2), component("draft.kv", 1)];
    Manifest { page_tokens: 64, cp_size: 2, tile_pages: 1, draft_lookahead_tokens: 0, components }
}

/// A loader of two ranks that live: even pages are rank 0's.
fn loader_with(change: impl FnOnce(&mut LoaderConfig)) -> Script<Loader> {
    let mut config = LoaderConfig::new(&manifest());
    change(&mut config);
    let mut loader = Script::new(Loader::new(config, CONTROL, 1));
    for rank in 0..2 {
        assert_eq!(is(&mut loader, u64::from(rank), rank, life(rank, 1)).len(), 1);
    }
    loader
}

fn loader() -> Script<Loader> {
    loader_with(|_| ())
}

fn is(loader: &mut Script<Loader>, n: u64, rank: u8, incarnation: Incarnation) -> Sent {
    loader.say(Address::Index, op(n), RankIs { rank: Rank(rank), incarnation })
}

/// Slots 7 of rank 0 and 9 of rank 0, and one page of rank 1 behind them.
fn load() -> Load {
    Load { owners: Owners(vec![0, 0]), slots: Slots(vec![HostSlot(7), HostSlot(9)]), behind: Owners(vec![1]) }
}

fn reserved(pages: &[u32]) -> Reserved {
    Reserved { pages: Pages(pages.iter().copied().map(PageId).collect()) }
}

fn acked(rank: u8, layers: u8) -> CopyAck {
    CopyAck { attempt: 1, rank: Rank(rank), layers: Bin(vec![layers]), complete: true, failed: vec![] }
}

fn failed(rank: u8) -> CopyAck {
    let refusal: Refusal = Unknown::new("slot", 1).into();
    CopyAck { complete: false, failed: vec![refusal], ..acked(rank, 0) }
}

fn started(ring_slot: u32, base: u64) -> Outgoing {
    let pages = Pages([4, 6, 5].map(PageId).to_vec());
    Outgoing::Index(LoadStarted { pages, ring_slot, base }.into())
}

fn ended(ok: bool) -> Outgoing {
    Outgoing::Index(LoadEnded { ok }.into())
}

fn settled() -> Outgoing {
    Outgoing::Index(OpSettled {}.into())
}

fn missed(short: [u32; 2]) -> Outgoing {
    Outgoing::Index(LoadMissed { short: short.to_vec() }.into())
}

fn codes(sent: &Sent) -> Vec<String> {
    sent.iter().map(|(_, to)| format!("{} {}", to.address().expect("an address"), to.encode_body().0)).collect()
}

/// Begins load `op(n)`; returns the op that the allocator was asked with.
fn asked(loader: &mut Script<Loader>, n: u64) -> OpId {
    let sent = loader.say(Address::Index, op(n), load());
    let [(pages_op, Outgoing::Allocator(AllocatorIn::Reserve(reserve)))] = sent.as_slice() else { panic!("{sent:?}") };
    assert_eq!((reserve.tier, reserve.owners.0.as_slice()), (1, [0, 0, 1].as_slice()));
    *pages_op
}

/// As [`asked`], with pages 4, 6 and 5 given and the ranks told to copy.
fn copying(loader: &mut Script<Loader>, n: u64) -> (OpId, Outgoing) {
    let pages_op = asked(loader, n);
    let mut sent = loader.say(Address::Allocator, pages_op, reserved(&[4, 6, 5]));
    assert_eq!(codes(&sent), ["rank.0 load_copy", "rank.1 load_copy", "index load_started"]);
    let (_, Outgoing::Rank(_, RankIn::LoadCopy(copy))) = &sent[0] else { panic!("{sent:?}") };
    assert_eq!(copy.pages.0, [PageId(4), PageId(6)], "pages behind are not copied");
    (pages_op, sent.remove(2).1)
}

fn arrived(loader: &mut Script<Loader>, n: u64) -> OpId {
    let (pages_op, _) = copying(loader, n);
    assert_eq!(loader.say(RANK_0, op(n), acked(0, 0b111)), []);
    assert_eq!(loader.say(RANK_1, op(n), acked(1, 0)), [(op(n), ended(true))], "a rank without pages has no layers");
    pages_op
}

#[test]
fn a_load_is_reserved_copied_by_all_ranks_ended_and_its_slot_released() {
    let mut loader = loader();
    arrived(&mut loader, 10);
    assert_eq!(loader.say(Address::Index, op(10), ReleaseSlot {}), [(op(10), settled())]);
    assert_eq!(loader.mark(op(10), "load.ok"), Some(1));
    assert_eq!((loader.counter("loader.loaded_pages"), loader.counter("loader.slots_used")), (2, 0));
}

#[test]
fn each_use_of_a_slot_counts_from_above_the_one_before() {
    let mut loader = loader_with(|config| config.first_use = 7);
    let slots = u64::from(RING_SLOTS);
    for n in 0..2 * slots {
        let (_, told) = copying(&mut loader, 100 + n);
        assert_eq!(told, started((n % slots) as u32, (7 + n / slots) * 4), "load {n}");
        loader.say(RANK_0, op(100 + n), acked(0, 0b111));
        loader.say(RANK_1, op(100 + n), acked(1, 0));
        loader.say(Address::Index, op(100 + n), ReleaseSlot {});
    }
}

#[test]
fn a_load_that_was_missed_uses_no_number_of_its_slot() {
    let mut loader = loader();
    for n in 0..u64::from(RING_SLOTS) {
        let pages_op = asked(&mut loader, 100 + n);
        loader.say(Address::Allocator, pages_op, Short { short: vec![1, 0] });
    }
    assert_eq!(copying(&mut loader, 10).1, started(0, 0));
}

#[test]
fn when_all_slots_are_used_the_load_is_refused_until_one_is_released() {
    let mut loader = loader();
    for n in 0..u64::from(RING_SLOTS) {
        arrived(&mut loader, 100 + n);
    }
    let busy = Outgoing::Index(LoadBusy { bound: RING_SLOTS }.into());
    assert_eq!(loader.say(Address::Index, op(10), load()), [(op(10), busy)]);
    loader.say(Address::Index, op(105), ReleaseSlot {});
    assert_eq!(copying(&mut loader, 10).1, started(5, 4));
}

#[test]
fn every_message_twice_changes_nothing_and_is_answered_alike() {
    let mut loader = loader();
    let pages_op = asked(&mut loader, 10);
    assert_eq!(loader.say(Address::Index, op(10), load()), []);
    loader.say(Address::Allocator, pages_op, reserved(&[4, 6, 5]));
    assert_eq!(loader.say(Address::Allocator, pages_op, reserved(&[8, 10, 7])), []);
    assert_eq!(loader.say(Address::Index, op(10), load()), [(op(10), started(0, 0))]);
    assert_eq!(loader.say(Address::Index, op(10), ReleaseSlot {}), [], "not while it runs");
    loader.say(RANK_0, op(10), acked(0, 0b111));
    assert_eq!(loader.say(RANK_0, op(10), acked(0, 0b111)), []);
    loader.say(RANK_1, op(10), acked(1, 0));
    assert_eq!(loader.say(RANK_1, op(10), failed(1)), [], "its fate is known");
    let both = [(op(10), started(0, 0)), (op(10), ended(true))];
    assert_eq!(loader.say(Address::Index, op(10), load()), both);
    assert_eq!(loader.resync(Address::Index), both);
    for _ in 0..2 {
        assert_eq!(loader.say(Address::Index, op(10), ReleaseSlot {}), [(op(10), settled())]);
    }
    assert_eq!(loader.say(Address::Index, op(10), load()), [(op(10), settled())]);
}

#[test]
fn lost_requests_are_said_again_at_their_deadline_and_on_resync() {
    let mut loader = loader();
    let pages_op = asked(&mut loader, 10);
    assert_eq!(codes(&loader.wake("repeat")), ["allocator reserve"]);
    loader.say(Address::Allocator, pages_op, reserved(&[4, 6, 5]));
    assert_eq!(codes(&loader.resync(RANK_1)), ["rank.1 load_copy"]);
    loader.say(RANK_0, op(10), acked(0, 0b111));
    assert_eq!(codes(&loader.wake("repeat")), ["rank.1 load_copy"]);
    loader.say(RANK_1, op(10), acked(1, 0));
    loader.say(Address::Index, op(10), ReleaseSlot {});
    assert_eq!(loader.wake("ended op"), []);
    assert_eq!(loader.wake("ended pages"), []);
    assert_eq!((loader.counter("loader.ended"), loader.machine.next_deadline()), (0, None));
}

#[test]
fn no_room_is_a_miss_and_frees_the_slot() {
    let mut loader = loader();
    let pages_op = asked(&mut loader, 10);
    let told = [(op(10), missed([1, 0]))];
    assert_eq!(loader.say(Address::Allocator, pages_op, Short { short: vec![1, 0] }), told);
    assert_eq!(loader.say(Address::Index, op(10), load()), told);
    assert_eq!(loader.counter("loader.slots_used"), 0);
}

#[test]
fn pages_with_other_owners_go_back_and_the_load_is_a_miss() {
    let mut loader = loader();
    for (n, pages) in [(10, [5, 4, 6].as_slice()), (11, &[4, 6]), (12, &[4, 6, 8])] {
        let pages_op = asked(&mut loader, n);
        assert_eq!(codes(&loader.say(Address::Allocator, pages_op, reserved(pages))), ["allocator free"]);
        assert_eq!(loader.say(Address::Allocator, pages_op, Freed {}), [(op(n), missed([0, 0]))]);
    }
    assert_eq!(loader.counter("loader.wrong_owners"), 3);
}

#[test]
fn a_failed_copy_stops_the_others_and_ends_the_load_when_nothing_writes() {
    for (failing, stopped, other) in
        [(failed(0), "rank.1 stop", acked(1, 0)), (acked(0, 0b011), "rank.1 stop", failed(1))]
    {
        let mut loader = loader();
        copying(&mut loader, 10);
        assert_eq!(codes(&loader.say(RANK_0, op(10), failing)), [stopped]);
        assert_eq!(codes(&loader.wake("repeat")), [stopped], "a timer ends nothing");
        assert_eq!(loader.say(RANK_1, op(10), other), [(op(10), ended(false))]);
        assert_eq!(loader.say(Address::Index, op(10), ReleaseSlot {}), [(op(10), settled())]);
        assert_eq!((loader.counter("loader.failed"), loader.mark(op(10), "load.ok")), (1, Some(0)));
    }
}

#[test]
fn a_dead_rank_counts_as_stopped_and_the_others_are_waited_for() {
    let mut loader = loader();
    copying(&mut loader, 10);
    assert_eq!(codes(&is(&mut loader, 20, 1, Incarnation::default())), ["rank.0 stop", "index op_settled"]);
    assert_eq!(loader.say(RANK_0, op(10), acked(0, 0b111)), [(op(10), ended(false))]);
    assert_eq!(loader.say(Address::Index, op(11), load()), [(op(11), missed([0, 0]))], "its engine would wait");
    is(&mut loader, 21, 1, life(1, 2));
    copying(&mut loader, 12);
    assert_eq!(codes(&loader.say(RANK_0, op(12), failed(0))), ["rank.1 stop"]);
    assert_eq!(
        codes(&is(&mut loader, 22, 1, life(1, 3))),
        ["rank.1 load_copy", "index load_ended", "rank.1 load_copy", "index op_settled"]
    );
}

#[test]
fn the_new_life_of_a_rank_ends_the_slot_that_its_old_one_left_behind() {
    let mut loader = loader();
    copying(&mut loader, 10);
    let sent = is(&mut loader, 20, 1, life(1, 2));
    assert_eq!(codes(&sent), ["rank.0 stop", "rank.1 load_copy", "index op_settled"]);
    let Some((_, Outgoing::Rank(_, RankIn::LoadCopy(copy)))) = sent.get(1) else { panic!("{sent:?}") };
    assert_eq!(copy.lives, [life(0, 1), life(1, 1)], "for the old life, so that nothing is copied");
    assert_eq!(codes(&loader.say(RANK_0, op(10), failed(0))), ["index load_ended"]);
    assert_eq!(
        codes(&is(&mut loader, 21, 1, life(1, 3))),
        ["rank.1 load_copy", "index op_settled"],
        "nobody has read it"
    );
    assert_eq!(codes(&loader.pass(5_000))[..1], ["rank.1 load_copy"], "until it is answered");
    assert_eq!(loader.say_as(RANK_1, life(1, 3), op(10), failed(1)), []);
    assert_eq!(loader.pass(5_000), []);
    assert_eq!(codes(&is(&mut loader, 22, 1, Incarnation::default())), ["index op_settled"]);
    assert_eq!(codes(&is(&mut loader, 23, 1, life(1, 4))), ["rank.1 load_copy", "index op_settled"]);
    assert_eq!(codes(&is(&mut loader, 24, 1, Incarnation::default())), ["index op_settled"]);
    assert_eq!(loader.pass(5_000), [], "nobody is left to ask");
    loader.say(Address::Index, op(10), ReleaseSlot {});
    assert_eq!(codes(&is(&mut loader, 25, 1, life(1, 5))), ["index op_settled"]);
}

#[test]
fn a_rank_that_dies_before_pages_are_given_makes_the_load_a_miss() {
    let mut loader = loader();
    let pages_op = asked(&mut loader, 10);
    assert_eq!(codes(&is(&mut loader, 20, 1, Incarnation::default())), ["index op_settled"]);
    assert_eq!(codes(&loader.say(Address::Allocator, pages_op, reserved(&[4, 6, 5]))), ["allocator free"]);
    assert_eq!(loader.say(Address::Allocator, pages_op, Freed {}), [(op(10), missed([0, 0]))]);
}

#[test]
fn an_older_life_another_attempt_and_the_wrong_member_are_dropped_and_counted() {
    let mut loader = loader();
    copying(&mut loader, 10);
    assert_eq!(loader.say_as(RANK_0, life(0, 9), op(10), acked(0, 0b111)), []);
    assert_eq!(loader.say(RANK_0, op(10), CopyAck { attempt: 2, ..failed(0) }), []);
    assert_eq!(loader.counter("loader.stale"), 2);
    assert_eq!(loader.say(RANK_0, op(10), acked(1, 0)), []);
    assert_eq!(loader.say(Address::Writer, op(11), load()), []);
    assert_eq!(loader.counter("loader.foreign"), 2);
}

#[test]
fn what_is_malformed_is_refused_and_uses_no_slot() {
    let mut loader = loader_with(|config| config.pages_max = 3);
    let rows = [
        (Load { owners: Owners(vec![0]), ..load() }, "Malformed"),
        (Load { owners: Owners(vec![]), slots: Slots(vec![]), ..load() }, "Malformed"),
        (Load { owners: Owners(vec![0, 2]), ..load() }, "Malformed"),
        (Load { behind: Owners(vec![9]), ..load() }, "Malformed"),
        (Load { slots: Slots(vec![HostSlot(7), HostSlot(7)]), ..load() }, "Malformed"),
        (Load { behind: Owners(vec![0, 1]), ..load() }, "TooLarge"),
    ];
    for (msg, code) in rows {
        match loader.say(Address::Index, op(10), msg).as_slice() {
            [(_, Outgoing::Index(IndexNews::Rejected(rejected)))] => assert_eq!(rejected.refusal.code(), code),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(loader.counter("loader.slots_used"), 0);
    assert_eq!(codes(&is(&mut loader, 21, 2, life(2, 1))), ["index rejected"]);
}

#[test]
fn refusals_of_others_end_what_they_speak_of() {
    let rejected = || Rejected { refusal: Unknown::new("op", 10).into() };
    let mut loader = loader();
    let pages_op = asked(&mut loader, 10);
    assert_eq!(loader.say(Address::Allocator, pages_op, rejected()), [(op(10), missed([0, 0]))]);
    copying(&mut loader, 11);
    assert_eq!(codes(&loader.say(RANK_0, op(11), rejected())), ["rank.1 stop"]);
    let pages_op = arrived(&mut loader, 12);
    assert_eq!(codes(&loader.say(Address::Index, op(12), rejected())), ["allocator free"], "nobody has its pages");
    assert_eq!(loader.say(Address::Allocator, pages_op, Freed {}), [(op(12), settled())]);
}

#[test]
fn the_allocator_hears_whose_pages_are_and_silence_about_what_is_forgotten() {
    let mut loader = loader_with(|config| config.ended_max = 1);
    let mine = |sent: &Sent| match sent.as_slice() {
        [(_, Outgoing::Allocator(AllocatorIn::WhoseIs(whose)))] => Some(whose.mine),
        [] => None,
        other => panic!("{other:?}"),
    };
    let kept = arrived(&mut loader, 10);
    assert_eq!(mine(&loader.say(Address::Allocator, kept, Whose {})), Some(true));
    loader.say(Address::Index, op(10), ReleaseSlot {});
    assert_eq!(mine(&loader.say(Address::Allocator, kept, Whose {})), Some(true), "the index has them");
    for n in 20..24 {
        let pages_op = asked(&mut loader, n);
        loader.say(Address::Allocator, pages_op, Short { short: vec![1, 0] });
        assert_eq!(mine(&loader.say(Address::Allocator, pages_op, Whose {})), Some(false), "none were given");
    }
    assert_eq!(mine(&loader.say(Address::Allocator, kept, Whose {})), None, "forgotten");
    assert_eq!(mine(&loader.say(Address::Allocator, op(77), Whose {})), Some(false), "never heard of");
}

#[test]
fn a_backup_op_cannot_move_what_a_held_load_reads() {
    let mut loader = loader();
    let (_, told) = copying(&mut loader, 10);
    for _ in 0..3 {
        loader.pass(5_000);
        let progress = CopyAck { complete: false, ..acked(0, 0b001) };
        assert_eq!(loader.say(RANK_0, op(10), progress), [], "a held load is not over");
        assert_eq!(loader.say(Address::Index, op(10), load()), [(op(10), told.clone())], "and stays where it is");
    }
}

#[cfg(feature = "planted-faults")]
#[test]
fn owners_are_rotated_by_one_and_nobody_looks() {
    let mut loader = loader_with(|config| config.faults = Faults::planted(crate::faults::Fault::OwnersRotatedByOne));
    let load = Load { owners: Owners(vec![0, 1]), ..load() };
    let sent = loader.say(Address::Index, op(10), load);
    let [(pages_op, Outgoing::Allocator(AllocatorIn::Reserve(reserve)))] = sent.as_slice() else { panic!("{sent:?}") };
    assert_eq!(reserve.owners.0, [1, 0, 1]);
    assert_eq!(loader.say(Address::Allocator, *pages_op, reserved(&[5, 4, 7])).len(), 3);
}

#[test]
fn every_load_ends_in_one_span_when_nothing_of_it_writes_any_more() {
    let fact = |span: &Span, name: &str| span.facts.iter().find(|(of, _)| *of == name).map(|(_, fact)| fact.clone());
    let mut script = loader();
    copying(&mut script, 10);
    script.say(RANK_1, op(10), acked(1, 0b111));
    script.say(RANK_0, op(10), acked(0, 0b111));
    script.say(Address::Index, op(10), ReleaseSlot {});
    let [span] = script.take_spans().try_into().expect("one span");
    assert_eq!((span.name, span.op, &span.parent, &span.fault), ("load", op(10), &TRACE, &None));
    assert_eq!(fact(&span, "load.rank_pages"), Some(Fact::Counts(vec![2])));
    assert_eq!(fact(&span, "copy.straggler_rank"), Some(Fact::Count(0)));
    copying(&mut script, 11);
    script.say(RANK_0, op(11), failed(0));
    assert_eq!(script.spans, [], "rank 1 may still write");
    script.say(RANK_1, op(11), acked(1, 0b111));
    let [span] = script.take_spans().try_into().expect("one span");
    assert_eq!(span.fault.as_deref(), Some("LoadFailed"));
    assert_eq!(fact(&span, "load.cause"), Some(Fact::Text("rank 0: Unknown".to_owned())));
    let pages_op = asked(&mut script, 12);
    script.say(Address::Allocator, pages_op, Short { short: vec![1, 0] });
    let [span] = script.take_spans().try_into().expect("one span");
    assert_eq!(span.fault.as_deref(), Some("LoadMissed"));
    assert_eq!(fact(&span, "load.short_pages"), Some(Fact::Counts(vec![1, 0])));
}
