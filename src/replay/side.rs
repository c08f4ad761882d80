//! The groups of a run and their engines: one that does everything, or one that computes prompts and one that decodes.

use std::sync::Arc;

use futures_util::{Stream, StreamExt};
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
pub(super) enum Engines {
    /// One for everything.
    One(Engine),
    /// One that hands every prompt over to the other.
    Two(Router),
}

/// A request that is over, and whether its pages came over before it was.
pub(super) struct Over {
    pub(super) ended: Ended,
    pub(super) handed_over: bool,
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
    /// Starts an engine for each of `sides`, prefill first.
    pub(super) async fn start(sides: &[Side], load: &Load, bus: &Arc<dyn Bus>) -> Result<Self, RunError> {
        let mut engines = Vec::with_capacity(sides.len());
        for side in sides {
            engines.push(Engine::start(bus.clone(), load.engine_config(&side.group, side.spans())).await?);
        }
        let engines = match (engines.pop(), engines.pop()) {
            (Some(decode), Some(prefill)) => Self::Two(Router::new(prefill, decode, ATTEMPTS_MAX)?),
            (Some(one), None) => Self::One(one),
            (None, _) => unreachable!("a run has a group"),
        };
        for client in engines.clients() {
            serving(&client).await?;
        }
        Ok(engines)
    }

    /// Clients of the groups, prefill first.
    pub(super) fn clients(&self) -> Vec<Client> {
        match self {
            Self::One(engine) => vec![engine.client().clone()],
            Self::Two(router) => vec![router.prefill().client().clone(), router.decode().client().clone()],
        }
    }

    /// Serves `prompts`, numbered in their order.
    pub(super) async fn run(
        &mut self,
        prompts: impl Stream<Item = Prompt>,
        mut over: impl FnMut(Over, Progress),
    ) -> Report {
        match self {
            Self::One(engine) => engine.run(prompts, |ended, now| over(Over { ended, handed_over: false }, now)).await,
            Self::Two(router) => {
                let routed = |routed: Routed, now| over(Over::of(&routed), now);
                router.run_numbered(prompts.enumerate(), routed).await.whole
            }
        }
    }

    /// Ends them.
    pub(super) async fn stop(self) {
        match self {
            Self::One(engine) => engine.stop().await,
            Self::Two(router) => router.stop().await,
        }
    }
}

impl Over {
    fn of(routed: &Routed) -> Self {
        let ended = Ended { how: routed.how, ..routed.prefill };
        Self { ended, handed_over: routed.how != How::Failed && routed.decode.handover_ns.is_some() }
    }
}

/// Attempts at one handover: more mean that something is broken, not late.
const ATTEMPTS_MAX: u32 = 8;
