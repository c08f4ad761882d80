//! `hicached serve`: one group, until a signal ends it.

use std::time::Duration;

use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use super::{ConfigArgs, Failure, runtime, say};
use crate::config::{BusKind, Checked};
use crate::crash;
use crate::rank::{PoolError, RankError};
use crate::shell::{LocalGroup, StartError, connect};

/// Arguments of `serve`.
#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// How long sessions may take to end after a signal
    #[arg(long, default_value_t = 30, value_name = "SECONDS")]
    drain_s: u64,
    /// The point at which this process dies on purpose, in a build that can
    #[arg(long, hide = true, value_name = "POINT")]
    crash_at: Option<String>,
}

pub(super) fn run(args: &ServeArgs) -> Result<(), Failure> {
    let group = args.config.checked()?;
    if let Some(point) = &args.crash_at {
        crash::arm(point).map_err(|error| Failure::Usage(error.to_string()))?;
    }
    runtime()?.block_on(serve(&group, Duration::from_secs(args.drain_s)))
}

async fn serve(group: &Checked, drain: Duration) -> Result<(), Failure> {
    let no_signal = |error: std::io::Error| Failure::Fault(format!("signals: {error}"));
    let mut terminate = signal(SignalKind::terminate()).map_err(no_signal)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(no_signal)?;
    let config = &group.config.bus;
    let bus = connect(config).await.map_err(|error| Failure::Usage(error.to_string()))?;
    let running = LocalGroup::start(group, bus.clone()).await.map_err(|error| not_started(group, &error))?;
    tracing::info!(group = group.config.group.name, control = ?running.control(), bus = config.kind.name(), "serving");
    say(&format!("group {} is served on the {} bus", group.config.group.name, config.kind.name()));
    if config.kind == BusKind::Memory {
        say("the memory bus reaches nobody outside this process: engines of other processes need bus.kind=nats");
    }
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    say("draining");
    let left = running.stop(drain).await;
    bus.close();
    if left.sessions + left.ops > 0 {
        let (sessions, ops) = (left.sessions, left.ops);
        return Err(Failure::Fault(format!("{sessions} sessions and {ops} ops had not ended after {drain:?}")));
    }
    Ok(())
}

/// What a pool folder or a broker does not allow is for the configuration to change; anything else is a fault.
fn not_started(group: &Checked, error: &StartError) -> Failure {
    let StartError::Rank { source: RankError::Pool(pool), .. } = error else {
        return match error {
            StartError::SmallMessages { .. } => Failure::Usage(error.to_string()),
            StartError::Serve { .. }
            | StartError::Rank { .. }
            | StartError::Pools(_)
            | StartError::Thread(_)
            | StartError::Gone => Failure::Fault(error.to_string()),
        };
    };
    let change = match pool {
        PoolError::Exists { .. } | PoolError::InUse { .. } => "or name another rank.pool_folder or group.name",
        PoolError::Mismatch { .. } => "name another rank.pool_folder, or remove the file and lose its pages",
        PoolError::Torn { .. } => "or name another rank.pool_folder",
        PoolError::Io { .. } | PoolError::Shm(_) => "name a folder of a memory file system with room for the pools",
    };
    Failure::Usage(format!("rank.pool_folder is {}: {error}, {change}", group.config.rank.pool_folder.display()))
}
