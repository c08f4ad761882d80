//! Copies of a fake rank: layer by layer, each when its track has finished it, with proof of the end.

use hicached_actors::protocol::{
    Address, BackupCopy, Bin, ComponentMissing, CopyAck, Damaged, HostSlot, Incarnation, LoadCopy, OpId, PageId, Rank,
    Refusal, WrongState,
};

use super::{Answered, RankProcess};
use crate::layout::POISON;
use crate::memory::{Memory, Row, ring_state};
use crate::net::{Event, Net};

/// One copy, running or ended; ended ones answer repeats.
#[derive(Debug)]
pub(super) struct CopyOp {
    requester: Address,
    pub(super) control: Incarnation,
    attempt: u32,
    kind: Kind,
    pairs: Vec<(PageId, HostSlot)>,
    copied: Vec<bool>,
    /// Whether a tick is on its way; a parked copy waits for words.
    ticking: bool,
    fate: Fate,
    /// The verdict has been carried out: a repeat that comes late changes nothing.
    sealed: bool,
}

#[derive(Debug)]
enum Kind {
    Backup {
        step: u64,
        next: [u32; 2],
        at_end: bool,
    },
    Load {
        slot: usize,
        base: u64,
        next: u32,
    },
    /// A stop that came before its copy.
    Unknown,
}

#[derive(Clone, Debug)]
enum Fate {
    Running,
    Complete,
    Failed(Refusal),
}

impl CopyOp {
    pub(super) const fn is_running(&self) -> bool {
        matches!(self.fate, Fate::Running)
    }

    /// Whether this verdict is the first.
    pub(super) const fn seals(&mut self) -> bool {
        !std::mem::replace(&mut self.sealed, true)
    }

    pub(super) const fn is_complete_backup(&self) -> bool {
        matches!((&self.kind, &self.fate), (Kind::Backup { .. }, Fate::Complete))
    }
}

impl RankProcess {
    /// L1 pages and host slots that a running copy reads or writes.
    pub fn busy(&self) -> impl Iterator<Item = (PageId, HostSlot)> + '_ {
        let running = self.ops.values().filter(|op| op.is_running() && !op.pairs.is_empty());
        running.flat_map(|op| op.pairs.iter().copied())
    }

    pub(super) fn start_backup(
        &mut self,
        net: &mut Net,
        memory: &mut Memory,
        from: Address,
        op: OpId,
        copy: BackupCopy,
    ) {
        if self.is_known(net, op, copy.attempt) {
            return;
        }
        let mine: Vec<usize> = self.mine(memory, &copy.pages.0);
        let pairs: Vec<_> = mine.iter().map(|at| (copy.pages.0[*at], copy.slots.0[*at])).collect();
        let valid = pairs.iter().all(|(page, slot)| memory.holds(Some(*page), Some((self.rank, *slot))));
        let fate = if self.engine.is_none() || !valid { Fate::Failed(self.no_pool(op)) } else { Fate::Running };
        if matches!(fate, Fate::Running) {
            let rows = &mut memory.pools[usize::from(self.rank.0)].rows;
            for at in mine {
                // The seal goes before the first new byte.
                let row = &mut rows[copy.slots.0[at].0 as usize];
                *row = Row {
                    op,
                    sealed: false,
                    key: copy.keys.0[at],
                    parent: if at == 0 { copy.parent } else { copy.keys.0[at - 1] },
                    salt: copy.salt,
                    position: copy.first + at as u32,
                    generation: row.generation + 1,
                    damaged: None,
                };
            }
            for (_, slot) in &pairs {
                for part in 0..memory.layout.parts.len() {
                    memory.l2_mut(self.rank, *slot, part).fill(POISON);
                }
            }
        }
        let kind = Kind::Backup { step: copy.step, next: [0; 2], at_end: copy.all_layers_at_end };
        self.begin(net, memory, from, op, copy.attempt, kind, pairs, fate);
    }

    pub(super) fn start_load(&mut self, net: &mut Net, memory: &mut Memory, from: Address, op: OpId, copy: LoadCopy) {
        if self.is_known(net, op, copy.attempt) {
            return;
        }
        let mine = self.mine(memory, &copy.pages.0);
        let pairs: Vec<_> = mine.iter().map(|at| (copy.pages.0[*at], copy.slots.0[*at])).collect();
        let count = copy.base / (u64::from(memory.layout.all_layers()) + 1);
        let rank = usize::from(self.rank.0);
        let valid = pairs.iter().all(|(page, slot)| memory.holds(Some(*page), Some((self.rank, *slot))));
        let ring = &mut memory.pools[rank].ring[copy.ring_slot as usize];
        if ring.status / 4 < count {
            ring.status = count * 4 + ring_state::PENDING;
        }
        let mut fate = if self.engine.is_none() || !valid { Fate::Failed(self.no_pool(op)) } else { Fate::Running };
        let rows = &memory.pools[rank].rows;
        if valid && pairs.iter().any(|(_, slot)| rows[slot.0 as usize].generation == 0) {
            fate = Fate::Failed(WrongState::new(op, "a record that was never written here").into());
        }
        if let Some(missing) = self.damaged_record(net, memory, &pairs) {
            fate = Fate::Failed(missing);
        }
        if memory.pools[rank].ring[copy.ring_slot as usize].state(count) != ring_state::PENDING {
            fate = Fate::Failed(WrongState::new(op, "load given up by the engine").into());
        }
        if matches!(fate, Fate::Running) {
            for (page, _) in &pairs {
                for part in 0..memory.layout.parts.len() {
                    memory.poison(*page, part);
                }
            }
        }
        let kind = Kind::Load { slot: copy.ring_slot as usize, base: copy.base, next: 0 };
        self.begin(net, memory, from, op, copy.attempt, kind, pairs, fate);
    }

    /// A load of an older life: nothing will come of it here.
    pub(super) fn disown_slot(&mut self, net: &mut Net, memory: &mut Memory, from: Address, op: OpId, copy: &LoadCopy) {
        let layers = u64::from(memory.layout.all_layers());
        let ring = &mut memory.pools[usize::from(self.rank.0)].ring[copy.ring_slot as usize];
        ring.decide(copy.base / (layers + 1), ring_state::FAILED, copy.base + layers);
        if self.ops.contains_key(&op) {
            return self.acknowledge(net, op);
        }
        let fate = Fate::Failed(WrongState::new(op, "of an older life").into());
        self.begin(net, memory, from, op, copy.attempt, Kind::Unknown, Vec::new(), fate);
    }

    pub(super) fn stop(&mut self, net: &mut Net, memory: &mut Memory, from: Address, op: OpId, attempt: u32) {
        if !self.ops.contains_key(&op) {
            let fate = Fate::Failed(WrongState::new(op, "stopped before it began").into());
            return self.begin(net, memory, from, op, attempt, Kind::Unknown, Vec::new(), fate);
        }
        self.end_failed(net, memory, op, WrongState::new(op, "stopped").into());
        self.acknowledge(net, op);
    }

    /// Ends every running copy: another control group or engine has come.
    pub(super) fn stop_all(&mut self, net: &mut Net, memory: &mut Memory) {
        let running: Vec<OpId> = self.ops.iter().filter(|(_, op)| op.is_running()).map(|(op, _)| *op).collect();
        for op in running {
            self.end_failed(net, memory, op, WrongState::new(op, "forfeited").into());
            self.acknowledge(net, op);
        }
    }

    /// The process is gone: some copies end in the middle of a layer.
    pub(super) fn tear_copies(&mut self, net: &mut Net, memory: &mut Memory) {
        for op in self.ops.values().filter(|op| op.is_running()) {
            let Some(part) = op.copied.iter().position(|copied| !copied) else { continue };
            let torn = net.chance.index(op.pairs.len() + 1);
            for (page, slot) in op.pairs.iter().take(torn) {
                match op.kind {
                    Kind::Backup { .. } => memory.back_up(*page, *slot, part),
                    Kind::Load { .. } => memory.load(*slot, *page, part),
                    Kind::Unknown => {}
                }
            }
        }
    }

    /// Words have moved: parked copies go on.
    pub fn words_moved(&mut self, net: &mut Net, memory: &Memory) {
        if !self.alive {
            return;
        }
        let parked: Vec<OpId> =
            self.ops.iter().filter(|(_, op)| op.is_running() && !op.ticking).map(|(id, _)| *id).collect();
        for op in parked {
            self.schedule(net, memory, op);
        }
        self.send_what_is_ready(net, memory);
        self.tell_passed(net, memory);
    }

    /// One layer of a copy ends.
    pub fn tick(&mut self, net: &mut Net, memory: &mut Memory, lives: u32, id: OpId) {
        if !self.alive || lives != self.lives {
            return;
        }
        if self.finds_damage(net, memory, id) {
            return;
        }
        let Some(mut op) = self.ops.remove(&id) else { return };
        op.ticking = false;
        let mut lost = false;
        if op.is_running() {
            match &mut op.kind {
                Kind::Backup { .. } => self.copy_backup_layer(memory, &mut op),
                Kind::Load { slot, base, next } => {
                    let rank = usize::from(self.rank.0);
                    let count = *base / (u64::from(memory.layout.all_layers()) + 1);
                    lost = memory.pools[rank].ring[*slot].state(count) != ring_state::PENDING;
                    if !lost {
                        for part in memory.layout.parts_of_layer(*next).collect::<Vec<_>>() {
                            op.pairs.iter().for_each(|(page, slot)| memory.load(*slot, *page, part));
                            op.copied[part] = true;
                        }
                        *next += 1;
                        memory.pools[rank].ring[*slot].word = *base + u64::from(*next);
                        memory.ring_moved |= 1 << rank;
                    }
                }
                Kind::Unknown => {}
            }
        }
        let done = op.is_running() && op.copied.iter().all(|copied| *copied);
        self.ops.insert(id, op);
        self.chatter(net, id);
        self.go_wrong(net, memory, id);
        if lost {
            self.end_failed(net, memory, id, WrongState::new(id, "load given up by the engine").into());
            self.acknowledge(net, id);
        } else if done {
            self.end_complete(net, memory, id);
        } else {
            self.schedule(net, memory, id);
        }
    }

    fn copy_backup_layer(&self, memory: &mut Memory, op: &mut CopyOp) {
        let Some((draft, layer)) = self.ready(memory, op) else { return };
        for part in 0..memory.layout.parts.len() {
            let of = &memory.layout.parts[part];
            if of.draft == draft && of.layer == layer {
                op.pairs.iter().for_each(|(page, slot)| memory.back_up(*page, *slot, part));
                op.copied[part] = true;
            }
        }
        if let Kind::Backup { next, .. } = &mut op.kind {
            next[usize::from(draft)] += 1;
        }
    }

    /// The next layer of a backup that its track has finished.
    fn ready(&self, memory: &Memory, op: &CopyOp) -> Option<(bool, u32)> {
        let Kind::Backup { step, next, at_end } = &op.kind else { return None };
        let pool = &memory.pools[usize::from(self.rank.0)];
        [false, true].into_iter().find_map(|draft| {
            let layer = next[usize::from(draft)];
            if layer >= memory.layout.track_layers(draft) {
                return None;
            }
            let passed = if *at_end {
                pool.has_passed(&memory.layout, *step)
            } else {
                pool.words[usize::from(draft)] >= memory.layout.word(draft, *step, layer + 1)
            };
            (*step == 0 || passed).then_some((draft, layer))
        })
    }

    fn schedule(&mut self, net: &mut Net, memory: &Memory, id: OpId) {
        let Some(op) = self.ops.get(&id).filter(|op| op.is_running() && !op.ticking) else { return };
        let go = match &op.kind {
            Kind::Backup { next, .. } => {
                self.backup_stop_after.is_none_or(|stop| next[0] + next[1] < stop) && self.ready(memory, op).is_some()
            }
            Kind::Load { next, .. } => self.load_stop_after.is_none_or(|stop| *next < stop),
            Kind::Unknown => false,
        };
        if go {
            let us = net.chance.within(20, net.mix.copy_us);
            net.after_us(us, Event::Copy(self.rank, self.lives, id));
            self.ops.get_mut(&id).expect("looked up above").ticking = true;
        }
    }

    #[expect(clippy::too_many_arguments, reason = "everything a copy begins with")]
    fn begin(
        &mut self,
        net: &mut Net,
        memory: &mut Memory,
        requester: Address,
        id: OpId,
        attempt: u32,
        kind: Kind,
        pairs: Vec<(PageId, HostSlot)>,
        fate: Fate,
    ) {
        let control = self.adopted.map(|by| by.control).unwrap_or_default();
        let copied = vec![false; memory.layout.parts.len()];
        let nothing = pairs.is_empty();
        let op = CopyOp {
            requester,
            control,
            attempt,
            kind,
            pairs,
            copied,
            ticking: false,
            fate: Fate::Running,
            sealed: false,
        };
        self.ops.insert(id, op);
        match fate {
            Fate::Failed(refusal) => {
                self.end_failed(net, memory, id, refusal);
                self.acknowledge(net, id);
            }
            Fate::Running | Fate::Complete if nothing => self.end_complete(net, memory, id),
            Fate::Running | Fate::Complete => self.schedule(net, memory, id),
        }
    }

    fn end_complete(&mut self, net: &mut Net, memory: &mut Memory, id: OpId) {
        let layers = memory.layout.all_layers();
        let Some(op) = self.ops.get_mut(&id).filter(|op| op.is_running()) else { return };
        op.copied.fill(true);
        op.fate = Fate::Complete;
        match op.kind {
            Kind::Backup { .. } => net.stats.backups += u64::from(!op.pairs.is_empty()),
            Kind::Load { slot, base, .. } => {
                let ring = &mut memory.pools[usize::from(self.rank.0)].ring[slot];
                let count = base / (u64::from(layers) + 1);
                if !ring.decide(count, ring_state::DONE, base + u64::from(layers)) {
                    op.fate = Fate::Failed(WrongState::new(id, "load given up by the engine").into());
                }
                memory.ring_moved |= 1 << self.rank.0;
            }
            Kind::Unknown => {}
        }
        self.acknowledge(net, id);
    }

    fn end_failed(&mut self, _net: &mut Net, memory: &mut Memory, id: OpId, refusal: Refusal) {
        let layers = memory.layout.all_layers();
        let Some(op) = self.ops.get_mut(&id).filter(|op| op.is_running()) else { return };
        op.fate = Fate::Failed(refusal);
        if let Kind::Load { slot, base, .. } = op.kind {
            let count = base / (u64::from(layers) + 1);
            memory.pools[usize::from(self.rank.0)].ring[slot].decide(
                count,
                ring_state::FAILED,
                base + u64::from(layers),
            );
            memory.ring_moved |= 1 << self.rank.0;
        }
    }

    fn acknowledge(&mut self, net: &mut Net, id: OpId) {
        let Some(op) = self.ops.get(&id) else { return };
        let (complete, failed) = match &op.fate {
            Fate::Running => return,
            Fate::Complete => (true, Vec::new()),
            Fate::Failed(refusal) => (false, vec![refusal.clone()]),
        };
        let ack = self.ack_of(op.attempt, &op.copied, complete, failed);
        let to = op.requester;
        self.answer(net, to, id, Answered::Ack(ack));
    }

    /// What must move nothing: how far a running copy is, and a try that was never made.
    fn chatter(&mut self, net: &mut Net, id: OpId) {
        let Some(op) = self.ops.get(&id).filter(|op| op.is_running()) else { return };
        let (to, attempt, copied) = (op.requester, op.attempt, op.copied.clone());
        if net.chance.happens(net.mix.chatter) {
            let ack = self.ack_of(attempt, &copied, false, Vec::new());
            self.answer(net, to, id, Answered::Ack(ack));
        }
        if net.chance.happens(net.mix.chatter / 4) {
            let ack = self.ack_of(attempt + 1, &vec![true; copied.len()], true, Vec::new());
            self.answer(net, to, id, Answered::Ack(ack));
        }
    }

    /// A copy engine fails, or a rank claims to be done although its draft is missing.
    fn go_wrong(&mut self, net: &mut Net, memory: &mut Memory, id: OpId) {
        let Some(op) = self.ops.get(&id).filter(|op| op.is_running()) else { return };
        let drafts =
            |draft: bool| memory.layout.parts.iter().zip(&op.copied).filter(move |(part, _)| part.draft == draft);
        let draft_is_missing = drafts(false).all(|(_, copied)| *copied) && drafts(true).any(|(_, copied)| !copied);
        let (to, attempt, copied) = (op.requester, op.attempt, op.copied.clone());
        if draft_is_missing && net.chance.happens(net.mix.chatter / 4) {
            let ack = self.ack_of(attempt, &copied, true, Vec::new());
            self.end_failed(net, memory, id, WrongState::new(id, "draft is missing").into());
            self.answer(net, to, id, Answered::Ack(ack));
        } else if net.chance.happens(net.mix.chatter / 8) {
            self.end_failed(net, memory, id, WrongState::new(id, "copy engine failed").into());
            self.acknowledge(net, id);
        }
    }

    fn ack_of(&self, attempt: u32, copied: &[bool], complete: bool, failed: Vec<Refusal>) -> CopyAck {
        let mut layers = vec![0; copied.len().div_ceil(8)];
        for (bit, _) in copied.iter().enumerate().filter(|(_, copied)| **copied) {
            layers[bit / 8] |= 1 << (bit % 8);
        }
        CopyAck { attempt, rank: self.rank, layers: Bin(layers), complete, failed }
    }

    /// A peer misses messages: ended copies are acknowledged again.
    pub(super) fn say_again(&mut self, net: &mut Net, to: Address) {
        let ended: Vec<OpId> = self.ops.iter().filter(|(_, op)| op.requester == to).map(|(op, _)| *op).collect();
        for op in ended.into_iter().rev().take(SAID_AGAIN_MAX) {
            self.acknowledge(net, op);
        }
    }

    /// Answers a repeat from the state of its op; whether it was one.
    fn is_known(&mut self, net: &mut Net, op: OpId, attempt: u32) -> bool {
        let Some(known) = self.ops.get(&op).filter(|known| known.attempt >= attempt || known.is_running()) else {
            return false;
        };
        if known.attempt == attempt {
            self.acknowledge(net, op);
        }
        true
    }

    fn mine(&self, memory: &Memory, pages: &[PageId]) -> Vec<usize> {
        (0..pages.len()).filter(|at| pages[*at].owner(memory.layout.cp) == self.rank).collect()
    }

    pub(super) fn no_pool(&self, op: OpId) -> Refusal {
        WrongState::new(op, "no engine is attached, or a page does not exist").into()
    }

    /// Every read of a record is checked: a load of one that broke meanwhile fails.
    fn finds_damage(&mut self, net: &mut Net, memory: &mut Memory, id: OpId) -> bool {
        let Some(op) = self.ops.get(&id).filter(|op| op.is_running()) else { return false };
        let Kind::Load { .. } = op.kind else { return false };
        let pairs = op.pairs.clone();
        let Some(missing) = self.damaged_record(net, memory, &pairs) else { return false };
        self.end_failed(net, memory, id, missing);
        self.acknowledge(net, id);
        true
    }

    fn damaged_record(&mut self, net: &mut Net, memory: &Memory, pairs: &[(PageId, HostSlot)]) -> Option<Refusal> {
        let rows = &memory.pools[usize::from(self.rank.0)].rows;
        let (slot, row) =
            pairs.iter().map(|(_, slot)| (slot, &rows[slot.0 as usize])).find(|(_, row)| row.damaged.is_some())?;
        let component = row.damaged.clone()?;
        let refusal = ComponentMissing { key: row.key, component: component.clone() };
        self.report_damage(net, *slot, component);
        Some(refusal.into())
    }

    /// Tells the index of a record that a checked read or a scrub found broken, until it is settled.
    pub fn report_damage(&mut self, net: &mut Net, slot: HostSlot, component: String) {
        let op = self.ids.draw();
        let damaged = Damaged { rank: Rank(self.rank.0), slot: slot.0, component };
        self.damaged.insert(op, damaged.clone());
        self.tell_index(net, op, damaged.into());
    }

    /// A script lets its stopped copies go on.
    pub fn go_on(&mut self, net: &mut Net, memory: &Memory) {
        (self.load_stop_after, self.backup_stop_after) = (None, None);
        self.words_moved(net, memory);
    }
}

/// Ended copies said again at once: the newest, which the peer can still be waiting for.
const SAID_AGAIN_MAX: usize = 32;
