//! Loads as the index sees them: which pages are on their way from L2, and what they become.

use super::session::Phase;
use super::spans::{Op, commit_l1};
use super::tree::NodeId;
use super::{CALL, FreeThen, Index};
use crate::machine::{Effect, Trace};
use crate::protocol::{
    Key, Load, LoadStarted, LoadTicket, LoaderIn, Malformed, OpId, Outgoing, Owners, PageId, Refusal, ReleaseSlot,
    Slots, Tier, Time,
};

/// A load, from the match that wanted it until its ring slot may be used again.
#[derive(Debug)]
pub(super) struct LoadOp {
    /// The session that asked; it may have ended. No session once nobody waits for the load.
    session: OpId,
    /// Pages of the path that are loaded.
    nodes: Vec<NodeId>,
    /// The page before the first, held in L1.
    parent: Option<NodeId>,
    first: u32,
    /// Its engine died.
    void: bool,
    trace: Trace,
    state: LoadState,
}

#[derive(Debug)]
enum LoadState {
    /// The loader looks for room.
    Asked,
    /// Bytes move into these L1 pages.
    Running { pages: Vec<PageId> },
    /// It has ended; the engine may still read its slot.
    Ended,
}

impl Index {
    /// The load that brings `node`, if one does.
    pub(super) fn load_of(&self, node: NodeId) -> Option<OpId> {
        if !self.loading.contains(&node) {
            return None;
        }
        self.loads.iter().find(|(_, load)| load.holds() && load.nodes.contains(&node)).map(|(op, _)| *op)
    }

    pub(super) fn begin_load(&mut self, now: Time, id: OpId, op: OpId, nodes: &[NodeId], out: &mut Vec<Effect>) {
        let Some(session) = self.sessions.get(&id) else { return };
        let Phase::Opening(opening) = &session.phase else { return };
        let behind = match self.chunk_owners(opening, opening.l1 + nodes.len() as u32) {
            Ok(owners) => owners,
            Err(refusal) => return self.open_refused(now, id, refusal, out),
        };
        let (first, parent, trace) = (session.committed, session.tail, session.trace.clone());
        let Some(last) = nodes.last() else { return };
        let holds = parent.map_or(Ok(()), |parent| self.tree.hold(parent, Tier::L1));
        if holds.is_err() {
            return self.open_refused(now, id, self.busy("holds of a page", u8::MAX.into()), out);
        }
        if self.tree.hold(*last, Tier::L2).is_err() {
            if let Some(parent) = parent {
                self.tree.release(parent, Tier::L1);
            }
            return self.open_refused(now, id, self.busy("holds of a page", u8::MAX.into()), out);
        }
        let copies = nodes.iter().filter_map(|node| self.tree.page(*node).l2);
        let (owners, slots): (Vec<u8>, Vec<_>) = copies.map(|(rank, slot)| (rank.0, slot)).unzip();
        assert_eq!(owners.len(), nodes.len(), "an L2 hit has a slot and a stored owner");
        self.loading.extend(nodes);
        let nodes = nodes.to_vec();
        let (void, state) = (false, LoadState::Asked);
        self.loads.insert(op, LoadOp { session: id, nodes, parent, first, void, trace: trace.clone(), state });
        if let Some(session) = self.sessions.get_mut(&id) {
            session.load = Some(op);
        }
        self.counts.loads += 1;
        let msg = LoaderIn::from(Load { owners: Owners(owners), slots: Slots(slots), behind: Owners(behind) });
        self.calls.call(now, (op, CALL), Outgoing::Loader(msg), &trace, out);
    }

    pub(super) fn load_started(&mut self, now: Time, op: OpId, msg: LoadStarted, out: &mut Vec<Effect>) {
        let (target, draft) = self.config.manifest.layers();
        let Some(load) = self.loads.get(&op) else { return };
        let LoadState::Asked = load.state else { return };
        if let Some(wrong) = self.wrong_pages(op, &msg.pages.0) {
            return self.load_contradicted(now, op, wrong, out);
        }
        let Some(load) = self.loads.get_mut(&op) else { return };
        let mut pages = msg.pages.0;
        let behind = pages.split_off(load.nodes.len());
        load.state = LoadState::Running { pages: pages.clone() };
        let id = load.session;
        let ticket = LoadTicket {
            op,
            slot: msg.ring_slot,
            base: msg.base,
            layers: target + draft,
            first: load.first,
            pages: pages.len() as u32,
        };
        match self.sessions.get_mut(&id) {
            Some(session) if matches!(session.phase, Phase::Opening(_)) => {
                let hit = pages.len() as u32;
                session.ring = Some(op);
                session.frontier_tokens += hit * self.config.page_tokens();
                session.computed_tokens = session.frontier_tokens;
                pages.extend(behind);
                self.opened(now, id, pages, vec![ticket], hit, out);
            }
            session => {
                // Nobody waits for it any more: what arrives is an ordinary page of the tree.
                if let Some(session) = session {
                    session.load = None;
                }
                load.session = OpId::default();
                self.free(now, behind, Vec::new(), FreeThen::Nothing, out);
            }
        }
    }

    /// The loader loads into other pages than it was asked for: nothing of it is used, and its end gives its slot
    /// back.
    fn load_contradicted(&mut self, now: Time, op: OpId, wrong: Malformed, out: &mut Vec<Effect>) {
        self.broken(op, out);
        let Some(load) = self.loads.get_mut(&op) else { return };
        load.state = LoadState::Running { pages: Vec::new() };
        load.void = true;
        let id = std::mem::take(&mut load.session);
        if let Some(session) = self.sessions.get_mut(&id) {
            session.load = None;
            if matches!(session.phase, Phase::Opening(_)) {
                self.open_refused(now, id, wrong.into(), out);
            }
        }
    }

    /// No room for the load: the session computes from its L1 hits on.
    pub(super) fn load_missed(&mut self, now: Time, op: OpId, out: &mut Vec<Effect>) {
        self.calls.answered((op, CALL));
        let Some(load) = self.loads.remove(&op) else { return };
        self.counts.loads_missed += 1;
        self.end_load_holds(&load);
        let again = self.ids.draw();
        if let Some(session) = self.sessions.get_mut(&load.session) {
            session.load = None;
            if let Phase::Opening(opening) = &mut session.phase {
                opening.span = opening.span.take().map(|span| Box::new(span.text("open.load_missed_op", Op(op))));
                opening.op = again;
                session.backup_to = session.committed;
                self.reserve_first_chunk(now, load.session, again, out);
            }
        }
        self.unpark(now, op, out);
    }

    pub(super) fn load_busy(&mut self, now: Time, op: OpId, bound: u32, out: &mut Vec<Effect>) {
        self.calls.answered((op, CALL));
        let Some(load) = self.loads.remove(&op) else { return };
        self.end_load_holds(&load);
        let refusal: Refusal = self.busy("loads", bound);
        if self.sessions.get(&load.session).is_some_and(|session| matches!(session.phase, Phase::Opening(_))) {
            self.open_refused(now, load.session, refusal, out);
        }
        self.unpark(now, op, out);
    }

    pub(super) fn load_ended(&mut self, now: Time, op: OpId, ok: bool, out: &mut Vec<Effect>) {
        let Some(load) = self.loads.get_mut(&op) else { return };
        // An end that overtook the start leaves the request open: its repeat brings both again in order. One
        // that comes again must not end the call that gives the slot back.
        let LoadState::Running { pages } = &mut load.state else { return };
        let pages = std::mem::take(pages);
        load.state = LoadState::Ended;
        self.calls.answered((op, CALL));
        let (id, nodes, first) = (load.session, load.nodes.clone(), load.first);
        let is_good = ok && !load.void;
        if is_good {
            let trace = load.trace.clone();
            let (spare, keys) = self.commit_load(&nodes, &pages);
            if let Some(parent) = trace {
                out.push(Effect::span(commit_l1(now, op, parent, &keys, spare.len() as u64)));
            }
            self.stored(Tier::L1, &keys, out);
            self.give_load(now, id, &nodes, spare, out);
        } else {
            self.fail_load(now, id, first, pages, out);
        }
        if let Some(load) = self.loads.remove(&op) {
            self.end_load_holds(&load);
            self.loads.insert(op, load);
        }
        let reader = self.sessions.get_mut(&id).map(|session| {
            session.load = None;
            session.ring == Some(op)
        });
        if reader != Some(true) {
            self.release_ring(now, op, out);
        }
        self.handover_loaded(now, id, is_good, out);
        self.advance(now, id, out);
        self.unpark(now, op, out);
    }

    /// Every loaded page becomes the L1 copy of its page, unless one was computed meanwhile: spare pages, and the
    /// keys of the others.
    fn commit_load(&mut self, nodes: &[NodeId], pages: &[PageId]) -> (Vec<PageId>, Vec<Key>) {
        let (mut spare, mut keys) = (Vec::new(), Vec::new());
        for (node, page) in nodes.iter().zip(pages) {
            let view = self.tree.page(*node);
            if view.l1.is_some() {
                spare.push(*page);
            } else {
                self.tree.set_l1(*node, *page);
                keys.push(view.key);
            }
        }
        self.counts.stored_l1 += keys.len() as u64;
        self.counts.loaded += keys.len() as u64;
        (spare, keys)
    }

    /// The loaded pages are committed ones of the session, if it lives.
    fn give_load(&mut self, now: Time, id: OpId, nodes: &[NodeId], spare: Vec<PageId>, out: &mut Vec<Effect>) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return self.free(now, spare, Vec::new(), FreeThen::Nothing, out);
        };
        session.committed += nodes.len() as u32;
        session.duplicates.extend(spare);
        let old = std::mem::replace(&mut session.tail, nodes.last().copied());
        self.move_pin(old, nodes.last().copied());
    }

    /// The pages hold no bytes: a session that lives computes them itself, from the first on.
    fn fail_load(&mut self, now: Time, id: OpId, first: u32, pages: Vec<PageId>, out: &mut Vec<Effect>) {
        self.counts.loads_failed += 1;
        match self.sessions.get_mut(&id) {
            Some(session) => {
                session.load_failed = true;
                session.epoch += 1;
                session.frontier_tokens = first * self.config.page_tokens();
                session.computed_tokens = session.frontier_tokens;
                session.backup_to = first;
                self.void_backups_of(id);
            }
            None => self.free(now, pages, Vec::new(), FreeThen::Nothing, out),
        }
    }

    /// Whether the op still keeps `pages` of a session from being freed by the session.
    pub(super) fn load_is_running(&self, op: OpId) -> bool {
        self.loads.get(&op).is_some_and(LoadOp::holds)
    }

    /// Pages of a running load, behind the committed ones of its session.
    pub(super) fn load_pages(&self, op: OpId) -> usize {
        self.loads.get(&op).map_or(0, |load| load.running_pages().len())
    }

    fn end_load_holds(&mut self, load: &LoadOp) {
        for node in &load.nodes {
            self.loading.remove(node);
        }
        if let Some(last) = load.nodes.last() {
            self.tree.release(*last, Tier::L2);
        }
        if let Some(parent) = load.parent {
            self.tree.release(parent, Tier::L1);
        }
    }

    /// Nobody reads the slot of this load any more.
    pub(super) fn release_ring(&mut self, now: Time, op: OpId, out: &mut Vec<Effect>) {
        if self.loads.get(&op).is_some_and(|load| matches!(load.state, LoadState::Ended)) {
            let msg = Outgoing::Loader(LoaderIn::from(ReleaseSlot {}));
            self.calls.call(now, (op, CALL), msg, &super::NO_TRACE, out);
        }
    }

    /// The loader has taken the slot back.
    pub(super) fn ring_released(&mut self, op: OpId) -> bool {
        let released = self.loads.get(&op).is_some_and(|load| matches!(load.state, LoadState::Ended));
        released && self.calls.answered((op, CALL)) && self.loads.remove(&op).is_some()
    }
}

impl LoadOp {
    pub(super) fn running_pages(&self) -> &[PageId] {
        match &self.state {
            LoadState::Running { pages } => pages,
            LoadState::Asked | LoadState::Ended => &[],
        }
    }

    /// The L1 it loads into is gone: what arrives is nothing. Gives back the parent it held.
    pub(super) fn void(&mut self) -> Option<NodeId> {
        self.void = true;
        // One that has ended holds nothing any more, though its slot may still be read.
        if self.holds() { self.parent.take() } else { None }
    }

    fn holds(&self) -> bool {
        match self.state {
            LoadState::Asked | LoadState::Running { .. } => true,
            LoadState::Ended => false,
        }
    }
}
