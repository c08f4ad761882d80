//! The command line. Figures go to standard output, progress and logs to standard error; the exit code is 0 when
//! all went well, 1 when the run found a fault, 2 for bad usage or configuration, 128 and the signal's number when a
//! signal ended it early.

mod bench;
mod check;
mod engine;
mod options;
mod output;
mod progress;
mod replay;
mod serve;
mod sim;
mod up;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::replay::demo::DemoArgs;
use crate::replay::options::ReplayArgs;
pub use options::GroupsArgs;
use output::{print, print_json, say};
pub use progress::Progress;

/// Hierarchical KV-cache daemon for LLM serving.
#[derive(Debug, Parser)]
#[command(name = "hicached", version, about)]
struct Cli {
    /// What is logged, as tracing filters: warn, hicached=debug, hicached::op=trace
    #[arg(long, global = true, default_value = "warn", value_name = "FILTER")]
    log: String,
    /// Log lines as JSON
    #[arg(long, global = true)]
    log_json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Checks a configuration and prints what it amounts to
    Check(check::CheckArgs),
    /// Hosts what a configuration names of one group, or of several, until a signal ends it
    Serve(serve::ServeArgs),
    /// Runs a whole group on this machine, each part a process, and tortures it if wanted
    Up(crate::fleet::up::UpArgs),
    /// Serves requests as an engine in a process of its own, their numbers on standard input
    Engine(engine::EngineArgs),
    /// Serves a workload of our own and checks every byte
    Demo(DemoArgs),
    /// Serves a recorded trace
    Replay(ReplayArgs),
    /// Attacks the machines in a simulated world
    Sim(sim::SimArgs),
    /// Measures one part
    #[command(subcommand)]
    Bench(bench::Bench),
}

/// How a command failed.
#[derive(Debug)]
pub enum Failure {
    /// The run found a fault: exit code 1.
    Fault(String),
    /// Bad usage or configuration: exit code 2.
    Usage(String),
    /// A signal of this number ended the run before it was over: exit code 128 and that number.
    Interrupted(u8),
}

impl From<crate::config::ConfigRefused> for Failure {
    fn from(refused: crate::config::ConfigRefused) -> Self {
        Self::Usage(refused.to_string())
    }
}

/// Runs the command that the arguments of this process name.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = start_log(&cli.log, cli.log_json).and_then(|()| run(cli.command));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Fault(why)) => {
            say(&why);
            ExitCode::from(1)
        }
        Err(Failure::Usage(why)) => {
            why.lines().for_each(say);
            ExitCode::from(2)
        }
        Err(Failure::Interrupted(signal)) => {
            say("interrupted");
            ExitCode::from(128 + signal)
        }
    }
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Check(args) => check::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Up(args) => up::run(&args),
        Command::Engine(args) => engine::run(&args),
        Command::Demo(args) => replay::demo(&args),
        Command::Replay(args) => replay::replay(&args),
        Command::Sim(args) => sim::run(&args),
        Command::Bench(bench) => bench::run(&bench),
    }
}

/// The runtime of everything that is not an actor: engines, clients, connections.
fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(RUNTIME_THREADS).enable_all().build();
    runtime.map_err(|error| Failure::Fault(format!("no runtime: {error}")))
}

/// A connection to NATS must not wait for an engine that checks bytes.
const RUNTIME_THREADS: usize = 2;

fn start_log(filter: &str, json: bool) -> Result<(), Failure> {
    let filter = tracing_subscriber::EnvFilter::try_new(filter)
        .map_err(|error| Failure::Usage(format!("--log {filter}: {error}")))?;
    // A log line that cannot be written is lost: saying so would go to the same place, and panic there.
    let log = tracing_subscriber::fmt().log_internal_errors(false);
    let log = log.with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false);
    if json {
        log.json().finish().with(filter_fn(keeps_credentials)).init()
    } else {
        log.finish().with(filter_fn(keeps_credentials)).init()
    }
    Ok(())
}

/// Below `info` the NATS library logs addresses as they were given, passwords included.
fn keeps_credentials(event: &tracing::Metadata<'_>) -> bool {
    !event.target().starts_with("async_nats") || *event.level() <= tracing::Level::INFO
}
