//! The processes of a group on this machine, in a folder of their own.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::UpError;
use super::options::{Job, Kind};
use crate::config::Checked;
use crate::fleet::{Daemon, Event, Fleet, FleetError, Spec};
use crate::replay::folder::Folder;

/// A running group. Its folder goes when this is dropped, after its processes.
pub(super) struct Group {
    pub(super) fleet: Fleet,
    pub(super) group: Checked,
    pub(super) broker: usize,
    pub(super) control: usize,
    pub(super) ranks: Vec<usize>,
    pub(super) engine: usize,
    // Dropped after the fleet, which is declared before it.
    pub(super) _folder: Folder,
}

impl Group {
    /// Makes the folder and the list of processes; nothing is started.
    pub(super) fn prepare(job: &Job, nats_server: &Path) -> Result<Self, UpError> {
        let mut group = job.group.clone();
        let folder = Folder::create(&mut group)?;
        let (server, url) = Spec::broker(nats_server)?;
        group.config.bus.url = url;
        let daemon = Daemon::new(&group.config)?;
        let logs = job.logs.clone().unwrap_or_else(|| group.config.rank.pool_folder.clone());
        let mut fleet = Fleet::new(logs, job.seed);
        let broker = fleet.add(server);
        let ranks = (0..group.config.group.cp_size)
            .map(|rank| fleet.add(daemon.serve(&format!("rank {rank}"), &format!("rank.{rank}"))))
            .collect();
        let control = fleet.add(daemon.serve("control", "control"));
        let engine = fleet.add(engine(&daemon, job));
        Ok(Self { fleet, group, broker, control, ranks, engine, _folder: folder })
    }

    /// Starts what others need before them, and waits until everything serves.
    pub(super) async fn start(&mut self, mut seen: impl FnMut(&Fleet, Event)) -> Result<(), FleetError> {
        let rest = self.ranks.iter().copied().chain([self.control]).collect::<Vec<_>>();
        for places in [vec![self.broker], rest, vec![self.engine]] {
            for place in &places {
                self.fleet.start(*place)?;
            }
            self.fleet.ready(&places, READY_MAX, &mut seen).await?;
        }
        Ok(())
    }

    /// Ends the processes, each before those it needs; names of those that had to be killed.
    pub(super) async fn stop(&mut self) -> Vec<String> {
        let mut killed = Vec::new();
        for places in [vec![self.engine], vec![self.control], self.ranks.clone(), vec![self.broker]] {
            killed.extend(self.fleet.stop(&places, STOP_MAX).await);
        }
        killed
    }

    /// Ends the processes at once.
    pub(super) async fn kill(&mut self) {
        let all: Vec<usize> = (0..self.fleet.members().len()).collect();
        self.fleet.kill_for_good(&all).await;
    }

    /// The processes of one kind.
    pub(super) fn of_kind(&self, kind: Kind) -> Vec<usize> {
        match kind {
            Kind::Control => vec![self.control],
            Kind::Rank => self.ranks.clone(),
            Kind::Engine => vec![self.engine],
            Kind::Broker => vec![self.broker],
        }
    }

    /// The pool files of all ranks.
    pub(super) fn pool_files(&self) -> Vec<PathBuf> {
        let config = &self.group.config;
        let name = |rank| format!("hicached-{}-rank{rank}.pool", config.group.name);
        (0..config.group.cp_size).map(|rank| config.rank.pool_folder.join(name(rank))).collect()
    }
}

fn engine(daemon: &Daemon, job: &Job) -> Spec {
    let load = &job.load;
    let mut args: Vec<OsString> = [
        ("--seed", load.seed),
        ("--lap", job.lap),
        ("--concurrency", load.sessions as u64),
        ("--chunk-tokens", u64::from(load.chunk_tokens)),
        ("--abort-permille", u64::from(load.abort_permille)),
    ]
    .into_iter()
    .flat_map(|(name, value)| [name.into(), value.to_string().into()])
    .collect();
    if let Some(trace) = &job.trace {
        args.extend(["--trace".into(), trace.into()]);
    }
    Spec { takes_lines: true, ..daemon.spec("engine", "engine", args) }
}

/// How long processes may take to serve at first.
const READY_MAX: Duration = Duration::from_secs(30);
/// How long a process may take to end when nothing runs any more.
const STOP_MAX: Duration = Duration::from_secs(5);
