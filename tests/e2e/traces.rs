//! Requirement D6: one engine request is one trace.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;
use hicached::bus::nats::{NatsBus, NatsConfig};
use hicached::bus::server::{NatsServer, find_nats_server};
use hicached::bus::{Bus, Frame};
use hicached::config::{BusKind, Checked};
use hicached::replay::folder::Folder;
use hicached::replay::options::{built_in, components};
use hicached::shell::LocalGroup;
use hicached_actors::protocol::{Address, Bin, Drain, Envelope, Incarnation, Key, OpIds, Request, VERSION, encode};
use hicached_client::client::{Client, ClientConfig};
use hicached_client::engine::{Engine, EngineConfig, Prompt};
use hicached_client::tokens::PagePlan;

use crate::receiver::{Receiver, Spans, text, value};

const DEADLINE: Duration = Duration::from_secs(20);
/// Pages of the one request.
const PAGES: u32 = 8;

/// A group of two ranks on a real broker, with a collector that only it sends to.
struct Rig {
    receiver: Receiver,
    bus: Arc<dyn Bus>,
    group: Checked,
    running: LocalGroup,
    _folder: Folder,
    _broker: NatsServer,
}

impl Rig {
    /// `None` where there is no nats-server.
    async fn start(set: &[&str]) -> Option<Self> {
        let Some(program) = find_nats_server(env!("CARGO_MANIFEST_DIR").as_ref()) else {
            assert!(std::env::var("CI").as_deref() != Ok("true"), "CI has to test over NATS: run scripts/tools");
            eprintln!("skipped: no nats-server; scripts/tools installs one");
            return None;
        };
        let (broker, receiver) = (NatsServer::start(&program, &[]).unwrap(), Receiver::start().await);
        let set: Vec<String> = set.iter().map(|text| (*text).to_owned()).collect();
        let mut config = built_in(&set).unwrap();
        (config.group.cp_size, config.group.shared_kv) = (2, true);
        config.model.components = components(config.group.page_tokens, false);
        (config.l1.pages, config.l2.pages) = (64, 64);
        (config.bus.kind, config.bus.url) = (BusKind::Nats, broker.url());
        config.trace.endpoint = receiver.endpoint.clone();
        let mut group = config.checked().unwrap();
        let folder = Folder::create(&mut group).unwrap();
        let bus: Arc<dyn Bus> = Arc::new(NatsBus::connect(&NatsConfig::new(broker.url())).await.unwrap());
        let running = LocalGroup::start(&group, bus.clone()).await.unwrap();
        Some(Self { receiver, bus, group, running, _folder: folder, _broker: broker })
    }

    fn engine_config(&self) -> EngineConfig {
        let config = &self.group.config;
        let folder = config.rank.pool_folder.clone();
        let pages = config.l1.pages / u32::from(config.group.cp_size) + 1;
        EngineConfig::new(config.group.name.clone(), self.group.manifest.clone(), pages, folder)
    }

    /// Serves one request of a prompt that nobody had before.
    async fn serve_one(&self, config: EngineConfig) {
        let mut engine = Engine::start(self.bus.clone(), config).await.unwrap();
        let report = engine.run(stream::iter([self.prompt(1)]), |_| ()).await;
        assert!(report.is_clean(), "{report:?}");
        engine.stop().await;
    }

    fn prompt(&self, seed: u8) -> Prompt {
        let keys = (0..PAGES).map(|page| Key([seed, page as u8, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1])).collect();
        let tokens = PAGES * self.group.config.group.page_tokens;
        Prompt::new("test", PagePlan { salt: Key([7; 16]), tokens, keys, contents: None, tail: Vec::new() })
    }

    /// Asks the index for a drain, with these headers and as it stands. What it answers is not looked at.
    async fn ask(&self, headers: &[(&'static str, &str)]) {
        let request = Request::from(Drain { on: false });
        let engine = Incarnation([3; 16]);
        let envelope = Envelope {
            version: VERSION,
            kind: request.code().to_owned(),
            id: OpIds::new(engine).draw(),
            op: OpIds::new(engine).draw(),
            sender: "engine".to_owned(),
            incarnation: engine,
            control: self.running.control(),
            seq: 1,
            urgent: false,
            remaining_ms: 1_000,
            body: Bin(request.encode_body()),
        };
        let mut frame = Frame::new(Address::Index.subject(&self.group.config.group.name), encode(&envelope));
        for (name, value) in headers {
            frame.headers.push(*name, value).unwrap();
        }
        self.bus.request(frame, DEADLINE).await.unwrap();
    }

    /// Ends the group, which exports what waits; everything that was exported.
    async fn end(self) -> Spans {
        let telemetry = self.running.telemetry().clone();
        self.running.stop(DEADLINE).await;
        let (figures, spans) = (telemetry.figures(), self.receiver.spans());
        assert_eq!((figures.lost, figures.exported), (0, spans.0.len() as u64), "{spans}");
        spans
    }
}

/// Who handled messages of a trace: actor and rank of each.
fn handlers(spans: &Spans) -> Vec<String> {
    let consumers = spans.spans().filter(|span| span.kind == CONSUMER);
    let mut handlers: Vec<String> =
        consumers.map(|span| format!("{}{}", text(span, "hicached.actor"), text(span, "hicached.rank"))).collect();
    handlers.sort();
    handlers.dedup();
    handlers
}

const CONSUMER: i32 = opentelemetry_proto::tonic::trace::v1::span::SpanKind::Consumer as i32;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_request_of_an_engine_without_traces_is_a_trace_of_its_own() {
    let Some(rig) = Rig::start(&["trace.ratio_permille=1000"]).await else { return };
    rig.serve_one(rig.engine_config()).await;
    let group = rig.group.config.group.name.clone();
    let spans = rig.end().await;
    spans.assert_whole();
    for trace in spans.traces().values() {
        assert_eq!(trace.roots().len(), 1, "{trace}");
        assert!(begins_here(&trace.roots()[0].name), "{trace}");
    }
    let step = spans.traces().into_values().find(|trace| trace.named("process step").count() > 0).expect("a step");
    assert_eq!(handlers(&step), ["allocator", "index", "rank0", "rank1", "writer"], "{step}");
    let root = step.roots()[0];
    for (name, expected) in [
        ("messaging.system", "nats"),
        ("messaging.operation.type", "process"),
        ("messaging.destination.name", &format!("hicached.v1.{group}.index")),
        ("hicached.group", &group),
        ("hicached.sender", "engine"),
    ] {
        assert_eq!(text(root, name), expected, "{name} of {root:?}");
    }
    for received in &spans.0 {
        assert_eq!(value(&received.resource, "service.name"), "hicached");
        assert_eq!(value(&received.resource, "hicached.actors"), "index,allocator,evictor,writer,loader,rank.0,rank.1");
    }
}

fn begins_here(name: &str) -> bool {
    ["process open", "process step", "process close", "process drain"].contains(&name)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_header_that_is_missing_or_malformed_begins_a_trace_and_one_that_is_not_sampled_none() {
    let Some(rig) = Rig::start(&["trace.ratio_permille=1000"]).await else { return };
    let (trace, parent) = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331");
    rig.ask(&[]).await;
    rig.ask(&[("traceparent", "00-0af7-b7ad-01")]).await;
    rig.ask(&[("traceparent", &format!("00-{trace}-{parent}-00"))]).await;
    rig.ask(&[("traceparent", &format!("00-{trace}-{parent}-01"))]).await;
    // The drain at the end is the client's own and begins a trace as well.
    let spans = rig.end().await;
    let asked: Vec<_> = spans.spans().filter(|span| text(span, "hicached.op").starts_with("03030303")).collect();
    let roots = asked.iter().filter(|span| span.parent_span_id.is_empty()).count();
    assert_eq!((asked.len(), roots), (3, 2), "{spans}");
    let below = asked.iter().find(|span| !span.parent_span_id.is_empty()).expect("one below its sender's");
    assert_eq!(
        u128::from_be_bytes(below.trace_id.clone().try_into().unwrap()),
        u128::from_str_radix(trace, 16).unwrap()
    );
    assert_eq!(
        u64::from_be_bytes(below.parent_span_id.clone().try_into().unwrap()),
        u64::from_str_radix(parent, 16).unwrap()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_nothing_sampled_a_refused_request_is_exported_and_nothing_else() {
    let Some(rig) = Rig::start(&["trace.ratio_permille=0", "trace.slow_ms=600000"]).await else { return };
    rig.serve_one(rig.engine_config()).await;
    let engine = Incarnation([3; 16]);
    let client = Client::new(rig.bus.clone(), ClientConfig::new(rig.group.config.group.name.clone(), engine));
    // This engine has registered no rank.
    let open = hicached_actors::protocol::Open {
        tenant: "test".to_owned(),
        salt: Key([7; 16]),
        keys: hicached_actors::protocol::Keys(Vec::new()),
        tokens: 1,
        reserve_tokens: 1,
        owners: Default::default(),
        priority: 0,
        no_match: false,
    };
    let refused = client.open(client.draw(), open).await.expect_err("refused");
    let stored = rig.running.telemetry().figures().stored;
    assert!(stored > 0, "the request that went well waits for its trace to be wanted");
    let spans = rig.end().await;
    assert_eq!(spans.traces().len(), 1, "{spans}");
    let failed = spans.named("process open").next().expect("the open");
    assert_eq!(failed.status.as_ref().map(|status| status.message.as_str()), Some(refused.code()), "{spans}");
    assert_eq!(text(failed, "error.type"), refused.code());
}
