//! `hicached serve`: one group, until a signal ends it.

use std::time::Duration;

use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use super::{ConfigArgs, Failure, runtime};
use crate::config::Checked;
use crate::shell::{LocalGroup, connect};

/// Arguments of `serve`.
#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// How long sessions may take to end after a signal
    #[arg(long, default_value_t = 30, value_name = "SECONDS")]
    drain_s: u64,
}

pub(super) fn run(args: &ServeArgs) -> Result<(), Failure> {
    let group = args.config.checked()?;
    runtime()?.block_on(serve(&group, Duration::from_secs(args.drain_s)))
}

async fn serve(group: &Checked, drain: Duration) -> Result<(), Failure> {
    let no_signal = |error: std::io::Error| Failure::Fault(format!("signals: {error}"));
    let mut terminate = signal(SignalKind::terminate()).map_err(no_signal)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(no_signal)?;
    let config = &group.config.bus;
    let bus = connect(config).await.map_err(|error| Failure::Usage(format!("{}: {error}", config.url)))?;
    let running = LocalGroup::start(group, bus.clone()).await.map_err(|error| Failure::Fault(error.to_string()))?;
    tracing::info!(group = group.config.group.name, control = ?running.control(), bus = config.kind.name(), "serving");
    eprintln!("hicached: group {} is served on the {} bus", group.config.group.name, config.kind.name());
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    eprintln!("hicached: draining");
    let left = running.stop(drain).await;
    bus.close();
    if left.sessions + left.ops > 0 {
        let (sessions, ops) = (left.sessions, left.ops);
        return Err(Failure::Fault(format!("{sessions} sessions and {ops} ops had not ended after {drain:?}")));
    }
    Ok(())
}
