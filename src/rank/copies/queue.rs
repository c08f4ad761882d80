//! Tasks that are ready, most urgent first.

use std::collections::BinaryHeap;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Instant;

use hicached_kernels::layout::Track;

use super::job::{Job, JobKind};

/// The queue of one process. Its length is bounded by the jobs a rank may have, and the layers of a page or the pages
/// of a load that is checked.
#[derive(Debug, Default)]
pub(super) struct Queue {
    ready: Mutex<Ready>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Ready {
    tasks: BinaryHeap<Task>,
    next: u64,
    closed: bool,
}

#[derive(Debug)]
struct Task {
    urgency: Urgency,
    since: Instant,
    work: Work,
}

#[derive(Debug)]
enum Work {
    /// One layer of a job.
    Layer(Arc<Job>, u32),
    /// One record of a load that is compared before any of its layers is copied.
    Check(Arc<Job>, usize),
}

/// Smaller is more urgent, field by field: kind, step, track, then first come, first served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Urgency {
    class: Class,
    step: u64,
    track: Track,
    job: u64,
    number: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    Load,
    Backup,
}

impl Queue {
    /// Queues layers of `job`, in their order.
    pub(super) fn push_layers(&self, job: &Arc<Job>, layers: Range<u32>) {
        let since = Instant::now();
        let count = layers.len();
        let mut ready = self.lock();
        for layer in layers {
            let (class, step, track) = match job.kind() {
                // Layers of one load arrive in order, so that its word can move.
                JobKind::Load { .. } => LOAD,
                JobKind::Backup { step, .. } => (Class::Backup, *step, job.layers().at(layer).0),
            };
            let urgency = Urgency { class, step, track, job: job.id().0, number: ready.draw() };
            ready.tasks.push(Task { urgency, since, work: Work::Layer(job.clone(), layer) });
        }
        drop(ready);
        self.wake(count);
    }

    /// Queues the checks of a load; its layers follow when every record was found whole.
    pub(super) fn push_checks(&self, job: &Arc<Job>) {
        let since = Instant::now();
        let (class, step, track) = LOAD;
        let mut ready = self.lock();
        for at in 0..job.checks() {
            let urgency = Urgency { class, step, track, job: job.id().0, number: ready.draw() };
            ready.tasks.push(Task { urgency, since, work: Work::Check(job.clone(), at) });
        }
        drop(ready);
        self.wake(job.checks());
    }

    /// Runs tasks until the queue is closed.
    pub(super) fn work(&self) {
        while let Some(task) = self.next() {
            match task.work {
                Work::Layer(job, layer) => job.copy_layer(layer, task.since.elapsed()),
                Work::Check(job, at) => {
                    if job.check_record(at, task.since.elapsed()) {
                        self.push_layers(&job, 0..job.layers().total());
                    }
                }
            }
        }
    }

    /// Drops what was not begun and lets the workers end.
    pub(super) fn close(&self) {
        let mut ready = self.lock();
        ready.closed = true;
        ready.tasks.clear();
        drop(ready);
        self.changed.notify_all();
    }

    /// Tasks that wait.
    pub(super) fn len(&self) -> usize {
        self.lock().tasks.len()
    }

    fn next(&self) -> Option<Task> {
        let mut ready = self.lock();
        loop {
            if ready.closed {
                return None;
            }
            if let Some(task) = ready.tasks.pop() {
                return Some(task);
            }
            ready = self.changed.wait(ready).expect(NO_PANIC);
        }
    }

    fn wake(&self, tasks: usize) {
        match tasks {
            0 => {}
            1 => self.changed.notify_one(),
            _ => self.changed.notify_all(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Ready> {
        self.ready.lock().expect(NO_PANIC)
    }
}

impl Ready {
    fn draw(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

/// A heap gives its greatest: the most urgent task is that.
impl Ord for Task {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other.urgency.cmp(&self.urgency)
    }
}

impl PartialOrd for Task {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Task {
    fn eq(&self, other: &Self) -> bool {
        self.urgency == other.urgency
    }
}

impl Eq for Task {}

/// Class, step and track of what belongs to a load.
const LOAD: (Class, u64, Track) = (Class::Load, 0, Track::Target);

/// A panic of a copying thread ends the process.
const NO_PANIC: &str = "no thread panics with the queue locked";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_come_first_then_backups_by_step_and_target_before_draft() {
        let urgency = |class, step, track, job| Urgency { class, step, track, job, number: 0 };
        let in_order = [
            urgency(Class::Load, 0, Track::Target, 9),
            urgency(Class::Backup, 3, Track::Target, 8),
            urgency(Class::Backup, 3, Track::Draft, 1),
            urgency(Class::Backup, 4, Track::Target, 2),
            urgency(Class::Backup, 4, Track::Target, 5),
            urgency(Class::Backup, 4, Track::Draft, 2),
        ];
        assert!(in_order.is_sorted());
    }
}
