//! What others get wrong, by mistake or on purpose, and what they refuse.

use super::*;

#[test]
fn what_a_hostile_peer_wants_is_refused_and_changes_nothing() {
    let positions = |list: &[u32]| Positions(list.iter().copied().map(Position).collect());
    let slots = |list: &[u32]| PeerPages(list.iter().copied().map(PeerPage).collect());
    let rows = [
        (Wanted { positions: positions(&[1, 3, 2]), ..wanted() }, "Malformed"),
        (Wanted { positions: positions(&[1, 1, 2]), ..wanted() }, "Malformed"),
        (Wanted { positions: positions(&[1, 2, 4]), ..wanted() }, "Malformed"),
        (Wanted { positions: positions(&[1, 2, u32::MAX]), ..wanted() }, "Malformed"),
        (Wanted { slots: slots(&[30, 20]), ..wanted() }, "Malformed"),
        (Wanted { slots: slots(&[30, 20, 30]), ..wanted() }, "Malformed"),
        (Wanted { endpoint: "x".repeat(1_025), ..wanted() }, "TooLarge"),
        (Wanted { grant: Bin(vec![0; 1_025]), ..wanted() }, "TooLarge"),
    ];
    let mut sender = sender();
    let meet = offered(&mut sender);
    for (msg, code) in rows {
        assert_eq!(refusal(&peer(&mut sender, it(), msg)), code);
    }
    for lease_ms in [0, 99, 60_001, u64::MAX] {
        assert_eq!(refusal(&peer(&mut sender, meet, Met { lease_ms })), "Malformed");
    }
    assert_eq!(sender.counter("sender.rejected"), 12);
    assert_eq!(peer(&mut sender, it(), wanted()), [], "nothing is named");
    let other = Wanted { grant: Bin(vec![8]), ..wanted() };
    assert_eq!(codes(&peer(&mut sender, it(), other)), ["decode ceased", "index send_over"]);
}

#[test]
fn what_is_malformed_and_what_is_too_much_is_refused_without_a_trace() {
    let mut sender = sender_with(|config| (config.transfers_max, config.positions_max, config.parts_max) = (1, 4, 2));
    let rows = [
        (SendOpen { to: "de.code".to_owned(), ..open(1) }, "Malformed"),
        (SendOpen { to: String::new(), ..open(1) }, "Malformed"),
        (SendOpen { to: "x".repeat(65), ..open(1) }, "Malformed"),
        (SendOpen { to: "prefill".to_owned(), ..open(1) }, "Malformed"),
        (open(0), "Malformed"),
        (SendOpen { tokens: 0, ..open(1) }, "Malformed"),
        (SendOpen { tokens: 257, ..open(1) }, "TooLarge"),
    ];
    for (msg, code) in rows {
        assert_eq!(refusal(&sender.say(Address::Index, it(), msg)), code);
    }
    opened(&mut sender);
    assert_eq!(refusal(&sender.say(Address::Index, op(50), open(1))), "Busy");
    for (first, ids) in [(0, vec![]), (3, vec![4, 5]), (u32::MAX, vec![4]), (0, vec![1])] {
        let msg = SendPart { first, pages: pages(&ids), ..part(0) };
        assert_eq!(refusal(&sender.say(Address::Index, it(), msg)), "Malformed", "{ids:?} from {first}");
    }
    sender.say(Address::Index, it(), part(0));
    assert_eq!(refusal(&sender.say(Address::Index, it(), SendPart { first: 1, ..part(1) })), "Malformed", "again");
    assert_eq!(refusal(&sender.say(Address::Index, it(), SendEnd { parts: 0, ..end(1) })), "Malformed");
    sender.say(Address::Index, it(), part(1));
    assert_eq!(refusal(&sender.say(Address::Index, it(), SendPart { first: 3, ..part(2) })), "TooLarge");
    for tokens in [0, 192, 201] {
        assert_eq!(refusal(&sender.say(Address::Index, it(), SendEnd { tokens, ..end(1) })), "Malformed");
    }
    let blob = Bin(vec![0; crate::protocol::BLOB_BYTES_MAX + 1]);
    assert_eq!(refusal(&sender.say(Address::Index, it(), SendEnd { blob, ..end(1) })), "TooLarge");
    assert_eq!(refusal(&is(&mut sender, 30, 2, life(2, 1))), "Malformed");
    assert_eq!(sender.say(Address::Index, it(), end(1)), []);
}

#[test]
fn an_older_life_another_attempt_and_the_wrong_member_are_dropped_and_counted() {
    let mut sender = sender();
    sending(&mut sender);
    let stale = |sender: &mut Script<Sender>, from, life, msg: SenderIn| {
        assert_eq!(sender.say_as(from, life, it(), msg), []);
    };
    stale(&mut sender, RANK_1, life(1, 9), pushed(0, 1).into());
    stale(&mut sender, RANK_1, life(1, 1), Pushed { attempt: 2, ..pushed(0, 1) }.into());
    stale(&mut sender, RANK_1, life(1, 1), PushStopped { attempt: 2, rank: Rank(1) }.into());
    stale(&mut sender, Address::Receiver, life(7, 7), Received { attempt: 1 }.into());
    stale(&mut sender, Address::Receiver, THERE, Received { attempt: 2 }.into());
    assert_eq!(sender.counter("sender.stale"), 5);
    stale(&mut sender, RANK_1, life(1, 1), pushed(0, 0).into());
    stale(&mut sender, Address::Loader, CONTROL, open(2).into());
    stale(&mut sender, Address::Index, CONTROL, wanted().into());
    assert_eq!(sender.counter("sender.foreign"), 3);
    stale(&mut sender, RANK_1, life(1, 1), Pushed { part: u32::MAX, ..pushed(0, 1) }.into());
    stale(&mut sender, Address::Receiver, THERE, Received { attempt: 1 }.into());
    stale(&mut sender, RANK_1, life(1, 1), PushStopped { attempt: 1, rank: Rank(1) }.into());
    assert_eq!(sender.counter("sender.late"), 3, "not in this state");
    stale(&mut sender, RANK_1, life(1, 1), Pushed { complete: false, ..pushed(0, 1) }.into());
    assert_eq!(sender.counter("sender.running"), 1, "progress is not completion");
}

#[test]
fn refusals_of_others_end_what_they_speak_of() {
    let rejected = || Rejected { refusal: Unknown::new("op", 1).into() };
    let busy = crate::protocol::Busy { queue: "offers".to_owned(), bound: 1, retry_ms: 1 };
    let mut sender = sender();
    offered(&mut sender);
    assert_eq!(peer(&mut sender, it(), Rejected { refusal: busy.into() }), [], "there will be room");
    assert_eq!(codes(&peer(&mut sender, it(), rejected())), ["decode ceased", "index send_over"]);
    assert_eq!(peer(&mut sender, it(), rejected()), [], "it has heard that, too");
    assert_eq!(sender.counter("sender.running"), 0);
    let mut sender = self::sender();
    sending(&mut sender);
    assert_eq!(codes(&sender.say(RANK_1, it(), rejected())), ["rank.1 stop_push"]);
    assert_eq!(sender.say(RANK_1, it(), rejected()), [], "that it has stopped only it can say");
    let mut sender = self::sender();
    opened(&mut sender);
    assert_eq!(sender.say(Address::Index, it(), rejected()), [(it(), over(1, "index: Unknown"))]);
}

#[test]
fn a_wanted_page_that_nobody_named_ends_the_transfer() {
    let mut sender = sender();
    offered(&mut sender);
    peer(&mut sender, it(), wanted());
    sender.say(Address::Index, it(), part(0));
    sender.say(RANK_1, it(), pushed(0, 1));
    let sent = sender.say(Address::Index, it(), SendEnd { parts: 1, ..end(1) });
    assert_eq!(sent[1].1, over(1, "position 2 was not named"));
}
