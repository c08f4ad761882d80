//! `hicached engine`: the synthetic engine as a process of its own.
//!
//! Numbers of requests come on standard input, one a line; each request that is over is one JSON object a line on
//! standard output, behind a line that begins with `ready`. When the input ends, the rest is served and the last line
//! holds the totals.

use std::io::BufRead;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use clap::Args;
use futures_util::stream;
use hicached_client::engine::{Ended, Engine, Progress};
use tokio::sync::mpsc;

use super::{ConfigArgs, Failure, print, print_json, runtime};
use crate::config::{BusKind, Checked};
use crate::replay::lines::{EndedLine, Totals};
use crate::replay::load::Load;
use crate::replay::numbered::Numbered;
use crate::replay::signals::Signals;
use crate::replay::trace::Trace;
use crate::shell::{Clock, connect};
use crate::telemetry::{Origin, Telemetry};

/// Arguments of `engine`.
#[derive(Debug, Args)]
pub(super) struct EngineArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// A trace whose requests the numbers stand for; without one they stand for the demo's
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Where the demo's workload, and who is aborted, grow from
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Requests of the demo after which they begin again; a trace begins again at its end
    #[arg(long, default_value_t = u64::MAX, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    lap: u64,
    /// Requests in flight
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    concurrency: u32,
    /// Most tokens of one prefill chunk
    #[arg(long, default_value_t = 1024, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    chunk_tokens: u32,
    /// Requests of a thousand that are aborted on the way
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = clap::value_parser!(u32).range(..=1000))]
    abort_permille: u32,
}

pub(super) fn run(args: &EngineArgs) -> Result<(), Failure> {
    let mut faults = Vec::new();
    let trace = args.trace.as_ref().map(|path| Trace::open(path)).transpose();
    let trace = trace.unwrap_or_else(|error| {
        faults.push(format!("--trace: {error}"));
        None
    });
    let group = match args.config.checked() {
        Ok(group) if group.config.bus.kind == BusKind::Memory => {
            faults.push("bus.kind is memory: it reaches nobody outside a process, make it nats".to_owned());
            None
        }
        Ok(group) => Some(group),
        Err(Failure::Usage(why)) => {
            faults.push(why);
            None
        }
        Err(other) => return Err(other),
    };
    let Some(group) = group.filter(|_| faults.is_empty()) else { return Err(Failure::Usage(faults.join("\n"))) };
    let requests = match trace {
        Some(trace) => Numbered::trace(trace, &group.manifest),
        None => Numbered::demo(args.seed, args.lap, &group.manifest),
    };
    let load = Load {
        sessions: args.concurrency as usize,
        chunk_tokens: args.chunk_tokens,
        abort_permille: args.abort_permille,
        seed: args.seed,
    };
    runtime()?.block_on(serve(&group, load, requests))
}

async fn serve(group: &Checked, load: Load, mut requests: Numbered) -> Result<(), Failure> {
    let mut signals = Signals::heard().map_err(|error| Failure::Fault(format!("signals: {error}")))?;
    let bus = connect(&group.config.bus).await.map_err(|error| Failure::Usage(error.to_string()))?;
    let origin = Origin {
        group: group.config.group.name.clone(),
        actors: vec!["engine".to_owned()],
        bus: group.config.bus.kind,
    };
    let telemetry = Telemetry::start(&group.config.trace, origin, Clock::start());
    let telemetry = telemetry.map_err(|error| Failure::Usage(error.to_string()))?;
    telemetry.join(&bus).await;
    let started = tokio::select! {
        engine = Engine::start(bus.clone(), load.engine_config(group, telemetry.spans())) => engine,
        signal = signals.next() => return Err(Failure::Interrupted(signal)),
    };
    let mut engine = started.map_err(|error| Failure::Fault(format!("the engine cannot join: {error}")))?;
    print(&format!("ready engine of {}", group.config.group.name))?;
    let refused = Arc::new(Mutex::new(None));
    let numbers = numbers_of_input(refused.clone());
    let prompts = stream::unfold((numbers, &mut requests), async |(mut numbers, requests)| {
        let number: usize = numbers.recv().await?;
        Some(((number, requests.prompt(number as u64)), (numbers, requests)))
    });
    let mut unwritten = None;
    let over = |ended: Ended, now: Progress| {
        if let Err(failure) = print_json(&EndedLine::of(ended, now)) {
            unwritten.get_or_insert(failure);
        }
    };
    let served = tokio::select! {
        report = engine.run_numbered(prompts, over) => Ok(report),
        signal = signals.next() => Err(Failure::Interrupted(signal)),
    };
    engine.stop().await;
    // Whoever feeds this process need not wait for what is still exported.
    let told = served.and_then(|report| print_json(&Totals::of(report)));
    telemetry.stop().await;
    bus.close();
    told?;
    match (unwritten, refused.lock().unwrap_or_else(PoisonError::into_inner).take()) {
        (Some(failure), _) => Err(failure),
        (None, Some(refused)) => Err(Failure::Usage(refused)),
        (None, None) => Ok(()),
    }
}

/// The numbers on standard input, read by a thread that ends with the process: reading cannot be given up. What is
/// no number ends them and is left in `refused`.
fn numbers_of_input(refused: Arc<Mutex<Option<String>>>) -> mpsc::Receiver<usize> {
    let (numbers, inbox) = mpsc::channel(1);
    std::thread::spawn(move || {
        for (at, line) in (1u64..).zip(std::io::stdin().lock().lines()) {
            let number = match line {
                Ok(line) => line.trim().parse().map_err(|_| {
                    let shown: String = line.chars().take(64).collect();
                    format!("standard input, line {at}: {shown:?} is no number of a request")
                }),
                Err(error) => Err(format!("standard input, line {at}: {error}")),
            };
            match number {
                // Nobody takes numbers any more: the engine ends.
                Ok(number) if numbers.blocking_send(number).is_err() => return,
                Ok(_) => {}
                Err(why) => {
                    *refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
                    return;
                }
            }
        }
    });
    inbox
}
