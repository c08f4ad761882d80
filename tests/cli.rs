//! The command line from outside: exit codes, what is printed where, every fault at once.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

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

#[test]
fn every_fault_of_a_configuration_is_said_at_once() {
    let table: &[(&[&str], &[&str])] = &[
        (&["group.cp_size=2"], &["group.cp_size is 2 without group.shared_kv"]),
        (&["group.cp_size=0", "group.name=a.b"], &["group.name is \"a.b\"", "make it 1..=64"]),
        (&["group.cp_size=65", "group.shared_kv=true", "l1.pages=650", "l2.pages=650"], &["make it 1..=64"]),
        (&["group.split=round_robin"], &["use \"zigzag\""]),
        (&["group.page_tokens=96", "l2.tile_pages=3"], &["group.page_tokens is 96", "l2.tile_pages is 3"]),
        (
            &["group.page_tokens=8", "group.compute_tokens_min=9"],
            &["group.page_tokens is 8", "compute_tokens_min is 9"],
        ),
        (&["group.page_tokens=1024"], &["page_tokens is 1024"]),
        (&["rank.copy_engine=cuda", "transfer.backend=nixl"], &["no CUDA engine", "transfer.backend is \"nixl\""]),
        (&["rank.copy_engine=rocm", "rank.copy_threads=0"], &["copy_engine is \"rocm\"", "copy_threads is 0"]),
        (&["storage.backend=file"], &["there is no tier below host memory"]),
        (&["l1.pages=0", "l1.free_room=2,1"], &["l1.pages is 0", "low mark 2 is above the high mark 1"]),
        (&["l2.free_room=lots", "l2.contiguity=please"], &["l2.free_room is \"lots\"", "l2.contiguity"]),
        (
            &["group.cp_size=8", "group.shared_kv=true", "l1.pages=12", "l2.pages=20"],
            &["l1.pages is 12: make it a multiple of group.cp_size 8", "l2.pages is 20"],
        ),
        (&["l2.pages=4000000000"], &["bytes per rank", "less than 2147483648 per rank"]),
        (&["cache.write_policy=sometimes", "cache.fingerprints=maybe"], &["cache.write_policy", "cache.fingerprints"]),
        (&["group.draft_lookahead_tokens=2"], &["make it 0 or 1"]),
        (&["bus.kind=kafka", "bus.inbox_frames=1"], &["bus.kind", "bus.inbox_frames is 1"]),
        (&["bus.kind=nats", "bus.url=localhost"], &["bus.url is \"localhost\""]),
        (&["bus.payload_bytes_max=65536"], &["group.request_pages_max is 16384: make it at most"]),
        (&["leases.session_ms=1", "leases.rank_ms=0"], &["leases.session_ms is 1", "leases.rank_ms is 0"]),
        (&["group.cp_sise=2", "l3.pages=1"], &["group.cp_sise: unknown field", "l3.pages: unknown field"]),
        (
            &["group.chunk_tokens_max=1", "group.request_pages_max=0"],
            &["chunk_tokens_max is 1", "request_pages_max is 0"],
        ),
        (&["nonsense"], &["write section.key=value"]),
    ];
    for (set, faults) in table {
        assert_refused(&check_with(set), faults);
    }
}

#[test]
fn every_fault_of_a_component_table_is_said_at_once() {
    let table: &[(&str, &[&str])] = &[
        ("[[model.components]]\nname = \"draft.kv\"\ndtype = \"a\"\npage_bytes = [16]\n", &["target.kv is missing"]),
        (
            "[[model.components]]\nname = \"draft.kv\"\ndtype = \"a\"\npage_bytes = [16]\n\
             [[model.components]]\nname = \"target.kv\"\ndtype = \"a\"\npage_bytes = [24]\n",
            &["target.kv stands after draft.kv", "24 bytes per page"],
        ),
        (
            "[group]\npage_tokens = 128\n\
             [[model.components]]\nname = \"target.kv\"\ndtype = \"a\"\nlayers = 3\npage_bytes = [16]\n\
             [[model.components]]\nname = \"target.index\"\ndtype = \"a\"\nlayers = 2\npage_bytes = [16]\n",
            &["index pages need page_tokens 64", "target.index has 2 layers, its KV has 3"],
        ),
        (
            "[[model.components]]\nname = \"target.kv\"\ndtype = \"a\"\npage_bytes = [16]\n\
             [[model.components]]\nname = \"target.recurrent\"\ndtype = \"a\"\npage_bytes = [16]\n\
             [[model.components]]\nname = \"sliding_window\"\npage_bytes = [16]\n",
            &[
                "recurrent state and sliding windows",
                "model.components[2].dtype is missing",
                "\"sliding_window\": remove",
            ],
        ),
        (
            "[[model.components]]\nname = \"target.kv\"\ndtype = \"a\"\nlayers = 3\npage_bytes = [16, 16]\n\
             [[model.components]]\nname = \"draft.kv\"\ndtype = 1\npage_size = 4\npage_bytes = [-1]\n",
            &[
                "2 entries for 3 layers",
                "[1].page_size: unknown field",
                "[1].page_bytes: invalid",
                "[1].dtype: invalid",
            ],
        ),
    ];
    let folder = Folder::new("components");
    for (at, (text, faults)) in table.iter().enumerate() {
        let file = folder.file(&format!("{at}.toml"), text);
        assert_refused(&hicached(&["check", "--config", &file]), faults);
    }
}

#[test]
fn a_plan_is_one_json_object() {
    let folder = Folder::new("plan");
    let pools = format!("rank.pool_folder={}", folder.0.display());
    let output = check_with(&["group.cp_size=4", "group.shared_kv=true", "l2.pages=16", &pools]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let plan: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(plan["l2"]["tokens"], 16 * 64);
    assert_eq!(plan["l2"]["bytes"], plan["l2"]["bytes_per_rank"].as_u64().expect("a number") * 4);
}

#[test]
fn a_configuration_file_that_cannot_be_read_is_named() {
    let output = hicached(&["check", "--config", "/nonexistent/hicached.toml"]);
    assert_refused(&output, &["/nonexistent/hicached.toml"]);
}

fn json_of(output: &Output) -> serde_json::Value {
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.lines().last().unwrap_or_else(|| panic!("no figures; {}", stderr(output)));
    serde_json::from_str(last).expect("the last line is one JSON object")
}

#[test]
fn every_fault_of_a_replay_is_said_at_once() {
    let folder = Folder::new("faults");
    let trace = folder.file(
        "ok.b64.jsonl",
        "{\"timestamp\":0,\"input_length\":640,\"output_length\":1,\"hash_ids\":[0,1,2,3,4,5,6,7,8,9]}\n",
    );
    let table: &[(&[&str], &[&str])] = &[
        (&["--cp", "3", "--l1-pages", "100", "--l2-pages", "50"], &["l1.pages is 100", "l2.pages is 50"]),
        (&["--cp", "0", "--concurrency", "0"], &["--concurrency is 0", "group.cp_size is 0"]),
        (&["--page-tokens", "100"], &["page_tokens is 100"]),
        (&["--free-room", "3,2"], &["l1.free_room is \"3,2\"", "l2.free_room is \"3,2\""]),
        (&["--l1-pages", "4"], &["the longest request of the trace has 10 pages, make it 10 or more"]),
        (&["--nats-url", "127.0.0.1:4222"], &["--nats-url is 127.0.0.1:4222: give --bus nats with it"]),
        (&["--nats-url", "nats://me:secret@h"], &["--nats-url is nats://***@h: give --bus nats with it"]),
        (
            &["--set", "l1.pages=8", "--set", "bus.kind=nats", "--set", "l2.free_room=off"],
            &[
                "--set l1.pages: l1.pages is fixed here, use --l1-pages",
                "--set bus.kind: bus.kind is fixed here, use --bus",
                "--set l2.free_room: l2.free_room is fixed here, use --free-room",
            ],
        ),
        (&["--set", "group.name=x"], &["group.name is fixed here, every run has a name of its own"]),
    ];
    for (args, faults) in table {
        let mut all = vec!["replay", "--json", "--trace", &trace];
        all.extend(*args);
        assert_refused(&hicached(&all), faults);
    }
    for args in
        [&["replay"][..], &["replay", "--trace", &trace, "--bus", "kafka"], &["replay", "--trace", &trace, "--cp", "x"]]
    {
        assert_eq!(hicached(args).status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn a_bad_line_of_a_trace_is_named_with_field_and_value() {
    let folder = Folder::new("lines");
    let good = "{\"timestamp\":5,\"input_length\":64,\"output_length\":1,\"hash_ids\":[0]}\n";
    let table = [
        (
            "a.b64.jsonl",
            "{\"timestamp\":-1,\"input_length\":64,\"output_length\":1,\"hash_ids\":[1]}",
            "line 2: timestamp = -1",
        ),
        (
            "b.b64.jsonl",
            "{\"timestamp\":4,\"input_length\":64,\"output_length\":1,\"hash_ids\":[1]}",
            "line 2: timestamp = 4",
        ),
        (
            "c.b64.jsonl",
            "{\"timestamp\":6,\"input_length\":640,\"output_length\":1,\"hash_ids\":[1]}",
            "line 2: hash_ids",
        ),
        (
            "d.b64.jsonl",
            "{\"timestamp\":6,\"input_length\":\"x\",\"output_length\":1,\"hash_ids\":[1]}",
            "line 2: input_length",
        ),
        ("e.b64.jsonl", "nonsense", "line 2: line = nonsense"),
    ];
    for (name, line, said) in table {
        let trace = folder.file(name, &format!("{good}{line}\n"));
        assert_refused(&hicached(&["replay", "--trace", &trace]), &[said]);
    }
    let unnamed = folder.file("no-block-size.jsonl", good);
    assert_refused(&hicached(&["replay", "--trace", &unnamed]), &["says the block size"]);
    assert_refused(
        &hicached(&["replay", "--trace", "/nonexistent.b64.jsonl"]),
        &["/nonexistent.b64.jsonl: No such file"],
    );
    assert_refused(
        &hicached(&["replay", "--trace", &folder.file("empty.b64.jsonl", "")]),
        &["empty.b64.jsonl: has no request"],
    );
    let packed = folder.0.join("packed.b64.jsonl");
    std::fs::write(&packed, [0x1f, 0x8b, 8, 0]).expect("written");
    let packed = packed.to_str().expect("UTF-8");
    assert_refused(&hicached(&["replay", "--trace", packed]), &["looks like gzip: name it .jsonl.gz"]);
}

#[test]
fn a_demo_prints_the_agreed_keys_and_loses_nothing() {
    let output = hicached(&["demo", "--json", "--requests", "120"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text.lines().count(), 1, "figures only");
    let mut from = 0;
    for key in KEYS {
        let at =
            text[from..].find(&format!("\"{key}\":")).unwrap_or_else(|| panic!("{key} is missing or out of order"));
        from += at + key.len();
    }
    let figures = json_of(&output);
    for key in ["mismatches", "leaked_pages", "handovers"] {
        assert_eq!(figures[key], 0, "{key}");
    }
    assert_eq!(figures["requests"], figures["requests_ended"]);
    assert_eq!(figures["trace"], "demo");
    assert!(figures["bytes_verified"].as_u64() > Some(0));
}

#[test]
fn every_write_policy_ends_a_demo() {
    for policy in ["write_through_selective", "write_back"] {
        let set = format!("cache.write_policy={policy}");
        let output = hicached(&["demo", "--json", "--requests", "300", "--set", &set]);
        assert_eq!(output.status.code(), Some(0), "{policy}: {}", stderr(&output));
        assert!(json_of(&output)["hit_pages"]["l2"].as_u64() > Some(0), "{policy}");
    }
}

#[test]
fn a_group_is_served_until_a_signal_and_keeps_its_pool_file() {
    let folder = Folder::new("serve");
    let mut command = Command::new(env!("CARGO_BIN_EXE_hicached"));
    let pools = format!("rank.pool_folder={}", folder.0.display());
    command.args(["serve", "--set", "group.name=served", "--set", "l2.pages=16", "--set", &pools]);
    let mut child = command.stderr(Stdio::piped()).spawn().expect("the program starts");
    let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
    let first = lines.next().expect("a line").expect("readable");
    assert!(first.contains("group served is served on the memory bus"), "{first}");
    let code = end(&mut child, rustix::process::Signal::TERM);
    let rest: Vec<String> = lines.map_while(Result::ok).collect();
    assert_eq!(code, Some(0), "{rest:?}");
    assert!(folder.0.join("hicached-served-rank0.pool").is_file());
}

#[test]
fn what_a_pool_folder_does_not_allow_is_for_the_configuration_to_change() {
    let folder = Folder::new("pools");
    let pools = format!("rank.pool_folder={}", folder.0.display());
    for command in ["check", "serve"] {
        let missing = hicached(&[command, "--set", "rank.pool_folder=/nonexistent"]);
        assert_refused(&missing, &["rank.pool_folder is /nonexistent: there is no such folder"]);
        let large = hicached(&[command, "--set", &pools, "--set", "l2.pages=100000000"]);
        assert_refused(&large, &["bytes are free and pools need"]);
    }
    let with = |pages: &'static str| command(&["serve", "--set", &pools, "--set", pages]);
    let mut child = with("l2.pages=16").stderr(Stdio::piped()).spawn().expect("the program starts");
    let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
    lines.next().expect("a line").expect("readable");
    assert_refused(&with("l2.pages=16").output().expect("it starts"), &["is held by another process"]);
    assert_eq!(end(&mut child, rustix::process::Signal::TERM), Some(0));
    let other = with("l2.pages=17").output().expect("it starts");
    assert_refused(&other, &["slots is 16 in the file and 17 in this rank, name another rank.pool_folder"]);
}

#[test]
fn a_signal_ends_a_run_with_its_number_and_leaves_nothing() {
    for (signal, code) in [(rustix::process::Signal::INT, 130), (rustix::process::Signal::TERM, 143)] {
        let folder = Folder::new(&format!("signal-{code}"));
        let pools = format!("rank.pool_folder={}", folder.0.display());
        let mut run = command(&["demo", "--requests", "1000000", "--set", &pools]);
        let mut child = run.stderr(Stdio::null()).spawn().expect("the program starts");
        while folder.is_empty() {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert_eq!(end(&mut child, signal), Some(code));
        assert!(folder.is_empty(), "left behind");
    }
}

#[test]
fn nobody_has_to_read_what_is_said() {
    let folder = Folder::new("unread");
    let pools = format!("rank.pool_folder={}", folder.0.display());
    let demo = ["demo", "--requests", "20", "--log", "debug", "--set", &pools];
    let check = ["check", "--set", "l2.pages=16", "--set", &pools];
    let unread = || {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        writer
    };
    for (args, code) in [(&demo[..], 0), (&check, 0), (&["check", "--set", "l1.pages=0"], 2)] {
        let status = command(args).stdout(unread()).stderr(unread()).status().expect("it starts");
        assert_eq!(status.code(), Some(code), "{args:?}");
    }
    for args in [&demo[..], &check, &["sim", "--steps", "100"]] {
        let full = std::fs::File::create("/dev/full").expect("a device");
        let output = command(args).stdout(full).output().expect("it starts");
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert!(stderr(&output).contains("standard output: No space left"), "{args:?}");
    }
    assert!(folder.is_empty(), "left behind");
}

#[test]
fn the_environment_is_read_whole_by_every_command() {
    let rows = [
        ("HICACHED__L1__PAGES", "8", "HICACHED__L1__PAGES: l1.pages is fixed here"),
        ("HICACHED__L1__PAGSE", "8", "l1.pagse: unknown field"),
        ("HICACHED__CACHE__WRITE_POLICY", "never", "cache.write_policy"),
    ];
    for (name, value, fault) in rows {
        let output = command(&["demo", "--requests", "1"]).env(name, value).output().expect("it starts");
        assert_refused(&output, &[fault]);
    }
}

#[test]
fn a_broker_that_cannot_be_reached_is_named_without_its_password() {
    let url = "nats://me:secret@127.0.0.1:1";
    for args in [
        &["demo", "--bus", "nats", "--nats-url", url][..],
        &["serve", "--set", "bus.kind=nats", "--set", &format!("bus.url={url}"), "--set", "l2.pages=0"],
        &["bench", "bus", "--runs", "1", "--requests", "1", "--nats-url", url],
    ] {
        let output = hicached(args);
        assert_refused(&output, &["bus.url is nats://***@127.0.0.1:1: cannot connect to NATS: "]);
        assert!(!stderr(&output).contains("secret"), "{args:?}");
    }
    let traced = hicached(&["demo", "--bus", "nats", "--nats-url", url, "--log", "trace"]);
    assert!(!stderr(&traced).contains("secret"), "{}", stderr(&traced));
}

#[test]
fn a_bus_that_is_not_measured_is_in_the_figures_with_the_reason() {
    let folder = Folder::new("no-server");
    let mut bench = command(&["bench", "bus", "--json", "--runs", "1", "--requests", "1"]);
    let output = bench.env_remove("NATS_SERVER").env("PATH", "").current_dir(&folder.0).output().expect("it starts");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let figures = json_of(&output);
    assert_eq!(figures["buses"].as_array().map(Vec::len), Some(1));
    assert_eq!(figures["skipped"][0]["bus"], "nats");
    assert!(figures["skipped"][0]["why"].as_str().is_some_and(|why| why.starts_with("no nats-server")), "{figures}");
}

#[test]
fn a_table_without_bytes_says_that_none_were_compared() {
    let folder = Folder::new("table");
    let line = "{\"timestamp\":0,\"input_length\":128,\"output_length\":1,\"hash_ids\":[0,1]}\n";
    let trace = folder.file("two.b64.jsonl", &line.repeat(2));
    let output = hicached(&["replay", "--trace", &trace, "--control-only", "--l1-pages", "8", "--l2-pages", "0"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    for row in [["hit ratio, %", "50.0"], ["bytes moved or compared", "none: control only"]] {
        assert!(text.lines().any(|line| row.iter().all(|part| line.contains(part))), "{row:?} in\n{text}");
    }
    assert!(!text.contains("mismatches"), "{text}");
}

/// Sends `signal` and waits for the exit code.
fn end(child: &mut Child, signal: rustix::process::Signal) -> Option<i32> {
    let pid = rustix::process::Pid::from_raw(child.id() as i32).expect("a process");
    rustix::process::kill_process(pid, signal).expect("it runs");
    child.wait().expect("it ends").code()
}

#[test]
fn a_replay_without_bytes_hits_what_lru_hits() {
    let Some(expected) = Expected::open() else { return };
    for name in ["lmcache_agents", "dynamo_pi_agent", "mooncake_arxiv_head"] {
        for (page_tokens, capacity, hash) in expected.leaf_lru(name) {
            expected.replay(name, &page_tokens, &capacity, &hash, &[]);
        }
    }
}

#[test]
fn a_replay_over_nats_hits_what_lru_hits() {
    let Some(expected) = Expected::open() else { return };
    let Some(program) = find_nats_server(Path::new(env!("CARGO_MANIFEST_DIR"))) else {
        assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "no nats-server");
        eprintln!("skipped: no nats-server");
        return;
    };
    let server = NatsServer::start(&program, &[]).expect("a server");
    let name = "dynamo_pi_agent";
    let (page_tokens, capacity, hash) = expected.leaf_lru(name).remove(0);
    expected.replay(name, &page_tokens, &capacity, &hash, &["--bus", "nats", "--nats-url", &server.url()]);
}

/// The broker is away for longer than a client waits for a daemon, in the middle of a run.
#[test]
fn a_demo_outlives_its_broker() {
    let Some(program) = find_nats_server(Path::new(env!("CARGO_MANIFEST_DIR"))) else {
        assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "no nats-server");
        eprintln!("skipped: no nats-server");
        return;
    };
    let server = NatsServer::start(&program, &[]).expect("a server");
    let url = server.url();
    let mut command = command(&["demo", "--json", "--requests", "600", "--bus", "nats", "--nats-url", &url]);
    command.args(["--log", "warn,hicached::op=debug"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    let lines = BufReader::new(child.stderr.take().expect("piped")).lines().map_while(Result::ok);
    let (mut server, mut outage) = (Some(server), None);
    let (mut commits, mut lost, mut restored, mut errors) = (0, 0, 0, Vec::new());
    for line in lines {
        commits += u32::from(line.contains("commit.l1_pages"));
        lost += u32::from(line.contains("connection to the broker lost"));
        restored += u32::from(line.contains("connection to the broker restored"));
        if commits == 50
            && let Some(mut server) = server.take()
        {
            // Beside the reading: a pipe that is full would stop the program for as long as its broker is away.
            outage = Some(std::thread::spawn(move || {
                server.kill();
                std::thread::sleep(Duration::from_millis(1_500));
                server.restart().expect("the server again");
                server
            }));
        }
        if line.contains("ERROR") {
            errors.push(line);
        }
    }
    let output = child.wait_with_output().expect("it ends");
    let _server = outage.expect("the run commits").join().expect("it was restarted");
    assert_eq!(output.status.code(), Some(0), "{errors:?}");
    assert_eq!((lost, restored), (2, 2), "each class once");
    let figures = json_of(&output);
    assert_eq!((&figures["mismatches"], &figures["leaked_pages"]), (&0.into(), &0.into()));
    assert_eq!(figures["requests_ended"], 600);
}

#[test]
fn a_replay_with_bytes_verifies_what_it_is_served() {
    let Some(expected) = Expected::open() else { return };
    let trace = expected.trace("mooncake_arxiv_head");
    let group = ["--cp", "4", "--l1-pages", "512", "--l2-pages", "4096", "--page-tokens", "512", "--concurrency", "4"];
    let mut args = vec!["replay", "--json", "--trace", &trace, "--order", "arrival"];
    args.extend(group);
    let output = hicached(&args);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let figures = json_of(&output);
    assert_eq!((&figures["mismatches"], &figures["leaked_pages"]), (&0.into(), &0.into()));
    for (of, key) in
        [("hit_pages", "l1"), ("hit_pages", "l2"), ("pages", "backed_up"), ("pages", "loaded"), ("pages", "evicted_l1")]
    {
        assert!(figures[of][key].as_u64() > Some(0), "{of}.{key} in {figures}");
    }
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
