//! Groups from the first request to the last: fed, watched, killed, and looked at when nothing runs any more.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hicached_actors::protocol::Address;
use hicached_client::bus::Bus;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout_at};

use super::UpError;
use super::drive::{Drive, Handovers};
use super::group::Groups;
use super::kills::Kills;
use super::options::Job;
use super::outcome::{KillFigures, ProcessFigures, UpOutcome};
use super::sealed::Sealed;
use super::settled::{Settled, settled};
use super::view::View;
use super::watch::{self, Watch};
use crate::fleet::{Event, State};
use crate::replay::figures::{flush_all, members, named};
use crate::replay::outcome::{MovedPages, Outcome};
use crate::replay::run::hash_of;
use crate::replay::sending::Sending;

/// Groups that serve requests.
pub(super) struct Running<'a> {
    job: &'a Job,
    pub(super) groups: &'a mut Groups,
    view: &'a View,
    /// Of each side.
    watches: Vec<Watch>,
    drive: Drive,
    kills: Kills,
    /// Of each side.
    sealed: Vec<Sealed>,
    figures: KillFigures,
    started: Instant,
    /// When a request was last over, and how many were then.
    last_over: (Instant, u64),
    told_of_stall: bool,
}

impl<'a> Running<'a> {
    pub(super) fn new(job: &'a Job, groups: &'a mut Groups, view: &'a View, bus: &Arc<dyn Bus>) -> Self {
        let now = Instant::now();
        let configs = groups.sides.iter().map(|side| &side.group.config.group);
        Self {
            watches: configs.map(|config| Watch::start(bus, &config.name, config.cp_size)).collect(),
            sealed: groups.sides.iter().map(|_| Sealed::default()).collect(),
            job,
            groups,
            view,
            drive: Drive::default(),
            kills: Kills::new(job.kills, &job.kinds, job.seed, now),
            figures: KillFigures::default(),
            started: now,
            last_over: (now, 0),
            told_of_stall: false,
        }
    }

    /// Serves, ends what is left, and looks at what came of it.
    pub(super) async fn through(&mut self, bus: &Arc<dyn Bus>) -> Result<UpOutcome, UpError> {
        self.serve().await?;
        let wall_s = self.started.elapsed().as_secs_f64();
        let (mut pages, mut leaked_pages, mut transfers_left) = (MovedPages::default(), 0, 0);
        let mut sending = Sending::default();
        for at in 0..self.groups.sides.len() {
            let config = self.groups.sides[at].group.config.clone();
            let client = watch::client(bus, &config.group.name, DEADLINE);
            let Settled { index, sender, transfers } = self.beside(settled(&client, config.group.cp_size)).await?;
            // What ends from here on has told already what it moved.
            let moved = self.watches[at].moved(&index);
            if self.job.kills > 0 {
                let (mut sealed, pools) = (std::mem::take(&mut self.sealed[at]), self.groups.sides[at].pool_files());
                let kept = self.beside(async { Ok(sealed.check(&pools, &client).await?) }).await?;
                self.figures.keep(kept, moved.evicted_l2);
            }
            let capacity_pages = u64::from(config.l1.pages) + u64::from(config.l2.pages);
            leaked_pages += self.beside(async { Ok(flush_all(&client, capacity_pages).await?) }).await?;
            pages += moved;
            if at == 0 {
                sending = Sending::of(&sender, config.group.cp_size);
            }
            transfers_left += transfers;
        }
        self.end_engine().await?;
        let outcome = Outcome { sending, ..self.outcome(wall_s, pages, leaked_pages) };
        let Handovers { retried, attempts_max, .. } = self.drive.handovers;
        Ok(UpOutcome {
            outcome,
            seed: self.job.seed,
            ended_twice: self.drive.ended_twice,
            handovers_retried: retried,
            handover_attempts_max: attempts_max,
            transfers_left,
            hit_percent: self.drive.hit_percent(),
            growth_max: self.job.growth_max,
            processes: self.groups.fleet.members().iter().map(ProcessFigures::of).collect(),
            kills: (self.job.kills > 0).then(|| self.figures.clone()),
        })
    }

    fn outcome(&self, wall_s: f64, pages: MovedPages, leaked_pages: u64) -> Outcome {
        let config = &self.groups.sides[0].group.config;
        let (bytes_verified, mismatches) = self.drive.verified();
        Outcome {
            trace: self.job.name.clone(),
            bus: config.bus.kind.name(),
            page_tokens: config.group.page_tokens,
            cp: config.group.cp_size,
            requests: self.drive.given(),
            requests_ended: self.drive.ended,
            aborted: self.drive.aborted,
            full_pages: self.drive.full_pages,
            hit_pages: self.drive.hit_pages.into(),
            per_request_sha256: hash_of(self.drive.hits.iter().map(|pages| u64::from(*pages))),
            pages,
            handovers: self.drive.handovers.done,
            handover_pages: self.drive.handovers.pages,
            decode: self.groups.sides.len() > 1,
            sending: Sending::default(),
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
        }
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
                event = self.groups.fleet.next() => {
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
    pub(super) async fn beside<T>(&mut self, work: impl Future<Output = Result<T, UpError>>) -> Result<T, UpError> {
        let mut work = pin!(work);
        let mut second = interval(SECOND);
        second.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                event = self.groups.fleet.next() => {
                    let event = event?;
                    self.happened(event)?;
                }
                _ = second.tick() => self.sample(),
            }
        }
    }

    fn sample(&mut self) {
        self.groups.fleet.sample();
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
        if self.groups.fleet.members()[self.groups.engine].state() != State::Serving {
            return;
        }
        let in_flight_max = self.job.load.sessions + AHEAD;
        while let Some(number) = self.drive.next(in_flight_max, self.wants_more()) {
            if !self.groups.fleet.write(self.groups.engine, number.to_string()) {
                return self.drive.give_back(number);
            }
        }
    }

    fn happened(&mut self, event: Event) -> Result<(), UpError> {
        self.view.happened(&self.groups.fleet, &event);
        match event {
            Event::Line(place, line) if place == self.groups.engine => {
                if !self.drive.line(&line) {
                    return Err(UpError::Line { line: line.chars().take(200).collect() });
                }
                self.noted_end();
            }
            Event::Ended { place, .. } if place == self.groups.engine => self.drive.engine_ended(),
            Event::Ended { place, .. } => {
                let sides = self.groups.sides.iter().zip(&mut self.watches);
                sides.filter(|(side, _)| side.control == place).for_each(|(_, watch)| watch.control_ends());
            }
            Event::Line(..) | Event::Started(_) | Event::Ready(_) => {}
        }
        Ok(())
    }

    /// A request is over: the group serves, if all of its processes do.
    fn noted_end(&mut self) {
        let (now, over) = (Instant::now(), self.drive.over_count());
        self.last_over = (now, over);
        if let Some(since) = self.kills.unsettled_since().filter(|_| self.groups.fleet.all_serve()) {
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
        for (side, sealed) in self.groups.sides.iter().zip(&mut self.sealed) {
            sealed.look(&side.pool_files())?;
        }
        let place = self.groups.of_kind(kind, which);
        if !self.groups.fleet.kill(place) {
            self.kills.missed(kind, now);
            return Ok(());
        }
        *self.figures.by_kind.entry(kind.name()).or_insert(0) += 1;
        self.figures.of_decode += u64::from(self.groups.member(place).is_some_and(|(side, _)| side > 0));
        let (done, kills) = (self.figures.by_kind.values().sum::<u64>(), self.job.kills);
        let (name, over) = (self.groups.fleet.members()[place].name(), self.drive.over_count());
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
        let members = self.groups.sides.iter().zip(&self.watches).flat_map(|(side, watch)| {
            let group = &side.group.config.group;
            members(group.cp_size).map(|member| {
                let said: Vec<String> = watch.of(member).iter().filter(|(_, value)| *value > 0).map(shown).collect();
                format!("{} {member}: {}", group.name, said.join(" "))
            })
        });
        let logs = (0..self.groups.fleet.members().len()).map(|place| self.groups.fleet.log_end(place));
        members.chain(logs).collect::<Vec<_>>().join("\n")
    }

    /// Ends the engine in order, and takes its totals: what it still exports behind them is not waited for here.
    async fn end_engine(&mut self) -> Result<(), UpError> {
        self.groups.fleet.end_input(self.groups.engine);
        let until = Instant::now() + TOTALS_MAX;
        while self.drive.totals.is_none() && self.groups.fleet.members()[self.groups.engine].state() != State::Over {
            let Ok(event) = timeout_at(until, self.groups.fleet.next()).await else { return Ok(()) };
            self.happened(event?)?;
        }
        Ok(())
    }

    fn draw(&self) {
        self.view.draw(&self.groups.fleet, |place| match self.groups.member(place) {
            Some((side, member)) => {
                let said = self.watches[side].of(member);
                let told = |first, of_first, second, of_second| {
                    format!("{} {of_first}, {} {of_second}", named(&said, first), named(&said, second))
                };
                match member == Address::Index {
                    true => told("index.sessions", "sessions", "index.opens", "opens"),
                    false => told("rank.ops", "ops", "rank.sealed", "records sealed"),
                }
            }
            None if place == self.groups.engine => {
                format!("{} requests, {} bytes right", self.drive.over_count(), self.drive.verified().0)
            }
            None => String::new(),
        });
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
/// How long an engine that serves nothing may take to say so.
const TOTALS_MAX: Duration = Duration::from_secs(60);
