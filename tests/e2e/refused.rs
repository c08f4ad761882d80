//! Processes that may not be: a second one for an actor, one that is configured differently.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_process_for_an_actor_is_refused_and_the_first_goes_on() {
    let Some(world) = World::new("second") else { return };
    // Nobody here is to count as silent, however busy the machine is.
    let lease = ["--set", "leases.control_ms=5000", "--set", "leases.rank_ms=5000"];
    let mut processes = ["index,loader,writer,evictor,sender,receiver", "allocator", "ranks"]
        .map(|run| world.process_with("second", run, &lease));
    processes.iter_mut().for_each(|process| drop(process.ready()));
    let mut engine = world.engine("second").await;
    let control = engine.client().control();
    for (run, why) in [
        ("index", "group second: the group is led by another process, under the control incarnation inc:"),
        ("control", "group second: the group is led by another process, under the control incarnation inc:"),
        ("allocator", "group second: allocator is hosted by process inc:"),
        ("writer", "group second: writer is hosted by process inc:"),
        ("rank.1", "is held by another process"),
    ] {
        let mut second = world.process_with("second", run, &lease);
        let (code, log) = second.ended();
        assert_eq!(code, Some(2), "{run}: {log}");
        assert!(log.contains(why), "{run}: {log}");
        assert_eq!(second.has_spoken(), None, "{run} was not ready");
    }
    let report = serve(&mut engine, world.prompts("second", 3)).await;
    assert_eq!((report.reopened, engine.client().control()), (0, control));
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_is_configured_differently_is_refused() {
    let Some(world) = World::new("differs") else { return };
    let mut leader = world.process("differs", "index,allocator,writer,evictor,sender,receiver,ranks");
    let mut other = world.process_with("differs", "loader", &["--set", "l2.pages=1024"]);
    let (code, log) = other.ended();
    assert_eq!(code, Some(2), "{log}");
    assert!(log.contains("l2.pages is 1024, the process with the index has 2048"), "{log}");
    assert_eq!(leader.has_spoken(), None, "the loader is missing");
    let mut loader = world.process("differs", "loader");
    loader.ready();
    assert!(leader.ready().contains("index"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_leaders_that_begin_at_once_one_serves() {
    let Some(world) = World::new("race") else { return };
    let mut ranks = world.process("race", "ranks");
    ranks.ready();
    let mut both = [(); 2].map(|()| world.process("race", "control"));
    let started = Instant::now();
    let refused = loop {
        if let Some(at) = both.iter_mut().position(Process::has_ended) {
            break at;
        }
        assert!(started.elapsed() < LONG, "both lead");
    };
    let (code, log) = both[refused].ended();
    assert_eq!(code, Some(2), "{log}");
    assert!(log.contains("the group is led by another process"), "{log}");
    both[1 - refused].ready();
    let mut engine = world.engine("race").await;
    serve(&mut engine, world.prompts("race", 3)).await;
    engine.stop().await;
    let (code, log) = both[1 - refused].terminated();
    assert_eq!(code, Some(0), "{log}");
}
