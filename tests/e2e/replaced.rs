//! Processes that die and come back: the control incarnation ends as a whole, the host tier stays.

use super::*;

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
