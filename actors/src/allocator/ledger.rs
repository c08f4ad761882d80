//! The pools of both tiers, and for each page the young reservation it still belongs to.
//!
//! Invariants: free and taken pages make up the capacity of each pool, counted twice and compared; a page
//! belongs to one reservation at most, and only while it is taken.

use thiserror::Error;

use super::{
    Contiguity, HostPools, Lanes, Marks, MarksError, PagesError, PoolsError, RankPools, ReserveError, SlotError,
};
use crate::protocol::{Free, HostSlot, Malformed, PageId, Rank, Refusal, Tier, WrongState};

/// Low and high marks of free room for each tier (requirement B7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeRoom {
    /// Of each L1 lane.
    pub l1: Marks,
    /// Of each L2 pool.
    pub l2: Marks,
}

/// Pools that cannot be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum LedgerError {
    /// Their sizes.
    #[error(transparent)]
    Pools(#[from] PoolsError),
    /// Their marks.
    #[error(transparent)]
    Marks(#[from] MarksError),
}

impl FreeRoom {
    /// Low 1 % and high 2 % of a lane of `l1_pages` and a pool of `l2_slots` pages, rounded up.
    pub fn shares(l1_pages: u32, l2_slots: u32) -> Self {
        let percent = |pages: u32, share: u64| (u64::from(pages) * share).div_ceil(100) as u32;
        let of = |pages| Marks::new(percent(pages, 1), percent(pages, 2)).unwrap_or(Marks::OFF);
        Self { l1: of(l1_pages), l2: of(l2_slots) }
    }
}

/// The pools of a group.
#[derive(Debug)]
pub(super) struct Ledger {
    lanes: Lanes,
    host: HostPools,
    contiguity: Contiguity,
    l1: Holders,
    l2: Holders,
}

/// Which reservation each page of one tier belongs to, and how many are taken on each rank.
#[derive(Debug)]
struct Holders {
    /// By place; 0 is nobody's.
    of: Vec<u32>,
    taken: Vec<u32>,
}

/// Pages given, and how many runs they come from.
#[derive(Debug)]
pub(super) struct Given {
    pub(super) pages: Vec<PageId>,
    pub(super) runs: u32,
}

/// One taken page: where its holder is kept, and its rank.
type Place = (usize, usize);

impl Ledger {
    pub(super) fn new(
        cp_size: u8,
        l1_physical_pages: u32,
        l2_slots: u32,
        contiguity: Contiguity,
        room: Option<FreeRoom>,
    ) -> Result<Self, LedgerError> {
        let ranks = usize::from(cp_size);
        let mut lanes = Lanes::new(&vec![l1_physical_pages; ranks])?;
        let mut host = HostPools::new(&vec![l2_slots; ranks])?;
        if let Some(room) = room {
            lanes.pools_mut().set_marks(room.l1)?;
            host.pools_mut().set_marks(room.l2)?;
        }
        let holders = |pages: u32| Holders { of: vec![0; pages as usize * ranks], taken: vec![0; ranks] };
        Ok(Self { lanes, host, contiguity, l1: holders(l1_physical_pages), l2: holders(l2_slots) })
    }

    pub(super) const fn pools(&self, tier: Tier) -> &RankPools {
        match tier {
            Tier::L1 => self.lanes.pools(),
            Tier::L2 => self.host.pools(),
        }
    }

    /// Takes one page per owner for the reservation `serial`; all or nothing.
    pub(super) fn reserve(&mut self, tier: Tier, owners: &[u8], serial: u32) -> Result<Given, ReserveError> {
        let mut pages = Vec::with_capacity(owners.len());
        let runs = match tier {
            Tier::L1 => self.lanes.alloc_with_owners_into(owners, &mut pages)?,
            Tier::L2 => {
                let mut slots = Vec::with_capacity(owners.len());
                let runs = self.host.reserve_into(owners, self.contiguity, &mut slots)?;
                pages.extend(slots.iter().map(|slot| PageId(slot.0)));
                runs
            }
        };
        for place in self.places(tier, owners, &pages) {
            let holders = self.holders_mut(tier);
            holders.of[place.0] = serial;
            holders.taken[place.1] += 1;
        }
        Ok(Given { pages, runs })
    }

    /// Holders of the pages that `free` names, with 0 for nobody; pages outside the pools have none.
    pub(super) fn holders_of(&self, free: &Free) -> Vec<u32> {
        let l1 = free.l1.0.iter().map(|page| self.l1.of.get(page.0 as usize));
        let slots = free.l2_owners.0.iter().zip(&free.l2.0);
        let l2 = slots.map(|(owner, slot)| self.l2.of.get(self.l2_place(*owner, *slot)?));
        l1.chain(l2).map(|holder| holder.copied().unwrap_or(0)).collect()
    }

    /// Frees the pages that `free` names, all or nothing, and nobody holds them any more.
    pub(super) fn free(&mut self, free: &Free) -> Result<(), PagesError> {
        self.lanes.free(&free.l1.0)?;
        if let Err(error) = self.host.free(&free.l2_owners.0, &free.l2.0) {
            self.lanes.take(&free.l1.0).expect("what was freed a moment ago can be taken"); // all of it was freed above, and nobody ran between
            return Err(error);
        }
        let owners: Vec<u8> = free.l1.0.iter().map(|page| page.owner(self.lanes.pools().cp_size()).0).collect();
        let slots: Vec<PageId> = free.l2.0.iter().map(|slot| PageId(slot.0)).collect();
        for (tier, owners, pages) in [(Tier::L1, &owners, &free.l1.0), (Tier::L2, &free.l2_owners.0, &slots)] {
            for place in self.places(tier, owners, pages) {
                let holders = self.holders_mut(tier);
                holders.of[place.0] = 0;
                holders.taken[place.1] -= 1;
            }
        }
        Ok(())
    }

    /// Takes L2 slots that were in use before this incarnation; all or nothing.
    pub(super) fn take(&mut self, owners: &[u8], slots: &[HostSlot]) -> Result<(), PagesError> {
        if owners.len() != slots.len() {
            return Err(PagesError::Unpaired { owners: owners.len(), slots: slots.len() });
        }
        let cp_size = self.host.pools().cp_size();
        if let Some(owner) = owners.iter().find(|owner| **owner >= cp_size) {
            return Err(PagesError::UnknownRank { rank: Rank(*owner), cp_size });
        }
        let of_rank = |rank: u8| -> Vec<HostSlot> {
            owners.iter().zip(slots).filter(|(owner, _)| **owner == rank).map(|(_, slot)| *slot).collect()
        };
        for rank in 0..cp_size {
            if let Err(error) = self.host.take(Rank(rank), &of_rank(rank)) {
                for before in 0..rank {
                    let taken = of_rank(before);
                    self.host.free(&vec![before; taken.len()], &taken).expect("taken a moment ago"); // this loop took it, and nobody ran between
                }
                return Err(error);
            }
        }
        for owner in owners {
            self.l2.taken[usize::from(*owner)] += 1;
        }
        Ok(())
    }

    /// Those of `pages` that the reservation `serial` still holds, as a free.
    pub(super) fn held_by(&self, tier: Tier, owners: &[u8], pages: &[PageId], serial: u32) -> Free {
        let mut free = Free { l1: Default::default(), l2_owners: Default::default(), l2: Default::default() };
        for (place, (owner, page)) in self.places(tier, owners, pages).into_iter().zip(owners.iter().zip(pages)) {
            if self.holders(tier).of[place.0] != serial {
                continue;
            }
            match tier {
                Tier::L1 => free.l1.0.push(*page),
                Tier::L2 => {
                    free.l2_owners.0.push(*owner);
                    free.l2.0.push(HostSlot(page.0));
                }
            }
        }
        free
    }

    /// The reservation `serial` lets go of its pages; they stay taken.
    pub(super) fn let_go(&mut self, tier: Tier, owners: &[u8], pages: &[PageId], serial: u32) {
        for place in self.places(tier, owners, pages) {
            let holder = &mut self.holders_mut(tier).of[place.0];
            if *holder == serial {
                *holder = 0;
            }
        }
    }

    /// Panics when a pool contradicts itself or its taken pages; returns how many pages reservations hold.
    pub(super) fn check_invariants(&self) -> usize {
        let mut held = 0;
        for (tier, first) in [(Tier::L1, 1), (Tier::L2, 0)] {
            let pools = self.pools(tier);
            pools.check_invariants();
            for (pool, taken) in pools.pools().zip(&self.holders(tier).taken) {
                assert_eq!(pool.free_pages() + taken, pool.capacity_pages(), "free and taken pages of {tier:?}");
            }
            let ranks = usize::from(pools.cp_size());
            for (place, holder) in self.holders(tier).of.iter().enumerate().filter(|(_, holder)| **holder != 0) {
                let (rank, slot) = match tier {
                    Tier::L1 => (place % ranks, place / ranks),
                    Tier::L2 => (place / (self.l2.of.len() / ranks), place % (self.l2.of.len() / ranks)),
                };
                let pool = pools.pools().nth(rank).expect("a place lies in a pool"); // a check of our own: it is there to panic
                assert!(slot >= first && !pool.is_free(slot as u32), "{holder} holds free slot {slot} of {rank}");
                held += 1;
            }
        }
        held
    }

    fn places(&self, tier: Tier, owners: &[u8], pages: &[PageId]) -> Vec<Place> {
        let place = |(owner, page): (&u8, &PageId)| {
            let at = match tier {
                Tier::L1 => page.0 as usize,
                Tier::L2 => self.l2_place(*owner, HostSlot(page.0)).unwrap_or(usize::MAX),
            };
            (at, usize::from(*owner))
        };
        owners.iter().zip(pages).map(place).collect()
    }

    fn l2_place(&self, owner: u8, slot: HostSlot) -> Option<usize> {
        let slots = self.l2.of.len() / self.l2.taken.len();
        let in_pool = (slot.0 as usize) < slots && usize::from(owner) < self.l2.taken.len();
        in_pool.then(|| usize::from(owner) * slots + slot.0 as usize)
    }

    const fn holders(&self, tier: Tier) -> &Holders {
        match tier {
            Tier::L1 => &self.l1,
            Tier::L2 => &self.l2,
        }
    }

    const fn holders_mut(&mut self, tier: Tier) -> &mut Holders {
        match tier {
            Tier::L1 => &mut self.l1,
            Tier::L2 => &mut self.l2,
        }
    }
}

/// Why pages were not freed or taken, for whoever asked.
pub(super) fn refusal_of(error: &PagesError) -> Refusal {
    match error {
        PagesError::UnknownRank { rank, cp_size } => {
            Malformed::new("l2_owners", rank.0, format_args!("below {cp_size}")).into()
        }
        PagesError::Unpaired { owners, slots } => Malformed::new("l2", slots, format_args!("{owners} owners")).into(),
        PagesError::Slot { rank, error } => {
            let slot = |slot: &u32| format!("slot {slot} of rank {}", rank.0);
            match error {
                SlotError::Empty { slot: at } => Malformed::new("pages", slot(at), "at least one page").into(),
                SlotError::OutOfRange { slot: at, slots } => Malformed::new("pages", slot(at), slots).into(),
                SlotError::Reserved { slot: at } => Malformed::new("pages", slot(at), "not the padding page").into(),
                SlotError::AlreadyFree { slot: at } => WrongState::new(slot(at), "free").into(),
                SlotError::AlreadyTaken { slot: at } => WrongState::new(slot(at), "taken").into(),
            }
        }
    }
}
