//! What of a push moves at once: pages of one buffer, as runs that are contiguous at both ends.

use std::sync::Arc;

use hicached_kernels::layout::L1Page;

use super::claim::Claiming;
use super::job::Job;
use super::pool::Span;

/// Entries of a push whose pages stand side by side at both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// The first entry.
    pub(super) first: u32,
    /// Pages of it, at least one.
    pub(super) pages: u32,
}

/// How large a piece may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct PieceBounds {
    /// Bytes, unless a single page has more.
    pub(super) bytes: u64,
    /// Pages.
    pub(super) pages: u32,
}

/// A part of one buffer of a push, on its way.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) job: Arc<Job>,
    /// Place of the buffer in the source.
    pub(super) place: usize,
    pub(super) runs: Vec<Run>,
    pub(super) bytes: u64,
}

impl Piece {
    /// Where its bytes stand, one span a run.
    pub(super) fn spans(&self) -> Vec<Span> {
        let job = &self.job;
        let span = |run: &Run| job.source.span(self.place, L1Page(job.pages[run.first as usize]), run.pages);
        self.runs.iter().map(span).collect()
    }

    /// First position and count of each row of positions that follow each other.
    pub(super) fn positions(&self) -> Vec<(u32, u32)> {
        let entries = self.runs.iter().flat_map(|run| run.first..run.first + run.pages);
        let mut rows: Vec<(u32, u32)> = Vec::new();
        for position in entries.map(|entry| self.job.positions[entry as usize]) {
            match rows.last_mut() {
                Some((first, count)) if u64::from(*first) + u64::from(*count) == u64::from(position) => *count += 1,
                Some(_) | None => rows.push((position, 1)),
            }
        }
        rows
    }

    /// What it says of itself where it lands, with the rows of its positions.
    pub(super) fn claiming<'a>(&self, rows: &'a [(u32, u32)]) -> Claiming<'a> {
        let buffer = &self.job.source.buffers().as_slice()[self.place];
        Claiming {
            secret: self.job.secret,
            attempt: self.job.key.name.attempt,
            rank: self.job.rank,
            component: buffer.component as u8,
            layer: buffer.layer,
            runs: rows,
            bytes: self.bytes,
        }
    }
}
