//! What the index says of its ops, each in the trace of the request it was for.

use super::*;
use crate::span::{Fact, Sampling};

/// The trace of one request.
fn trace(n: u8) -> TraceContext {
    TraceContext { trace_id: [n; 16], span_id: [n; 8], sampling: Sampling::Sampled }
}

impl Script {
    fn in_trace(&mut self, n: u8) -> &mut Self {
        self.trace = Some(trace(n));
        self
    }

    /// Name, trace and fault of what was said since this was last asked.
    fn said(&mut self) -> Vec<(&'static str, u8, Option<String>)> {
        let spans = std::mem::take(&mut self.spans);
        spans.into_iter().map(|span| (span.name, span.parent.trace_id[0], span.fault)).collect()
    }

    /// A fact of the newest span of that name.
    fn fact(&self, span: &str, name: &str) -> Fact {
        let span = self.spans.iter().rev().find(|known| known.name == span).expect("a span");
        span.facts.iter().rev().find(|(known, _)| *known == name).unwrap_or_else(|| panic!("{span:?}")).1.clone()
    }

    fn step(&mut self, number: u64, sessions: &[OpId]) {
        let entry = |session: &OpId| {
            let pages = self.opened(*session).pages.clone();
            let tokens = pages.0.len() as u32 * 64;
            let (first_token, keys, first_key) = (0, Keys(vec![]), 0);
            StepEntry { session: *session, first_token, tokens, pages, draft: true, keys, first_key, load_read: false }
        };
        let entries = sessions.iter().map(entry).collect();
        self.ask(Step { number, entries, engine: ENGINE, all_layers_at_end: false });
    }
}

fn text(value: &str) -> Fact {
    Fact::Text(value.to_owned())
}

#[test]
fn a_session_says_what_its_open_match_step_commits_and_end_were() {
    let mut script = Script::serving(8);
    let path = keys(1, 2);
    let session = script.in_trace(1).open(&path);
    assert_eq!(script.fact("match", "match.end"), text("absent"));
    assert_eq!(script.fact("open", "open.pages_given"), Fact::Count(2));
    assert_eq!(script.said(), [("match", 1, None), ("open", 1, None)]);
    script.compute(session, 1, 0..2, true);
    assert_eq!(script.fact("step", "step.valid_tokens"), Fact::Count(128));
    assert_eq!(script.fact("commit", "commit.pages"), Fact::Count(2));
    assert_eq!(script.said(), [("step", 1, None), ("commit", 1, None)]);
    let backup = script.op_of("backup");
    script.back_up(backup, 0..2);
    assert_eq!(script.fact("commit", "commit.tier"), Fact::Count(2));
    assert_eq!(script.said(), [("commit", 1, None)]);
    script.close(session, 1);
    assert_eq!(script.fact("session", "session.l2_tokens"), Fact::Count(128));
    assert_eq!(script.fact("session", "session.end"), text("closed"));
    assert_eq!(script.said(), [("session", 1, None)]);
}

#[test]
fn two_sessions_of_one_step_speak_in_their_own_traces_and_the_message_links_to_both() {
    let mut script = Script::serving(8);
    let a = script.in_trace(1).open(&keys(1, 1));
    let b = script.in_trace(2).open(&keys(2, 1));
    script.said();
    script.in_trace(1).step(1, &[a, b]);
    assert_eq!(script.links, [trace(1), trace(2)]);
    let copies: Vec<OpId> =
        script.sent.iter().filter(|(_, msg)| msg.encode_body().0 == "backup").map(|(op, _)| *op).collect();
    let traces = copies.iter().map(|op| script.sent_in.iter().find(|(of, _)| of == op).expect("sent").1.clone());
    assert_eq!(traces.collect::<Vec<_>>(), [Some(trace(1)), Some(trace(2))], "a backup is of its own session");
    script.in_trace(3).pass(1);
    assert_eq!(script.said(), [("step", 1, None), ("step", 2, None), ("commit", 1, None), ("commit", 2, None)]);
}

#[test]
fn a_refused_an_aborted_and_an_expired_open_say_so() {
    let mut script = Script::serving(0);
    let refused = script.in_trace(1).ask(open(&keys(1, 1), 64));
    let reserve = script.op_of("reserve");
    script.news(Address::Allocator, reserve, Short { short: vec![1] }.into());
    assert_eq!(script.refusal(refused).code(), "OutOfPages");
    let (no_room, never_ran) = (Some("OutOfPages".to_owned()), Some("Refused".to_owned()));
    assert_eq!(script.said(), [("match", 1, None), ("session", 1, never_ran), ("open", 1, no_room)]);
    let malformed = Open { tenant: String::new(), ..open(&keys(1, 1), 64) };
    script.in_trace(2).ask(malformed);
    assert_eq!(script.said(), [("open", 2, Some("Malformed".to_owned()))]);
    let aborted = script.in_trace(3).ask(open(&keys(1, 1), 64));
    script.ask(Abort { session: aborted, tenant: "a".to_owned(), last_step: 0 });
    let gone = Some("WrongState".to_owned());
    assert_eq!(script.said(), [("match", 3, None), ("open", 3, gone), ("session", 3, None)]);
    script.in_trace(4).ask(open(&keys(1, 1), 64));
    script.pass_ms(60_000);
    assert_eq!(script.said(), [("match", 4, None), ("open", 4, Some("Expired".to_owned()))], "its session drains");
}

#[test]
fn a_miss_links_to_the_eviction_that_took_its_page() {
    for (keys_max, end) in [(8, "evicted"), (0, "absent")] {
        let config = IndexConfig { evicted_keys_max: keys_max, ..IndexConfig::new(manifest(1), 65, 0) };
        let mut script = Script::of(config);
        let path = keys(1, 3);
        let session = script.in_trace(1).open(&path);
        script.compute(session, 1, 0..3, true);
        script.close(session, 1);
        script.said();
        script.in_trace(9).evict(1, 2);
        let evict = script.spans.last().expect("an eviction").clone();
        assert_eq!((evict.name, evict.parent.clone()), ("evict", trace(9)));
        assert_eq!(script.fact("evict", "evict.victims_pages"), Fact::Count(2));
        script.in_trace(2).open(&path);
        assert_eq!(script.fact("match", "match.end"), text(end));
        assert_eq!(script.fact("match", "match.l1_pages"), Fact::Count(1));
        let found = script.spans.iter().find(|span| span.name == "match").expect("a match");
        let links: Vec<TraceContext> = if keys_max > 0 { vec![evict.context()] } else { vec![] };
        assert_eq!(found.links, links);
    }
}

#[test]
fn an_open_that_waits_for_a_load_says_for_how_long_and_nothing_is_said_of_what_nobody_records() {
    let mut script = Script::serving(8);
    let path = keys(1, 2);
    script.cache(&path, 1, 0);
    script.evict(1, 2);
    assert_eq!((script.spans.len(), script.links.len()), (0, 0), "nobody records");
    script.in_trace(1).ask(open(&path, 192));
    assert_eq!(script.said(), [("match", 1, None)]);
    let load = script.op_of("load");
    script.in_trace(2).ask(open(&path, 192));
    assert_eq!(script.fact("match", "match.end"), text("loading"));
    assert_eq!(script.said(), [("match", 2, None)]);
    script.now = script.now.plus_ms(3);
    script.trace = None;
    let started = LoadStarted { pages: Pages([20, 21, 22].map(PageId).to_vec()), ring_slot: 0, base: 0 };
    script.news(Address::Loader, load, started.into());
    assert_eq!(script.fact("open", "hit.l2_pages"), Fact::Count(2));
    script.news(Address::Loader, load, LoadEnded { ok: true }.into());
    let reserve = script.op_of("reserve");
    script.news(Address::Allocator, reserve, Reserved { pages: Pages(vec![PageId(23)]) }.into());
    assert_eq!(script.fact("open", "open.parked_us"), Fact::Count(3_000));
    assert_eq!(script.said(), [("open", 1, None), ("commit", 1, None), ("match", 2, None), ("open", 2, None)]);
}

#[test]
fn a_handover_says_how_it_ended_in_the_trace_of_its_session() {
    for ok in [true, false] {
        let mut script = Script::serving(0);
        let session = script.in_trace(1).open_as(handing_over(1, "", open(&keys(1, 2), 128)));
        script.said();
        script.in_trace(9);
        if ok {
            let arrived = Arrived { attempt: 1, tokens: 128, blob: Bin(vec![]), components: vec![] };
            script.news(Address::Receiver, TRANSFER, arrived.into());
        } else {
            let cause = "rank 2 is gone".to_owned();
            script.news(Address::Receiver, TRANSFER, NotArriving { attempt: 1, cause }.into());
            assert_eq!(script.fact("handover", "handover.cause"), text("rank 2 is gone"));
        }
        assert_eq!(script.fact("handover", "handover.side"), text("receives"));
        assert_eq!(script.fact("handover", "handover.pages"), Fact::Count(2));
        let fault = (!ok).then(|| "HandoverFailed".to_owned());
        assert!(script.said().contains(&("handover", 1, fault)));
        script.ask(abort(session, 0));
        let failed =
            script.spans.iter().flat_map(|span| &span.facts).any(|(name, _)| *name == "session.handover_failed");
        assert_eq!(failed, !ok);
    }
}
