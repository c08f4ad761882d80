//! What a run asks of its group over the bus: figures, and every page back.

use std::time::Duration;

use hicached_actors::protocol::{Address, Flush, Keys, Rank};
use hicached_client::client::{Client, ClientError};
use tokio::time::{Instant, sleep};

use super::outcome::MovedPages;

/// Named figures of one member.
pub type Figures = Vec<(String, u64)>;

/// Every member of a group of `cp_size` ranks.
pub fn members(cp_size: u8) -> impl Iterator<Item = Address> {
    crate::config::CONTROL.into_iter().chain((0..cp_size).map(|rank| Address::Rank(Rank(rank))))
}

/// The figure `name` among `figures`, 0 when there is none.
pub fn named(figures: &Figures, name: &str) -> u64 {
    figures.iter().filter(|(have, _)| have == name).map(|(_, value)| value).sum()
}

/// The pages that moved, by the figures of the index.
pub fn moved(index: &Figures) -> MovedPages {
    MovedPages {
        backed_up: named(index, "index.stored_l2"),
        loaded: named(index, "index.loaded"),
        evicted_l1: named(index, "index.evicted_l1"),
        evicted_l2: named(index, "index.evicted_l2"),
    }
}

/// The figures of `of`.
///
/// # Errors
/// It does not answer.
pub async fn figures(client: &Client, of: Address) -> Result<Figures, ClientError> {
    Ok(client.figures(of).await?.counters)
}

/// Waits until sessions can begin, so that none is refused for coming early. A group that takes longer refuses them.
///
/// # Errors
/// The index does not answer.
pub async fn serving(client: &Client) -> Result<(), ClientError> {
    let until = Instant::now() + SERVING_MAX;
    while named(&figures(client, Address::Index).await?, "index.serving") == 0 && Instant::now() < until {
        sleep(PAUSE).await;
    }
    Ok(())
}

/// Gives up every page of both tiers, again and again until nothing is kept or in flight; `capacity_pages` minus free
/// pages when that is so, or when the time is over.
///
/// # Errors
/// The group does not answer.
pub async fn flush_all(client: &Client, capacity_pages: u64) -> Result<u64, ClientError> {
    let until = Instant::now() + FLUSH_MAX;
    loop {
        let flush = Flush { tier: 0, salt: Vec::new(), prefix: Keys::default(), quarantined: false };
        let flushed = client.flush(flush).await?;
        let allocator = figures(client, Address::Allocator).await?;
        let free = named(&allocator, "allocator.l1_free_pages") + named(&allocator, "allocator.l2_free_pages");
        let leaked = capacity_pages.saturating_sub(free);
        tracing::debug!(?flushed, leaked, "flushed");
        let is_idle = flushed.in_flight == 0 && flushed.l1_kept == 0 && flushed.l2_kept == 0;
        if (is_idle && leaked == 0) || Instant::now() >= until {
            return Ok(leaked);
        }
        sleep(PAUSE).await;
    }
}

/// The ranks' page tables are read and the allocator knows what is taken.
const SERVING_MAX: Duration = Duration::from_secs(5);
/// A flush waits for backups that still run; none takes this long.
const FLUSH_MAX: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(5);
