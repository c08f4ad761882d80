//! A process of the program, and what it says.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};

use super::LONG;

/// A running process. Dropping it kills it and waits for its end.
pub(super) struct Process {
    child: Child,
    lines: Receiver<String>,
    log: Option<JoinHandle<String>>,
}

impl Process {
    /// Starts the program with no configuration in its environment.
    pub(super) fn start(args: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hicached"));
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("HICACHED__")) {
            command.env_remove(name);
        }
        command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let (stdout, mut stderr) = (child.stdout.take().expect("piped"), child.stderr.take().expect("piped"));
        let (said, lines) = sync_channel(LINES_MAX);
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // Nobody reads any more when the test has ended.
                said.try_send(line).ok();
            }
        });
        let log = std::thread::spawn(move || {
            let mut log = Vec::new();
            // What was read before an error is what there is to show.
            stderr.read_to_end(&mut log).ok();
            String::from_utf8_lossy(&log).into_owned()
        });
        Self { child, lines, log: Some(log) }
    }

    /// Waits for the next line that says what is ready.
    pub(super) fn ready(&mut self) -> String {
        match self.lines.recv_timeout(LONG) {
            Ok(line) if line.starts_with("ready") => line,
            other => panic!("not ready but {other:?}; {}", self.killed()),
        }
    }

    /// Whether a line waits to be read.
    pub(super) fn has_spoken(&self) -> Option<String> {
        self.lines.try_recv().ok()
    }

    /// Ends it as a crash would.
    pub(super) fn killed(&mut self) -> String {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it ends");
        self.log()
    }

    /// Stands still from here, as a machine that is too busy would.
    pub(super) fn suspended(&self) {
        self.signal(Signal::STOP);
    }

    /// Goes on.
    pub(super) fn resumed(&self) {
        self.signal(Signal::CONT);
    }

    /// Asks it to end, and gives exit code and log once it has.
    pub(super) fn terminated(&mut self) -> (Option<i32>, String) {
        self.signal(Signal::TERM);
        self.ended()
    }

    fn signal(&self, signal: Signal) {
        send(self.child.id() as i32, signal);
    }

    /// Whether it has ended by itself.
    pub(super) fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("a child").is_some()
    }

    /// Exit code and log of a process that ends by itself.
    pub(super) fn ended(&mut self) -> (Option<i32>, String) {
        let started = Instant::now();
        let status: ExitStatus = loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                break status;
            }
            assert!(started.elapsed() < LONG, "it goes on; {}", self.killed());
            std::thread::yield_now();
        };
        (status.code(), self.log())
    }

    fn log(&mut self) -> String {
        self.log.take().map(|log| log.join().expect("it is read")).unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // An error means that it has ended; `wait` takes its exit status either way.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Sends `signal` to the process `pid`, which runs.
pub(super) fn send(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).expect("a process"), signal).expect("it runs");
}

/// Whether the process `pid` runs; a zombie, which waits for whoever adopted it, does not.
pub(super) fn lives(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

const LINES_MAX: usize = 64;
