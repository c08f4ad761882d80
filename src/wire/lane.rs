//! The row of pushes that wait for the threads of one peer. The oldest with something ready goes first: pushes that
//! took turns would all be under way for as long as the last of them, and time in the row is not transfer time.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Instant;

use super::PushKey;
use super::job::Job;
use super::piece::{Piece, PieceBounds};

/// Pushes with pieces that are ready. Its length is bounded by the pushes a rank may have.
#[derive(Debug)]
pub(super) struct Lane {
    bounds: PieceBounds,
    row: Mutex<Row>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Row {
    /// By age.
    jobs: BTreeMap<(Instant, PushKey), Arc<Job>>,
    closed: bool,
}

impl Lane {
    pub(super) fn new(bounds: PieceBounds) -> Self {
        Self { bounds, row: Mutex::default(), changed: Condvar::new() }
    }

    /// Puts a job into the row; it is not in it.
    pub(super) fn add(&self, job: Arc<Job>) {
        self.lock().jobs.insert((job.began, job.key), job);
        // Each of its pieces can go to another thread.
        self.changed.notify_all();
    }

    /// The next piece; `None` once closed.
    pub(super) fn wait(&self) -> Option<Piece> {
        let mut row = self.lock();
        loop {
            if row.closed {
                return None;
            }
            if let Some(piece) = row.take(self.bounds) {
                return Some(piece);
            }
            row = self.changed.wait(row).expect(NO_PANIC);
        }
    }

    /// The next piece, when one is ready.
    pub(super) fn try_take(&self) -> Option<Piece> {
        let mut row = self.lock();
        if row.closed { None } else { row.take(self.bounds) }
    }

    /// Takes every job out of the row.
    pub(super) fn drain(&self) -> Vec<Arc<Job>> {
        std::mem::take(&mut self.lock().jobs).into_values().collect()
    }

    /// Lets its threads end.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// Whether its threads are to end.
    pub(super) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    fn lock(&self) -> MutexGuard<'_, Row> {
        self.row.lock().expect(NO_PANIC)
    }
}

impl Row {
    fn take(&mut self, bounds: PieceBounds) -> Option<Piece> {
        while let Some((age, job)) = self.jobs.pop_first() {
            let (piece, more) = job.take(bounds, Instant::now());
            if more {
                self.jobs.insert(age, job);
            }
            if piece.is_some() {
                return piece;
            }
        }
        None
    }
}

const NO_PANIC: &str = "no thread panics with a lane locked";
