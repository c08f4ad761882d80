//! `hicached bench bus`: what an engine waits for, against one raw request and its reply of the same run.
//!
//! Wake-ups between threads cost more than any message here and change from minute to minute, so only ratios to the
//! raw figure of the same run mean anything. Runs of both are interleaved; every figure is the median of the runs.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use futures_util::stream;
use hicached_actors::calls::draw;
use hicached_actors::protocol::{Key, Open};
use hicached_client::client::{Client, ClientError};
use hicached_client::engine::{Engine, EngineConfig, EngineError, Prompt};
use hicached_client::tokens::PagePlan;
use serde::Serialize;
use tokio::time::Instant;

use crate::bus::server::{NatsServer, ServerError, nats_server};
use crate::bus::{Bus, BusError, Frame, Inbox, Served, inbox};
use crate::config::{BusKind, Checked, ConfigRefused};
use crate::replay::folder::{Folder, FolderError};
use crate::replay::options::{built_in, components};
use crate::replay::outcome::Percentiles;
use crate::shell::{LocalGroup, NoBroker, StartError, connect};

/// Arguments of `bench bus`.
#[derive(Args, Clone, Debug)]
pub struct BusBenchArgs {
    /// One JSON object in place of the table
    #[arg(long)]
    pub json: bool,
    /// Runs; medians over them are reported
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub runs: u32,
    /// Requests of one run
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub requests: u32,
    /// A NATS server to use; else one is started, if one is found
    #[arg(long, value_name = "URL")]
    pub nats_url: Option<String>,
    /// A collector that takes OTLP over gRPC: everything once more with 1 % and with all requests exported to it
    #[arg(long, value_name = "URL")]
    pub collector: Option<String>,
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Requests of one run.
    pub requests: u32,
    /// Runs.
    pub runs: u32,
    /// Pages of one request, none of them cached.
    pub pages: u32,
    /// One per bus.
    pub buses: Vec<BusFigures>,
    /// Buses that were not measured.
    pub skipped: Vec<SkippedBus>,
}

/// A bus that was not measured.
#[derive(Clone, Debug, Serialize)]
pub struct SkippedBus {
    /// `nats`.
    pub bus: &'static str,
    /// Why not.
    pub why: &'static str,
}

/// Figures over one bus: medians of the runs.
#[derive(Clone, Debug, Serialize)]
pub struct BusFigures {
    /// `memory` or `nats`.
    pub bus: &'static str,
    /// Requests of a thousand whose spans were exported; absent with export off.
    pub traced_permille: Option<u32>,
    /// Spans that the collector took.
    pub spans_exported: u64,
    /// Spans that were lost on the way to it.
    pub spans_lost: u64,
    /// Round trips on the bus for one `open` without pressure, the engine's own among them: frames by two.
    pub round_trips_per_open: f64,
    /// One request and its reply, with a body as large as that of `open`.
    pub raw: Percentiles,
    /// `open`.
    pub open: Percentiles,
    /// `step`.
    pub step: Percentiles,
    /// `close`: until everything of the session is committed.
    pub commit: Percentiles,
    /// Median of `open` by median of the raw request, of the same run.
    pub open_by_raw: f64,
    /// The same of `step`.
    pub step_by_raw: f64,
    /// The same of `close`.
    pub commit_by_raw: f64,
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum BusBenchError {
    /// The group of the bench does not pass its own check.
    #[error(transparent)]
    Config(#[from] ConfigRefused),
    /// No place for pool files.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// No server.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// No connection.
    #[error(transparent)]
    NoBroker(#[from] NoBroker),
    /// No group.
    #[error(transparent)]
    Group(#[from] StartError),
    /// No engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A request was not answered.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// A raw request was not answered.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// Something of a run failed.
    #[error("{failed} of {requests} requests failed")]
    Failed {
        /// How many.
        failed: u64,
        /// Of how many.
        requests: u64,
    },
}

/// Measures both buses; over NATS only when a server is given or found. `progress` is called after each run.
///
/// # Errors
/// [`BusBenchError`].
pub async fn run(args: &BusBenchArgs, mut progress: impl FnMut()) -> Result<Report, BusBenchError> {
    let mut skipped = Vec::new();
    let mut buses = measure_traced(args, BusKind::Memory, "", &mut progress).await?;
    match (&args.nats_url, nats_server(Path::new("."))) {
        (Some(url), _) => buses.extend(measure_traced(args, BusKind::Nats, url, &mut progress).await?),
        (None, Ok(program)) => {
            let server = NatsServer::start(&program, &[])?;
            buses.extend(measure_traced(args, BusKind::Nats, &server.url(), &mut progress).await?);
        }
        (None, Err(ServerError::NotFound)) => skipped.push(SkippedBus { bus: BusKind::Nats.name(), why: NO_SERVER }),
        (None, Err(error)) => return Err(error.into()),
    }
    Ok(Report { requests: args.requests, runs: args.runs, pages: PAGES, buses, skipped })
}

/// One run: percentiles of the raw request, `open`, `step` and `close`.
type Figures = [Percentiles; 4];

/// One bus with export off, and where there is a collector with some and with all requests exported.
async fn measure_traced(
    args: &BusBenchArgs,
    kind: BusKind,
    url: &str,
    progress: &mut impl FnMut(),
) -> Result<Vec<BusFigures>, BusBenchError> {
    let ratios = args.collector.iter().flat_map(|_| TRACED_PERMILLE);
    let mut figures = Vec::new();
    for traced in std::iter::once(None).chain(ratios.map(Some)) {
        figures.push(measure(args, kind, url, traced, progress).await?);
    }
    Ok(figures)
}

async fn measure(
    args: &BusBenchArgs,
    kind: BusKind,
    url: &str,
    traced_permille: Option<u32>,
    progress: &mut impl FnMut(),
) -> Result<BusFigures, BusBenchError> {
    let pages = args.requests.saturating_mul(args.runs + 1).saturating_mul(PAGES + 1);
    let trace = traced_permille.and_then(|permille| Some((args.collector.clone()?, permille)));
    let mut group = group(kind, url, pages, trace)?;
    let _folder = Folder::create(&mut group)?;
    let bus = connect(&group.config.bus).await?;
    let echo = Echo::start(&bus, &group.config.group.name).await?;
    let running = LocalGroup::start(&group, bus.clone()).await?;
    let telemetry = running.telemetry().clone();
    let engine = EngineConfig { spans: telemetry.spans(), ..engine_config(&group) };
    let mut engine = Engine::start(bus.clone(), engine).await?;
    let mut made = Prompts { group: &group, made: 0 };
    // One run to warm up; its figures do not count.
    one_run(args, &bus, &echo, &mut engine, &mut made).await?;
    let mut runs: Vec<Figures> = Vec::new();
    for _ in 0..args.runs {
        runs.push(one_run(args, &bus, &echo, &mut engine, &mut made).await?);
        progress();
    }
    let round_trips_per_open = count_round_trips(&*bus, engine.client(), &mut made).await?;
    engine.stop().await;
    running.stop(Duration::ZERO).await;
    drop(echo);
    bus.close();
    let of = |at: usize| Percentiles {
        p50: median(runs.iter().map(|run| run[at].p50).collect()),
        p99: median(runs.iter().map(|run| run[at].p99).collect()),
    };
    let by_raw = |at: usize| {
        let hundredths = runs.iter().map(|run| run[at].p50 * 100 / run[0].p50.max(1)).collect();
        median(hundredths) as f64 / 100.0
    };
    let spans = telemetry.figures();
    Ok(BusFigures {
        bus: kind.name(),
        traced_permille,
        spans_exported: spans.exported,
        spans_lost: spans.lost,
        round_trips_per_open,
        raw: of(0),
        open: of(1),
        step: of(2),
        commit: of(3),
        open_by_raw: by_raw(1),
        step_by_raw: by_raw(2),
        commit_by_raw: by_raw(3),
    })
}

async fn one_run(
    args: &BusBenchArgs,
    bus: &Arc<dyn Bus>,
    echo: &Echo,
    engine: &mut Engine,
    made: &mut Prompts<'_>,
) -> Result<Figures, BusBenchError> {
    let body = vec![0; RAW_BYTES];
    let mut raw_ns = Vec::new();
    for _ in 0..args.requests {
        let asked = Instant::now();
        bus.request(Frame::new(echo.served.subject(), body.clone()), RAW_DEADLINE).await?;
        raw_ns.push(asked.elapsed().as_nanos() as u64);
    }
    let prompts: Vec<Prompt> = (0..args.requests).map(|_| made.prompt()).collect();
    let report = engine.run(stream::iter(prompts), |_, _| ()).await;
    if !report.is_clean() {
        return Err(BusBenchError::Failed {
            failed: report.requests - report.requests_ended,
            requests: report.requests,
        });
    }
    let latencies = report.latencies;
    let raw = raw_ns.into_iter().collect();
    Ok([&raw, &latencies.open, &latencies.step, &latencies.commit].map(Percentiles::of))
}

/// Frames that one `open` of uncached pages puts on the bus, by two. Heartbeats ride on the same bus: the median of
/// many opens has none in it.
async fn count_round_trips(bus: &dyn Bus, client: &Client, made: &mut Prompts<'_>) -> Result<f64, BusBenchError> {
    let mut frames = Vec::new();
    for _ in 0..COUNTED_OPENS {
        let prompt = made.prompt();
        let open = Open {
            tenant: prompt.tenant.clone(),
            salt: prompt.plan.salt,
            keys: hicached_actors::protocol::Keys(prompt.plan.keys.to_vec()),
            tokens: prompt.plan.tokens,
            reserve_tokens: prompt.plan.tokens,
            owners: Default::default(),
            priority: 0,
            no_match: false,
            handover: Vec::new(),
        };
        // What the last session left behind is over before the count begins.
        tokio::time::sleep(QUIET).await;
        let before = bus.counters().sent;
        let session = client.draw();
        client.open(session, open).await?;
        frames.push(bus.counters().sent - before);
        client.give_up(session, &prompt.tenant, 0);
    }
    Ok(median(frames) as f64 / 2.0)
}

/// One rank without bytes and with room for everything, so that no request waits for an eviction.
fn group(kind: BusKind, url: &str, pages: u32, trace: Option<(String, u32)>) -> Result<Checked, ConfigRefused> {
    let mut config = built_in(&[])?;
    if let Some((collector, ratio_permille)) = trace {
        (config.trace.endpoint, config.trace.ratio_permille) = (collector, ratio_permille);
    }
    config.model.components = components(config.group.page_tokens, true);
    (config.bus.kind, config.l1.pages, config.l2.pages) = (kind, pages, pages);
    if kind == BusKind::Nats {
        config.bus.url = url.to_owned();
    }
    config.checked()
}

fn engine_config(group: &Checked) -> EngineConfig {
    let config = &group.config;
    let folder = config.rank.pool_folder.clone();
    EngineConfig::new(config.group.name.clone(), group.manifest.clone(), config.l1.pages + 1, folder)
}

/// Makes prompts that nobody had before.
struct Prompts<'a> {
    group: &'a Checked,
    made: u64,
}

impl Prompts<'_> {
    fn prompt(&mut self) -> Prompt {
        self.made += 1;
        let (page_tokens, mut chance) = (self.group.config.group.page_tokens, self.made);
        let mut keys = (0..PAGES).map(|_| {
            let mut key = [0; 16];
            key[..8].copy_from_slice(&draw(&mut chance).to_le_bytes());
            key[8..].copy_from_slice(&self.made.to_le_bytes());
            Key(key)
        });
        let keys = keys.by_ref().collect();
        Prompt::new("bench", PagePlan::of_keys(Key([1; 16]), keys, page_tokens))
    }
}

/// Answers every frame with its own payload, on a thread of its own, as a group does.
struct Echo {
    served: Served,
}

impl Echo {
    async fn start(bus: &Arc<dyn Bus>, group: &str) -> Result<Self, BusError> {
        let (sender, mut inbox): (_, Inbox) = inbox(RAW_QUEUE, None);
        let served = bus.serve(&format!("hicached.v1.{group}.echo"), sender).await?;
        let bus = bus.clone();
        std::thread::spawn(move || {
            let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
            runtime.block_on(async {
                while let Some(frame) = inbox.recv().await {
                    let Some(reply) = frame.reply(frame.payload.clone()) else { continue };
                    // A reply that is not sent is a request that times out, which ends the bench.
                    bus.send(reply).ok();
                }
            });
        });
        Ok(Self { served })
    }
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { requests, runs, pages, .. } = self;
        writeln!(f, "{requests} requests of {pages} uncached pages, median of {runs} runs, microseconds")?;
        write!(f, "{:<8}{:<10}{:>10}{:>10}{:>12}", "bus", "what", "p50", "p99", "by raw p50")?;
        for bus in &self.buses {
            let rows = [
                ("request", bus.raw, 1.0),
                ("open", bus.open, bus.open_by_raw),
                ("step", bus.step, bus.step_by_raw),
                ("close", bus.commit, bus.commit_by_raw),
            ];
            for (what, Percentiles { p50, p99 }, by_raw) in rows {
                write!(f, "\n{:<8}{what:<10}{p50:>10}{p99:>10}{by_raw:>12.2}", bus.bus)?;
            }
            write!(f, "\n{:<8}round trips per open: {}", bus.bus, bus.round_trips_per_open)?;
            if let Some(permille) = bus.traced_permille {
                let (exported, lost) = (bus.spans_exported, bus.spans_lost);
                write!(f, "\n{:<8}{permille} of 1000 traced: {exported} spans exported, {lost} lost", bus.bus)?;
            }
        }
        for SkippedBus { bus, why } in &self.skipped {
            write!(f, "\n{bus:<8}skipped: {why}")?;
        }
        Ok(())
    }
}

const NO_SERVER: &str = "no nats-server in $NATS_SERVER, .tools/nats/bin or $PATH; --nats-url names one that runs";
/// Full pages of one request.
const PAGES: u32 = 16;
/// About what an `open` of that many pages weighs.
const RAW_BYTES: usize = 512;
const RAW_DEADLINE: Duration = Duration::from_secs(5);
const RAW_QUEUE: usize = 1_024;
const COUNTED_OPENS: usize = 21;
/// Requests of a thousand that are traced, where spans are exported at all.
const TRACED_PERMILLE: [u32; 2] = [10, 1_000];
const QUIET: Duration = Duration::from_millis(5);
