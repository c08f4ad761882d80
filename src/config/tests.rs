use super::*;

fn load_with(set: &[&str], environment: &[(&str, &str)]) -> Result<Config, ConfigRefused> {
    let set = set.iter().map(|text| (*text).to_owned()).collect();
    let environment = environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    load(&Layers { file: None, set, environment })
}

#[test]
fn the_documented_defaults_load_and_pass() {
    let plan = load_with(&[], &[]).expect("loads").checked().expect("passes").plan();
    assert_eq!(plan.record_bytes, 5 * 73_728);
    assert_eq!(plan.l1.tokens, 4_096 * 64);
    assert_eq!(plan.l2.bytes, 16_384 * 5 * 73_728);
    assert_eq!((plan.l1.low_pages_per_rank, plan.l1.high_pages_per_rank), (40, 81));
}

#[test]
fn later_layers_win() {
    let config = load_with(&["l1.pages=24"], &[("HICACHED__L1__PAGES", "16"), ("HICACHED__L2__PAGES", "32")]);
    let config = config.expect("loads");
    assert_eq!((config.l1.pages, config.l2.pages), (24, 32));
    assert_eq!(config.cache.write_policy, WritePolicy::WriteThrough);
}

#[test]
fn faults_of_reading_and_of_checking_come_together() {
    let refused = load_with(
        &["l1.pagse=1", "group.cp_size=300", "group.split=round_robin"],
        &[("HICACHED__CACHE__WRITE_POLICY", "never"), ("HICACHED__NOTHING__X", "1")],
    )
    .expect_err("five faults");
    let text = refused.to_string();
    for part in ["l1.pagse", "group.cp_size", "group.split", "cache.write_policy", "nothing.x"] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    assert_eq!(refused.faults.len(), 5, "{text}");
}

#[test]
fn a_collector_is_an_address_and_a_ratio_at_most_all() {
    for (endpoint, fits) in [
        ("", true),
        ("http://127.0.0.1:4317", true),
        ("https://127.0.0.1:4317", false),
        ("127.0.0.1:4317", false),
        ("http://", false),
        ("http://a b", false),
    ] {
        let mut config = load_with(&[], &[]).expect("loads");
        config.trace.endpoint = endpoint.to_owned();
        let fits = fits && (endpoint.is_empty() || cfg!(feature = "trace"));
        assert_eq!(config.checked().is_ok(), fits, "{endpoint:?}");
    }
    let config = load_with(&["trace.endpoint=nowhere", "trace.ratio_permille=1001"], &[]).expect("loads");
    let refused = config.checked().expect_err("both at once");
    let [endpoint, ratio] = refused.faults.as_slice() else { panic!("{refused}") };
    assert!(endpoint.starts_with("trace.endpoint") && ratio.starts_with("trace.ratio_permille"), "{refused}");
}

#[test]
fn a_key_that_would_take_all_memory_is_refused() {
    let deep = ["l1.pages"; 40].join(".");
    for key in
        ["model.components[9000000000000].name", "model.components[-9].name", "a[99999999999999999999]", "a[", &deep]
    {
        let refused = load_with(&[&format!("{key}=1")], &[]).expect_err(key);
        assert_eq!(refused.faults.len(), 1, "{refused}");
        let variable = format!("HICACHED__{}", key.replace('.', "__"));
        let refused = load_with(&[], &[(&variable, "1")]).expect_err(key);
        assert_eq!(refused.faults.len(), 1, "{refused}");
        assert!(refused.faults[0].len() < 400, "{refused}");
    }
    let config = load_with(&["model.components[0].dtype=fp8"], &[]).expect("loads");
    assert_eq!(config.model.components[0].dtype, "fp8");
}

#[test]
fn the_largest_number_of_pages_has_no_multiple_above_it() {
    let refused = load_with(&["group.cp_size=2", "group.shared_kv=true", "l1.pages=4294967295"], &[]);
    let refused = refused.expect("loads").checked().expect_err("odd");
    assert!(refused.faults.iter().any(|fault| fault.ends_with("for example 4294967294")), "{refused}");
}

#[test]
fn free_room_is_shares_of_a_pool_within_one_page_and_one_chunk() {
    for (text, capacity, chunk, low, high) in [
        ("off", 1_000, 64, 0, 0),
        ("1,2", 1_000, 64, 10, 20),
        ("1,2", 10_000, 64, 64, 64),
        ("1,2", 10, 64, 1, 1),
        ("0.5,10", 1_000, 2_000, 5, 100),
    ] {
        let marks = FreeRoom::parse(text).expect("free room").marks(capacity, chunk);
        assert_eq!((marks.low_pages(), marks.high_pages()), (low, high), "{text} of {capacity}");
    }
    for bad in ["", "1", "2,1", "-1,2", "1,99", "NaN,1", "on"] {
        assert!(FreeRoom::parse(bad).is_err(), "{bad}");
    }
}

#[test]
fn groups_of_one_rank_may_store_different_components_and_others_may_not() {
    for (cp_size, faults) in [(1, 0), (2, 2)] {
        let load = |set: &[&str]| load_with(set, &[]).expect("loads");
        let cp_size = format!("group.cp_size={cp_size}");
        let mut from = load(&["group.name=prefill", "group.shared_kv=true", &cp_size, "transfer.backend=tcp"]);
        let mut to = load(&["group.name=decode", "transfer.backend=tcp"]);
        from.transfer.to = vec!["decode".into()];
        let of = |name: &str| ComponentConfig { name: name.to_owned(), ..from.model.components[0].clone() };
        let (index, draft) = (of("target.index"), of("draft.index"));
        from.model.components.push(index);
        to.model.components.push(draft);
        assert_eq!(transfer::pair_faults(&[from, to]).len(), faults, "{cp_size}");
    }
}

#[test]
fn one_side_of_a_pair_that_encrypts_is_a_fault() {
    let group = |name: &str, key: &str| {
        let set = [format!("group.name={name}"), "transfer.backend=tcp".into(), format!("transfer.tcp.tls.key={key}")];
        let mut config = load_with(&set.each_ref().map(String::as_str), &[]).expect("loads");
        config.transfer.to = if name == "prefill" { vec!["decode".into()] } else { vec![] };
        config
    };
    for (prefill, decode, faults) in [("", "", 0), ("/a", "/b", 0), ("/a", "", 1), ("", "/b", 1)] {
        let said = transfer::pair_faults(&[group("prefill", prefill), group("decode", decode)]);
        assert_eq!(said.len(), faults, "{said:?}");
        assert!(said.iter().all(|fault| fault.contains("transfer.tcp.tls is")), "{said:?}");
    }
}
