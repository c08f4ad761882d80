//! The command line from outside: exit codes, what is printed where, every fault at once.

mod refusals;
mod runs;

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use hicached::bus::server::{NatsServer, find_nats_server};

fn hicached(args: &[&str]) -> Output {
    command(args).output().expect("the program starts")
}

/// The program with no configuration in its environment.
fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hicached"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("HICACHED__")) {
        command.env_remove(name);
    }
    command.args(args);
    command
}

fn check_with(set: &[&str]) -> Output {
    let mut args = vec!["check", "--json"];
    for set in set {
        args.extend(["--set", set]);
    }
    hicached(&args)
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn assert_refused(output: &Output, faults: &[&str]) {
    let text = stderr(output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(output.stdout.is_empty(), "no figures beside faults");
    for fault in faults {
        assert!(text.lines().any(|line| line.contains(fault)), "{fault:?} is not in\n{text}");
    }
    assert_eq!(text.lines().count(), faults.len(), "one line per fault, no other:\n{text}");
}

fn json_of(output: &Output) -> serde_json::Value {
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.lines().last().unwrap_or_else(|| panic!("no figures; {}", stderr(output)));
    serde_json::from_str(last).expect("the last line is one JSON object")
}

/// Sends `signal` and waits for the exit code.
fn end(child: &mut Child, signal: rustix::process::Signal) -> Option<i32> {
    let pid = rustix::process::Pid::from_raw(child.id() as i32).expect("a process");
    rustix::process::kill_process(pid, signal).expect("it runs");
    child.wait().expect("it ends").code()
}

/// Keys in their order: tools read this object, so none is renamed, moved or left out.
const KEYS: [&str; 39] = [
    "trace",
    "bus",
    "page_tokens",
    "cp",
    "requests",
    "requests_ended",
    "full_pages",
    "hit_pages",
    "l1",
    "l2",
    "per_request_sha256",
    "pages",
    "backed_up",
    "loaded",
    "evicted_l1",
    "evicted_l2",
    "handovers",
    "bytes_verified",
    "mismatches",
    "leaked_pages",
    "refusals",
    "wall_s",
    "latency_us",
    "open",
    "p50",
    "p99",
    "commit",
    "p50",
    "p99",
    "load",
    "p50",
    "p99",
    "handover",
    "p50",
    "p99",
    "control_only",
    "concurrency",
    "l1_pages",
    "l2_pages",
];

/// What the traces must hit.
struct Expected {
    folder: PathBuf,
    traces: serde_json::Value,
}

impl Expected {
    /// `None` when the traces are not there, which is a failure where everything has to be tested.
    fn open() -> Option<Self> {
        let folder = std::env::var_os("HICACHED_TRACES")
            .map_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/traces")), PathBuf::from);
        let Ok(text) = std::fs::read(folder.join("expected.json")) else {
            assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "no traces in {}", folder.display());
            eprintln!("skipped: no traces in {}", folder.display());
            return None;
        };
        let mut whole: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
        Some(Self { folder, traces: whole["traces"].take() })
    }

    fn trace(&self, name: &str) -> String {
        let file = self.traces[name]["file"].as_str().expect("a file");
        self.folder.join(file).to_str().expect("UTF-8").to_owned()
    }

    /// Page size, capacity and hash of every row.
    fn leaf_lru(&self, name: &str) -> Vec<(String, String, String)> {
        let pages = self.traces[name]["pages"].as_object().expect("pages");
        let rows = pages.iter().flat_map(|(page_tokens, rows)| {
            let capacities = rows["capacity_pages"].as_object().expect("capacities");
            capacities.iter().map(move |(capacity, row)| {
                let hash = row["leaf_lru"]["per_request_sha256"].as_str().expect("a hash");
                (page_tokens.clone(), capacity.clone(), hash.to_owned())
            })
        });
        rows.collect()
    }

    fn replay(&self, name: &str, page_tokens: &str, capacity: &str, hash: &str, more: &[&str]) {
        let trace = self.trace(name);
        let mut args = vec!["replay", "--trace", &trace, "--page-tokens", page_tokens, "--l1-pages", capacity];
        args.extend(["--l2-pages", "0", "--control-only", "--order", "file", "--free-room", "off", "--json"]);
        args.extend(more);
        let output = hicached(&args);
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", stderr(&output));
        let figures = json_of(&output);
        assert_eq!(figures["per_request_sha256"], hash, "{args:?}: {figures}");
        assert_eq!(figures["leaked_pages"], 0, "{args:?}");
    }
}

/// A folder of one test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("hicached-cli-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        Self(folder)
    }

    fn is_empty(&self) -> bool {
        std::fs::read_dir(&self.0).expect("a folder").next().is_none()
    }

    fn file(&self, name: &str, text: &str) -> String {
        let file = self.0.join(name);
        std::fs::write(&file, text).expect("written");
        file.to_str().expect("UTF-8").to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).expect("removed");
    }
}
