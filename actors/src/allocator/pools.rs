//! One pool per rank of a group, from which every page is taken in its owner's pool.
//!
//! [`Lanes`] are the L1 lanes and speak page ids, [`HostPools`] the L2 pools and speak slots; both are the
//! same [`RankPools`] beneath. Requirements A3, A4 and B1.
//!
//! Invariants: the owners of what is returned are the owners asked for, in order; a refusal takes nothing
//! from any rank; a bad free or take changes no rank.

use super::figures::{Marks, MarksError};
use super::owners::stretch;
use super::pool::PagePool;
use super::refusal::{PagesError, PoolsError, ReserveError, Shortfall};
use super::run::{Contiguity, Run, append_steps};
use crate::protocol::{CP_SIZE_MAX, HostSlot, PageId, Rank};

/// The pool of one rank and what is being reserved or freed in it during one call.
#[derive(Clone, Debug)]
struct RankPool {
    pool: PagePool,
    wanted_pages: u32,
    runs: Vec<Run>,
    /// The first of `runs` that is not used up.
    at: usize,
}

impl RankPool {
    /// Hands up to `pages` of the reserved pages on, in the order of the runs.
    fn next_piece(&mut self, pages: u32) -> Run {
        let run = &mut self.runs[self.at];
        let piece = Run { start: run.start, pages: run.pages.min(pages) };
        run.start += piece.pages;
        run.pages -= piece.pages;
        self.at += usize::from(run.pages == 0);
        piece
    }
}

/// One pool per rank: what [`Lanes`] and [`HostPools`] share.
#[derive(Clone, Debug)]
pub struct RankPools {
    ranks: Vec<RankPool>,
    /// Owner and pages of every stretch of equal owners in the call at hand.
    stretches: Vec<(u8, u32)>,
}

impl RankPools {
    fn new(slots_of_rank: &[u32], reserved_slots: u32) -> Result<Self, PoolsError> {
        if slots_of_rank.is_empty() || slots_of_rank.len() > usize::from(CP_SIZE_MAX) {
            return Err(PoolsError::Ranks { ranks: slots_of_rank.len() });
        }
        let mut ranks = Vec::with_capacity(slots_of_rank.len());
        for (rank, slots) in slots_of_rank.iter().enumerate() {
            let pool = PagePool::new(*slots, reserved_slots)
                .map_err(|error| PoolsError::Pool { rank: Rank(rank as u8), error })?;
            ranks.push(RankPool { pool, wanted_pages: 0, runs: Vec::new(), at: 0 });
        }
        Ok(Self { ranks, stretches: Vec::new() })
    }

    /// Ranks of the group.
    pub fn cp_size(&self) -> u8 {
        self.ranks.len() as u8
    }

    /// The pool of `rank`; None outside the group.
    pub fn pool(&self, rank: Rank) -> Option<&PagePool> {
        self.ranks.get(usize::from(rank.0)).map(|rank| &rank.pool)
    }

    /// The pools in the order of the ranks.
    pub fn pools(&self) -> impl Iterator<Item = &PagePool> {
        self.ranks.iter().map(|rank| &rank.pool)
    }

    /// Sets the same marks in every pool.
    ///
    /// # Errors
    /// [`MarksError`] when some pool is smaller than the high mark; then no pool has new marks.
    pub fn set_marks(&mut self, marks: Marks) -> Result<(), MarksError> {
        let before: Vec<Marks> = self.pools().map(PagePool::marks).collect();
        let verdict = self.ranks.iter_mut().try_for_each(|rank| rank.pool.set_marks(marks));
        if verdict.is_err() {
            for (rank, marks) in self.ranks.iter_mut().zip(before) {
                rank.pool.set_marks(marks)?;
            }
        }
        verdict
    }

    /// Ranks below their low mark, with the pages that reach the high one.
    pub fn below_low(&self) -> impl Iterator<Item = (Rank, u32)> {
        (0..).map(Rank).zip(self.pools()).filter_map(|(rank, pool)| Some((rank, pool.below_low()?)))
    }

    /// Recounts every pool.
    ///
    /// # Panics
    /// When a pool disagrees with its bitmap, or a call left something behind.
    pub fn check_invariants(&self) {
        for rank in &self.ranks {
            rank.pool.check_invariants();
            assert_eq!(rank.wanted_pages, 0, "pages wanted between calls");
        }
    }

    /// Reserves one page per owner and calls `each` with the pieces in the order of `owners`; returns how many
    /// runs they come from.
    fn reserve(
        &mut self,
        owners: &[u8],
        contiguity: Contiguity,
        mut each: impl FnMut(Rank, Run),
    ) -> Result<u32, ReserveError> {
        if let Some(owner) = owners.first().filter(|_| stretch(owners) == owners.len()) {
            let rank = self.reserve_in_one_rank(*owner, owners.len() as u32, contiguity)?;
            rank.runs.iter().for_each(|run| each(Rank(*owner), *run));
            return Ok(rank.runs.len() as u32);
        }
        let runs = self.reserve_per_rank(owners, contiguity)?;
        for (owner, pages) in &self.stretches {
            let rank = &mut self.ranks[usize::from(*owner)];
            let mut wanted = *pages;
            while wanted > 0 {
                let piece = rank.next_piece(wanted);
                each(Rank(*owner), piece);
                wanted -= piece.pages;
            }
        }
        Ok(runs)
    }

    /// Leaves the runs of `pages` pages in the `runs` of rank `owner`: a decode step or a host pool, where there
    /// is nothing to put in order.
    fn reserve_in_one_rank(&mut self, owner: u8, pages: u32, how: Contiguity) -> Result<&RankPool, ReserveError> {
        let (index, cp_size) = (usize::from(owner), self.cp_size());
        let Some(rank) = self.ranks.get_mut(index) else {
            return Err(ReserveError::UnknownOwner { position: 0, owner, cp_size });
        };
        rank.runs.clear();
        if rank.pool.reserve(pages, how, &mut rank.runs).is_err() {
            rank.wanted_pages = pages;
            return Err(self.give_up(1 << owner, index, how));
        }
        Ok(&self.ranks[index])
    }

    /// Leaves the runs of each rank that `owners` names in its `runs`, or nothing taken.
    fn reserve_per_rank(&mut self, owners: &[u8], contiguity: Contiguity) -> Result<u32, ReserveError> {
        let touched = self.count(owners)?;
        let mut runs = 0;
        for index in bits_of(touched) {
            let rank = &mut self.ranks[index];
            rank.runs.clear();
            rank.at = 0;
            if rank.pool.reserve(rank.wanted_pages, contiguity, &mut rank.runs).is_err() {
                return Err(self.give_up(touched, index, contiguity));
            }
            runs += rank.runs.len() as u32;
        }
        for index in bits_of(touched) {
            self.ranks[index].wanted_pages = 0;
        }
        Ok(runs)
    }

    /// Counts the pages wanted of each rank and finds the stretches; returns the ranks that are named.
    fn count(&mut self, owners: &[u8]) -> Result<u64, ReserveError> {
        let mut touched = 0;
        self.stretches.clear();
        let mut rest = owners;
        while let Some(owner) = rest.first() {
            let pages = stretch(rest);
            let cp_size = self.cp_size();
            let Some(rank) = self.ranks.get_mut(usize::from(*owner)) else {
                bits_of(touched).for_each(|index| self.ranks[index].wanted_pages = 0);
                return Err(ReserveError::UnknownOwner { position: owners.len() - rest.len(), owner: *owner, cp_size });
            };
            rank.wanted_pages += pages as u32;
            self.stretches.push((*owner, pages as u32));
            touched |= 1 << owner;
            rest = &rest[pages..];
        }
        Ok(touched)
    }

    /// Gives back what the ranks before `refusing` had reserved and says what every rank is short of.
    #[cold]
    fn give_up(&mut self, touched: u64, refusing: usize, contiguity: Contiguity) -> ReserveError {
        for index in bits_of(touched).take_while(|index| *index < refusing) {
            let rank = &mut self.ranks[index];
            rank.pool.free_checked(&rank.runs);
        }
        let mut per_rank = Vec::with_capacity(self.ranks.len());
        for rank in &mut self.ranks {
            let available = match contiguity {
                Contiguity::Off | Contiguity::Prefer => rank.pool.free_pages(),
                Contiguity::Require => rank.pool.longest_run_pages(),
            };
            per_rank.push(rank.wanted_pages.saturating_sub(available));
            rank.wanted_pages = 0;
        }
        ReserveError::Short(Shortfall { per_rank })
    }

    /// Frees `(rank, slot)` pairs whose ranks are in the group: all or nothing.
    fn free(&mut self, slots: impl Iterator<Item = (Rank, u32)>) -> Result<(), PagesError> {
        let mut touched = 0;
        for (rank, slot) in slots {
            let index = usize::from(rank.0);
            let runs = &mut self.ranks[index].runs;
            if touched & 1 << index == 0 {
                runs.clear();
                touched |= 1 << index;
            }
            match runs.last_mut() {
                Some(run) if run.start.checked_add(run.pages) == Some(slot) => run.pages += 1,
                Some(_) | None => runs.push(Run { start: slot, pages: 1 }),
            }
        }
        for index in bits_of(touched) {
            let rank = &mut self.ranks[index];
            rank.pool.check_free(&rank.runs).map_err(|error| PagesError::Slot { rank: Rank(index as u8), error })?;
        }
        for index in bits_of(touched) {
            let rank = &mut self.ranks[index];
            rank.pool.free_checked(&rank.runs);
        }
        Ok(())
    }

    fn rank_mut(&mut self, rank: Rank) -> Result<&mut RankPool, PagesError> {
        let cp_size = self.cp_size();
        self.ranks.get_mut(usize::from(rank.0)).ok_or(PagesError::UnknownRank { rank, cp_size })
    }
}

/// The L1 lanes of one group: every page id is `physical * cp_size + owner`, physical page 0 is padding.
#[derive(Clone, Debug)]
pub struct Lanes {
    pools: RankPools,
}

impl Lanes {
    /// One lane per entry, with that many physical pages, of which page 0 is never given out.
    ///
    /// # Errors
    /// [`PoolsError`].
    pub fn new(physical_pages_of_lane: &[u32]) -> Result<Self, PoolsError> {
        let ranks = physical_pages_of_lane.len();
        let slots = physical_pages_of_lane.iter().copied().max().unwrap_or(0);
        if u64::from(slots) * ranks as u64 > 1 << 32 {
            return Err(PoolsError::PageIds { slots, ranks });
        }
        Ok(Self { pools: RankPools::new(physical_pages_of_lane, 1)? })
    }

    /// Pages whose owners are `owners`, in order; the pages of one owner are contiguous where its lane allows.
    ///
    /// # Errors
    /// [`ReserveError`], with nothing taken: there is no fallback to another lane.
    pub fn alloc_with_owners(&mut self, owners: &[u8]) -> Result<Vec<PageId>, ReserveError> {
        let mut pages = Vec::with_capacity(owners.len());
        self.alloc_with_owners_into(owners, &mut pages)?;
        Ok(pages)
    }

    /// As [`Self::alloc_with_owners`], appended to `pages`; returns the number of runs they come from.
    ///
    /// # Errors
    /// [`ReserveError`], with nothing taken and nothing appended.
    pub fn alloc_with_owners_into(&mut self, owners: &[u8], pages: &mut Vec<PageId>) -> Result<u32, ReserveError> {
        let cp_size = self.pools.cp_size();
        self.pools.reserve(owners, Contiguity::Prefer, |owner, run| {
            let first = PageId::at(owner, run.start, cp_size);
            // Stays in 32 bits: the ids of a whole lane do.
            append_steps(pages, run.pages, first, |page| PageId(page.0.wrapping_add(u32::from(cp_size))));
        })
    }

    /// Gives `pages` back to their lanes.
    ///
    /// # Errors
    /// [`PagesError::Slot`] of the first bad page, then no lane has changed.
    pub fn free(&mut self, pages: &[PageId]) -> Result<(), PagesError> {
        let cp_size = self.pools.cp_size();
        self.pools.free(pages.iter().map(|page| (page.owner(cp_size), page.physical(cp_size))))
    }

    /// Marks `pages` as taken: how the lanes are rebuilt from what the index knows.
    ///
    /// # Errors
    /// [`PagesError::Slot`] of the first bad page, then no lane has changed.
    pub fn take(&mut self, pages: &[PageId]) -> Result<(), PagesError> {
        let cp_size = self.pools.cp_size();
        let mut slots_of_rank = vec![Vec::new(); usize::from(cp_size)];
        for page in pages {
            slots_of_rank[usize::from(page.owner(cp_size).0)].push(page.physical(cp_size));
        }
        for (index, slots) in slots_of_rank.iter().enumerate() {
            let rank = Rank(index as u8);
            self.pools.ranks[index].pool.check_take(slots).map_err(|error| PagesError::Slot { rank, error })?;
        }
        for (rank, slots) in self.pools.ranks.iter_mut().zip(&slots_of_rank) {
            rank.pool.take_checked(slots);
        }
        Ok(())
    }

    /// The lanes as pools: figures, marks, invariants.
    pub const fn pools(&self) -> &RankPools {
        &self.pools
    }

    /// The lanes as pools, to set marks.
    pub const fn pools_mut(&mut self) -> &mut RankPools {
        &mut self.pools
    }
}

/// The L2 pools of one group, one per rank.
#[derive(Clone, Debug)]
pub struct HostPools {
    pools: RankPools,
}

impl HostPools {
    /// One pool per entry, with that many records, all of which can be given out.
    ///
    /// # Errors
    /// [`PoolsError`].
    pub fn new(records_of_rank: &[u32]) -> Result<Self, PoolsError> {
        Ok(Self { pools: RankPools::new(records_of_rank, 0)? })
    }

    /// One slot per owner in that owner's pool, in order, contiguous per owner as `contiguity` says.
    ///
    /// # Errors
    /// [`ReserveError`], with nothing taken.
    pub fn reserve(&mut self, owners: &[u8], contiguity: Contiguity) -> Result<Vec<HostSlot>, ReserveError> {
        let mut slots = Vec::with_capacity(owners.len());
        self.reserve_into(owners, contiguity, &mut slots)?;
        Ok(slots)
    }

    /// As [`Self::reserve`], appended to `slots`; returns the number of runs they come from.
    ///
    /// # Errors
    /// [`ReserveError`], with nothing taken and nothing appended.
    pub fn reserve_into(
        &mut self,
        owners: &[u8],
        contiguity: Contiguity,
        slots: &mut Vec<HostSlot>,
    ) -> Result<u32, ReserveError> {
        self.pools.reserve(owners, contiguity, |_, run| {
            append_steps(slots, run.pages, HostSlot(run.start), |slot| HostSlot(slot.0.wrapping_add(1)))
        })
    }

    /// Gives back `slots[i]` of the pool of `owners[i]`.
    ///
    /// # Errors
    /// [`PagesError`], then no pool has changed.
    pub fn free(&mut self, owners: &[u8], slots: &[HostSlot]) -> Result<(), PagesError> {
        if owners.len() != slots.len() {
            return Err(PagesError::Unpaired { owners: owners.len(), slots: slots.len() });
        }
        let cp_size = self.pools.cp_size();
        if let Some(owner) = owners.iter().find(|owner| **owner >= cp_size) {
            return Err(PagesError::UnknownRank { rank: Rank(*owner), cp_size });
        }
        self.pools.free(owners.iter().zip(slots).map(|(owner, slot)| (Rank(*owner), slot.0)))
    }

    /// Gives runs of one rank back.
    ///
    /// # Errors
    /// [`PagesError`], then nothing has changed.
    pub fn free_runs(&mut self, rank: Rank, runs: &[Run]) -> Result<(), PagesError> {
        self.pools.rank_mut(rank)?.pool.free(runs).map_err(|error| PagesError::Slot { rank, error })
    }

    /// Marks slots of one rank as taken: how its pool is rebuilt from what is sealed in it.
    ///
    /// # Errors
    /// [`PagesError`], then nothing has changed.
    pub fn take(&mut self, rank: Rank, slots: &[HostSlot]) -> Result<(), PagesError> {
        let slots: Vec<u32> = slots.iter().map(|slot| slot.0).collect();
        self.pools.rank_mut(rank)?.pool.take(&slots).map_err(|error| PagesError::Slot { rank, error })
    }

    /// The pools of the ranks: figures, marks, invariants.
    pub const fn pools(&self) -> &RankPools {
        &self.pools
    }

    /// The pools of the ranks, to set marks.
    pub const fn pools_mut(&mut self) -> &mut RankPools {
        &mut self.pools
    }
}

/// Indices of the set bits.
fn bits_of(set: u64) -> impl Iterator<Item = usize> {
    let mut rest = set;
    std::iter::from_fn(move || {
        let index = (rest != 0).then(|| rest.trailing_zeros() as usize)?;
        rest &= rest - 1;
        Some(index)
    })
}
