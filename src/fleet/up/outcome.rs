//! What `up` prints: the figures of a replay, and what is told of processes, kills and memory.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::sealed::Kept;
use crate::fleet::Member;
use crate::replay::outcome::Outcome;

/// Figures of `up`.
#[derive(Clone, Debug, Serialize)]
pub struct UpOutcome {
    /// Those of every run.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// Where chance grew from.
    pub seed: u64,
    /// Requests that ended more than once.
    pub ended_twice: u64,
    /// Requests whose handover took more attempts than one, by the engine that ended them.
    pub handovers_retried: u64,
    /// Most attempts of one handover.
    pub handover_attempts_max: u32,
    /// Transfers, grants and pushes that run when no session does any more.
    pub transfers_left: u64,
    /// Full pages of a hundred that were hit, over requests that ended.
    pub hit_percent: f64,
    /// One for each process.
    pub processes: Vec<ProcessFigures>,
    /// Percent by which the memory of a process was allowed to grow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub growth_max: Option<f64>,
    /// What was killed, and what it cost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kills: Option<KillFigures>,
}

/// One process over all its lives.
#[derive(Clone, Debug, Serialize)]
pub struct ProcessFigures {
    /// Its name.
    pub name: String,
    /// Starts after the first.
    pub restarts: u64,
    /// Ends that nobody asked for.
    pub crashes: u64,
    /// Most bytes it held.
    pub peak_rss_bytes: u64,
    /// Mean of the middle third of the run, in bytes.
    pub middle_rss_bytes: u64,
    /// Mean of the last third.
    pub last_rss_bytes: u64,
    /// The last by the middle, 0 for a run of less than three samples.
    pub growth: f64,
}

/// What killing found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct KillFigures {
    /// How often each kind was killed.
    pub by_kind: BTreeMap<&'static str, u64>,
    /// Of those, processes of the decode group.
    pub of_decode: u64,
    /// Milliseconds from a kill until requests ended again, the worst.
    pub recovery_ms_max: u64,
    /// Keys that were seen sealed on a host.
    pub sealed_pages: u64,
    /// Of those, sealed on no host at the end, or unknown to the index there.
    pub sealed_pages_gone: u64,
    /// Of those that are gone, sealed on no host.
    pub unsealed_pages: u64,
    /// Host pages the index gave up for want of room, as far as it was heard: also pages that were never seen sealed,
    /// and those that came back.
    pub evicted_l2_pages: u64,
    /// Those that are gone beyond as many as were evicted: nothing but a fault explains them.
    pub sealed_pages_lost: u64,
    /// Hit pages of a hundred in the same run without kills.
    pub undisturbed_hit_percent: Option<f64>,
    /// That less those of this run, in points.
    pub hit_points_lost: Option<f64>,
}

impl KillFigures {
    /// Takes in what became of the sealed pages of one group while its index gave up `evicted_l2` host pages.
    pub(super) fn keep(&mut self, kept: Kept, evicted_l2: u64) {
        let gone = kept.unsealed + kept.unknown;
        self.sealed_pages += kept.ever;
        self.unsealed_pages += kept.unsealed;
        self.sealed_pages_gone += gone;
        self.evicted_l2_pages += evicted_l2;
        // What one group evicted explains nothing of another one.
        self.sealed_pages_lost += gone.saturating_sub(evicted_l2);
    }
}

impl ProcessFigures {
    pub(super) fn of(member: &Member) -> Self {
        let thirds = member.memory.thirds();
        let (middle, last) = thirds.unwrap_or_default();
        Self {
            name: member.name().to_owned(),
            restarts: member.restarts,
            crashes: member.crashes,
            peak_rss_bytes: member.memory.peak_bytes,
            middle_rss_bytes: middle,
            last_rss_bytes: last,
            growth: if middle > 0 { last as f64 / middle as f64 } else { 0.0 },
        }
    }
}

impl UpOutcome {
    /// What is wrong with the run, if anything is.
    pub fn fault(&self) -> Option<String> {
        let crashes = self.processes.iter().map(|process| process.crashes).sum();
        let most = self.growth_max.map_or(f64::INFINITY, |percent| 1.0 + percent / 100.0);
        let grown = self.processes.iter().filter(|process| process.growth > most).count() as u64;
        let lost = self.kills.as_ref().map_or(0, |kills| kills.sealed_pages_lost);
        let more = [
            (self.ended_twice, "requests ended twice"),
            (crashes, "processes ended by themselves"),
            (lost, "sealed pages lost"),
            (self.transfers_left, "transfers that do not end"),
            (grown, "processes grew"),
        ];
        let more = more.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}"));
        let all: Vec<String> = self.outcome.fault().into_iter().chain(more).collect();
        (!all.is_empty()).then(|| all.join(", "))
    }
}

impl fmt::Display for UpOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.outcome)?;
        let mut row = |name: &str, value: &dyn fmt::Display| writeln!(f, "{name:<36}{value:>14}");
        if self.outcome.decode {
            row("handovers tried again", &self.handovers_retried)?;
            row("most attempts of one", &self.handover_attempts_max)?;
            row("transfers left", &self.transfers_left)?;
        }
        if let Some(kills) = &self.kills {
            for (kind, count) in &kills.by_kind {
                row(&format!("kills, {kind}"), count)?;
            }
            if self.outcome.decode {
                row("of them, on the decode side", &kills.of_decode)?;
            }
            row("worst recovery, ms", &kills.recovery_ms_max)?;
            row("sealed pages", &kills.sealed_pages)?;
            row("sealed pages gone", &kills.sealed_pages_gone)?;
            row("evicted", &kills.evicted_l2_pages)?;
            row("sealed pages lost", &kills.sealed_pages_lost)?;
            row("requests ended twice", &self.ended_twice)?;
            if let Some((undisturbed, lost)) = kills.undisturbed_hit_percent.zip(kills.hit_points_lost) {
                row("hit ratio without kills, %", &format!("{undisturbed:.1}"))?;
                row("hit ratio lost, points", &format!("{lost:.1}"))?;
            }
        }
        writeln!(f, "{:<16}{:>10}{:>10}{:>14}{:>10}", "process", "restarts", "crashes", "peak MiB", "growth")?;
        for (place, process) in self.processes.iter().enumerate() {
            let ProcessFigures { name, restarts, crashes, peak_rss_bytes, growth, .. } = process;
            let peak_mib = *peak_rss_bytes as f64 / f64::from(1 << 20);
            let end = if place + 1 < self.processes.len() { "\n" } else { "" };
            write!(f, "{name:<16}{restarts:>10}{crashes:>10}{peak_mib:>14.1}{growth:>10.3}{end}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_evictions_explain_is_gone_and_not_lost() {
        for (unsealed, unknown, evicted, gone, lost) in
            [(0, 0, 0, 0, 0), (7, 2, 0, 9, 9), (7, 2, 4, 9, 5), (7, 2, 9, 9, 0), (7, 2, 5_000, 9, 0), (0, 0, 3, 0, 0)]
        {
            let mut kills = KillFigures::default();
            kills.keep(Kept { ever: 20, unsealed, unknown }, evicted);
            let found = (kills.sealed_pages_gone, kills.evicted_l2_pages, kills.sealed_pages_lost);
            assert_eq!(found, (gone, evicted, lost));
            assert_eq!((kills.sealed_pages, kills.unsealed_pages), (20, unsealed));
            kills.keep(Kept { ever: 1, unsealed: 1, unknown: 0 }, 0);
            assert_eq!((kills.sealed_pages, kills.sealed_pages_lost), (21, lost + 1), "each group explains its own");
        }
    }
}
