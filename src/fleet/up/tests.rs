use std::path::PathBuf;

use clap::Parser;

use super::group::Side;
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
fn shells(script: &str) -> (Job, Groups, PathBuf) {
    let job = Cli::parse_from(["up", "--ranks", "1", "--decode-pages", "0"]).up.job().unwrap();
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
    let sides = vec![Side { group, control, ranks, _folder: folder }];
    (job, Groups { fleet, broker, engine, sides }, at)
}

#[tokio::test]
async fn a_process_that_dies_behind_the_last_request_is_counted_and_started_again() {
    let (job, mut groups, at) =
        shells("echo ready; if [ -e first ]; then touch again; exec sleep 1000; fi; touch first");
    groups.start(|_, _| ()).await.unwrap();
    let view = View::new(&groups.fleet);
    let config = BusConfig { kind: BusKind::Memory, ..groups.sides[0].group.config.bus.clone() };
    let bus = connect(&config).await.unwrap();
    let mut running = Running::new(&job, &mut groups, &view, &bus);
    let again = async {
        while !at.join("again").exists() {
            tokio::task::yield_now().await;
        }
        Ok(())
    };
    running.beside(again).await.unwrap();
    let rank = ProcessFigures::of(&running.groups.fleet.members()[running.groups.sides[0].ranks[0]]);
    assert_eq!((rank.crashes, rank.restarts), (1, 1));
    drop(running);
    groups.kill().await;
}

#[tokio::test]
async fn a_signal_does_not_wait_for_processes_that_do_not_end() {
    let (_job, mut groups, _) = shells("trap '' TERM; echo ready; while :; do sleep 0.05; done");
    groups.start(|_, _| ()).await.unwrap();
    let view = View::new(&groups.fleet);
    let pids: Vec<u32> = groups.fleet.members().iter().filter_map(|member| member.pid()).collect();
    let interrupted = ended(&mut groups, &view, std::future::ready(2)).await;
    assert!(matches!(interrupted, Err(UpError::Interrupted(2))), "{interrupted:?}");
    assert_eq!(pids.len(), 4);
    assert!(pids.iter().all(|pid| !Path::new(&format!("/proc/{pid}")).exists()), "all are gone");
}

#[test]
fn kills_of_a_kind_are_shared_by_the_groups_and_by_the_ranks_of_each() {
    let job = Cli::parse_from(["up", "--ranks", "3"]).up.job().unwrap();
    let groups = Groups::prepare(&job, Path::new("nats-server")).unwrap();
    let name = |kind, which| groups.fleet.members()[groups.of_kind(kind, which)].name();
    let ranks: Vec<&str> = (0..6).map(|which| name(Kind::Rank, which)).collect();
    assert_eq!(ranks, ["rank 0", "decode rank 0", "rank 1", "decode rank 0", "rank 2", "decode rank 0"]);
    assert_eq!([0, 1].map(|which| name(Kind::Control, which)), ["control", "decode control"]);
    assert_eq!([0, 1].map(|which| name(Kind::Engine, which)), ["engine"; 2]);
    assert_eq!([0, 1].map(|which| name(Kind::Broker, which)), ["broker"; 2]);
}

#[test]
fn a_decode_group_is_there_unless_it_is_switched_off() {
    for (args, pages) in [(&["up"][..], Some((320, 320))), (&["up", "--decode-pages", "0"], None)] {
        let job = Cli::parse_from(args).up.job().unwrap();
        let decode = job.decode.as_ref().map(|decode| &decode.config);
        assert_eq!(decode.map(|decode| (decode.l1.pages, decode.l2.pages)), pages);
        let names: Vec<String> = decode.iter().map(|decode| decode.group.name.clone()).collect();
        assert_eq!((&job.group.config.transfer.to, job.group.config.transfer.is_off()), (&names, names.is_empty()));
    }
    let refused = Cli::parse_from(["up", "--decode-pages", "7", "--transfer", "carrier-pigeon"]).up.job();
    let faults = refused.unwrap_err().faults.join("\n");
    assert!(faults.contains("carrier-pigeon") && faults.contains("--decode-pages is 7"), "{faults}");
}
