//! The figures of every member of a group, asked for once a second beside the run, and summed over control incarnations.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hicached_actors::protocol::{Address, Incarnation};
use hicached_client::bus::Bus;
use hicached_client::client::{Client, ClientConfig};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::replay::figures::{Figures, figures, members, moved};
use crate::replay::outcome::MovedPages;

/// What was heard last of each member.
pub(super) struct Watch {
    heard: Arc<Mutex<BTreeMap<Address, Figures>>>,
    task: JoinHandle<()>,
    /// Of control groups that are gone.
    past: MovedPages,
}

impl Watch {
    /// Asks the group `name` of `cp_size` ranks from now on.
    pub(super) fn start(bus: &Arc<dyn Bus>, name: &str, cp_size: u8) -> Self {
        let heard: Arc<Mutex<BTreeMap<Address, Figures>>> = Arc::default();
        let client = client(bus, name, ASK_MAX);
        let into = heard.clone();
        let task = tokio::spawn(async move {
            loop {
                for member in members(cp_size) {
                    // Who does not answer is asked again; what it said before stands.
                    if let Ok(said) = figures(&client, member).await {
                        into.lock().unwrap_or_else(PoisonError::into_inner).insert(member, said);
                    }
                }
                sleep(PAUSE).await;
            }
        });
        Self { heard, task, past: MovedPages::default() }
    }

    /// What `of` said last.
    pub(super) fn of(&self, of: Address) -> Figures {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner).get(&of).cloned().unwrap_or_default()
    }

    /// The control group is about to be killed: its figures begin again at 0.
    pub(super) fn control_ends(&mut self) {
        let last = self.heard.lock().unwrap_or_else(PoisonError::into_inner).remove(&Address::Index);
        if let Some(index) = last {
            self.past += moved(&index);
        }
    }

    /// Pages moved in all control groups, with what the last one says itself. Of the others as far as it was heard.
    pub(super) fn moved(&self, last: &Figures) -> MovedPages {
        let mut all = self.past;
        all += moved(last);
        all
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A client of no engine: it asks, and is asked nothing.
pub(super) fn client(bus: &Arc<dyn Bus>, group: &str, deadline: Duration) -> Client {
    let engine = Incarnation(uuid::Uuid::new_v4().into_bytes());
    let config = ClientConfig::new(group, engine);
    Client::new(
        bus.clone(),
        ClientConfig { deadline, attempt: config.attempt.min(deadline), away_after: deadline, ..config },
    )
}

/// One member that is away must not keep the others waiting for long.
const ASK_MAX: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_secs(1);
