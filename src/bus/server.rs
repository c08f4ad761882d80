//! Finds and starts a `nats-server` of our own: for tests and for a broker of one machine.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::fs::{Access, access};

/// How long a start may take. Measured: 23 to 61 ms on an idle machine.
const START_MAX: Duration = Duration::from_secs(10);
/// Lines of the server's log kept for the error when it does not start.
const LOG_LINES_MAX: usize = 64;
/// The line with which the server says that it listens.
const READY: &str = "Server is ready";

/// Why no server was started.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// No program was found.
    #[error("no nats-server: not in $NATS_SERVER, .tools/nats/bin or $PATH")]
    NotFound,
    /// What the environment names is no program.
    #[error("NATS_SERVER is {}: {why}, name a nats-server or unset it", program.display())]
    Named {
        /// What it names.
        program: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The operating system refused.
    #[error("cannot start {}: {source}", program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// Its error.
        source: std::io::Error,
    },
    /// It ended, or did not listen in time.
    #[error("nats-server did not get ready in {after_ms} ms; its log:\n{log}")]
    NotReady {
        /// Waited so long.
        after_ms: u64,
        /// The first lines of its log.
        log: String,
    },
}

/// The program: `$NATS_SERVER`, else `.tools/nats/bin/nats-server` under `root`, else the first in `$PATH`.
pub fn find_nats_server(root: &Path) -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("NATS_SERVER") {
        return Some(named.into());
    }
    let installed = root.join(".tools/nats/bin/nats-server");
    let in_path = std::env::var_os("PATH").unwrap_or_default();
    std::iter::once(installed)
        .chain(std::env::split_paths(&in_path).map(|dir| dir.join("nats-server")))
        .find(|candidate| candidate.is_file())
}

/// As [`find_nats_server`], with what is found known to be a file that may be executed.
///
/// # Errors
/// [`ServerError::Named`] when `$NATS_SERVER` names none, [`ServerError::NotFound`].
pub fn nats_server(root: &Path) -> Result<PathBuf, ServerError> {
    let program = find_nats_server(root).ok_or(ServerError::NotFound)?;
    if std::env::var_os("NATS_SERVER").is_none() {
        return Ok(program);
    }
    let why = match (std::fs::metadata(&program), access(&program, Access::EXEC_OK)) {
        (Err(error), _) => error.to_string(),
        (Ok(found), _) if !found.is_file() => "it is no file".to_owned(),
        (Ok(_), Err(error)) => format!("it cannot be executed: {error}"),
        (Ok(_), Ok(())) => return Ok(program),
    };
    Err(ServerError::Named { program, why })
}

/// A running server on a loopback port. Dropping it kills it and waits for its end.
#[derive(Debug)]
pub struct NatsServer {
    program: PathBuf,
    args: Vec<OsString>,
    port: u16,
    child: Option<Child>,
}

impl NatsServer {
    /// Starts `program` on a free loopback port with `args` added, and returns once it listens. Blocks up to 10 s.
    ///
    /// # Errors
    /// The program cannot be started, ends, or is not ready in time.
    pub fn start(program: &Path, args: &[OsString]) -> Result<Self, ServerError> {
        let mut server = Self { program: program.into(), args: args.into(), port: 0, child: None };
        // Another process can take the port between the look and the start: look again then.
        for _ in 0..3 {
            server.port = free_port().map_err(|source| ServerError::Start { program: program.into(), source })?;
            if server.restart().is_ok() {
                return Ok(server);
            }
        }
        server.restart()?;
        Ok(server)
    }

    /// Starts it again on the same port; kills it first if it runs.
    ///
    /// # Errors
    /// As [`NatsServer::start`].
    pub fn restart(&mut self) -> Result<(), ServerError> {
        self.kill();
        let mut command = Command::new(&self.program);
        command.args(["--addr", "127.0.0.1", "--port", &self.port.to_string()]).args(&self.args);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child =
            command.spawn().map_err(|source| ServerError::Start { program: self.program.clone(), source })?;
        let log = child.stderr.take().expect("stderr is piped");
        self.child = Some(child);
        let ready = wait_ready(log);
        if ready.is_err() {
            self.kill();
        }
        ready
    }

    /// Ends the process at once, as a crash would. Does nothing when it does not run.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // An error means that it has ended already; `wait` takes its exit status either way.
            child.kill().ok();
            child.wait().ok();
        }
    }

    /// Process id while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Where clients connect.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        self.kill();
    }
}

pub(crate) fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// Reads the log on a thread of its own, to its end: a full pipe would stop the server.
fn wait_ready(log: ChildStderr) -> Result<(), ServerError> {
    let (lines_in, lines) = mpsc::sync_channel(LOG_LINES_MAX);
    std::thread::spawn(move || {
        for line in BufReader::new(log).lines().map_while(Result::ok) {
            // Full or nobody waits any more: the line is only for the error message.
            lines_in.try_send(line).ok();
        }
    });
    let started = Instant::now();
    let mut seen = Vec::new();
    loop {
        let left = START_MAX.saturating_sub(started.elapsed());
        match lines.recv_timeout(left) {
            Ok(line) if line.contains(READY) => return Ok(()),
            Ok(line) => seen.push(line),
            Err(_) => {
                let after_ms = started.elapsed().as_millis() as u64;
                return Err(ServerError::NotReady { after_ms, log: seen.join("\n") });
            }
        }
    }
}
