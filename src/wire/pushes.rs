//! The pushes of a sending rank: begun, moved on as layers become ready, stopped, and told of when they have ended.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hicached_actors::protocol::{Busy, Refusal, WrongState};

use super::job::{Ended, Job};
use super::lane::Lane;
use super::piece::Piece;
use super::{
    Cause, Event, Events, FrameRefusal, LayersReady, Name, PUSHES_MAX, PushEnd, PushKey, PushOrder, StartError,
};

/// The pushes of one rank, and the thread that looks after their deadlines.
#[derive(Debug)]
pub(super) struct Pushes {
    running: Arc<Running>,
    deadlines: Option<JoinHandle<()>>,
}

/// What the threads that send share.
#[derive(Debug)]
pub(super) struct Running {
    table: Mutex<Table>,
    changed: Condvar,
    events: Events,
}

#[derive(Debug, Default)]
struct Table {
    jobs: BTreeMap<PushKey, (Arc<Job>, Arc<Lane>)>,
    /// Attempts whose last push will be told of.
    stopping: BTreeSet<Name>,
    closed: bool,
}

impl Pushes {
    /// No pushes yet.
    ///
    /// # Errors
    /// The operating system gives no thread.
    pub(super) fn start(events: Events) -> Result<Self, StartError> {
        let running = Arc::new(Running { table: Mutex::default(), changed: Condvar::new(), events });
        let of_thread = running.clone();
        let deadlines = super::spawn("wire-deadlines", move || of_thread.look_at_deadlines())?;
        Ok(Self { running, deadlines: Some(deadlines) })
    }

    /// What the threads that send share.
    pub(super) fn running(&self) -> &Arc<Running> {
        &self.running
    }

    /// Begins a push over the lane that `lane` finds.
    ///
    /// # Errors
    /// As [`super::Launch::push`].
    pub(super) fn push(
        &self,
        order: PushOrder,
        lane: impl FnOnce(&str) -> Result<Arc<Lane>, Refusal>,
    ) -> Result<(), Refusal> {
        let (key, ready, now) = (order.key, order.ready, Instant::now());
        let job = Arc::new(Job::new(order, now)?);
        let lane = lane(&job.endpoint)?;
        let mut table = self.running.lock();
        if table.jobs.contains_key(&key) {
            return Err(WrongState::new(key, "running").into());
        }
        if table.jobs.len() >= PUSHES_MAX {
            let (queue, bound) = ("pushes".to_owned(), PUSHES_MAX as u64);
            return Err(Busy { queue, bound, retry_ms: BUSY_RETRY_MS }.into());
        }
        table.jobs.insert(key, (job, lane));
        drop(table);
        self.running.changed.notify_all();
        self.ready(key, ready);
        Ok(())
    }

    pub(super) fn ready(&self, key: PushKey, layers: LayersReady) {
        let Some((job, lane)) = self.running.lock().jobs.get(&key).cloned() else { return };
        let (queue, ended) = job.ready(layers, Instant::now());
        if queue {
            lane.add(job);
        }
        self.running.ended(key, ended);
    }

    pub(super) fn stop(&self, name: Name) {
        let mut table = self.running.lock();
        let parts = PushKey { name, part: 0 }..=PushKey { name, part: u32::MAX };
        let jobs: Vec<Arc<Job>> = table.jobs.range(parts).map(|(_, (job, _))| job.clone()).collect();
        if !jobs.is_empty() {
            table.stopping.insert(name);
        }
        drop(table);
        if jobs.is_empty() {
            return self.running.events.send(Event::Stopped(name));
        }
        for job in jobs {
            self.running.ended(job.key, job.stop(PushEnd::Stopped, Instant::now()));
        }
    }

    pub(super) fn stop_all(&self) {
        let names: BTreeSet<Name> = self.running.lock().jobs.keys().map(|key| key.name).collect();
        names.into_iter().for_each(|name| self.stop(name));
    }

    pub(super) fn is_still(&self) -> bool {
        self.running.lock().jobs.is_empty()
    }
}

impl Drop for Pushes {
    fn drop(&mut self) {
        self.running.lock().closed = true;
        self.running.changed.notify_all();
        if let Some(deadlines) = self.deadlines.take() {
            // A panic of that thread has ended the process.
            deadlines.join().ok();
        }
    }
}

impl Running {
    /// `piece` was acknowledged.
    pub(super) fn landed(&self, piece: &Piece) {
        self.ended(piece.job.key, piece.job.landed(piece.bytes, Instant::now()));
    }

    /// `piece` was refused.
    pub(super) fn refused(&self, piece: &Piece, refusal: FrameRefusal) {
        self.ended(piece.job.key, piece.job.refused(piece.place, refusal, Instant::now()));
    }

    /// `piece` is not on its way any more, for this cause.
    pub(super) fn lost(&self, piece: &Piece, cause: Cause) {
        self.ended(piece.job.key, piece.job.lost(PushEnd::Failed(cause), Instant::now()));
    }

    /// `piece` has not left, and its push is being stopped.
    pub(super) fn dropped(&self, piece: &Piece) {
        self.ended(piece.job.key, piece.job.lost(PushEnd::Stopped, Instant::now()));
    }

    /// Every push that waits in `lane` fails.
    pub(super) fn fail_queued(&self, lane: &Lane, cause: &Cause) {
        for job in lane.drain() {
            self.ended(job.key, job.stop(PushEnd::Failed(cause.clone()), Instant::now()));
        }
    }

    fn ended(&self, key: PushKey, ended: Option<Ended>) {
        let Some((end, figures)) = ended else { return };
        let mut table = self.lock();
        table.jobs.remove(&key);
        let parts = PushKey { name: key.name, part: 0 }..=PushKey { name: key.name, part: u32::MAX };
        let stopped = table.jobs.range(parts).next().is_none() && table.stopping.remove(&key.name);
        drop(table);
        self.events.send(Event::Pushed(key, end, figures));
        if stopped {
            self.events.send(Event::Stopped(key.name));
        }
    }

    fn look_at_deadlines(&self) {
        let mut table = self.lock();
        while !table.closed {
            if table.jobs.is_empty() {
                table = self.changed.wait(table).expect(NO_PANIC);
                continue;
            }
            let now = Instant::now();
            let late = table.jobs.values().filter_map(|(job, _)| job.overdue(now).map(|why| (job.clone(), why)));
            let late: Vec<(Arc<Job>, PushEnd)> = late.collect();
            drop(table);
            for (job, why) in late {
                self.ended(job.key, job.stop(why, now));
            }
            table = self.lock();
            if !table.closed {
                table = self.changed.wait_timeout(table, DEADLINE_PAUSE).expect(NO_PANIC).0;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().expect(NO_PANIC)
    }
}

/// Between two looks at deadlines, which are seconds.
const DEADLINE_PAUSE: Duration = Duration::from_millis(5);
/// A push is over in less.
const BUSY_RETRY_MS: u32 = 50;
const NO_PANIC: &str = "no thread panics with the pushes locked";
