//! Sessions whose pages leave for another group.

use super::refusals::refused;
use super::*;

/// An open whose pages go to the group `decode`.
fn sends(attempt: u32, keys: &[Key], tokens: u32) -> Open {
    handing_over(attempt, "decode", open(keys, tokens))
}

impl Script {
    /// What the sender was told, in order, since this was last asked.
    fn told(&mut self) -> Vec<SenderIn> {
        let mut told = Vec::new();
        self.sent.retain(|(_, msg)| match msg {
            Outgoing::Sender(SenderIn::RankIs(_)) => true,
            Outgoing::Sender(msg) => {
                told.push(msg.clone());
                false
            }
            _ => true,
        });
        told
    }

    fn sender_says(&mut self, news: impl Into<IndexNews>) {
        self.news(Address::Sender, TRANSFER, news.into());
    }

    fn taken(&mut self, parts: u32) {
        self.sender_says(SendTaken { attempt: 1, parts });
    }

    /// The sender takes whatever it is told until nothing comes any more; what it was told.
    fn take_all(&mut self) -> Vec<SenderIn> {
        let mut all = Vec::new();
        loop {
            let told = self.told();
            for msg in &told {
                match msg {
                    SenderIn::SendOpen(msg) => self.sender_says(SendTaken { attempt: msg.attempt, parts: 0 }),
                    SenderIn::SendPart(msg) => {
                        self.sender_says(SendTaken { attempt: msg.attempt, parts: msg.part + 1 });
                    }
                    _ => {}
                }
            }
            if told.is_empty() {
                return all;
            }
            all.extend(told);
        }
    }

    fn over(&mut self, ok: bool) {
        self.sender_says(SendOver { attempt: 1, ok, cause: if ok { "" } else { "the peer is gone" }.to_owned() });
    }

    fn is_closed(&self, op: OpId) -> bool {
        self.answers.iter().any(|(of, answer)| *of == op && matches!(answer, Answer::Closed(_)))
    }
}

fn part(part: u32, first: u32, pages: &[PageId], step: u64) -> SenderIn {
    SendPart { attempt: 1, part, first, pages: Pages(pages.to_vec()), step }.into()
}

fn stop(cause: &str) -> SenderIn {
    SendStop { attempt: 1, cause: cause.to_owned() }.into()
}

#[test]
fn each_page_is_named_once_with_the_step_that_completes_it_and_the_close_waits_for_the_sender() {
    let mut script = Script::serving(0);
    let path = keys(1, 3);
    let first = script.open(&path[..1]);
    script.compute(first, 1, 0..1, true);
    script.close(first, 1);
    let session = script.open_as(sends(1, &path, 200));
    let pages = script.opened(session).pages.0.clone();
    let to = "decode".to_owned();
    assert_eq!(script.told(), [SendOpen { attempt: 1, to, session, tokens: 200 }.into()]);
    script.announce(session, 2, 64..160, true);
    assert_eq!(script.told(), [], "one thing at a time");
    script.taken(0);
    assert_eq!(script.told(), [part(0, 0, &pages[..1], 0)], "what is here is complete");
    script.taken(1);
    assert_eq!(script.told(), [part(1, 1, &pages[1..2], 2)]);
    script.taken(2);
    script.announce(session, 3, 160..200, true);
    assert_eq!(script.told(), [part(2, 2, &pages[2..3], 3)], "filled over two steps: named in the second");
    script.taken(3);
    script.pass(3);
    let close = close(session, 3, b"seed");
    script.ask_as(session, close.clone());
    assert_eq!(script.told(), [part(3, 3, &pages[3..], 3)], "the tail is named by the step that wrote it last");
    script.taken(4);
    let end = SendEnd { attempt: 1, parts: 4, tokens: 200, blob: Bin(b"seed".to_vec()) };
    assert_eq!(script.told(), [end.into()]);
    assert!(!script.is_closed(session) && script.freed().is_empty());
    script.ask_as(session, close);
    script.over(true);
    assert!(script.is_closed(session));
    assert_eq!(script.freed(), pages[3..]);
    script.take_frees();
    assert_eq!((script.counter("index.handovers_sent"), script.counter("index.in_flight")), (1, 0));
}

#[test]
fn what_the_sender_was_told_is_repeated_until_taken_and_late_or_repeated_words_change_nothing() {
    let mut script = Script::serving(0);
    let session = script.open_as(sends(1, &keys(1, 2), 128));
    script.pass_ms(300);
    assert_eq!(script.told().len(), 2, "said again");
    script.taken(3);
    script.sender_says(SendTaken { attempt: 2, parts: 0 });
    assert_eq!(script.told(), [], "nothing was told that could be taken");
    script.taken(0);
    script.compute(session, 1, 0..1, true);
    let pages = script.opened(session).pages.0.clone();
    let first = part(0, 0, &pages[..1], 1);
    assert_eq!(script.told(), std::slice::from_ref(&first));
    script.compute(session, 2, 1..2, true);
    script.taken(0);
    script.pass_ms(300);
    assert_eq!(script.told(), [first], "the second waits for the first");
    script.taken(1);
    script.taken(1);
    script.taken(0);
    assert_eq!(script.told(), [part(1, 1, &pages[1..], 2)]);
    script.taken(2);
    script.ask(close(session, 2, &[]));
    assert_eq!(script.take_all().len(), 1);
    for _ in 0..2 {
        script.over(true);
        script.taken(2);
    }
    assert_eq!(script.counter("index.sessions"), 0);
    assert_eq!((script.counter("index.handovers_sent"), script.counter("index.handovers_failed")), (1, 0));
    assert_eq!(script.told(), []);
}

#[test]
fn a_session_sends_the_pages_of_its_own_block_table_also_where_another_was_first() {
    let mut script = Script::serving(0);
    let path = keys(1, 2);
    let (first, second) = (script.open(&path), script.open_as(sends(1, &path, 128)));
    script.compute(first, 1, 0..2, true);
    script.take_all();
    script.compute(second, 2, 0..2, true);
    let own = script.opened(second).pages.0.clone();
    assert_eq!(script.take_all(), [part(0, 0, &own, 2)]);
    script.ask(close(second, 2, &[]));
    assert_eq!(script.index.private_pages(), own, "duplicates, and read until the sender is done");
    script.take_all();
    script.over(true);
    assert_eq!(script.freed(), own);
}

#[test]
fn pages_of_a_load_are_named_when_it_has_ended_and_those_computed_behind_it_afterwards() {
    for ok in [true, false] {
        let mut script = Script::serving(8);
        let path = keys(1, 3);
        script.cache(&path[..2], 1, 0);
        script.evict(1, 1);
        let session = script.ask(sends(1, &path, 192));
        let load = script.op_of("load");
        let started = LoadStarted { pages: Pages(vec![PageId(20), PageId(21)]), ring_slot: 0, base: 0 };
        script.news(Address::Loader, load, started.into());
        script.announce(session, 2, 128..192, true);
        let pages = script.opened(session).pages.0.clone();
        script.ask(close(session, 2, &[]));
        assert_eq!(script.take_all()[1..], [part(0, 0, &pages[..1], 0)]);
        script.news(Address::Loader, load, LoadEnded { ok }.into());
        if ok {
            let end = SendEnd { attempt: 1, parts: 3, tokens: 192, blob: Bin(vec![]) };
            let behind = [part(1, 1, &[PageId(20)], 0), part(2, 2, &[PageId(21)], 2), end.into()];
            assert_eq!(script.take_all(), behind);
        } else {
            assert_eq!(script.take_all(), [stop("its load failed")]);
        }
        script.pass(2);
        assert_eq!(script.counter("index.sessions"), 1);
        script.over(ok);
        assert_eq!((script.counter("index.sessions"), script.counter("index.handovers_sent")), (0, u64::from(ok)));
    }
}

#[test]
fn an_attempt_that_cannot_be_whole_is_stopped_and_its_session_closes_like_any_other() {
    type Break = fn(&mut Script, OpId);
    let rows: [(&str, Break); 4] = [
        ("the draft did not run", |script, session| {
            script.announce(session, 1, 0..64, false);
        }),
        ("closed with 64 of 128 tokens computed", |script, session| {
            script.announce(session, 1, 0..64, true);
            script.ask(close(session, 1, &[]));
        }),
        ("closed before its last step was heard", |script, session| {
            script.ask(close(session, 1, &[]));
            script.announce(session, 1, 0..128, true);
        }),
        ("rejected: TooLarge(TooLarge { what: \"positions\", size: 9, limit: 8 })", |script, session| {
            script.announce(session, 1, 0..128, true);
            script.sender_says(Rejected { refusal: TooLarge::new("positions", 9, 8).into() });
        }),
    ];
    for (cause, break_it) in rows {
        let mut script = Script::serving(0);
        let session = script.open_as(sends(1, &keys(1, 2), 128));
        script.take_all();
        break_it(&mut script, session);
        assert_eq!(script.take_all().last(), Some(&stop(cause)));
        script.pass(1);
        script.ask(close(session, 1, &[]));
        assert!(!script.is_closed(session), "{cause}: the sender may still read");
        script.sender_says(Rejected { refusal: Unknown::new("transfer", TRANSFER).into() });
        script.over(false);
        assert_eq!((script.counter("index.sessions"), script.counter("index.handovers_failed")), (0, 1), "{cause}");
        assert!(script.answers.iter().any(|(_, answer)| matches!(answer, Answer::Closed(_))), "{cause}");
    }
}

#[test]
fn a_void_step_stops_the_attempt() {
    let mut script = Script::serving(8);
    let path = keys(1, 2);
    script.cache(&path, 1, 0);
    script.evict(1, 2);
    let session = script.ask(sends(1, &path, 192));
    let load = script.op_of("load");
    let started = LoadStarted { pages: Pages([20, 21, 22].map(PageId).to_vec()), ring_slot: 0, base: 0 };
    script.news(Address::Loader, load, started.into());
    script.take_all();
    script.announce(session, 2, 0..64, true);
    assert_eq!(script.take_all(), [stop("a step of it is void")], "one rank saw its load fail");
}

#[test]
fn whatever_ends_the_session_its_pages_stay_until_nothing_reads_them() {
    let died = |script: &mut Script, _: OpId| script.register(Rank(0), Incarnation([0xe1; 16]), 65);
    type End = fn(&mut Script, OpId);
    let rows: [(&str, End); 4] = [
        ("its session was aborted", |script, session| {
            script.ask(abort(session, 2));
        }),
        ("its session was aborted", |script, session| {
            script.ask(close(session, 2, &[]));
            script.take_all();
            script.ask(abort(session, 2));
        }),
        ("the lease of its engine ran out", |script, session| {
            script.pass_ms(30_001);
            script.ask(abort(session, 2));
        }),
        ("its engine died", died),
    ];
    for (cause, end) in rows {
        let mut script = Script::serving(0);
        let path = keys(1, 2);
        let first = script.open(&path[..1]);
        script.compute(first, 1, 0..1, true);
        script.close(first, 1);
        let session = script.open_as(sends(1, &path, 128));
        script.compute(session, 2, 1..2, true);
        script.take_all();
        let pages = script.opened(session).pages.0.clone();
        end(&mut script, session);
        assert_eq!(script.told().last(), Some(&stop(cause)));
        script.pass_ms(60_000);
        let told = script.told();
        assert!(!told.is_empty() && told.iter().all(|msg| *msg == stop(cause)), "{cause}: said until it is answered");
        assert!(script.freed().iter().all(|page| !pages.contains(page)), "{cause}: freed while it is read");
        assert_eq!(script.index.tree().evictable_pages(Tier::L1, Rank(0)), 0, "{cause}");
        assert!(script.counter("index.in_flight") > 0, "{cause}");
        script.over(false);
        script.take_frees();
        assert_eq!((script.counter("index.sessions"), script.counter("index.in_flight")), (0, 0), "{cause}");
        assert_eq!(script.counter("index.private_l1"), 0, "{cause}");
        script.over(false);
        assert_eq!(script.counter("index.handovers_failed"), 1, "{cause}");
    }
}

#[test]
fn a_page_that_two_dead_sessions_send_is_freed_with_the_second() {
    let mut script = Script::serving(0);
    let path = keys(1, 1);
    let first = script.open_as(sends(1, &path, 65));
    script.compute(first, 1, 0..1, true);
    let other = OpId([0x78; 16]);
    let wish = HandoverWish { transfer: other, attempt: 1, to: "decode".to_owned() };
    script.open_as(Open { handover: vec![wish], ..open(&path, 65) });
    script.news(Address::Sender, other, SendTaken { attempt: 1, parts: 0 }.into());
    script.take_all();
    let shared = script.opened(first).pages.0[0];
    script.register(Rank(0), Incarnation([0xe1; 16]), 65);
    let over = SendOver { attempt: 1, ok: false, cause: String::new() };
    script.sender_says(over.clone());
    assert!(!script.freed().contains(&shared), "{:?}", script.freed());
    script.news(Address::Sender, other, over.into());
    assert!(script.freed().contains(&shared));
    script.take_frees();
    assert_eq!((script.counter("index.private_l1"), script.counter("index.in_flight")), (0, 0));
}

#[test]
fn a_higher_attempt_replaces_a_lower_one_and_begins_when_that_is_over() {
    let mut script = Script::serving(0);
    let path = keys(1, 2);
    let lower = script.open_as(sends(1, &path, 128));
    script.take_all();
    let state = |state: &str| Refusal::from(WrongState::new(TRANSFER, state));
    assert_eq!(refused(&mut script, sends(1, &path, 128)), state("attempt 1 is known"));
    let higher = script.open_as(sends(3, &path, 128));
    assert_eq!(script.told(), [stop("attempt 3 came")]);
    assert_eq!(refused(&mut script, sends(2, &path, 128)), state("attempt 3 is known"));
    script.compute(higher, 1, 0..2, true);
    script.ask(close(higher, 1, &[]));
    assert_eq!(script.told(), []);
    script.sender_says(SendOver { attempt: 3, ok: true, cause: String::new() });
    assert!(!script.is_closed(higher), "the sender has not heard of it");
    script.over(false);
    let told = script.take_all();
    let kinds: Vec<&str> = told.iter().map(SenderIn::code).collect();
    assert_eq!(kinds, ["send_open", "send_part", "send_end"]);
    script.sender_says(SendOver { attempt: 3, ok: true, cause: String::new() });
    assert_eq!((script.counter("index.handovers_sent"), script.counter("index.handovers_failed")), (1, 1));
    script.ask(abort(lower, 0));
    assert_eq!(script.counter("index.sessions"), 0);
    assert_eq!(refused(&mut script, sends(3, &path, 128)), state("attempt 3 is known"), "also when it is gone");
    script.pass_ms(120_000);
    script.hello(RANK, 0);
    script.open_as(sends(1, &path, 128));
    assert_eq!(script.told().len(), 1, "nobody repeats for as long");
}

#[test]
fn an_open_that_found_no_room_leaves_its_attempt_to_the_next() {
    let mut script = Script::serving(0);
    let path = keys(1, 1);
    let session = script.ask(sends(1, &path, 64));
    let reserve = script.op_of("reserve");
    script.news(Address::Allocator, reserve, Short { short: vec![1] }.into());
    assert!(matches!(script.refusal(session), Refusal::OutOfPages(_)));
    assert_eq!((script.told(), script.counter("index.handovers_running")), (vec![], 0));
    script.open_as(sends(1, &path, 64));
    assert_eq!(script.told().len(), 1);
}

#[test]
fn the_sender_may_end_an_attempt_before_all_is_named_but_not_well() {
    for (ok, contradicted) in [(false, 0), (true, 1)] {
        let mut script = Script::serving(0);
        let session = script.open_as(sends(1, &keys(1, 1), 64));
        script.take_all();
        script.over(ok);
        script.compute(session, 1, 0..1, true);
        assert_eq!((script.told(), script.counter("index.contradicted")), (vec![], contradicted));
        assert_eq!(script.close(session, 1).l1_pages, 1);
        assert_eq!(script.counter("index.handovers_failed"), 1);
    }
}

#[test]
fn a_wish_that_cannot_be_fulfilled_is_refused_with_its_field() {
    let config = |cp_size| IndexConfig { group: "own".to_owned(), ..IndexConfig::new(manifest(cp_size), 65, 0) };
    let wish = HandoverWish { transfer: TRANSFER, attempt: 1, to: "decode".to_owned() };
    let of = |wish: HandoverWish| Open { handover: vec![wish], ..open(&keys(1, 1), 65) };
    let to = |to: &str| of(HandoverWish { to: to.to_owned(), ..wish.clone() });
    let twice = Open { handover: vec![wish.clone(), wish.clone()], ..open(&keys(1, 1), 65) };
    let rows: Vec<(&str, Open, &str)> = vec![
        ("two wishes", twice, "handover"),
        ("attempt 0", of(HandoverWish { attempt: 0, ..wish.clone() }), "handover.attempt"),
        ("no id", of(HandoverWish { transfer: OpId::default(), ..wish.clone() }), "handover.transfer"),
        ("an id of ours", of(HandoverWish { transfer: OpId::new(CONTROL, 9), ..wish.clone() }), "handover.transfer"),
        ("no tokens", handing_over(1, "decode", open(&[], 0)), "tokens"),
        ("a subject", to("a.b"), "handover.to"),
        ("a long name", to(&"x".repeat(65)), "handover.to"),
        ("the own group", to("own"), "handover.to"),
    ];
    for (name, msg, field) in rows {
        match refused(&mut Script::of(config(1)), msg) {
            Refusal::Malformed(malformed) => assert_eq!(malformed.field, field, "{name}"),
            other => panic!("{name}: {other:?}"),
        }
    }
    let refusal = refused(&mut Script::of(config(4)), to(""));
    assert!(matches!(&refusal, Refusal::Unsupported(r) if r.field == "handover"), "{refusal:?}");
    let mut script = Script::of(config(1));
    script.open_as(to("decode"));
    let foreign = Open { tenant: "b".to_owned(), ..of(HandoverWish { attempt: 2, ..wish.clone() }) };
    assert!(matches!(refused(&mut script, foreign), Refusal::Unknown(_)), "of another tenant");
}

#[test]
fn a_blob_over_the_limit_is_refused_before_the_session_closes() {
    let mut script = Script::serving(0);
    let session = script.open_as(sends(1, &keys(1, 1), 64));
    script.compute(session, 1, 0..1, true);
    script.take_all();
    let (most, over) = (vec![7; BLOB_BYTES_MAX], vec![7; BLOB_BYTES_MAX + 1]);
    let refusal = refused(&mut script, close(session, 1, &over));
    assert_eq!(refusal, TooLarge::new("blob", over.len() as u64, most.len() as u64).into());
    script.ask(close(session, 1, &most));
    let end = SendEnd { attempt: 1, parts: 1, tokens: 64, blob: Bin(most) };
    assert_eq!(script.take_all().last(), Some(&end.into()));
}

#[test]
fn sender_and_receiver_hear_which_lives_the_ranks_are_in() {
    let mut script = Script::serving(0);
    let next = Incarnation([0xa1; 16]);
    script.hello(next, 0);
    let is = RankIs { rank: Rank(0), incarnation: next };
    let heard = [Outgoing::Sender(is.clone().into()), Outgoing::Receiver(is.into())];
    for (from, msg) in [Address::Sender, Address::Receiver].into_iter().zip(heard) {
        let told: Vec<OpId> = script.sent.iter().filter(|(_, sent)| *sent == msg).map(|(op, _)| *op).collect();
        assert_eq!(told.len(), 1, "{msg:?}");
        script.news(from, told[0], OpSettled {}.into());
    }
    script.sent.clear();
    script.pass_ms(5_000);
    let again = |msg: &Outgoing| matches!(msg, Outgoing::Sender(SenderIn::RankIs(is)) if is.incarnation == next);
    assert!(!script.sent.iter().any(|(_, msg)| again(msg)), "said once it is taken in");
}

#[test]
fn a_pool_is_mapped_when_nothing_of_a_dead_engine_is_sent_any_more() {
    let mut script = Script::serving(0);
    script.open_as(sends(1, &keys(1, 1), 64));
    script.take_all();
    let before = script.count_of("attach");
    for _ in 0..2 {
        script.register(Rank(0), Incarnation([0xe1; 16]), 65);
        assert_eq!(script.count_of("attach"), before, "a push that is on its way would read it");
    }
    script.over(false);
    assert_eq!(script.count_of("attach"), before + 1);
    script.over(false);
    assert_eq!(script.count_of("attach"), before + 1, "once");
}
