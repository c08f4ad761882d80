//! `hicached up`: a whole group on this machine, served, watched, and tortured if that is wanted.
//!
//! Invariants that a run reports on: every request ends once; no byte is wrong; no page is leaked; what was sealed on a
//! host and not evicted stays there, and is known there.

mod drive;
mod group;
mod kills;
mod options;
mod outcome;
mod sealed;
#[cfg(test)]
mod tests;
mod view;
mod watch;

use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hicached_actors::protocol::{Address, Rank};
use hicached_client::bus::Bus;
use hicached_client::client::{Client, ClientError};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until, timeout_at};

pub use self::options::{Job, Kind, UpArgs};
pub use self::outcome::{KillFigures, ProcessFigures, UpOutcome};
pub use self::sealed::SealedError;

use self::drive::Drive;
use self::group::Group;
use self::kills::Kills;
use self::sealed::Sealed;
use self::view::View;
use self::watch::Watch;
use super::{Event, FleetError, State};
use crate::rank::PoolError;
use crate::replay::figures::{Figures, figures, flush_all, members, named};
use crate::replay::folder::FolderError;
use crate::replay::outcome::Outcome;
use crate::replay::run::hash_of;
use crate::replay::signals::Signals;
use crate::shell::{NoBroker, connect};

/// Why there is no outcome.
#[derive(Debug, thiserror::Error)]
pub enum UpError {
    /// No place for pool files.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// A process does not run.
    #[error(transparent)]
    Fleet(#[from] FleetError),
    /// The broker cannot be reached.
    #[error(transparent)]
    NoBroker(#[from] NoBroker),
    /// The group does not answer.
    #[error("the group does not answer: {0}")]
    Client(#[from] ClientError),
    /// The pools cannot be looked at.
    #[error(transparent)]
    Sealed(#[from] SealedError),
    /// The pools cannot be looked at.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// Requests do not end.
    #[error("no request has ended for {after:?}, {open} are open; {what}")]
    Stalled {
        /// So long.
        after: Duration,
        /// Requests under way.
        open: u64,
        /// What each process says.
        what: String,
    },
    /// The engine wrote what nobody reads.
    #[error("the engine wrote {line:?}")]
    Line {
        /// The line, cut.
        line: String,
    },
    /// Signals cannot be heard.
    #[error("signals: {0}")]
    Signals(std::io::Error),
    /// Ended by the signal of this number.
    #[error("interrupted")]
    Interrupted(u8),
}

/// Does `job`, and once more without kills when that is to be compared. What came of it is handed to `show` before the
/// processes end, which may take a while. They end with the calling thread.
///
/// # Errors
/// [`UpError`]: what a run finds is never an error, what keeps it from running is.
pub async fn up(
    job: &Job,
    compare: bool,
    nats_server: &Path,
    show: impl FnOnce(&UpOutcome),
) -> Result<UpOutcome, UpError> {
    let mut signals = Signals::heard().map_err(UpError::Signals)?;
    if job.kills == 0 || !compare {
        return run(job, nats_server, &mut signals, show).await;
    }
    let mut outcome = run(job, nats_server, &mut signals, |_| ()).await?;
    let undisturbed = job.undisturbed(outcome.outcome.requests);
    let both = |undisturbed: &UpOutcome| {
        if let Some(kills) = &mut outcome.kills {
            kills.undisturbed_hit_percent = Some(undisturbed.hit_percent);
            kills.hit_points_lost = Some(undisturbed.hit_percent - outcome.hit_percent);
        }
        show(&outcome);
    };
    run(&undisturbed, nats_server, &mut signals, both).await?;
    Ok(outcome)
}

/// One group from its start to its end.
async fn run(
    job: &Job,
    nats_server: &Path,
    signals: &mut Signals,
    show: impl FnOnce(&UpOutcome),
) -> Result<UpOutcome, UpError> {
    let mut group = Group::prepare(job, nats_server)?;
    let mut view = View::new(&group.fleet);
    view.say(&format!("seed {}, {} kills, logs in {}", job.seed, job.kills, group.fleet.logs().display()));
    let started = tokio::select! {
        started = group.start(|fleet, event| view.happened(fleet, &event)) => started.map_err(UpError::from),
        signal = signals.next() => Err(UpError::Interrupted(signal)),
    };
    let outcome = match started {
        Ok(()) => served(job, &mut group, &view, signals).await,
        Err(error) => Err(error),
    };
    view.end_table();
    if let Ok(outcome) = &outcome {
        show(outcome);
    }
    ended(&mut group, &view, signals.next()).await.and(outcome)
}

/// Ends the processes in order, or at once when the signal of a number comes meanwhile.
async fn ended(group: &mut Group, view: &View, signal: impl Future<Output = u8>) -> Result<(), UpError> {
    tokio::select! {
        killed = group.stop() => {
            for name in killed {
                view.say(&format!("{name} did not end and was killed"));
            }
            Ok(())
        }
        signal = signal => {
            group.kill().await;
            Err(UpError::Interrupted(signal))
        }
    }
}

async fn served(job: &Job, group: &mut Group, view: &View, signals: &mut Signals) -> Result<UpOutcome, UpError> {
    let bus = connect(&group.group.config.bus).await?;
    let mut run = Running::new(job, group, view, &bus);
    let outcome = tokio::select! {
        outcome = run.through(&bus) => outcome,
        signal = signals.next() => Err(UpError::Interrupted(signal)),
    };
    bus.close();
    outcome
}

/// A group that serves requests.
struct Running<'a> {
    job: &'a Job,
    group: &'a mut Group,
    view: &'a View,
    watch: Watch,
    drive: Drive,
    kills: Kills,
    sealed: Sealed,
    figures: KillFigures,
    started: Instant,
    /// When a request was last over, and how many were then.
    last_over: (Instant, u64),
    told_of_stall: bool,
}

impl<'a> Running<'a> {
    fn new(job: &'a Job, group: &'a mut Group, view: &'a View, bus: &Arc<dyn Bus>) -> Self {
        let now = Instant::now();
        let config = &group.group.config.group;
        Self {
            watch: Watch::start(bus, &config.name, config.cp_size),
            job,
            group,
            view,
            drive: Drive::default(),
            kills: Kills::new(job.kills, &job.kinds, job.seed, now),
            sealed: Sealed::default(),
            figures: KillFigures::default(),
            started: now,
            last_over: (now, 0),
            told_of_stall: false,
        }
    }

    async fn through(&mut self, bus: &Arc<dyn Bus>) -> Result<UpOutcome, UpError> {
        self.serve().await?;
        let wall_s = self.started.elapsed().as_secs_f64();
        let config = self.group.group.config.clone();
        let client = watch::client(bus, &config.group.name, DEADLINE);
        let index = self.beside(settled(&client)).await?;
        // What ends from here on has told already what it moved.
        let moved = self.watch.moved(&index);
        if self.job.kills > 0 {
            let (mut sealed, pools) = (std::mem::take(&mut self.sealed), self.group.pool_files());
            let kept = self.beside(async { Ok(sealed.check(&pools, &client).await?) }).await?;
            self.figures.keep(kept, moved.evicted_l2);
        }
        let capacity_pages = u64::from(config.l1.pages) + u64::from(config.l2.pages);
        let leaked_pages = self.beside(async { Ok(flush_all(&client, capacity_pages).await?) }).await?;
        self.end_engine().await?;
        let (bytes_verified, mismatches) = self.drive.verified();
        let outcome = Outcome {
            trace: self.job.name.clone(),
            bus: config.bus.kind.name(),
            page_tokens: config.group.page_tokens,
            cp: config.group.cp_size,
            requests: self.drive.given(),
            requests_ended: self.drive.ended,
            full_pages: self.drive.full_pages,
            hit_pages: self.drive.hit_pages.into(),
            per_request_sha256: hash_of(self.drive.hits.iter().map(|pages| u64::from(*pages))),
            pages: moved,
            handovers: 0,
            handover_pages: 0,
            decode: false,
            bytes_verified,
            mismatches,
            leaked_pages,
            refusals: self.drive.totals.as_ref().map(|totals| totals.refusals.clone()).unwrap_or_default(),
            wall_s,
            latency_us: self.drive.latency_us(),
            control_only: false,
            concurrency: self.job.load.sessions as u64,
            l1_pages: config.l1.pages,
            l2_pages: config.l2.pages,
        };
        Ok(UpOutcome {
            outcome,
            seed: self.job.seed,
            ended_twice: self.drive.ended_twice,
            hit_percent: self.drive.hit_percent(),
            growth_max: self.job.growth_max,
            processes: self.group.fleet.members().iter().map(ProcessFigures::of).collect(),
            kills: (self.job.kills > 0).then(|| self.figures.clone()),
        })
    }

    /// Feeds, watches and kills until everything that was asked for is done and every request is over.
    async fn serve(&mut self) -> Result<(), UpError> {
        let mut second = interval(SECOND);
        second.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            self.feed();
            if !self.wants_more() && self.drive.is_idle() {
                return Ok(());
            }
            let due = self.kills.due().filter(|_| self.drive.over_count() >= self.next_kill_behind());
            tokio::select! {
                event = self.group.fleet.next() => {
                    let event = event?;
                    self.happened(event)?;
                }
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => self.kill()?,
                _ = second.tick() => {
                    self.sample();
                    self.is_moving()?;
                }
            }
        }
    }

    /// Does `work` behind the last request, while the processes are watched as they were before it.
    async fn beside<T>(&mut self, work: impl Future<Output = Result<T, UpError>>) -> Result<T, UpError> {
        let mut work = pin!(work);
        let mut second = interval(SECOND);
        second.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                event = self.group.fleet.next() => {
                    let event = event?;
                    self.happened(event)?;
                }
                _ = second.tick() => self.sample(),
            }
        }
    }

    fn sample(&mut self) {
        self.group.fleet.sample();
        self.draw();
    }

    /// Whether new requests are to be sent: until their number, their time and the kills are reached.
    fn wants_more(&self) -> bool {
        let more = match self.job.soak_s {
            Some(seconds) => self.started.elapsed() < Duration::from_secs(seconds),
            None => self.drive.given() < self.job.requests,
        };
        more || !self.kills.are_over()
    }

    /// How many requests have to be over before the next kill: kills are spread over the run.
    fn next_kill_behind(&self) -> u64 {
        let done: u64 = self.figures.by_kind.values().sum();
        self.job.requests.saturating_mul(done) / u64::from(self.job.kills.max(1))
    }

    fn feed(&mut self) {
        if self.group.fleet.members()[self.group.engine].state() != State::Serving {
            return;
        }
        let in_flight_max = self.job.load.sessions + AHEAD;
        while let Some(number) = self.drive.next(in_flight_max, self.wants_more()) {
            if !self.group.fleet.write(self.group.engine, number.to_string()) {
                return self.drive.give_back(number);
            }
        }
    }

    fn happened(&mut self, event: Event) -> Result<(), UpError> {
        self.view.happened(&self.group.fleet, &event);
        match event {
            Event::Line(place, line) if place == self.group.engine => {
                if !self.drive.line(&line) {
                    return Err(UpError::Line { line: line.chars().take(200).collect() });
                }
                self.noted_end();
            }
            Event::Ended { place, .. } if place == self.group.engine => self.drive.engine_ended(),
            Event::Ended { place, .. } if place == self.group.control => self.watch.control_ends(),
            Event::Line(..) | Event::Ended { .. } | Event::Started(_) | Event::Ready(_) => {}
        }
        Ok(())
    }

    /// A request is over: the group serves, if all of its processes do.
    fn noted_end(&mut self) {
        let (now, over) = (Instant::now(), self.drive.over_count());
        self.last_over = (now, over);
        if let Some(since) = self.kills.unsettled_since().filter(|_| self.group.fleet.all_serve()) {
            let recovery_ms = now.duration_since(since).as_millis() as u64;
            self.kills.serves(now, over);
            if self.kills.unsettled_since().is_none() && !self.figures.by_kind.is_empty() {
                self.figures.recovery_ms_max = self.figures.recovery_ms_max.max(recovery_ms);
                self.view.say(&format!("requests end again after {recovery_ms} ms"));
            }
        }
    }

    fn kill(&mut self) -> Result<(), UpError> {
        let now = Instant::now();
        let Some((kind, which)) = self.kills.kill(now, self.drive.over_count()) else { return Ok(()) };
        self.sealed.look(&self.group.pool_files())?;
        let places = self.group.of_kind(kind);
        let place = places[which as usize % places.len()];
        if !self.group.fleet.kill(place) {
            self.kills.missed(kind, now);
            return Ok(());
        }
        *self.figures.by_kind.entry(kind.name()).or_insert(0) += 1;
        let (done, kills) = (self.figures.by_kind.values().sum::<u64>(), self.job.kills);
        let (name, over) = (self.group.fleet.members()[place].name(), self.drive.over_count());
        self.view.say(&format!("kill {done} of {kills}: {name}, behind {over} requests"));
        Ok(())
    }

    fn is_moving(&mut self) -> Result<(), UpError> {
        let (since, _) = self.last_over;
        if since.elapsed() < STALL_TOLD {
            self.told_of_stall = false;
            return Ok(());
        }
        if since.elapsed() < STALL {
            if !std::mem::replace(&mut self.told_of_stall, true) {
                self.view.say(&format!("no request has ended for {STALL_TOLD:?}; {}", self.figures_of_all()));
            }
            return Ok(());
        }
        let open = self.drive.given() - self.drive.over_count();
        Err(UpError::Stalled { after: STALL, open, what: self.figures_of_all() })
    }

    /// What every member said last, figures of 0 left out, and the end of every log.
    fn figures_of_all(&self) -> String {
        let members = members(self.group.group.config.group.cp_size).map(|member| {
            let said: Vec<String> = self.watch.of(member).iter().filter(|(_, value)| *value > 0).map(shown).collect();
            format!("{member}: {}", said.join(" "))
        });
        let logs = (0..self.group.fleet.members().len()).map(|place| self.group.fleet.log_end(place));
        members.chain(logs).collect::<Vec<_>>().join("\n")
    }

    /// Ends the engine in order, and takes its totals: what it still exports behind them is not waited for here.
    async fn end_engine(&mut self) -> Result<(), UpError> {
        self.group.fleet.end_input(self.group.engine);
        let until = Instant::now() + SETTLE_MAX;
        while self.drive.totals.is_none() && self.group.fleet.members()[self.group.engine].state() != State::Over {
            let Ok(event) = timeout_at(until, self.group.fleet.next()).await else { return Ok(()) };
            self.happened(event?)?;
        }
        Ok(())
    }

    fn draw(&self) {
        self.view.draw(&self.group.fleet, |place| {
            let said = self.address(place).map(|address| self.watch.of(address)).unwrap_or_default();
            match place {
                place if place == self.group.broker => String::new(),
                place if place == self.group.engine => {
                    format!("{} requests, {} bytes right", self.drive.over_count(), self.drive.verified().0)
                }
                place if place == self.group.control => {
                    format!("{} sessions, {} opens", named(&said, "index.sessions"), named(&said, "index.opens"))
                }
                _ => format!("{} ops, {} records sealed", named(&said, "rank.ops"), named(&said, "rank.sealed")),
            }
        });
    }

    /// Whose figures tell of the process at `place`.
    fn address(&self, place: usize) -> Option<Address> {
        if place == self.group.control {
            return Some(Address::Index);
        }
        let rank = self.group.ranks.iter().position(|rank| *rank == place)?;
        Some(Address::Rank(Rank(u8::try_from(rank).ok()?)))
    }
}

/// Waits until nothing runs: sessions that a dead engine left, and backups, have ended then. What the index says then.
async fn settled(client: &Client) -> Result<Figures, UpError> {
    let until = Instant::now() + SETTLE_MAX;
    loop {
        let index = figures(client, Address::Index).await?;
        let running: u64 = ["index.sessions", "index.in_flight"].iter().map(|name| named(&index, name)).sum();
        if running == 0 || Instant::now() >= until {
            return Ok(index);
        }
        sleep(SETTLE_PAUSE).await;
    }
}

fn shown((name, value): &(String, u64)) -> String {
    format!("{name}={value}")
}

/// Numbers the engine is given beyond those it serves at a time.
const AHEAD: usize = 8;
const SECOND: Duration = Duration::from_secs(1);
/// How long an answer is waited for when nothing is killed any more.
const DEADLINE: Duration = Duration::from_secs(30);
/// Longer than a recovery takes.
const STALL_TOLD: Duration = Duration::from_secs(8);
/// Longer than any request is repeated.
const STALL: Duration = Duration::from_secs(60);
/// A lease and what it ends.
const SETTLE_MAX: Duration = Duration::from_secs(60);
const SETTLE_PAUSE: Duration = Duration::from_millis(20);
