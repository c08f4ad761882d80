//! The processes of a run on this machine: those of one group, or of two that hand requests over, each group in a
//! folder of its own.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hicached_actors::protocol::{Address, Rank};
use hicached_client::engine::Verify;

use super::UpError;
use super::options::{Job, Kind};
use crate::config::Checked;
use crate::fleet::{Daemon, Event, Fleet, FleetError, Spec};
use crate::replay::folder::Folder;

/// The running groups, with a broker and an engine for all of them. Their folders go when this is dropped, after the
/// processes.
pub(super) struct Groups {
    pub(super) fleet: Fleet,
    pub(super) broker: usize,
    pub(super) engine: usize,
    /// The group that computes prompts, and the one that decodes where there is one. Dropped after the fleet, which is
    /// declared before it.
    pub(super) sides: Vec<Side>,
}

/// The processes of one group, by their places in the fleet.
pub(super) struct Side {
    pub(super) group: Checked,
    pub(super) control: usize,
    pub(super) ranks: Vec<usize>,
    pub(super) _folder: Folder,
}

impl Groups {
    /// Makes the folders and the list of processes; nothing is started.
    pub(super) fn prepare(job: &Job, nats_server: &Path) -> Result<Self, UpError> {
        let (server, url) = Spec::broker(nats_server)?;
        let mut prepared = Vec::new();
        for group in [Some(&job.group), job.decode.as_ref()].into_iter().flatten() {
            let mut group = group.clone();
            let folder = Folder::create(&mut group)?;
            group.config.bus.url.clone_from(&url);
            let daemon = Daemon::new(&group.config)?;
            prepared.push((group, folder, daemon));
        }
        let logs = job.logs.clone().unwrap_or_else(|| prepared[0].0.config.rank.pool_folder.clone());
        let mut fleet = Fleet::new(logs, job.seed);
        let broker = fleet.add(server);
        let (mut sides, mut daemons) = (Vec::new(), Vec::new());
        for ((group, folder, daemon), prefix) in prepared.into_iter().zip(["", "decode "]) {
            let ranks = (0..group.config.group.cp_size)
                .map(|rank| fleet.add(daemon.serve(&format!("{prefix}rank {rank}"), &format!("rank.{rank}"))))
                .collect();
            let control = fleet.add(daemon.serve(&format!("{prefix}control"), "control"));
            sides.push(Side { group, control, ranks, _folder: folder });
            daemons.push(daemon);
        }
        let engine = fleet.add(engine(&daemons, job));
        Ok(Self { fleet, broker, engine, sides })
    }

    /// Starts what others need before them, and waits until everything serves.
    pub(super) async fn start(&mut self, mut seen: impl FnMut(&Fleet, Event)) -> Result<(), FleetError> {
        let rest = [self.ranks(), self.controls()].concat();
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
        for places in [vec![self.engine], self.controls(), self.ranks(), vec![self.broker]] {
            killed.extend(self.fleet.stop(&places, STOP_MAX).await);
        }
        killed
    }

    /// Ends the processes at once.
    pub(super) async fn kill(&mut self) {
        let all: Vec<usize> = (0..self.fleet.members().len()).collect();
        self.fleet.kill_for_good(&all).await;
    }

    /// The process of `kind` that the number `which` stands for: each group has the same share of its kind, however
    /// many ranks it has.
    pub(super) fn of_kind(&self, kind: Kind, which: u64) -> usize {
        let sides = self.sides.len() as u64;
        let side = &self.sides[(which % sides) as usize];
        match kind {
            Kind::Control => side.control,
            Kind::Rank => side.ranks[(which / sides % side.ranks.len() as u64) as usize],
            Kind::Engine => self.engine,
            Kind::Broker => self.broker,
        }
    }

    /// Which of the sides the process at `place` belongs to, and who of it tells most of it.
    pub(super) fn member(&self, place: usize) -> Option<(usize, Address)> {
        self.sides.iter().enumerate().find_map(|(at, side)| side.member(place).map(|member| (at, member)))
    }

    fn ranks(&self) -> Vec<usize> {
        self.sides.iter().flat_map(|side| side.ranks.iter().copied()).collect()
    }

    fn controls(&self) -> Vec<usize> {
        self.sides.iter().map(|side| side.control).collect()
    }
}

impl Side {
    /// The pool files of all ranks.
    pub(super) fn pool_files(&self) -> Vec<PathBuf> {
        let config = &self.group.config;
        let name = |rank| format!("hicached-{}-rank{rank}.pool", config.group.name);
        (0..config.group.cp_size).map(|rank| config.rank.pool_folder.join(name(rank))).collect()
    }

    fn member(&self, place: usize) -> Option<Address> {
        if place == self.control {
            return Some(Address::Index);
        }
        let rank = self.ranks.iter().position(|rank| *rank == place)?;
        Some(Address::Rank(Rank(u8::try_from(rank).ok()?)))
    }
}

fn engine(daemons: &[Daemon], job: &Job) -> Spec {
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
    if load.verify == Verify::Everything {
        args.push("--verify-everything".into());
    }
    if let Some(trace) = &job.trace {
        args.extend(["--trace".into(), trace.into()]);
    }
    args.extend(daemons[1..].iter().flat_map(|decode| ["--config".into(), decode.config().into()]));
    Spec { takes_lines: true, ..daemons[0].spec("engine", "engine", args) }
}

/// How long processes may take to serve at first.
const READY_MAX: Duration = Duration::from_secs(30);
/// How long a process may take to end when nothing runs any more.
const STOP_MAX: Duration = Duration::from_secs(5);
