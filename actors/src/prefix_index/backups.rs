//! Backups as the index sees them: which pages are on their way to L2, and which of them stay.
//!
//! ```text
//! plan -> copying -> complete -> [computed? parent in L2?] -> verdict -> settled
//!              \-> refused -> parked -> plan again when its lanes gain room
//! ```
//!
//! Invariants: a page enters L2 only when its session has committed it, the copy is complete in every
//! component on every owner, and the page before it is in L2.

use super::room::Parked;
use super::session::Session;
use super::spans::commit_l2;
use super::tree::{NodeId, SaltId};
use super::{CALL, Index, WritePolicy};
use crate::machine::{Effect, Trace};
use crate::protocol::{
    Backup, BackupVerdict, Bin, HostSlot, Key, Keys, OpId, Outgoing, PageId, Pages, Rank, Tier, Time, WriterIn,
};

/// Pages of one path to copy, and what is known about them.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// The session whose steps compute them.
    pub(super) session: Option<OpId>,
    /// Its epoch when they were announced.
    pub(super) epoch: u32,
    pub(super) salt: SaltId,
    pub(super) first: u32,
    pub(super) keys: Vec<Key>,
    pub(super) pages: Vec<PageId>,
    /// Key of the page before the first.
    pub(super) parent: Key,
    pub(super) step: u64,
    pub(super) at_end: bool,
    /// Leading pages that are known to be computed.
    pub(super) proven: u32,
    /// Pages at the end whose room L1 wants: they leave it when the copies are committed.
    pub(super) empties: u32,
    pub(super) trace: Trace,
}

/// A backup under way.
#[derive(Debug)]
pub(super) struct BackupOp {
    pub(super) plan: Plan,
    /// What its step computed has been voided.
    void: bool,
    state: BackupState,
}

#[derive(Debug)]
enum BackupState {
    /// Ranks copy; its L1 pages are held.
    Copying,
    /// Every owner has acknowledged every layer of every component.
    Complete { slots: Vec<HostSlot> },
    /// The writer seals what is kept; the kept copies are held.
    Sealing { kept: Vec<Key>, forfeited: Vec<Rank> },
}

impl Index {
    /// Backs up what the step fills, if pages are written through.
    pub(super) fn plan_backup(
        &mut self,
        now: Time,
        id: OpId,
        step: u64,
        at_end: bool,
        out: &mut Vec<Effect>,
    ) -> Option<OpId> {
        let page = self.config.page_tokens();
        if self.config.l2_slots == 0 || self.config.write_policy != WritePolicy::WriteThrough {
            return None;
        }
        let session = self.sessions.get_mut(&id)?;
        let full = session.frontier_tokens / page;
        let end = full.min(session.keys.len() as u32).min(session.whole_until());
        let mut first = session.backup_to;
        session.backup_to = session.backup_to.max(end);
        let known = |key: &Key| self.tree.find(key).map(|node| self.tree.page(node));
        let have = |key: &Key| known(key).is_some_and(|page| page.l2.is_some() || page.is_pending);
        while first < end && have(&session.keys[first as usize]) {
            first += 1;
        }
        if first >= end {
            return None;
        }
        let plan = session.plan(id, first, end, step, self.salts.key(session.salt));
        if self.is_barred(&plan.parent) {
            return None;
        }
        Some(self.start_backup(now, Plan { at_end, ..plan }, out))
    }

    /// The pages of the path that have no copy in L2 and none on its way, when the session closes.
    pub(super) fn backup_missing(&mut self, now: Time, id: OpId, out: &mut Vec<Effect>) {
        if self.config.l2_slots == 0 || self.config.write_policy != WritePolicy::WriteThrough {
            return;
        }
        let Some(session) = self.sessions.get(&id) else { return };
        let trace = session.trace.clone();
        let mut missing = Vec::new();
        let mut at = session.tail;
        while let Some(node) = at {
            let view = self.tree.page(node);
            if view.l2.is_some() || view.is_pending {
                break;
            }
            missing.push(node);
            at = view.parent;
        }
        missing.reverse();
        self.backup_computed(now, &missing, 0, &trace, out);
    }

    /// Pages that a second request wants, when that is the policy.
    pub(super) fn selective_backup(&mut self, now: Time, id: OpId, nodes: &[NodeId], out: &mut Vec<Effect>) {
        if self.config.l2_slots == 0 || self.config.write_policy != WritePolicy::Selective {
            return;
        }
        let wanted = |node: &&NodeId| {
            let view = self.tree.page(**node);
            view.l2.is_none() && !view.is_pending && view.hits >= SELECTIVE_HITS_MIN
        };
        let first = nodes.iter().position(|node| wanted(&node)).unwrap_or(nodes.len());
        let chain: Vec<NodeId> = nodes[first..].iter().take_while(wanted).copied().collect();
        let trace = self.sessions.get(&id).and_then(|session| session.trace.clone());
        self.backup_computed(now, &chain, 0, &trace, out);
    }

    /// Backs up committed pages of one path that have no L2 copy.
    pub(super) fn backup_computed(
        &mut self,
        now: Time,
        chain: &[NodeId],
        empties: u32,
        trace: &Trace,
        out: &mut Vec<Effect>,
    ) -> Option<OpId> {
        let head = self.tree.page(*chain.first()?);
        let views = chain.iter().map(|node| self.tree.page(*node));
        let (keys, pages): (Vec<Key>, Vec<PageId>) = views.filter_map(|view| Some((view.key, view.l1?))).unzip();
        if keys.len() != chain.len() || self.parked_backups.iter().any(|parked| parked.plan.keys.contains(&keys[0])) {
            return None;
        }
        let parent = match head.parent {
            Some(parent) => self.tree.page(parent).key,
            None => self.salts.key(head.salt),
        };
        if self.is_barred(&parent) {
            return None;
        }
        let proven = keys.len() as u32;
        let (salt, first, trace) = (head.salt, head.position, trace.clone());
        let (session, epoch, step, at_end) = (None, 0, 0, false);
        let plan = Plan { session, epoch, salt, first, keys, pages, parent, step, at_end, proven, empties, trace };
        Some(self.start_backup(now, plan, out))
    }

    pub(super) fn start_backup(&mut self, now: Time, plan: Plan, out: &mut Vec<Effect>) -> OpId {
        let op = self.ids.draw();
        for (key, page) in plan.keys.iter().zip(&plan.pages) {
            let holds = &mut self.page_holds[page.0 as usize];
            *holds += 1;
            let Some(node) = self.tree.find(key) else { continue };
            if self.tree.page(node).l1 == Some(*page) && *holds == 1 {
                self.tree.hold(node, Tier::L1).expect("one hold per L1 page, taken with its first op");
            }
            self.tree.set_pending(node, true);
        }
        if let Some(session) = plan.session.and_then(|id| self.sessions.get_mut(&id)) {
            session.backups.push((op, plan.first, plan.pages.len() as u32));
        }
        self.counts.backups += 1;
        let msg = WriterIn::from(Backup {
            step: plan.step,
            pages: Pages(plan.pages.clone()),
            keys: Keys(plan.keys.clone()),
            parent: plan.parent,
            first: plan.first,
            salt: self.salts.key(plan.salt),
            all_layers_at_end: plan.at_end,
        });
        self.calls.call(now, (op, CALL), Outgoing::Writer(msg), &plan.trace, out);
        self.backups.insert(op, BackupOp { plan, void: false, state: BackupState::Copying });
        op
    }

    pub(super) fn backup_refused(&mut self, now: Time, op: OpId, short: &[u32], out: &mut Vec<Effect>) {
        let Some(plan) = self.end_copying(now, op, out) else { return };
        self.counts.backups_refused += 1;
        if plan.empties > 0 {
            // L1 asks again when it still wants the room. With nothing on its way into L2, the host has no room
            // for these pages and gets none: they go without a copy, or their room would never come.
            if self.backups.is_empty() {
                self.empty_l1(now, &plan, out);
            }
            return self.settle_complete(now, out);
        }
        if self.parked_backups.len() >= self.config.parked_backups_max as usize {
            self.counts.backups_dropped += 1;
            return self.settle_complete(now, out);
        }
        self.counts.backups_deferred += 1;
        self.l2_room.look(&self.tree);
        let lanes = (0..self.config.cp_size()).zip(short).filter(|(_, short)| **short > 0).map(|(lane, _)| Rank(lane));
        let gains = lanes.map(|lane| (lane, self.l2_room.gains(lane))).collect();
        self.parked_backups.push_back(Parked { plan, gains });
        self.settle_complete(now, out);
    }

    pub(super) fn backup_failed(&mut self, now: Time, op: OpId, out: &mut Vec<Effect>) {
        if let Some(plan) = self.end_copying(now, op, out) {
            self.counts.backups_failed += 1;
            for page in &plan.pages {
                self.l2_room.freed(page.owner(self.config.cp_size()));
            }
            self.settle_complete(now, out);
        }
    }

    /// The op is over without a copy: nothing reads its L1 pages any more.
    fn end_copying(&mut self, now: Time, op: OpId, out: &mut Vec<Effect>) -> Option<Plan> {
        self.calls.answered((op, CALL));
        if !matches!(self.backups.get(&op)?.state, BackupState::Copying) {
            return None;
        }
        let backup = self.backups.remove(&op)?;
        self.release_pages(now, &backup.plan, out);
        self.forget_pending(op, &backup.plan);
        Some(backup.plan)
    }

    fn release_pages(&mut self, now: Time, plan: &Plan, out: &mut Vec<Effect>) {
        let mut free = Vec::new();
        for (key, page) in plan.keys.iter().zip(&plan.pages) {
            let holds = &mut self.page_holds[page.0 as usize];
            *holds -= 1;
            if *holds > 0 {
                continue;
            }
            if self.doomed.remove(page) {
                free.push(*page);
            } else if let Some(node) = self.tree.find(key)
                && self.tree.page(node).l1 == Some(*page)
            {
                self.tree.release(node, Tier::L1);
            }
        }
        self.free(now, free, Vec::new(), super::FreeThen::Nothing, out);
    }

    fn forget_pending(&mut self, op: OpId, plan: &Plan) {
        for key in &plan.keys {
            if let Some(node) = self.tree.find(key) {
                self.tree.set_pending(node, false);
                self.tree.prune(node);
            }
        }
        if let Some(session) = plan.session.and_then(|id| self.sessions.get_mut(&id)) {
            session.backups.retain(|(of, ..)| *of != op);
        }
    }

    pub(super) fn backup_complete(&mut self, now: Time, op: OpId, slots: Vec<HostSlot>, out: &mut Vec<Effect>) {
        let copying = |backup: &BackupOp| matches!(backup.state, BackupState::Copying);
        if !self.backups.get(&op).is_some_and(copying) || self.refuse_slots(now, op, &slots, out) {
            return;
        }
        let Some(backup) = self.backups.get_mut(&op) else { return };
        self.calls.answered((op, CALL));
        backup.state = BackupState::Complete { slots };
        self.complete_backups.insert(op);
        let plan = backup.plan.clone();
        self.release_pages(now, &plan, out);
        self.settle_backup(now, op, out);
    }

    /// The session has committed pages: its backups may become visible.
    pub(super) fn settle_backups_of(&mut self, now: Time, id: OpId, out: &mut Vec<Effect>) {
        let Some(session) = self.sessions.get(&id) else { return };
        let committed = session.committed;
        for (op, first, pages) in session.backups.clone() {
            if let Some(backup) = self.backups.get_mut(&op) {
                backup.plan.proven = backup.plan.proven.max(committed.saturating_sub(first).min(pages));
            }
            self.settle_backup(now, op, out);
        }
    }

    /// A load of the session has failed: what was computed behind it is void.
    pub(super) fn void_backups_of(&mut self, id: OpId) {
        let Some(session) = self.sessions.get(&id) else { return };
        for (op, ..) in &session.backups {
            if let Some(backup) = self.backups.get_mut(op) {
                backup.void = true;
            }
        }
        self.parked_backups.retain(|parked| parked.plan.session != Some(id));
    }

    /// A rank begins a new life: what its old one copied and has not sealed is not to be trusted.
    pub(super) fn void_backups_on(&mut self, rank: Rank) {
        let cp_size = self.config.cp_size();
        for backup in self.backups.values_mut() {
            backup.void |= backup.plan.pages.iter().any(|page| page.owner(cp_size) == rank);
        }
    }

    /// The L1 of the group is gone: what is still to be copied would be read from somebody else's pages.
    pub(super) fn void_backups(&mut self) {
        for backup in self.backups.values_mut() {
            backup.void |= matches!(backup.state, BackupState::Copying);
        }
        self.parked_backups.clear();
    }

    fn settle_complete(&mut self, now: Time, out: &mut Vec<Effect>) {
        let ops: Vec<OpId> = self.complete_backups.iter().copied().collect();
        for op in ops {
            self.settle_backup(now, op, out);
        }
    }

    /// Decides on a complete backup, unless what it waits for is still open.
    pub(super) fn settle_backup(&mut self, now: Time, op: OpId, out: &mut Vec<Effect>) {
        let Some(backup) = self.backups.get(&op) else { return };
        let BackupState::Complete { slots } = &backup.state else { return };
        let (plan, slots, void) = (&backup.plan, slots.clone(), backup.void);
        let computing =
            plan.session.and_then(|id| self.sessions.get(&id)).is_some_and(|s| s.blocked.is_none() && !s.is_given_up());
        if !void && computing && plan.proven < plan.pages.len() as u32 {
            return;
        }
        let before = (plan.first > 0).then(|| self.tree.find(&plan.parent));
        let parent_in_l2 = match before {
            None => true,
            Some(None) => false,
            Some(Some(node)) => {
                let parent = self.tree.page(node);
                if parent.l2.is_none() && parent.is_pending {
                    return;
                }
                parent.l2.is_some() && !parent.is_quarantined
            }
        };
        let plan = plan.clone();
        let proven = if void || !parent_in_l2 { 0 } else { plan.proven as usize };
        let (kept, stored) = self.keep(&plan, proven, &slots);
        self.counts.stored_l2 += stored.len() as u64;
        self.counts.forfeited += kept.iter().filter(|kept| **kept == 0).count() as u64;
        out.push(Effect::Mark { op, name: "commit.l2_pages", value: stored.len() as u64 });
        if let Some(parent) = plan.trace.clone() {
            let forfeited = kept.iter().filter(|kept| **kept == 0).count() as u64;
            let span = commit_l2(now, op, parent, &stored, forfeited).flag("commit.void", void);
            out.push(Effect::span(span.flag("commit.parent_in_l2", parent_in_l2)));
        }
        self.forget_pending(op, &plan);
        self.move_l2_pin(&plan, stored.last());
        self.stored(Tier::L2, &stored, out);
        self.complete_backups.remove(&op);
        let forfeited = plan.pages.iter().zip(&kept).filter(|(_, kept)| **kept == 0);
        let forfeited = forfeited.map(|(page, _)| page.owner(self.config.cp_size())).collect();
        if let Some(backup) = self.backups.get_mut(&op) {
            backup.state = BackupState::Sealing { kept: stored, forfeited };
        }
        let msg = Outgoing::Writer(WriterIn::from(BackupVerdict { kept: Bin(kept) }));
        self.calls.call(now, (op, CALL), msg, &plan.trace, out);
        if plan.empties > 0 {
            self.empty_l1(now, &plan, out);
        }
        self.settle_complete(now, out);
    }

    /// Puts the proven pages into L2, as far as each stands behind a page of L2, and holds them until they
    /// are sealed. One byte per page says which are kept.
    fn keep(&mut self, plan: &Plan, proven: usize, slots: &[HostSlot]) -> (Vec<u8>, Vec<Key>) {
        let mut kept = vec![0; plan.pages.len()];
        let mut stored = Vec::new();
        for at in 0..proven {
            let Some(node) = self.tree.find(&plan.keys[at]) else { break };
            let view = self.tree.page(node);
            let good = |page: &super::tree::PageView| page.l2.is_some() && !page.is_quarantined;
            let behind = view.parent.is_none_or(|parent| good(&self.tree.page(parent)));
            if !behind {
                break;
            }
            if view.l2.is_some() {
                continue;
            }
            self.tree.set_l2(node, plan.pages[at].owner(self.config.cp_size()), slots[at]);
            self.tree.hold(node, Tier::L2).expect("one op seals a copy");
            kept[at] = 1;
            stored.push(plan.keys[at]);
        }
        (kept, stored)
    }

    /// An open session pins the deepest L2 copy of its path.
    fn move_l2_pin(&mut self, plan: &Plan, deepest: Option<&Key>) {
        let Some(new) = deepest.and_then(|key| self.tree.find(key)) else { return };
        let Some(session) = plan.session.and_then(|id| self.sessions.get_mut(&id)) else { return };
        let old = session.l2_pin.replace(new);
        self.tree.pin(new, Tier::L2).expect("sessions_max is far below the pins a page can have");
        if let Some(old) = old {
            self.tree.unpin(old, Tier::L2);
        }
    }

    /// The writer has sealed what was kept and freed the rest.
    pub(super) fn backup_settled(&mut self, op: OpId) -> bool {
        let Some(BackupOp { state: BackupState::Sealing { .. }, .. }) = self.backups.get(&op) else { return false };
        let Some(BackupOp { state: BackupState::Sealing { kept, forfeited }, .. }) = self.backups.remove(&op) else {
            return false;
        };
        for key in kept {
            if let Some(node) = self.tree.find(&key) {
                self.tree.release(node, Tier::L2);
            }
        }
        self.calls.answered((op, CALL));
        forfeited.into_iter().for_each(|lane| self.l2_room.freed(lane));
        true
    }

    /// Whether nothing can stand behind this page in L2: its record there is damaged.
    pub(super) fn is_barred(&self, parent: &Key) -> bool {
        self.tree.find(parent).is_some_and(|node| self.tree.page(node).is_quarantined)
    }

    pub(super) fn salts_of_backups(&self) -> impl Iterator<Item = SaltId> + '_ {
        let parked = self.parked_backups.iter().map(|parked| parked.plan.salt);
        self.backups.values().map(|backup| backup.plan.salt).chain(parked)
    }
}

impl Session {
    fn plan(&self, id: OpId, first: u32, end: u32, step: u64, root: Key) -> Plan {
        let range = first as usize..end as usize;
        Plan {
            session: Some(id),
            epoch: self.epoch,
            salt: self.salt,
            first,
            keys: self.keys[range.clone()].to_vec(),
            pages: self.pages[range].to_vec(),
            parent: first.checked_sub(1).map_or(root, |before| self.keys[before as usize]),
            step,
            at_end: false,
            proven: self.committed.saturating_sub(first).min(end - first),
            empties: 0,
            trace: self.trace.clone(),
        }
    }
}

/// The creating open counts: the second one that covers a page makes it worth a copy.
const SELECTIVE_HITS_MIN: u8 = 2;
