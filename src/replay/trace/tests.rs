use super::*;

fn read(lines: &str) -> Result<Trace, TraceError> {
    Trace::read(lines.as_bytes(), 512, Path::new("memory"))
}

#[test]
fn the_block_size_stands_in_the_name() {
    let rows = [
        ("a.b512.jsonl.gz", Some(512)),
        ("some.where/b64_sessions.b16.jsonl", Some(16)),
        ("lmcache.b64bytes.jsonl.gz", Some(64)),
        ("a.jsonl", None),
        ("a.b0.jsonl", None),
        ("a.bytes.jsonl", None),
    ];
    for (name, units) in rows {
        assert_eq!(block_units(Path::new(name)), units, "{name}");
    }
}

#[test]
fn a_request_may_name_its_partial_block_or_not() {
    let ceil = r#"{"timestamp":3,"input_length":600,"output_length":5,"hash_ids":[1,2]}"#;
    let floor = r#"{"timestamp":3,"input_length":600,"output_length":5,"hash_ids":[1],"session":"s","worker":"w","cached_tokens":9}"#;
    let trace = read(&format!("{ceil}\n{floor}\n")).expect("two requests");
    assert_eq!(trace.requests[0].hash_ids, [1, 2]);
    assert_eq!(trace.requests[1].session.as_deref(), Some("s"));
}

#[test]
fn a_bad_line_is_refused_with_its_number_its_field_and_its_value() {
    let expected = |expected| Problem::Expected { expected };
    let whole = "a whole number from 0 on";
    let count = Problem::IdCount { whole: 1, with_partial: 2 };
    let rows = [
        ("", "line", "", Problem::NotAnObject),
        ("{", "line", "{", Problem::NotAnObject),
        ("[1]", "line", "[1]", Problem::NotAnObject),
        (r#"{"input_length":1,"output_length":1,"hash_ids":[]}"#, "timestamp", "missing", expected(whole)),
        (r#"{"timestamp":-1,"input_length":1,"output_length":1,"hash_ids":[]}"#, "timestamp", "-1", expected(whole)),
        (
            r#"{"timestamp":9,"input_length":"x","output_length":1,"hash_ids":[]}"#,
            "input_length",
            r#""x""#,
            expected(whole),
        ),
        (
            r#"{"timestamp":9,"input_length":1,"output_length":1.5,"hash_ids":[]}"#,
            "output_length",
            "1.5",
            expected(whole),
        ),
        (
            r#"{"timestamp":9,"input_length":1,"output_length":1,"hash_ids":7}"#,
            "hash_ids",
            "7",
            expected("a list of whole numbers"),
        ),
        (
            r#"{"timestamp":9,"input_length":512,"output_length":1,"hash_ids":[null]}"#,
            "hash_ids",
            "null",
            expected("whole numbers from 0 on"),
        ),
        (
            r#"{"timestamp":9,"input_length":1,"output_length":1,"hash_ids":[],"session":4}"#,
            "session",
            "4",
            expected("a string"),
        ),
        (
            r#"{"timestamp":9,"input_length":1,"output_length":1,"hash_ids":[],"model":"m"}"#,
            "model",
            r#""m""#,
            Problem::UnknownField,
        ),
        (
            r#"{"timestamp":9,"timestamp":9,"input_length":1,"output_length":1,"hash_ids":[]}"#,
            "line",
            "duplicate field `timestamp` at line 1 column 26",
            Problem::RepeatedField,
        ),
        (
            r#"{"timestamp":1,"input_length":1,"output_length":1,"hash_ids":[]}"#,
            "timestamp",
            "1",
            Problem::Decreasing { previous: 2 },
        ),
        (r#"{"timestamp":9,"input_length":600,"output_length":1,"hash_ids":[]}"#, "hash_ids", "0 ids", count.clone()),
        (r#"{"timestamp":9,"input_length":600,"output_length":1,"hash_ids":[1,2,3]}"#, "hash_ids", "3 ids", count),
        (
            r#"{"timestamp":9,"input_length":512,"output_length":1,"hash_ids":[17592186044416]}"#,
            "hash_ids",
            "17592186044416",
            Problem::Above { limit: HASH_ID_MAX },
        ),
        (
            r#"{"timestamp":9,"input_length":4294967297,"output_length":1,"hash_ids":[]}"#,
            "input_length",
            "4294967297",
            Problem::Above { limit: LENGTH_MAX },
        ),
    ];
    for (bad, field, value, problem) in rows {
        let good = r#"{"timestamp":2,"input_length":1,"output_length":1,"hash_ids":[]}"#;
        match read(&format!("{good}\n{bad}\n")) {
            Err(TraceError::Line { line, field: f, value: v, problem: p, .. }) => {
                assert_eq!((line, f.as_str(), v.as_str(), p), (2, field, value, problem), "{bad}");
            }
            other => panic!("{bad}: {other:?}"),
        }
    }
}

#[test]
fn more_ids_than_the_limit_and_longer_lines_than_the_limit_are_refused() {
    let ids = vec!["0"; IDS_MAX + 1].join(",");
    let input_length = (IDS_MAX + 1) * 512;
    let line = format!(r#"{{"timestamp":0,"input_length":{input_length},"output_length":1,"hash_ids":[{ids}]}}"#);
    let refused = read(&line).expect_err("too many ids").to_string();
    assert_eq!(refused, "memory, line 1: hash_ids = 1048577 ids: above 1048576");
    let refused = read(&" ".repeat(LINE_BYTES_MAX + 2)).expect_err("too long").to_string();
    assert_eq!(refused, "memory, line 1: line = : longer than 16777216 bytes");
}
