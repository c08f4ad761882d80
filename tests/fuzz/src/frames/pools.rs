//! Two small pools: one that is sent from, one that is received into.

use std::sync::Arc;

use hicached::wire::{Buffers, Pool};
use hicached_client::shm::Segment;
use hicached_kernels::layout::{Component, L1Layout, Layout};

use crate::scratch::Scratch;

/// A pool in memory of its own, filled with one byte; its file goes with it.
#[derive(Debug)]
pub(super) struct Filled {
    pub(super) pool: Arc<Pool>,
    byte: u8,
    file: Scratch,
}

impl Filled {
    pub(super) fn new(name: &str, byte: u8) -> Self {
        let (layout, file) = (layout(), Scratch::new(name));
        let l1 = L1Layout::packed(&layout, PAGES);
        let segment = Segment::create(file.path(), l1.segment_bytes()).expect("room for a small file");
        let buffers = Buffers::of(&layout, &l1).expect("the same layers");
        let pool = Pool::new(Arc::new(segment), buffers).expect("buffers inside");
        let filled = Self { pool: Arc::new(pool), byte, file };
        filled.fill();
        filled
    }

    /// The same without its file's name: for one that lives as long as the process, and that nobody else maps.
    pub(super) fn unlinked(self) -> Self {
        std::fs::remove_file(self.file.path()).expect("it was made");
        self
    }

    /// As it was in the beginning.
    pub(super) fn fill(&self) {
        let segment = self.pool.segment();
        segment.write(0, &vec![self.byte; segment.len_bytes() as usize]).expect("the whole segment");
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let segment = self.pool.segment();
        let mut bytes = vec![0; segment.len_bytes() as usize];
        segment.read(0, &mut bytes).expect("the whole segment");
        bytes
    }
}

/// Layers of different sizes, one of them without index; a draft.
fn layout() -> Layout {
    let components = vec![
        (Component::TargetKv, vec![64, 32]),
        (Component::TargetIndex, vec![16, 0]),
        (Component::DraftKv, vec![48]),
        (Component::DraftIndex, vec![16]),
    ];
    Layout::new(64, components, 1).expect("a sound layout")
}

/// Pages of a pool, the padding page included.
pub(super) const PAGES: u32 = 12;
