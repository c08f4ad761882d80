//! The page table as messages see it: seals on the index's verdict, the inventory, damaged records.

use std::collections::BTreeMap;

use hicached_actors::machine::{Effect, Sender};
use hicached_actors::protocol::{
    ComponentMissing, Damaged, Inventory, InventoryPart, InventoryRow, Key, Malformed, OpSettled, Outgoing, Rank,
    Refusal, Seal, Sealed, Time, Unknown, Unseal, WriterIn, WrongState,
};

use super::copies::Check;
use super::machine::RankMachine;
use super::ops::{Op, OpKind};
use super::orders::{BackupRows, same_length};
use super::page_table::Row;
use crate::crash::{self, Inside};

impl RankMachine {
    /// Seals what the index has committed and clears the rest; nothing changes when any of it is refused.
    pub(super) fn seal(&mut self, from: &Sender, msg: &Seal, out: &mut Vec<Effect>) {
        match self.seal_checked(from, msg) {
            Ok(()) => {
                let to = Outgoing::Writer(WriterIn::Sealed(Sealed { rank: self.rank }));
                out.push(Effect::Send { to, op: from.op, trace: from.trace.clone() });
            }
            Err(refusal) => self.reject(from, refusal, out),
        }
    }

    fn seal_checked(&mut self, from: &Sender, msg: &Seal) -> Result<(), Refusal> {
        let mine = self.own_verdicts(msg)?;
        match self.ops.get(from.op) {
            Some(Op::Running { .. }) => Err(WrongState::new(from.op, "running").into()),
            Some(Op::Ended { sealed: true, .. }) => Ok(()),
            Some(Op::Whole { rows, ack }) => {
                self.check_verdicts(rows, &mine)?;
                for (at, (slot, row)) in rows.rows.iter().enumerate() {
                    match mine.get(slot) {
                        Some(true) => {
                            if at > 0 {
                                crash::reach(Inside::HalfSealed);
                            }
                            self.pool.table().seal(*slot, row);
                            self.counts.sealed += 1;
                        }
                        // Its slot may be in another use already, whose seal is not this op's to clear.
                        Some(false) if self.pool.table().generation(*slot) == row.generation => {
                            self.pool.table().clear(*slot);
                        }
                        Some(false) | None => {}
                    }
                }
                let ack = ack.clone();
                self.ops.end(from.op, OpKind::Backup, ack, true);
                Ok(())
            }
            Some(Op::Ended { sealed: false, .. }) | None => {
                if mine.values().any(|kept| *kept) {
                    return Err(Unknown::new("op", from.op).into());
                }
                if !self.ops.is_forgotten(OpKind::Backup, from.op) {
                    let idle = mine.keys().filter(|slot| !self.claims.uses_slot(**slot));
                    idle.for_each(|slot| self.pool.table().clear(*slot));
                }
                Ok(())
            }
        }
    }

    /// Takes the seals of records away that have left L2; a slot that holds another page is in a later use.
    pub(super) fn unseal(&mut self, from: &Sender, msg: &Unseal, out: &mut Vec<Effect>) {
        let (slots, keys) = (&msg.slots.0, &msg.keys.0);
        let checked = same_length("keys", keys.len(), slots.len()).and_then(|()| {
            let limit = self.pool.slots();
            let beyond = slots.iter().find(|slot| slot.0 >= limit);
            beyond.map_or(Ok(()), |slot| Err(Malformed::new("slots", slot.0, format_args!("below {limit}")).into()))
        });
        if let Err(refusal) = checked {
            return self.reject(from, refusal, out);
        }
        let table = self.pool.table();
        let meant =
            slots.iter().zip(keys).filter(|(slot, key)| table.sealed(slot.0).is_some_and(|row| row.key == **key));
        self.counts.unsealed += meant.map(|(slot, _)| table.clear(slot.0)).count() as u64;
        super::telling::to_index(OpSettled {}.into(), from.op, out);
    }

    /// This rank's slots of a verdict, and whether each is kept.
    fn own_verdicts(&self, msg: &Seal) -> Result<BTreeMap<u32, bool>, Refusal> {
        same_length("kept", msg.kept.0.len(), msg.slots.0.len())?;
        same_length("owners", msg.owners.0.len(), msg.slots.0.len())?;
        let mut mine = BTreeMap::new();
        for ((slot, owner), kept) in msg.slots.0.iter().zip(&msg.owners.0).zip(&msg.kept.0) {
            if *kept > 1 {
                return Err(Malformed::new("kept", kept, "0 or 1").into());
            }
            if Rank(*owner) == self.rank {
                if slot.0 >= self.pool.slots() {
                    return Err(Malformed::new("slots", slot.0, format_args!("below {}", self.pool.slots())).into());
                }
                if mine.insert(slot.0, *kept == 1).is_some() {
                    return Err(Malformed::new("slots", slot.0, "each slot of a rank once").into());
                }
            }
        }
        Ok(mine)
    }

    /// Whether every kept slot is one of the op's, in the use in which the op wrote it.
    fn check_verdicts(&self, rows: &BackupRows, mine: &BTreeMap<u32, bool>) -> Result<(), Refusal> {
        let known: BTreeMap<u32, &Row> = rows.rows.iter().map(|(slot, row)| (*slot, row)).collect();
        for (slot, _) in mine.iter().filter(|(_, kept)| **kept) {
            let Some(row) = known.get(slot) else {
                return Err(Malformed::new("slots", slot, "slots of the op").into());
            };
            if self.pool.table().generation(*slot) != row.generation {
                return Err(WrongState { what: format!("slot {slot}"), state: "in a later use".to_owned() }.into());
            }
        }
        Ok(())
    }

    /// Shows sealed records from a slot on.
    pub(super) fn inventory(&mut self, from: &Sender, msg: &Inventory, out: &mut Vec<Effect>) {
        let slots = self.pool.slots();
        let end = msg.cursor.saturating_add(SCAN_SLOTS_MAX).min(slots);
        let (mut rows, mut next) = (Vec::new(), end);
        for slot in msg.cursor..end {
            if rows.len() == ROWS_MAX {
                next = slot;
                break;
            }
            if let Some(row) = self.pool.table().sealed(slot) {
                let Row { key, parent, salt, position, generation, sums: _ } = row;
                rows.push(InventoryRow { slot, key, parent, salt, position, generation });
            }
        }
        let next = if next >= slots { u32::MAX } else { next };
        super::telling::to_index(InventoryPart { cursor: msg.cursor, rows, next }.into(), from.op, out);
    }

    /// What the records in `slots`, which a load has claimed, have to be; nothing without fingerprints. A record that
    /// was sealed without checksums is loaded as it is, and counted.
    ///
    /// # Errors
    /// [`ComponentMissing`] for a slot that holds no record that anybody vouches for: its row is torn, or the record
    /// was found damaged before. It is reported.
    pub(super) fn checks(&mut self, now: Time, slots: &[u32], out: &mut Vec<Effect>) -> Result<Vec<Check>, Refusal> {
        if !self.fingerprints {
            return Ok(Vec::new());
        }
        let mut checks = Vec::new();
        for slot in slots {
            let Some(Row { key, sums, .. }) = self.row_of(*slot) else {
                self.report_damaged(now, *slot, RECORD, out);
                return Err(ComponentMissing { key: Key::default(), component: RECORD.to_owned() }.into());
            };
            match sums {
                Some(sums) => checks.push(Check { slot: *slot, key, sums }),
                None => self.counts.unsummed += 1,
            }
        }
        Ok(checks)
    }

    /// The row of a committed record: the sealed one, or the one that its seal is still on the way for.
    fn row_of(&self, slot: u32) -> Option<Row> {
        let table = self.pool.table();
        table.sealed(slot).or_else(|| self.ops.whole_row(slot, table.generation(slot)).copied())
    }

    /// A record is damaged: it loses its seal, and the index hears of it until it has taken it in. A seal that comes
    /// for it later gives it its checksums too, so that its next load finds the damage again.
    pub(super) fn report_damaged(&mut self, now: Time, slot: u32, component: &str, out: &mut Vec<Effect>) {
        tracing::error!(rank = self.rank.0, slot, component, "a stored record is damaged");
        self.counts.damaged += 1;
        self.pool.table().clear(slot);
        let msg = Damaged { rank: self.rank, slot, component: component.to_owned() };
        self.damaged.call(now, (self.ids.draw(), 0), Outgoing::Index(msg.into()), &None, out);
    }
}

/// What is damaged in a record of which nothing is known.
const RECORD: &str = "record";
/// Rows of one part: about 90 KB on the wire.
const ROWS_MAX: usize = 1_024;
/// Rows looked at for one part: a millisecond of an empty pool.
const SCAN_SLOTS_MAX: u32 = 65_536;
