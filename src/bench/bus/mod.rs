//! `hicached bench bus`: what an engine waits for, against one raw request and its reply of the same run.
//!
//! Wake-ups between threads cost more than any message here and change from minute to minute, so only ratios to the
//! raw figure of the same run mean anything. Runs of both are interleaved; every figure is the median of the runs.

mod place;
mod raw;
mod report;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use futures_util::stream;
use hicached_actors::calls::draw;
use hicached_actors::protocol::{Key, Keys, Open};
use hicached_client::bus::Bus;
use hicached_client::client::Client;
use hicached_client::engine::{Engine, Prompt, Verify};
use hicached_client::tokens::PagePlan;

use self::place::Place;
use self::raw::Echo;
pub use self::report::{BusFigures, Report, SkippedBus};
use self::report::{Run, median};
use super::error::{BenchError, clean};
use super::processes::Processes;
use crate::bus::server::{ServerError, nats_server};
use crate::config::{BusKind, Checked, ConfigRefused};
use crate::replay::folder::Folder;
use crate::replay::load::Load;
use crate::replay::options::{built_in, components};
use crate::replay::outcome::Percentiles;
use crate::replay::signals::Signals;
use crate::shell::connect;

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
    /// Ranks of the group
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=8))]
    pub ranks: u8,
    /// A NATS server to use; else one is started, if one is found
    #[arg(long, value_name = "URL")]
    pub nats_url: Option<String>,
    /// A collector that takes OTLP over gRPC: everything once more with 1 % and with all requests exported to it
    #[arg(long, value_name = "URL")]
    pub collector: Option<String>,
}

impl BusBenchArgs {
    /// Runs over all buses and places.
    pub fn runs_in_all(&self) -> u64 {
        let each = u64::from(self.runs) * self.traced().count() as u64;
        each * (self.nats_places().len() as u64 + 1)
    }

    fn nats_places(&self) -> [Place; 2] {
        [Place::Here(BusKind::Nats), Place::Apart { ranks: self.ranks }]
    }

    /// Export off, and where there is a collector some and all requests exported.
    fn traced(&self) -> impl Iterator<Item = Option<u32>> {
        std::iter::once(None).chain(self.collector.iter().flat_map(|_| TRACED_PERMILLE).map(Some))
    }
}

/// What carries the messages over NATS.
enum Broker {
    /// One that somebody runs, by its address.
    Given(String),
    /// A process of each measurement, of this program.
    Own(PathBuf),
}

/// Measures both buses; over NATS only when a server is given or found, with all actors in this process and with each
/// in its own. `progress` is called after each run.
///
/// # Errors
/// [`BenchError`]; no process is left behind.
pub async fn run(args: &BusBenchArgs, mut progress: impl FnMut()) -> Result<Report, BenchError> {
    let mut signals = Signals::heard().map_err(BenchError::Signals)?;
    let (mut places, mut skipped) = (vec![Place::Here(BusKind::Memory)], Vec::new());
    let broker = match (&args.nats_url, nats_server(Path::new("."))) {
        (Some(url), _) => Some(Broker::Given(url.clone())),
        (None, Ok(program)) => Some(Broker::Own(program)),
        (None, Err(ServerError::NotFound)) => {
            skipped.push(SkippedBus { bus: BusKind::Nats.name(), why: NO_SERVER });
            None
        }
        (None, Err(error)) => return Err(error.into()),
    };
    places.extend(broker.iter().flat_map(|_| args.nats_places()));
    let mut buses = Vec::new();
    for place in places {
        for traced_permille in args.traced() {
            let bench = Bench { args, place, traced_permille, broker: broker.as_ref() };
            buses.push(bench.measure(&mut signals, &mut progress).await?);
        }
    }
    let BusBenchArgs { requests, runs, ranks, .. } = *args;
    Ok(Report { requests, runs, pages: PAGES, ranks, buses, skipped })
}

/// One bus, one place of the actors, and how much of it is exported.
struct Bench<'a> {
    args: &'a BusBenchArgs,
    place: Place,
    traced_permille: Option<u32>,
    broker: Option<&'a Broker>,
}

impl Bench<'_> {
    async fn measure(&self, signals: &mut Signals, progress: &mut impl FnMut()) -> Result<BusFigures, BenchError> {
        let mut group = self.group()?;
        let _folder = Folder::create(&mut group)?;
        let program = match self.broker.filter(|_| self.place.bus() == BusKind::Nats) {
            Some(Broker::Own(program)) => Some(program.as_path()),
            Some(Broker::Given(_)) | None => None,
        };
        let processes = Processes::new(&mut group, program, &self.place.hosted())?;
        processes.through(signals, async |processes| self.measured(&group, processes, progress).await).await
    }

    async fn measured(
        &self,
        group: &Checked,
        processes: &mut Processes,
        progress: &mut impl FnMut(),
    ) -> Result<BusFigures, BenchError> {
        processes.start_broker().await?;
        let bus = connect(&group.config.bus).await?;
        let beside = self.place.bus_beside(group, &bus).await?;
        let echo = Echo::start(beside.clone(), &group.config.group.name).await?;
        let actors = self.place.start(group, &bus, processes).await?;
        let load = Load { sessions: 1, chunk_tokens: u32::MAX, abort_permille: 0, verify: Verify::Hits, seed: 0 };
        let engine = load.engine_config(group, actors.telemetry().spans());
        let mut engine = Engine::start(bus.clone(), engine).await?;
        let mut made = Prompts { group, made: 0 };
        let measured = async {
            // One run to warm up; its figures do not count.
            self.one_run(&bus, &echo, &mut engine, &mut made).await?;
            let mut runs: Vec<Run> = Vec::new();
            for _ in 0..self.args.runs {
                runs.push(self.one_run(&bus, &echo, &mut engine, &mut made).await?);
                progress();
            }
            let round_trips = match self.place {
                Place::Here(_) => Some(count_round_trips(&*bus, engine.client(), &mut made).await?),
                Place::Apart { .. } => None,
            };
            let client = engine.client().clone();
            engine.stop().await;
            Ok((runs, round_trips, actors.stop(&client).await?))
        };
        let (runs, round_trips, spans) = processes.beside(measured).await?;
        drop(echo);
        beside.close();
        bus.close();
        Ok(BusFigures::of(self.place, self.traced_permille, &runs, round_trips, spans))
    }

    async fn one_run(
        &self,
        bus: &Arc<dyn Bus>,
        echo: &Echo,
        engine: &mut Engine,
        made: &mut Prompts<'_>,
    ) -> Result<Run, BenchError> {
        let raw = echo.ask(&**bus, self.args.requests).await?.into_iter().collect();
        let prompts: Vec<Prompt> = (0..self.args.requests).map(|_| made.prompt()).collect();
        let latencies = clean(engine.run(stream::iter(prompts), |_, _| ()).await)?.latencies;
        Ok([&raw, &latencies.open, &latencies.step, &latencies.commit].map(Percentiles::of))
    }

    /// Ranks without bytes and with room for everything, so that no request waits for an eviction.
    fn group(&self) -> Result<Checked, ConfigRefused> {
        let (mut config, args) = (built_in(&[])?, self.args);
        if let Some((collector, ratio_permille)) = args.collector.clone().zip(self.traced_permille) {
            (config.trace.endpoint, config.trace.ratio_permille) = (collector, ratio_permille);
        }
        // A prompt, and a part of one, for each of all runs.
        let pages = args.requests.saturating_mul(args.runs + 1).saturating_mul(PAGES + 1);
        let pages = pages.checked_next_multiple_of(u32::from(args.ranks)).unwrap_or(pages);
        (config.group.cp_size, config.group.shared_kv) = (args.ranks, args.ranks > 1);
        config.model.components = components(config.group.page_tokens, true);
        (config.bus.kind, config.l1.pages, config.l2.pages) = (self.place.bus(), pages, pages);
        if let (BusKind::Nats, Some(Broker::Given(url))) = (config.bus.kind, self.broker) {
            config.bus.url.clone_from(url);
        }
        config.checked()
    }
}

/// Frames that one `open` of uncached pages puts on the bus, by two. Heartbeats ride on the same bus: the median of
/// many opens has none in it.
async fn count_round_trips(bus: &dyn Bus, client: &Client, made: &mut Prompts<'_>) -> Result<f64, BenchError> {
    let mut frames = Vec::new();
    for _ in 0..COUNTED_OPENS {
        let prompt = made.prompt();
        let open = Open {
            tenant: prompt.tenant.clone(),
            salt: prompt.plan.salt,
            keys: Keys(prompt.plan.keys.to_vec()),
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

const NO_SERVER: &str = "no nats-server in $NATS_SERVER, .tools/nats/bin or $PATH; --nats-url names one that runs";
/// Full pages of one request.
const PAGES: u32 = 16;
const COUNTED_OPENS: usize = 21;
/// Requests of a thousand that are traced, where spans are exported at all.
const TRACED_PERMILLE: [u32; 2] = [10, 1_000];
const QUIET: Duration = Duration::from_millis(5);
