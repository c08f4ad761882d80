//! When nothing of a group runs any more.

use std::time::Duration;

use hicached_actors::protocol::{Address, Rank};
use hicached_client::client::Client;
use tokio::time::{Instant, sleep};

use super::UpError;
use crate::replay::figures::{Figures, figures, named};

/// A group that nobody asks for anything.
pub(super) struct Settled {
    /// What its index says.
    pub(super) index: Figures,
    /// What its sender says.
    pub(super) sender: Figures,
    /// Transfers, grants and pushes that are left.
    pub(super) transfers: u64,
}

/// Waits until nothing runs in a group of `cp_size` ranks, or too long: sessions that a dead engine left, backups and
/// transfers have ended then.
pub(super) async fn settled(client: &Client, cp_size: u8) -> Result<Settled, UpError> {
    let until = Instant::now() + SETTLE_MAX;
    loop {
        let index = figures(client, Address::Index).await?;
        let running = sum(&index, &["index.sessions", "index.in_flight"]);
        let mut transfers = 0;
        let ranks = (0..cp_size).map(|rank| Address::Rank(Rank(rank)));
        let sender = figures(client, Address::Sender).await?;
        transfers += sum(&sender, &TRANSFERS);
        for member in std::iter::once(Address::Receiver).chain(ranks) {
            transfers += sum(&figures(client, member).await?, &TRANSFERS);
        }
        if running + transfers == 0 || Instant::now() >= until {
            return Ok(Settled { index, sender, transfers });
        }
        sleep(SETTLE_PAUSE).await;
    }
}

fn sum(figures: &Figures, names: &[&str]) -> u64 {
    names.iter().map(|name| named(figures, name)).sum()
}

/// What the members of a group say of transfers that run.
const TRANSFERS: [&str; 4] = ["sender.running", "receiver.running", "rank.grants_open", "rank.pushes_open"];
/// A lease and what it ends.
const SETTLE_MAX: Duration = Duration::from_secs(60);
const SETTLE_PAUSE: Duration = Duration::from_millis(20);
