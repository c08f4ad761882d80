//! Requirement D6: one engine request is one trace.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use futures_util::stream;
use hicached::bus::nats::{NatsBus, NatsConfig};
use hicached::bus::server::NatsServer;
use hicached::bus::{Bus, BusCounters, BusError, Connection, Frame, InboxSender, Served};
use hicached::config::{BusKind, Checked};
use hicached::replay::demo::DemoArgs;
use hicached::replay::folder::Folder;
use hicached::replay::options::{BusArgs, DecodeArgs, built_in, components};
use hicached::replay::run::Run;
use hicached::replay::workload::Workload;
use hicached::shell::LocalGroup;
use hicached_actors::protocol::{Address, Bin, Drain, Envelope, Incarnation, Key, OpIds, Request, VERSION, encode};
use hicached_client::client::{Client, ClientConfig};
use hicached_client::engine::{Engine, EngineConfig, Prompt};
use hicached_client::tokens::PagePlan;
use opentelemetry_proto::tonic::trace::v1::Span;
use tokio::sync::watch;

use crate::nats_server;
use crate::receiver::{Receiver, Spans, text, value};

const DEADLINE: Duration = Duration::from_secs(20);
/// Pages of a prompt.
const PAGES: u32 = 8;
/// Enough forwards for requests to meet in one of them.
const OUTPUT_TOKENS: u32 = 320;

/// A group of two ranks on a real broker, with a collector that only it sends to.
pub(crate) struct Rig {
    receiver: Receiver,
    bus: Arc<dyn Bus>,
    /// The bus of the group.
    held: Arc<Held>,
    group: Checked,
    running: LocalGroup,
    _folder: Folder,
    _broker: NatsServer,
}

impl Rig {
    /// Exports to a receiver of its own.
    async fn start(set: &[&str]) -> Option<Self> {
        Self::exporting_to(None, set).await
    }

    /// Exports to `endpoint`. `None` where there is no nats-server.
    pub(crate) async fn exporting_to(endpoint: Option<String>, set: &[&str]) -> Option<Self> {
        let program = nats_server()?;
        let (broker, receiver) = (NatsServer::start(&program, &[]).unwrap(), Receiver::start().await);
        let set: Vec<String> = set.iter().map(|text| (*text).to_owned()).collect();
        let mut config = built_in(&set).unwrap();
        (config.group.cp_size, config.group.shared_kv) = (2, true);
        config.model.components = components(config.group.page_tokens, false);
        (config.l1.pages, config.l2.pages) = (64, 64);
        (config.bus.kind, config.bus.url) = (BusKind::Nats, broker.url());
        config.trace.endpoint = endpoint.unwrap_or_else(|| receiver.endpoint.clone());
        let mut group = config.checked().unwrap();
        let folder = Folder::create(&mut group).unwrap();
        let bus: Arc<dyn Bus> = Arc::new(NatsBus::connect(&NatsConfig::new(broker.url())).await.unwrap());
        let held = Arc::new(Held::new(bus.clone()));
        let running = LocalGroup::start(&group, held.clone()).await.unwrap();
        Some(Self { receiver, bus, held, group, running, _folder: folder, _broker: broker })
    }

    fn engine_config(&self) -> EngineConfig {
        let config = &self.group.config;
        let folder = config.rank.pool_folder.clone();
        let pages = config.l1.pages / u32::from(config.group.cp_size) + 1;
        let config = EngineConfig::new(config.group.name.clone(), self.group.manifest.clone(), pages, folder);
        EngineConfig { spans: self.running.telemetry().spans(), ..config }
    }

    /// Serves requests of prompts that nobody had before.
    async fn serve(&self, requests: u8, config: EngineConfig) {
        let mut engine = Engine::start(self.bus.clone(), config).await.unwrap();
        // Sooner, an `open` is refused.
        let until = Instant::now() + DEADLINE;
        while self.running.figure(Address::Index, "index.serving").await == 0 {
            assert!(Instant::now() < until, "the index does not serve");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let prompts = (0..requests).map(|seed| self.prompt(seed));
        let report = engine.run(stream::iter(prompts), |_, _| ()).await;
        assert!(report.is_clean(), "{report:?}");
        engine.stop().await;
    }

    fn prompt(&self, seed: u8) -> Prompt {
        let keys = (0..PAGES).map(|page| Key([seed, page as u8, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1])).collect();
        let plan = PagePlan::of_keys(Key([7; 16]), keys, self.group.config.group.page_tokens);
        Prompt { output_tokens: OUTPUT_TOKENS, ..Prompt::new("test", plan) }
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
            control: Incarnation::default(),
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

    /// Serves one request that is aborted, with its copies acknowledged after that, and ends the group. How many
    /// spans were exported.
    pub(crate) async fn serve_acknowledging_late(self) -> u64 {
        self.abort_before_acknowledgements().await;
        self.held.release();
        let telemetry = self.running.telemetry().clone();
        self.running.stop(DEADLINE).await;
        assert_eq!(telemetry.figures().lost, 0);
        telemetry.figures().exported
    }

    /// One request that is aborted after some forwards, with every acknowledgement of its copies still under way.
    async fn abort_before_acknowledgements(&self) {
        self.held.hold();
        self.serve(1, EngineConfig { abort_permille: 1_000, ..self.engine_config() }).await;
        assert!(self.held.waiting() >= 2, "both ranks have something to acknowledge");
    }

    pub(crate) fn name(&self) -> &str {
        &self.group.config.group.name
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

/// A bus that keeps acknowledgements of copies back while it is told to.
struct Held {
    below: Arc<dyn Bus>,
    waiting: Mutex<Option<Vec<Frame>>>,
}

impl Held {
    fn new(below: Arc<dyn Bus>) -> Self {
        Self { below, waiting: Mutex::new(None) }
    }

    fn hold(&self) {
        *self.waiting.lock().unwrap() = Some(Vec::new());
    }

    fn waiting(&self) -> usize {
        self.waiting.lock().unwrap().as_ref().map_or(0, Vec::len)
    }

    fn release(&self) {
        let waiting = self.waiting.lock().unwrap().take();
        waiting.into_iter().flatten().for_each(|frame| self.below.send(frame).unwrap());
    }
}

impl Bus for Held {
    fn send(&self, frame: Frame) -> Result<(), BusError> {
        if let Some(waiting) = &mut *self.waiting.lock().unwrap()
            && Envelope::decode(&frame.payload).is_ok_and(|envelope| envelope.kind == "copy_ack")
        {
            waiting.push(frame);
            return Ok(());
        }
        self.below.send(frame)
    }

    fn request(&self, frame: Frame, deadline: Duration) -> BoxFuture<'_, Result<Frame, BusError>> {
        self.below.request(frame, deadline)
    }

    fn serve(&self, subject: &str, inbox: InboxSender) -> BoxFuture<'_, Result<Served, BusError>> {
        self.below.serve(subject, inbox)
    }

    fn payload_bytes_max(&self) -> usize {
        self.below.payload_bytes_max()
    }

    fn connection(&self) -> watch::Receiver<Connection> {
        self.below.connection()
    }

    fn counters(&self) -> BusCounters {
        self.below.counters()
    }

    fn close(&self) {
        self.below.close();
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

/// Field case F26.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f26_one_request_is_one_trace_through_every_hop() {
    let Some(rig) = Rig::start(&["trace.ratio_permille=1000"]).await else { return };
    rig.abort_before_acknowledgements().await;
    rig.held.release();
    let acknowledged = |spans: &Spans| {
        let acks = spans.named("process copy_ack").map(|span| text(span, "hicached.sender"));
        acks.collect::<BTreeSet<_>>().len() == 2
    };
    rig.receiver.spans_when(acknowledged).await;
    let group = rig.name().to_owned();
    let spans = rig.end().await;
    assert_one_request(&spans, &group);
    for received in &spans.0 {
        assert_eq!(value(&received.resource, "service.name"), "hicached");
        assert_eq!(
            value(&received.resource, "hicached.actors"),
            "index,allocator,evictor,writer,loader,sender,receiver,rank.0,rank.1"
        );
    }
}

/// One trace of one request, through every hop, with what came after its end; every other trace is whole as well.
pub(crate) fn assert_one_request(spans: &Spans, group: &str) {
    spans.assert_whole();
    let traces = spans.traces();
    let mut of_requests = traces.values().filter(|trace| trace.named("request").count() > 0);
    let (Some(trace), None) = (of_requests.next(), of_requests.next()) else { panic!("one trace: {spans}") };
    let roots = trace.roots();
    assert_eq!(roots.iter().map(|root| root.name.as_str()).collect::<Vec<_>>(), ["request"], "{trace}");
    assert_eq!(handlers(trace), ["allocator", "index", "rank0", "rank1", "writer"], "{trace}");
    assert_hops(trace, group);
    assert!(trace.named("process copy_ack").count() >= 2, "{trace}");
    for ack in trace.named("process copy_ack") {
        assert!(ack.start_time_unix_nano >= roots[0].end_time_unix_nano, "after the request: {trace}");
    }
    // What explains nothing leaves nothing behind: heartbeats, figures, registrations.
    assert!(traces.values().all(|trace| trace.roots().len() == 1), "{spans}");
}

/// Every handled message hangs on a span of its sender.
fn assert_hops(trace: &Spans, group: &str) {
    let of = |id: &[u8]| trace.spans().find(|span| span.span_id == id);
    for hop in trace.spans().filter(|span| span.kind == CONSUMER) {
        let parent = of(&hop.parent_span_id).unwrap_or_else(|| panic!("{} has no sender in {trace}", hop.name));
        let (actor, rank) = (text(parent, "hicached.actor"), text(parent, "hicached.rank"));
        let sender = if rank.is_empty() { actor } else { format!("{actor}.{rank}") };
        assert_eq!(text(hop, "hicached.sender"), sender, "{} hangs on {} in {trace}", hop.name, parent.name);
        let (actor, rank) = (text(hop, "hicached.actor"), text(hop, "hicached.rank"));
        let subject = if rank.is_empty() { actor } else { format!("{actor}.{rank}") };
        for (name, expected) in [
            ("messaging.system", "nats"),
            ("messaging.operation.type", "process"),
            ("messaging.destination.name", &format!("hicached.v1.{group}.{subject}")),
            ("hicached.group", group),
        ] {
            assert_eq!(text(hop, name), expected, "{name} of {hop:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f26_a_message_for_three_requests_links_to_three_traces() {
    let Some(rig) = Rig::start(&["trace.ratio_permille=1000"]).await else { return };
    rig.serve(3, EngineConfig { sessions_max: 3, ..rig.engine_config() }).await;
    let spans = rig.end().await;
    spans.assert_whole();
    let linked = |span: &Span| span.links.iter().map(|link| link.trace_id.clone()).collect::<BTreeSet<_>>();
    let most = spans.named("process step").map(linked).max_by_key(BTreeSet::len).expect("steps");
    let requests = spans.traces().into_iter().filter(|(_, trace)| trace.named("request").count() > 0);
    assert_eq!(most, requests.map(|(id, _)| id).collect(), "{spans}");
    assert_eq!(most.len(), 3, "{spans}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_call_of_an_engine_without_traces_is_a_trace_of_its_own() {
    let Some(rig) = Rig::start(&["trace.ratio_permille=1000"]).await else { return };
    rig.serve(1, EngineConfig { spans: None, ..rig.engine_config() }).await;
    let spans = rig.end().await;
    spans.assert_whole();
    for trace in spans.traces().values() {
        assert_eq!(trace.roots().len(), 1, "{trace}");
        assert!(begins_here(&trace.roots()[0].name), "{trace}");
    }
    let open = spans.traces().into_values().find(|trace| trace.named("process open").count() > 0).expect("an open");
    assert_eq!(handlers(&open), ["allocator", "index", "rank0", "rank1", "writer"], "{open}");
}

/// Either side of a request that goes over is one trace: that of prefill goes on through the receiver of the other group.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_request_of_a_demo_is_one_trace_on_either_side() {
    let receiver = Receiver::start().await;
    let set = ["trace.ratio_permille=1000".to_owned(), format!("trace.endpoint={}", receiver.endpoint)];
    let on = BusArgs { bus: BusKind::Memory, nats_url: None, set: set.into() };
    let decode = DecodeArgs { transfer: "tcp".to_owned() };
    let (group, decode) = DemoArgs { on, decode, requests: REQUESTS as u32, seed: 1, json: false }.groups().unwrap();
    let prompts = Workload::new(1, &group.manifest).take(REQUESTS);
    let outcome = Run::demo(&group, Some(&decode), 1).run(stream::iter(prompts), None, |_| ()).await.unwrap();
    assert_eq!(outcome.fault(), None);
    let spans = receiver.spans();
    spans.assert_whole();
    assert!(spans.traces().values().all(|trace| trace.roots().len() == 1), "{spans}");
    // One more for each attempt that was not the last.
    assert!(spans.named("request").count() >= 2 * REQUESTS, "{spans}");
    let traces = spans.traces();
    let sent = traces.values().filter(|trace| trace.named("transfer.send").count() > 0).collect::<Vec<_>>();
    assert!(sent.len() >= REQUESTS, "{spans}");
    for trace in sent {
        let hops = handlers(trace);
        for hop in ["index", "receiver", "sender"] {
            assert!(hops.iter().any(|handler| handler == hop), "{hop} is not in {trace}");
        }
    }
    assert!(spans.named("transfer.receive").count() >= REQUESTS, "{spans}");
}

/// Requests of the demo: enough to evict and to load again.
const REQUESTS: usize = 120;

fn begins_here(name: &str) -> bool {
    ["process open", "process extend", "process step", "process close", "process drain"].contains(&name)
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
    rig.serve(1, rig.engine_config()).await;
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
        handover: Vec::new(),
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
