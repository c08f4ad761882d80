//! `hicached engine`: the synthetic engine as a process of its own, or two that hand every request over.
//!
//! Numbers of requests come on standard input, one a line; each request that is over is one JSON object a line on
//! standard output, behind a line that begins with `ready`. When the input ends, the rest is served and the last line
//! holds the totals.

use std::io::BufRead;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use clap::Args;
use futures_util::stream;
use hicached_client::engine::{Progress, Verify};
use tokio::sync::mpsc;

use super::{Failure, GroupsArgs, print, print_json, runtime};
use crate::bus::Bus;
use crate::config::{BusKind, Checked};
use crate::replay::lines::{EndedLine, Totals};
use crate::replay::load::Load;
use crate::replay::numbered::Numbered;
use crate::replay::side::{Engines, Over};
use crate::replay::signals::Signals;
use crate::replay::trace::Trace;
use crate::shell::{Clock, connect};
use crate::telemetry::{Origin, Telemetry};

/// Arguments of `engine`.
#[derive(Debug, Args)]
#[command(after_help = TWO)]
pub(super) struct EngineArgs {
    #[command(flatten)]
    config: GroupsArgs,
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
    /// Compare every full page once more before its request is closed, and not only what was served
    #[arg(long)]
    verify_everything: bool,
}

const TWO: &str = "\
With a second --config two engines serve every request: that of the first group computes the prompt and hands it over,
that of the second one decodes. transfer.to of the first group names the second one.";

pub(super) fn run(args: &EngineArgs) -> Result<(), Failure> {
    let mut faults = Vec::new();
    let trace = args.trace.as_ref().map(|path| Trace::open(path)).transpose();
    let trace = trace.unwrap_or_else(|error| {
        faults.push(format!("--trace: {error}"));
        None
    });
    let groups = match args.config.checked() {
        Ok(groups) => groups,
        Err(Failure::Usage(why)) => {
            faults.push(why);
            Vec::new()
        }
        Err(other) => return Err(other),
    };
    faults.extend(faults_of(&groups));
    let (prefill, decode) = match groups.as_slice() {
        [prefill, others @ ..] if faults.is_empty() => (prefill, others.first()),
        _ => return Err(Failure::Usage(faults.join("\n"))),
    };
    let requests = match trace {
        Some(trace) => Numbered::trace(trace, &prefill.manifest),
        None => Numbered::demo(args.seed, args.lap, &prefill.manifest),
    };
    let load = Load {
        sessions: args.concurrency as usize,
        chunk_tokens: args.chunk_tokens,
        abort_permille: args.abort_permille,
        verify: if args.verify_everything { Verify::Everything } else { Verify::Hits },
        seed: args.seed,
    };
    runtime()?.block_on(serve(prefill, decode, load, requests))
}

/// What keeps an engine from serving `groups`.
fn faults_of(groups: &[Checked]) -> Vec<String> {
    let mut faults = Vec::new();
    if groups.iter().any(|group| group.config.bus.kind == BusKind::Memory) {
        faults.push("bus.kind is memory: it reaches nobody outside a process, make it nats".to_owned());
    }
    match groups {
        [prefill, decode] if !prefill.config.transfer.to.contains(&decode.config.group.name) => {
            let (to, name) = (&prefill.config.transfer.to, &decode.config.group.name);
            faults.push(format!("transfer.to is {to:?}: the second --config is of the group {name:?}, name it there"));
        }
        [_, _, _, ..] => faults.push(format!("--config names {} groups: give one or two", groups.len())),
        [] | [_] | [_, _] => {}
    }
    faults
}

async fn serve(prefill: &Checked, decode: Option<&Checked>, load: Load, requests: Numbered) -> Result<(), Failure> {
    let mut signals = Signals::heard().map_err(|error| Failure::Fault(format!("signals: {error}")))?;
    let bus = connect(&prefill.config.bus).await.map_err(|error| Failure::Usage(error.to_string()))?;
    let mut telemetry = vec![telemetry_of(prefill, &bus).await?];
    let prefill = (prefill, telemetry[0].spans());
    let decode = match decode {
        Some(group) => {
            telemetry.push(telemetry_of(group, &bus).await?);
            Some((group, telemetry[1].spans()))
        }
        None => None,
    };
    let groups = [Some(prefill.0), decode.as_ref().map(|(group, _)| *group)].into_iter().flatten();
    let names: Vec<&str> = groups.map(|group| group.config.group.name.as_str()).collect();
    let engines = tokio::select! {
        engines = Engines::start(prefill, decode, ATTEMPTS_MAX, &load, &bus) => engines?,
        signal = signals.next() => return Err(Failure::Interrupted(signal)),
    };
    print(&format!("ready engine of {}", names.join(" and ")))?;
    let served = until_input_ends(engines, requests, &mut signals).await;
    for telemetry in telemetry {
        telemetry.stop().await;
    }
    bus.close();
    served
}

/// Where spans of the engine of `group` go.
async fn telemetry_of(group: &Checked, bus: &Arc<dyn Bus>) -> Result<Telemetry, Failure> {
    let config = &group.config;
    let origin = Origin { group: config.group.name.clone(), actors: vec!["engine".to_owned()], bus: config.bus.kind };
    let telemetry = Telemetry::start(&config.trace, origin, Clock::start());
    let telemetry = telemetry.map_err(|error| Failure::Usage(error.to_string()))?;
    telemetry.join(bus).await;
    Ok(telemetry)
}

/// Serves the requests whose numbers come on standard input, and writes the line of each, and the totals.
async fn until_input_ends(mut engines: Engines, mut requests: Numbered, signals: &mut Signals) -> Result<(), Failure> {
    let refused = Arc::new(Mutex::new(None));
    let numbers = numbers_of_input(refused.clone());
    let prompts = stream::unfold((numbers, &mut requests), async |(mut numbers, requests)| {
        let number: usize = numbers.recv().await?;
        Some(((number, requests.prompt(number as u64)), (numbers, requests)))
    });
    let mut unwritten = None;
    let over = |over: Over, now: Progress| {
        if let Err(failure) = print_json(&EndedLine::of(over, now)) {
            unwritten.get_or_insert(failure);
        }
    };
    let served = tokio::select! {
        report = engines.run_numbered(prompts, over) => Ok(report),
        signal = signals.next() => Err(Failure::Interrupted(signal)),
    };
    engines.stop().await;
    // Whoever feeds this process need not wait for what is still exported.
    served.and_then(|report| print_json(&Totals::of(report)))?;
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

/// Attempts at one handover. Processes of both groups end and come back meanwhile: the pauses between so many attempts
/// are longer than any recovery.
const ATTEMPTS_MAX: u32 = 64;
