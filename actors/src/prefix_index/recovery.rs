//! The one path of recovery: inventories of every rank, the tree from sealed L2 pages, the allocator from the
//! tree, L1 when it is proven that nothing launched earlier still runs.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::evictions::placed;
use super::unseals::Gone;
use super::{CALL, CALL_RANK, FreeThen, Index, NO_TRACE, Placed};
use crate::machine::{Effect, Sender};
use crate::protocol::{
    AllocatorIn, HostSlot, Incarnation, Inventory, InventoryPart, InventoryRow, Key, OpId, OpenLanes, Outgoing, Owners,
    Rank, RankIn, Restore, Slots, Tier, Time,
};

/// How far the recovery is.
#[derive(Debug)]
pub(super) struct Recovery {
    tables: Vec<Table>,
    phase: Phase,
    /// Parts of the restore that the allocator has not taken.
    parts: VecDeque<Restore>,
    restore: OpId,
    /// Rows of a restarted rank that the allocator is asked to take.
    adopting: BTreeMap<OpId, Adopting>,
    /// Slots that are given back when the allocator has been told that they are taken.
    early: Vec<Placed>,
    times: Times,
}

/// When the incarnation began, and the ends of what came after; zero for what is still to come.
#[derive(Debug, Default)]
struct Times {
    began: Time,
    read: Time,
    rebuilt: Time,
    serving: Time,
}

#[derive(Debug)]
struct Adopting {
    rank: Rank,
    /// The life that showed the rows.
    life: Option<Incarnation>,
    rows: Vec<InventoryRow>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Page tables are read.
    Reading,
    /// The allocator learns what is taken.
    Restoring,
    /// L2 serves; L1 waits for its engines and for proof.
    Closed,
    /// The allocator opens L1.
    Opening,
    /// Everything serves.
    Serving,
}

#[derive(Debug, Default)]
struct Table {
    rows: Vec<InventoryRow>,
    cursor: u32,
    read: bool,
    /// What left L2 since the life began that shows the table: its rows may still say that it is sealed.
    left: BTreeSet<(u32, Key)>,
}

impl Recovery {
    pub(super) fn new(cp_size: u8) -> Self {
        Self {
            tables: (0..cp_size).map(|_| Table::default()).collect(),
            phase: Phase::Reading,
            parts: VecDeque::new(),
            restore: OpId::default(),
            adopting: BTreeMap::new(),
            early: Vec::new(),
            times: Times::default(),
        }
    }

    /// The incarnation begins.
    pub(super) const fn begin(&mut self, now: Time) {
        self.times.began = now;
    }

    /// Microseconds from the begin of the incarnation to the end of each part of its recovery, 0 before that: page
    /// tables are read; the tree is built and the allocator knows; L1 is open, too.
    pub(super) fn figures(&self) -> [(&'static str, u64); 3] {
        let Times { began, read, rebuilt, serving } = self.times;
        let us = |end: Time| end.ns.saturating_sub(began.ns) / 1_000;
        [("index.read_us", us(read)), ("index.rebuilt_us", us(rebuilt)), ("index.serving_us", us(serving))]
    }

    /// Whether the page table of the rank's present life is known.
    pub(super) fn is_read(&self, rank: Rank) -> bool {
        self.tables.get(usize::from(rank.0)).is_some_and(|table| table.read)
    }

    pub(super) fn all_read(&self) -> bool {
        self.tables.iter().all(|table| table.read)
    }

    pub(super) fn is_reading(&self) -> bool {
        self.phase == Phase::Reading
    }

    /// Whether the allocator knows what the tree holds.
    pub(super) fn is_rebuilt(&self) -> bool {
        match self.phase {
            Phase::Reading | Phase::Restoring => false,
            Phase::Closed | Phase::Opening | Phase::Serving => true,
        }
    }

    /// These slots are given back once the allocator knows what the tree held.
    pub(super) fn frees_later(&mut self, slots: Vec<Placed>) {
        self.early.extend(slots);
    }

    /// Records of `rank` leave L2.
    pub(super) fn left(&mut self, rank: Rank, records: &[(HostSlot, Key)]) {
        if let Some(table) = self.tables.get_mut(usize::from(rank.0)).filter(|table| !table.read) {
            table.left.extend(records.iter().map(|(slot, key)| (slot.0, *key)));
        }
    }

    pub(super) fn is_adopting_rows(&self, op: OpId) -> bool {
        self.adopting.contains_key(&op)
    }
}

impl Index {
    /// Whether sessions can begin.
    pub fn is_serving(&self) -> bool {
        self.recovery.phase == Phase::Serving && self.members.all_attached()
    }

    pub(super) fn ask_inventory(&mut self, now: Time, rank: Rank, cursor: u32, out: &mut Vec<Effect>) {
        let left: BTreeSet<(u32, Key)> = match cursor {
            0 => self.leaving(rank).map(|(slot, key)| (slot.0, key)).collect(),
            _ => BTreeSet::new(),
        };
        let Some(table) = self.recovery.tables.get_mut(usize::from(rank.0)) else { return };
        if cursor == 0 {
            *table = Table { left, ..Table::default() };
        }
        table.cursor = cursor;
        let msg = Outgoing::Rank(rank, RankIn::from(Inventory { cursor }));
        self.calls.call(now, (OpId::default(), INVENTORY + u16::from(rank.0)), msg, &NO_TRACE, out);
    }

    pub(super) fn inventory_part(&mut self, now: Time, from: &Sender, msg: InventoryPart, out: &mut Vec<Effect>) {
        let crate::protocol::Address::Rank(rank) = from.address else { return };
        let Some(table) = self.recovery.tables.get_mut(usize::from(rank.0)) else { return };
        if table.read || msg.cursor != table.cursor {
            return;
        }
        self.calls.answered((OpId::default(), INVENTORY + u16::from(rank.0)));
        table.rows.extend(msg.rows);
        if msg.next != u32::MAX && msg.next > msg.cursor {
            return self.ask_inventory(now, rank, msg.next, out);
        }
        table.read = true;
        if self.recovery.phase != Phase::Reading {
            let (mut rows, left) = (std::mem::take(&mut table.rows), std::mem::take(&mut table.left));
            rows.retain(|row| !left.contains(&(row.slot, row.key)));
            return self.rank_came_back(now, rank, rows, out);
        }
        if self.recovery.tables.iter().all(|table| table.read) {
            self.rebuild(now, out);
        }
    }

    /// Builds L2 from the sealed pages of all ranks, parents first; what has no parent is no page.
    fn rebuild(&mut self, now: Time, out: &mut Vec<Effect>) {
        let mut rows: Vec<(u32, Rank, InventoryRow)> = Vec::new();
        for (n, table) in (0..).zip(&mut self.recovery.tables) {
            rows.extend(std::mem::take(&mut table.rows).into_iter().map(|row| (row.position, Rank(n), row)));
        }
        rows.sort_by_key(|(position, rank, row)| (*position, *rank, std::cmp::Reverse(row.generation), row.slot));
        let (mut taken, mut orphans): (Vec<Placed>, Vec<Gone>) = (Vec::new(), Vec::new());
        for (_, rank, row) in rows {
            if self.place_row(rank, &row) {
                taken.push((rank, HostSlot(row.slot)));
            } else {
                orphans.push((rank, HostSlot(row.slot), row.key));
            }
        }
        self.unseal(now, &orphans, out);
        self.counts.stored_l2 += taken.len() as u64;
        self.recovery.phase = Phase::Restoring;
        self.recovery.times.read = now;
        self.recovery.restore = self.ids.draw();
        let chunks = taken.chunks(RESTORE_SLOTS_MAX);
        let mut parts: VecDeque<Restore> = chunks.zip(0..).map(|(chunk, part)| restore(chunk, part, false)).collect();
        match parts.back_mut() {
            Some(last) => last.last = true,
            None => parts.push_back(restore(&[], 0, true)),
        }
        self.recovery.parts = parts;
        self.restore_next(now, out);
    }

    /// Puts one sealed record into the tree; `false` when it has no parent there or stands there already.
    fn place_row(&mut self, rank: Rank, row: &InventoryRow) -> bool {
        if row.slot >= self.config.l2_slots {
            return false;
        }
        let Ok(salt) = self.intern(row.salt) else { return false };
        let parent = match row.position {
            0 => (row.parent == row.salt).then_some(None),
            _ => self.tree.find(&row.parent).map(Some),
        };
        let Some(parent) = parent else { return false };
        if let Some(node) = parent {
            let view = self.tree.page(node);
            let fits = view.l2.is_some() && !view.is_quarantined && view.salt == salt;
            if !fits || view.position + 1 != row.position {
                return false;
            }
        }
        let Ok(node) = self.tree.insert(parent, row.key, salt, self.tick) else { return false };
        if self.tree.page(node).l2.is_some() {
            return false;
        }
        self.tree.set_l2(node, rank, HostSlot(row.slot));
        true
    }

    fn restore_next(&mut self, now: Time, out: &mut Vec<Effect>) {
        let op = self.recovery.restore;
        match self.recovery.parts.front() {
            Some(part) => {
                let msg = Outgoing::Allocator(AllocatorIn::from(part.clone()));
                self.calls.call(now, (op, CALL), msg, &NO_TRACE, out);
            }
            None => {
                self.recovery.phase = Phase::Closed;
                self.recovery.times.rebuilt = now;
                let early = std::mem::take(&mut self.recovery.early);
                self.free(now, Vec::new(), early, FreeThen::Nothing, out);
                self.open_lanes_if_proven(now, out);
            }
        }
    }

    pub(super) fn restored(&mut self, now: Time, op: OpId, part: u32, out: &mut Vec<Effect>) {
        if let Some(adopting) = self.recovery.adopting.remove(&op) {
            self.calls.answered((op, CALL));
            self.rows_adopted(now, &adopting, out);
            return self.end_adopting(now, adopting.rank, out);
        }
        let expected = self.recovery.parts.front().is_some_and(|front| front.part == part);
        if op == self.recovery.restore && expected && self.calls.answered((op, CALL)) {
            self.recovery.parts.pop_front();
            self.restore_next(now, out);
        }
    }

    /// Opens L1 once every engine rank is mapped and has passed whatever was launched before.
    pub(super) fn open_lanes_if_proven(&mut self, now: Time, out: &mut Vec<Effect>) {
        let proven = self.members.all_attached() && self.members.passed_everywhere() >= self.members.last_step();
        if self.recovery.phase != Phase::Closed || !proven {
            return;
        }
        self.recovery.phase = Phase::Opening;
        let op = self.ids.draw();
        self.freeing.insert(op, FreeThen::Lanes);
        let msg = Outgoing::Allocator(AllocatorIn::from(OpenLanes {}));
        self.calls.call(now, (op, CALL), msg, &NO_TRACE, out);
    }

    pub(super) fn lanes_opened(&mut self, now: Time) {
        self.recovery.phase = Phase::Serving;
        self.recovery.times.serving = now;
    }

    /// A rank restarted: what its pool no longer holds leaves L2, what it holds and nobody knew may enter.
    fn rank_came_back(&mut self, now: Time, rank: Rank, rows: Vec<InventoryRow>, out: &mut Vec<Effect>) {
        let has: BTreeMap<u32, &InventoryRow> = rows.iter().map(|row| (row.slot, row)).collect();
        let lost: Vec<_> = self
            .tree
            .nodes(0)
            .map(|node| self.tree.page(node))
            .filter(|view| {
                view.l2.is_some_and(|(of, slot)| of == rank && has.get(&slot.0).is_none_or(|row| row.key != view.key))
            })
            .map(|view| view.key)
            .collect();
        for key in lost {
            // What stood behind a page lost before it is gone already.
            let Some(node) = self.tree.find(&key).filter(|node| self.tree.page(*node).l2.is_some()) else { continue };
            self.tree.quarantine(node);
            self.lost.insert(key);
            self.drop_l2_behind(now, node, out);
        }
        self.drop_lost(now, out);
        let mut known = BTreeSet::new();
        let (mut new, mut spare) = (Vec::new(), Vec::new());
        for row in rows {
            let copy = self.tree.find(&row.key).and_then(|node| self.tree.page(node).l2);
            let slot = (rank, HostSlot(row.slot));
            if copy == Some(slot) {
                continue;
            }
            if copy.is_none() && known.insert(row.key) {
                new.push(row);
            } else {
                spare.push((rank, slot.1, row.key));
            }
        }
        self.unseal(now, &spare, out);
        new.sort_by_key(|row| (row.position, row.slot));
        self.adopt_rows(now, rank, new, out);
    }

    /// Asks the allocator for the slots of rows that can stand in the tree.
    fn adopt_rows(&mut self, now: Time, rank: Rank, rows: Vec<InventoryRow>, out: &mut Vec<Effect>) {
        for chunk in rows.chunks(ADOPT_ROWS_MAX) {
            let op = self.ids.draw();
            let slots: Vec<Placed> = chunk.iter().map(|row| (rank, HostSlot(row.slot))).collect();
            let life = self.members.life_of(rank);
            self.recovery.adopting.insert(op, Adopting { rank, life, rows: chunk.to_vec() });
            let msg = Outgoing::Allocator(AllocatorIn::from(restore(&slots, 0, true)));
            self.calls.call(now, (op, CALL), msg, &NO_TRACE, out);
        }
        self.end_adopting(now, rank, out);
    }

    /// Copies to the rank may begin once the allocator has been told of all its records.
    fn end_adopting(&mut self, now: Time, rank: Rank, out: &mut Vec<Effect>) {
        if self.recovery.is_read(rank) && self.recovery.adopting.values().all(|adopting| adopting.rank != rank) {
            self.rank_is_back(now, rank, out);
        }
    }

    /// The slots are ours: rows that fit become pages, the others' slots go back, as do all those of a life that
    /// is over by now.
    fn rows_adopted(&mut self, now: Time, adopting: &Adopting, out: &mut Vec<Effect>) {
        let rank = adopting.rank;
        let is_current = self.members.life_of(rank) == adopting.life;
        let mut back = Vec::new();
        for row in &adopting.rows {
            if is_current && self.place_row(rank, row) {
                self.counts.stored_l2 += 1;
            } else {
                back.push((rank, HostSlot(row.slot), row.key));
            }
        }
        self.free(now, Vec::new(), placed(&back), FreeThen::Nothing, out);
        if is_current {
            self.unseal(now, &back, out);
        }
    }

    /// Some slot is in use by a newer op: the rows of this chunk are not worth a second look.
    pub(super) fn rows_rejected(&mut self, now: Time, op: OpId, out: &mut Vec<Effect>) {
        if let Some(Adopting { rank, life, rows }) = self.recovery.adopting.remove(&op) {
            if self.members.life_of(rank) == life {
                let gone: Vec<Gone> = rows.iter().map(|row| (rank, HostSlot(row.slot), row.key)).collect();
                self.unseal(now, &gone, out);
            }
            self.end_adopting(now, rank, out);
        }
    }

    /// Clears copies whose bytes are gone, as soon as nobody uses them.
    pub(super) fn drop_lost(&mut self, now: Time, out: &mut Vec<Effect>) {
        if self.lost.is_empty() {
            return;
        }
        let (mut gone, mut keys) = (Vec::new(), Vec::new());
        let quarantined = |key: &Key| self.tree.find(key).map(|node| self.tree.page(node)).filter(|p| p.is_quarantined);
        self.lost.retain(|key| quarantined(key).is_some());
        let mut behind: Vec<(u32, Key)> =
            self.lost.iter().filter_map(|key| Some((quarantined(key)?.position, *key))).collect();
        // Children first.
        behind.sort_unstable_by(|a, b| b.cmp(a));
        for (_, key) in behind {
            let Some(node) = self.tree.find(&key) else { continue };
            let view = self.tree.page(node);
            if view.children[1] > 0 || view.pins[1] > 0 || view.holds[1] > 0 {
                continue;
            }
            let (rank, slot) = self.clear_l2(node);
            gone.push((rank, slot, key));
            keys.push(key);
            self.tree.prune(node);
            self.lost.remove(&key);
        }
        self.removed(Tier::L2, &keys, out);
        self.free(now, Vec::new(), placed(&gone), FreeThen::Nothing, out);
        self.unseal(now, &gone, out);
    }
}

fn restore(taken: &[Placed], part: u32, last: bool) -> Restore {
    let (owners, slots) = taken.iter().map(|(rank, slot)| (rank.0, *slot)).unzip();
    Restore { part, l2_owners: Owners(owners), l2: Slots(slots), last }
}

/// Calls for page tables: this and the rank.
const INVENTORY: u16 = 2 * CALL_RANK;
/// Slots in one part of a restore: 5 bytes each, well inside a message.
const RESTORE_SLOTS_MAX: usize = 65_536;
/// Rows asked for together: one that is in use loses the chunk.
const ADOPT_ROWS_MAX: usize = 64;
