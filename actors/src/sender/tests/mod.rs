//! One sender, its index, its ranks and a peer.

mod hostile;

use super::*;
use crate::protocol::{
    Bin, Cease, CeasedHeard, ComponentSpec, Incarnation, Met, Mismatch, OpSettled, PageId, Pages, PeerPage, PeerPages,
    Position, Positions, PushStopped, Pushed, Rank, RankIn, RankIs, Received, Refusal, Rejected, SendEnd, SendOpen,
    SendOver, SendPart, SendStop, SendTaken, Unknown, Wanted,
};
use crate::script::{CONTROL, Script, Sent, TRACE, life, op};
use crate::span::{Fact, Span};

const RANK_1: Address = Address::Rank(Rank(1));
/// The life of the peer's receiver.
const THERE: Incarnation = Incarnation([0xde; 16]);

/// The transfer that is spoken of.
fn it() -> OpId {
    OpId::new(Incarnation([0x77; 16]), 1)
}

fn manifest() -> Manifest {
    let component = ComponentSpec { name: "target.kv".to_owned(), dtype: "u8".to_owned(), page_bytes: vec![16, 0, 16] };
    Manifest { page_tokens: 64, cp_size: 2, tile_pages: 1, draft_lookahead_tokens: 0, components: vec![component] }
}

/// A sender of two ranks that live: even pages are rank 0's.
fn sender_with(change: impl FnOnce(&mut SenderConfig)) -> Script<Sender> {
    let mut config = SenderConfig::new("prefill".into(), &manifest());
    change(&mut config);
    let mut sender = Script::new(Sender::new(config, CONTROL, 1));
    for rank in 0..2 {
        let settled = is(&mut sender, u64::from(rank) + 1, rank, life(rank, 1));
        assert_eq!(settled, [(op(u64::from(rank) + 1), Outgoing::Index(OpSettled {}.into()))]);
    }
    sender
}

fn sender() -> Script<Sender> {
    sender_with(|_| ())
}

fn is(sender: &mut Script<Sender>, n: u64, rank: u8, incarnation: Incarnation) -> Sent {
    sender.say(Address::Index, op(n), RankIs { rank: Rank(rank), incarnation })
}

/// Four pages, the last with 8 tokens.
fn open(attempt: u32) -> SendOpen {
    SendOpen { attempt, to: "decode".to_owned(), session: op(9), tokens: 200 }
}

fn pages(ids: &[u32]) -> Pages {
    Pages(ids.iter().copied().map(PageId).collect())
}

/// Part 0: positions 0 and 1 of ranks 0 and 1. Part 1: positions 2 and 3 of rank 1, computed by step 7.
fn part(number: u32) -> SendPart {
    match number {
        0 => SendPart { attempt: 1, part: 0, first: 0, pages: pages(&[4, 5]), step: 0 },
        _ => SendPart { attempt: 1, part: number, first: 2 * number, pages: pages(&[7, 9]), step: 7 },
    }
}

fn end(attempt: u32) -> SendEnd {
    SendEnd { attempt, parts: 2, tokens: 200, blob: Bin(vec![1, 2, 3]) }
}

fn stop(attempt: u32) -> SendStop {
    SendStop { attempt, cause: "aborted".to_owned() }
}

/// Everything but position 0.
fn wanted() -> Wanted {
    Wanted {
        attempt: 1,
        positions: Positions([1, 2, 3].map(Position).to_vec()),
        slots: PeerPages([30, 20, 10].map(PeerPage).to_vec()),
        endpoint: "tcp://there".to_owned(),
        grant: Bin(vec![7]),
        components: vec![],
    }
}

fn pushed(part: u32, rank: u8) -> Pushed {
    let figures = PushFigures { bytes: 32, runs: 2, total_us: 5, ..PushFigures::NONE };
    Pushed { attempt: 1, part, rank: Rank(rank), complete: true, failed: vec![], figures }
}

fn failed(part: u32, rank: u8) -> Pushed {
    let refusal: Refusal = Unknown::new("grant", 1).into();
    Pushed { complete: false, failed: vec![refusal], ..pushed(part, rank) }
}

fn over(attempt: u32, cause: &str) -> Outgoing {
    let (ok, cause) = (cause.is_empty(), cause.to_owned());
    Outgoing::Index(SendOver { attempt, ok, cause }.into())
}

fn taken(parts: u32) -> Outgoing {
    Outgoing::Index(SendTaken { attempt: 1, parts }.into())
}

fn codes(sent: &Sent) -> Vec<String> {
    let name = |to: &Outgoing| match to {
        Outgoing::PeerReceiver(group, _) => group.to_string(),
        other => other.address().expect("an address").to_string(),
    };
    sent.iter().map(|(_, to)| format!("{} {}", name(to), to.encode_body().0)).collect()
}

/// The refusal that is the only thing sent.
fn refusal(sent: &Sent) -> &'static str {
    match sent.as_slice() {
        [(_, Outgoing::Index(IndexNews::Rejected(rejected)))]
        | [(_, Outgoing::PeerReceiver(_, ReceiverIn::Rejected(rejected)))] => rejected.refusal.code(),
        other => panic!("{other:?}"),
    }
}

/// The peer's receiver says `msg`.
fn peer(sender: &mut Script<Sender>, of: OpId, msg: impl Into<SenderIn>) -> Sent {
    sender.say_as(Address::Receiver, THERE, of, msg)
}

/// Opens the transfer; returns the op under which the peer is met.
fn opened(sender: &mut Script<Sender>) -> OpId {
    let sent = sender.say(Address::Index, it(), open(1));
    assert_eq!(codes(&sent), ["index send_taken", "decode meet"]);
    sent[1].0
}

fn offered(sender: &mut Script<Sender>) -> OpId {
    let meet = opened(sender);
    assert_eq!(codes(&peer(sender, meet, Met { lease_ms: 900 })), ["decode offer"]);
    meet
}

/// Both parts are named and wanted: rank 0 owns nothing that is wanted, rank 1 pushes one part and another.
fn sending(sender: &mut Script<Sender>) -> OpId {
    let meet = offered(sender);
    assert_eq!(sender.say(Address::Index, it(), part(0)), [(it(), taken(1))]);
    assert_eq!(codes(&peer(sender, it(), wanted())), ["rank.1 push"]);
    assert_eq!(codes(&sender.say(Address::Index, it(), part(1))), ["index send_taken", "rank.1 push"]);
    meet
}

fn finishing(sender: &mut Script<Sender>) -> OpId {
    let meet = sending(sender);
    assert_eq!(sender.say(Address::Index, it(), end(1)), []);
    assert_eq!(sender.say(RANK_1, it(), pushed(1, 1)), []);
    assert_eq!(codes(&sender.say(RANK_1, it(), pushed(0, 1))), ["decode finished"]);
    meet
}

/// Nothing reads, and the peer has to hear it.
fn ceasing(sender: &mut Script<Sender>) -> OpId {
    let meet = finishing(sender);
    assert_eq!(codes(&sender.say(Address::Index, it(), stop(1))), ["decode ceased", "index send_over"]);
    meet
}

#[test]
fn pages_are_pushed_by_their_owners_to_the_slots_of_their_positions_and_finished_names_them() {
    let mut sender = sender();
    offered(&mut sender);
    sender.say(Address::Index, it(), part(0));
    let first = peer(&mut sender, it(), wanted());
    let second = sender.say(Address::Index, it(), part(1));
    for (sent, positions, ids, slots, step) in
        [(&first[0], vec![1], vec![5], vec![30], 0), (&second[1], vec![2, 3], vec![7, 9], vec![20, 10], 7)]
    {
        let (_, Outgoing::Rank(Rank(1), RankIn::Push(push))) = sent else { panic!("{sent:?}") };
        assert_eq!(push.positions.0, positions.into_iter().map(Position).collect::<Vec<_>>());
        assert_eq!((&push.pages, push.step), (&pages(&ids), step));
        assert_eq!(push.slots.0, slots.into_iter().map(PeerPage).collect::<Vec<_>>());
        assert_eq!((push.endpoint.as_str(), &push.grant, push.deadline_ms), ("tcp://there", &Bin(vec![7]), 30_000));
        assert_eq!(push.lives, [life(0, 1), life(1, 1)]);
    }
    sender.say(Address::Index, it(), end(1));
    sender.say(RANK_1, it(), pushed(0, 1));
    let sent = sender.say(RANK_1, it(), pushed(1, 1));
    let [(_, Outgoing::PeerReceiver(_, ReceiverIn::Finished(finished)))] = sent.as_slice() else { panic!("{sent:?}") };
    assert_eq!(
        (finished.owners.0.as_slice(), finished.tokens, finished.straggler),
        ([1, 1, 1].as_slice(), 200, Rank(1))
    );
    assert_eq!(finished.blob, Bin(vec![1, 2, 3]));
    assert_eq!(peer(&mut sender, it(), Received { attempt: 1 }), [(it(), over(1, ""))]);
    assert_eq!((sender.counter("sender.received"), sender.counter("sender.bytes")), (1, 64));
    assert_eq!((sender.counter("sender.running"), sender.counter("sender.peers")), (0, 0));
    let of_ranks = sender.machine.rank_counters();
    let told = |name: &str| of_ranks.iter().find(|(of, _)| of == name).unwrap_or_else(|| panic!("no {name}")).1;
    assert_eq!(
        (told("sender.straggler_rank"), told("sender.rank.1.transfers"), told("sender.rank.1.bytes")),
        (1, 1, 64)
    );
    assert_eq!((told("sender.rank.0.transfers"), told("sender.rank.0.total_us.max")), (0, 0));
}

#[test]
fn what_is_wanted_may_be_nothing_and_is_finished_all_the_same() {
    let mut sender = sender();
    offered(&mut sender);
    let nothing = Wanted { positions: Positions(vec![]), slots: PeerPages(vec![]), ..wanted() };
    assert_eq!(peer(&mut sender, it(), nothing), []);
    for number in 0..2 {
        assert_eq!(sender.say(Address::Index, it(), part(number)), [(it(), taken(number + 1))]);
    }
    assert_eq!(codes(&sender.say(Address::Index, it(), end(1))), ["decode finished"]);
}

#[test]
fn every_request_of_the_index_twice_is_answered_alike_and_changes_nothing() {
    let mut sender = sender();
    opened(&mut sender);
    assert_eq!(sender.say(Address::Index, it(), open(1)), [(it(), taken(0))]);
    assert_eq!(sender.say(Address::Index, it(), part(1)), [(it(), taken(0))], "part 0 is missing");
    assert_eq!(sender.say(Address::Index, it(), end(1)), [(it(), taken(0))], "both parts are missing");
    for _ in 0..2 {
        assert_eq!(sender.say(Address::Index, it(), part(0)), [(it(), taken(1))]);
    }
    assert_eq!(sender.resync(Address::Index), [(it(), taken(1))]);
    assert_eq!((sender.counter("sender.early"), sender.counter("sender.duplicates")), (2, 2));
    let mut sender = self::sender();
    ceasing(&mut sender);
    for _ in 0..2 {
        assert_eq!(sender.say(Address::Index, it(), stop(1)), [(it(), over(1, "aborted"))]);
    }
    assert_eq!(peer(&mut sender, it(), CeasedHeard { attempt: 1 }), []);
    assert_eq!(sender.say(Address::Index, it(), open(1)), [(it(), over(1, "aborted"))]);
    assert_eq!(sender.say(Address::Index, it(), part(0)), [(it(), over(1, "aborted"))]);
    assert_eq!(sender.say(Address::Index, it(), end(1)), [(it(), over(1, "aborted"))]);
    assert_eq!(sender.counter("sender.failed"), 1);
}

#[test]
fn an_attempt_that_was_stopped_before_it_began_does_not_begin() {
    let mut sender = sender();
    let not_begun = [(it(), over(2, "it had not begun"))];
    assert_eq!(sender.say(Address::Index, it(), stop(2)), not_begun);
    assert_eq!(sender.say(Address::Index, it(), open(2)), not_begun, "it was overtaken on the way");
    assert_eq!(sender.say(Address::Index, it(), open(1)), [(it(), over(1, "a higher attempt is known"))]);
    assert_eq!(codes(&sender.say(Address::Index, it(), open(3))), ["index send_taken", "decode meet"]);
}

#[test]
fn a_higher_attempt_begins_when_nothing_of_the_lower_is_read() {
    let mut sender = sender();
    sending(&mut sender);
    assert_eq!(codes(&sender.say(Address::Index, it(), open(2))), ["rank.1 stop_push"]);
    assert_eq!(sender.say(Address::Index, it(), open(2)), [], "not before rank 1 has stopped");
    let stopped = PushStopped { attempt: 1, rank: Rank(1) };
    assert_eq!(codes(&sender.say(RANK_1, it(), stopped)), ["decode ceased", "index send_over"]);
    assert_eq!(codes(&sender.say(Address::Index, it(), open(2))), ["index send_taken", "decode meet"]);
    for stale in [SenderIn::from(part(0)), end(1).into(), stop(1).into(), open(1).into()] {
        let sent = sender.say(Address::Index, it(), stale);
        assert_eq!(sent, [(it(), over(1, "a higher attempt is known"))]);
    }
    assert_eq!(sender.say(RANK_1, it(), pushed(0, 1)), [], "of the lower attempt");
    assert_eq!(sender.counter("sender.stale"), 5);
}

#[test]
fn a_failure_stops_whoever_pushes_before_anything_is_over() {
    for failing in [0, 1] {
        let mut sender = sender();
        sending(&mut sender);
        let sent = sender.say(RANK_1, it(), failed(failing, 1));
        assert_eq!(codes(&sent), ["rank.1 stop_push"], "its other part may run");
        assert_eq!(codes(&sender.wake("repeat")), ["rank.1 stop_push"], "a timer ends nothing");
        assert_eq!(sender.say(RANK_1, it(), pushed(1, 1)), [], "too late");
        let sent = sender.say(RANK_1, it(), PushStopped { attempt: 1, rank: Rank(1) });
        assert_eq!(codes(&sent), ["decode ceased", "index send_over"]);
        assert_eq!(sent[1].1, over(1, "rank 1: Unknown"));
    }
}

#[test]
fn a_rank_that_dies_has_stopped_and_one_that_is_gone_pushes_nothing() {
    let mut sender = sender();
    sending(&mut sender);
    assert_eq!(codes(&is(&mut sender, 20, 0, Incarnation::default())), ["index op_settled"], "it pushes nothing");
    let sent = is(&mut sender, 21, 1, life(1, 2));
    assert_eq!(codes(&sent), ["decode ceased", "index send_over", "index op_settled"]);
    assert_eq!(sent[1].1, over(1, "rank 1 died"));
    let mut sender = self::sender();
    sending(&mut sender);
    sender.say(Address::Index, it(), stop(1));
    assert_eq!(codes(&is(&mut sender, 20, 1, life(1, 2))), ["decode ceased", "index send_over", "index op_settled"]);
    let mut sender = self::sender();
    is(&mut sender, 20, 1, Incarnation::default());
    offered(&mut sender);
    sender.say(Address::Index, it(), part(0));
    let sent = peer(&mut sender, it(), wanted());
    assert_eq!(sent[1].1, over(1, "rank 1 is gone"));
}

#[test]
fn what_the_peer_gives_up_is_stopped_and_its_question_always_answered() {
    let cease = |attempt| Cease { attempt, cause: "unexpected".to_owned() };
    let mut sender = sender();
    let meet = sending(&mut sender);
    assert_eq!(codes(&peer(&mut sender, it(), cease(1))), ["rank.1 stop_push"]);
    assert_eq!(peer(&mut sender, it(), cease(1)), [], "rank 1 may still write");
    let sent = sender.say(RANK_1, it(), PushStopped { attempt: 1, rank: Rank(1) });
    assert_eq!(sent[1].1, over(1, "receiver: unexpected"));
    assert_eq!(codes(&peer(&mut sender, it(), cease(1))), ["decode ceased"]);
    let other = OpId::new(Incarnation([0x77; 16]), 2);
    assert_eq!(codes(&peer(&mut sender, other, cease(4))), ["decode ceased"], "nothing of it is known");
    assert_eq!(peer(&mut sender, it(), cease(2)), [], "it never offered that");
    sender.say(Address::Index, other, open(1));
    assert_eq!(peer(&mut sender, it(), CeasedHeard { attempt: 1 }), []);
    assert_eq!(codes(&peer(&mut sender, it(), cease(1))), ["decode ceased"], "it has ended");
    assert_eq!(sender.say_as(Address::Receiver, life(7, 7), it(), cease(1)), [], "nobody knows whose life that is");
    assert_eq!(peer(&mut sender, meet, Met { lease_ms: 900 }), []);
}

#[test]
fn a_peer_that_does_not_store_the_same_ends_what_waits_for_it_with_the_field_and_both_values() {
    let mut sender = sender();
    let meet = opened(&mut sender);
    let (field, yours, mine) = ("page_tokens".to_owned(), "64".to_owned(), "16".to_owned());
    let rejected = Rejected { refusal: Mismatch { field, yours, mine }.into() };
    let told = [(it(), over(1, "Mismatch: page_tokens is 64 and 16"))];
    assert_eq!(peer(&mut sender, meet, rejected), told);
    assert_eq!((sender.counter("sender.peers"), sender.next_reason()), (0, Some("ended transfer")));
}

#[test]
fn a_peer_is_met_three_times_a_lease_and_given_up_after_one() {
    let mut sender = sender();
    let meet = opened(&mut sender);
    assert_eq!(codes(&sender.wake("meet")), ["decode meet"]);
    peer(&mut sender, meet, Met { lease_ms: 900 });
    sender.say(Address::Index, it(), part(0));
    peer(&mut sender, it(), wanted());
    assert_eq!(sender.say_as(Address::Receiver, life(7, 7), meet, Met { lease_ms: 900 }), [], "the lease is held");
    assert_eq!(sender.counter("sender.stale"), 1);
    let sent = sender.pass(899);
    assert_eq!(codes(&sent).iter().filter(|code| *code == "decode meet").count(), 1, "due already, then each 300 ms");
    assert_eq!(sender.counter("sender.lost_peers"), 0);
    let sent = sender.pass(1);
    assert!(codes(&sent).contains(&"rank.1 stop_push".to_owned()), "{sent:?}");
    assert_eq!(sender.counter("sender.lost_peers"), 1);
    let stopped = PushStopped { attempt: 1, rank: Rank(1) };
    assert_eq!(sender.say(RANK_1, it(), stopped), [(it(), over(1, "the receiver is silent"))], "nobody to tell");
}

#[test]
fn a_transfer_that_takes_too_long_is_stopped_and_frees_nothing_by_itself() {
    let mut sender = sender_with(|config| config.wait_ms_max = 600);
    let meet = sending(&mut sender);
    assert!(!codes(&sender.pass(599)).contains(&"rank.1 stop_push".to_owned()));
    assert!(codes(&sender.pass(1)).contains(&"rank.1 stop_push".to_owned()));
    for _ in 0..20 {
        peer(&mut sender, meet, Met { lease_ms: 900 });
        assert!(!codes(&sender.pass(500)).contains(&"index send_over".to_owned()), "only rank 1 can say so");
    }
    let sent = sender.say(RANK_1, it(), PushStopped { attempt: 1, rank: Rank(1) });
    assert_eq!(sent[1].1, over(1, "not over after 600 ms"));
    peer(&mut sender, meet, Met { lease_ms: 900 });
    sender.pass(599);
    assert_eq!(sender.counter("sender.running"), 1, "the peer is told");
    sender.pass(1);
    assert_eq!(sender.counter("sender.running"), 0);
}

#[test]
fn lost_requests_are_said_again_at_their_deadline_and_on_resync() {
    let mut sender = sender_with(|config| config.peer_lease_ms = 60_000);
    let meet = opened(&mut sender);
    peer(&mut sender, meet, Met { lease_ms: 60_000 });
    assert_eq!(codes(&sender.wake("repeat")), ["decode offer"]);
    assert_eq!(codes(&sender.resync(Address::Receiver)), ["decode offer"]);
    sender.say(Address::Index, it(), part(0));
    peer(&mut sender, it(), wanted());
    assert_eq!(codes(&sender.wake("repeat")), ["rank.1 push"]);
    assert_eq!(codes(&sender.resync(RANK_1)), ["rank.1 push"]);
    sender.say(Address::Index, it(), part(1));
    sender.say(Address::Index, it(), end(1));
    sender.say(RANK_1, it(), pushed(0, 1));
    sender.say(RANK_1, it(), pushed(1, 1));
    assert_eq!(codes(&sender.wake("repeat")), ["decode finished"]);
    peer(&mut sender, it(), Received { attempt: 1 });
    assert_eq!(sender.wake("ended transfer"), []);
    assert_eq!((sender.counter("sender.ended"), sender.machine.next_deadline()), (0, None));
}

#[test]
fn every_transfer_ends_in_one_span_that_names_the_straggler() {
    let fact = |span: &Span, name: &str| span.facts.iter().find(|(of, _)| *of == name).map(|(_, fact)| fact.clone());
    let mut script = sender();
    finishing(&mut script);
    assert_eq!(script.spans, [], "it is not over");
    peer(&mut script, it(), Received { attempt: 1 });
    let [span] = script.take_spans().try_into().expect("one span");
    assert_eq!((span.name, span.op, &span.parent, &span.fault), ("transfer.send", it(), &TRACE, &None));
    assert_eq!(fact(&span, "copy.straggler_rank"), Some(Fact::Count(1)));
    assert_eq!(fact(&span, "transfer.rank_bytes"), Some(Fact::Counts(vec![0, 64])), "a rank that owns nothing says so");
    assert_eq!(fact(&span, "transfer.named_pages"), Some(Fact::Count(4)));
    assert_eq!(fact(&span, "transfer.buffers"), Some(Fact::Count(2)));
    let mut script = sender();
    ceasing(&mut script);
    let [span] = script.take_spans().try_into().expect("one span");
    assert_eq!(span.fault.as_deref(), Some("TransferFailed"));
    assert_eq!(fact(&span, "transfer.cause"), Some(Fact::Text("aborted".to_owned())));
}

#[cfg(feature = "planted-faults")]
#[test]
fn positions_are_off_by_one() {
    let fault = crate::faults::Fault::TransferPositionOffByOne;
    let mut sender = sender_with(|config| config.faults = Faults::planted(fault));
    offered(&mut sender);
    sender.say(Address::Index, it(), part(0));
    let sent = peer(&mut sender, it(), wanted());
    let [(_, Outgoing::Rank(_, RankIn::Push(push)))] = sent.as_slice() else { panic!("{sent:?}") };
    assert_eq!((&push.positions.0, &push.slots.0), (&vec![Position(1)], &vec![PeerPage(20)]));
}

#[cfg(feature = "planted-faults")]
#[test]
fn a_push_of_an_older_attempt_is_taken() {
    let fault = crate::faults::Fault::StaleTransferAccepted;
    let mut sender = sender_with(|config| config.faults = Faults::planted(fault));
    let meet = opened(&mut sender);
    sender.say(Address::Index, it(), open(2));
    let meet = sender.machine.meets.keys().next().copied().unwrap_or(meet);
    peer(&mut sender, meet, Met { lease_ms: 900 });
    peer(&mut sender, it(), Wanted { attempt: 2, ..wanted() });
    for number in 0..2 {
        sender.say(Address::Index, it(), SendPart { attempt: 2, ..part(number) });
    }
    sender.say(Address::Index, it(), end(2));
    sender.say(RANK_1, it(), pushed(0, 1));
    assert_eq!(codes(&sender.say(RANK_1, it(), pushed(1, 1))), ["decode finished"]);
}
