//! Control groups that are replaced, and connections that are lost, under a running engine.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_new_control_group_is_joined_and_the_request_begins_again() {
    let config = config(manifest(2, 0, 64));
    let daemon = Daemon::new(config.manifest.clone());
    let mut engine = start(&daemon, &config).await;
    run(&mut engine, vec![prompt(&config, 1, 40)]).await;
    daemon.kinds();
    daemon.state().control = Incarnation([9; 16]);
    let report = run(&mut engine, vec![prompt(&config, 2, 40)]).await;
    assert_eq!((report.reopened, report.requests_ended), (1, 1));
    let requests = daemon.requests();
    let kinds: Vec<&str> = requests.iter().map(Request::code).collect();
    assert_eq!(kinds, ["open", "register", "register", "open", "step", "close"]);
    assert_eq!(steps(&requests)[0].number, 2, "numbers go on");
    assert!(requests.iter().all(|r| if let Request::Register(r) = r { r.last_step == 1 } else { true }));
}

#[tokio::test(start_paused = true)]
async fn an_idle_engine_says_that_it_lives_and_joins_a_new_control_group_by_itself() {
    let config = config(manifest(2, 0, 64));
    let daemon = Daemon::new(config.manifest.clone());
    let engine = start(&daemon, &config).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(daemon.state().heartbeats >= 2 * 6, "two ranks, three in every lease of 30 s");
    assert!(daemon.kinds().is_empty());
    daemon.state().control = Incarnation([9; 16]);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(daemon.kinds(), ["register", "register"], "once for the group, whichever rank heard of it");
    assert_eq!(engine.client().control(), Incarnation([9; 16]));
}

#[tokio::test(start_paused = true)]
async fn a_load_of_a_control_group_that_was_replaced_is_not_waited_for() {
    // With a tail to compute, and with nothing to compute at all.
    for tokens in [70, 64] {
        let config = config(manifest(2, 0, 64));
        let daemon = Daemon::new(config.manifest.clone());
        let mut engine = start(&daemon, &config).await;
        run(&mut engine, vec![prompt(&config, 1, tokens)]).await;
        {
            let mut state = daemon.state();
            (state.serve, state.dead_ranks) = (Serve::FromL2, true);
        }
        let started = tokio::time::Instant::now();
        let replace = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let mut state = daemon.state();
            (state.control, state.serve) = (Incarnation([9; 16]), Serve::Nothing);
        };
        let (report, ()) = tokio::join!(run(&mut engine, vec![prompt(&config, 1, tokens)]), replace);
        assert!(report.is_clean(), "{report:?}");
        assert_eq!((report.reopened, report.loads_failed), (1, 1), "{tokens} tokens");
        assert!(started.elapsed() < Duration::from_secs(3), "{:?}, and not until its deadline", started.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn work_of_a_control_group_that_is_gone_is_neither_run_nor_told() {
    let config = config(manifest(1, 0, 64));
    let daemon = Daemon::new(config.manifest.clone());
    let engine = start(&daemon, &config).await;
    let (page, rows) = (PageId(2), Rows::new(SALT, 0..PAGE_TOKENS));
    let entry = StepEntry {
        session: engine.client().draw(),
        first_token: 0,
        tokens: PAGE_TOKENS,
        pages: Pages(vec![page]),
        draft: true,
        keys: Keys(vec![Key([7; 16])]),
        first_key: 0,
        load_read: false,
    };
    let old = Incarnation([1; 16]);
    let (done, outcome) = tokio::sync::oneshot::channel();
    let (life, fills) = (Life { request: 0, control: old }, vec![Fill { page, rows: rows.clone(), from_token: 0 }]);
    let work = Work { life, entry, fills, trace: None, load: None, done };
    engine.jobs.send(Job::Run(Box::new(work))).await.ok().unwrap();
    let told = outcome.await.unwrap().told;
    assert_eq!(told, Err(ClientError::NewIncarnation { old, new: engine.client().control() }));
    assert!(daemon.kinds().is_empty(), "no step is launched");
    let mut wrong = 0;
    engine
        .core
        .pools
        .verify(page, (&rows, Components::ALL), (Track::Target, 0), &mut Buffers::default(), |_| wrong += 1);
    assert!(wrong > 0, "the page may be somebody else's by now");
}

#[tokio::test(start_paused = true)]
async fn sessions_that_a_lost_connection_ended_are_told_of_when_the_daemon_is_back() {
    for kind in ["open", "extend", "step", "close", "abort"] {
        for carried_out in [false, true] {
            let config = EngineConfig {
                chunk_tokens: 16,
                abort_permille: if kind == "abort" { 1_000 } else { 0 },
                ..config(manifest(2, 0, 64))
            };
            let daemon = Daemon::new(config.manifest.clone());
            let mut engine = start(&daemon, &config).await;
            daemon.state().leaves_at = Some((kind, carried_out));
            let report = engine.run(stream::iter([prompt(&config, 1, 40)]), |_, _| {}).await;
            assert_eq!((report.failed, report.requests_ended), (1, 0), "{kind}");
            // Longer than a lease: the heartbeats that are answered then renew every session that still is.
            tokio::time::sleep(Duration::from_secs(60)).await;
            daemon.kinds();
            daemon.state().away = false;
            tokio::time::sleep(Duration::from_secs(5)).await;
            let case = format!("{kind}, carried out: {carried_out}");
            assert!(daemon.state().sessions.is_empty(), "{case}");
            let last_step = report.steps;
            assert_eq!(daemon.state().next_step, last_step + 1, "{case}: what a session waits for has been told");
            let told = daemon.requests();
            let aborts = told.iter().filter_map(|r| if let Request::Abort(a) = r { Some(a.last_step) } else { None });
            assert_eq!(aborts.collect::<Vec<_>>(), [last_step], "{case}: until it is answered, and no more");
            daemon.state().serve = Serve::Nothing;
            assert!(engine.run(stream::iter([prompt(&config, 2, 40)]), |_, _| {}).await.is_clean(), "{case}");
        }
    }
}
