//! A rank: one GPU's host pool, the words and load slots it shares with its engine, and the copies between the two
//! tiers. It executes and acknowledges; it decides nothing.
//!
//! [`CopyThreads`] serve all ranks of a process. A [`RankHost`] is driven like any hosted machine: bytes in, bytes
//! out, a deadline to arm; besides, its `notify` says when copies have ended and [`RankHost::collect`] is due.
//!
//! Not here: which pages to copy (index, writer, loader), which are free (allocator).

mod attaching;
mod checked_read;
mod claims;
mod copies;
mod copying;
mod l1;
mod layout;
mod machine;
mod ops;
mod orders;
mod page_table;
mod pool_file;
mod pool_view;
mod sealing;
mod spans;
mod telling;
mod transfers;

use std::path::PathBuf;
use std::sync::Arc;

use hicached_actors::host::{Beside, Host, Output};
use hicached_actors::machine::Trace;
use hicached_actors::protocol::{Address, Busy, Incarnation, Manifest, Rank, Refusal, Time};

use crate::wire::{Backend, StartError};

pub use copies::{CopyThreads, Notify};
pub use layout::{ManifestError, layout_of};
pub use machine::RankMachine;
use machine::RankParts;
pub use page_table::{PageTable, Row, Sums};
pub use pool_file::{PoolError, PoolFile, PoolSpec};
pub use pool_view::PoolView;
use transfers::Wire;

/// What a shell says to start a rank.
#[derive(Clone, Debug)]
pub struct RankSetup {
    /// What the group stores.
    pub manifest: Manifest,
    /// Which rank of the group.
    pub rank: Rank,
    /// This life of it, drawn by the shell.
    pub incarnation: Incarnation,
    /// Its pool file; attached when it exists, made otherwise.
    pub pool_file: PathBuf,
    /// Host slots.
    pub host_slots: u32,
    /// Whether stored records get checksums and loads compare them: a diagnostic that reads every byte again, each
    /// way.
    pub fingerprints: bool,
    /// Largest message of the bus, in bytes.
    pub payload_bytes_max: usize,
    /// What carries its pages to other groups and from them, if anything.
    pub wire: Option<Arc<dyn Backend>>,
}

/// A rank with its name and its numbers.
#[derive(Debug)]
pub struct RankHost {
    host: Host<RankMachine>,
}

impl RankHost {
    /// Attaches or makes the pool file and starts the rank. Its first deadline has come already: it presents itself.
    ///
    /// # Errors
    /// The manifest describes no page, the rank is not of the group, or the pool file cannot be used.
    pub fn start(setup: RankSetup, copies: Arc<CopyThreads>, notify: Notify) -> Result<Self, RankError> {
        let RankSetup { manifest, rank, incarnation, pool_file, host_slots, fingerprints, payload_bytes_max, wire } =
            setup;
        let layout = layout_of(&manifest)?;
        if rank.0 >= manifest.cp_size {
            return Err(RankError::Rank { rank, cp_size: manifest.cp_size });
        }
        let spec = PoolSpec { manifest: &manifest, layout: &layout, rank, slots: host_slots };
        let pool = PoolFile::open(&pool_file, spec)?;
        let wire = wire.map(|backend| Wire::start(&*backend, notify.clone())).transpose()?;
        let parts = RankParts { rank, cp_size: manifest.cp_size, incarnation, layout, pool, fingerprints, wire };
        let machine = RankMachine::new(parts, copies, notify);
        let host = Host::new(machine, Address::Rank(rank), incarnation, Incarnation::default(), payload_bytes_max);
        Ok(Self { host })
    }

    /// Takes the bytes of one message.
    pub fn deliver(&mut self, now: Time, bytes: &[u8], reply: Option<Arc<str>>, trace: Trace, out: &mut Output) {
        self.host.deliver(now, bytes, reply, trace, out);
        self.host.set_control(self.host.machine.control());
    }

    /// Takes in what copies have said; due when `notify` was called.
    pub fn collect(&mut self, now: Time, out: &mut Output) {
        self.host.with(out, |machine, effects| machine.collect(now, effects));
    }

    /// Acts on time.
    pub fn wake(&mut self, now: Time, out: &mut Output) {
        self.host.wake(now, out);
    }

    /// The earliest deadline and what it is for.
    pub fn next_deadline(&self) -> Option<(Time, &'static str)> {
        self.host.next_deadline()
    }

    /// Named figures.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        self.host.counters()
    }

    /// Tells these figures with its own.
    pub fn set_beside(&mut self, figures: Beside) {
        self.host.set_beside(figures);
    }

    /// The rank itself: for an orderly end and tests.
    pub fn machine(&mut self) -> &mut RankMachine {
        &mut self.host.machine
    }
}

/// Why a rank cannot start.
#[derive(Debug, thiserror::Error)]
pub enum RankError {
    /// The manifest describes no page.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// The group has no such rank.
    #[error("rank {} of a group of {cp_size}", rank.0)]
    Rank {
        /// The rank.
        rank: Rank,
        /// Ranks of the group.
        cp_size: u8,
    },
    /// The pool file cannot be used.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// What carries its pages cannot start.
    #[error(transparent)]
    Wire(#[from] StartError),
}

fn busy(queue: &str, bound: usize) -> Refusal {
    Busy { queue: queue.to_owned(), bound: bound as u64, retry_ms: RETRY_MS }.into()
}

/// When a full queue is worth another try: a few layers later.
const RETRY_MS: u32 = 50;
