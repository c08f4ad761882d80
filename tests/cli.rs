//! The command line from outside: exit codes, what is printed where, every fault at once.

use std::process::{Command, Output};

fn hicached(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hicached"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("HICACHED__")) {
        command.env_remove(name);
    }
    command.args(args).output().expect("the program starts")
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
        (&["group.page_tokens=96", "l2.tile_pages=3"], &["page_tokens is 96", "tile_pages is 3"]),
        (&["group.page_tokens=8", "group.compute_tokens_min=9"], &["page_tokens is 8", "compute_tokens_min is 9"]),
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
        (&["cache.write_policy=sometimes", "cache.fingerprints=true"], &["write_policy", "fingerprints is true"]),
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
    let folder = std::env::temp_dir().join(format!("hicached-cli-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    for (at, (text, faults)) in table.iter().enumerate() {
        let file = folder.join(format!("{at}.toml"));
        std::fs::write(&file, text).expect("written");
        assert_refused(&hicached(&["check", "--config", file.to_str().expect("UTF-8")]), faults);
    }
    std::fs::remove_dir_all(&folder).expect("removed");
}

#[test]
fn a_plan_is_one_json_object() {
    let output = check_with(&["group.cp_size=4", "group.shared_kv=true"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let plan: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(plan["l2"]["tokens"], 16_384 * 64);
    assert_eq!(plan["l2"]["bytes"], plan["l2"]["bytes_per_rank"].as_u64().expect("a number") * 4);
}

#[test]
fn a_configuration_file_that_cannot_be_read_is_named() {
    let output = hicached(&["check", "--config", "/nonexistent/hicached.toml"]);
    assert_refused(&output, &["/nonexistent/hicached.toml"]);
}
