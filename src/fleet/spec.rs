//! What the processes of one group are started with: a broker on the loopback, and this program for all others.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::{FleetError, to_toml};
use crate::bus::server::free_port;
use crate::config::Config;

/// A process that belongs to a fleet.
#[derive(Clone, Debug)]
pub struct Spec {
    /// What it is called, and its log.
    pub name: String,
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// How it says that it serves.
    pub ready: Ready,
    /// Whether it is given lines on its standard input.
    pub takes_lines: bool,
}

/// How a process says that it serves.
#[derive(Clone, Copy, Debug)]
pub enum Ready {
    /// By a line of its standard output that begins with `ready`.
    Line,
    /// By listening on this port of the loopback.
    Port(u16),
}

impl Spec {
    /// The nats-server `program` on a port of the loopback that is free at the moment, and where clients reach it.
    ///
    /// # Errors
    /// [`FleetError::Port`].
    pub fn broker(program: &Path) -> Result<(Self, String), FleetError> {
        let port = free_port().map_err(FleetError::Port)?;
        let args = ["--addr", "127.0.0.1", "--port", &port.to_string()].map(OsString::from).to_vec();
        let (name, ready) = ("broker".to_owned(), Ready::Port(port));
        let spec = Self { name, program: program.into(), args, ready, takes_lines: false };
        Ok((spec, format!("nats://127.0.0.1:{port}")))
    }
}

/// This program, with a configuration that all of its processes read.
#[derive(Clone, Debug)]
pub struct Daemon {
    program: PathBuf,
    config: PathBuf,
}

impl Daemon {
    /// Writes `config` into its pool folder, for nobody else to read: the address of a broker may hold a password.
    ///
    /// # Errors
    /// [`FleetError::Program`], [`FleetError::Write`].
    pub fn new(config: &Config) -> Result<Self, FleetError> {
        let path = config.rank.pool_folder.join("group.toml");
        let mut options = std::fs::OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).mode(0o600).open(&path);
        let written = file.and_then(|mut file| file.write_all(to_toml(config).as_bytes()));
        written.map_err(|source| FleetError::Write { path: path.clone(), source })?;
        Ok(Self { program: std::env::current_exe().map_err(FleetError::Program)?, config: path })
    }

    /// The file of its configuration.
    pub fn config(&self) -> &Path {
        &self.config
    }

    /// A process `name` that hosts `actors`.
    pub fn serve(&self, name: &str, actors: &str) -> Spec {
        let run = format!("actors.run={actors}");
        self.spec(name, "serve", ["--drain-s", DRAIN_S, "--set", &run].map(OsString::from).to_vec())
    }

    /// A process `name` that runs `command` with `args`, says `ready` and takes no lines.
    pub fn spec(&self, name: &str, command: &str, args: Vec<OsString>) -> Spec {
        let all = [command.into(), "--config".into(), self.config.clone().into()].into_iter().chain(args).collect();
        let program = self.program.clone();
        Spec { name: name.to_owned(), program, args: all, ready: Ready::Line, takes_lines: false }
    }
}

/// Sessions have ended, or are given up, before a process is asked to end.
const DRAIN_S: &str = "1";
