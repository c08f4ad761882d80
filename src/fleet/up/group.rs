//! The processes of a group on this machine, in a folder of their own.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::UpError;
use super::options::{Job, Kind};
use crate::bus::server::free_port;
use crate::config::Checked;
use crate::fleet::{Event, Fleet, FleetError, Ready, Spec, to_toml};
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
    _folder: Folder,
}

impl Group {
    /// Makes the folder and the list of processes; nothing is started.
    pub(super) fn prepare(job: &Job, nats_server: &Path) -> Result<Self, UpError> {
        let mut group = job.group.clone();
        let folder = Folder::create(&mut group)?;
        let port = free_port().map_err(UpError::Port)?;
        group.config.bus.url = format!("nats://127.0.0.1:{port}");
        let at = group.config.rank.pool_folder.clone();
        let config = at.join("group.toml");
        std::fs::write(&config, to_toml(&group.config))
            .map_err(|source| UpError::Write { path: config.clone(), source })?;
        let program = std::env::current_exe().map_err(UpError::Program)?;
        let mut fleet = Fleet::new(job.logs.clone().unwrap_or(at), job.seed);
        let broker = fleet.add(Spec {
            name: "broker".to_owned(),
            program: nats_server.into(),
            args: words(&["--addr", "127.0.0.1", "--port", &port.to_string()]),
            ready: Ready::Port(port),
            takes_lines: false,
        });
        let ranks = (0..group.config.group.cp_size)
            .map(|rank| fleet.add(serve(&program, &config, format!("rank {rank}"), &format!("rank.{rank}"))))
            .collect();
        let control = fleet.add(serve(&program, &config, "control".to_owned(), "control"));
        let engine = fleet.add(engine(&program, &config, job));
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

/// A process of the daemon that hosts `actors`.
fn serve(program: &Path, config: &Path, name: String, actors: &str) -> Spec {
    let mut args = words(&["serve", "--drain-s", DRAIN_S, "--config"]);
    args.extend([config.into(), "--set".into(), format!("actors.run={actors}").into()]);
    Spec { name, program: program.into(), args, ready: Ready::Line, takes_lines: false }
}

fn engine(program: &Path, config: &Path, job: &Job) -> Spec {
    let mut args = words(&["engine", "--config"]);
    args.push(config.into());
    let load = &job.load;
    for (name, value) in [
        ("--seed", load.seed),
        ("--lap", job.lap),
        ("--concurrency", load.sessions as u64),
        ("--chunk-tokens", u64::from(load.chunk_tokens)),
        ("--abort-permille", u64::from(load.abort_permille)),
    ] {
        args.extend(words(&[name, &value.to_string()]));
    }
    if let Some(trace) = &job.trace {
        args.extend(["--trace".into(), trace.into()]);
    }
    Spec { name: "engine".to_owned(), program: program.into(), args, ready: Ready::Line, takes_lines: true }
}

fn words(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

/// How long processes may take to serve at first.
const READY_MAX: Duration = Duration::from_secs(30);
/// How long a process may take to end when nothing runs any more.
const STOP_MAX: Duration = Duration::from_secs(5);
/// Sessions have ended, or are given up, before a process is asked to end.
const DRAIN_S: &str = "1";
