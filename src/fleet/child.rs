//! One life of one process: started, read, and waited for by a task of its own.

use std::convert::Infallible;
use std::ffi::OsString;
use std::future::pending;
use std::io;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, getpid, getppid, kill_process, set_parent_process_death_signal};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::{Ready, Spec};

/// What a process was heard of.
#[derive(Debug)]
pub(super) struct Told {
    /// Place of the member.
    pub(super) place: usize,
    /// Which life of it.
    pub(super) life: u64,
    pub(super) heard: Heard,
}

#[derive(Debug)]
pub(super) enum Heard {
    /// It serves.
    Ready,
    /// A whole line of its standard output.
    Line(String),
    /// It ended; everything it wrote was handed over before.
    Ended(ExitStatus),
}

/// A running process.
#[derive(Debug)]
pub(super) struct Child {
    pid: u32,
    signals: mpsc::Sender<Signal>,
    lines: Option<mpsc::Sender<String>>,
}

impl Child {
    /// Starts `spec` with `extra` arguments behind its own. It ends with the calling thread, whatever ends that; its
    /// standard error is added to `log`.
    pub(super) fn start(
        spec: &Spec,
        extra: &[OsString],
        log: &Path,
        (place, life): (usize, u64),
        told: mpsc::Sender<Told>,
    ) -> io::Result<Self> {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(log)?;
        let mut command = Command::new(&spec.program);
        command.args(&spec.args).args(extra).kill_on_drop(true).process_group(0);
        command.stdin(if spec.takes_lines { Stdio::piped() } else { Stdio::null() });
        command.stdout(Stdio::piped()).stderr(log);
        // What the parent was configured with is in the arguments already.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("HICACHED__")) {
            command.env_remove(name);
        }
        let parent = getpid();
        // SAFETY: between fork and exec only async-signal-safe system calls are made and nothing is allocated.
        unsafe {
            command.pre_exec(move || {
                set_parent_process_death_signal(Some(Signal::KILL))?;
                // A parent that ended before the call above would never be missed.
                if getppid() == Some(parent) { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
            });
        }
        let mut child = command.spawn()?;
        let pid = child.id().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        let (signals, orders) = mpsc::channel(SIGNALS_MAX);
        let lines = child.stdin.take().map(|stdin| {
            let (lines, inbox) = mpsc::channel(LINES_MAX);
            tokio::spawn(write_lines(stdin, inbox));
            lines
        });
        let keeper = Keeper { place, life, told };
        tokio::spawn(keeper.keep(child, spec.ready, orders));
        Ok(Self { pid, signals, lines })
    }

    /// Its id, which is its own until its end was told.
    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Sends `signal`, unless it has ended.
    pub(super) fn signal(&self, signal: Signal) {
        if self.signals.try_send(signal).is_err() {
            tracing::debug!(pid = self.pid, "a process that ends is sent no further signal");
        }
    }

    /// Writes a line to its standard input; `false` when it does not take one at the moment.
    pub(super) fn write(&self, line: String) -> bool {
        self.lines.as_ref().is_some_and(|lines| lines.try_send(line).is_ok())
    }

    /// Ends its standard input behind what was written.
    pub(super) fn end_input(&mut self) {
        self.lines = None;
    }
}

struct Keeper {
    place: usize,
    life: u64,
    told: mpsc::Sender<Told>,
}

impl Keeper {
    /// Reads the process to its end, passes signals on while it is there to take them, and tells of all of it.
    async fn keep(self, mut child: tokio::process::Child, ready: Ready, mut signals: mpsc::Receiver<Signal>) {
        let (stdout, pid) = (child.stdout.take(), child.id());
        let end = async {
            loop {
                tokio::select! {
                    status = child.wait() => break status,
                    // Not waited for yet, so the id is still its own.
                    Some(signal) = signals.recv() => send_signal(pid, signal),
                }
            }
        };
        let listens = async {
            if let Ready::Port(port) = ready {
                listening(port).await;
                self.tell(Heard::Ready).await;
            }
            pending::<Infallible>().await
        };
        let watch = async {
            tokio::select! {
                status = end => status,
                never = listens => match never {},
            }
        };
        let read = async {
            if let Some(stdout) = stdout {
                self.read(stdout, ready).await;
            }
        };
        let (status, ()) = tokio::join!(watch, read);
        match status {
            Ok(status) => self.tell(Heard::Ended(status)).await,
            Err(error) => tracing::error!(%error, "a process cannot be waited for"),
        }
    }

    /// Hands over whole lines: what a process that was killed had written in part is none.
    async fn read(&self, stdout: ChildStdout, ready: Ready) {
        let mut stdout = BufReader::new(stdout);
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = (&mut stdout).take(LINE_BYTES_MAX).read_until(b'\n', &mut line).await;
            if !matches!(read, Ok(bytes) if bytes > 0) || line.pop() != Some(b'\n') {
                return;
            }
            let line = String::from_utf8_lossy(&line).into_owned();
            let is_ready = matches!(ready, Ready::Line) && line.starts_with("ready");
            self.tell(if is_ready { Heard::Ready } else { Heard::Line(line) }).await;
        }
    }

    async fn tell(&self, heard: Heard) {
        // Nobody listens to a fleet that was dropped.
        self.told.send(Told { place: self.place, life: self.life, heard }).await.ok();
    }
}

async fn write_lines(mut stdin: ChildStdin, mut lines: mpsc::Receiver<String>) {
    while let Some(mut line) = lines.recv().await {
        line.push('\n');
        if stdin.write_all(line.as_bytes()).await.is_err() {
            // The process has ended, or will.
            return;
        }
    }
}

fn send_signal(pid: Option<u32>, signal: Signal) {
    let pid = pid.and_then(|pid| Pid::from_raw(pid.cast_signed()));
    if let Some(Err(error)) = pid.map(|pid| kill_process(pid, signal)) {
        tracing::debug!(%error, "a process took no signal");
    }
}

/// Waits until something listens on `port`.
async fn listening(port: u16) {
    while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.is_err() {
        sleep(LISTEN_PAUSE).await;
    }
}

/// Signals on their way to one process.
const SIGNALS_MAX: usize = 8;
/// Lines on their way to one process.
const LINES_MAX: usize = 4_096;
/// Longest line that is read; a longer one ends the reading.
const LINE_BYTES_MAX: u64 = 1 << 20;
const LISTEN_PAUSE: Duration = Duration::from_millis(5);
