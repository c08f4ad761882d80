//! Where the actors of a measured group are: in this process, or each in one of its own.

use std::sync::Arc;
use std::time::Duration;

use hicached_client::client::Client;

use crate::bench::BenchError;
use crate::bench::processes::{Processes, machines, ranks};
use crate::bus::Bus;
use crate::config::{BusKind, Checked};
use crate::replay::figures::{figures, members, named};
use crate::shell::{Clock, LocalGroup, StartError, connect};
use crate::telemetry::{Origin, Telemetry, TraceFigures};

/// Where actors are, and what carries their messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// With the engine in this process, on this bus.
    Here(BusKind),
    /// Each machine and each of so many ranks in a process of its own, on NATS.
    Apart {
        /// Ranks.
        ranks: u8,
    },
}

impl Place {
    pub(super) fn bus(self) -> BusKind {
        match self {
            Self::Here(kind) => kind,
            Self::Apart { .. } => BusKind::Nats,
        }
    }

    /// Entries of `actors.run`, each of a process.
    pub(super) fn hosted(self) -> Vec<String> {
        match self {
            Self::Here(_) => Vec::new(),
            Self::Apart { ranks: count } => machines().chain(ranks(count)).collect(),
        }
    }

    /// Processes that host actors.
    pub(super) fn processes(self) -> u32 {
        u32::try_from(self.hosted().len().max(1)).unwrap_or(u32::MAX)
    }

    /// A bus for who answers raw requests: `bus` itself, or a connection of its own where actors have theirs.
    pub(super) async fn bus_beside(self, group: &Checked, bus: &Arc<dyn Bus>) -> Result<Arc<dyn Bus>, BenchError> {
        Ok(match self {
            Self::Here(_) => bus.clone(),
            Self::Apart { .. } => connect(&group.config.bus).await?,
        })
    }

    /// Starts the actors; each can be reached.
    pub(super) async fn start(
        self,
        group: &Checked,
        bus: &Arc<dyn Bus>,
        processes: &mut Processes,
    ) -> Result<Actors, BenchError> {
        match self {
            Self::Here(_) => Ok(Actors::Here(Box::new(LocalGroup::start(group, bus.clone()).await?))),
            Self::Apart { .. } => {
                processes.start_members().await?;
                let (config, actors) = (&group.config, vec!["engine".to_owned()]);
                let origin = Origin { group: config.group.name.clone(), actors, bus: config.bus.kind };
                let telemetry = Telemetry::start(&config.trace, origin, Clock::start());
                let telemetry = telemetry.map_err(StartError::from)?;
                telemetry.join(bus).await;
                Ok(Actors::Apart { telemetry, ranks: config.group.cp_size })
            }
        }
    }
}

/// The actors of a group that serves.
pub(super) enum Actors {
    /// In this process.
    Here(Box<LocalGroup>),
    /// In others; the engine's spans are this process's.
    Apart {
        /// Of the engine.
        telemetry: Telemetry,
        /// Ranks.
        ranks: u8,
    },
}

impl Actors {
    /// Where the engine tells of its spans.
    pub(super) fn telemetry(&self) -> &Telemetry {
        match self {
            Self::Here(local) => local.telemetry(),
            Self::Apart { telemetry, .. } => telemetry,
        }
    }

    /// Ends what is in this process; what became of the spans of all processes by then.
    pub(super) async fn stop(self, client: &Client) -> Result<TraceFigures, BenchError> {
        match self {
            Self::Here(local) => {
                let telemetry = local.telemetry().clone();
                local.stop(Duration::ZERO).await;
                Ok(telemetry.figures())
            }
            Self::Apart { telemetry, ranks } => {
                telemetry.stop().await;
                let mut all = telemetry.figures();
                if telemetry.recorder().is_none() {
                    return Ok(all);
                }
                // Exporters of other processes have looked into their outboxes by then.
                tokio::time::sleep(EXPORTED_AFTER).await;
                for member in members(ranks) {
                    let said = figures(client, member).await?;
                    all.exported += named(&said, "trace.exported");
                    all.lost += named(&said, "trace.lost");
                }
                Ok(all)
            }
        }
    }
}

/// Several looks of an exporter, and an export.
const EXPORTED_AFTER: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn apart_every_actor_has_a_process() {
        let apart = Place::Apart { ranks: 2 };
        let named: Vec<String> = members(2).map(|member| member.to_string()).collect();
        let (mut hosted, mut all) = (apart.hosted(), named);
        hosted.sort();
        all.sort();
        assert_eq!((hosted, apart.processes()), (all, 9));
        assert_eq!((Place::Here(BusKind::Nats).processes(), apart.bus()), (1, BusKind::Nats));
    }
}
