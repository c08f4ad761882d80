//! Bytes that are about to land: checked against their grant, and nobody else's until they have.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use hicached_actors::protocol::{CP_SIZE_MAX, NOBODY, Rank};
use hicached_kernels::layout::{Component, L1Page};

use super::board::{Board, Writing};
use super::pool::Span;
use super::{FrameRefusal, SECRET_BYTES};

/// What a frame says of itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claiming<'a> {
    pub(super) secret: [u8; SECRET_BYTES],
    pub(super) attempt: u32,
    pub(super) rank: Rank,
    /// Place of the component in [`Component::ALL`].
    pub(super) component: u8,
    pub(super) layer: u32,
    /// First position and count of each run.
    pub(super) runs: &'a [(u32, u32)],
    pub(super) bytes: u64,
}

/// Places that one frame fills; given back unless it has landed.
#[derive(Debug)]
pub(super) struct Claim {
    board: Arc<Board>,
    rank: Rank,
    /// Place of the buffer.
    place: usize,
    /// First place and count of each run of positions.
    runs: Vec<(usize, usize)>,
    bytes: u64,
    landed: bool,
}

impl Claim {
    /// Takes the places of a frame. Refusals are counted on the board.
    ///
    /// # Errors
    /// [`FrameRefusal`]; nothing is taken then.
    pub(super) fn take(board: &Arc<Board>, frame: &Claiming<'_>) -> Result<Self, FrameRefusal> {
        let taken = Self::checked(board, frame);
        if let Err(refusal) = taken {
            board.count_refused(refusal);
        }
        taken
    }

    fn checked(board: &Arc<Board>, frame: &Claiming<'_>) -> Result<Self, FrameRefusal> {
        if frame.secret != board.secret {
            return Err(FrameRefusal::Grant);
        }
        if frame.attempt != board.name.attempt {
            return Err(FrameRefusal::Attempt);
        }
        if board.is_closed() {
            return Err(FrameRefusal::Late);
        }
        if frame.rank.0 >= CP_SIZE_MAX {
            return Err(FrameRefusal::Rank);
        }
        let component = Component::ALL.get(usize::from(frame.component)).ok_or(FrameRefusal::Buffer)?;
        let place = board.buffers.place(*component, frame.layer).ok_or(FrameRefusal::Buffer)?;
        let pages: u64 = frame.runs.iter().map(|(_, count)| u64::from(*count)).sum();
        let page_bytes = board.buffers.as_slice()[place].page_bytes;
        if pages == 0 || pages.checked_mul(page_bytes) != Some(frame.bytes) {
            return Err(FrameRefusal::Bytes);
        }
        let (rank, board, bytes) = (frame.rank, board.clone(), frame.bytes);
        let mut claim = Self { board, rank, place, runs: Vec::with_capacity(frame.runs.len()), bytes, landed: false };
        for (first, count) in frame.runs {
            claim.take_run(*first, *count)?;
        }
        Ok(claim)
    }

    /// What is taken before a fault is given back with the claim.
    fn take_run(&mut self, first: u32, count: u32) -> Result<(), FrameRefusal> {
        let positions = &self.board.positions;
        let at = positions.binary_search(&first).map_err(|_| FrameRefusal::Position(first))?;
        let marks = self.board.marks_of(self.place);
        self.runs.push((at, 0));
        for nth in 0..count {
            let position = first.checked_add(nth).ok_or(FrameRefusal::Position(first))?;
            let place = at + nth as usize;
            if positions.get(place) != Some(&position) {
                return Err(FrameRefusal::Position(position));
            }
            let taken = marks[place].compare_exchange(NOBODY, CLAIMED, Ordering::AcqRel, Ordering::Acquire);
            taken.map_err(|_| FrameRefusal::Twice(position))?;
            if let Some(run) = self.runs.last_mut() {
                run.1 += 1;
            }
        }
        Ok(())
    }

    /// Where its bytes belong, in order; pages that stand side by side are one span.
    pub(super) fn spans(&self) -> Vec<Span> {
        let mut merged: Vec<(u32, u32)> = Vec::new();
        let places = self.runs.iter().flat_map(|(first, count)| *first..first + count);
        for page in places.map(|place| self.board.pages[place]) {
            match merged.last_mut() {
                Some((first, pages)) if u64::from(*first) + u64::from(*pages) == u64::from(page) => *pages += 1,
                Some(_) | None => merged.push((page, 1)),
            }
        }
        let pool = self.board.pool.as_ref().expect("a board without a pool is closed, and gives no claims");
        let span = |(first, pages)| pool.span(self.place, L1Page(first), pages);
        merged.into_iter().map(span).collect()
    }

    /// Begins a write of its bytes.
    ///
    /// # Errors
    /// [`FrameRefusal::Late`], counted, when the grant was revoked meanwhile.
    pub(super) fn enter(&self) -> Result<Writing<'_>, FrameRefusal> {
        self.board.enter(self.rank).ok_or_else(|| {
            self.board.count_refused(FrameRefusal::Late);
            FrameRefusal::Late
        })
    }

    /// Every byte is in place.
    ///
    /// # Errors
    /// As [`Self::enter`]: then they count as not landed.
    pub(super) fn land(mut self) -> Result<(), FrameRefusal> {
        let writing = self.enter()?;
        self.mark(self.rank.0);
        self.board.count_landed(self.bytes);
        drop(writing);
        self.landed = true;
        Ok(())
    }

    /// The bytes are in place and are not those that were sent: others may come.
    pub(super) fn spoil(self) -> FrameRefusal {
        self.board.count_refused(FrameRefusal::Checksum);
        FrameRefusal::Checksum
    }

    fn mark(&self, mark: u8) {
        let marks = self.board.marks_of(self.place);
        for (first, count) in &self.runs {
            marks[*first..first + count].iter().for_each(|place| place.store(mark, Ordering::Release));
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if !self.landed {
            self.mark(NOBODY);
        }
    }
}

/// The mark of a place whose bytes are on their way: no rank has this number.
const CLAIMED: u8 = NOBODY - 1;
const _: () = assert!(CLAIMED >= CP_SIZE_MAX);
