//! Sessions whose pages come from another group.

use super::refusals::refused;
use super::*;
use crate::prefix_index::WritePolicy;

pub(super) fn receives(attempt: u32, keys: &[Key], tokens: u32) -> Open {
    handing_over(attempt, "", open(keys, tokens))
}

impl Script {
    /// What the receiver was told, in order, since this was last asked.
    pub(super) fn told_receiver(&mut self) -> Vec<ReceiverIn> {
        let mut told = Vec::new();
        self.sent.retain(|(_, msg)| match msg {
            Outgoing::Receiver(ReceiverIn::RankIs(_)) => true,
            Outgoing::Receiver(msg) => {
                told.push(msg.clone());
                false
            }
            _ => true,
        });
        told
    }

    pub(super) fn receiver_says(&mut self, news: impl Into<IndexNews>) {
        self.news(Address::Receiver, TRANSFER, news.into());
    }

    pub(super) fn arrive(&mut self, attempt: u32, tokens: u32) {
        self.receiver_says(Arrived { attempt, tokens, blob: Bin(b"seed".to_vec()), components: vec![] });
    }

    pub(super) fn not_arriving(&mut self, attempt: u32) {
        self.receiver_says(NotArriving { attempt, cause: "the peer is gone".to_owned() });
    }

    pub(super) fn ask_handover(&mut self, attempt: u32) -> OpId {
        self.ask(Handover { transfer: TRANSFER, attempt, tenant: "a".to_owned() })
    }

    pub(super) fn is_answered(&self, op: OpId) -> bool {
        self.answers.iter().any(|(of, _)| *of == op)
    }
}

/// What whoever waits is told of an attempt that came to nothing.
fn failed(cause: &str) -> Refusal {
    WrongState::new(TRANSFER, &format!("failed: {cause}")).into()
}

#[test]
fn the_tail_page_is_private_until_the_step_that_fills_it() {
    for lookahead in [0, 1] {
        let manifest = Manifest { draft_lookahead_tokens: lookahead, ..manifest(1) };
        let mut script = Script::of(IndexConfig { compute_tokens_min: 0, ..IndexConfig::new(manifest, 65, 8) });
        let path = keys(1, 3);
        // 128 tokens are two full pages; with a lookahead the second cannot be keyed yet.
        let known = 2 - lookahead as usize;
        let session = script.open_as(receives(1, &path[..known], 128 + 20 * (1 - lookahead)));
        let prompt = 128 + 20 * (1 - lookahead);
        script.arrive(1, prompt);
        assert_eq!(script.probe(&path).l1, known as u32);
        let extend = Extend { session, tenant: "a".to_owned(), tokens: 64, owners: Owners(vec![]), first: 0 };
        let held = script.opened(session).pages.0.len() as u32;
        let mut pages = script.opened(session).pages.0.clone();
        if held < 3 {
            script.ask(Extend { first: held, ..extend });
            let reserve = script.op_of("reserve");
            script.news(Address::Allocator, reserve, Reserved { pages: Pages(vec![PageId(40)]) }.into());
            pages.push(PageId(40));
        }
        let at = |tokens: std::ops::Range<u32>, first_key: usize, keys: &[Key]| StepEntry {
            session,
            first_token: tokens.start,
            tokens: tokens.end - tokens.start,
            pages: Pages(pages[tokens.start as usize / 64..tokens.end.div_ceil(64) as usize].to_vec()),
            draft: true,
            keys: Keys(keys.to_vec()),
            first_key: first_key as u32,
            load_read: false,
        };
        let ahead =
            Step { number: 1, entries: vec![at(prompt + 1..192, 0, &[])], engine: ENGINE, all_layers_at_end: false };
        let gap = Gap { expected: prompt.into(), got: u64::from(prompt) + 1 };
        assert_eq!(refused(&mut script, ahead), gap.into(), "it goes on behind what came");
        let fills = Step {
            number: 1,
            entries: vec![at(prompt..192, known, &path[known..])],
            engine: ENGINE,
            all_layers_at_end: false,
        };
        script.ask(fills);
        script.pass(1);
        assert_eq!(script.probe(&path).l1, 3);
        let backed_up: usize = script
            .sent
            .iter()
            .filter_map(|(_, msg)| match msg {
                Outgoing::Writer(WriterIn::Backup(backup)) => Some(backup.keys.0.len()),
                _ => None,
            })
            .sum();
        assert_eq!(backed_up, 3, "each page once");
        assert_eq!(script.close(session, 1).reason, "");
    }
}

#[test]
fn what_is_here_does_not_come_over_but_one_page_always_does() {
    for (cached, first) in [(0, 0), (2, 2), (4, 3)] {
        let mut script = Script::serving(0);
        let path = keys(1, 4);
        if cached > 0 {
            let session = script.open(&path[..cached]);
            script.compute(session, 1, 0..cached as u32, true);
            script.close(session, 1);
        }
        let session = script.open_as(Open { reserve_tokens: 64, ..receives(1, &path, 256) });
        let pages = script.opened(session).pages.0.clone();
        assert_eq!(pages.len(), 4, "the whole prompt has its pages");
        let pages = Pages(pages[first..].to_vec());
        let expect = Expect { attempt: 1, tokens: 256, first: first as u32, pages };
        assert_eq!(script.told_receiver(), [expect.into()]);
        script.arrive(1, 256);
        let closed = script.close(session, 0);
        assert_eq!((closed.l1_pages, closed.duplicates), (4, u32::from(cached == 4)));
        assert_eq!(script.counter("index.received_pages"), 4 - first as u64);
    }
}

#[test]
fn pages_behind_a_load_are_expected_when_it_has_ended_well() {
    for ok in [true, false] {
        let mut script = Script::serving(8);
        let path = keys(1, 4);
        script.cache(&path[..2], 1, 0);
        script.evict(1, 2);
        let session = script.ask(receives(1, &path, 256));
        let load = script.op_of("load");
        let pages = Pages([20, 21, 22, 23].map(PageId).to_vec());
        script.news(Address::Loader, load, LoadStarted { pages, ring_slot: 0, base: 0 }.into());
        let waits = script.ask_handover(1);
        assert_eq!(script.told_receiver(), []);
        script.news(Address::Loader, load, LoadEnded { ok }.into());
        if ok {
            let pages = Pages(vec![PageId(22), PageId(23)]);
            assert_eq!(script.told_receiver(), [Expect { attempt: 1, tokens: 256, first: 2, pages }.into()]);
            script.arrive(1, 256);
            assert_eq!(script.probe(&path).l1, 4);
            assert!(matches!(script.answer(waits), Answer::HandedOver(over) if over.received == 2));
        } else {
            let cause = "its load failed".to_owned();
            assert_eq!(script.told_receiver(), [Unexpect { attempt: 1, cause }.into()], "its peer may ask");
            assert!(!script.is_answered(waits), "it may compute when nothing writes its pages");
            script.not_arriving(1);
            assert_eq!(script.refusal(waits), &WrongState::new(TRANSFER, "failed: its load failed").into());
            script.compute(session, 2, 0..4, true);
            assert_eq!(script.probe(&path).l1, 4, "it is a session like any other");
        }
    }
}

#[test]
fn who_waits_is_answered_once_the_pages_are_there_and_again_from_then_on() {
    let mut script = Script::serving(0);
    let unknown = |refusal: &Refusal| matches!(refusal, Refusal::Unknown(_));
    let op = script.ask_handover(1);
    assert!(unknown(script.refusal(op)), "no session of it is open");
    let session = script.open_as(receives(1, &keys(1, 1), 64));
    let (first, second) = (script.ask_handover(1), script.ask_handover(1));
    let foreign = script.ask(Handover { transfer: TRANSFER, attempt: 1, tenant: "b".to_owned() });
    let ahead = script.ask_handover(2);
    assert!(unknown(script.refusal(foreign)) && unknown(script.refusal(ahead)));
    script.arrive(1, 64);
    script.arrive(1, 64);
    let answer = Answer::from(HandedOver { tokens: 64, received: 1, blob: Bin(b"seed".to_vec()), components: vec![] });
    assert!(!script.is_answered(first), "the newest is answered");
    assert_eq!(script.answer(second), &answer);
    let again = script.ask_handover(1);
    assert_eq!(script.answer(again), &answer);
    let settled = script.told_receiver().into_iter().filter(|msg| matches!(msg, ReceiverIn::HandoverSettled(_)));
    assert_eq!(settled.count(), 2, "each word is answered");
    assert_eq!(script.counter("index.handovers_received"), 1);
    script.close(session, 0);
    let late = script.ask_handover(1);
    assert_eq!(script.refusal(late), &WrongState::new(TRANSFER, "ended").into());
}

/// What comes from a group that does not store the same serves its session alone, without a key.
#[test]
fn pages_that_came_incomplete_are_never_cached_nor_what_stands_behind_them() {
    let mut script = Script::serving(8);
    let path = keys(1, 4);
    script.cache(&path[..1], 1, 0);
    let session = script.open_as(receives(1, &path, 256));
    let waits = script.ask_handover(1);
    script.sent.clear();
    let components = vec!["target.kv".to_owned()];
    script.receiver_says(Arrived { attempt: 1, tokens: 256, blob: Bin(vec![]), components: components.clone() });
    assert!(matches!(script.answer(waits), Answer::HandedOver(over) if over.components == components));
    assert_eq!(script.probe(&path).l1, 1, "the page that was here");
    let closed = script.close(session, 0);
    assert_eq!((closed.l1_pages, closed.uncached, closed.reason.as_str()), (1, 3, "came_incomplete"));
    assert_eq!((script.counter("index.came_incomplete"), script.probe(&path).l1), (1, 1));
    let backups = script.sent.iter().filter(|(_, to)| matches!(to, Outgoing::Writer(WriterIn::Backup(_))));
    assert_eq!(backups.count(), 0);
}

#[test]
fn the_blob_is_kept_until_the_engine_steps_on() {
    let mut script = Script::serving(0);
    let session = script.open_as(receives(1, &[], 63));
    script.arrive(1, 63);
    script.announce(session, 1, 63..64, true);
    let late = script.ask_handover(1);
    assert_eq!(script.refusal(late), &WrongState::new(TRANSFER, "stepped on").into());
}

#[test]
fn whatever_ends_the_session_its_pages_stay_until_nothing_writes_them() {
    type End = fn(&mut Script, OpId);
    let rows: [(&str, End); 4] = [
        ("its session closed", |script, session| {
            script.ask(close(session, 0, &[]));
        }),
        ("its session was aborted", |script, session| {
            script.ask(abort(session, 0));
        }),
        ("the lease of its engine ran out", |script, session| {
            script.pass_ms(30_001);
            script.ask(abort(session, 0));
        }),
        ("its engine died", |script, _| script.register(Rank(0), Incarnation([0xe1; 16]), 65)),
    ];
    for (cause, end) in rows {
        for arrives in [true, false] {
            let mut script = Script::serving(0);
            let path = keys(1, 2);
            let session = script.open_as(receives(1, &path, 128));
            let pages = script.opened(session).pages.0.clone();
            let waits = script.ask_handover(1);
            script.receiver_says(Expected { attempt: 1 });
            script.told_receiver();
            end(&mut script, session);
            let unexpect = ReceiverIn::from(Unexpect { attempt: 1, cause: cause.to_owned() });
            assert_eq!(script.told_receiver(), std::slice::from_ref(&unexpect));
            assert!(!script.is_answered(waits), "{cause}: its pages may be written");
            script.receiver_says(Expected { attempt: 1 });
            script.receiver_says(Rejected { refusal: Unknown::new("transfer", TRANSFER).into() });
            script.pass_ms(60_000);
            assert!(script.told_receiver().contains(&unexpect), "{cause}: said until it is answered");
            assert_eq!((script.freed(), script.probe(&path).l1), (vec![], 0), "{cause}");
            assert_eq!(script.index.private_pages(), pages, "{cause}");
            for _ in 0..2 {
                if arrives { script.arrive(1, 128) } else { script.not_arriving(1) }
            }
            match script.answer(waits) {
                Answer::HandedOver(over) => assert!(arrives && over.received == 2, "{cause}"),
                answer => assert_eq!(answer, &failed(cause).into()),
            }
            script.take_frees();
            let kept = if arrives && cause == "its session closed" { 2 } else { 0 };
            assert_eq!(script.freed().len(), 2 - kept, "{cause}: only a session that closed has use for them");
            assert_eq!((script.counter("index.sessions"), script.counter("index.in_flight")), (0, 0), "{cause}");
        }
    }
}

#[test]
fn an_end_that_overtakes_what_was_expected_counts_and_one_that_contradicts_it_does_not() {
    for (tokens, pages) in [(128, 2), (127, 0)] {
        let mut script = Script::serving(0);
        let path = keys(1, 2);
        script.open_as(receives(1, &path, 128));
        script.arrive(1, tokens);
        script.receiver_says(Expected { attempt: 1 });
        script.sent.clear();
        script.pass_ms(5_000);
        assert_eq!((script.told_receiver(), script.probe(&path).l1), (vec![], pages));
        assert_eq!(script.counter("index.contradicted"), u64::from(pages == 0));
    }
}

#[test]
fn pages_that_another_session_committed_meanwhile_are_duplicates() {
    let mut script = Script::serving(0);
    let path = keys(1, 2);
    let receiver = script.open_as(receives(1, &path, 128));
    let other = script.open(&path);
    script.compute(other, 1, 0..2, true);
    script.arrive(1, 128);
    let closed = script.close(receiver, 0);
    assert_eq!((closed.l1_pages, closed.duplicates), (2, 2));
    assert_eq!(script.freed().len(), 2);
}

#[test]
fn a_higher_attempt_waits_for_the_end_of_the_lower_one_which_is_told_why() {
    let mut script = Script::serving(0);
    let path = keys(1, 2);
    let lower = script.open_as(receives(1, &path, 128));
    let waits = script.ask_handover(1);
    let higher = script.open_as(receives(2, &path, 128));
    let again = script.ask_handover(1);
    assert!(!script.is_answered(waits) && !script.is_answered(again), "its pages may be written");
    let told: Vec<&str> = script.told_receiver().iter().map(ReceiverIn::code).collect();
    assert_eq!(told, ["expect", "unexpect"]);
    let third = script.open_as(receives(3, &path, 128));
    assert_eq!(script.told_receiver(), [], "the second was never heard of");
    script.not_arriving(2);
    assert_eq!(script.counter("index.contradicted"), 0);
    script.told_receiver();
    script.not_arriving(1);
    assert_eq!(script.refusal(again), &failed("attempt 2 came"), "the newest is answered");
    let pages = script.opened(third).pages.clone();
    let expect = ReceiverIn::from(Expect { attempt: 3, tokens: 128, first: 0, pages });
    assert_eq!(script.told_receiver(), [expect, HandoverSettled { attempt: 1 }.into()]);
    script.arrive(3, 128);
    assert_eq!(script.probe(&path).l1, 2);
    for session in [lower, higher, third] {
        script.ask(abort(session, 0));
    }
    script.take_frees();
    assert_eq!((script.counter("index.sessions"), script.counter("index.in_flight")), (0, 0));
    assert_eq!((script.counter("index.private_l1"), script.counter("index.handovers_failed")), (0, 2));
}

#[test]
fn received_pages_are_backed_up_by_the_policy_of_the_group() {
    for (write_policy, backups) in
        [(WritePolicy::WriteThrough, 1), (WritePolicy::Selective, 0), (WritePolicy::WriteBack, 0)]
    {
        let shape = IndexConfig::new(manifest(1), 65, 8);
        let mut script = Script::of(IndexConfig { compute_tokens_min: 0, write_policy, ..shape });
        let path = keys(1, 2);
        script.open_as(receives(1, &path, 128));
        script.arrive(1, 128);
        assert_eq!((script.count_of("backup"), script.probe(&path).l1), (backups, 2), "{write_policy:?}");
    }
}

#[test]
fn who_waits_for_a_session_that_finds_no_room_is_told_that_there_is_none() {
    let mut script = Script::serving(0);
    let session = script.ask(receives(1, &keys(1, 1), 64));
    let waits = script.ask_handover(1);
    let reserve = script.op_of("reserve");
    script.news(Address::Allocator, reserve, Short { short: vec![1] }.into());
    assert!(matches!(script.refusal(session), Refusal::OutOfPages(_)));
    assert!(matches!(script.refusal(waits), Refusal::Unknown(_)));
    script.open_as(receives(1, &keys(1, 1), 64));
    assert_eq!(script.told_receiver().len(), 1, "the same attempt, with room");
}

#[test]
fn a_lower_attempt_that_finds_no_room_is_over_before_the_higher_one_begins() {
    let mut script = Script::serving(0);
    let path = keys(1, 1);
    script.ask(receives(1, &path, 64));
    let reserve = script.op_of("reserve");
    let higher = script.open_as(receives(2, &path, 64));
    script.news(Address::Allocator, reserve, Short { short: vec![1] }.into());
    assert_eq!(script.told_receiver().iter().map(ReceiverIn::code).collect::<Vec<_>>(), ["unexpect"]);
    script.not_arriving(1);
    let pages = script.opened(higher).pages.clone();
    let expect = ReceiverIn::from(Expect { attempt: 2, tokens: 64, first: 0, pages });
    assert_eq!(script.told_receiver(), [expect, HandoverSettled { attempt: 1 }.into()]);
    script.arrive(2, 64);
    assert_eq!(script.probe(&path).l1, 1);
}

#[test]
fn an_open_session_may_grow_while_it_waits() {
    let mut script = Script::serving(0);
    let session = script.open_as(receives(1, &keys(1, 1), 64));
    script.ask(Extend { session, tenant: "a".to_owned(), tokens: 64, owners: Owners(vec![]), first: 1 });
    let reserve = script.op_of("reserve");
    script.news(Address::Allocator, reserve, Reserved { pages: Pages(vec![PageId(40)]) }.into());
    script.arrive(1, 64);
    script.ask(abort(session, 0));
    assert_eq!(script.freed(), [PageId(40)]);
}

#[test]
fn an_open_that_is_aborted_before_it_has_its_pages_is_told_to_the_receiver_too() {
    let mut script = Script::serving(0);
    let session = script.ask(receives(1, &keys(1, 1), 64));
    script.ask(abort(session, 0));
    let cause = "its session was aborted".to_owned();
    assert_eq!(script.told_receiver(), [Unexpect { attempt: 1, cause }.into()]);
    let reserve = script.op_of("reserve");
    script.news(Address::Allocator, reserve, Reserved { pages: Pages(vec![PageId(5)]) }.into());
    assert_eq!(script.freed(), [PageId(5)], "nobody was told of it");
    script.not_arriving(1);
    script.take_frees();
    assert_eq!((script.counter("index.sessions"), script.counter("index.in_flight")), (0, 0));
}
