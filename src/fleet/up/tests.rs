use std::path::PathBuf;

use clap::Parser;

use super::*;
use crate::config::{BusConfig, BusKind};
use crate::fleet::{Fleet, Ready, Spec};
use crate::replay::folder::Folder;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    up: UpArgs,
}

const SLEEPS: &str = "echo ready; exec sleep 1000";

/// A group whose processes are shells, the only rank one that runs `script` in the folder of the group.
fn shells(script: &str) -> (Job, Group, PathBuf) {
    let job = Cli::parse_from(["up", "--ranks", "1"]).up.job().unwrap();
    let mut group = job.group.clone();
    let folder = Folder::create(&mut group).unwrap();
    let at = group.config.rank.pool_folder.clone();
    let mut fleet = Fleet::new(&at, 1);
    let mut add = |name: &str, script: &str| {
        let script = format!("cd {}; {script}", at.display());
        let (args, ready) = (vec!["-c".into(), script.into()], Ready::Line);
        fleet.add(Spec { name: name.to_owned(), program: "/bin/sh".into(), args, ready, takes_lines: false })
    };
    let (broker, ranks, control) = (add("broker", SLEEPS), vec![add("rank 0", script)], add("control", SLEEPS));
    let engine = add("engine", SLEEPS);
    (job, Group { fleet, group, broker, control, ranks, engine, _folder: folder }, at)
}

#[tokio::test]
async fn a_process_that_dies_behind_the_last_request_is_counted_and_started_again() {
    let (job, mut group, at) =
        shells("echo ready; if [ -e first ]; then touch again; exec sleep 1000; fi; touch first");
    group.start(|_, _| ()).await.unwrap();
    let view = View::new(&group.fleet);
    let config = BusConfig { kind: BusKind::Memory, ..group.group.config.bus.clone() };
    let bus = connect(&config).await.unwrap();
    let mut running = Running::new(&job, &mut group, &view, &bus);
    let again = async {
        while !at.join("again").exists() {
            tokio::task::yield_now().await;
        }
        Ok(())
    };
    running.beside(again).await.unwrap();
    let rank = ProcessFigures::of(&running.group.fleet.members()[running.group.ranks[0]]);
    assert_eq!((rank.crashes, rank.restarts), (1, 1));
    drop(running);
    group.kill().await;
}

#[tokio::test]
async fn a_signal_does_not_wait_for_processes_that_do_not_end() {
    let (_job, mut group, _) = shells("trap '' TERM; echo ready; while :; do sleep 0.05; done");
    group.start(|_, _| ()).await.unwrap();
    let view = View::new(&group.fleet);
    let pids: Vec<u32> = group.fleet.members().iter().filter_map(|member| member.pid()).collect();
    let interrupted = ended(&mut group, &view, std::future::ready(2)).await;
    assert!(matches!(interrupted, Err(UpError::Interrupted(2))), "{interrupted:?}");
    assert_eq!(pids.len(), 4);
    assert!(pids.iter().all(|pid| !Path::new(&format!("/proc/{pid}")).exists()), "all are gone");
}
