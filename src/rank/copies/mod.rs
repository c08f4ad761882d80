//! Copies of all ranks of a process: a bounded pool of threads that moves layers by priority, and one thread that
//! watches the words of the ranks that wait for something.
//!
//! No thread belongs to an op: a layer that is ready is a task in one queue. Order: loads, then backups in step
//! order, target before draft of the same step. A layer of a backup enters the queue when its track's word says that it
//! is done, never earlier; a layer of a load that is checked, when all its records were found whole.
//!
//! Not here: which pages to copy (the messages), whose they are meanwhile (`Claims`).

mod job;
mod queue;
mod watcher;

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;

use hicached_client::shm::Words;

pub(super) use job::{Check, End, Ground, Job, JobId, JobKind, LayerTimes};
use queue::Queue;
pub(super) use watcher::WatchId;
use watcher::Watcher;

use super::layout::LayerCount;
use crate::wire::{Launch, PushKey};

/// The threads that copy for every rank of a process. Dropping the last handle ends and joins them; what was not
/// begun is dropped with them.
#[derive(Debug)]
pub struct CopyThreads {
    queue: Arc<Queue>,
    watcher: Arc<Watcher>,
    threads: Vec<JoinHandle<()>>,
}

impl CopyThreads {
    /// Starts `workers` copying threads, at least one, and the watching one.
    ///
    /// # Errors
    /// The operating system's, when it gives no thread.
    pub fn start(workers: usize) -> std::io::Result<Arc<Self>> {
        let queue = Arc::new(Queue::default());
        let watcher = Arc::new(Watcher::new(queue.clone()));
        let mut all = Self { queue, watcher, threads: Vec::new() };
        for number in 0..workers.max(1) {
            let queue = all.queue.clone();
            all.spawn(format!("copy-{number}"), move || queue.work())?;
        }
        let watcher = all.watcher.clone();
        all.spawn("words".to_owned(), move || watcher.run())?;
        Ok(Arc::new(all))
    }

    /// Tasks that wait for a thread.
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    fn spawn(&mut self, name: String, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
        self.threads.push(crate::threads::spawn(name, run)?);
        Ok(())
    }

    /// Makes the words of a rank known to the watcher.
    pub(super) fn watch_words(&self, words: Words, layers: LayerCount, events: Events) -> WatchId {
        self.watcher.add(words, layers, events)
    }

    /// The rank is gone: nothing waits for its words any more.
    pub(super) fn forget_words(&self, id: WatchId) {
        self.watcher.remove(id);
    }

    /// Every layer of `job` is ready, once its records were checked if they are to be.
    pub(super) fn submit(&self, job: &Arc<Job>) {
        match job.checks() {
            0 => self.queue.push_layers(job, 0..job.layers().total()),
            _ => self.queue.push_checks(job),
        }
    }

    /// The layers of `job` become ready as the words of its rank pass those of `step`; with `at_end`, all of them
    /// when both tracks have passed the step.
    pub(super) fn submit_behind(&self, id: WatchId, job: &Arc<Job>, step: u64, at_end: bool) {
        self.watcher.gate_layers(id, job, step, at_end);
    }

    /// The layers of a push of this rank leave as the words of `step` pass them.
    pub(super) fn push_behind(&self, id: WatchId, launch: Arc<dyn Launch>, key: PushKey, step: u64) {
        self.watcher.gate_push(id, launch, key, step);
    }

    /// No layer of this push becomes ready any more.
    pub(super) fn forget_push(&self, id: WatchId, key: PushKey) {
        self.watcher.forget_push(id, key);
    }

    /// Says [`Event::Passed`] once both words have passed `step`.
    pub(super) fn watch_step(&self, id: WatchId, step: u64) {
        self.watcher.gate_step(id, step);
    }

    /// Nobody watches steps of this rank any more.
    pub(super) fn forget_steps(&self, id: WatchId) {
        self.watcher.forget_steps(id);
    }

    /// No layer of `job` becomes ready any more.
    pub(super) fn forget_job(&self, id: WatchId, job: JobId) {
        self.watcher.forget(id, job);
    }
}

impl Drop for CopyThreads {
    fn drop(&mut self) {
        self.watcher.close();
        self.queue.close();
        for thread in self.threads.drain(..) {
            // A thread that panicked has ended the process; nothing is left to say here.
            thread.join().ok();
        }
    }
}

/// What copying threads tell the rank whose copies they make.
#[derive(Debug)]
pub(super) enum Event {
    /// Nothing of a job reads or writes any more.
    Ended(JobId, Box<End>),
    /// A step that somebody watches has been passed.
    Passed,
}

/// Called when an event waits: it must not block, and must not call into the rank.
pub type Notify = Arc<dyn Fn() + Send + Sync>;

/// Where events of one rank go.
#[derive(Clone)]
pub(super) struct Events {
    to: Sender<Event>,
    notify: Notify,
}

impl Events {
    pub(super) fn new(to: Sender<Event>, notify: Notify) -> Self {
        Self { to, notify }
    }

    /// Hands `event` over and wakes who drives the rank. Never called with a lock held.
    fn send(&self, event: Event) {
        // Nobody listens once the rank is dropped; then nobody needs the event.
        if self.to.send(event).is_ok() {
            (self.notify)();
        }
    }
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Events")
    }
}
