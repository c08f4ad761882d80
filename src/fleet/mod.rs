//! Processes of this machine that serve one group together: started, watched, restarted, killed, ended in order.
//!
//! Invariants: a process ends with the thread that started it, whatever ends that; its end is told after everything
//! it wrote; one that ends by itself is started again after a pause that grows, and counted. Logs of all lives of a
//! process stand in one file of the folder of the logs.
//! Not here: what the processes are asked to do (`up`, the benches).

mod child;
mod config_file;
mod memory;
mod spec;
#[cfg(test)]
mod tests;
pub mod up;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::ExitStatus;
use std::time::Duration;

use hicached_actors::calls::draw;
use rustix::process::Signal;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout_at};

use self::child::{Child, Heard, Told};
pub use self::config_file::to_toml;
pub use self::memory::Memory;
pub use self::spec::{Daemon, Ready, Spec};

/// What a process is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Added to the fleet, not started.
    New,
    /// Started, and not ready yet.
    Starting,
    /// Ready.
    Serving,
    /// Killed, and not known to be gone yet.
    Killed,
    /// Ended, and started again then.
    Waiting {
        /// When.
        until: Instant,
    },
    /// Asked to end.
    Ending,
    /// Ended for good.
    Over,
}

impl State {
    /// As it is shown.
    pub const fn name(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Starting => "starting",
            Self::Serving => "serving",
            Self::Killed => "killed",
            Self::Waiting { .. } => "down",
            Self::Ending => "ending",
            Self::Over => "ended",
        }
    }
}

/// One process of a fleet over all its lives.
#[derive(Debug)]
pub struct Member {
    spec: Spec,
    state: State,
    child: Option<Child>,
    life: u64,
    next_args: Vec<OsString>,
    /// Ends in a row without having served for long.
    short_lives: u32,
    started: Instant,
    /// Starts after the first.
    pub restarts: u64,
    /// Ends that nobody here asked for.
    pub crashes: u64,
    /// Resident memory, as last sampled.
    pub memory: Memory,
}

impl Member {
    /// What it is called.
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// What it is doing.
    pub fn state(&self) -> State {
        self.state
    }

    /// Its process, if there is one.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::pid)
    }

    /// Which life this is, from 1 on.
    pub fn life(&self) -> u64 {
        self.life
    }
}

/// What happened to a member of a fleet.
#[derive(Debug)]
pub enum Event {
    /// It was started again.
    Started(usize),
    /// It serves.
    Ready(usize),
    /// It wrote this line.
    Line(usize, String),
    /// It ended, and everything it wrote has been told.
    Ended {
        /// Which one.
        place: usize,
        /// Whether the fleet had killed it or asked it to end.
        asked: bool,
        /// How.
        status: ExitStatus,
    },
}

/// Why a fleet cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// No port for a broker.
    #[error("no port on the loopback: {0}")]
    Port(std::io::Error),
    /// This program does not know where it stands.
    #[error("the path of this program: {0}")]
    Program(std::io::Error),
    /// The configuration of the processes cannot be written.
    #[error("{}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A program cannot be started.
    #[error("{name} cannot be started: {source}")]
    Start {
        /// Which process.
        name: String,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// A process does not get ready, or ends again and again.
    #[error("{name} ended {times} times in a row ({status}); the end of its log:\n{log}")]
    KeepsEnding {
        /// Which process.
        name: String,
        /// How often.
        times: u32,
        /// How, the last time.
        status: ExitStatus,
        /// The end of its log.
        log: String,
    },
    /// Processes are not ready in time.
    #[error("not ready after {after:?}: {names}; the ends of their logs:\n{log}")]
    NotReady {
        /// Which processes.
        names: String,
        /// Waited so long.
        after: Duration,
        /// The ends of their logs.
        log: String,
    },
}

/// The processes.
#[derive(Debug)]
pub struct Fleet {
    logs: PathBuf,
    members: Vec<Member>,
    told: mpsc::Receiver<Told>,
    tell: mpsc::Sender<Told>,
    chance: u64,
}

impl Fleet {
    /// A fleet without processes. Logs go to the folder `logs`; pauses are spread by `seed`.
    pub fn new(logs: impl Into<PathBuf>, seed: u64) -> Self {
        let (tell, told) = mpsc::channel(TOLD_MAX);
        Self { logs: logs.into(), members: Vec::new(), told, tell, chance: seed }
    }

    /// Adds a process, which is not started yet; returns its place.
    pub fn add(&mut self, spec: Spec) -> usize {
        self.members.push(Member {
            spec,
            state: State::New,
            child: None,
            life: 0,
            next_args: Vec::new(),
            short_lives: 0,
            started: Instant::now(),
            restarts: 0,
            crashes: 0,
            memory: Memory::default(),
        });
        self.members.len() - 1
    }

    /// All processes by their places.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Whether every process serves.
    pub fn all_serve(&self) -> bool {
        self.members.iter().all(|member| member.state == State::Serving)
    }

    /// Arguments for the next start alone, behind those of the spec.
    pub fn next_args(&mut self, place: usize, extra: Vec<OsString>) {
        self.members[place].next_args = extra;
    }

    /// Starts a process. The thread that calls this has to live as long as the process shall.
    ///
    /// # Errors
    /// [`FleetError::Start`].
    pub fn start(&mut self, place: usize) -> Result<(), FleetError> {
        let log = self.log_file(place);
        let member = &mut self.members[place];
        let extra = std::mem::take(&mut member.next_args);
        member.restarts += u64::from(member.life > 0);
        member.life += 1;
        let started = Child::start(&member.spec, &extra, &log, (place, member.life), self.tell.clone());
        let child = started.map_err(|source| FleetError::Start { name: member.spec.name.clone(), source })?;
        (member.child, member.state, member.started) = (Some(child), State::Starting, Instant::now());
        Ok(())
    }

    /// The next thing that happens. Nothing is lost when this is not waited for to its end.
    ///
    /// # Errors
    /// [`FleetError::Start`], [`FleetError::KeepsEnding`].
    pub async fn next(&mut self) -> Result<Event, FleetError> {
        loop {
            let due = self.members.iter().enumerate().filter_map(|(place, member)| match member.state {
                State::Waiting { until } => Some((until, place)),
                State::New | State::Starting | State::Serving | State::Killed | State::Ending | State::Over => None,
            });
            let due = due.min();
            let at = due.map_or_else(Instant::now, |(until, _)| until);
            tokio::select! {
                biased;
                () = sleep_until(at), if due.is_some() => {
                    if let Some((_, place)) = due {
                        self.start(place)?;
                        return Ok(Event::Started(place));
                    }
                }
                Some(told) = self.told.recv() => {
                    if let Some(event) = self.hear(told)? {
                        return Ok(event);
                    }
                }
            }
        }
    }

    /// Waits until the processes at `places` serve; events of others are handed to `other`.
    ///
    /// # Errors
    /// As [`Self::next`], and [`FleetError::NotReady`] after `patience`.
    pub async fn ready(
        &mut self,
        places: &[usize],
        patience: Duration,
        mut other: impl FnMut(&Self, Event),
    ) -> Result<(), FleetError> {
        let until = Instant::now() + patience;
        loop {
            let late: Vec<usize> =
                places.iter().copied().filter(|place| self.members[*place].state != State::Serving).collect();
            if late.is_empty() {
                return Ok(());
            }
            match timeout_at(until, self.next()).await {
                Ok(event) => {
                    let event = event?;
                    other(self, event);
                }
                Err(_) => {
                    let names: Vec<&str> = late.iter().map(|place| self.members[*place].name()).collect();
                    let log = late.iter().map(|place| self.log_end(*place)).collect::<Vec<_>>().join("\n");
                    return Err(FleetError::NotReady { names: names.join(", "), after: patience, log });
                }
            }
        }
    }

    /// Does `work` with an eye on the processes: what happens to them meanwhile is handed to `seen`, which may end it.
    ///
    /// # Errors
    /// Those of `work` and `seen`, and as [`Self::next`].
    pub async fn during<T, E: From<FleetError>>(
        &mut self,
        work: impl Future<Output = Result<T, E>>,
        mut seen: impl FnMut(&Self, Event) -> Result<(), E>,
    ) -> Result<T, E> {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                event = self.next() => {
                    let event = event?;
                    seen(self, event)?;
                }
            }
        }
    }

    /// Kills a process as a crash would; it is started again by [`Self::next`]. `false` when it does not run.
    pub fn kill(&mut self, place: usize) -> bool {
        let member = &mut self.members[place];
        let Some(child) = member.child.as_ref().filter(|_| member.state != State::Killed) else { return false };
        child.signal(Signal::KILL);
        if member.state != State::Ending {
            member.state = State::Killed;
        }
        true
    }

    /// Writes a line to the standard input of a process; `false` when it does not take one at the moment.
    pub fn write(&self, place: usize, line: String) -> bool {
        let member = &self.members[place];
        member.state != State::Killed && member.child.as_ref().is_some_and(|child| child.write(line))
    }

    /// Ends the standard input of a process, which is not started again.
    pub fn end_input(&mut self, place: usize) {
        let member = &mut self.members[place];
        match &mut member.child {
            Some(child) => {
                child.end_input();
                member.state = State::Ending;
            }
            None => member.state = State::Over,
        }
    }

    /// Asks the processes at `places` to end, waits for `patience`, and kills those that are left. Lines they still
    /// write are not told; returns the names of those that had to be killed.
    pub async fn stop(&mut self, places: &[usize], patience: Duration) -> Vec<String> {
        for place in places {
            self.end_input(*place);
            if let Some(child) = &self.members[*place].child {
                child.signal(Signal::TERM);
            }
        }
        self.until_over(places, Instant::now() + patience).await;
        let mut killed = Vec::new();
        for place in places {
            if self.kill(*place) {
                killed.push(self.members[*place].spec.name.clone());
            }
        }
        self.until_over(places, Instant::now() + KILL_MAX).await;
        killed
    }

    /// Kills the processes at `places` at once and starts none of them again; returns when all are gone.
    pub async fn kill_for_good(&mut self, places: &[usize]) {
        for place in places {
            self.end_input(*place);
            self.kill(*place);
        }
        self.until_over(places, Instant::now() + KILL_MAX).await;
    }

    async fn until_over(&mut self, places: &[usize], until: Instant) {
        while places.iter().any(|place| self.members[*place].child.is_some()) {
            let Ok(Some(told)) = timeout_at(until, self.told.recv()).await else { return };
            if let Err(error) = self.hear(told) {
                tracing::warn!(%error, "while others end");
            }
        }
    }

    /// Reads the resident memory of every process.
    pub fn sample(&mut self) {
        for member in &mut self.members {
            match &member.child {
                Some(child) => member.memory.sample(child.pid()),
                None => member.memory.absent(),
            }
        }
    }

    /// The last lines of the log of a process.
    pub fn log_end(&self, place: usize) -> String {
        let name = self.members[place].name();
        let text = std::fs::read(self.log_file(place)).unwrap_or_default();
        let from = text.len().saturating_sub(LOG_BYTES_SHOWN);
        format!("{name}: {}", String::from_utf8_lossy(&text[from..]).trim_end())
    }

    fn log_file(&self, place: usize) -> PathBuf {
        self.logs.join(format!("{}.log", self.members[place].spec.name.replace(' ', "-")))
    }

    /// The folder of the logs.
    pub fn logs(&self) -> &Path {
        &self.logs
    }

    fn hear(&mut self, Told { place, life, heard }: Told) -> Result<Option<Event>, FleetError> {
        let member = &mut self.members[place];
        if member.life != life {
            return Ok(None);
        }
        match heard {
            Heard::Ready => {
                if member.state == State::Starting {
                    member.state = State::Serving;
                }
                Ok(Some(Event::Ready(place)))
            }
            Heard::Line(line) => Ok(Some(Event::Line(place, line))),
            Heard::Ended(status) => self.ended(place, status).map(Some),
        }
    }

    fn ended(&mut self, place: usize, status: ExitStatus) -> Result<Event, FleetError> {
        let member = &mut self.members[place];
        member.child = None;
        if member.state == State::Ending {
            member.state = State::Over;
            return Ok(Event::Ended { place, asked: true, status });
        }
        if member.state == State::Killed {
            let until = Instant::now();
            (member.state, member.short_lives) = (State::Waiting { until }, 0);
            return Ok(Event::Ended { place, asked: true, status });
        }
        member.crashes += 1;
        member.short_lives = if member.started.elapsed() < LONG_LIFE { member.short_lives + 1 } else { 1 };
        if member.short_lives >= SHORT_LIVES_MAX || (member.life == 1 && member.state == State::Starting) {
            let (name, times) = (member.spec.name.clone(), member.short_lives);
            member.state = State::Over;
            return Err(FleetError::KeepsEnding { name, times, status, log: self.log_end(place) });
        }
        let whole = PAUSE_MIN * 2u32.pow(member.short_lives - 1);
        let pause = whole.mul_f64(0.5 + (draw(&mut self.chance) % 1_000) as f64 / 2_000.0);
        member.state = State::Waiting { until: Instant::now() + pause };
        Ok(Event::Ended { place, asked: false, status })
    }
}

/// Lines and ends that nobody has taken yet; a process that writes more waits.
const TOLD_MAX: usize = 1_024;
/// A process that is killed is gone after less.
const KILL_MAX: Duration = Duration::from_secs(10);
/// First pause before a process that ended by itself is started again; doubled by each further short life.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// A life longer than this is not part of a row of ends.
const LONG_LIFE: Duration = Duration::from_secs(10);
/// Short lives in a row after which there is no point in another: with the pauses between them half a minute.
const SHORT_LIVES_MAX: u32 = 8;
/// The end of a log that an error shows.
const LOG_BYTES_SHOWN: usize = 2_048;
