//! Runs: what they print, how they end, what they leave.

use super::*;

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
    for key in ["mismatches", "leaked_pages"] {
        assert_eq!(figures[key], 0, "{key}");
    }
    assert_eq!(figures["handovers"], figures["requests"]);
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
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the program starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let first = lines.next().expect("a line").expect("readable");
    let ready =
        "ready: group served: index, allocator, evictor, writer, loader, sender, receiver, rank.0 on the memory bus";
    assert_eq!(first, ready);
    let code = end(&mut child, rustix::process::Signal::TERM);
    let rest: Vec<String> = lines.map_while(Result::ok).collect();
    assert_eq!(code, Some(0), "{rest:?}");
    assert!(folder.0.join("hicached-served-rank0.pool").is_file());
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

/// Spans that no collector takes do not keep a process, and it says once for each of its groups how many there were.
#[test]
fn a_demo_without_its_collector_ends_and_says_what_was_lost() {
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port").local_addr().expect("bound").port();
    let endpoint = format!("trace.endpoint=http://127.0.0.1:{port}");
    let args = ["--set", &endpoint, "--set", "trace.ratio_permille=1000"];
    let started = Instant::now();
    let output = hicached(&[&["demo", "--json", "--requests", "200"], &args[..]].concat());
    let (took_s, said) = (started.elapsed().as_secs_f64(), stderr(&output));
    assert_eq!(output.status.code(), Some(0), "{said}");
    // Behind the requests themselves the end waits 5 s at most.
    let served_s = json_of(&output)["wall_s"].as_f64().expect("seconds");
    assert!(took_s - served_s < 20.0, "{took_s} s, of which {served_s} served");
    assert_eq!(said.lines().filter(|line| line.contains("spans were lost")).count(), 2, "{said}");
    assert!(said.contains("exported=0") && !said.contains("not exported"), "{said}");
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
