//! Processes that die and come back: the control incarnation ends as a whole, the host tier stays.

use hicached_actors::protocol::Incarnation;
use hicached_client::client::ClientConfig;

use super::*;

/// Waits until the group has no index, because its incarnation has ended and the next one is not complete.
async fn without_an_index(world: &World, name: &str) {
    let config = ClientConfig { away_after: Duration::ZERO, ..ClientConfig::new(name, Incarnation([1; 16])) };
    let client = Client::new(world.bus().await, config);
    let started = Instant::now();
    while client.figures(Address::Index).await.is_ok() {
        assert!(started.elapsed() < LONG, "the incarnation goes on");
    }
}

/// Kills the process that hosts `lost`, serves through it, and finds the pages of before on the host.
async fn outlives(name: &str, lost: &str) {
    let Some(world) = World::new(name) else { return };
    let mut processes: Vec<Process> = APART.iter().map(|run| world.process(name, run)).collect();
    processes.iter_mut().for_each(|process| drop(process.ready()));
    let mut engine = world.engine(name).await;
    let client = engine.client().clone();
    let prompts = world.prompts(name, 4);
    serve(&mut engine, prompts.clone()).await;
    until(&client, Address::Index, "index.in_flight", |ops| ops == 0).await;
    let before = client.control();

    let at = APART.iter().position(|run| *run == lost).expect("one of them");
    processes[at].killed();
    processes[at] = world.process(name, lost);
    processes[at].ready();
    let report = serve(&mut engine, prompts).await;
    assert!(report.hit_pages.l2 > 0, "{report:?}");
    assert_ne!(client.control(), before, "another incarnation serves");
    engine.stop().await;
    for (process, run) in processes.iter_mut().zip(APART) {
        let (code, log) = process.terminated();
        assert_eq!(code, Some(0), "{run}: {log}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_outlives_the_process_of_a_machine() {
    outlives("follower", "allocator").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_outlives_the_process_that_leads() {
    outlives("leader", "index").await;
}

/// With a lease so long that a test would fail before it ends: only a goodbye frees the place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_ends_in_order_is_not_waited_for() {
    let Some(world) = World::new("goodbye") else { return };
    let lease = ["--set", "leases.control_ms=80000"];
    let process = |run| world.process_with("goodbye", run, &lease);
    let mut processes: Vec<Process> =
        ["index,allocator,writer,evictor,sender,receiver", "loader", "ranks"].map(process).into();
    processes.iter_mut().for_each(|process| drop(process.ready()));
    let mut engine = world.engine("goodbye").await;
    let before = engine.client().control();
    serve(&mut engine, world.prompts("goodbye", 3)).await;
    let (code, log) = processes[1].terminated();
    assert_eq!(code, Some(0), "{log}");
    without_an_index(&world, "goodbye").await;
    processes[1] = process("loader");
    processes[1].ready();
    serve(&mut engine, world.prompts("goodbye", 3)).await;
    assert_ne!(engine.client().control(), before, "another incarnation serves");
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_was_silent_for_a_lease_begins_again_with_the_others() {
    let Some(world) = World::new("silent") else { return };
    let mut processes: Vec<Process> = ["index,allocator,writer,evictor,sender,receiver", "loader", "ranks"]
        .map(|run| world.process("silent", run))
        .into();
    processes.iter_mut().for_each(|process| drop(process.ready()));
    let mut engine = world.engine("silent").await;
    let before = engine.client().control();
    processes[1].suspended();
    without_an_index(&world, "silent").await;
    processes[1].resumed();
    serve(&mut engine, world.prompts("silent", 3)).await;
    assert_ne!(engine.client().control(), before, "another incarnation serves");
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_restarts_ends_no_incarnation() {
    let Some(mut world) = World::new("broker") else { return };
    let mut processes: Vec<Process> = ["index,allocator,writer,evictor,sender,receiver", "loader", "ranks"]
        .map(|run| world.process_with("broker", run, &["--set", "leases.control_ms=5000"]))
        .into();
    processes.iter_mut().for_each(|process| drop(process.ready()));
    let mut engine = world.engine("broker").await;
    let before = engine.client().control();
    serve(&mut engine, world.prompts("broker", 3)).await;
    world.broker.restart().expect("it starts again");
    serve(&mut engine, world.prompts("broker", 3)).await;
    assert_eq!(engine.client().control(), before);
    engine.stop().await;
}
