//! One receiver, its index, its rank and a peer.

mod hostile;

use super::*;
use crate::protocol::{
    Accepting, Arrived, BLOB_BYTES_MAX, Bin, Cease, Ceased, ComponentSpec, Expect, Expected, Finished, HandoverSettled,
    LandFigures, Landed, Meet, NOBODY, NotArriving, Offer, OpSettled, Owners, PageId, Pages, PeerPage, Position,
    RankIn, RankIs, Received, Rejected, Revoked, Unexpect, Unknown,
};
use crate::script::{CONTROL, Script, Sent, TRACE, life, op};
use crate::span::{Fact, Span};

const RANK_0: Address = Address::Rank(RANK);
/// The life of the peer's sender.
const THERE: Incarnation = Incarnation([0xde; 16]);
/// Under which op the peer's sender meets.
const MEET: OpId = OpId([0xdd; 16]);

/// The transfer that is spoken of.
fn it() -> OpId {
    OpId::new(Incarnation([0x77; 16]), 1)
}

fn manifest(cp_size: u8) -> Manifest {
    let component = ComponentSpec { name: "target.kv".to_owned(), dtype: "u8".to_owned(), page_bytes: vec![16, 0, 16] };
    Manifest { page_tokens: 64, cp_size, tile_pages: 1, draft_lookahead_tokens: 0, components: vec![component] }
}

/// A receiver whose rank lives.
fn receiver_with(change: impl FnOnce(&mut ReceiverConfig)) -> Script<Receiver> {
    let mut config = ReceiverConfig::new(&manifest(1));
    change(&mut config);
    let mut receiver = Script::new(Receiver::new(config, 1));
    assert_eq!(is(&mut receiver, 1, life(0, 1)), [(op(1), Outgoing::Index(OpSettled {}.into()))]);
    receiver
}

fn receiver() -> Script<Receiver> {
    receiver_with(|_| ())
}

fn is(receiver: &mut Script<Receiver>, n: u64, incarnation: Incarnation) -> Sent {
    receiver.say(Address::Index, op(n), RankIs { rank: RANK, incarnation })
}

/// Of four pages, the last with 8 tokens, the first is here.
fn expect(attempt: u32) -> Expect {
    Expect { attempt, tokens: 200, first: 1, pages: Pages([30, 20, 10].map(PageId).to_vec()) }
}

fn unexpect(attempt: u32) -> Unexpect {
    Unexpect { attempt, cause: "aborted".to_owned() }
}

fn meet() -> Meet {
    Meet { group: "prefill".to_owned(), manifest: manifest(4) }
}

fn offer(attempt: u32) -> Offer {
    Offer { attempt, group: "prefill".to_owned(), tokens: 200 }
}

fn accepting() -> Accepting {
    Accepting { attempt: 1, rank: RANK, endpoint: "tcp://here".to_owned(), grant: Bin(vec![7]) }
}

fn finished() -> Finished {
    let (owners, blob) = (Owners(vec![1, 3, 3]), Bin(vec![1, 2, 3]));
    Finished { attempt: 1, tokens: 200, owners, straggler: Rank(3), blob }
}

fn landed(owners: &[u8]) -> Landed {
    let figures = LandFigures { bytes: 96, buffers: 2, refused: 1 };
    Landed { attempt: 1, rank: RANK, owners: Owners(owners.to_vec()), figures }
}

const REVOKED: Revoked = Revoked { attempt: 1, rank: RANK };

fn ceased(attempt: u32) -> Ceased {
    Ceased { attempt, cause: "gone".to_owned() }
}

fn not_arriving(attempt: u32, cause: &str) -> Sent {
    vec![(it(), Outgoing::Index(NotArriving { attempt, cause: cause.to_owned() }.into()))]
}

fn cease(attempt: u32, cause: &str) -> (OpId, Outgoing) {
    let cease = Cease { attempt, cause: cause.to_owned() };
    (it(), Outgoing::PeerSender("prefill".into(), cease.into()))
}

fn codes(sent: &Sent) -> Vec<String> {
    let name = |to: &Outgoing| match to {
        Outgoing::PeerSender(group, _) => group.to_string(),
        other => other.address().expect("an address").to_string(),
    };
    sent.iter().map(|(_, to)| format!("{} {}", name(to), to.encode_body().0)).collect()
}

/// The refusal that is the only thing sent.
fn refusal(sent: &Sent) -> &'static str {
    match sent.as_slice() {
        [(_, Outgoing::Index(IndexNews::Rejected(rejected)))]
        | [(_, Outgoing::PeerSender(_, SenderIn::Rejected(rejected)))] => rejected.refusal.code(),
        other => panic!("{other:?}"),
    }
}

/// Whether the rank is told that the sender has stopped.
fn is_drained(sent: &Sent) -> bool {
    let revoked = sent.iter().find_map(|(_, to)| match to {
        Outgoing::Rank(RANK, RankIn::Revoke(revoke)) => Some(revoke.drained),
        _ => None,
    });
    revoked.unwrap_or_else(|| panic!("{sent:?}"))
}

/// The peer's sender says `msg` of the transfer.
fn peer(receiver: &mut Script<Receiver>, msg: impl Into<ReceiverIn>) -> Sent {
    receiver.say_as(Address::Sender, THERE, it(), msg)
}

fn met(receiver: &mut Script<Receiver>) {
    assert_eq!(codes(&receiver.say_as(Address::Sender, THERE, MEET, meet())), ["prefill met"]);
}

fn expected(receiver: &mut Script<Receiver>) {
    met(receiver);
    assert_eq!(codes(&receiver.say(Address::Index, it(), expect(1))), ["index expected"]);
}

fn accepting_it(receiver: &mut Script<Receiver>) {
    expected(receiver);
    assert_eq!(codes(&peer(receiver, offer(1))), ["rank.0 accept"]);
}

fn filling(receiver: &mut Script<Receiver>) {
    accepting_it(receiver);
    assert_eq!(codes(&receiver.say(RANK_0, it(), accepting())), ["prefill wanted"]);
}

fn checking(receiver: &mut Script<Receiver>) {
    filling(receiver);
    assert_eq!(codes(&peer(receiver, finished())), ["rank.0 report"]);
}

fn sealing(receiver: &mut Script<Receiver>) {
    checking(receiver);
    assert!(is_drained(&receiver.say(RANK_0, it(), landed(&[1, 3, 3]))));
}

fn complete(receiver: &mut Script<Receiver>) {
    sealing(receiver);
    assert_eq!(codes(&receiver.say(RANK_0, it(), REVOKED)), ["index arrived", "prefill received"]);
}

fn settle(receiver: &mut Script<Receiver>, attempt: u32) {
    assert_eq!(receiver.say(Address::Index, it(), HandoverSettled { attempt }), []);
    assert_eq!(receiver.counter("receiver.running"), 0);
}

/// Every way to a state in which a grant may be known to the peer.
const GRANTED: [fn(&mut Script<Receiver>); 3] = [accepting_it, filling, checking];

#[test]
fn a_transfer_is_accepted_filled_checked_and_told_only_when_nothing_can_land_any_more() {
    let mut receiver = receiver();
    expected(&mut receiver);
    let sent = peer(&mut receiver, offer(1));
    let [(_, Outgoing::Rank(RANK, RankIn::Accept(accept)))] = sent.as_slice() else { panic!("{sent:?}") };
    assert_eq!(accept.positions.0, [1, 2, 3].map(Position));
    assert_eq!((accept.pages.0.as_slice(), &accept.lives), ([30, 20, 10].map(PageId).as_slice(), &vec![life(0, 1)]));
    let sent = receiver.say(RANK_0, it(), accepting());
    let [(_, Outgoing::PeerSender(_, SenderIn::Wanted(wanted)))] = sent.as_slice() else { panic!("{sent:?}") };
    assert_eq!(
        (&wanted.positions, wanted.slots.0.as_slice()),
        (&accept.positions, [30, 20, 10].map(PeerPage).as_slice())
    );
    assert_eq!((wanted.endpoint.as_str(), &wanted.grant), ("tcp://here", &Bin(vec![7])));
    assert_eq!(codes(&peer(&mut receiver, finished())), ["rank.0 report"]);
    assert!(is_drained(&receiver.say(RANK_0, it(), landed(&[1, 3, 3]))));
    let arrived = Arrived { attempt: 1, tokens: 200, blob: Bin(vec![1, 2, 3]), components: vec![] };
    let received = Outgoing::PeerSender("prefill".into(), Received { attempt: 1 }.into());
    assert_eq!(receiver.say(RANK_0, it(), REVOKED), [(it(), Outgoing::Index(arrived.into())), (it(), received)]);
    settle(&mut receiver, 1);
    assert_eq!((receiver.counter("receiver.arrived"), receiver.counter("receiver.bytes")), (1, 96));
    assert_eq!(receiver.counter("receiver.refused_frames"), 1);
}

#[test]
fn a_peer_of_one_rank_that_stores_more_sends_what_both_store() {
    let mut receiver = receiver();
    let richer = |cp_size: u8| {
        let draft = ComponentSpec { name: "draft.kv".to_owned(), ..manifest(1).components.remove(0) };
        let components = [manifest(1).components, vec![draft]].concat();
        Meet { manifest: Manifest { components, ..manifest(cp_size) }, ..meet() }
    };
    assert_eq!(refusal(&receiver.say_as(Address::Sender, THERE, MEET, richer(4))), "Mismatch", "several ranks");
    assert_eq!(codes(&receiver.say_as(Address::Sender, THERE, MEET, richer(1))), ["prefill met"]);
    receiver.say(Address::Index, it(), expect(1));
    let sent = peer(&mut receiver, offer(1));
    let [(_, Outgoing::Rank(RANK, RankIn::Accept(accept)))] = sent.as_slice() else { panic!("{sent:?}") };
    assert_eq!(accept.components, ["target.kv"]);
    let sent = receiver.say(RANK_0, it(), accepting());
    let [(_, Outgoing::PeerSender(_, SenderIn::Wanted(wanted)))] = sent.as_slice() else { panic!("{sent:?}") };
    assert_eq!(wanted.components, ["target.kv"]);
    peer(&mut receiver, Finished { owners: Owners(vec![0, 0, 0]), straggler: Rank(0), ..finished() });
    receiver.say(RANK_0, it(), landed(&[0, 0, 0]));
    let sent = receiver.say(RANK_0, it(), REVOKED);
    let Some((_, Outgoing::Index(IndexNews::Arrived(arrived)))) = sent.first() else { panic!("{sent:?}") };
    assert_eq!(arrived.components, ["target.kv"]);
}

#[test]
fn an_offer_waits_until_it_is_expected_and_the_other_way_round() {
    let mut receiver = receiver();
    met(&mut receiver);
    for _ in 0..2 {
        assert_eq!(peer(&mut receiver, offer(1)), [], "nobody expects it");
    }
    assert_eq!(receiver.counter("receiver.offers"), 1);
    assert_eq!(codes(&receiver.say(Address::Index, it(), expect(1))), ["index expected", "rank.0 accept"]);
    assert_eq!(receiver.counter("receiver.offers"), 0);
}

#[test]
fn nothing_wanted_is_asked_for_and_finished_all_the_same() {
    let mut receiver = receiver();
    met(&mut receiver);
    receiver.say(Address::Index, it(), Expect { first: 4, pages: Pages(vec![]), ..expect(1) });
    peer(&mut receiver, offer(1));
    assert_eq!(codes(&receiver.say(RANK_0, it(), accepting())), ["prefill wanted"]);
    assert_eq!(codes(&peer(&mut receiver, Finished { owners: Owners(vec![]), ..finished() })), ["rank.0 report"]);
    assert_eq!(codes(&receiver.say(RANK_0, it(), landed(&[]))), ["rank.0 revoke"]);
    assert_eq!(codes(&receiver.say(RANK_0, it(), REVOKED)), ["index arrived", "prefill received"]);
}

#[test]
fn what_has_landed_is_a_set_and_every_entry_has_to_be_the_right_one() {
    for (owners, cause) in [
        ([1, NOBODY, 3].as_slice(), "position 2 lacks a layer of a component"),
        (&[1, 3, 1], "position 3 came from rank 1, not 3"),
        (&[1, 3], "2 positions reported of 3"),
        (&[1, 3, 3, 3], "4 positions reported of 3"),
    ] {
        let mut receiver = receiver();
        checking(&mut receiver);
        assert_eq!(receiver.say(RANK_0, it(), landed(owners)), [cease(1, cause)]);
        assert_eq!(codes(&peer(&mut receiver, ceased(1))), ["prefill ceased_heard", "rank.0 revoke"]);
        assert_eq!(receiver.say(RANK_0, it(), REVOKED), not_arriving(1, cause));
        settle(&mut receiver, 1);
    }
}

#[test]
fn what_the_index_gives_up_waits_for_the_sender_and_then_for_the_rank() {
    for granted in GRANTED {
        let mut receiver = receiver();
        granted(&mut receiver);
        assert_eq!(receiver.say(Address::Index, it(), unexpect(1)), [cease(1, "aborted")]);
        assert_eq!(receiver.say(Address::Index, it(), unexpect(1)), []);
        assert_eq!(receiver.say(RANK_0, it(), accepting()), [], "too late");
        assert_eq!(receiver.say(RANK_0, it(), landed(&[1, 3, 3])), [], "too late");
        assert_eq!(peer(&mut receiver, finished()), [], "it is asked to cease");
        assert_eq!(receiver.say(RANK_0, it(), REVOKED), [], "nobody asked");
        assert!(is_drained(&peer(&mut receiver, ceased(1))));
        assert_eq!(codes(&peer(&mut receiver, ceased(1))), ["prefill ceased_heard"], "heard again");
        receiver.say_as(Address::Sender, THERE, MEET, meet());
        assert_eq!(codes(&receiver.wake("repeat")), ["rank.0 revoke"], "a timer frees nothing");
        assert_eq!(receiver.say(RANK_0, it(), REVOKED), not_arriving(1, "aborted"));
        assert_eq!(receiver.resync(Address::Index)[0], not_arriving(1, "aborted")[0]);
        settle(&mut receiver, 1);
        assert_eq!(receiver.say(Address::Index, it(), unexpect(1)), not_arriving(1, "aborted"));
        assert_eq!(receiver.counter("receiver.drained"), 1);
    }
}

#[test]
fn what_nobody_offered_is_given_up_at_once_and_what_is_complete_never() {
    let mut receiver = receiver();
    expected(&mut receiver);
    assert_eq!(receiver.say(Address::Index, it(), unexpect(1)), not_arriving(1, "aborted"));
    assert_eq!(peer(&mut receiver, offer(1)), [cease(1, "aborted")], "the sender hears of it");
    settle(&mut receiver, 1);
    assert_eq!(peer(&mut receiver, offer(1)), [cease(1, "aborted")]);
    assert_eq!(peer(&mut receiver, finished()), [cease(1, "aborted")]);
    for at in [sealing, complete] {
        let mut receiver = self::receiver();
        at(&mut receiver);
        assert_eq!(receiver.say(Address::Index, it(), unexpect(1)), []);
        assert_eq!(codes(&peer(&mut receiver, ceased(1))), ["prefill ceased_heard"]);
        receiver.say(RANK_0, it(), REVOKED);
        assert!(codes(&receiver.resync(Address::Index)).contains(&"index arrived".to_owned()));
        settle(&mut receiver, 1);
        let received = Outgoing::PeerSender("prefill".into(), Received { attempt: 1 }.into());
        assert_eq!(peer(&mut receiver, finished()), [(it(), received)], "its answer was lost");
    }
}

#[test]
fn a_sender_that_gives_up_is_heard_in_every_state() {
    for granted in GRANTED {
        let mut receiver = receiver();
        granted(&mut receiver);
        let sent = peer(&mut receiver, ceased(1));
        assert_eq!(codes(&sent), ["prefill ceased_heard", "rank.0 revoke"]);
        assert!(is_drained(&sent));
        assert_eq!(receiver.say(RANK_0, it(), REVOKED), not_arriving(1, "sender: gone"));
    }
    let mut receiver = receiver();
    expected(&mut receiver);
    assert_eq!(codes(&peer(&mut receiver, ceased(1))), ["prefill ceased_heard", "index not_arriving"]);
    let mut receiver = self::receiver();
    met(&mut receiver);
    peer(&mut receiver, offer(1));
    assert_eq!(codes(&peer(&mut receiver, ceased(1))), ["prefill ceased_heard"], "before it was expected");
    assert_eq!(peer(&mut receiver, offer(1)), [], "late");
    assert_eq!(codes(&receiver.say(Address::Index, it(), expect(1))), ["index expected", "index not_arriving"]);
}

#[test]
fn a_silent_sender_is_fenced_when_its_lease_has_run_out_and_not_before() {
    for granted in GRANTED {
        for is_given_up in [false, true] {
            let mut receiver = receiver();
            granted(&mut receiver);
            if is_given_up {
                receiver.say(Address::Index, it(), unexpect(1));
            }
            let sent = receiver.pass(1_999);
            assert!(!codes(&sent).contains(&"rank.0 revoke".to_owned()), "{sent:?}");
            receiver.say_as(Address::Sender, THERE, MEET, meet());
            receiver.pass(1_999);
            assert_eq!(receiver.counter("receiver.fenced"), 0, "it has spoken");
            assert_eq!(receiver.counter("receiver.lost_peers"), 0);
            assert!(!is_drained(&receiver.pass(1)));
            let cause = if is_given_up { "aborted" } else { "the sender is silent" };
            assert_eq!(peer(&mut receiver, ceased(1)), [], "of a life that is taken for dead");
            assert_eq!(receiver.say(RANK_0, it(), REVOKED), not_arriving(1, cause));
            assert_eq!(receiver.counter("receiver.fenced"), 1);
        }
    }
}

#[test]
fn while_a_lease_lasts_no_other_life_is_taken_for_the_sender() {
    let other = Incarnation([0xee; 16]);
    let mut receiver = receiver();
    met(&mut receiver);
    peer(&mut receiver, offer(1));
    assert_eq!(receiver.say_as(Address::Sender, other, MEET, meet()), []);
    assert_eq!(receiver.say_as(Address::Sender, other, it(), offer(2)), []);
    assert_eq!(receiver.counter("receiver.stale"), 2);
    assert_eq!(receiver.wake("peer lease"), []);
    assert_eq!((receiver.counter("receiver.offers"), receiver.counter("receiver.peers")), (0, 0));
    assert_eq!(codes(&receiver.say_as(Address::Sender, other, MEET, meet())), ["prefill met"]);
    assert_eq!(peer(&mut receiver, offer(1)), [], "of the dead one");
    let elsewhere = Meet { group: "elsewhere".to_owned(), ..meet() };
    assert_eq!(refusal(&receiver.say_as(Address::Sender, other, MEET, elsewhere)), "WrongState");
}

#[test]
fn a_rank_that_dies_ends_what_it_took_in_and_only_its_new_life_proves_it() {
    for granted in GRANTED {
        let mut receiver = receiver();
        granted(&mut receiver);
        assert_eq!(codes(&is(&mut receiver, 20, life(0, 2))), ["prefill cease", "index op_settled"]);
        assert!(is_drained(&peer(&mut receiver, ceased(1))));
        assert_eq!(receiver.say(RANK_0, it(), REVOKED), [], "its old life");
        assert_eq!(codes(&receiver.resync(RANK_0)), ["rank.0 revoke"]);
        let sent = receiver.say_as(RANK_0, life(0, 2), it(), REVOKED);
        assert_eq!(sent, not_arriving(1, "rank 0 died"));
    }
    let mut receiver = receiver();
    expected(&mut receiver);
    is(&mut receiver, 20, Incarnation::default());
    assert_eq!(codes(&peer(&mut receiver, offer(1))), ["prefill cease", "index not_arriving"], "nobody takes it in");
}

#[test]
fn a_transfer_that_takes_too_long_is_given_up_and_frees_nothing_by_itself() {
    let change = |config: &mut ReceiverConfig| (config.wait_ms_max, config.peer_lease_ms) = (600, 100_000);
    let mut receiver = receiver_with(change);
    expected(&mut receiver);
    assert_eq!(receiver.pass(599), []);
    assert_eq!(receiver.wake("transfer"), not_arriving(1, "not there after 600 ms"));
    for granted in GRANTED {
        let mut receiver = receiver_with(change);
        granted(&mut receiver);
        assert!(!codes(&receiver.pass(599)).contains(&"prefill cease".to_owned()));
        assert!(receiver.pass(1).contains(&cease(1, "not there after 600 ms")));
        assert!(codes(&receiver.pass(50_000)).iter().all(|code| code == "prefill cease"), "no timer frees");
        assert!(is_drained(&peer(&mut receiver, ceased(1))));
    }
}

#[test]
fn attempts_replace_each_other_upwards_only() {
    let mut receiver = receiver();
    filling(&mut receiver);
    assert_eq!(receiver.say(Address::Index, it(), expect(2)), [cease(1, "a higher attempt is expected")]);
    assert_eq!(codes(&peer(&mut receiver, offer(2))), ["rank.0 revoke"], "which the sender began after the lower");
    assert_eq!(codes(&receiver.say(RANK_0, it(), REVOKED)), ["index not_arriving"]);
    assert_eq!(receiver.say(Address::Index, it(), expect(2)), [], "the end of the lower is not taken in");
    settle(&mut receiver, 1);
    assert_eq!(codes(&receiver.say(Address::Index, it(), expect(2))), ["index expected", "rank.0 accept"]);
    let superseded = "a higher attempt is known";
    assert_eq!(receiver.say(Address::Index, it(), expect(1)), not_arriving(1, superseded));
    assert_eq!(receiver.say(Address::Index, it(), unexpect(1)), not_arriving(1, superseded));
    assert_eq!(peer(&mut receiver, offer(1)), [cease(1, superseded)]);
    assert_eq!(peer(&mut receiver, finished()), [cease(1, superseded)]);
    assert_eq!(codes(&peer(&mut receiver, ceased(1))), ["prefill ceased_heard"]);
    for stale in [ReceiverIn::from(accepting()), landed(&[1, 3, 3]).into(), REVOKED.into()] {
        assert_eq!(receiver.say(RANK_0, it(), stale), []);
    }
    assert_eq!(receiver.say(Address::Index, it(), HandoverSettled { attempt: 1 }), []);
    assert_eq!(receiver.counter("receiver.running"), 1);
    let mut receiver = self::receiver();
    met(&mut receiver);
    peer(&mut receiver, offer(2));
    assert_eq!(peer(&mut receiver, offer(1)), [cease(1, superseded)]);
    assert_eq!(codes(&receiver.say(Address::Index, it(), expect(1))), ["index expected", "index not_arriving"]);
    settle(&mut receiver, 1);
    assert_eq!(codes(&receiver.say(Address::Index, it(), expect(2))), ["index expected", "rank.0 accept"]);
    let mut receiver = self::receiver();
    met(&mut receiver);
    peer(&mut receiver, offer(1));
    assert_eq!(receiver.say(Address::Index, it(), expect(2))[1], cease(1, superseded));
}

#[test]
fn an_attempt_that_was_given_up_before_it_began_does_not_begin() {
    let mut receiver = receiver();
    met(&mut receiver);
    peer(&mut receiver, offer(1));
    let sent = receiver.say(Address::Index, it(), unexpect(1));
    assert_eq!(sent, [not_arriving(1, "it had not begun"), vec![cease(1, "aborted")]].concat());
    assert_eq!(receiver.say(Address::Index, it(), expect(1)), not_arriving(1, "it had not begun"));
    assert_eq!(peer(&mut receiver, offer(1)), [cease(1, "it had not begun")]);
}

#[test]
fn every_request_twice_is_answered_alike_and_lost_ones_are_said_again() {
    let mut receiver = receiver_with(|config| config.peer_lease_ms = 60_000);
    expected(&mut receiver);
    let again = [(it(), Outgoing::Index(Expected { attempt: 1 }.into()))];
    assert_eq!(receiver.say(Address::Index, it(), expect(1)), again);
    assert_eq!(receiver.resync(Address::Index), again);
    peer(&mut receiver, offer(1));
    assert_eq!(peer(&mut receiver, offer(1)), []);
    assert_eq!(codes(&receiver.wake("repeat")), ["rank.0 accept"]);
    let wanted = receiver.say(RANK_0, it(), accepting());
    assert_eq!(receiver.say(RANK_0, it(), accepting()), []);
    assert_eq!(peer(&mut receiver, offer(1)), wanted, "its answer was lost");
    peer(&mut receiver, finished());
    assert_eq!(peer(&mut receiver, finished()), []);
    assert_eq!(codes(&receiver.wake("repeat")), ["rank.0 report"]);
    receiver.say(RANK_0, it(), landed(&[1, 3, 3]));
    assert_eq!(receiver.say(RANK_0, it(), landed(&[NOBODY, 3, 3])), [], "its report was taken");
    assert_eq!(codes(&receiver.wake("repeat")), ["rank.0 revoke"]);
    receiver.say(RANK_0, it(), REVOKED);
    assert_eq!(receiver.say(RANK_0, it(), REVOKED), []);
    assert_eq!(codes(&peer(&mut receiver, finished())), ["prefill received"]);
    assert_eq!(codes(&receiver.wake("repeat")), ["index arrived"]);
    for _ in 0..2 {
        settle(&mut receiver, 1);
    }
    assert_eq!(receiver.say(Address::Index, it(), expect(1)), [], "it knows");
    assert_eq!(receiver.wake("peer lease"), []);
    assert_eq!(receiver.wake("ended transfer"), []);
    assert_eq!((receiver.counter("receiver.ended"), receiver.machine.next_deadline()), (0, None));
}
