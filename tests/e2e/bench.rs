//! `hicached bench bus` from outside: its processes serve, and none of them outlives it.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use rustix::process::Signal;
use serde_json::Value;

use super::processes::{lives, send};
use super::{LONG, nats_server};

fn bench(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hicached"));
    command.current_dir(env!("CARGO_MANIFEST_DIR")).args(["bench", "bus", "--json"]).args(args);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
fn a_bus_is_measured_with_each_actor_in_a_process_of_its_own() {
    if nats_server().is_none() {
        return;
    }
    let output = bench(&["--runs", "1", "--requests", "3", "--ranks", "2"]).output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let figures: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    let buses = figures["buses"].as_array().expect("a list");
    let places: Vec<_> = buses.iter().map(|bus| (bus["bus"].as_str(), bus["processes"].as_u64())).collect();
    assert_eq!(places, [(Some("memory"), Some(1)), (Some("nats"), Some(1)), (Some("nats"), Some(9))]);
    for (bus, what) in buses.iter().flat_map(|bus| ["raw", "open", "step", "commit"].map(|what| (bus, what))) {
        assert!(bus[what]["p50"].as_u64() > Some(0) && bus[what]["p99"].as_u64() > Some(0), "{what} of {bus}");
    }
}

/// The processes of a bench: its broker, seven machines and a rank, once all of them were started.
fn children(bench: &mut Child) -> Vec<i32> {
    let (pid, started) = (bench.id(), Instant::now());
    loop {
        let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).expect("it runs");
        let pids: Vec<i32> = text.split_whitespace().map(|pid| pid.parse().expect("a pid")).collect();
        if pids.len() == 9 {
            return pids;
        }
        assert!(started.elapsed() < LONG && bench.try_wait().expect("a child").is_none(), "{} processes", pids.len());
        std::thread::yield_now();
    }
}

/// Where the processes find their configuration and their pools.
fn folder(pid: i32) -> Option<PathBuf> {
    let args = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
    let config = PathBuf::from(args.split('\0').find(|arg| arg.ends_with("/group.toml"))?);
    config.parent().map(PathBuf::from)
}

#[test]
fn its_processes_end_with_it_also_by_a_signal_and_when_one_of_them_dies() {
    if nats_server().is_none() {
        return;
    }
    for (signal, to_itself, code) in
        [(Signal::INT, true, Some(130)), (Signal::TERM, true, Some(143)), (Signal::KILL, false, Some(1))]
    {
        let mut bench = bench(&["--runs", "2", "--requests", "1000"]).spawn().expect("it starts");
        let pids = children(&mut bench);
        let folder = pids.iter().find_map(|pid| folder(*pid));
        send(if to_itself { bench.id() as i32 } else { pids[3] }, signal);
        let output = bench.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), code, "{said}");
        // By itself; a process that does not serve yet has ended so for the first time.
        assert_eq!(said.contains(" ended "), !to_itself, "{said}");
        assert!(!pids.iter().any(|pid| lives(*pid)), "a process outlives {signal:?}");
        assert!(!folder.expect("a daemon was started").exists(), "{signal:?} leaves its folder");
    }
}
