//! Bad usage and configuration: every fault at once, and exit code 2.

use super::*;

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
        (
            &["rank.copy_engine=cuda", "transfer.backend=mooncake"],
            &[
                "no CUDA engine",
                "transfer.backend is \"mooncake\": what its peers have begun to write cannot be taken back",
            ],
        ),
        (
            &["transfer.backend=nixl", "transfer.nixl.library=/nobody/made/this", "transfer.nixl.listen=here"],
            &["transfer.nixl.library is \"/nobody/made/this\": install NIXL", "transfer.nixl.listen is \"here\""],
        ),
        (
            &["transfer.backend=nixl", "transfer.nixl.ucx=TLS", "transfer.nixl.window_bytes=1"],
            &["transfer.nixl.ucx is \"TLS\": write KEY=VALUE", "transfer.nixl.window_bytes is 1"],
        ),
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
        (
            &[
                "transfer.backend=tcp",
                "transfer.tcp.streams=0",
                "transfer.tcp.tls.key=/nowhere",
                "transfer.tcp.listen=here",
            ],
            &[
                "transfer.tcp.streams is 0",
                "transfer.tcp.tls.key is \"/nowhere\"",
                "transfer.tcp.tls.certificate is \"\"",
                "transfer.tcp.tls.authority is \"\"",
                "transfer.tcp.listen is \"here\"",
            ],
        ),
        (
            &["transfer.backend=mooncake", "group.cp_size=2", "group.shared_kv=true"],
            &["transfer.backend is mooncake without fence"],
        ),
        (&["transfer.to=decode"], &["without transfer.backend"]),
        (&["transfer.backend=carrier_pigeon"], &["use \"none\", \"tcp\", \"shm\" or \"nixl\""]),
        (&["nonsense"], &["write section.key=value"]),
    ];
    for (set, faults) in table {
        assert_refused(&check_with(set), faults);
    }
}

/// A backend that pairs by order is no backend for several ranks, and two groups that exchange pages store the same.
#[test]
fn what_keeps_two_groups_from_handing_over_is_said_at_once() {
    let folder = Folder::new("pair");
    let kv = "[[model.components]]\nname = \"target.kv\"\ndtype = \"fp8\"\npage_bytes = [128, 128]\n";
    let draft = "[[model.components]]\nname = \"draft.kv\"\ndtype = \"fp8\"\npage_bytes = [128]\n";
    let prefill = format!(
        "[group]\nname = \"prefill\"\ncp_size = 8\nshared_kv = true\n{kv}{draft}\
         [transfer]\nbackend = \"in_order\"\nto = [\"decode\"]\n"
    );
    let decode = format!("[group]\nname = \"decode\"\npage_tokens = 128\n{kv}[transfer]\nbackend = \"tcp\"\n");
    let files = [folder.file("prefill.toml", &prefill), folder.file("decode.toml", &decode)];
    let refused = hicached(&["check", "--config", &files[0], "--config", &files[1]]);
    assert_refused(
        &refused,
        &[
            "transfer.backend is in_order without addressed, fence",
            "group.page_tokens is 64 and 128",
            "decode has no draft.kv",
            "transfer.backend is in_order and tcp",
        ],
    );
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
fn every_fault_of_several_groups_is_said_at_once_with_its_file() {
    let folder = Folder::new("groups");
    let pools = format!("rank.pool_folder={}", folder.0.display());
    let one = folder.file("one.toml", "[l2]\npages = 16\n");
    let two = folder.file("two.toml", "[l2]\npages = 8\n");
    let bad = folder.file("bad.toml", "[l1]\npages = 0\n[actors]\nrun = [\"prefetcher\", \"rank.1\"]\n");
    for command in ["check", "serve"] {
        let args = [command, "--set", &pools, "--config", &one, "--config", &two, "--config", &bad];
        let twice = format!("group.name is \"default\" in {one} and {two}: give each group a name of its own");
        let faults = [
            "bad.toml: actors.run names \"prefetcher\": use all, control, index,",
            "bad.toml: actors.run names rank.1: group.cp_size is 1",
            "bad.toml: l1.pages is 0",
            &twice,
        ];
        assert_refused(&hicached(&args), &faults);
    }
    let plans = hicached(&["check", "--json", "--set", &pools, "--config", &one]);
    assert_eq!(json_of(&plans)["l2"]["pages"], 16);
}

#[test]
fn a_configuration_file_that_cannot_be_read_is_named() {
    let output = hicached(&["check", "--config", "/nonexistent/hicached.toml"]);
    assert_refused(&output, &["/nonexistent/hicached.toml"]);
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
    let mut child =
        with("l2.pages=16").stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the program starts");
    let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
    lines.next().expect("a line").expect("readable");
    assert_refused(&with("l2.pages=16").output().expect("it starts"), &["is held by another process"]);
    assert_eq!(end(&mut child, rustix::process::Signal::TERM), Some(0));
    let other = with("l2.pages=17").output().expect("it starts");
    assert_refused(&other, &["slots is 16 in the file and 17 in this rank, name another rank.pool_folder"]);
    let pool = std::fs::read_dir(&folder.0).expect("a folder").next().expect("a pool").expect("readable").path();
    for (bytes, what) in [(1 << 20, "has 1048576 bytes, wanted "), (0, "is empty")] {
        std::fs::OpenOptions::new().write(true).open(&pool).expect("a file").set_len(bytes).expect("cut");
        let output = with("l2.pages=16").output().expect("it starts");
        assert_refused(&output, &[what]);
        assert!(stderr(&output).contains("or remove the file and lose its pages"), "{}", stderr(&output));
    }
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
fn a_nats_server_of_the_environment_that_is_no_program_is_named() {
    let folder = Folder::new("no-program");
    let (missing, text) = (folder.0.join("missing").display().to_string(), folder.file("text", "not a program"));
    for (program, why) in [(&missing, "No such file"), (&text, "it cannot be executed: Permission denied")] {
        for args in [&["up"][..], &["bench", "bus", "--runs", "1", "--requests", "1"]] {
            let output = command(args).env("NATS_SERVER", program).output().expect("it starts");
            assert_refused(&output, &[&format!("NATS_SERVER is {program}: {why}")]);
        }
    }
}

#[test]
fn every_fault_of_a_group_to_bring_up_is_said_at_once() {
    let gone = "/nonexistent.b64.jsonl";
    let rows: &[(&[&str], &[&str])] = &[
        (&["up", "--compare", "--trace", gone], &["--compare is given without --kills", "/nonexistent.b64.jsonl"]),
        (
            &["up", "--set", "l1.pages=8", "--set", "bus.url=nats://me:secret@h:1", "--logs", "/nonexistent"],
            &["l1.pages is fixed here, use --l1-pages", "bus.url is fixed here", "--logs is /nonexistent"],
        ),
        (&["up", "--ranks", "2", "--l1-pages", "7", "--l2-pages", "9"], &["l1.pages is 7", "l2.pages is 9"]),
        (&["up", "--soak", "9", "--growth-max", "-1"], &["--growth-max is -1: make it 0..=1000"]),
        (
            &["up", "--requests", "5", "--growth-max", "10", "--kill", "rank", "--compare", "--logs", "/nonexistent"],
            &[
                "--growth-max is given without --soak",
                "--kill is given without --kills",
                "--compare is given without --kills",
                "--logs is /nonexistent",
            ],
        ),
        (&["up", "--l1-pages", "1"], &["l1.pages is 1: make it a multiple of group.cp_size 4, for example 4"]),
        (&["engine", "--trace", gone], &["bus.kind is memory", "/nonexistent.b64.jsonl"]),
    ];
    for (args, faults) in rows {
        assert_refused(&hicached(args), faults);
    }
    for args in
        [&["up", "--kill", "cat"][..], &["up", "--page-tokens", "64"], &["up", "--soak", "1"], &["up", "--ranks", "0"]]
    {
        assert_eq!(hicached(args).status.code(), Some(2), "{args:?}");
    }
}
