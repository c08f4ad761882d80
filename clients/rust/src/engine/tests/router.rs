//! Requests that are routed over two engines.

use super::handover::{Pair, small};
use super::*;

const ATTEMPTS_MAX: u32 = 3;

/// Serves requests of these numbers over both engines of `pair`.
async fn route(pair: Pair, numbers: std::ops::Range<usize>, prompt: impl Fn(usize) -> Prompt) -> Outcome {
    let Pair { sends: (sending, prefill), receives: (receiving, decode), .. } = pair;
    for daemon in [&sending, &receiving] {
        daemon.state().sends_until_taken = true;
    }
    let mut router = Router::new(prefill, decode, ATTEMPTS_MAX).unwrap();
    let (mut over, started) = (Vec::new(), Instant::now());
    let prompts = numbers.map(|number| (number, prompt(number)));
    let report = router.run_numbered(stream::iter(prompts), |routed, _| over.push(routed)).await;
    // What was given up without an answer is told of behind the scenes.
    sleep(Duration::from_secs(1)).await;
    for daemon in [&sending, &receiving] {
        assert!(daemon.state().sessions.is_empty(), "no session is left behind");
    }
    Outcome { over, report, took: started.elapsed(), wishes: [wishes(&sending), wishes(&receiving)] }
}

struct Outcome {
    over: Vec<Routed>,
    report: RoutedReport,
    took: Duration,
    /// What each side opened sessions for.
    wishes: [Vec<HandoverWish>; 2],
}

fn wishes(daemon: &Daemon) -> Vec<HandoverWish> {
    let opens =
        daemon.requests().into_iter().filter_map(|r| if let Request::Open(open) = r { Some(open) } else { None });
    opens.flat_map(|open| open.handover).collect()
}

fn mismatch() -> Refusal {
    Mismatch { field: "page_tokens".to_owned(), yours: "16".to_owned(), mine: "64".to_owned() }.into()
}

#[tokio::test(start_paused = true)]
async fn every_request_is_served_once_by_both_engines() {
    let pair = Pair::start(EngineConfig { sessions_max: 3, ..small(0) }).await;
    let prompt = |number| Prompt { output_tokens: 10, ..prompt(&pair.config, number as u32, 26) };
    let prompts: Vec<Prompt> = (0..6).map(prompt).collect();
    let Outcome { over, report, wishes: [sent, received], .. } =
        route(pair, 0..6, |number| prompts[number].clone()).await;
    assert!(report.whole.is_clean() && report.prefill.is_clean() && report.decode.is_clean(), "{report:?}");
    assert_eq!((report.whole.requests, report.whole.requests_ended, report.whole.full_pages), (6, 6, 6));
    assert_eq!((report.whole.handovers, report.whole.handovers_failed, report.prefills.count()), (6, 0, 6));
    assert_eq!(report.whole.latencies.handover.count(), 6);
    assert!(over.iter().all(|it| (it.how, it.attempts) == (How::Closed, 1) && it.decode.handover_ns.is_some()));
    let ids: std::collections::BTreeSet<OpId> = sent.iter().map(|wish| wish.transfer).collect();
    assert_eq!(ids.len(), 6, "each transfer has an id of its own");
    assert!(sent.iter().all(|wish| (wish.attempt, wish.to.as_str()) == (1, "d")));
    assert!(received.iter().all(|wish| ids.contains(&wish.transfer) && wish.to.is_empty()));
}

#[tokio::test(start_paused = true)]
async fn what_fails_on_either_side_is_tried_again_by_the_next_attempt_of_both() {
    for (side, kind) in [("prefill", "open"), ("prefill", "step"), ("decode", "open"), ("decode", "handover")] {
        let pair = Pair::start(small(0)).await;
        let prompt = pair.prompt(1, 26, 10);
        let daemon = if side == "prefill" { &pair.sends.0 } else { &pair.receives.0 };
        daemon.state().refuse = [(kind, mismatch())].into();
        let Outcome { over, report, took, wishes } = route(pair, 0..1, |_| prompt.clone()).await;
        let case = format!("{kind} of {side}");
        assert_eq!((over[0].how, over[0].attempts), (How::Closed, 2), "{case}");
        assert!(report.whole.is_clean() && took < Duration::from_secs(20), "{case}, {took:?}");
        assert_eq!((report.whole.handovers, report.whole.requests), (1, 1), "{case}");
        let [sent, received] = wishes.map(|of| of.iter().map(|wish| (wish.transfer, wish.attempt)).collect::<Vec<_>>());
        assert_eq!(received, [(received[0].0, 1), (received[0].0, 2)], "{case}");
        // Prefill does not begin what decode has no room for.
        let without_room = usize::from((side, kind) == ("decode", "open"));
        assert_eq!(sent, received[without_room..], "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn prefill_holds_nothing_while_decode_waits_for_room() {
    let pair = Pair::start(small(0)).await;
    let (prompt, daemons) = (pair.prompt(1, 26, 10), [pair.sends.0.clone(), pair.receives.0.clone()]);
    let full = || Refusal::from(OutOfPages { short: vec![2], retry_ms: 500 });
    daemons[1].state().refuse = (0..20).map(|_| ("open", full())).collect();
    let watch = async {
        sleep(Duration::from_secs(9)).await;
        assert!(daemons[0].state().sessions.is_empty() && !daemons[1].state().refuse.is_empty());
    };
    let (Outcome { over, report, .. }, ()) = tokio::join!(route(pair, 0..1, |_| prompt.clone()), watch);
    assert_eq!((over[0].how, over[0].attempts, report.whole.is_clean()), (How::Closed, 1, true));
}

#[tokio::test(start_paused = true)]
async fn attempts_end_and_the_side_that_failed_is_named() {
    for side in ["prefill", "decode"] {
        let pair = Pair::start(small(0)).await;
        let prompt = pair.prompt(1, 26, 10);
        let daemon = if side == "prefill" { &pair.sends.0 } else { &pair.receives.0 };
        daemon.state().refuse = (0..ATTEMPTS_MAX).map(|_| ("open", mismatch())).collect();
        let Outcome { over, report, took, .. } = route(pair, 0..1, |_| prompt.clone()).await;
        assert_eq!((over[0].how, over[0].attempts), (How::Failed, ATTEMPTS_MAX));
        assert_eq!((report.whole.failed, report.whole.requests_ended), (1, 0));
        let cause = &report.whole.failures[0].1;
        assert!(cause.starts_with(&format!("attempt {ATTEMPTS_MAX}, {side}: refused: Mismatch")), "{cause}");
        assert!(took < Duration::from_secs(20), "{took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_to_be_aborted_on_one_side_is_over_on_both() {
    let pair = Pair::start(EngineConfig { abort_permille: 1_000, chunk_tokens: 8, ..small(0) }).await;
    let prompt = pair.prompt(1, 26, 10);
    let Outcome { over, report, took, .. } = route(pair, 0..16, |_| prompt.clone()).await;
    assert!(over.iter().all(|it| (it.how, it.attempts) == (How::Aborted, 1)), "{over:?}");
    assert_eq!((report.whole.aborted, report.whole.is_clean()), (16, true));
    assert!(took < Duration::from_secs(60), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn wrong_data_is_a_fault_and_not_tried_again() {
    let pair = Pair::start(small(0)).await;
    let prompt = pair.prompt(1, 26, 10);
    let lie = HandedOver { tokens: 25, received: 2, blob: Bin(prompt.blob()), components: vec![] };
    pair.receives.0.state().answer = Some(("handover", lie.into()));
    let Outcome { over, report, .. } = route(pair, 0..1, |_| prompt.clone()).await;
    assert_eq!((over[0].how, over[0].attempts, report.whole.failed), (How::Failed, 1, 1));
    assert!(report.whole.failures[0].1.contains("decode: not an answer"), "{:?}", report.whole.failures);
}

#[tokio::test(start_paused = true)]
async fn decode_is_one_rank_and_there_is_an_attempt() {
    for (cp_size, attempts_max) in [(2, 1), (1, 0)] {
        let config = config(manifest(cp_size, 0, 64));
        let daemon = Daemon::new(config.manifest.clone());
        let (prefill, decode) = (start(&daemon, &config).await, start(&daemon, &config).await);
        let refused = Router::new(prefill, decode, attempts_max).err();
        assert!(matches!(refused, Some(EngineError::Config { .. })), "{refused:?}");
    }
}
