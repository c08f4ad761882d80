//! The groups of a run and their engines: one that does everything, or one that computes prompts and one that decodes.

use std::sync::Arc;

use futures_util::Stream;
use hicached_client::client::{Client, ClientError};
use hicached_client::engine::{Ended, Engine, How, Progress, Prompt, Report, Routed, Router};
use hicached_client::spans::Spans;

use super::figures::{flush_all, serving};
use super::folder::Folder;
use super::load::Load;
use super::run::RunError;
use crate::bus::Bus;
use crate::config::Checked;
use crate::shell::LocalGroup;

/// One group of this process, with the folder of its pools.
pub(super) struct Side {
    pub(super) group: Checked,
    running: LocalGroup,
    _folder: Folder,
}

/// The engines of a run.
pub enum Engines {
    /// One for everything.
    One(Engine),
    /// One that hands every prompt over to the other.
    Two(Router),
}

/// A request that is over.
#[derive(Clone, Copy, Debug)]
pub struct Over {
    /// As its prefill was, and over as both sides are.
    pub ended: Ended,
    /// Its two sides, where there are two.
    pub routed: Option<Routed>,
}

impl Side {
    /// Starts `group` on `bus`.
    pub(super) async fn start(group: &Checked, bus: Arc<dyn Bus>) -> Result<Self, RunError> {
        let mut group = group.clone();
        let folder = Folder::create(&mut group)?;
        let running = LocalGroup::start(&group, bus).await?;
        Ok(Self { group, running, _folder: folder })
    }

    /// Where spans of its engine go.
    pub(super) fn spans(&self) -> Spans {
        self.running.telemetry().spans()
    }

    /// Gives every page of it up; the pages that are lost.
    pub(super) async fn leaked_pages(&self, client: &Client) -> Result<u64, ClientError> {
        let config = &self.group.config;
        flush_all(client, u64::from(config.l1.pages) + u64::from(config.l2.pages)).await
    }

    /// Ends it.
    pub(super) async fn stop(self, patience: std::time::Duration) {
        self.running.stop(patience).await;
    }
}

impl Engines {
    /// Starts an engine of `prefill`, and one of `decode` that every request is handed over to, in at most
    /// `attempts_max` attempts. Each comes with the way of its spans.
    ///
    /// # Errors
    /// An engine cannot join its group.
    pub async fn start(
        prefill: (&Checked, Spans),
        decode: Option<(&Checked, Spans)>,
        attempts_max: u32,
        load: &Load,
        bus: &Arc<dyn Bus>,
    ) -> Result<Self, RunError> {
        let engine = async |(group, spans): (&Checked, Spans)| {
            Engine::start(bus.clone(), load.engine_config(group, spans)).await
        };
        let prefill = engine(prefill).await?;
        let engines = match decode {
            Some(decode) => Self::Two(Router::new(prefill, engine(decode).await?, attempts_max)?),
            None => Self::One(prefill),
        };
        for client in engines.clients() {
            serving(&client).await?;
        }
        Ok(engines)
    }

    /// Clients of the groups, prefill first.
    pub fn clients(&self) -> Vec<Client> {
        match self {
            Self::One(engine) => vec![engine.client().clone()],
            Self::Two(router) => vec![router.prefill().client().clone(), router.decode().client().clone()],
        }
    }

    /// Serves `prompts` with their numbers.
    pub async fn run_numbered(
        &mut self,
        prompts: impl Stream<Item = (usize, Prompt)>,
        mut over: impl FnMut(Over, Progress),
    ) -> Report {
        match self {
            Self::One(engine) => {
                engine.run_numbered(prompts, |ended, now| over(Over { ended, routed: None }, now)).await
            }
            Self::Two(router) => {
                let routed = |routed: Routed, now| over(Over::of(routed), now);
                router.run_numbered(prompts, routed).await.whole
            }
        }
    }

    /// Ends them.
    pub async fn stop(self) {
        match self {
            Self::One(engine) => engine.stop().await,
            Self::Two(router) => router.stop().await,
        }
    }
}

impl Over {
    fn of(routed: Routed) -> Self {
        Self { ended: Ended { how: routed.how, ..routed.prefill }, routed: Some(routed) }
    }

    /// Whether its pages came over before it was closed.
    pub fn handed_over(&self) -> bool {
        let arrived = self.routed.is_some_and(|routed| routed.decode.handover_ns.is_some());
        arrived && self.ended.how == How::Closed
    }
}
