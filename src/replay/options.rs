//! What a replay is asked to do, checked as a whole before anything starts.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::trace::{Request, Trace};
use crate::config::{BusKind, Checked, ComponentConfig, Config, ConfigRefused, Layers, load, masked};

/// Arguments of `hicached replay`.
#[derive(Clone, Debug, Args)]
pub struct ReplayArgs {
    /// A trace, `.jsonl` or `.jsonl.gz`, its block size in the file name
    #[arg(long, value_name = "FILE")]
    pub trace: PathBuf,
    /// What carries it.
    #[command(flatten)]
    pub on: BusArgs,
    /// Ranks of the group
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub cp: u8,
    /// Usable device pages of the group
    #[arg(long, default_value_t = 4096, value_name = "N")]
    pub l1_pages: u32,
    /// Host pages of the group, 0 for no host tier
    #[arg(long, default_value_t = 16384, value_name = "N")]
    pub l2_pages: u32,
    /// Tokens of a page
    #[arg(long, default_value_t = 64, value_name = "N")]
    pub page_tokens: u32,
    /// Which request comes next
    #[arg(long, value_enum, default_value_t = Order::File)]
    pub order: Order,
    /// Requests in flight
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub concurrency: u32,
    /// Usable device pages of a decode group that every request is handed over to, 0 for none
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub decode_pages: u32,
    /// How they are.
    #[command(flatten)]
    pub decode: DecodeArgs,
    /// Room kept free: off, or LOW,HIGH in percent
    #[arg(long, default_value = "1,2", value_name = "off|LOW,HIGH")]
    pub free_room: String,
    /// Decide everything, move no bytes
    #[arg(long)]
    pub control_only: bool,
    /// End with one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Which bus carries a run.
#[derive(Clone, Debug, Args)]
pub struct BusArgs {
    /// What carries the messages
    #[arg(long, value_enum, default_value_t = BusKind::Memory)]
    pub bus: BusKind,
    /// Where NATS is; 127.0.0.1:4222 when not given
    #[arg(long, value_name = "URL")]
    pub nats_url: Option<String>,
    /// A key of the configuration that no argument sets, such as cache.write_policy; may be repeated
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    pub set: Vec<String>,
}

/// How requests go over to a decode group.
#[derive(Clone, Debug, Args)]
pub struct DecodeArgs {
    /// What carries the pages of a handover
    #[arg(long, default_value = "tcp", value_name = "BACKEND")]
    pub transfer: String,
}

impl DecodeArgs {
    /// The group of one rank that `prefill` hands over to, which is told so, with tiers of so many pages.
    pub fn group(&self, prefill: &mut Config, l1_pages: u32, l2_pages: u32) -> Config {
        prefill.transfer.backend.clone_from(&self.transfer);
        let mut decode = prefill.clone();
        decode.group.name = format!("{}-decode", prefill.group.name);
        prefill.transfer.to = vec![decode.group.name.clone()];
        (decode.group.cp_size, decode.group.shared_kv) = (1, false);
        (decode.l1.pages, decode.l2.pages) = (l1_pages, l2_pages);
        decode
    }
}

/// The order of the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Order {
    /// As they stand in the file.
    File,
    /// By timestamp, those of one instant as they stand in the file.
    Arrival,
}

/// A replay that can be run.
#[derive(Debug)]
pub struct Job {
    /// The group.
    pub group: Checked,
    /// The group that decodes, if there is one.
    pub decode: Option<Checked>,
    /// The requests.
    pub trace: Trace,
    /// Numbers of requests in the order in which they are sent.
    pub sent: Vec<usize>,
    /// Most tokens of one prefill chunk.
    pub chunk_tokens: u32,
}

impl ReplayArgs {
    /// Reads the trace and checks it against the group.
    ///
    /// # Errors
    /// Every fault of the arguments and of the group at once, and the first of the trace.
    pub fn job(&self) -> Result<Job, ConfigRefused> {
        let mut faults = Vec::new();
        let trace = Trace::open(&self.trace).map_err(|error| faults.push(format!("--trace: {error}"))).ok();
        if !(1..=CONCURRENCY_MAX).contains(&self.concurrency) {
            faults.push(format!("--concurrency is {}: make it 1..={CONCURRENCY_MAX}", self.concurrency));
        }
        let longest_tokens = trace.iter().flat_map(|trace| &trace.requests).map(|request| request.input_length).max();
        let longest_pages = longest_tokens.unwrap_or(0).div_ceil(u64::from(self.page_tokens.max(1)));
        let mut config = match self.config(longest_pages, &mut faults) {
            Ok(config) => config,
            Err(refused) => {
                faults.extend(refused.faults);
                return Err(ConfigRefused { faults });
            }
        };
        if longest_pages > u64::from(self.l1_pages) {
            let (have, need) = (self.l1_pages, longest_pages.next_multiple_of(self.cp.max(1).into()));
            faults.push(format!(
                "l1.pages is {have}: the longest request of the trace has {longest_pages} pages, make it {need} or more"
            ));
        }
        if self.control_only && self.decode_pages > 0 {
            faults
                .push("--control-only with --decode-pages: a handover is of bytes, leave one of them away".to_owned());
        }
        let decode = (self.decode_pages > 0).then(|| self.decode.group(&mut config, self.decode_pages, self.l2_pages));
        if longest_pages > u64::from(self.decode_pages) && self.decode_pages > 0 {
            let have = self.decode_pages;
            faults.push(format!("--decode-pages is {have}: the longest request has {longest_pages} pages, give more"));
        }
        let group = config.checked().map_err(|refused| faults.extend(refused.faults)).ok();
        let decode = decode.map(|decode| decode.checked()).transpose();
        let decode = decode.map_err(|refused| faults.extend(refused.faults)).ok().flatten();
        match (group, trace) {
            (Some(group), Some(trace)) if faults.is_empty() => {
                let sent = order(&trace.requests, self.order);
                let chunk_tokens = self.chunk_tokens(longest_pages, group.config.group.chunk_tokens_max);
                Ok(Job { group, decode, trace, sent, chunk_tokens })
            }
            _ => Err(ConfigRefused { faults }),
        }
    }

    /// A prompt comes in chunks where all requests in flight find room at their longest. Elsewhere, and where the
    /// stated semantics want one reservation per request, it is one chunk: requests that hold some pages while they
    /// wait for others would only push each other out.
    fn chunk_tokens(&self, longest_pages: u64, most: u32) -> u32 {
        let is_roomy = longest_pages.saturating_mul(self.concurrency.into()) <= u64::from(self.l1_pages / 2);
        if is_roomy && !self.control_only { most } else { u32::MAX }
    }

    fn config(&self, longest_pages: u64, faults: &mut Vec<String>) -> Result<Config, ConfigRefused> {
        let mut config = self.on.layered(&FIXED, faults)?;
        self.on.write(&mut config, faults);
        config.group.cp_size = self.cp;
        config.group.shared_kv = self.cp > 1;
        config.group.page_tokens = self.page_tokens;
        config.group.compute_tokens_min = u32::from(!self.control_only);
        config.group.chunk_tokens_max = config.group.chunk_tokens_max.max(self.page_tokens);
        config.group.request_pages_max = u32::try_from(longest_pages).unwrap_or(u32::MAX).max(1);
        config.model.components = components(self.page_tokens, self.control_only);
        config.l1.pages = self.l1_pages;
        config.l2.pages = self.l2_pages;
        config.l1.free_room = self.free_room.clone();
        config.l2.free_room = self.free_room.clone();
        Ok(config)
    }
}

impl BusArgs {
    /// The defaults with the environment and `set` above them, as [`built_in`]. Keys of `fixed` that one of them
    /// names are added to the faults: a value that has no effect is never taken.
    ///
    /// # Errors
    /// What cannot be read.
    pub fn layered(&self, fixed: &[Fixed], faults: &mut Vec<String>) -> Result<Config, ConfigRefused> {
        let layers = Layers { set: self.set.clone(), ..Layers::default() }.with_environment();
        for (said, named) in layers.named() {
            let names =
                |key: &str| named.strip_prefix(key).is_some_and(|rest| rest.is_empty() || rest.starts_with('['));
            if let Some((key, instead)) = fixed.iter().chain(&FIXED_EVERYWHERE).find(|(key, _)| names(key)) {
                faults.push(format!("{said}: {key} is fixed here, {instead}"));
            }
        }
        of_a_run(&layers)
    }

    /// Writes the bus into `config`.
    pub(super) fn write(&self, config: &mut Config, faults: &mut Vec<String>) {
        config.bus.kind = self.bus;
        if let Some(url) = &self.nats_url {
            if self.bus == BusKind::Memory {
                faults.push(format!("--nats-url is {}: give --bus nats with it, or leave it out", masked(url)));
            }
            config.bus.url = if url.contains("://") { url.clone() } else { format!("nats://{url}") };
        }
    }
}

/// The defaults with `set` above them, under a name that no other run on the same broker has.
///
/// # Errors
/// What `set` says cannot be read.
pub fn built_in(set: &[String]) -> Result<Config, ConfigRefused> {
    of_a_run(&Layers { set: set.to_vec(), ..Layers::default() })
}

fn of_a_run(layers: &Layers) -> Result<Config, ConfigRefused> {
    let mut config = load(layers)?;
    config.group.name = format!("run-{}", uuid::Uuid::new_v4().simple());
    Ok(config)
}

/// Components small enough that bytes cost little and large enough that a wrong one is seen: all four where pages
/// have 64 tokens, with a layer that has no index; without bytes when only decisions are wanted.
pub fn components(page_tokens: u32, control_only: bool) -> Vec<ComponentConfig> {
    let row = |name: &str, page_bytes: &[u32]| ComponentConfig {
        name: name.to_owned(),
        dtype: "bytes".to_owned(),
        layers: None,
        page_bytes: page_bytes.iter().map(|bytes| if control_only { 0 } else { *bytes }).collect(),
    };
    let index = page_tokens == 64;
    let all = [
        Some(row("target.kv", &[128, 128, 128])),
        index.then(|| row("target.index", &[64, 0, 64])),
        Some(row("draft.kv", &[128])),
        index.then(|| row("draft.index", &[64])),
    ];
    all.into_iter().flatten().collect()
}

/// A key that a command sets itself, and what to do in place of setting it.
pub type Fixed = (&'static str, &'static str);

/// Keys that no run takes from elsewhere.
const FIXED_EVERYWHERE: [Fixed; 8] = [
    ("group.name", "every run has a name of its own"),
    ("actors.run", "a run hosts all of its group"),
    ("group.request_pages_max", "it follows from the longest request"),
    ("model.components", "pages of a run are miniature"),
    ("bus.kind", "use --bus"),
    ("bus.url", "use --nats-url"),
    ("transfer.backend", "use --transfer"),
    ("transfer.to", "a run has one decode group"),
];

/// Keys that the arguments of a replay set.
const FIXED: [Fixed; 8] = [
    ("group.cp_size", "use --cp"),
    ("group.shared_kv", "it follows from --cp"),
    ("group.page_tokens", "use --page-tokens"),
    ("group.compute_tokens_min", "it follows from --control-only"),
    ("l1.pages", "use --l1-pages"),
    ("l2.pages", "use --l2-pages"),
    ("l1.free_room", "use --free-room"),
    ("l2.free_room", "use --free-room"),
];

fn order(requests: &[Request], order: Order) -> Vec<usize> {
    let mut sent: Vec<usize> = (0..requests.len()).collect();
    match order {
        Order::File => {}
        Order::Arrival => sent.sort_by_key(|number| requests[*number].timestamp_ms),
    }
    sent
}

/// More sessions than this one engine does not have.
const CONCURRENCY_MAX: u32 = 1_024;
