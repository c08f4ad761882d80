//! What others get wrong, by mistake or on purpose, and what they refuse.

use super::*;
use crate::protocol::{Busy, CP_SIZE_MAX};

#[test]
fn what_a_hostile_peer_says_is_refused_and_changes_nothing() {
    let mut receiver = receiver();
    filling(&mut receiver);
    let rows = [
        (Finished { owners: Owners(vec![1, 3]), ..finished() }, "Malformed"),
        (Finished { owners: Owners(vec![1, 3, 3, 3]), ..finished() }, "Malformed"),
        (Finished { owners: Owners(vec![1, 3, CP_SIZE_MAX]), ..finished() }, "Malformed"),
        (Finished { owners: Owners(vec![1, 3, NOBODY]), ..finished() }, "Malformed"),
        (Finished { straggler: Rank(CP_SIZE_MAX), ..finished() }, "Malformed"),
        (Finished { tokens: 0, ..finished() }, "Malformed"),
        (Finished { tokens: 192, ..finished() }, "Malformed"),
        (Finished { tokens: 201, ..finished() }, "Malformed"),
        (Finished { tokens: u32::MAX, ..finished() }, "Malformed"),
        (Finished { blob: Bin(vec![0; BLOB_BYTES_MAX + 1]), ..finished() }, "TooLarge"),
    ];
    let refused = rows.len() as u64;
    for (msg, code) in rows {
        assert_eq!(refusal(&peer(&mut receiver, msg)), code);
    }
    let other = OpId::new(Incarnation([0x77; 16]), 2);
    assert_eq!(refusal(&receiver.say_as(Address::Sender, THERE, other, finished())), "Unknown");
    assert_eq!(codes(&receiver.say_as(Address::Sender, THERE, other, ceased(1))), ["prefill ceased_heard"]);
    assert_eq!(receiver.counter("receiver.rejected"), refused + 1);
    let blob = Bin(vec![0; BLOB_BYTES_MAX]);
    assert_eq!(codes(&peer(&mut receiver, Finished { tokens: 193, blob, ..finished() })), ["rank.0 report"]);
    let mut receiver = self::receiver();
    accepting_it(&mut receiver);
    assert_eq!(refusal(&peer(&mut receiver, finished())), "WrongState");
}

#[test]
fn a_peer_that_does_not_fit_or_has_no_name_is_not_met() {
    let mut receiver = receiver_with(|config| config.peers_max = 1);
    for group in ["", "a.b", "a b", "*", &"x".repeat(65)] {
        let meet = Meet { group: group.to_owned(), ..meet() };
        assert_eq!(receiver.say_as(Address::Sender, THERE, MEET, meet), [], "nobody to answer to");
    }
    let wrong = Manifest { page_tokens: 16, ..manifest(4) };
    let sent = receiver.say_as(Address::Sender, THERE, MEET, Meet { manifest: wrong, ..meet() });
    let [(MEET, Outgoing::PeerSender(_, SenderIn::Rejected(rejected)))] = sent.as_slice() else { panic!("{sent:?}") };
    assert_eq!(rejected.refusal.cause(), "Mismatch: page_tokens is 16 and 64");
    assert_eq!(peer(&mut receiver, offer(1)), [], "of who was not met");
    met(&mut receiver);
    let other = Meet { group: "other".to_owned(), ..meet() };
    assert_eq!(refusal(&receiver.say_as(Address::Sender, Incarnation([9; 16]), MEET, other)), "Busy");
    let named_otherwise = Offer { group: "other".to_owned(), ..offer(1) };
    assert_eq!(peer(&mut receiver, named_otherwise), []);
    assert_eq!((receiver.counter("receiver.stale"), receiver.counter("receiver.offers")), (2, 0));
    let mut receiver = receiver_with(|config| config.manifest = manifest(4));
    assert_eq!(refusal(&receiver.say_as(Address::Sender, THERE, MEET, meet())), "Unsupported");
    assert_eq!(refusal(&receiver.say(Address::Index, it(), expect(1))), "Unsupported");
}

#[test]
fn what_the_index_expects_is_checked_and_bounded() {
    let mut receiver = receiver_with(|config| (config.transfers_max, config.positions_max) = (1, 4));
    let pages = |ids: &[u32]| Pages(ids.iter().copied().map(PageId).collect());
    let rows = [
        (expect(0), "Malformed"),
        (Expect { tokens: 0, ..expect(1) }, "Malformed"),
        (Expect { tokens: 257, ..expect(1) }, "TooLarge"),
        (Expect { first: 0, ..expect(1) }, "Malformed"),
        (Expect { first: 5, pages: pages(&[]), ..expect(1) }, "Malformed"),
        (Expect { pages: pages(&[30, 20, 0]), ..expect(1) }, "Malformed"),
        (Expect { pages: pages(&[30, 20, 30]), ..expect(1) }, "Malformed"),
    ];
    for (msg, code) in rows {
        assert_eq!(refusal(&receiver.say(Address::Index, it(), msg)), code);
    }
    expected(&mut receiver);
    assert_eq!(refusal(&receiver.say(Address::Index, op(50), expect(1))), "Busy");
    let rank_is = RankIs { rank: Rank(1), incarnation: life(1, 1) };
    assert_eq!(refusal(&receiver.say(Address::Index, op(51), rank_is)), "Malformed");
}

#[test]
fn offers_that_nobody_expects_are_bounded_and_another_group_does_not_take_them_over() {
    let mut receiver = receiver_with(|config| config.offers_max = 1);
    met(&mut receiver);
    peer(&mut receiver, offer(1));
    let other = OpId::new(Incarnation([0x77; 16]), 2);
    assert_eq!(refusal(&receiver.say_as(Address::Sender, THERE, other, offer(1))), "Busy");
    let (elsewhere, group) = (Incarnation([9; 16]), "elsewhere".to_owned());
    receiver.say_as(Address::Sender, elsewhere, MEET, Meet { group: group.clone(), ..meet() });
    let theirs = Offer { group, ..offer(1) };
    assert_eq!(codes(&receiver.say_as(Address::Sender, elsewhere, it(), theirs.clone())), ["elsewhere cease"]);
    receiver.say(Address::Index, it(), expect(1));
    receiver.say(RANK_0, it(), accepting());
    assert_eq!(codes(&receiver.say_as(Address::Sender, elsewhere, it(), theirs)), ["elsewhere cease"]);
    assert_eq!(codes(&receiver.say_as(Address::Sender, elsewhere, it(), ceased(1))), ["elsewhere ceased_heard"]);
    assert_eq!(codes(&receiver.say_as(Address::Sender, elsewhere, it(), finished())), ["elsewhere cease"]);
    assert_eq!(codes(&peer(&mut receiver, finished())), ["rank.0 report"], "it still comes from where it was offered");
    let higher = Offer { group: "elsewhere".to_owned(), ..offer(2) };
    let sent = receiver.say_as(Address::Sender, elsewhere, it(), higher);
    assert_eq!(sent, [cease(1, "a higher attempt is offered")], "no proof that the first has stopped");
}

#[test]
fn an_offer_of_other_tokens_is_a_failure_of_both_sides_that_names_both() {
    let mut receiver = receiver();
    expected(&mut receiver);
    let cause = "Mismatch: tokens is 199 and 200";
    let sent = peer(&mut receiver, Offer { tokens: 199, ..offer(1) });
    assert_eq!(sent, [vec![cease(1, cause)], not_arriving(1, cause)].concat());
}

#[test]
fn an_older_life_another_attempt_and_the_wrong_member_are_dropped_and_counted() {
    let mut receiver = receiver();
    checking(&mut receiver);
    let stale = |receiver: &mut Script<Receiver>, from, life, msg: ReceiverIn| {
        assert_eq!(receiver.say_as(from, life, it(), msg), []);
    };
    stale(&mut receiver, RANK_0, life(0, 9), landed(&[1, 3, 3]).into());
    stale(&mut receiver, RANK_0, life(0, 1), Landed { attempt: 2, ..landed(&[1, 3, 3]) }.into());
    stale(&mut receiver, RANK_0, life(0, 1), Revoked { attempt: 2, ..REVOKED }.into());
    stale(&mut receiver, Address::Sender, Incarnation([9; 16]), ceased(1).into());
    stale(&mut receiver, Address::Index, CONTROL, HandoverSettled { attempt: 2 }.into());
    assert_eq!(receiver.counter("receiver.stale"), 5);
    stale(&mut receiver, Address::Rank(Rank(1)), life(1, 1), landed(&[1, 3, 3]).into());
    stale(&mut receiver, Address::Index, CONTROL, offer(1).into());
    stale(&mut receiver, Address::Receiver, CONTROL, expect(1).into());
    assert_eq!(receiver.counter("receiver.foreign"), 3);
    stale(&mut receiver, RANK_0, life(0, 1), REVOKED.into());
    stale(&mut receiver, RANK_0, life(0, 1), accepting().into());
    stale(&mut receiver, Address::Index, CONTROL, HandoverSettled { attempt: 1 }.into());
    assert_eq!(receiver.counter("receiver.late"), 3, "not in this state");
    is(&mut receiver, 0, Incarnation::default());
    assert_eq!(receiver.counter("receiver.stale"), 6, "overtaken on the way");
    assert_eq!(codes(&receiver.say(RANK_0, it(), landed(&[1, 3, 3]))), ["rank.0 revoke"]);
}

#[test]
fn refusals_of_others_end_what_they_speak_of_and_prove_nothing() {
    let rejected = || Rejected { refusal: Unknown::new("op", 1).into() };
    for asked in [accepting_it as fn(&mut Script<Receiver>), checking] {
        let mut receiver = receiver();
        asked(&mut receiver);
        assert_eq!(receiver.say(RANK_0, it(), rejected()), [cease(1, "rank 0: Unknown")]);
        peer(&mut receiver, ceased(1));
        assert_eq!(receiver.say(RANK_0, it(), rejected()), [], "that it is revoked only it can say");
        assert_eq!(receiver.say(RANK_0, it(), REVOKED), not_arriving(1, "rank 0: Unknown"));
        assert_eq!(receiver.say(Address::Index, it(), rejected()), [], "it knows nothing of it");
        assert_eq!(receiver.counter("receiver.running"), 0);
    }
    let mut receiver = receiver();
    filling(&mut receiver);
    let busy = Busy { queue: "transfers".to_owned(), bound: 1, retry_ms: 1 };
    assert_eq!(peer(&mut receiver, Rejected { refusal: busy.into() }), [cease(1, "sender: Busy")]);
    let mut receiver = self::receiver();
    expected(&mut receiver);
    assert_eq!(receiver.say(Address::Index, it(), rejected()), not_arriving(1, "index: Unknown"));
    assert_eq!(receiver.counter("receiver.running"), 0);
}

#[test]
fn every_transfer_ends_in_one_span_with_the_buffers_of_both_sides() {
    let fact = |span: &Span, name: &str| span.facts.iter().find(|(of, _)| *of == name).map(|(_, fact)| fact.clone());
    let mut script = receiver();
    sealing(&mut script);
    assert_eq!(script.spans, [], "it is not over");
    script.say(RANK_0, it(), REVOKED);
    let [span] = script.take_spans().try_into().expect("one span");
    assert_eq!((span.name, span.op, &span.parent, &span.fault), ("transfer.receive", it(), &TRACE, &None));
    assert_eq!(span.links, [TRACE], "of the session that sends");
    for (name, value) in [
        ("transfer.pages", 3),
        ("transfer.bytes", 96),
        ("transfer.rank_buffers", 2),
        ("transfer.peer_buffers", 2),
        ("copy.straggler_rank", 3),
    ] {
        assert_eq!(fact(&span, name), Some(Fact::Count(value)), "{name}");
    }
    let mut script = receiver();
    expected(&mut script);
    script.say(Address::Index, it(), unexpect(1));
    let [span] = script.take_spans().try_into().expect("one span");
    assert_eq!(span.fault.as_deref(), Some("TransferFailed"));
    assert_eq!(fact(&span, "transfer.cause"), Some(Fact::Text("aborted".to_owned())));
}

#[cfg(feature = "planted-faults")]
mod planted {
    use super::*;
    use crate::faults::Fault;

    fn planted(fault: Fault) -> Script<Receiver> {
        receiver_with(|config| (config.faults, config.wait_ms_max) = (Faults::planted(fault), 600))
    }

    #[test]
    fn pages_are_given_up_by_a_timer() {
        let mut receiver = planted(Fault::TransferFreedByTimer);
        filling(&mut receiver);
        assert_eq!(receiver.wake("transfer"), not_arriving(1, "not there after 600 ms"));
    }

    #[test]
    fn entries_are_counted_and_not_looked_at() {
        let mut receiver = planted(Fault::TransferCountForSet);
        checking(&mut receiver);
        assert_eq!(codes(&receiver.say(RANK_0, it(), landed(&[NOBODY, 2, 3]))), ["rank.0 revoke"]);
    }

    #[test]
    fn what_is_said_of_an_older_attempt_is_taken() {
        let mut receiver = planted(Fault::StaleTransferAccepted);
        met(&mut receiver);
        receiver.say(Address::Index, it(), expect(2));
        peer(&mut receiver, offer(2));
        assert_eq!(codes(&receiver.say(RANK_0, it(), accepting())), ["prefill wanted"]);
    }
}
