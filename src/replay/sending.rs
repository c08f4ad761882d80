//! What transfers have cost the ranks that sent them, as the sender of their group tells it.

use std::fmt;

use serde::Serialize;

use super::figures::{Figures, named};

/// The ranks of one group, over the life of its sender.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Sending {
    /// The rank whose transfers take longest on the wire, by p99.
    pub straggler_rank: Option<u64>,
    /// Every rank.
    pub ranks: Vec<RankSending>,
}

/// One rank's parts of all transfers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RankSending {
    /// The rank.
    pub rank: u8,
    /// Transfers that it sent pages of.
    pub transfers: u64,
    /// Bytes of pages.
    pub bytes: u64,
    /// Runs contiguous at both ends.
    pub runs: u64,
    /// Frames or descriptors they were sent as.
    pub descriptors: u64,
    /// Waited for a worker, per transfer.
    pub queue_us: Times,
    /// Waited for layers that were not computed.
    pub layers_us: Times,
    /// Moved bytes.
    pub wire_us: Times,
    /// From the order to the acknowledgement, of the longest part.
    pub total_us: Times,
}

/// Microseconds. Percentiles are within an eighth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Times {
    /// Half are faster.
    pub p50: u64,
    /// One in a hundred is slower.
    pub p99: u64,
    /// The slowest.
    pub max: u64,
}

impl Sending {
    /// What the `figures` of a sender say of its `cp_size` ranks.
    pub fn of(figures: &Figures, cp_size: u8) -> Self {
        let straggler = figures.iter().find(|(name, _)| name == "sender.straggler_rank");
        let ranks = (0..cp_size).map(|rank| {
            let told = |name: &str| named(figures, &format!("sender.rank.{rank}.{name}"));
            let times = |name: &str| Times {
                p50: told(&format!("{name}.p50")),
                p99: told(&format!("{name}.p99")),
                max: told(&format!("{name}.max")),
            };
            RankSending {
                rank,
                transfers: told("transfers"),
                bytes: told("bytes"),
                runs: told("runs"),
                descriptors: told("descriptors"),
                queue_us: times("queue_us"),
                layers_us: times("layers_us"),
                wire_us: times("wire_us"),
                total_us: times("total_us"),
            }
        });
        Self { straggler_rank: straggler.map(|(_, rank)| *rank), ranks: ranks.collect() }
    }
}

/// A table with a line for each rank.
impl fmt::Display for Sending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = ["transfers", "MB", "runs", "queue p99", "wire p50", "wire p99", "wire max us"];
        write!(f, "{:<16}", "sent by")?;
        head.iter().try_for_each(|name| write!(f, "{name:>12}"))?;
        for rank in &self.ranks {
            let RankSending { transfers, bytes, runs, queue_us, wire_us, .. } = rank;
            let slowest = if self.straggler_rank == Some(u64::from(rank.rank)) { " slowest" } else { "" };
            write!(f, "\n{:<16}", format!("rank {}{slowest}", rank.rank))?;
            write!(f, "{transfers:>12}{:>12.1}{runs:>12}{:>12}", *bytes as f64 / 1e6, queue_us.p99)?;
            write!(f, "{:>12}{:>12}{:>12}", wire_us.p50, wire_us.p99, wire_us.max)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rank_has_its_own_line_and_the_slowest_is_named() {
        let figures = [
            ("sender.straggler_rank", 1),
            ("sender.rank.0.transfers", 3),
            ("sender.rank.1.wire_us.p99", 70),
            ("sender.rank.10.wire_us.p99", 9),
        ];
        let figures = figures.map(|(name, value)| (name.to_owned(), value)).to_vec();
        let sending = Sending::of(&figures, 2);
        assert_eq!((sending.ranks[0].transfers, sending.ranks[1].wire_us.p99, sending.ranks.len()), (3, 70, 2));
        let table = sending.to_string();
        let lines: Vec<&str> = table.lines().collect();
        assert!(lines[2].starts_with("rank 1 slowest") && !lines[1].contains("slowest"), "{table}");
    }
}
