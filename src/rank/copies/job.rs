//! One copy of one rank: the pages of an op, layer by layer, in one direction.
//!
//! A job ends once: when its last layer is in place, or after a stop or a fault as soon as no thread is inside it.
//! Ending settles the load slot of a load. Layers may finish in any order; the word of a load moves over the
//! longest row of layers that are in place. A load whose records are to be checked copies nothing, and so moves no
//! word, before all of them were found whole: no engine computes on a layer of a damaged record.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use hicached_actors::protocol::{ComponentMissing, Key, Malformed, Refusal, WrongState};
use hicached_client::shm::LoadState;
use hicached_kernels::copy_cpu::{CopyError, Direction, Pools};
use hicached_kernels::layout::{Component, Layout};
use hicached_kernels::runs::Runs;

use super::{Event, Events};
use crate::crash::{self, Inside};
use crate::rank::checked_read::{damaged_component, sums_of};
use crate::rank::l1::L1;
use crate::rank::layout::LayerCount;
use crate::rank::page_table::Sums;
use crate::rank::pool_file::PoolFile;

/// Names a job within its rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::rank) struct JobId(pub(in crate::rank) u64);

/// The memory a job works on; it keeps both mappings alive.
#[derive(Clone, Debug)]
pub(in crate::rank) struct Ground {
    pub(in crate::rank) layout: Arc<Layout>,
    pub(in crate::rank) pool: Arc<PoolFile>,
    pub(in crate::rank) l1: Arc<L1>,
}

/// What a job is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::rank) enum JobKind {
    /// From L1 to L2.
    Backup {
        /// The step that computes the pages, 0 when they are computed.
        step: u64,
        /// Whether the records are summed when they are whole.
        sums: bool,
    },
    /// From L2 to L1.
    Load {
        /// Slot in the ring.
        slot: u32,
        /// Which use of it.
        use_count: u64,
        /// The word before the first layer.
        base: u64,
    },
}

/// What a record has to be before it is loaded.
#[derive(Clone, Copy, Debug)]
pub(in crate::rank) struct Check {
    pub(in crate::rank) slot: u32,
    /// The page it holds.
    pub(in crate::rank) key: Key,
    pub(in crate::rank) sums: Sums,
}

/// How a job ended.
#[derive(Debug)]
pub(in crate::rank) struct End {
    /// Why it did not complete.
    pub(in crate::rank) failed: Option<Refusal>,
    /// Checksums of its records, in the order of its pages, when they were asked for.
    pub(in crate::rank) sums: Vec<Sums>,
    /// Records that were compared with their checksums.
    pub(in crate::rank) checked: u32,
    /// Slots whose records are not what they were sealed as, and a component that differs in each.
    pub(in crate::rank) damaged: Vec<(u32, Component)>,
    /// What it cost.
    pub(in crate::rank) tally: Tally,
    /// How its layers went, in the order in which they ended; none unless they were to be timed.
    pub(in crate::rank) layers: Vec<LayerTimes>,
}

/// How the copy of one layer went.
#[derive(Clone, Copy, Debug)]
pub(in crate::rank) struct LayerTimes {
    /// Its place in the order of a load.
    pub(in crate::rank) index: u32,
    /// From the beginning of the job until it could be copied.
    pub(in crate::rank) ready: Duration,
    /// From there until a thread had time for it.
    pub(in crate::rank) waited: Duration,
    /// From there until it was in place.
    pub(in crate::rank) copying: Duration,
}

/// Figures of a job.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::rank) struct Tally {
    /// Bytes copied.
    pub(in crate::rank) bytes: u64,
    /// Time threads spent copying.
    pub(in crate::rank) copying: Duration,
    /// Time its ready layers waited for a thread.
    pub(in crate::rank) waiting: Duration,
}

/// A copy, shared by the rank and the threads that make it.
#[derive(Debug)]
pub(in crate::rank) struct Job {
    id: JobId,
    kind: JobKind,
    runs: Runs,
    /// Records to be compared before the first layer is copied.
    checks: Vec<Check>,
    layers: LayerCount,
    ground: Ground,
    events: Events,
    began: Instant,
    /// Whether somebody wants to know how each layer went.
    timed: bool,
    progress: Mutex<Progress>,
}

#[derive(Debug)]
struct Progress {
    /// Threads inside a copy of this job.
    running: u32,
    checked: u32,
    damaged: Vec<(u32, Component)>,
    /// By place in the order of a load.
    done: Vec<bool>,
    /// All layers before this place are done.
    done_row: u32,
    stop: Option<Refusal>,
    over: bool,
    tally: Tally,
    layers: Vec<LayerTimes>,
}

impl Job {
    pub(in crate::rank) fn new(
        id: JobId,
        kind: JobKind,
        runs: Runs,
        checks: Vec<Check>,
        ground: Ground,
        events: Events,
        timed: bool,
    ) -> Arc<Self> {
        let layers = LayerCount::of(&ground.layout);
        let progress = Progress {
            running: 0,
            checked: 0,
            damaged: Vec::new(),
            done: vec![false; layers.total() as usize],
            done_row: 0,
            stop: None,
            over: false,
            tally: Tally::default(),
            layers: Vec::new(),
        };
        let (began, progress) = (Instant::now(), Mutex::new(progress));
        Arc::new(Self { id, kind, runs, checks, layers, ground, events, began, timed, progress })
    }

    pub(in crate::rank) fn id(&self) -> JobId {
        self.id
    }

    pub(in crate::rank) fn kind(&self) -> &JobKind {
        &self.kind
    }

    pub(in crate::rank) fn runs(&self) -> &Runs {
        &self.runs
    }

    pub(in crate::rank) fn layers(&self) -> LayerCount {
        self.layers
    }

    /// How many records are to be checked before its first layer.
    pub(super) fn checks(&self) -> usize {
        self.checks.len()
    }

    /// Whether the layer at each place in the order of a load is in place.
    pub(in crate::rank) fn done(&self) -> Vec<bool> {
        self.lock().done.clone()
    }

    /// No further layer begins; the job ends when no thread is inside it.
    pub(in crate::rank) fn stop(&self, why: Refusal) {
        let mut progress = self.lock();
        progress.stop.get_or_insert(why);
        let ended = self.end_if_due(&mut progress);
        drop(progress);
        self.tell(ended);
    }

    /// Copies one layer, unless the job is being stopped.
    pub(super) fn copy_layer(&self, index: u32, waited: Duration) {
        if !self.begin(waited) {
            return;
        }
        let started = Instant::now();
        let (track, layer) = self.layers.at(index);
        let direction = match self.kind {
            JobKind::Backup { .. } => Direction::Down,
            JobKind::Load { .. } => Direction::Up,
        };
        let moved = self.ground.pools().copy_layer(direction, track, layer, &self.runs);
        let copying = started.elapsed();
        let ready = started.duration_since(self.began).saturating_sub(waited);
        self.layer_ended(moved, LayerTimes { index, ready, waited, copying });
    }

    /// Compares one record with its checksums; whether that was the last one and all are whole.
    pub(super) fn check_record(&self, at: usize, waited: Duration) -> bool {
        if !self.begin(waited) {
            return false;
        }
        let Check { slot, key, sums } = &self.checks[at];
        let damaged = damaged_component(&self.ground.pool, &self.ground.layout, *slot, sums);
        let mut progress = self.lock();
        progress.running -= 1;
        progress.checked += 1;
        if let Some(component) = damaged {
            let missing = ComponentMissing { key: *key, component: component.name().to_owned() };
            progress.stop.get_or_insert_with(|| missing.into());
            progress.damaged.push((*slot, component));
        }
        let may_copy = progress.checked as usize == self.checks.len() && progress.stop.is_none();
        let ended = self.end_if_due(&mut progress);
        drop(progress);
        self.tell(ended);
        may_copy
    }

    fn begin(&self, waited: Duration) -> bool {
        let mut progress = self.lock();
        if let JobKind::Load { slot, use_count, .. } = self.kind
            && self.ground.pool.ring().state(slot, use_count) != LoadState::Pending
        {
            progress.stop.get_or_insert_with(|| given_up(slot));
        }
        if progress.over || progress.stop.is_some() {
            let ended = self.end_if_due(&mut progress);
            drop(progress);
            self.tell(ended);
            return false;
        }
        progress.running += 1;
        progress.tally.waiting += waited;
        true
    }

    fn layer_ended(&self, moved: Result<u64, CopyError>, times: LayerTimes) {
        let mut progress = self.lock();
        progress.running -= 1;
        progress.tally.copying += times.copying;
        if self.timed && moved.is_ok() {
            progress.layers.push(times);
        }
        match moved {
            Ok(bytes) => {
                progress.tally.bytes += bytes;
                progress.done[times.index as usize] = true;
            }
            // Everything was checked before the job began: a refusal is a fault of this rank, and is reported.
            Err(error) => {
                progress.stop.get_or_insert_with(|| Malformed::new("copy", error, "what its checks let pass").into());
            }
        }
        while progress.done.get(progress.done_row as usize) == Some(&true) {
            progress.done_row += 1;
        }
        if progress.done_row == self.layers.total() / 2 {
            crash::reach(self.half_way());
        }
        if let JobKind::Load { slot, base, .. } = self.kind
            && progress.done_row < self.layers.total()
        {
            self.ground.pool.ring().advance(slot, base + u64::from(progress.done_row));
        }
        let ended = self.end_if_due(&mut progress);
        drop(progress);
        self.tell(ended);
    }

    fn half_way(&self) -> Inside {
        match self.kind {
            JobKind::Backup { .. } => Inside::HalfCopied,
            JobKind::Load { .. } => Inside::HalfLoaded,
        }
    }

    fn end_if_due(&self, progress: &mut Progress) -> Option<End> {
        let complete = progress.done_row == self.layers.total();
        if progress.over || progress.running > 0 || !(complete || progress.stop.is_some()) {
            return None;
        }
        progress.over = true;
        let why = if complete { None } else { progress.stop.clone() };
        Some(End {
            failed: self.settle(why),
            sums: Vec::new(),
            checked: progress.checked,
            damaged: std::mem::take(&mut progress.damaged),
            tally: progress.tally,
            layers: std::mem::take(&mut progress.layers),
        })
    }

    /// Settles the load slot of a load; a load that somebody else has given up has failed.
    fn settle(&self, failed: Option<Refusal>) -> Option<Refusal> {
        let JobKind::Load { slot, use_count, base } = self.kind else { return failed };
        let (ring, end) = (self.ground.pool.ring(), base + u64::from(self.layers.total()));
        if failed.is_none() && ring.finish(slot, use_count).is_ok() {
            ring.advance(slot, end);
            return None;
        }
        // Whoever was first has settled the status; the word must reach its end all the same.
        ring.fail(slot, use_count, end).ok();
        failed.or_else(|| Some(given_up(slot)))
    }

    fn tell(&self, ended: Option<End>) {
        let Some(mut end) = ended else { return };
        if matches!(self.kind, JobKind::Backup { sums: true, .. }) && end.failed.is_none() {
            let hosts = self.runs.as_slice().iter().flat_map(|run| (0..run.pages).map(|page| run.host_page.0 + page));
            end.sums = hosts.map(|slot| sums_of(&self.ground.pool, &self.ground.layout, slot)).collect();
        }
        self.events.send(Event::Ended(self.id, Box::new(end)));
    }

    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().expect("no thread panics inside a job: that ends the process")
    }
}

impl Ground {
    fn pools(&self) -> Pools<'_> {
        Pools {
            layout: &self.layout,
            l1_layout: self.l1.layout(),
            l1: self.l1.bytes(),
            host: self.pool.records(),
            host_pages: self.pool.slots(),
        }
    }
}

fn given_up(slot: u32) -> Refusal {
    WrongState { what: format!("load slot {slot}"), state: "failed by the engine or superseded".to_owned() }.into()
}
