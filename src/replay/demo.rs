//! The demo: a workload of our own on a small group, so that everything a cache can do happens within a minute.

use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;
use futures_util::stream;
use hicached_client::engine::Verify;

use super::load::Load;
use super::options::{BusArgs, DecodeArgs, Fixed, built_in, components};
use super::outcome::Outcome;
use super::run::{Run, RunError};
use super::workload::Workload;
use crate::config::{Checked, Config, ConfigRefused};

/// Arguments of `hicached demo`.
#[derive(Clone, Debug, Args)]
pub struct DemoArgs {
    /// What carries it.
    #[command(flatten)]
    pub on: BusArgs,
    /// How requests go over to its decode group.
    #[command(flatten)]
    pub decode: DecodeArgs,
    /// Requests to serve
    #[arg(long, default_value_t = 1500, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub requests: u32,
    /// Where the workload grows from
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
    /// End with one JSON object
    #[arg(long)]
    pub json: bool,
}

impl DemoArgs {
    /// The group of the demo that computes prompts and the one that decodes, on the bus these arguments name.
    ///
    /// # Errors
    /// Every fault of the arguments at once.
    pub fn groups(&self) -> Result<(Checked, Checked), ConfigRefused> {
        let mut faults = Vec::new();
        let mut config = match self.on.layered(&FIXED, &mut faults) {
            Ok(config) => demo_group(config, false),
            Err(refused) => {
                faults.extend(refused.faults);
                return Err(ConfigRefused { faults });
            }
        };
        self.on.write(&mut config, &mut faults);
        let decode = self.decode.group(&mut config, DECODE_L1_PAGES, DECODE_L2_PAGES);
        match (config.checked(), decode.checked()) {
            (Ok(prefill), Ok(decode)) if faults.is_empty() => Ok((prefill, decode)),
            (prefill, decode) => {
                faults.extend([prefill, decode].into_iter().filter_map(Result::err).flat_map(|refused| refused.faults));
                Err(ConfigRefused { faults })
            }
        }
    }
}

/// Four ranks with target and draft. The device holds a few requests, the host less than the conversations that are
/// under way, and more requests are in flight than the device can hold at their longest.
pub fn demo_group(mut config: Config, control_only: bool) -> Config {
    config.group.cp_size = 4;
    config.group.shared_kv = true;
    config.group.chunk_tokens_max = CHUNK_TOKENS;
    config.model.components = components(config.group.page_tokens, control_only);
    config.l1.pages = L1_PAGES;
    config.l2.pages = L2_PAGES;
    config.group.request_pages_max = Workload::longest_pages(config.group.page_tokens);
    config
}

/// Serves the workload without bytes until `stop` is set: something to measure beside.
///
/// # Errors
/// [`RunError`].
pub async fn until(stop: &AtomicBool) -> Result<Outcome, RunError> {
    let group = demo_group(built_in(&[])?, true).checked()?;
    let run = Run::demo(&group, None, 1);
    let workload = Workload::new(1, &group.manifest).take_while(|_| !stop.load(Ordering::Relaxed));
    run.run(stream::iter(workload), None, |_| ()).await
}

impl<'a> Run<'a> {
    /// The demo of `seed` on `group`, handed over to `decode` if that is there.
    pub fn demo(group: &'a Checked, decode: Option<&'a Checked>, seed: u64) -> Self {
        // Every request of the demo goes over, so none may be aborted before.
        let aborts = if decode.is_some() { 0 } else { ABORT_PERMILLE };
        Self { name: "demo".to_owned(), group, decode, load: Load { abort_permille: aborts, ..demo_load(seed) } }
    }
}

/// What the engine of the demo of `seed` does.
pub fn demo_load(seed: u64) -> Load {
    let (sessions, chunk_tokens, abort_permille) = (SESSIONS, CHUNK_TOKENS, ABORT_PERMILLE);
    Load { sessions, chunk_tokens, abort_permille, verify: Verify::Hits, seed }
}

/// Keys that the demo sets itself.
const FIXED: [Fixed; 5] = [
    ("group.cp_size", "the demo has four ranks"),
    ("group.shared_kv", "the demo has four ranks"),
    ("group.chunk_tokens_max", "the demo has chunks of its own"),
    ("l1.pages", "the demo has tiers of its own, replay has --l1-pages"),
    ("l2.pages", "the demo has tiers of its own, replay has --l2-pages"),
];
/// Tokens of one prefill chunk.
const CHUNK_TOKENS: u32 = 1_024;
/// Requests in flight.
const SESSIONS: usize = 8;
/// Requests of a thousand that are aborted on the way.
const ABORT_PERMILLE: u32 = 20;
const L1_PAGES: u32 = 320;
const L2_PAGES: u32 = 640;
/// The decode group holds the requests in flight and little more.
pub const DECODE_L1_PAGES: u32 = 320;
/// And so much on its host.
pub const DECODE_L2_PAGES: u32 = 320;
