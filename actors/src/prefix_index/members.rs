//! Who belongs to the group: ranks with their lives and leases, engine ranks with their pools.

use std::collections::VecDeque;

use super::tree::NodeId;
use super::{CALL_RANK, Due, Index, NO_TRACE, reply};
use crate::machine::{Effect, ReplyTo, Sender};
use crate::protocol::{
    Adopt, Attach, AttachRefused, Attached, Incarnation, LoaderIn, Malformed, Mismatch, OpId, Outgoing, PageId, Rank,
    RankHello, RankIn, RankIs, ReceiverIn, Refusal, Register, Registered, SenderIn, Tier, Time, Unknown, WriterIn,
    same,
};

/// The ranks of a group.
#[derive(Debug)]
pub(super) struct Members {
    ranks: Vec<Member>,
    /// Lives that were replaced: refused for good.
    replaced: VecDeque<Incarnation>,
}

#[derive(Debug, Default)]
struct Member {
    /// Its life, once it has presented itself.
    incarnation: Option<Incarnation>,
    lease_until: Option<Time>,
    silent: bool,
    engine: Option<EngineRank>,
    /// The engine rank whose pages L1 may hold: also when its pool could not be mapped again.
    filled_by: Option<Incarnation>,
    /// Step both tracks have passed.
    passed: u64,
    /// Control incarnations it had obeyed when it presented itself to this one.
    adoptions: u64,
}

#[derive(Debug)]
struct EngineRank {
    register: Register,
    attach: OpId,
    attached: Option<Attached>,
    waiting: Option<(ReplyTo, OpId)>,
    /// Its last sign of life.
    heard: Time,
}

impl Members {
    pub(super) fn new(cp_size: u8) -> Self {
        Self { ranks: (0..cp_size).map(|_| Member::default()).collect(), replaced: VecDeque::new() }
    }

    fn of(&self, rank: Rank) -> Option<&Member> {
        self.ranks.get(usize::from(rank.0))
    }

    fn of_mut(&mut self, rank: Rank) -> Option<&mut Member> {
        self.ranks.get_mut(usize::from(rank.0))
    }

    pub(super) fn is_current(&self, rank: Rank, incarnation: Incarnation) -> bool {
        self.of(rank).is_some_and(|member| member.incarnation == Some(incarnation))
    }

    pub(super) fn life_of(&self, rank: Rank) -> Option<Incarnation> {
        self.of(rank).and_then(|member| member.incarnation)
    }

    pub(super) fn knows_engine(&self, engine: Incarnation) -> bool {
        self.ranks.iter().filter_map(|m| m.engine.as_ref()).any(|e| e.register.engine == engine)
    }

    /// A sign of life of `engine`.
    pub(super) fn heard(&mut self, now: Time, engine: Incarnation) {
        let engines = self.ranks.iter_mut().filter_map(|member| member.engine.as_mut());
        engines.filter(|known| known.register.engine == engine).for_each(|known| known.heard = now);
    }

    pub(super) fn is_engine_of(&self, rank: Rank, engine: Incarnation) -> bool {
        self.of(rank).and_then(|m| m.engine.as_ref()).is_some_and(|e| e.register.engine == engine)
    }

    pub(super) fn is_attached(&self, rank: Rank) -> bool {
        self.of(rank).and_then(|m| m.engine.as_ref()).is_some_and(|engine| engine.attached.is_some())
    }

    pub(super) fn all_attached(&self) -> bool {
        (0..self.ranks.len() as u8).all(|n| self.is_attached(Rank(n)))
    }

    pub(super) fn passed(&self, rank: Rank) -> u64 {
        self.of(rank).map_or(0, |member| member.passed)
    }

    pub(super) fn has_passed(&mut self, rank: Rank, step: u64) {
        if let Some(member) = self.of_mut(rank) {
            member.passed = member.passed.max(step);
        }
    }

    /// The step both tracks have passed on every rank.
    pub(super) fn passed_everywhere(&self) -> u64 {
        self.ranks.iter().map(|member| member.passed).min().unwrap_or(0)
    }

    pub(super) fn silence(&mut self, rank: Rank) {
        if let Some(member) = self.of_mut(rank) {
            member.silent = true;
        }
    }

    pub(super) fn is_silent(&self, rank: Rank) -> bool {
        self.of(rank).is_some_and(|member| member.silent)
    }

    pub(super) fn any_silent(&self) -> bool {
        self.ranks.iter().any(|member| member.silent)
    }

    fn replace(&mut self, old: Incarnation) {
        self.replaced.push_back(old);
        if self.replaced.len() > REPLACED_MAX {
            self.replaced.pop_front();
        }
    }

    /// The newest step any engine rank says it has launched.
    pub(super) fn last_step(&self) -> u64 {
        self.ranks.iter().filter_map(|m| m.engine.as_ref()).map(|e| e.register.last_step).max().unwrap_or(0)
    }
}

impl Index {
    /// Asks the ranks who they are; the first thing an incarnation does.
    pub fn start(&mut self, now: Time, out: &mut Vec<Effect>) {
        self.recovery.begin(now);
        self.adopt_all(now, out);
    }

    /// A sign of life to every rank, which also takes those that obey nobody.
    pub(super) fn adopt_all(&mut self, now: Time, out: &mut Vec<Effect>) {
        for n in 0..self.config.cp_size() {
            self.adopt(Rank(n), out);
        }
        self.deadlines.insert((now.plus_ms((self.config.rank_lease_ms / 4).max(1)), Due::Adopt));
    }

    fn adopt(&self, rank: Rank, out: &mut Vec<Effect>) {
        let msg = RankIn::from(Adopt { lease_ms: self.config.rank_lease_ms });
        out.push(Effect::Send { to: Outgoing::Rank(rank, msg), op: OpId::default(), trace: None });
    }

    pub(super) fn rank_hello(&mut self, now: Time, from: &Sender, msg: RankHello, out: &mut Vec<Effect>) {
        if self.members.replaced.contains(&from.incarnation) {
            self.counts.stale += 1;
            return;
        }
        if msg.host_slots != self.config.l2_slots {
            out.push(Effect::Mark { op: OpId::default(), name: "error.rank_host_slots_differ", value: 1 });
            return;
        }
        let rank = msg.rank;
        let Some(member) = self.members.of_mut(rank) else { return };
        let is_same_life = member.incarnation == Some(from.incarnation);
        if is_same_life && msg.adoptions > member.adoptions {
            return self.end_deposed(out);
        }
        if msg.adopted_by != self.control {
            return self.adopt(rank, out);
        }
        if msg.old_ops > 0 {
            // It speaks again when the last of them has ended.
            return;
        }
        if let Some(until) = member.lease_until.replace(now.plus_ms(self.config.rank_lease_ms)) {
            self.deadlines.remove(&(until, Due::RankLease(rank)));
        }
        self.deadlines.insert((now.plus_ms(self.config.rank_lease_ms), Due::RankLease(rank)));
        member.silent = false;
        if is_same_life {
            return self.rank_speaks(now, rank, &msg, out);
        }
        member.adoptions = msg.adoptions;
        if let Some(old) = member.incarnation.replace(from.incarnation) {
            self.members.replace(old);
            self.void_backups_on(rank);
        }
        let is = RankIs { rank, incarnation: from.incarnation };
        for msg in [
            Outgoing::Loader(LoaderIn::from(is.clone())),
            Outgoing::Sender(SenderIn::from(is.clone())),
            Outgoing::Receiver(ReceiverIn::from(is.clone())),
        ] {
            let op = self.ids.draw();
            self.calls.call(now, (op, super::CALL), msg, &NO_TRACE, out);
        }
        // What a copy wrote over must not come back as a record that was read before: of a rank that comes back
        // the writer hears when its records have their slots again, and until then that it is gone.
        let gone = RankIs { rank, incarnation: Incarnation::default() };
        self.tell_writer(now, if self.recovery.is_reading() { is } else { gone }, out);
        self.ask_inventory(now, rank, 0, out);
        if let Some(engine) = self.members.of_mut(rank).and_then(|member| member.engine.as_mut()) {
            engine.attached = None;
            self.attach(now, rank, out);
        }
    }

    /// A rank has obeyed another control incarnation since it presented itself here: what this one believes of its
    /// pools need not hold any more, so nothing is answered from it.
    fn end_deposed(&mut self, out: &mut Vec<Effect>) {
        if !std::mem::replace(&mut self.is_deposed, true) {
            out.push(Effect::Mark { op: OpId::default(), name: "error.deposed", value: 1 });
        }
    }

    /// The records that a rank brought back have their slots: copies to it may begin.
    pub(super) fn rank_is_back(&mut self, now: Time, rank: Rank, out: &mut Vec<Effect>) {
        if let Some(incarnation) = self.members.life_of(rank) {
            self.tell_writer(now, RankIs { rank, incarnation }, out);
        }
    }

    fn tell_writer(&mut self, now: Time, is: RankIs, out: &mut Vec<Effect>) {
        let op = self.ids.draw();
        self.calls.call(now, (op, super::CALL), Outgoing::Writer(WriterIn::from(is)), &NO_TRACE, out);
    }

    /// A known rank tells how far it is.
    fn rank_speaks(&mut self, now: Time, rank: Rank, msg: &RankHello, out: &mut Vec<Effect>) {
        if !self.members.is_engine_of(rank, msg.engine) || msg.passed <= self.members.passed(rank) {
            return;
        }
        self.members.has_passed(rank, msg.passed);
        self.open_lanes_if_proven(now, out);
        self.step_passed(now, out);
    }

    pub(super) fn register(
        &mut self,
        now: Time,
        from: &Sender,
        msg: Register,
        out: &mut Vec<Effect>,
    ) -> Result<(), Refusal> {
        let limit = format!("0..{}", self.config.cp_size());
        let rank = msg.rank;
        let member = self.members.of(rank).ok_or_else(|| Refusal::from(Malformed::new("rank", rank.0, limit)))?;
        if self.members.replaced.contains(&msg.engine) {
            return Err(Unknown::new("engine", msg.engine).into());
        }
        self.config.manifest.fits(&msg.manifest)?;
        same("pages", msg.pages, self.config.l1_physical_pages)?;
        let known = member.engine.as_ref().map(|engine| engine.register.engine);
        if known == Some(msg.engine) {
            return self.register_again(now, from, msg, out);
        }
        let lease_ms = self.config.lease_ms;
        let is_late =
            |engine: &EngineRank| msg.born_ms < engine.register.born_ms && now < engine.heard.plus_ms(lease_ms);
        if member.engine.as_ref().is_some_and(is_late) {
            // Dead before it was heard, or a clock that went back: then it takes the place when the other is silent.
            return Err(self.busy("registration", 0));
        }
        let (before, engine) = (member.filled_by, msg.engine);
        if let Some(old) = before.filter(|old| *old != engine) {
            self.members.replace(old);
            self.void_l1(now, rank, out);
        }
        if before != Some(engine) {
            self.steps.restart(now, msg.last_step, out);
        }
        let waiting = from.reply.clone().map(|to| (to, from.op));
        if let Some(member) = self.members.of_mut(rank) {
            if before != Some(engine) {
                member.passed = 0;
            }
            member.filled_by = Some(engine);
            let attach = OpId::default();
            member.engine = Some(EngineRank { register: msg, attach, attached: None, waiting, heard: now });
        }
        self.attach(now, rank, out);
        Ok(())
    }

    /// The same life says again who it is.
    fn register_again(
        &mut self,
        now: Time,
        from: &Sender,
        msg: Register,
        out: &mut Vec<Effect>,
    ) -> Result<(), Refusal> {
        let rank = msg.rank;
        let Some(engine) = self.members.of_mut(rank).and_then(|member| member.engine.as_mut()) else { return Ok(()) };
        if engine.register.segment != msg.segment || engine.register.regions != msg.regions {
            let (yours, mine) = (msg.segment, engine.register.segment.clone());
            return Err(Mismatch { field: "segment".to_owned(), yours, mine }.into());
        }
        engine.heard = now;
        engine.waiting = from.reply.clone().map(|to| (to, from.op));
        // Also when it is attached: only the rank knows whom it has obeyed meanwhile.
        self.attach(now, rank, out);
        Ok(())
    }

    /// Has the rank map the pool of its engine, if both are there. Not while pages of a dead engine may still be sent:
    /// a push that has not reached the rank would read the new pool under their ids.
    fn attach(&mut self, now: Time, rank: Rank, out: &mut Vec<Effect>) {
        if self.handovers.sends_of_the_dead() {
            return;
        }
        let op = self.ids.draw();
        let Some(member) = self.members.of_mut(rank) else { return };
        let (Some(_), Some(engine)) = (member.incarnation, member.engine.as_mut()) else { return };
        self.calls.answered((engine.attach, CALL_RANK));
        engine.attach = op;
        let register = &engine.register;
        let msg = RankIn::from(Attach {
            engine: register.engine,
            pages: register.pages,
            segment: register.segment.clone(),
            segment_bytes: register.segment_bytes,
            regions: register.regions.clone(),
            last_step: register.last_step,
        });
        self.calls.call(now, (op, CALL_RANK), Outgoing::Rank(rank, msg), &NO_TRACE, out);
    }

    /// Nothing of a dead engine is sent any more: pools that waited for that are mapped.
    pub(super) fn attach_waiting(&mut self, now: Time, out: &mut Vec<Effect>) {
        for rank in (0..self.config.cp_size()).map(Rank) {
            let engine = self.members.of(rank).and_then(|member| member.engine.as_ref());
            // One that was never asked for has no op of its own.
            let is_asked = |op| op != OpId::default() && self.calls.is_open((op, CALL_RANK));
            if engine.is_some_and(|engine| engine.attached.is_none() && !is_asked(engine.attach)) {
                self.attach(now, rank, out);
            }
        }
    }

    pub(super) fn attached(&mut self, now: Time, from: &Sender, msg: Attached, out: &mut Vec<Effect>) {
        let crate::protocol::Address::Rank(rank) = from.address else { return };
        self.calls.answered((from.op, CALL_RANK));
        let Some(member) = self.members.of_mut(rank) else { return };
        if member.incarnation == Some(from.incarnation) && msg.adoptions > member.adoptions {
            return self.end_deposed(out);
        }
        let Some(engine) = member.engine.as_mut() else { return };
        if engine.register.engine != msg.engine || engine.attach != from.op {
            self.counts.stale += 1;
            return;
        }
        engine.attached = Some(msg);
        self.answer_registered(rank, out);
        let newest = self.members.last_step().max(self.steps.next - 1);
        self.watch_rank(now, rank, newest, out);
        self.open_lanes_if_proven(now, out);
    }

    fn answer_registered(&mut self, rank: Rank, out: &mut Vec<Effect>) {
        let registered = || self.members.ranks.iter().map(|member| Some(&member.engine.as_ref()?.register));
        let peers = registered().map(|of| of.map(|of| of.segment.clone()).unwrap_or_default()).collect();
        let peer_regions = registered().map(|of| of.map(|of| of.regions.clone()).unwrap_or_default()).collect();
        let (control, next_step, lease_ms) = (self.control, self.steps.next, self.config.lease_ms);
        let Some(engine) = self.members.of_mut(rank).and_then(|member| member.engine.as_mut()) else { return };
        let (Some(attached), Some((to, op))) = (engine.attached.clone(), engine.waiting.take()) else { return };
        let Attached { engine: _, pool_file, words_offset, load_slots_offset, adoptions: _ } = attached;
        let answer = Registered {
            control,
            next_step,
            pool_file,
            words_offset,
            load_slots_offset,
            peers,
            lease_ms,
            peer_regions,
        };
        reply(Some(to), op, answer, out);
    }

    /// The rank cannot map the pool: the place stays empty.
    pub(super) fn attach_refused(&mut self, from: &Sender, msg: AttachRefused, out: &mut Vec<Effect>) {
        let crate::protocol::Address::Rank(rank) = from.address else { return };
        self.calls.answered((from.op, CALL_RANK));
        let Some(member) = self.members.of_mut(rank) else { return };
        if member.engine.as_ref().is_none_or(|engine| engine.attach != from.op) {
            return;
        }
        if let Some((to, op)) = member.engine.take().and_then(|engine| engine.waiting) {
            self.counts.refusals += 1;
            reply(Some(to), op, msg.refusal, out);
        }
    }

    /// A sign of life of an engine.
    pub(super) fn renew(&mut self, now: Time, engine: Incarnation) {
        if let Some(until) = self.leases.get_mut(&engine) {
            self.deadlines.remove(&(*until, Due::Lease(engine)));
            *until = now.plus_ms(self.config.lease_ms);
            self.deadlines.insert((*until, Due::Lease(engine)));
        }
    }

    /// The engine of `dead` is gone, and with it the L1 of the whole group: no copy there is a copy any more.
    fn void_l1(&mut self, now: Time, dead: Rank, out: &mut Vec<Effect>) {
        let mut pages = self.end_sessions_of_dead_engines(now, out);
        for load in self.loads.values_mut() {
            if let Some(parent) = load.void() {
                self.tree.release(parent, Tier::L1);
            }
        }
        self.void_backups();
        for (l1, _) in self.admin_pins.values_mut() {
            if let Some(node) = l1.take() {
                self.tree.unpin(node, Tier::L1);
            }
        }
        let mut nodes: Vec<(u32, NodeId)> =
            self.tree.nodes(0).map(|node| (self.tree.page(node).position, node)).collect();
        nodes.sort_unstable_by(|a, b| b.cmp(a));
        let mut keys = Vec::new();
        for (_, node) in nodes {
            let view = self.tree.page(node);
            let Some(page) = view.l1 else { continue };
            if self.page_holds[page.0 as usize] > 0 {
                self.tree.release(node, Tier::L1);
            }
            pages.push(self.tree.clear_l1(node));
            keys.push(view.key);
            self.tree.prune(node);
        }
        self.removed(Tier::L1, &keys, out);
        self.hold_pages_of_the_dead();
        self.outlive(now, dead, pages, out);
    }

    /// Frees pages of sessions that are dead. Those in the lanes of engine ranks that live on may still be written
    /// by what is launched there: they wait until it has passed, or until that rank is replaced, too.
    fn outlive(&mut self, now: Time, dead: Rank, pages: Vec<PageId>, out: &mut Vec<Effect>) {
        let launched = self.steps.next - 1;
        let mut free = self.outlived.remove(&dead).map(|(_, pages)| pages).unwrap_or_default();
        for page in pages {
            let lane = page.owner(self.config.cp_size());
            if lane == dead || self.members.passed(lane) >= launched {
                free.push(page);
            } else {
                let (step, waiting) = self.outlived.entry(lane).or_default();
                *step = launched.max(*step);
                waiting.push(page);
            }
        }
        self.give_up(now, free, out);
    }

    /// Frees what engine ranks can no longer write.
    pub(super) fn free_outlived(&mut self, now: Time, out: &mut Vec<Effect>) {
        let passed = |(lane, (step, _)): (&Rank, &(u64, _))| (self.members.passed(*lane) >= *step).then_some(*lane);
        let lanes: Vec<Rank> = self.outlived.iter().filter_map(passed).collect();
        for lane in lanes {
            if let Some((_, pages)) = self.outlived.remove(&lane) {
                self.give_up(now, pages, out);
            }
        }
    }
}

/// Replaced lives remembered.
const REPLACED_MAX: usize = 4_096;
