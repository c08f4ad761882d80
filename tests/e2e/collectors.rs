//! What collectors that are not ours make of the traces: rotel prints what it takes in, Jaeger answers queries.
//! Where one is missing its test prints "skipped".

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;

use crate::receiver::{Received, Spans};
use crate::traces::{Rig, assert_one_request};

/// A collector takes longer to start than to do anything else.
const LONG: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(20);
const SAMPLED: [&str; 1] = ["trace.ratio_permille=1000"];

/// A process that ends with this value, and the folder of its files.
struct Collector {
    child: Child,
    folder: PathBuf,
}

impl Collector {
    /// Starts `command` with its output in a file, once everybody can connect to `port`.
    fn start(name: &str, command: impl FnOnce(&Path) -> Command, port: u16) -> Self {
        let folder = std::env::temp_dir().join(format!("hicached-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let log = std::fs::File::create(folder.join("output")).unwrap();
        let mut command = command(&folder);
        let child = command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        let collector = Self { child, folder };
        let until = Instant::now() + LONG;
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            assert!(Instant::now() < until, "{name} does not listen: {}", collector.output());
            std::thread::sleep(PAUSE);
        }
        collector
    }

    fn output(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.folder.join("output")).unwrap()).into_owned()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        // It may have ended by itself; what is left of its folder is in the way of nobody.
        self.child.kill().ok();
        self.child.wait().ok();
        std::fs::remove_dir_all(&self.folder).ok();
    }
}

fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rotel_reads_one_request_as_one_trace() {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join(".tools/rotel/bin/rotel-agent");
    if !program.is_file() {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "CI has to test a collector: run scripts/tools");
        return eprintln!("skipped: no rotel-agent; scripts/tools installs one");
    }
    let (grpc, http) = (free_port(), free_port());
    let start = |_: &Path| {
        let mut command = Command::new(&program);
        command.args(["start", "--otlp-grpc-endpoint", &format!("127.0.0.1:{grpc}")]);
        command.args(["--otlp-http-endpoint", &format!("127.0.0.1:{http}"), "--exporter", "blackhole"]);
        command.args(["--debug-log", "traces", "--debug-log-verbosity", "detailed"]);
        command
    };
    let rotel = Collector::start("rotel", start, grpc);
    let endpoint = Some(format!("http://127.0.0.1:{grpc}"));
    let Some(rig) = Rig::exporting_to(endpoint, &SAMPLED).await else { return };
    let group = rig.name().to_owned();
    let exported = rig.serve_acknowledging_late().await;
    let spans = until_all(exported, || printed(&rotel.output())).await;
    assert_one_request(&spans, &group);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jaeger_answers_with_one_trace_for_one_request() {
    let Some(program) = std::env::var_os("JAEGER").filter(|named| !named.is_empty()) else {
        return eprintln!("skipped: JAEGER names no binary");
    };
    let (otlp, query, grpc) = (free_port(), free_port(), free_port());
    let start = |folder: &Path| {
        let config = folder.join("jaeger.yaml");
        std::fs::write(&config, jaeger_config(otlp, query, grpc)).unwrap();
        let mut command = Command::new(&program);
        command.arg("--config").arg(config);
        command
    };
    let jaeger = Collector::start("jaeger", start, query);
    let endpoint = Some(format!("http://127.0.0.1:{otlp}"));
    let Some(rig) = Rig::exporting_to(endpoint, &SAMPLED).await else { return };
    let group = rig.name().to_owned();
    let exported = rig.serve_acknowledging_late().await;
    let spans = until_all(exported, || answered(&get(query, "/api/traces?service=hicached&limit=1000"))).await;
    assert_one_request(&spans, &group);
    drop(jaeger);
}

/// What `read` finds once all that was exported is there.
async fn until_all(exported: u64, mut read: impl FnMut() -> Spans) -> Spans {
    let until = Instant::now() + LONG;
    loop {
        let spans = read();
        if spans.0.len() as u64 >= exported {
            return spans;
        }
        assert!(Instant::now() < until, "{} of {exported} spans: {spans}", spans.0.len());
        tokio::time::sleep(PAUSE).await;
    }
}

/// The spans in what rotel prints: fields of a span behind `: `, attributes behind `-> `.
fn printed(output: &str) -> Spans {
    let mut spans = Spans::default();
    for block in output.split("Span #").skip(1) {
        let field = |name: &str| {
            let line = block.lines().find(|line| line.trim_start().starts_with(name));
            line.and_then(|line| line.split_once(':')).map_or("", |(_, value)| value.trim())
        };
        let attributes = block.lines().filter_map(|line| line.trim().strip_prefix("-> ")?.split_once(": "));
        let attributes = attributes.map(|(name, value)| {
            // The last of a batch is followed by the resource of the next, which names nothing that is asked for.
            let value = value.split_once('(').map_or(value, |(_, value)| value.trim_end_matches(')'));
            attribute(name, value.to_owned())
        });
        // A block that is still being written has no name or no attributes yet: it is not counted as there.
        let span = Span {
            trace_id: bytes(field("Trace ID")),
            span_id: bytes(field("ID")),
            parent_span_id: bytes(field("Parent ID")),
            name: field("Name").to_owned(),
            kind: SpanKind::from_str_name(field("Kind")).unwrap_or_default() as i32,
            start_time_unix_nano: field("Start time").parse().unwrap_or_default(),
            end_time_unix_nano: field("End time").parse().unwrap_or_default(),
            attributes: attributes.collect(),
            ..Span::default()
        };
        if span.attributes.iter().any(|attribute| attribute.key == "hicached.actor") {
            spans.0.push(Received { span, resource: Vec::new() });
        }
    }
    spans
}

/// The spans in an answer of Jaeger's query API.
fn answered(json: &str) -> Spans {
    let Ok(answer) = serde_json::from_str::<serde_json::Value>(json) else { return Spans::default() };
    let mut spans = Spans::default();
    let list = |value: &serde_json::Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &serde_json::Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    for found in list(&answer["data"]).iter().flat_map(|trace| list(&trace["spans"])) {
        let references = list(&found["references"]);
        let parent = references.iter().find(|reference| reference["refType"] == "CHILD_OF");
        let tags = list(&found["tags"]);
        let kind =
            tags.iter().find(|tag| tag["key"] == "span.kind").map_or_else(String::new, |tag| text(&tag["value"]));
        let began_us = found["startTime"].as_u64().unwrap_or_default();
        let ended_us = began_us + found["duration"].as_u64().unwrap_or_default();
        let span = Span {
            trace_id: bytes(&text(&found["traceID"])),
            span_id: bytes(&text(&found["spanID"])),
            parent_span_id: parent.map_or_else(Vec::new, |parent| bytes(&text(&parent["spanID"]))),
            name: text(&found["operationName"]),
            kind: if kind == "consumer" { SpanKind::Consumer } else { SpanKind::Unspecified } as i32,
            start_time_unix_nano: began_us * 1_000,
            end_time_unix_nano: ended_us * 1_000,
            attributes: tags.iter().map(|tag| attribute(&text(&tag["key"]), text(&tag["value"]))).collect(),
            ..Span::default()
        };
        spans.0.push(Received { span, resource: Vec::new() });
    }
    spans
}

fn attribute(name: &str, value: String) -> KeyValue {
    let value = Some(AnyValue { value: Some(Value::StringValue(value)) });
    KeyValue { key: name.to_owned(), value, ..KeyValue::default() }
}

/// The bytes that `hex` writes.
fn bytes(hex: &str) -> Vec<u8> {
    let digits = hex.as_bytes().chunks(2).filter_map(|two| std::str::from_utf8(two).ok());
    digits.filter_map(|two| u8::from_str_radix(two, 16).ok()).collect()
}

/// The body of the answer, empty when there is none.
fn get(port: u16, path: &str) -> String {
    let mut answer = String::new();
    let asked = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).and_then(|mut stream| {
        write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
        stream.read_to_string(&mut answer)
    });
    let body = asked.ok().and_then(|_| answer.split_once("\r\n\r\n"));
    body.map_or_else(String::new, |(_, body)| body.to_owned())
}

/// Jaeger with everything in memory, on loopback.
fn jaeger_config(otlp: u16, query: u16, grpc: u16) -> String {
    format!(
        "
service:
  extensions: [jaeger_storage, jaeger_query]
  pipelines:
    traces: {{receivers: [otlp], exporters: [jaeger_storage_exporter]}}
  telemetry:
    metrics: {{level: none}}
extensions:
  jaeger_storage:
    backends:
      memory:
        memory: {{max_traces: 10000}}
  jaeger_query:
    storage: {{traces: memory}}
    http: {{endpoint: '127.0.0.1:{query}'}}
    grpc: {{endpoint: '127.0.0.1:{grpc}'}}
receivers:
  otlp:
    protocols:
      grpc: {{endpoint: '127.0.0.1:{otlp}'}}
exporters:
  jaeger_storage_exporter: {{trace_storage: memory}}
"
    )
}
