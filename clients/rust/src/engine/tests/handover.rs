//! A prompt that one engine computes and another one goes on with.

use super::daemon::Parcel;
use super::*;

/// A prefill group of two ranks and a decode group of one, and what goes between them.
pub(super) struct Pair {
    pub(super) config: EngineConfig,
    pub(super) sends: (Daemon, Engine),
    pub(super) receives: (Daemon, Engine),
}

impl Pair {
    pub(super) async fn start(config: EngineConfig) -> Self {
        let sending = Daemon::new(config.manifest.clone());
        let of_decode = EngineConfig { group: "d".to_owned(), ..config.clone() };
        let of_decode = EngineConfig { manifest: Manifest { cp_size: 1, ..config.manifest.clone() }, ..of_decode };
        let receiving = Daemon::new(of_decode.manifest.clone());
        receiving.state().between = sending.state().between.clone();
        let (sender, receiver) = (start(&sending, &config).await, start(&receiving, &of_decode).await);
        Self { config, sends: (sending, sender), receives: (receiving, receiver) }
    }

    pub(super) fn prompt(&self, seed: u32, count: u32, output_tokens: u32) -> Prompt {
        Prompt { output_tokens, output_seed: 9, ..prompt(&self.config, seed, count) }
    }

    async fn send(&mut self, prompt: &Prompt, transfer: OpId, attempt: u32) -> Report {
        let side = Side::Send { transfer, attempt, to: "d".to_owned() };
        run(&mut self.sends.1, vec![Prompt { handover: Some(side), ..prompt.clone() }]).await
    }

    async fn receive(&mut self, prompt: &Prompt, transfer: OpId, attempt: u32) -> (Ended, Report) {
        let prompt = Prompt { handover: Some(Side::Receive { transfer, attempt }), ..prompt.clone() };
        let mut over = Vec::new();
        let report = self.receives.1.run(stream::iter([prompt]), |ended, _| over.push(ended)).await;
        (over.remove(0), report)
    }

    /// Changes what is on its way.
    fn meddle(&self, change: impl FnOnce(&mut Parcel)) {
        change(self.sends.0.state().between.lock().unwrap().values_mut().next().unwrap());
    }
}

fn transfer(number: u64) -> OpId {
    let mut ids = OpIds::new(Incarnation([4; 16]));
    (0..number).for_each(|_| {
        ids.draw();
    });
    ids.draw()
}

pub(super) fn small(lookahead: u32) -> EngineConfig {
    EngineConfig { decode_stride_tokens: 5, verify: Verify::Everything, ..config(manifest(2, lookahead, 64)) }
}

#[tokio::test(start_paused = true)]
async fn decode_goes_on_in_the_page_where_prefill_ended() {
    for lookahead in [0, 1] {
        for prompt_tokens in [26, 32, 7] {
            let case = format!("{prompt_tokens} tokens, lookahead {lookahead}");
            let mut pair = Pair::start(small(lookahead)).await;
            let prompt = pair.prompt(1, prompt_tokens, 64 - prompt_tokens);
            let sent = pair.send(&prompt, transfer(0), 1).await;
            assert!(sent.is_clean(), "{case}");
            assert_eq!(pair.sends.0.kinds(), ["open", "step", "close"], "{case}: no output");
            let (ended, report) = pair.receive(&prompt, transfer(0), 1).await;
            assert_eq!((ended.how, report.failures.len(), report.is_clean()), (How::Closed, 0, true), "{case}");
            assert!(ended.handover_ns.is_some());
            let pages = prompt_tokens.div_ceil(PAGE_TOKENS);
            assert_eq!((report.handovers, report.handover_pages), (1, u64::from(pages)), "{case}");
            // Pages of 16 tokens and 64 bytes are units of two tokens; 4 pieces each, and 4 full pages at the end.
            let held = u64::from(prompt_tokens.div_ceil(2) * 8 * 4);
            assert_eq!(report.bytes_verified, held + 4 * 4 * 64, "{case}");
            let requests = pair.receives.0.requests();
            assert_eq!([requests[0].code(), requests[1].code()], ["open", "handover"], "{case}");
            let entry = &steps(&requests)[0].entries[0];
            assert_eq!((entry.first_token, entry.tokens), (prompt_tokens, 5), "{case}");
            // The same tokens as a prompt are served with what both engines wrote.
            let whole: Vec<u32> = (0..64 + lookahead).map(|place| prompt.token(place)).collect();
            pair.receives.0.state().serve = Serve::FromL1;
            let plan = PagePlan::of_tokens(SALT, &whole, pair.config.paging(), |_| &[]);
            let served = run(&mut pair.receives.1, vec![Prompt::new("t", plan)]).await;
            assert_eq!((served.hit_pages.l1, served.mismatches), (4, 0), "{case}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn every_piece_that_came_over_is_compared_as_far_as_it_is_valid() {
    for (position, region, offset, found) in [
        (0, 0, 0, Some(("target.kv", 0))),
        (1, 2, 32, Some(("target.kv", 2))),
        (0, 3, 56, Some(("draft.kv", 0))),
        // 10 tokens of the tail are valid: 40 bytes of 64.
        (1, 3, 39, Some(("draft.kv", 0))),
        (1, 3, 40, None),
    ] {
        let mut pair = Pair::start(EngineConfig { verify: Verify::Hits, ..small(0) }).await;
        let prompt = pair.prompt(1, 26, 0);
        pair.send(&prompt, transfer(0), 1).await;
        pair.meddle(|parcel| parcel.records[position][region][offset] ^= 1);
        let (ended, report) = pair.receive(&prompt, transfer(0), 1).await;
        let seen: Vec<_> =
            report.first_mismatches.iter().map(|wrong| (wrong.position, wrong.component, wrong.layer)).collect();
        let found: Vec<_> = found.iter().map(|(component, layer)| (position as u32, *component, *layer)).collect();
        assert_eq!((ended.how, &seen), (How::Closed, &found), "byte {offset} of page {position}");
        assert_eq!(report.is_clean(), found.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn pages_in_the_wrong_order_are_wrong_in_every_piece() {
    let mut pair = Pair::start(EngineConfig { verify: Verify::Hits, ..small(0) }).await;
    let prompt = pair.prompt(1, 32, 0);
    pair.send(&prompt, transfer(0), 1).await;
    pair.meddle(|parcel| parcel.records.swap(0, 1));
    let (_, report) = pair.receive(&prompt, transfer(0), 1).await;
    assert_eq!((report.mismatches, report.mismatched_words), (2 * 4, 2 * 4 * 8));
}

#[tokio::test(start_paused = true)]
async fn what_was_said_of_a_handover_is_compared_too() {
    let lies: [fn(&mut Parcel); 3] =
        [|parcel| parcel.tokens -= 1, |parcel| parcel.blob.0[0] ^= 1, |parcel| parcel.blob.0.clear()];
    for lie in lies {
        let mut pair = Pair::start(small(0)).await;
        let prompt = pair.prompt(1, 26, 10);
        pair.send(&prompt, transfer(0), 1).await;
        pair.meddle(lie);
        let (ended, report) = pair.receive(&prompt, transfer(0), 1).await;
        assert_eq!((ended.how, report.failures.len(), report.handovers), (How::Failed, 1, 0));
        sleep(Duration::from_secs(1)).await;
        assert!(pair.receives.0.state().sessions.is_empty(), "the daemon is told");
    }
}

#[tokio::test(start_paused = true)]
async fn a_handover_that_fails_is_aborted_and_goes_well_with_a_higher_attempt() {
    let failed = || Refusal::from(WrongState::new(transfer(0), "failed: Mismatch"));
    let expired = || Refusal::from(Expired { session: transfer(0), lease_ms: 1 });
    let short = || Refusal::from(OutOfPages { short: vec![1], retry_ms: 400 });
    for (kind, refusal) in [("handover", failed()), ("handover", expired()), ("extend", short()), ("step", failed())] {
        let mut pair = Pair::start(EngineConfig { preempt_after: Duration::ZERO, ..small(0) }).await;
        let prompt = pair.prompt(1, 26, 20);
        pair.send(&prompt, transfer(0), 1).await;
        let code = refusal.code();
        pair.receives.0.state().refuse = [(kind, refusal)].into();
        let (ended, report) = pair.receive(&prompt, transfer(0), 1).await;
        assert_eq!((ended.how, ended.sessions), (How::NotHandedOver(code), 1), "{kind}");
        assert_eq!((report.handovers_failed, report.failed, report.preempted), (1, 0, 0), "{kind}");
        assert!(report.handover_failures[0].1.contains(code), "{:?}", report.handover_failures);
        assert_eq!(pair.receives.0.kinds().last(), Some(&"abort"), "{kind}");
        pair.send(&prompt, transfer(0), 2).await;
        let (ended, report) = pair.receive(&prompt, transfer(0), 2).await;
        assert_eq!((ended.how, report.is_clean()), (How::Closed, true), "{kind}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_control_group_is_joined_and_the_attempt_is_over_on_either_side() {
    let mut pair = Pair::start(small(0)).await;
    let prompt = pair.prompt(1, 26, 10);
    for side in ["sends", "receives"] {
        let (daemon, engine, handover) = match side {
            "sends" => {
                let side = Side::Send { transfer: transfer(0), attempt: 1, to: "d".to_owned() };
                (&pair.sends.0, &mut pair.sends.1, side)
            }
            _ => (&pair.receives.0, &mut pair.receives.1, Side::Receive { transfer: transfer(0), attempt: 1 }),
        };
        daemon.kinds();
        let control = daemon.state().control;
        daemon.state().control = Incarnation([9; 16]);
        let prompt = Prompt { handover: Some(handover), ..prompt.clone() };
        let mut over = Vec::new();
        engine.run(stream::iter([prompt]), |ended, _| over.push(ended.how)).await;
        assert_eq!(over, [How::NotHandedOver("new_incarnation")], "{side}");
        assert_ne!(engine.client().control(), control, "{side}");
        let kinds = daemon.kinds();
        assert_eq!(kinds.iter().filter(|kind| **kind == "open").count(), 1, "{side}");
    }
    pair.send(&prompt, transfer(0), 2).await;
    assert!(pair.receive(&prompt, transfer(0), 2).await.1.is_clean());
}

#[tokio::test(start_paused = true)]
async fn pages_that_are_here_do_not_come_over() {
    for (serve, hit) in [(Serve::FromL1, Hit { l1: 1, l2: 0 }), (Serve::FromL2, Hit { l1: 0, l2: 1 })] {
        let mut pair = Pair::start(EngineConfig { verify: Verify::Hits, ..small(0) }).await;
        let (shared, prompt) = (pair.prompt(1, 16, 0), pair.prompt(1, 42, 3));
        run(&mut pair.receives.1, vec![shared]).await;
        pair.receives.0.state().serve = serve;
        pair.send(&prompt, transfer(0), 1).await;
        let (ended, report) = pair.receive(&prompt, transfer(0), 1).await;
        assert_eq!((ended.how, ended.hit, report.handover_pages), (How::Closed, hit, 2), "{serve:?}");
        assert_eq!((report.bytes_verified, report.mismatches), ((64 + 64 + 40) * 4, 0), "{serve:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_load_that_fails_ends_the_attempt() {
    let mut pair = Pair::start(small(0)).await;
    let (shared, prompt) = (pair.prompt(1, 16, 0), pair.prompt(1, 42, 3));
    run(&mut pair.receives.1, vec![shared]).await;
    pair.receives.0.state().serve = Serve::FailedLoad(2);
    pair.receives.0.kinds();
    let (ended, report) = pair.receive(&prompt, transfer(0), 1).await;
    assert_eq!((ended.how, report.loads_failed), (How::NotHandedOver("WrongState"), 1));
    assert_eq!(pair.receives.0.kinds(), ["open", "abort"]);
}

#[tokio::test(start_paused = true)]
async fn fates_leave_a_prompt_whole_and_its_draft_running() {
    let fates = EngineConfig { draftless_permille: 1_000, close_early_permille: 1_000, chunk_tokens: 8, ..small(0) };
    let mut pair = Pair::start(fates).await;
    let prompt = pair.prompt(1, 26, 20);
    pair.send(&prompt, transfer(0), 1).await;
    assert!(pair.receive(&prompt, transfer(0), 1).await.1.is_clean());
}

#[tokio::test(start_paused = true)]
async fn a_session_may_be_aborted_while_its_pages_come() {
    let mut pair = Pair::start(EngineConfig { abort_permille: 1_000, ..small(0) }).await;
    let side = Some(Side::Receive { transfer: transfer(0), attempt: 1 });
    let prompt = Prompt { handover: side, ..pair.prompt(1, 26, 5) };
    let mut aborted = 0;
    for number in 0..16 {
        let mut over = Vec::new();
        pair.receives.1.run_numbered(stream::iter([(number, prompt.clone())]), |ended, _| over.push(ended.how)).await;
        if pair.receives.0.kinds() == ["open", "abort"] {
            assert_eq!(over, [How::Aborted]);
            aborted += 1;
        }
    }
    assert!((1..16).contains(&aborted), "{aborted} of 16");
}
