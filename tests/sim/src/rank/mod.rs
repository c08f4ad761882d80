//! A fake rank: what the real one answers, on small bytes and virtual time.
//!
//! The process can die at any point; its pool file (records, page table, words, ring) outlives it.

mod copies;
mod door;
mod landing;
mod pushes;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use hicached_actors::link::Link;
use hicached_actors::protocol::{
    Accept, Address, Adopt, Attach, AttachRefused, Attached, BackupCopy, CopyAck, Damaged, Incarnation, IndexNews,
    InventoryPart, InventoryRow, LoadCopy, LoaderIn, Mismatch, OpId, OpIds, OpSettled, Outgoing, Passed, Push, Rank,
    RankHello, RankIn, ReceiverIn, Refusal, Rejected, Seal, Sealed, SenderIn, Time, Unknown, WriterIn,
};

use crate::memory::{Memory, Pool};
use crate::net::{Event, Net};
use copies::CopyOp;
pub(crate) use landing::{Name, Written};
pub(crate) use pushes::PushKey;

/// One rank process.
#[derive(Debug)]
pub struct RankProcess {
    rank: Rank,
    life: Incarnation,
    lives: u32,
    alive: bool,
    link: Link,
    ids: OpIds,
    adopted: Option<Adoption>,
    adoptions: u64,
    /// Control incarnations whose time over this life is over.
    deposed: Vec<Incarnation>,
    engine: Option<Incarnation>,
    ops: BTreeMap<OpId, CopyOp>,
    watch: Option<(u64, OpId)>,
    damaged: BTreeMap<OpId, Damaged>,
    /// Copies of these layers of loads wait until released by a script.
    pub load_stop_after: Option<u32>,
    /// Backups stop after so many layers until released by a script.
    pub backup_stop_after: Option<u32>,
    /// Microseconds that sending one page takes, when a script says so.
    pub page_us: Option<u64>,
    landing: landing::Landing,
    pushes: pushes::Pushes,
    stale: u64,
}

#[derive(Clone, Copy, Debug)]
struct Adoption {
    control: Incarnation,
    until: Time,
    lease_ms: u64,
}

impl RankProcess {
    /// The first life of `rank`, started now.
    pub fn start(rank: Rank, net: &mut Net) -> Self {
        let mut process = Self {
            rank,
            life: Incarnation::default(),
            lives: 0,
            alive: false,
            link: Link::new(hicached_actors::host::GAP_MS),
            ids: OpIds::new(Incarnation::default()),
            adopted: None,
            adoptions: 0,
            deposed: Vec::new(),
            engine: None,
            ops: BTreeMap::new(),
            watch: None,
            damaged: BTreeMap::new(),
            load_stop_after: None,
            backup_stop_after: None,
            page_us: None,
            landing: landing::Landing::default(),
            pushes: pushes::Pushes::default(),
            stale: 0,
        };
        process.restart(net);
        process
    }

    /// Whether the process runs.
    pub const fn is_alive(&self) -> bool {
        self.alive
    }

    /// Its life.
    pub const fn life(&self) -> Incarnation {
        self.life
    }

    /// Messages it dropped because they came from a control incarnation it does not obey.
    pub const fn stale(&self) -> u64 {
        self.stale
    }

    /// Begins a new life that attaches the pool file it finds.
    pub fn restart(&mut self, net: &mut Net) {
        self.life = Incarnation(net.chance.uuid());
        self.lives += 1;
        self.alive = true;
        self.link = Link::new(hicached_actors::host::GAP_MS);
        self.ids = OpIds::new(self.life);
        (self.adopted, self.engine, self.watch) = (None, None, None);
        self.adoptions = 0;
        self.deposed.clear();
        self.ops.clear();
        self.damaged.clear();
        self.forget_landing();
        self.pushes = pushes::Pushes::default();
        net.after_us(1, Event::RankTimer(self.rank, self.lives));
    }

    /// Dies: copies end where they are, some in the middle of a layer.
    pub fn die(&mut self, net: &mut Net, memory: &mut Memory) {
        net.stats.rank_deaths += 1;
        self.alive = false;
        self.tear_copies(net, memory);
        self.ops.clear();
        self.forget_landing();
        self.forget_pushes();
    }

    /// Which life it is, from 1.
    const fn life_number(&self) -> u32 {
        self.lives
    }

    fn act(&mut self, net: &mut Net, memory: &mut Memory, from: Address, op: OpId, msg: RankIn) {
        match msg {
            RankIn::Adopt(_) | RankIn::LayerReady(_) => {}
            RankIn::Inventory(ask) => self.show_inventory(net, memory, op, ask.cursor),
            RankIn::Attach(attach) => self.attach(net, memory, op, attach),
            RankIn::Watch(watch) => {
                if self.watch.is_none_or(|(step, _)| step <= watch.step) {
                    self.watch = Some((watch.step, op));
                }
                self.tell_passed(net, memory);
            }
            // A copy ordered from an older life would write where others stand.
            RankIn::BackupCopy(BackupCopy { ref lives, .. })
            | RankIn::LoadCopy(LoadCopy { ref lives, .. })
            | RankIn::Accept(Accept { ref lives, .. })
            | RankIn::Push(Push { ref lives, .. })
                if lives.get(usize::from(self.rank.0)).is_some_and(|life| *life != self.life) =>
            {
                self.stale += 1;
                if let RankIn::LoadCopy(copy) = &msg {
                    self.disown_slot(net, memory, from, op, copy);
                }
            }
            RankIn::BackupCopy(copy) => self.start_backup(net, memory, from, op, copy),
            RankIn::LoadCopy(copy) => self.start_load(net, memory, from, op, copy),
            RankIn::Seal(seal) => self.seal(net, memory, from, op, &seal),
            RankIn::Unseal(unseal) => {
                let rows = &mut memory.pools[usize::from(self.rank.0)].rows;
                for (slot, key) in unseal.slots.0.iter().zip(&unseal.keys.0) {
                    if let Some(row) = rows.get_mut(slot.0 as usize).filter(|row| row.key == *key) {
                        row.sealed = false;
                    }
                }
                self.tell_index(net, op, OpSettled {}.into());
            }
            RankIn::Stop(stop) => self.stop(net, memory, from, op, stop.attempt),
            RankIn::OpSettled(_) => {
                self.damaged.remove(&op);
            }
            RankIn::Accept(accept) => self.accept(net, memory, op, &accept),
            RankIn::Report(report) => self.report(net, memory, op, &report),
            RankIn::Revoke(revoke) => self.revoke(net, op, &revoke),
            RankIn::Push(push) => self.push(net, memory, op, push),
            RankIn::StopPush(stop) => self.stop_push(net, op, &stop),
        }
    }

    fn adopt(&mut self, net: &mut Net, memory: &mut Memory, control: Incarnation, adopt: &Adopt) {
        let other = self.adopted.is_none_or(|by| by.control != control);
        if other && (self.adopted.is_some_and(|by| by.until > net.now) || self.deposed.contains(&control)) {
            self.stale += 1;
            return;
        }
        if other {
            self.adoptions += 1;
            self.deposed.extend(self.adopted.map(|by| by.control));
            self.stop_all(net, memory);
            self.forget_landing();
            self.forget_pushes();
            (self.watch, self.engine) = (None, self.engine);
        }
        let lease_ms = adopt.lease_ms;
        self.adopted = Some(Adoption { control, until: net.now.plus_ms(lease_ms), lease_ms });
        self.hello(net, memory);
    }

    fn hello(&mut self, net: &mut Net, memory: &Memory) {
        let pool = &memory.pools[usize::from(self.rank.0)];
        let control = self.adopted.map(|by| by.control).unwrap_or_default();
        let hello = RankHello {
            rank: self.rank,
            host_slots: pool.rows.len() as u32,
            adopted_by: control,
            old_ops: self.ops.values().filter(|op| op.control != control && op.is_running()).count() as u32,
            engine: self.engine.unwrap_or_default(),
            passed: if self.engine.is_some() { pool.passed(&memory.layout) } else { 0 },
            adoptions: self.adoptions,
        };
        self.tell_index(net, OpId::default(), hello.into());
    }

    /// Heartbeats, and what was not settled yet.
    pub fn timer(&mut self, net: &mut Net, memory: &Memory, lives: u32) {
        if !self.alive || lives != self.lives {
            return;
        }
        self.hello(net, memory);
        let open: Vec<(OpId, Damaged)> = self.damaged.iter().map(|(op, damaged)| (*op, damaged.clone())).collect();
        for (op, damaged) in open {
            self.tell_index(net, op, damaged.into());
        }
        let pause_ms = self.adopted.map_or(HELLO_MS, |by| (by.lease_ms / 4).max(1));
        net.after_us(pause_ms * 1_000, Event::RankTimer(self.rank, self.lives));
        self.ask_for_missing(net);
    }

    fn show_inventory(&mut self, net: &mut Net, memory: &Memory, op: OpId, cursor: u32) {
        let rows = &memory.pools[usize::from(self.rank.0)].rows;
        let sealed = |slot: &u32| rows[*slot as usize].sealed;
        let slots: Vec<u32> = (cursor..rows.len() as u32).filter(sealed).take(INVENTORY_ROWS + 1).collect();
        let next = slots.get(INVENTORY_ROWS).copied().unwrap_or(u32::MAX);
        let rows = slots.iter().take(INVENTORY_ROWS).map(|slot| {
            let row = &rows[*slot as usize];
            InventoryRow {
                slot: *slot,
                key: row.key,
                parent: row.parent,
                salt: row.salt,
                position: row.position,
                generation: row.generation,
            }
        });
        let part = InventoryPart { cursor, rows: rows.collect(), next };
        self.tell_index(net, op, part.into());
    }

    fn attach(&mut self, net: &mut Net, memory: &mut Memory, op: OpId, attach: Attach) {
        let rank = usize::from(self.rank.0);
        if memory.segments[rank].engine != attach.engine {
            let refusal = Mismatch {
                field: "engine".to_owned(),
                yours: format!("{:?}", attach.engine),
                mine: format!("{:?}", memory.segments[rank].engine),
            };
            let refused = AttachRefused { engine: attach.engine, refusal: refusal.into() };
            return self.tell_index(net, op, refused.into());
        }
        if self.engine != Some(attach.engine) {
            self.stop_all(net, memory);
            self.stop_all_pushes(net);
            self.revoke_all(net);
            self.engine = Some(attach.engine);
            memory.attached[rank] = attach.engine;
            memory.mapped[rank] = None;
        }
        let pool: &mut Pool = &mut memory.pools[rank];
        if pool.words_of != Some(attach.engine) {
            pool.words_of = Some(attach.engine);
            pool.words = [0; 2];
        }
        let pool_file = format!("pool.{}", self.rank.0);
        let attached = Attached {
            engine: attach.engine,
            pool_file,
            words_offset: 0,
            load_slots_offset: 128,
            adoptions: self.adoptions,
        };
        self.tell_index(net, op, attached.into());
        self.hello(net, memory);
    }

    /// Tells the index when the watched step has passed.
    pub fn tell_passed(&mut self, net: &mut Net, memory: &Memory) {
        let (Some((step, op)), Some(engine)) = (self.watch, self.engine) else { return };
        let pool = &memory.pools[usize::from(self.rank.0)];
        if self.alive && pool.words_of == Some(engine) && pool.has_passed(&memory.layout, step) {
            self.watch = None;
            let passed = Passed { step: pool.passed(&memory.layout), engine };
            self.tell_index(net, op, passed.into());
        }
    }

    fn seal(&mut self, net: &mut Net, memory: &mut Memory, from: Address, op: OpId, seal: &Seal) {
        let Some(copy) = self.ops.get_mut(&op).filter(|copy| copy.is_complete_backup()) else {
            let refusal: Refusal = Unknown::new("backup", op).into();
            return self.answer(net, from, op, Answered::Rejected(Rejected { refusal }));
        };
        let is_first = copy.seals();
        let rows = &mut memory.pools[usize::from(self.rank.0)].rows;
        for ((kept, slot), owner) in seal.kept.0.iter().zip(&seal.slots.0).zip(&seal.owners.0) {
            let Some(row) = rows.get_mut(slot.0 as usize).filter(|row| *owner == self.rank.0 && row.op == op) else {
                continue;
            };
            if is_first {
                row.sealed = *kept == 1;
            }
        }
        self.answer(net, from, op, Answered::Sealed(Sealed { rank: self.rank }));
    }
}

/// What a rank says to whoever asked.
enum Answered {
    Ack(CopyAck),
    Sealed(Sealed),
    Rejected(Rejected),
}

impl RankProcess {
    fn tell_index(&mut self, net: &mut Net, op: OpId, news: IndexNews) {
        self.send(net, Outgoing::Index(news), op);
    }

    fn answer(&mut self, net: &mut Net, to: Address, op: OpId, answer: Answered) {
        let msg = match (to, answer) {
            (Address::Writer, Answered::Ack(ack)) => Outgoing::Writer(WriterIn::CopyAck(ack)),
            (Address::Writer, Answered::Sealed(sealed)) => Outgoing::Writer(WriterIn::Sealed(sealed)),
            (Address::Writer, Answered::Rejected(rejected)) => Outgoing::Writer(WriterIn::Rejected(rejected)),
            (Address::Loader, Answered::Ack(ack)) => Outgoing::Loader(LoaderIn::CopyAck(ack)),
            (Address::Loader, Answered::Rejected(rejected)) => Outgoing::Loader(LoaderIn::Rejected(rejected)),
            (Address::Sender, Answered::Rejected(rejected)) => Outgoing::Sender(SenderIn::Rejected(rejected)),
            (Address::Receiver, Answered::Rejected(rejected)) => Outgoing::Receiver(ReceiverIn::Rejected(rejected)),
            (_, Answered::Rejected(rejected)) => Outgoing::Index(IndexNews::Rejected(rejected)),
            (_, Answered::Ack(_) | Answered::Sealed(_)) => return,
        };
        self.send(net, msg, op);
    }
}

/// How often a rank presents itself before it is adopted.
const HELLO_MS: u64 = 500;

/// Rows of one inventory answer: few, so that cursors are exercised.
const INVENTORY_ROWS: usize = 8;
