//! `hicached serve`: what one process hosts of its groups, until a signal ends it.

use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use futures_util::FutureExt;
use futures_util::future::{join_all, select_all};
use hicached_actors::protocol::{Address, Drained};
use hicached_client::shm::ShmError;
use tokio::signal::unix::{SignalKind, signal};

use super::{Failure, GroupsArgs, print, runtime, say};
use crate::bus::Bus;
use crate::config::{BusKind, Checked};
use crate::crash;
use crate::rank::{PoolError, RankError};
use crate::shell::{LocalGroup, StartError, connect};

/// Arguments of `serve`.
#[derive(Debug, Args)]
#[command(after_help = ORDER)]
pub(super) struct ServeArgs {
    #[command(flatten)]
    config: GroupsArgs,
    /// How long sessions may take to end after a signal
    #[arg(long, default_value_t = 30, value_name = "SECONDS")]
    drain_s: u64,
    /// The point at which this process dies on purpose, in a build that can
    #[arg(long, hide = true, value_name = "POINT")]
    crash_at: Option<String>,
}

const ORDER: &str = "\
What a process hosts of a group stands in actors.run. A line that begins with \"ready\" on standard output says that
each of these actors can be reached; that of the process with the index comes when the control group is complete.

SIGTERM and SIGINT end a process in this order: with the index, no new sessions, then those that run end or --drain-s
is over; ranks stop their copies; machines end; the connection closes. End the process with the index first.";

pub(super) fn run(args: &ServeArgs) -> Result<(), Failure> {
    let groups = args.config.checked()?;
    if let Some(point) = &args.crash_at {
        crash::arm(point).map_err(|error| Failure::Usage(error.to_string()))?;
    }
    runtime()?.block_on(serve(&groups, Duration::from_secs(args.drain_s)))
}

async fn serve(groups: &[Checked], patience: Duration) -> Result<(), Failure> {
    let no_signal = |error: std::io::Error| Failure::Fault(format!("signals: {error}"));
    let mut terminate = signal(SignalKind::terminate()).map_err(no_signal)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(no_signal)?;
    let mut serving = Vec::with_capacity(groups.len());
    let ended = tokio::select! {
        failure = until_one_fails(groups, &mut serving) => Err(failure),
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    };
    if ended.is_ok() {
        say("draining");
    }
    let left: Vec<String> = join_all(serving.into_iter().map(|group| group.stop(patience))).await.concat();
    ended?;
    if left.is_empty() { Ok(()) } else { Err(Failure::Fault(left.join("\n"))) }
}

/// Serves until a group does not start or ends by itself.
async fn until_one_fails<'a>(groups: &'a [Checked], serving: &mut Vec<Serving<'a>>) -> Failure {
    for group in groups {
        match Serving::begin(group).await {
            Ok(begun) => serving.push(begun),
            Err(failure) => return failure,
        }
    }
    let (failure, _, _) = select_all(serving.iter_mut().map(|group| group.until_it_fails().boxed())).await;
    failure
}

/// What this process hosts of one group.
struct Serving<'a> {
    group: &'a Checked,
    bus: Arc<dyn Bus>,
    running: LocalGroup,
}

impl<'a> Serving<'a> {
    async fn begin(group: &'a Checked) -> Result<Self, Failure> {
        let bus = connect(&group.config.bus).await.map_err(|error| Failure::Usage(error.to_string()))?;
        let running = LocalGroup::spawn(group, bus.clone()).map_err(|error| not_started(group, &error))?;
        Ok(Self { group, bus, running })
    }

    async fn until_it_fails(&mut self) -> Failure {
        if let Err(error) = self.running.ready().await {
            return not_started(self.group, &error);
        }
        let config = &self.group.config;
        let actors: Vec<String> = self.group.actors.iter().map(ToString::to_string).collect();
        let (name, bus) = (&config.group.name, config.bus.kind.name());
        if let Err(failure) = print(&format!("ready: group {name}: {} on the {bus} bus", actors.join(", "))) {
            return failure;
        }
        if config.bus.kind == BusKind::Memory {
            say("the memory bus reaches nobody outside this process: engines of other processes need bus.kind=nats");
        }
        let error = self.running.ended().await;
        not_started(self.group, &error)
    }

    /// Ends in order; a sentence when something had not ended by itself.
    async fn stop(self, patience: Duration) -> Vec<String> {
        let Drained { sessions, ops } = self.running.stop(patience).await;
        self.bus.close();
        if sessions + ops == 0 {
            return Vec::new();
        }
        let name = &self.group.config.group.name;
        vec![format!("group {name}: {sessions} sessions and {ops} ops had not ended after {patience:?}")]
    }
}

/// What a pool folder, a broker or another process does not allow is for the configuration to change; anything else is
/// a fault.
fn not_started(group: &Checked, error: &StartError) -> Failure {
    let StartError::Rank { rank, source: RankError::Pool(pool) } = error else {
        return match error {
            StartError::SmallMessages { .. } | StartError::Telemetry(_) | StartError::Transfer(_) => {
                Failure::Usage(error.to_string())
            }
            StartError::SecondLeader { .. } | StartError::Taken { .. } | StartError::Refused { .. } => {
                Failure::Usage(format!("group {}: {error}", group.config.group.name))
            }
            StartError::Serve { .. }
            | StartError::Rank { .. }
            | StartError::Pools(_)
            | StartError::Lead { .. }
            | StartError::Thread(_)
            | StartError::Gone => Failure::Fault(error.to_string()),
        };
    };
    let change = match pool {
        PoolError::Mismatch { .. } | PoolError::Shm(ShmError::Size { .. }) => {
            "name another rank.pool_folder, or remove the file and lose its pages"
        }
        PoolError::Exists { .. } | PoolError::InUse { .. } => "or name another rank.pool_folder or group.name",
        PoolError::Torn { .. } => "or name another rank.pool_folder",
        PoolError::Io { .. } | PoolError::Shm(_) => "name a folder of a memory file system with room for the pools",
    };
    let what = match pool {
        PoolError::Shm(ShmError::Size { path, bytes: 0, .. }) => {
            format!("{}: {} is empty", Address::Rank(*rank), path.display())
        }
        _ => error.to_string(),
    };
    Failure::Usage(format!("rank.pool_folder is {}: {what}, {change}", group.config.rank.pool_folder.display()))
}
