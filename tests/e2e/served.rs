//! Groups that live in several processes, and processes that serve several groups.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nine_processes_serve_a_group_and_end_in_order() {
    let Some(world) = World::new("apart") else { return };
    let mut processes: Vec<Process> = APART.iter().map(|run| world.process("apart", run)).collect();
    for (process, run) in processes.iter_mut().zip(APART) {
        assert_eq!(process.ready(), format!("ready: group apart: {run} on the nats bus"));
    }
    let mut engine = world.engine("apart").await;
    let report = serve(&mut engine, world.prompts("apart", 60)).await;
    assert!(report.hit_pages.l1 > 0 && report.loads > 0 && report.bytes_verified > 0, "{report:?}");
    let client = engine.client().clone();
    until(&client, Address::Index, "index.in_flight", |ops| ops == 0).await;
    for actor in APART {
        let figures = client.figures(Address::parse(actor).expect("an actor")).await.expect("figures");
        assert!(figures.counters.iter().any(|(name, _)| name.starts_with("host.")), "{actor}: {figures:?}");
    }
    engine.stop().await;
    for (process, run) in processes.iter_mut().zip(APART) {
        let (code, log) = process.terminated();
        assert_eq!(code, Some(0), "{run}: {log}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_process_serves_two_groups_side_by_side() {
    let Some(world) = World::new("beside") else { return };
    let [left, right] = ["left", "right"].map(|name| world.file(name).display().to_string());
    let mut both = Process::start(&["serve", "--config", &left, "--config", &right]);
    let mut lines = [both.ready(), both.ready()];
    lines.sort();
    for (line, name) in lines.iter().zip(["left", "right"]) {
        assert!(line.starts_with(&format!("ready: group {name}: index, ")), "{line}");
    }
    let (mut in_left, mut in_right) = tokio::join!(world.engine("left"), world.engine("right"));
    let prompts = world.prompts("left", 20);
    let (first, other) = tokio::join!(serve(&mut in_left, prompts.clone()), serve(&mut in_right, prompts.clone()));
    assert_eq!(first.requests + other.requests, 40);
    let again = serve(&mut in_left, prompts[..1].to_vec()).await;
    assert!(again.hit_pages.l1 > 0, "{again:?}");
    in_left.stop().await;
    in_right.stop().await;
    let (code, log) = both.terminated();
    assert_eq!(code, Some(0), "{log}");
}
