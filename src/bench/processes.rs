//! The processes of a group that is measured: its broker, and one for each part of what `serve` can host.

use std::path::Path;
use std::time::Duration;

use hicached_actors::protocol::{Address, Rank};
use tokio::time::Instant;

use super::error::BenchError;
use crate::config::{CONTROL, Checked};
use crate::fleet::{Daemon, Event, Fleet, Spec};
use crate::replay::signals::Signals;

/// The processes, none of which runs at first.
#[derive(Debug)]
pub(super) struct Processes {
    fleet: Fleet,
    broker: Option<usize>,
    members: Vec<usize>,
}

impl Processes {
    /// A process of `group`, whose folder is made, for each of `hosted`, an entry of `actors.run`. With a program of a
    /// broker that is a process as well, and the group's bus.
    ///
    /// # Errors
    /// No port, or the configuration cannot be written.
    pub(super) fn new(group: &mut Checked, nats_server: Option<&Path>, hosted: &[String]) -> Result<Self, BenchError> {
        let mut fleet = Fleet::new(group.config.rank.pool_folder.clone(), SEED);
        let mut broker = None;
        if let Some(program) = nats_server {
            let (server, url) = Spec::broker(program)?;
            group.config.bus.url = url;
            broker = Some(fleet.add(server));
        }
        let mut members = Vec::new();
        if !hosted.is_empty() {
            let daemon = Daemon::new(&group.config)?;
            members.extend(hosted.iter().map(|actors| fleet.add(daemon.serve(actors, actors))));
        }
        Ok(Self { fleet, broker, members })
    }

    /// Does `work` with the processes, until a signal comes. They are gone afterwards, whatever came of it.
    ///
    /// # Errors
    /// Those of `work`, and [`BenchError::Interrupted`].
    pub(super) async fn through<T>(
        mut self,
        signals: &mut Signals,
        work: impl AsyncFnOnce(&mut Self) -> Result<T, BenchError>,
    ) -> Result<T, BenchError> {
        let done = tokio::select! {
            done = work(&mut self) => done,
            signal = signals.next() => Err(BenchError::Interrupted(signal)),
        };
        self.kill().await;
        done
    }

    /// Does `work`, which fails as soon as one of the processes ends by itself.
    ///
    /// # Errors
    /// Those of `work`, and [`BenchError::Ended`].
    pub(super) async fn beside<T>(
        &mut self,
        work: impl Future<Output = Result<T, BenchError>>,
    ) -> Result<T, BenchError> {
        let seen = |fleet: &Fleet, event: Event| match event {
            Event::Ended { place, asked: false, .. } => Err(BenchError::Ended { log: fleet.log_end(place) }),
            Event::Ended { asked: true, .. } | Event::Started(_) | Event::Ready(_) | Event::Line(..) => Ok(()),
        };
        self.fleet.during(work, seen).await
    }

    /// How long until the broker listens, when it is one of the processes.
    pub(super) async fn start_broker(&mut self) -> Result<Duration, BenchError> {
        let broker: Vec<usize> = self.broker.into_iter().collect();
        start(&mut self.fleet, &broker).await
    }

    /// How long until all others serve.
    pub(super) async fn start_members(&mut self) -> Result<Duration, BenchError> {
        start(&mut self.fleet, &self.members).await
    }

    /// Ends all at once; returns when they are gone.
    pub(super) async fn kill(&mut self) {
        let all: Vec<usize> = self.members.iter().copied().chain(self.broker).collect();
        self.fleet.kill_for_good(&all).await;
    }
}

async fn start(fleet: &mut Fleet, places: &[usize]) -> Result<Duration, BenchError> {
    let began = Instant::now();
    for place in places {
        fleet.start(*place)?;
    }
    fleet.ready(places, READY_MAX, |_, _| ()).await?;
    Ok(began.elapsed())
}

/// Every rank of a group of `ranks`, by its name in `actors.run`.
pub(super) fn ranks(ranks: u8) -> impl Iterator<Item = String> {
    (0..ranks).map(|rank| Address::Rank(Rank(rank)).to_string())
}

/// Every machine of the control group, by its name in `actors.run`.
pub(super) fn machines() -> impl Iterator<Item = String> {
    CONTROL.iter().map(Address::to_string)
}

/// Pauses before a restart, of which there is none.
const SEED: u64 = 1;
/// Processes of a fresh group serve after less.
const READY_MAX: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::Ready;

    fn shell(script: &str) -> Processes {
        let mut fleet = Fleet::new(std::env::temp_dir(), SEED);
        let name = format!("bench-{}", uuid::Uuid::new_v4().simple());
        let args = vec!["-c".into(), script.into()];
        let spec = Spec { name, program: "/bin/sh".into(), args, ready: Ready::Line, takes_lines: false };
        let members = vec![fleet.add(spec)];
        Processes { fleet, broker: None, members }
    }

    #[tokio::test]
    async fn work_ends_with_a_process_and_processes_with_the_work() {
        for (script, fails) in [("echo ready; echo why >&2; exit 3", true), ("echo ready; exec sleep 1000", false)] {
            let mut signals = Signals::heard().unwrap();
            let mut pid = None;
            let work = async |processes: &mut Processes| {
                processes.start_members().await?;
                pid = processes.fleet.members()[0].pid();
                let work = async {
                    if fails {
                        std::future::pending::<()>().await;
                    }
                    Ok(())
                };
                processes.beside(work).await
            };
            let processes = shell(script);
            let log = std::env::temp_dir().join(format!("{}.log", processes.fleet.members()[0].name()));
            let done = processes.through(&mut signals, work).await;
            std::fs::remove_file(log).unwrap();
            match done {
                Ok(()) => assert!(!fails),
                Err(error) => assert!(fails && error.to_string().ends_with("why"), "{error}"),
            }
            let gone = pid.is_none_or(|pid| !Path::new(&format!("/proc/{pid}")).exists());
            assert!(gone, "{script}");
        }
    }
}
