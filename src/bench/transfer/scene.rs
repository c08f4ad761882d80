//! Pools with real bytes at both ends, and which page goes where.
//!
//! Every page of the source pools holds bytes that no other page has, so that what arrived can be compared. Pools are
//! written whole before anything is measured: first touches of fresh memory are not part of a transfer.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use hicached_actors::allocator::owners::zigzag;
use hicached_actors::calls::draw;
use hicached_client::shm::Segment;
use hicached_kernels::layout::{Component, HostPage, L1Layout, L1Page, Layout};
use hicached_kernels::runs::Runs;
use serde::Serialize;

use super::TransferError;
use crate::wire::{Buffer, Buffers, Pool};

/// What one case moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) pages: u32,
    /// Layers of a page, the draft's included where there are two or more.
    pub(super) layers: u32,
    /// Ranks that send.
    pub(super) ranks: u8,
}

/// How the pages of a request stand in the pools of both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Ends {
    /// Side by side, in the order of the prompt; each of `n` ranks has two of its 2n segments.
    Contiguous,
    /// Each by itself, in an order drawn anew for each pool.
    Scattered,
}

/// The pools of one case, in a folder of their own that goes with it.
#[derive(Debug)]
pub(super) struct Scene {
    pub(super) shape: Shape,
    pub(super) target: Arc<Pool>,
    pub(super) sources: Vec<Arc<Pool>>,
    plans: [Vec<Share>; 2],
    folder: Folder,
}

/// What one rank sends.
#[derive(Debug)]
pub(super) struct Share {
    pub(super) rank: u8,
    pub(super) positions: Vec<u32>,
    /// The page of each in the pool of the rank.
    pub(super) pages: Vec<u32>,
    /// The page of each in the receiver's pool.
    pub(super) slots: Vec<u32>,
}

/// Bytes that are contiguous at both ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    rank: u8,
    from: u64,
    to: u64,
    bytes: u64,
}

impl Shape {
    pub(super) fn bytes(self) -> u64 {
        u64::from(self.pages) * u64::from(self.layers) * LAYER_BYTES
    }

    /// The components of a GLM-5-class model in fp8, cut to so many layers.
    fn layout(self) -> Result<Layout, TransferError> {
        let draft_layers = usize::from(self.layers > 1);
        let target_layers = self.layers as usize - draft_layers;
        let all = [
            (Component::TargetKv, KV_BYTES, target_layers),
            (Component::TargetIndex, INDEX_BYTES, target_layers),
            (Component::DraftKv, KV_BYTES, draft_layers),
            (Component::DraftIndex, INDEX_BYTES, draft_layers),
        ];
        let rows = all.into_iter().filter(|(.., layers)| *layers > 0);
        let components = rows.map(|(component, bytes, layers)| (component, vec![bytes; layers])).collect();
        Ok(Layout::new(PAGE_TOKENS, components, 1)?)
    }
}

impl Ends {
    pub(super) const ALL: [Self; 2] = [Self::Contiguous, Self::Scattered];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Contiguous => "contiguous",
            Self::Scattered => "scattered",
        }
    }
}

impl Scene {
    /// Pools in a new folder below `parent`, with bytes in them.
    ///
    /// # Errors
    /// No folder, or no room.
    pub(super) fn new(parent: &Path, shape: Shape, seed: u64) -> Result<Self, TransferError> {
        let folder = Folder::new(parent)?;
        let layout = shape.layout()?;
        let pool = |name: &str, pages: u32| {
            let l1 = L1Layout::packed(&layout, pages);
            let segment = Segment::create(&folder.0.join(name), l1.segment_bytes())?;
            Ok::<_, TransferError>(Arc::new(Pool::new(Arc::new(segment), Buffers::of(&layout, &l1)?)?))
        };
        let mut owners = Vec::new();
        zigzag(shape.ranks, u64::from(shape.pages), &mut owners)?;
        let plans = Ends::ALL.map(|ends| shares(&owners, shape.ranks, ends, seed));
        // Page 0 is padding in every pool.
        let target = pool("decode", shape.pages + 1)?;
        let of_rank = |rank: u8| owners.iter().filter(|owner| **owner == rank).count() as u32;
        let sources = (0..shape.ranks).map(|rank| pool(&format!("prefill-{rank}"), of_rank(rank) + 1));
        let sources = sources.collect::<Result<_, _>>()?;
        let scene = Self { shape, target, sources, plans, folder };
        scene.fill()?;
        Ok(scene)
    }

    /// What each rank that has something sends.
    pub(super) fn shares(&self, ends: Ends) -> &[Share] {
        &self.plans[ends as usize]
    }

    /// Where its files stand.
    pub(super) fn folder(&self) -> &Path {
        &self.folder.0
    }

    /// The bytes of one rank in record order, in units of at most [`UNIT_BYTES`].
    pub(super) fn units(&self, share: &Share) -> Result<Vec<Vec<Part>>, TransferError> {
        let here: Vec<L1Page> = share.pages.iter().copied().map(L1Page).collect();
        let there: Vec<HostPage> = share.slots.iter().copied().map(HostPage).collect();
        let runs = Runs::merge(&here, &there)?;
        let mut units = Vec::new();
        for (source, target) in self.buffers_of(share.rank) {
            let (mut unit, mut room) = (Vec::new(), UNIT_BYTES);
            for run in runs.as_slice() {
                let from = source.base + u64::from(run.l1_page.0) * source.page_bytes;
                let to = target.base + u64::from(run.host_page.0) * target.page_bytes;
                let (mut done, all) = (0, u64::from(run.pages) * source.page_bytes);
                while done < all {
                    let bytes = room.min(all - done);
                    unit.push(Part { rank: share.rank, from: from + done, to: to + done, bytes });
                    (done, room) = (done + bytes, room - bytes);
                    if room == 0 {
                        units.push(std::mem::take(&mut unit));
                        room = UNIT_BYTES;
                    }
                }
            }
            if !unit.is_empty() {
                units.push(unit);
            }
        }
        Ok(units)
    }

    /// Copies a part from its source to the target.
    pub(super) fn copy(&self, part: Part) {
        let (from, to) = (self.source(part), self.destination(part));
        // SAFETY: both parts are mapped and hold so many bytes, since they were looked up; no two pools overlap, and
        // the parts of one transfer are those of one thread each.
        unsafe { std::ptr::copy_nonoverlapping(from.iov_base.cast::<u8>(), to.iov_base.cast::<u8>(), from.iov_len) };
    }

    /// Where a part comes from.
    pub(super) fn source(&self, part: Part) -> libc::iovec {
        memory(&self.sources[usize::from(part.rank)], part.from, part.bytes)
    }

    /// Where a part goes.
    pub(super) fn destination(&self, part: Part) -> libc::iovec {
        memory(&self.target, part.to, part.bytes)
    }

    /// Makes every byte of the target wrong.
    pub(super) fn poison(&self) -> Result<(), TransferError> {
        for buffer in self.target.buffers().as_slice() {
            let bytes = vec![POISON; buffer.page_bytes as usize];
            for page in 0..self.target.buffers().pages() {
                self.target.segment().write(place_of(buffer, page), &bytes)?;
            }
        }
        Ok(())
    }

    /// Compares every byte of the target with what was to come.
    ///
    /// # Errors
    /// [`TransferError::Wrong`]: the first page that differs, or a padding page that was written.
    pub(super) fn check(&self, way: &'static str, ends: Ends) -> Result<(), TransferError> {
        let segment = self.target.segment();
        for share in self.shares(ends) {
            for (place, (_, buffer)) in self.buffers_of(share.rank).enumerate() {
                let (mut want, mut have) = (vec![0; buffer.page_bytes as usize], vec![0; buffer.page_bytes as usize]);
                for (page, slot) in share.pages.iter().zip(&share.slots) {
                    pattern(share.rank, *page, place, &mut want);
                    segment.read(place_of(buffer, *slot), &mut have)?;
                    if want != have {
                        let (component, layer) = (buffer.component, buffer.layer);
                        return Err(TransferError::Wrong { way, component, layer, page: *slot });
                    }
                }
                segment.read(place_of(buffer, 0), &mut have)?;
                if have.iter().any(|byte| *byte != POISON) {
                    let (component, layer) = (buffer.component, buffer.layer);
                    return Err(TransferError::Wrong { way, component, layer, page: 0 });
                }
            }
        }
        Ok(())
    }

    fn fill(&self) -> Result<(), TransferError> {
        for (rank, pool) in (0..).zip(&self.sources) {
            for (place, buffer) in pool.buffers().as_slice().iter().enumerate() {
                let mut bytes = vec![0; buffer.page_bytes as usize];
                for page in 0..pool.buffers().pages() {
                    pattern(rank, page, place, &mut bytes);
                    pool.segment().write(place_of(buffer, page), &bytes)?;
                }
            }
        }
        Ok(())
    }

    /// Buffers of a source with those of the target; both are packed from one layout.
    fn buffers_of(&self, rank: u8) -> impl Iterator<Item = (&Buffer, &Buffer)> {
        let source = self.sources[usize::from(rank)].buffers().as_slice();
        source.iter().zip(self.target.buffers().as_slice())
    }
}

/// A folder, removed with everything in it.
#[derive(Debug)]
struct Folder(PathBuf);

impl Folder {
    fn new(parent: &Path) -> Result<Self, TransferError> {
        let path = parent.join(format!("hicached-bench-{}", uuid::Uuid::new_v4().simple()));
        let made = std::fs::create_dir(&path);
        made.map_err(TransferError::io(&format!("make the folder {}", path.display())))?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(folder = %self.0.display(), %error, "left behind");
        }
    }
}

fn shares(owners: &[u8], ranks: u8, ends: Ends, seed: u64) -> Vec<Share> {
    let order = |pages: usize, salt: u64| {
        let mut pages: Vec<u32> = (1..=pages as u32).collect();
        match ends {
            Ends::Contiguous => {}
            Ends::Scattered => shuffle(&mut pages, seed ^ salt << 32),
        }
        pages
    };
    let all_slots = order(owners.len(), u64::MAX >> 32);
    let share = |rank: u8| {
        let positions: Vec<u32> = (0..owners.len() as u32).filter(|at| owners[*at as usize] == rank).collect();
        let slots = positions.iter().map(|position| all_slots[*position as usize]).collect();
        Share { rank, pages: order(positions.len(), u64::from(rank)), slots, positions }
    };
    (0..ranks).map(share).filter(|share| !share.positions.is_empty()).collect()
}

fn shuffle(pages: &mut [u32], seed: u64) {
    let mut chance = seed;
    for last in (1..pages.len()).rev() {
        pages.swap(last, (draw(&mut chance) % (last as u64 + 1)) as usize);
    }
}

/// Bytes that no other page of another rank, place or number has.
fn pattern(rank: u8, page: u32, place: usize, bytes: &mut [u8]) {
    let mut chance = u64::from(rank) << 56 ^ (place as u64) << 32 ^ u64::from(page);
    let first = draw(&mut chance);
    for (at, word) in (0..).zip(bytes.as_chunks_mut::<8>().0) {
        *word = first.wrapping_add(STEP.wrapping_mul(at)).to_ne_bytes();
    }
}

fn place_of(buffer: &Buffer, page: u32) -> u64 {
    buffer.base + u64::from(page) * buffer.page_bytes
}

fn memory(pool: &Pool, offset: u64, bytes: u64) -> libc::iovec {
    let start = pool.segment().pointer(offset, bytes).expect("pages of a plan stand in its pools");
    libc::iovec { iov_base: start.as_ptr().cast(), iov_len: bytes as usize }
}

/// Of one page of one layer: 64 tokens of 656 bytes.
const KV_BYTES: u64 = 41_984;
/// Of one page of one layer: 64 tokens of 132 bytes.
const INDEX_BYTES: u64 = 8_448;
/// Of one page of one layer.
pub(super) const LAYER_BYTES: u64 = KV_BYTES + INDEX_BYTES;
/// What the plain ways move with one call, as the frames and pieces of the others.
pub(super) const UNIT_BYTES: u64 = 1 << 20;
const PAGE_TOKENS: u32 = 64;
const POISON: u8 = 0x5A;
/// An odd number: the words of a page differ from each other.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_position_is_sent_once_from_a_page_and_to_a_page_of_its_own() {
        for (ranks, ends) in [(1, Ends::Contiguous), (3, Ends::Contiguous), (3, Ends::Scattered), (8, Ends::Scattered)]
        {
            let mut owners = Vec::new();
            zigzag(ranks, 50, &mut owners).expect("few ranks");
            let shares = shares(&owners, ranks, ends, 7);
            let sorted = |list: fn(&Share) -> &[u32]| {
                let mut all: Vec<u32> = shares.iter().flat_map(|share| list(share).to_vec()).collect();
                all.sort_unstable();
                all
            };
            assert_eq!(sorted(|share| &share.positions), (0..50).collect::<Vec<u32>>());
            assert_eq!(sorted(|share| &share.slots), (1..=50).collect::<Vec<u32>>());
            for share in &shares {
                let mut pages = share.pages.clone();
                pages.sort_unstable();
                assert_eq!(pages, (1..=share.positions.len() as u32).collect::<Vec<u32>>());
                assert_eq!(pages == share.pages, ends == Ends::Contiguous, "{ends:?}");
            }
        }
    }
}
