//! Checks what a copy message names before anything of it is touched: lengths, owners, ranges, repeats.

use hicached_actors::protocol::{
    BackupCopy, HostSlot, Key, LoadCopy, Malformed, NotOwner, PageId, Rank, Refusal, WrongState,
};
use hicached_client::shm::LOAD_SLOTS;
use hicached_kernels::layout::{HostPage, L1Page};
use hicached_kernels::runs::{Runs, RunsError};

use super::page_table::{Row, Sums};

/// One rank's share of a group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lane {
    pub(super) rank: Rank,
    pub(super) cp_size: u8,
    /// Physical pages of the attached engine; `None` without one.
    pub(super) l1_pages: Option<u32>,
    pub(super) host_slots: u32,
}

/// The part of a copy that this rank makes; its pages are disjoint and inside both pools.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) l1: Vec<u32>,
    pub(super) l2: Vec<u32>,
    pub(super) runs: Runs,
    /// Place of each page in the op.
    pub(super) places: Vec<usize>,
}

/// A checked use of a load slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct RingUse {
    pub(super) slot: u32,
    pub(super) use_count: u64,
    pub(super) base: u64,
    /// The word when the load has ended.
    pub(super) end: u64,
}

/// The rows that a backup will seal, once its verdict comes.
#[derive(Debug, Default)]
pub(super) struct BackupRows {
    pub(super) rows: Vec<(u32, Row)>,
}

impl Lane {
    /// The order of a backup.
    pub(super) fn backup(self, msg: &BackupCopy) -> Result<Order, Refusal> {
        let pages = msg.pages.0.len();
        same_length("slots", msg.slots.0.len(), pages)?;
        same_length("keys", msg.keys.0.len(), pages)?;
        if u64::from(msg.first) + pages as u64 > u64::from(u32::MAX) {
            return Err(Malformed::new("first", msg.first, "positions of 32 bits").into());
        }
        self.order(&msg.pages.0, &msg.slots.0, |page, _| page.owner(self.cp_size))
    }

    /// The order of a load.
    pub(super) fn load(self, msg: &LoadCopy) -> Result<Order, Refusal> {
        let pages = msg.pages.0.len();
        same_length("slots", msg.slots.0.len(), pages)?;
        same_length("owners", msg.owners.0.len(), pages)?;
        for (page, owner) in msg.pages.0.iter().zip(&msg.owners.0) {
            let (owner, rank) = (page.owner(self.cp_size), Rank(*owner));
            if owner != rank {
                return Err(NotOwner { page: page.0, owner, rank }.into());
            }
        }
        self.order(&msg.pages.0, &msg.slots.0, |_, place| Rank(msg.owners.0[place]))
    }

    /// The physical pages of `pages`, all of which this rank owns and the attached engine has, each once.
    pub(super) fn l1_pages(self, pages: &[PageId]) -> Result<Vec<u32>, Refusal> {
        if let Some(page) = pages.iter().find(|page| page.owner(self.cp_size) != self.rank) {
            return Err(NotOwner { page: page.0, owner: page.owner(self.cp_size), rank: self.rank }.into());
        }
        let l1: Vec<u32> = pages.iter().map(|page| page.physical(self.cp_size)).collect();
        self.check_l1(&l1)?;
        let mut sorted = l1.clone();
        sorted.sort_unstable();
        if let Some(twice) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            let page = PageId::at(self.rank, twice[0], self.cp_size).0;
            return Err(Malformed::new("pages", page, "each page once").into());
        }
        Ok(l1)
    }

    fn order(
        self,
        pages: &[PageId],
        slots: &[HostSlot],
        owner_of: impl Fn(PageId, usize) -> Rank,
    ) -> Result<Order, Refusal> {
        let places: Vec<usize> =
            (0..pages.len()).filter(|place| owner_of(pages[*place], *place) == self.rank).collect();
        let l1: Vec<u32> = places.iter().map(|place| pages[*place].physical(self.cp_size)).collect();
        let l2: Vec<u32> = places.iter().map(|place| slots[*place].0).collect();
        let runs = Runs::merge(&l1.iter().copied().map(L1Page).collect::<Vec<_>>(), &host_pages(&l2));
        let runs = runs.map_err(|error| match error {
            RunsError::L1PageTwice { page } => {
                Malformed::new("pages", PageId::at(self.rank, page.0, self.cp_size).0, "each page once in an op")
            }
            RunsError::HostPageTwice { page } => Malformed::new("slots", page.0, "each slot of a rank once in an op"),
            RunsError::LengthsDiffer { .. } | RunsError::TooManyPages { .. } => {
                Malformed::new("pages", error, "pages that 32 bits count")
            }
        })?;
        if let Some(slot) = l2.iter().find(|slot| **slot >= self.host_slots) {
            return Err(Malformed::new("slots", slot, format_args!("below {}", self.host_slots)).into());
        }
        self.check_l1(&l1)?;
        Ok(Order { l1, l2, runs, places })
    }

    /// Whether the attached engine has these physical pages.
    fn check_l1(self, l1: &[u32]) -> Result<(), Refusal> {
        let Some(l1_pages) = self.l1_pages else {
            if l1.is_empty() {
                return Ok(());
            }
            return Err(WrongState { what: format!("{:?}", self.rank), state: "no engine attached".to_owned() }.into());
        };
        if let Some(page) = l1.iter().find(|page| **page == PADDING_PAGE || **page >= l1_pages) {
            let page = PageId(page.saturating_mul(u32::from(self.cp_size)).saturating_add(u32::from(self.rank.0)));
            let limit = format!("physical pages {}..{l1_pages}", PADDING_PAGE + 1);
            return Err(Malformed::new("pages", page.0, limit).into());
        }
        Ok(())
    }
}

impl RingUse {
    /// The use of a load slot that `msg` means, for a page of `layers` layers.
    pub(super) fn of(msg: &LoadCopy, layers: u32) -> Result<Self, Refusal> {
        let values = u64::from(layers) + 1;
        if msg.ring_slot >= LOAD_SLOTS {
            return Err(Malformed::new("ring_slot", msg.ring_slot, format_args!("below {LOAD_SLOTS}")).into());
        }
        if !msg.base.is_multiple_of(values) || msg.base > u64::MAX / 4 - values {
            return Err(Malformed::new("base", msg.base, format_args!("a multiple of {values} below 2^62")).into());
        }
        let end = msg.base + u64::from(layers);
        Ok(Self { slot: msg.ring_slot, use_count: msg.base / values, base: msg.base, end })
    }
}

impl BackupRows {
    /// The rows of `order`, part of `msg`, in the order of its pages.
    pub(super) fn of(msg: &BackupCopy, order: &Order, generations: &[u32]) -> Self {
        let row = |((place, slot), generation): ((&usize, &u32), &u32)| {
            let parent: Key = place.checked_sub(1).map_or(msg.parent, |before| msg.keys.0[before]);
            let position = msg.first + *place as u32;
            let (key, salt, generation) = (msg.keys.0[*place], msg.salt, *generation);
            (*slot, Row { key, parent, salt, position, generation, sums: None })
        };
        Self { rows: order.places.iter().zip(&order.l2).zip(generations).map(row).collect() }
    }

    /// Adds the checksums that the copy took, if it took any.
    pub(super) fn set_sums(&mut self, sums: &[Sums]) {
        for ((_, row), sums) in self.rows.iter_mut().zip(sums) {
            row.sums = Some(*sums);
        }
    }
}

fn host_pages(slots: &[u32]) -> Vec<HostPage> {
    slots.iter().copied().map(HostPage).collect()
}

/// Refuses a list that does not pair up with the pages.
pub(super) fn same_length(field: &str, entries: usize, pages: usize) -> Result<(), Refusal> {
    if entries == pages {
        return Ok(());
    }
    Err(Malformed::new(field, format_args!("{entries} entries"), format_args!("{pages}, as the pages")).into())
}

/// Physical page 0 of each rank is padding and is never copied.
const PADDING_PAGE: u32 = 0;
