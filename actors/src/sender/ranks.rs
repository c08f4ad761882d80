//! What the transfers of a sender's life have cost each of its ranks, and which rank is the slow one.

use crate::protocol::PushFigures;
use crate::spread::Spread;

/// One rank's parts of all transfers that are over.
#[derive(Debug)]
pub(super) struct RankCosts {
    transfers: u64,
    /// Sums over its transfers.
    sums: PushFigures,
    queue_us: Spread,
    layers_us: Spread,
    wire_us: Spread,
    total_us: Spread,
}

impl RankCosts {
    pub(super) fn new() -> Self {
        Self {
            transfers: 0,
            sums: PushFigures::NONE,
            queue_us: Spread::new(),
            layers_us: Spread::new(),
            wire_us: Spread::new(),
            total_us: Spread::new(),
        }
    }

    /// A transfer that it sent pages of is over.
    pub(super) fn add(&mut self, figures: &PushFigures) {
        self.transfers += 1;
        self.sums.add(figures);
        self.queue_us.add(figures.queue_us);
        self.layers_us.add(figures.layers_us);
        self.wire_us.add(figures.wire_us);
        self.total_us.add(figures.total_us);
    }

    /// Named figures of the rank `rank`. Times are of one transfer, in microseconds; percentiles are within an eighth.
    pub(super) fn counters(&self, rank: usize) -> Vec<(String, u64)> {
        let named = |name: &str, value: u64| (format!("sender.rank.{rank}.{name}"), value);
        let mut all = vec![
            named("transfers", self.transfers),
            named("bytes", self.sums.bytes),
            named("runs", self.sums.runs),
            named("descriptors", self.sums.descriptors),
        ];
        for (name, spread) in [
            ("queue_us", &self.queue_us),
            ("layers_us", &self.layers_us),
            ("wire_us", &self.wire_us),
            ("total_us", &self.total_us),
        ] {
            all.push(named(&format!("{name}.p50"), spread.permille(500)));
            all.push(named(&format!("{name}.p99"), spread.permille(990)));
            all.push(named(&format!("{name}.max"), spread.max()));
        }
        all
    }
}

/// The rank whose transfers take longest on the wire, by p99; `None` before the first. Time in a queue and for the
/// computation of layers is not the transfer's.
pub(super) fn straggler(ranks: &[RankCosts]) -> Option<usize> {
    let sending = ranks.iter().enumerate().filter(|(_, costs)| costs.transfers > 0);
    sending.max_by_key(|(_, costs)| (costs.wire_us.permille(990), costs.wire_us.max())).map(|(rank, _)| rank)
}
