mod daemon;
mod handover;
mod replaced;
mod router;

use std::collections::BTreeMap;

use futures_util::stream;
use hicached_actors::protocol::*;

use self::daemon::{Daemon, Serve};
use super::content::Rows;
use super::core::Life;
use super::forward::Work;
use super::pools::{Buffers, Components, Fill};
use super::report::Report;
use super::*;
use crate::shm::{Track, word_value};
use crate::tokens::PagePlan;

const SALT: Key = Key([7; 16]);
const PAGE_TOKENS: u32 = 16;
const LAYERS: (u32, u32) = (3, 1);

fn manifest(cp_size: u8, lookahead: u32, kv_bytes: u32) -> Manifest {
    let component = |name: &str, layers: u32, bytes| ComponentSpec {
        name: name.to_owned(),
        dtype: "u8".to_owned(),
        page_bytes: vec![bytes; layers as usize],
    };
    Manifest {
        page_tokens: PAGE_TOKENS,
        cp_size,
        tile_pages: 1,
        draft_lookahead_tokens: lookahead,
        components: vec![component("target.kv", LAYERS.0, kv_bytes), component("draft.kv", LAYERS.1, kv_bytes)],
    }
}

fn config(manifest: Manifest) -> EngineConfig {
    EngineConfig::new("g", manifest, 64, std::env::temp_dir())
}

fn tokens(seed: u32, count: u32) -> Vec<u32> {
    (0..count).map(|token| seed * 10_000 + token).collect()
}

fn prompt(config: &EngineConfig, seed: u32, count: u32) -> Prompt {
    let plan = PagePlan::of_tokens(SALT, &tokens(seed, count), config.paging(), |_| &[]);
    Prompt::new("t", plan)
}

async fn run(engine: &mut Engine, prompts: Vec<Prompt>) -> Report {
    let report = engine.run(stream::iter(prompts), |_, _| {}).await;
    assert!(report.failures.is_empty(), "{:?}", report.failures);
    report
}

async fn start(daemon: &Daemon, config: &EngineConfig) -> Engine {
    let engine = Engine::start(daemon.bus(), config.clone()).await.unwrap();
    daemon.kinds();
    engine
}

fn steps(requests: &[Request]) -> Vec<&Step> {
    requests.iter().filter_map(|request| if let Request::Step(step) = request { Some(step) } else { None }).collect()
}

#[tokio::test(start_paused = true)]
async fn one_request_at_a_time_is_open_step_close() {
    let config = config(manifest(2, 0, 64));
    let daemon = Daemon::new(config.manifest.clone());
    let mut engine = Engine::start(daemon.bus(), config.clone()).await.unwrap();
    assert_eq!(daemon.kinds(), ["register", "register"]);
    let prompts = vec![prompt(&config, 1, 70), prompt(&config, 2, 32)];
    let report = run(&mut engine, prompts).await;
    let requests = daemon.requests();
    let kinds: Vec<&str> = requests.iter().map(Request::code).collect();
    assert_eq!(kinds, ["open", "step", "close", "open", "step", "close"]);
    assert_eq!(steps(&requests).iter().map(|step| step.number).collect::<Vec<_>>(), [1, 2]);
    let entry = &steps(&requests)[0].entries[0];
    assert_eq!((entry.first_token, entry.tokens, entry.pages.0.len(), entry.draft), (0, 70, 5, true));
    for rank in &daemon.state().ranks {
        assert_eq!(rank.words.value(Track::Target), word_value(2, LAYERS.0, LAYERS.0));
        assert_eq!(rank.words.value(Track::Draft), word_value(2, LAYERS.1, LAYERS.1));
    }
    assert!(report.is_clean());
    assert_eq!((report.requests_ended, report.steps, report.full_pages), (2, 2, 6));
    assert_eq!((report.latencies.open.count(), report.latencies.commit.count()), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn a_long_prompt_runs_in_chunks_and_every_page_holds_its_bytes_at_the_end() {
    for lookahead in [0, 1] {
        let config =
            EngineConfig { chunk_tokens: 24, verify: Verify::Everything, ..config(manifest(2, lookahead, 64)) };
        let daemon = Daemon::new(config.manifest.clone());
        let mut engine = start(&daemon, &config).await;
        let report = run(&mut engine, vec![prompt(&config, 1, 64)]).await;
        let requests = daemon.requests();
        let entries: Vec<_> =
            steps(&requests).iter().map(|step| (step.entries[0].first_token, step.entries[0].tokens)).collect();
        assert_eq!(entries, [(0, 24), (24, 24), (48, 16)]);
        let asked: Vec<_> = requests
            .iter()
            .filter_map(|request| if let Request::Extend(e) = request { Some((e.first, e.tokens)) } else { None })
            .collect();
        assert_eq!(asked, [(2, 16), (3, 16)], "pages held so far, tokens beyond them");
        assert_eq!(report.bytes_verified, 4 * 4 * 64);
        assert!(report.is_clean());
        let keys = page_keys(SALT, &tokens(1, 64), PAGE_TOKENS, lookahead, |_| &[]);
        assert!(keys.iter().all(|key| daemon.state().l1.contains_key(key)));
    }
}

#[tokio::test(start_paused = true)]
async fn hits_are_compared_before_use_and_a_wrong_word_is_named() {
    let config = config(manifest(2, 0, 64));
    let daemon = Daemon::new(config.manifest.clone());
    let mut engine = start(&daemon, &config).await;
    run(&mut engine, vec![prompt(&config, 1, 70)]).await;
    daemon.state().serve = Serve::FromL1;
    let again = run(&mut engine, vec![prompt(&config, 1, 70)]).await;
    assert_eq!((again.hit_pages, again.bytes_verified), (HitPages { l1: 4, l2: 0 }, 4 * 4 * 64));
    assert!(again.is_clean());

    let page = daemon.state().l1[&prompt(&config, 1, 70).plan.keys[2]];
    daemon.state().spoil(page, 1);
    let spoiled = run(&mut engine, vec![prompt(&config, 2, 16), prompt(&config, 1, 70)]).await;
    let wrong = WrongPiece { request: 1, position: 2, page: page.0, component: "target.kv", layer: 1, offset_bytes: 0 };
    assert_eq!(spoiled.first_mismatches, [wrong]);
    assert_eq!((spoiled.mismatches, spoiled.mismatched_words, spoiled.is_clean()), (1, 1, false));
}

#[tokio::test(start_paused = true)]
async fn a_load_is_waited_for_layer_by_layer_and_compared() {
    let config = config(manifest(2, 0, 64));
    let daemon = Daemon::new(config.manifest.clone());
    let mut engine = start(&daemon, &config).await;
    run(&mut engine, vec![prompt(&config, 1, 70)]).await;
    daemon.state().serve = Serve::FromL2;
    daemon.kinds();
    // With a tail to compute, and with nothing to compute at all.
    for (tokens, kinds) in [(70, vec!["open", "step", "close"]), (64, vec!["open", "close"])] {
        let report = run(&mut engine, vec![prompt(&config, 1, tokens)]).await;
        assert_eq!((report.hit_pages, report.loads, report.loads_failed), (HitPages { l1: 0, l2: 4 }, 1, 0));
        assert_eq!((report.bytes_verified, report.mismatches), (4 * 4 * 64, 0));
        assert_eq!(report.latencies.load.count(), 1);
        assert_eq!(daemon.kinds(), kinds);
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_failed_load_its_pages_are_computed_under_a_new_step() {
    for failed_after in 0..LAYERS.0 + LAYERS.1 {
        for (tokens, again) in [(70, vec![(64, 6), (0, 70)]), (64, vec![(0, 64)])] {
            let config = EngineConfig { verify: Verify::Everything, ..config(manifest(2, 0, 64)) };
            let daemon = Daemon::new(config.manifest.clone());
            let mut engine = start(&daemon, &config).await;
            run(&mut engine, vec![prompt(&config, 1, 70)]).await;
            daemon.state().serve = Serve::FailedLoad(failed_after);
            daemon.kinds();
            let report = run(&mut engine, vec![prompt(&config, 1, tokens)]).await;
            let requests = daemon.requests();
            let entries: Vec<_> =
                steps(&requests).iter().map(|step| (step.entries[0].first_token, step.entries[0].tokens)).collect();
            assert_eq!(entries, again, "{failed_after} layers, {tokens} tokens");
            assert_eq!((report.loads_failed, report.mismatches), (1, 0));
            assert!(report.is_clean());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_load_that_failed_behind_its_last_word_sends_the_session_back() {
    let config = config(manifest(2, 0, 64));
    let daemon = Daemon::new(config.manifest.clone());
    let mut engine = start(&daemon, &config).await;
    run(&mut engine, vec![prompt(&config, 1, 70)]).await;
    daemon.kinds();
    daemon.state().serve = Serve::FromL2;
    daemon.state().void = 3;
    let report = run(&mut engine, vec![prompt(&config, 1, 70)]).await;
    let requests = daemon.requests();
    let entries: Vec<_> = steps(&requests)
        .iter()
        .map(|step| (step.number, step.entries[0].first_token, step.entries[0].tokens))
        .collect();
    // Another rank still writes the pages of the load when the session runs them again, twice.
    assert_eq!(entries, [(2, 64, 6), (3, 0, 70), (4, 0, 70), (5, 0, 70)]);
    assert_eq!((report.loads_failed, report.is_clean()), (1, true));
}

#[tokio::test(start_paused = true)]
async fn a_step_waits_until_the_daemon_has_heard_that_its_load_failed() {
    let config = config(manifest(2, 0, 64));
    let daemon = Daemon::new(config.manifest.clone());
    let mut engine = start(&daemon, &config).await;
    run(&mut engine, vec![prompt(&config, 1, 70)]).await;
    daemon.kinds();
    daemon.state().serve = Serve::FailedLoad(1);
    let early = || ("step", Refusal::from(Gap { expected: 64, got: 0 }));
    daemon.state().refuse = [early(), early()].into();
    let report = run(&mut engine, vec![prompt(&config, 1, 64)]).await;
    let requests = daemon.requests();
    let told: Vec<_> = steps(&requests).iter().map(|step| (step.number, step.entries.len())).collect();
    assert_eq!(told, [(2, 1), (2, 1), (2, 1)], "the same step again");
    assert!(report.is_clean());
}

#[tokio::test(start_paused = true)]
async fn the_slot_of_a_load_is_given_back_by_the_first_step_after_it() {
    let config = EngineConfig { chunk_tokens: 16, ..config(manifest(2, 0, 64)) };
    let daemon = Daemon::new(config.manifest.clone());
    let mut engine = start(&daemon, &config).await;
    run(&mut engine, vec![prompt(&config, 1, 64)]).await;
    daemon.kinds();
    daemon.state().serve = Serve::FromL2;
    let longer = PagePlan::of_tokens(SALT, &tokens(1, 96), config.paging(), |_| &[]);
    run(&mut engine, vec![Prompt::new("t", longer)]).await;
    let requests = daemon.requests();
    let read: Vec<_> = steps(&requests).iter().map(|step| step.entries[0].load_read).collect();
    assert_eq!(read, [false, true]);
}

#[tokio::test(start_paused = true)]
async fn a_load_that_never_ends_is_given_up_at_its_deadline() {
    let config = config(manifest(2, 0, 64));
    let daemon = Daemon::new(config.manifest.clone());
    let mut engine = start(&daemon, &config).await;
    run(&mut engine, vec![prompt(&config, 1, 70)]).await;
    daemon.state().serve = Serve::FromL2;
    daemon.state().dead_ranks = true;
    let started = Instant::now();
    let report = run(&mut engine, vec![prompt(&config, 1, 70)]).await;
    assert_eq!((report.loads_failed, report.mismatches), (1, 0));
    assert!(started.elapsed() >= config.load_deadline && started.elapsed() < config.load_deadline * 2);
}

#[tokio::test(start_paused = true)]
async fn what_has_no_room_is_asked_again_and_counted_by_code() {
    let config = EngineConfig { chunk_tokens: 32, ..config(manifest(2, 0, 64)) };
    let daemon = Daemon::new(config.manifest.clone());
    let mut engine = start(&daemon, &config).await;
    let short = || Refusal::from(OutOfPages { short: vec![1, 0], retry_ms: 20 });
    let busy = || Refusal::from(Busy { queue: "opens".to_owned(), bound: 1, retry_ms: 10 });
    daemon.state().refuse =
        [("open", short()), ("open", busy()), ("extend", short()), ("step", busy()), ("close", busy())].into();
    let report = run(&mut engine, vec![prompt(&config, 1, 64)]).await;
    assert_eq!(report.refusals, BTreeMap::from([("Busy".to_owned(), 3), ("OutOfPages".to_owned(), 2)]));
    let state = daemon.state();
    let ops: Vec<OpId> = state.log.iter().filter(|(_, r)| r.code() == "open").map(|(op, _)| *op).collect();
    assert!(ops[0] != ops[1] && ops[1] != ops[2], "a refused session is not the next one");
    assert_eq!((ops.len(), report.is_clean()), (3, true));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_too_long_for_pages_begins_again() {
    let config = EngineConfig { chunk_tokens: 32, ..config(manifest(2, 0, 64)) };
    let daemon = Daemon::new(config.manifest.clone());
    let mut engine = start(&daemon, &config).await;
    let short = || ("extend", Refusal::from(OutOfPages { short: vec![1, 0], retry_ms: 400 }));
    daemon.state().refuse = [short(), short(), short()].into();
    let report = run(&mut engine, vec![prompt(&config, 1, 64)]).await;
    assert_eq!((report.preempted, report.requests_ended, report.requests), (1, 1, 1));
    let kinds = daemon.kinds();
    assert_eq!(kinds.iter().filter(|kind| **kind == "abort").count(), 1);
    assert_eq!(kinds.last(), Some(&"close"));
}

#[tokio::test(start_paused = true)]
async fn decoded_pages_go_from_lane_to_lane_and_are_keyed_like_a_prompt_of_the_same_tokens() {
    for lookahead in [0, 1] {
        let config =
            EngineConfig { decode_stride_tokens: 5, verify: Verify::Everything, ..config(manifest(4, lookahead, 64)) };
        let daemon = Daemon::new(config.manifest.clone());
        let mut engine = start(&daemon, &config).await;
        let prompt = Prompt { output_tokens: 38, output_seed: 9, ..prompt(&config, 1, 26) };
        let report = run(&mut engine, vec![prompt.clone()]).await;
        assert!(report.is_clean());
        assert_eq!(report.bytes_verified, 4 * 4 * 64, "64 tokens are 4 full pages");
        let requests = daemon.requests();
        let owners: Vec<_> = requests
            .iter()
            .filter_map(
                |request| if let Request::Extend(e) = request { Some((e.first, e.owners.0.clone())) } else { None },
            )
            .collect();
        assert_eq!(owners, [(2, vec![2]), (3, vec![3])]);
        let output = (0..39).map(|index| prompt.output_token(index));
        let whole: Vec<u32> = tokens(1, 26).into_iter().chain(output).take(64 + lookahead as usize).collect();
        let keys = page_keys(SALT, &whole, PAGE_TOKENS, lookahead, |_| &[]);
        assert_eq!(keys.len(), 4);
        assert_eq!(daemon.state().l1.len(), 4);
        assert!(keys.iter().all(|key| daemon.state().l1.contains_key(key)), "lookahead {lookahead}");
        // The same tokens as a prompt are served with the bytes that were decoded.
        daemon.state().serve = Serve::FromL1;
        let plan = PagePlan::of_tokens(SALT, &whole, config.paging(), |_| &[]);
        let served = run(&mut engine, vec![Prompt::new("t", plan)]).await;
        assert_eq!((served.hit_pages.l1, served.mismatches), (4, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_without_draft_passes_the_draft_words_and_writes_no_draft_bytes() {
    let config = EngineConfig { draftless_permille: 1_000, ..config(manifest(1, 0, 64)) };
    let daemon = Daemon::new(config.manifest.clone());
    let mut engine = start(&daemon, &config).await;
    run(&mut engine, vec![prompt(&config, 1, 16)]).await;
    let requests = daemon.requests();
    assert!(!steps(&requests)[0].entries[0].draft);
    let state = daemon.state();
    assert_eq!(state.ranks[0].words.value(Track::Draft), word_value(1, LAYERS.1, LAYERS.1));
    let record = state.record(*state.l1.values().next().unwrap());
    assert!(record[..LAYERS.0 as usize].iter().all(|bytes| bytes.iter().any(|byte| *byte != 0)));
    assert!(record[LAYERS.0 as usize..].iter().flatten().all(|byte| *byte == 0));
}

#[tokio::test(start_paused = true)]
async fn aborted_and_early_ends_name_the_last_step() {
    let config = EngineConfig {
        chunk_tokens: 16,
        abort_permille: 500,
        close_early_permille: 500,
        seed: 3,
        ..config(manifest(2, 0, 64))
    };
    let daemon = Daemon::new(config.manifest.clone());
    let mut engine = start(&daemon, &config).await;
    let report = run(&mut engine, (0..8).map(|seed| prompt(&config, seed, 40)).collect()).await;
    assert!(report.aborted > 0 && report.aborted < 8 && report.requests_ended == 8, "{} aborted", report.aborted);
    let (mut last, mut counts) = (0, BTreeMap::new());
    for request in daemon.requests() {
        match request {
            Request::Open(_) => last = 0,
            Request::Step(step) => last = step.number,
            Request::Close(close) => assert_eq!(close.last_step, last),
            Request::Abort(abort) => {
                assert_eq!(abort.last_step, last);
                *counts.entry(last == 0).or_insert(0) += 1;
            }
            other => assert_eq!(other.code(), "extend"),
        }
    }
    assert_eq!(counts.values().sum::<u64>(), report.aborted);
    assert!(daemon.state().sessions.is_empty());
}

#[tokio::test(start_paused = true)]
async fn sessions_that_can_run_share_a_step() {
    let config = EngineConfig { sessions_max: 3, ..config(manifest(2, 0, 64)) };
    let daemon = Daemon::new(config.manifest.clone());
    let mut engine = start(&daemon, &config).await;
    let report = run(&mut engine, (0..6).map(|seed| prompt(&config, seed, 40)).collect()).await;
    let requests = daemon.requests();
    let entries: Vec<_> = steps(&requests).iter().map(|step| (step.number, step.entries.len())).collect();
    assert_eq!(entries, [(1, 3), (2, 3)]);
    assert!(report.is_clean());
}

#[tokio::test(start_paused = true)]
async fn a_step_refused_for_a_session_is_told_without_it_so_that_numbers_go_on() {
    let config = config(manifest(2, 0, 64));
    let daemon = Daemon::new(config.manifest.clone());
    let mut engine = start(&daemon, &config).await;
    let expired = Expired { session: OpId::default(), lease_ms: 1 };
    daemon.state().refuse = [("step", Refusal::from(expired))].into();
    let prompts = vec![prompt(&config, 1, 40), prompt(&config, 2, 40)];
    let report = engine.run(stream::iter(prompts), |_, _| {}).await;
    assert_eq!((report.failed, report.requests_ended), (1, 1));
    let requests = daemon.requests();
    let told: Vec<_> = steps(&requests).iter().map(|step| (step.number, step.entries.len())).collect();
    assert_eq!(told, [(1, 1), (1, 0), (2, 1)]);
}

#[tokio::test(start_paused = true)]
async fn steps_the_daemon_never_heard_of_are_told_as_empty_ones() {
    let config = config(manifest(2, 0, 64));
    let daemon = Daemon::new(config.manifest.clone());
    let mut engine = start(&daemon, &config).await;
    run(&mut engine, (0..3).map(|seed| prompt(&config, seed, 40)).collect()).await;
    daemon.kinds();
    daemon.state().next_step = 2;
    let report = run(&mut engine, vec![prompt(&config, 9, 40)]).await;
    let requests = daemon.requests();
    let told: Vec<_> = steps(&requests).iter().map(|step| (step.number, step.entries.len())).collect();
    assert_eq!(told, [(4, 1), (2, 0), (3, 0), (4, 1)]);
    assert!(report.is_clean());
}

#[tokio::test(start_paused = true)]
async fn pages_without_bytes_change_nothing_but_the_bytes() {
    let config = EngineConfig { verify: Verify::Everything, ..config(manifest(2, 0, 0)) };
    let daemon = Daemon::new(config.manifest.clone());
    let mut engine = start(&daemon, &config).await;
    run(&mut engine, vec![prompt(&config, 1, 70)]).await;
    daemon.state().serve = Serve::FromL2;
    let report = run(&mut engine, vec![prompt(&config, 1, 70)]).await;
    assert_eq!((report.hit_pages.l2, report.bytes_verified, report.is_clean()), (4, 0, true));
    assert_eq!(daemon.kinds(), ["open", "step", "close", "open", "step", "close"]);
}

#[tokio::test(start_paused = true)]
async fn pool_files_go_with_the_engine() {
    let config = config(manifest(2, 0, 64));
    let daemon = Daemon::new(config.manifest.clone());
    let engine = start(&daemon, &config).await;
    let path = daemon.state().ranks[0].segment.as_ref().unwrap().path().to_owned();
    assert!(path.exists());
    engine.stop().await;
    assert!(!path.exists());
}
