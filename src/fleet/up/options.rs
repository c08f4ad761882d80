//! What `hicached up` is asked to do, checked as a whole before anything starts.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use hicached_client::engine::Verify;

use crate::config::{BusKind, Checked, Config, ConfigRefused};
use crate::replay::demo::{DECODE_L1_PAGES, DECODE_L2_PAGES, demo_group, demo_load};
use crate::replay::load::Load;
use crate::replay::options::{BusArgs, DecodeArgs, Fixed, Order, ReplayArgs};

/// Arguments of `up`.
#[derive(Clone, Debug, Args)]
pub struct UpArgs {
    /// Ranks of the group that computes prompts, each a process
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    pub ranks: u8,
    /// Requests to serve; all of the trace, or 500 of the demo, when not given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub requests: Option<u64>,
    /// Where the demo's workload, and who is killed when, grow from
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
    /// A trace to serve in place of the demo's workload, again from its start when it ends
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Tokens of a page; 64 when not given
    #[arg(long, value_name = "N", requires = "trace")]
    pub page_tokens: Option<u32>,
    /// Usable device pages of the group
    #[arg(long, value_name = "N")]
    pub l1_pages: Option<u32>,
    /// Host pages of each group
    #[arg(long, value_name = "N")]
    pub l2_pages: Option<u32>,
    /// Usable device pages of a decode group that every request is handed over to, 0 for none; 320 with the demo's
    /// workload and none with a trace when not given
    #[arg(long, value_name = "N")]
    pub decode_pages: Option<u32>,
    /// How they are.
    #[command(flatten)]
    pub decode: DecodeArgs,
    /// Requests in flight; 8 when not given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub concurrency: Option<u32>,
    /// Kills of processes (SIGKILL) while requests are in flight
    #[arg(long, default_value_t = 0, value_name = "K", value_parser = clap::value_parser!(u32).range(..=100_000))]
    pub kills: u32,
    /// What is killed, each as often as the others; control,rank,engine,broker when not given
    #[arg(long, value_enum, value_delimiter = ',', value_name = "KINDS")]
    pub kill: Vec<Kind>,
    /// Serve the same requests once more without kills, and tell the difference in hits
    #[arg(long)]
    pub compare: bool,
    /// Go on for so long, and tell how memory grew
    #[arg(long, value_name = "SECONDS", conflicts_with = "requests", value_parser = clap::value_parser!(u64).range(3..=86_400))]
    pub soak: Option<u64>,
    /// Percent by which the memory of a process may grow from the middle third of the run to the last
    #[arg(long, value_name = "PERCENT", allow_negative_numbers = true)]
    pub growth_max: Option<f64>,
    /// A folder in which the logs of the processes stay
    #[arg(long, value_name = "FOLDER")]
    pub logs: Option<PathBuf>,
    /// A key of the configuration that no argument sets, such as cache.write_policy; may be repeated
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    pub set: Vec<String>,
    /// End with one JSON object
    #[arg(long)]
    pub json: bool,
}

/// A kind of process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum)]
pub enum Kind {
    /// The process with the control group, of either group.
    Control,
    /// One of the ranks, of either group.
    Rank,
    /// The engine.
    Engine,
    /// The NATS server.
    Broker,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Control, Self::Rank, Self::Engine, Self::Broker];

    /// As it is written.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Control => "control",
            Self::Rank => "rank",
            Self::Engine => "engine",
            Self::Broker => "broker",
        }
    }
}

/// A run that can be started.
#[derive(Clone, Debug)]
pub struct Job {
    /// What the figures are called.
    pub name: String,
    /// The group, on a NATS bus whose address is not known yet.
    pub group: Checked,
    /// The group that every request is handed over to, on the same bus, where there is one.
    pub decode: Option<Checked>,
    /// What the engine does.
    pub load: Load,
    /// The trace, when it is not the demo.
    pub trace: Option<PathBuf>,
    /// Requests after which they begin again.
    pub lap: u64,
    /// Requests to serve at least.
    pub requests: u64,
    /// Seconds to go on for in place of a number of requests.
    pub soak_s: Option<u64>,
    /// Where chance grows from.
    pub seed: u64,
    /// How often something is killed.
    pub kills: u32,
    /// What.
    pub kinds: Vec<Kind>,
    /// Percent by which the memory of a process may grow.
    pub growth_max: Option<f64>,
    /// Where logs stay; else they go with the run.
    pub logs: Option<PathBuf>,
}

impl UpArgs {
    /// Checks the arguments, the group and the trace.
    ///
    /// # Errors
    /// Every fault at once.
    pub fn job(&self) -> Result<Job, ConfigRefused> {
        let mut faults = Vec::new();
        if self.kills == 0 && self.compare {
            faults.push("--compare is given without --kills: there is nothing to compare with".to_owned());
        }
        if self.kills == 0 && !self.kill.is_empty() {
            faults.push("--kill is given without --kills: say how often, with --kills 1 or more".to_owned());
        }
        if self.growth_max.is_some() && self.soak.is_none() {
            faults.push("--growth-max is given without --soak: say for how long memory is watched".to_owned());
        }
        if let Some(percent) = self.growth_max.filter(|percent| !(0.0..=1_000.0).contains(percent)) {
            faults.push(format!("--growth-max is {percent}: make it 0..=1000"));
        }
        if let Some(logs) = self.logs.as_ref().filter(|logs| !logs.is_dir()) {
            faults.push(format!("--logs is {}: there is no such folder, make it", logs.display()));
        }
        let config = self.bus().layered(&FIXED, &mut faults);
        let job = match (&self.trace, config) {
            (Some(trace), Ok(_)) => self.trace_job(trace),
            (None, Ok(config)) => self.demo_job(config),
            (_, Err(refused)) => Err(refused),
        };
        match job {
            Ok(job) if faults.is_empty() => Ok(job),
            Ok(_) => Err(ConfigRefused { faults }),
            Err(refused) => Err(ConfigRefused { faults: faults.into_iter().chain(refused.faults).collect() }),
        }
    }

    fn trace_job(&self, trace: &std::path::Path) -> Result<Job, ConfigRefused> {
        let args = ReplayArgs {
            trace: trace.into(),
            on: self.bus(),
            cp: self.ranks,
            l1_pages: self.l1_pages.unwrap_or(4_096),
            l2_pages: self.l2_pages.unwrap_or(16_384),
            page_tokens: self.page_tokens.unwrap_or(64),
            order: Order::File,
            concurrency: self.concurrency.unwrap_or(CONCURRENCY),
            decode_pages: self.decode_pages.unwrap_or(0),
            decode: self.decode.clone(),
            free_room: "1,2".to_owned(),
            control_only: false,
            json: false,
        };
        let job = args.job()?;
        let lap = job.trace.requests.len() as u64;
        let load = Load {
            sessions: args.concurrency as usize,
            chunk_tokens: job.chunk_tokens,
            abort_permille: 0,
            verify: Verify::Hits,
            seed: self.seed,
        };
        let name = trace.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let of_trace = Job::of(name, job.group, job.decode, load);
        Ok(self.with(Job { trace: Some(trace.into()), lap, ..of_trace }, lap))
    }

    fn demo_job(&self, config: Config) -> Result<Job, ConfigRefused> {
        let mut config = demo_group(config, false);
        let requests = self.requests.unwrap_or(if self.soak.is_some() { LAP_MAX } else { DEMO_REQUESTS });
        let lap = if self.soak.is_some() || self.kills > 0 { requests.min(LAP_MAX) } else { u64::MAX };
        // Where something is killed nothing may be given up for want of room: what is lost would not be seen.
        let roomy = u32::try_from(lap.saturating_mul(REQUEST_PAGES)).unwrap_or(u32::MAX);
        let ranks = u32::from(self.ranks);
        let whole_lanes = |pages: u32| pages.checked_next_multiple_of(ranks).unwrap_or(pages);
        config.bus.kind = BusKind::Nats;
        config.group.cp_size = self.ranks;
        config.group.shared_kv = self.ranks > 1;
        config.l1.pages = self.l1_pages.unwrap_or_else(|| whole_lanes(config.l1.pages));
        let l2_pages = |usual| self.l2_pages.unwrap_or(if self.kills > 0 { roomy } else { usual });
        let usual = config.l2.pages;
        config.l2.pages = self.l2_pages.unwrap_or_else(|| whole_lanes(l2_pages(usual)));
        let decode_pages = self.decode_pages.unwrap_or(DECODE_L1_PAGES);
        let longest_pages = config.group.request_pages_max;
        let small = (1..longest_pages).contains(&decode_pages).then(|| {
            format!("--decode-pages is {decode_pages}: the longest request has {longest_pages} pages, give more")
        });
        let decode =
            (decode_pages > 0).then(|| self.decode.group(&mut config, decode_pages, l2_pages(DECODE_L2_PAGES)));
        let mut load = demo_load(self.seed);
        load.sessions = self.concurrency.map_or(load.sessions, |sessions| sessions as usize);
        let (group, decode) = match (config.checked(), decode.map(|decode| decode.checked()).transpose()) {
            (Ok(group), Ok(decode)) if small.is_none() => (group, decode),
            (group, decode) => {
                let refused = [group.err(), decode.err()].into_iter().flatten();
                let faults = small.into_iter().chain(refused.flat_map(|refused| refused.faults));
                return Err(ConfigRefused { faults: faults.collect() });
            }
        };
        Ok(self.with(Job { lap, ..Job::of("up".to_owned(), group, decode, load) }, requests))
    }

    fn with(&self, job: Job, requests: u64) -> Job {
        // Whatever is written late, into a page that somebody else has by now, is seen before that page goes.
        let verify = if self.kills > 0 { Verify::Everything } else { job.load.verify };
        Job {
            load: Load { verify, ..job.load },
            requests: self.requests.unwrap_or(requests),
            soak_s: self.soak,
            seed: self.seed,
            kills: self.kills,
            kinds: if self.kill.is_empty() { Kind::ALL.to_vec() } else { self.kill.clone() },
            growth_max: self.growth_max,
            logs: self.logs.clone(),
            ..job
        }
    }

    fn bus(&self) -> BusArgs {
        BusArgs { bus: BusKind::Nats, nats_url: None, set: self.set.clone() }
    }
}

impl Job {
    fn of(name: String, group: Checked, decode: Option<Checked>, load: Load) -> Self {
        let (requests, lap, seed, kills) = (0, 0, 0, 0);
        Self {
            name,
            group,
            decode,
            load,
            trace: None,
            lap,
            requests,
            soak_s: None,
            seed,
            kills,
            kinds: Vec::new(),
            growth_max: None,
            logs: None,
        }
    }

    /// The same requests without kills.
    pub fn undisturbed(&self, requests: u64) -> Self {
        Self { requests, kills: 0, ..self.clone() }
    }
}

/// Keys that `up` or its arguments set.
const FIXED: [Fixed; 9] = [
    ("bus.kind", "the processes meet on a broker of their own"),
    ("bus.url", "the processes meet on a broker of their own"),
    ("actors.run", "each process has its own"),
    ("group.cp_size", "use --ranks"),
    ("group.shared_kv", "it follows from --ranks"),
    ("group.page_tokens", "use --page-tokens"),
    ("group.chunk_tokens_max", "chunks follow from the requests"),
    ("l1.pages", "use --l1-pages"),
    ("l2.pages", "use --l2-pages"),
];
const CONCURRENCY: u32 = 8;
const DEMO_REQUESTS: u64 = 500;
/// Requests of the demo after which a run that goes on for long begins again.
const LAP_MAX: u64 = 2_000;
/// More new pages than a request of the demo has on average (about ten).
const REQUEST_PAGES: u64 = 20;
