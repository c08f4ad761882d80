//! The bytes of a world: engine segments and pool files, which outlive the processes that made them.

use hicached_actors::protocol::{HostSlot, Incarnation, Key, OpId, PageId, Rank};

use crate::layout::{Layout, POISON, PageText};

/// Slots of a load ring.
pub(crate) const RING_SLOTS: usize = 64;

/// Everything that holds bytes, by rank.
#[derive(Debug)]
pub struct Memory {
    /// What a page consists of.
    pub layout: Layout,
    /// L1: one segment per engine rank.
    pub segments: Vec<Segment>,
    /// Segments of dead engines that a rank still maps.
    pub mapped: Vec<Option<Segment>>,
    /// The engine whose segment each rank maps.
    pub attached: Vec<Incarnation>,
    /// L2, words and load rings: one file per rank.
    pub pools: Vec<Pool>,
    /// Ranks whose words an engine has moved since the last look.
    pub words_moved: u64,
    /// Ranks whose ring has moved since the last look.
    pub ring_moved: u64,
}

/// Device memory of one engine rank, layer-first: `parts[part][physical * bytes ..]`.
#[derive(Debug)]
pub struct Segment {
    /// The engine rank that made it.
    pub engine: Incarnation,
    parts: Vec<Vec<u8>>,
}

/// The pool file of one rank.
#[derive(Debug)]
pub struct Pool {
    /// Words of target and draft.
    pub words: [u64; 2],
    /// The engine whose numbers the words are.
    pub words_of: Option<Incarnation>,
    /// The load ring.
    pub ring: [RingSlot; RING_SLOTS],
    /// The page table: one row per slot.
    pub rows: Vec<Row>,
    records: Vec<u8>,
}

/// One slot of a load ring.
#[derive(Clone, Copy, Debug, Default)]
pub struct RingSlot {
    /// `base` of the use plus the layers that have arrived.
    pub word: u64,
    /// `use_count * 4 + state`.
    pub status: u64,
}

/// States of a ring slot's use.
pub(crate) mod ring_state {
    /// Nobody has decided.
    pub(crate) const PENDING: u64 = 0;
    /// All layers are there.
    pub(crate) const DONE: u64 = 1;
    /// The load failed.
    pub(crate) const FAILED: u64 = 2;
}

/// One row of a page table.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// The backup that wrote it.
    pub op: OpId,
    /// Whether the index has committed it.
    pub sealed: bool,
    /// Page key.
    pub key: Key,
    /// Key of the page before it.
    pub parent: Key,
    /// Salt id.
    pub salt: Key,
    /// Position in its path.
    pub position: u32,
    /// Use of the slot.
    pub generation: u32,
    /// A component that a checked read finds broken.
    pub damaged: Option<String>,
}

impl RingSlot {
    /// The state of use `count`; an older use counts as pending.
    pub const fn state(&self, count: u64) -> u64 {
        if self.status / 4 == count { self.status % 4 } else { ring_state::PENDING }
    }

    /// Decides use `count` once; whether this call did.
    pub const fn decide(&mut self, count: u64, state: u64, word: u64) -> bool {
        if self.status / 4 > count || (self.status / 4 == count && self.status % 4 != ring_state::PENDING) {
            return false;
        }
        self.status = count * 4 + state;
        if word > self.word {
            self.word = word;
        }
        true
    }
}

impl Memory {
    /// Segments of `l1_pages` usable pages and empty pools of `l2_pages` slots.
    pub fn new(layout: Layout, l1_pages: u32, l2_pages: u32) -> Self {
        let segments = (0..layout.cp).map(|_| Segment::new(&layout, l1_pages + 1, Incarnation::default())).collect();
        let pools = (0..layout.cp).map(|_| Pool::new(&layout, l2_pages)).collect();
        let mapped = (0..layout.cp).map(|_| None).collect();
        let attached = vec![Incarnation::default(); usize::from(layout.cp)];
        Self { layout, segments, mapped, attached, pools, words_moved: 0, ring_moved: 0 }
    }

    /// Bytes of one part of a page in its owner's segment.
    pub fn l1(&self, page: PageId, part: usize) -> &[u8] {
        let at = self.l1_range(page, part);
        &self.segments[usize::from(page.owner(self.layout.cp).0)].parts[part][at]
    }

    /// The same, to write.
    pub fn l1_mut(&mut self, page: PageId, part: usize) -> &mut [u8] {
        let at = self.l1_range(page, part);
        &mut self.segments[usize::from(page.owner(self.layout.cp).0)].parts[part][at]
    }

    /// Bytes of one part of a record.
    pub fn l2(&self, rank: Rank, slot: HostSlot, part: usize) -> &[u8] {
        &self.pools[usize::from(rank.0)].records[self.l2_range(slot, part)]
    }

    /// The same, to write.
    pub fn l2_mut(&mut self, rank: Rank, slot: HostSlot, part: usize) -> &mut [u8] {
        let at = self.l2_range(slot, part);
        &mut self.pools[usize::from(rank.0)].records[at]
    }

    /// An engine rank begins again with a fresh segment; its rank keeps the old one mapped until it attaches.
    pub fn replace_segment(&mut self, rank: usize, pages: u32, engine: Incarnation) {
        let old = std::mem::replace(&mut self.segments[rank], Segment::new(&self.layout, pages, engine));
        if old.engine == self.attached[rank] {
            self.mapped[rank] = Some(old);
        }
    }

    /// The segment that a rank maps, dead or alive.
    fn mapped_by(&mut self, rank: usize) -> &mut Segment {
        let live = self.segments[rank].engine == self.attached[rank];
        match &mut self.mapped[rank] {
            Some(dead) if !live => dead,
            Some(_) | None => &mut self.segments[rank],
        }
    }

    /// Copies one part of a page to a record of its owner.
    pub fn back_up(&mut self, page: PageId, slot: HostSlot, part: usize) {
        let (from, at) = (self.l1_range(page, part), self.l2_range(slot, part));
        let rank = usize::from(page.owner(self.layout.cp).0);
        let bytes = self.mapped_by(rank).parts[part][from].to_vec();
        self.pools[rank].records[at].copy_from_slice(&bytes);
    }

    /// Copies one part of a record to a page of its owner.
    pub fn load(&mut self, slot: HostSlot, page: PageId, part: usize) {
        let (at, to) = (self.l2_range(slot, part), self.l1_range(page, part));
        let rank = usize::from(page.owner(self.layout.cp).0);
        let bytes = self.pools[rank].records[at].to_vec();
        self.mapped_by(rank).parts[part][to].copy_from_slice(&bytes);
    }

    /// Bytes of one part of a page, as its rank has them mapped.
    pub fn read(&mut self, page: PageId, part: usize) -> Vec<u8> {
        let at = self.l1_range(page, part);
        self.mapped_by(usize::from(page.owner(self.layout.cp).0)).parts[part][at].to_vec()
    }

    /// Writes the first bytes of one part of a page, as its rank has it mapped.
    pub fn land(&mut self, page: PageId, part: usize, bytes: &[u8]) {
        let at = self.l1_range(page, part);
        let mapped = self.mapped_by(usize::from(page.owner(self.layout.cp).0));
        mapped.parts[part][at][..bytes.len()].copy_from_slice(bytes);
    }

    /// A rank is about to write a page: it holds anything.
    pub fn poison(&mut self, page: PageId, part: usize) {
        let at = self.l1_range(page, part);
        self.mapped_by(usize::from(page.owner(self.layout.cp).0)).parts[part][at].fill(POISON);
    }

    /// The first part in which a page of L1 differs from what it stands for.
    pub fn l1_wrong(&self, page: PageId, text: &PageText<'_>) -> Option<usize> {
        self.l1_wrong_before(page, text, self.layout.page_tokens)
    }

    /// The first part in which the first `tokens` tokens of a page of L1 differ from what it stands for.
    pub fn l1_wrong_before(&self, page: PageId, text: &PageText<'_>, tokens: u32) -> Option<usize> {
        let is_right = |part: &usize| self.layout.is_right_before(*part, text, tokens, self.l1(page, *part));
        (0..self.layout.parts.len()).find(|part| !is_right(part))
    }

    /// The first part in which a record differs from what it stands for.
    pub fn l2_wrong(&self, rank: Rank, slot: HostSlot, text: &PageText<'_>) -> Option<usize> {
        (0..self.layout.parts.len()).find(|part| !self.layout.is_right(*part, text, self.l2(rank, slot, *part)))
    }

    /// Whether physical page and slot exist.
    pub fn holds(&self, page: Option<PageId>, slot: Option<(Rank, HostSlot)>) -> bool {
        let page_ok = page.is_none_or(|page| {
            let physical = page.physical(self.layout.cp);
            physical > 0 && self.segments[usize::from(page.owner(self.layout.cp).0)].pages(&self.layout) > physical
        });
        page_ok
            && slot.is_none_or(|(rank, slot)| {
                self.pools.get(usize::from(rank.0)).is_some_and(|pool| (slot.0 as usize) < pool.rows.len())
            })
    }

    fn l1_range(&self, page: PageId, part: usize) -> std::ops::Range<usize> {
        let bytes = self.layout.parts[part].bytes;
        let first = page.physical(self.layout.cp) as usize * bytes;
        first..first + bytes
    }

    fn l2_range(&self, slot: HostSlot, part: usize) -> std::ops::Range<usize> {
        let (part, record) = (&self.layout.parts[part], self.layout.record_bytes);
        let first = slot.0 as usize * record + part.offset;
        first..first + part.bytes
    }
}

impl Segment {
    /// A fresh segment of `pages` physical pages.
    pub fn new(layout: &Layout, pages: u32, engine: Incarnation) -> Self {
        let parts = layout.parts.iter().map(|part| vec![POISON; part.bytes * pages as usize]).collect();
        Self { engine, parts }
    }

    fn pages(&self, layout: &Layout) -> u32 {
        let parts = layout.parts.iter().zip(&self.parts);
        parts
            .filter(|(part, _)| part.bytes > 0)
            .map(|(part, bytes)| (bytes.len() / part.bytes) as u32)
            .next()
            .unwrap_or(0)
    }
}

impl Pool {
    /// An empty pool of `slots` records.
    pub fn new(layout: &Layout, slots: u32) -> Self {
        Self {
            words: [0; 2],
            words_of: None,
            ring: [RingSlot::default(); RING_SLOTS],
            rows: vec![Row::default(); slots as usize],
            records: vec![POISON; layout.record_bytes * slots as usize],
        }
    }

    /// Whether both tracks have passed `step`.
    pub fn has_passed(&self, layout: &Layout, step: u64) -> bool {
        [false, true]
            .into_iter()
            .all(|draft| self.words[usize::from(draft)] >= layout.word(draft, step, layout.track_layers(draft)))
    }

    /// The newest step that both tracks have passed.
    pub fn passed(&self, layout: &Layout) -> u64 {
        let of = |draft: bool| {
            let layers = u64::from(layout.track_layers(draft));
            let word = self.words[usize::from(draft)];
            if word < layers { 0 } else { (word - layers) / (layers + 1) }
        };
        of(false).min(of(true))
    }
}
