//! What is measured: the allocator and two general-purpose crates that do the same work.
//!
//! Each crate is one allocator per lane with a contiguous-first loop around it, and does the same job: an owner
//! sequence in, page ids in that order out. Finding the stretches of equal owners and writing the page ids of a run
//! are the same code for all.

use std::alloc::Layout;
use std::ptr::NonNull;

use hicached_actors::allocator::owners::stretch;
use hicached_actors::allocator::{Contiguity, HostPools, Lanes, PagePool, Run, append_steps};
use hicached_actors::protocol::{HostSlot, PageId, Rank};
use offset_allocator::{Allocation, Allocator};
use rlsf::Tlsf;

use super::pattern::Pattern;

/// One reservation that is asked for again and again.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub(super) owners: Vec<u8>,
    pages_per_lane: Vec<u32>,
}

impl Ask {
    pub(super) fn new(owners: Vec<u8>, lanes: usize) -> Self {
        let mut pages_per_lane = vec![0; lanes];
        owners.iter().for_each(|owner| pages_per_lane[usize::from(*owner)] += 1);
        Self { owners, pages_per_lane }
    }

    pub(super) fn pages_per_lane(&self) -> &[u32] {
        &self.pages_per_lane
    }
}

/// Something that reserves pages with exact owners.
pub(super) trait Subject {
    /// One outstanding reservation; its buffers are used again.
    type Reservation: Default;

    /// The timed part: fills `reservation` with page ids in the order of the owners. Returns the runs used.
    fn reserve(&mut self, ask: &Ask, reservation: &mut Self::Reservation) -> u32;

    /// Gives everything in `reservation` back and empties it.
    fn release(&mut self, ask: &Ask, reservation: &mut Self::Reservation);
}

/// L1 lanes of hicached.
pub(super) struct OurLanes(Lanes);

impl OurLanes {
    pub(super) fn new(lanes: usize, slots: u32, pattern: Pattern, seed: u64) -> Self {
        let mut ours = Lanes::new(&vec![slots; lanes]).expect("the pools fit page ids");
        if !pattern.starts_empty() {
            for lane in 0..lanes {
                let rank = Rank(lane as u8);
                let taken = (1..slots).filter(|slot| !pattern.is_free(seed, lane, *slot));
                let taken: Vec<PageId> = taken.map(|slot| PageId::at(rank, slot, lanes as u8)).collect();
                ours.take(&taken).expect("an empty lane");
            }
        }
        Self(ours)
    }

    pub(super) fn pool(&self, lane: usize) -> &PagePool {
        self.0.pools().pool(Rank(lane as u8)).expect("a lane of the group")
    }
}

impl Subject for OurLanes {
    type Reservation = Vec<PageId>;

    fn reserve(&mut self, ask: &Ask, reservation: &mut Vec<PageId>) -> u32 {
        self.0.alloc_with_owners_into(&ask.owners, reservation).expect("room for the reservation")
    }

    fn release(&mut self, _: &Ask, reservation: &mut Vec<PageId>) {
        self.0.free(reservation).expect("pages that were reserved");
        reservation.clear();
    }
}

/// L2 pool of hicached.
pub(super) struct OurHost(HostPools);

impl OurHost {
    pub(super) fn new(slots: u32, pattern: Pattern, seed: u64) -> Self {
        let mut ours = HostPools::new(&[slots]).expect("one pool");
        if !pattern.starts_empty() {
            let taken = (0..slots).filter(|slot| !pattern.is_free(seed, 0, *slot)).map(HostSlot);
            ours.take(Rank(0), &taken.collect::<Vec<_>>()).expect("an empty pool");
        }
        Self(ours)
    }

    pub(super) fn pool(&self) -> &PagePool {
        self.0.pools().pool(Rank(0)).expect("one pool")
    }
}

impl Subject for OurHost {
    type Reservation = Vec<HostSlot>;

    fn reserve(&mut self, ask: &Ask, reservation: &mut Vec<HostSlot>) -> u32 {
        self.0.reserve_into(&ask.owners, Contiguity::Prefer, reservation).expect("room for the reservation")
    }

    fn release(&mut self, ask: &Ask, reservation: &mut Vec<HostSlot>) {
        self.0.free(&ask.owners, reservation).expect("slots that were reserved");
        reservation.clear();
    }
}

/// A general-purpose allocator as a pool of pages.
pub(super) trait Peer {
    /// What it wants to see again when pages are freed.
    type Held: Copy;

    fn with_slots(slots: u32) -> Self;
    /// One run if the allocator finds one, else as few as its own answers allow.
    fn reserve(&mut self, pages: u32, held: &mut Vec<(Run, Self::Held)>);
    fn free(&mut self, held: Self::Held);
}

/// One peer allocator per lane.
pub(super) struct PeerLanes<P: Peer> {
    lanes: Vec<P>,
    runs: Vec<Vec<(Run, P::Held)>>,
    used: Vec<usize>,
    pages_per_lane: Vec<u32>,
    stretches: Vec<(usize, u32)>,
}

impl<P: Peer> PeerLanes<P> {
    pub(super) fn new(lanes: usize, slots: u32, pattern: Pattern, seed: u64) -> Self {
        let filled = |lane: usize| {
            let mut peer = P::with_slots(slots);
            if !pattern.starts_empty() {
                let mut held = Vec::with_capacity(slots as usize);
                (0..slots).for_each(|_| peer.reserve(1, &mut held));
                for (run, held) in held {
                    if pattern.is_free(seed, lane, run.start) {
                        peer.free(held);
                    }
                }
            }
            peer
        };
        Self {
            lanes: (0..lanes).map(filled).collect(),
            runs: (0..lanes).map(|_| Vec::new()).collect(),
            used: vec![0; lanes],
            pages_per_lane: vec![0; lanes],
            stretches: Vec::new(),
        }
    }
}

/// Page ids and what it takes to free them.
pub(super) struct PeerReservation<H> {
    pages: Vec<u32>,
    held: Vec<(usize, H)>,
}

impl<H> Default for PeerReservation<H> {
    fn default() -> Self {
        Self { pages: Vec::new(), held: Vec::new() }
    }
}

impl<P: Peer> Subject for PeerLanes<P> {
    type Reservation = PeerReservation<P::Held>;

    fn reserve(&mut self, ask: &Ask, reservation: &mut Self::Reservation) -> u32 {
        let mut touched: u64 = 0;
        self.stretches.clear();
        let mut rest = ask.owners.as_slice();
        while let Some(owner) = rest.first() {
            let pages = stretch(rest);
            self.pages_per_lane[usize::from(*owner)] += pages as u32;
            self.stretches.push((usize::from(*owner), pages as u32));
            touched |= 1 << owner;
            rest = &rest[pages..];
        }
        while touched != 0 {
            let lane = touched.trailing_zeros() as usize;
            touched &= touched - 1;
            let runs = &mut self.runs[lane];
            runs.clear();
            self.used[lane] = 0;
            self.lanes[lane].reserve(std::mem::take(&mut self.pages_per_lane[lane]), runs);
            reservation.held.extend(runs.iter().map(|(_, held)| (lane, *held)));
        }
        let cp_size = self.lanes.len() as u32;
        for (lane, pages) in &self.stretches {
            let mut wanted = *pages;
            while wanted > 0 {
                let run = &mut self.runs[*lane][self.used[*lane]].0;
                let piece = run.pages.min(wanted);
                let first = run.start * cp_size + *lane as u32;
                append_steps(&mut reservation.pages, piece, first, |page| page.wrapping_add(cp_size));
                run.start += piece;
                run.pages -= piece;
                self.used[*lane] += usize::from(run.pages == 0);
                wanted -= piece;
            }
        }
        reservation.held.len() as u32
    }

    fn release(&mut self, _: &Ask, reservation: &mut Self::Reservation) {
        for (lane, held) in reservation.held.drain(..) {
            self.lanes[lane].free(held);
        }
        reservation.pages.clear();
    }
}

/// `offset-allocator`: bins of run sizes; its report says what its largest bin holds.
pub(super) struct Offset(Allocator);

impl Peer for Offset {
    type Held = Allocation;

    fn with_slots(slots: u32) -> Self {
        Self(Allocator::with_max_allocs(slots, slots + 64))
    }

    fn reserve(&mut self, pages: u32, held: &mut Vec<(Run, Allocation)>) {
        let mut wanted = pages;
        if let Some(allocation) = self.0.allocate(wanted) {
            return held.push((Run { start: allocation.offset, pages: wanted }, allocation));
        }
        while wanted > 0 {
            let piece = wanted.min(self.0.storage_report().largest_free_region);
            let allocation = self.0.allocate(piece).expect("what the report promised");
            held.push((Run { start: allocation.offset, pages: piece }, allocation));
            wanted -= piece;
        }
    }

    fn free(&mut self, held: Allocation) {
        self.0.free(held);
    }
}

/// Bytes that stand for one page in `rlsf`: its smallest block, header included.
const GRANULE_BYTES: usize = rlsf::GRANULARITY;
const HEADER_BYTES: usize = GRANULE_BYTES / 2;

/// `rlsf`: keeps its headers inside the memory it manages, here one granule per page.
pub(super) struct Rlsf {
    tlsf: Tlsf<'static, u32, u32, 28, 32>,
    memory: NonNull<u8>,
    layout: Layout,
}

impl Peer for Rlsf {
    type Held = NonNull<u8>;

    fn with_slots(slots: u32) -> Self {
        // One granule more: the sentinel at the end.
        let bytes = (slots as usize + 1) * GRANULE_BYTES;
        let layout = Layout::from_size_align(bytes, 4096).expect("a small multiple of the slots");
        // SAFETY: the layout has a size above 0.
        let memory = NonNull::new(unsafe { std::alloc::alloc(layout) }).expect("memory for one granule per page");
        let mut tlsf = Tlsf::new();
        // SAFETY: the block is ours alone and lives until `drop`, after the last use of `tlsf`.
        unsafe { tlsf.insert_free_block_ptr(NonNull::slice_from_raw_parts(memory, bytes)) };
        Self { tlsf, memory, layout }
    }

    fn reserve(&mut self, pages: u32, held: &mut Vec<(Run, NonNull<u8>)>) {
        let (mut wanted, mut piece) = (pages, pages);
        while wanted > 0 {
            piece = piece.min(wanted);
            let bytes = piece as usize * GRANULE_BYTES - HEADER_BYTES;
            let layout = Layout::from_size_align(bytes, align_of::<usize>()).expect("a small multiple of the pages");
            let Some(block) = self.tlsf.allocate(layout) else {
                assert!(piece > 1, "room for the reservation");
                piece /= 2;
                continue;
            };
            let offset = block.as_ptr() as usize - self.memory.as_ptr() as usize - HEADER_BYTES;
            held.push((Run { start: (offset / GRANULE_BYTES) as u32, pages: piece }, block));
            wanted -= piece;
        }
    }

    fn free(&mut self, held: NonNull<u8>) {
        // SAFETY: every block was allocated by this `tlsf` with this alignment and is freed once.
        unsafe { self.tlsf.deallocate(held, align_of::<usize>()) };
    }
}

impl Drop for Rlsf {
    fn drop(&mut self) {
        // SAFETY: allocated in `with_slots` with this layout.
        unsafe { std::alloc::dealloc(self.memory.as_ptr(), self.layout) };
    }
}
