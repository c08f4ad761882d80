//! What is cached: the tree of page keys, sessions and leases, and every decision that makes a copy usable.
//!
//! ```text
//! open -> [match] -> (load ->) reserve -> open -> step* -> passed on every rank -> committed to L1
//!                                                   \-> backup -> acknowledged -> committed to L2
//! close, abort, expiry -> last step passed -> unpinned, own pages freed
//! ```
//!
//! Invariants: a match returns committed pages only; a page is committed once its step has passed on every
//! rank and, for L2, every owner has acknowledged it; a page given up is freed when no op reads or writes it.
//! Not here: which pages are free (allocator), copies (writer, loader), when room is wanted (evictor).

mod backups;
mod census;
mod config;
mod door;
mod endings;
mod events;
mod evicted;
mod evictions;
mod extending;
mod figures;
mod given;
mod handovers;
mod loads;
mod members;
mod parking;
mod pins;
mod recovery;
mod room;
mod salts;
mod session;
mod spans;
mod steps;
#[cfg(test)]
mod tests;
pub mod tree;
mod unseals;
mod write_back;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::calls::Calls;
use crate::machine::{Effect, Machine, ReplyTo, Sender, Trace};
use crate::protocol::{
    Address, Answer, Done, HostSlot, Incarnation, IndexIn, IndexNews, Key, Malformed, OpId, OpIds, Outgoing, PageId,
    Rank, Refusal, Request, StatusIs, Time,
};
use backups::BackupOp;
use census::Census;
pub use config::{HandoverRules, IndexConfig, WritePolicy};
use events::Events;
use evicted::EvictedKeys;
use evictions::{EvictOp, FlushOp, FreeThen};
use figures::Counts;
use handovers::Handovers;
use loads::LoadOp;
use members::Members;
use parking::ParkedOpen;
use recovery::Recovery;
use room::{Parked, Room};
use salts::Salts;
use session::{Ended, Session};
use steps::Steps;
use tree::{NodeId, PrefixTree};

/// The prefix index of one group, in one control incarnation.
#[derive(Debug)]
pub struct Index {
    config: IndexConfig,
    control: Incarnation,
    ids: OpIds,
    calls: Calls,
    tree: PrefixTree,
    salts: Salts,
    members: Members,
    /// Another control incarnation had the ranks meanwhile: this one is over.
    is_deposed: bool,
    recovery: Recovery,
    sessions: BTreeMap<OpId, Session>,
    handovers: Handovers,
    /// Those of them that have ended for their engine and drain.
    ending: BTreeSet<OpId>,
    ended: Ended,
    /// Leases of engine incarnations that have sessions.
    leases: BTreeMap<Incarnation, Time>,
    parked_opens: VecDeque<ParkedOpen>,
    steps: Steps,
    backups: BTreeMap<OpId, BackupOp>,
    parked_backups: VecDeque<Parked>,
    loads: BTreeMap<OpId, LoadOp>,
    /// Pages of running loads.
    loading: BTreeSet<NodeId>,
    /// Reservations under way, and the session each is for.
    reserving: BTreeMap<OpId, OpId>,
    /// Reservations that were given other pages than were asked for.
    disowned: BTreeSet<OpId>,
    evicts: BTreeMap<OpId, EvictOp>,
    /// Who took pages that are missing.
    evicted: EvictedKeys,
    flushes: BTreeMap<OpId, FlushOp>,
    freeing: BTreeMap<OpId, FreeThen>,
    /// Records that have left L2, by what asks their rank to unseal them.
    unseals: BTreeMap<OpId, (Rank, Vec<(HostSlot, Key)>)>,
    /// Ops that read an L1 page, and handovers of dead sessions that read or write it, by page id.
    page_holds: Vec<u16>,
    /// Pages to free when their last hold ends.
    doomed: BTreeSet<PageId>,
    /// Pages of dead sessions that an engine rank which lives on may still write, by lane, until it has passed the
    /// step.
    outlived: BTreeMap<Rank, (u64, Vec<PageId>)>,
    /// Operators' pins by the last key of the path.
    admin_pins: BTreeMap<Key, (Option<NodeId>, Option<NodeId>)>,
    /// Records whose bytes are gone, to be cleared when nobody uses them.
    lost: BTreeSet<Key>,
    /// Why a record is quarantined.
    damaged_components: BTreeMap<Key, String>,
    /// Backups that wait for the decision on them.
    complete_backups: BTreeSet<OpId>,
    /// How often each L2 lane gained room.
    l2_room: Room,
    events: Events,
    census: Census,
    deadlines: BTreeSet<(Time, Due)>,
    tick: u64,
    draining: bool,
    counts: Counts,
}

/// What the index waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    /// An engine's lease.
    Lease(Incarnation),
    /// A rank's sign of life.
    RankLease(Rank),
    /// The next heartbeat to the ranks.
    Adopt,
    /// An open that waits for a load.
    ParkedOpen(OpId),
}

impl Index {
    /// An index that knows nothing yet; [`Self::start`] makes it ask the ranks.
    pub fn new(config: IndexConfig, control: Incarnation, seed: u64) -> Self {
        let cp_size = config.cp_size();
        let l1_pages = config.l1_physical_pages as usize * cp_size as usize;
        let pages = l1_pages + config.l2_slots as usize * cp_size as usize;
        Self {
            control,
            ids: OpIds::new(control),
            calls: Calls::new(seed),
            tree: PrefixTree::new(cp_size, pages),
            salts: Salts::default(),
            members: Members::new(cp_size),
            is_deposed: false,
            recovery: Recovery::new(cp_size),
            sessions: BTreeMap::new(),
            handovers: Handovers::default(),
            ending: BTreeSet::new(),
            ended: Ended::default(),
            leases: BTreeMap::new(),
            parked_opens: VecDeque::new(),
            steps: Steps::default(),
            backups: BTreeMap::new(),
            parked_backups: VecDeque::new(),
            loads: BTreeMap::new(),
            loading: BTreeSet::new(),
            reserving: BTreeMap::new(),
            disowned: BTreeSet::new(),
            evicts: BTreeMap::new(),
            evicted: EvictedKeys::new(config.evicted_keys_max),
            flushes: BTreeMap::new(),
            freeing: BTreeMap::new(),
            unseals: BTreeMap::new(),
            page_holds: vec![0; l1_pages],
            doomed: BTreeSet::new(),
            outlived: BTreeMap::new(),
            admin_pins: BTreeMap::new(),
            lost: BTreeSet::new(),
            damaged_components: BTreeMap::new(),
            complete_backups: BTreeSet::new(),
            l2_room: Room::new(cp_size),
            events: Events::new(control, config.events_max),
            census: Census::default(),
            deadlines: BTreeSet::new(),
            tick: 0,
            draining: false,
            counts: Counts::default(),
            config,
        }
    }

    /// The tree, for tests and checks.
    pub const fn tree(&self) -> &PrefixTree {
        &self.tree
    }

    /// L1 pages that sessions or ops hold beside the tree, for checks that no page is lost.
    pub fn private_pages(&self) -> Vec<PageId> {
        let mut pages: Vec<PageId> = self.doomed.iter().copied().collect();
        for session in self.sessions.values() {
            pages.extend_from_slice(&session.pages[(session.committed as usize).min(session.pages.len())..]);
            pages.extend_from_slice(&session.duplicates);
        }
        pages.extend(self.loads.values().flat_map(LoadOp::running_pages));
        pages.extend(self.outlived.values().flat_map(|(_, pages)| pages));
        pages.sort_unstable();
        pages.dedup();
        pages
    }

    /// Ops and sessions that have not ended.
    pub fn in_flight(&self) -> usize {
        self.sessions.len()
            + self.backups.len()
            + self.loads.len()
            + self.evicts.values().filter(|e| e.runs()).count()
            + self.freeing.len()
            + self.reserving.len()
            + self.outlived.len()
            + self.handovers.running()
    }

    fn request(&mut self, now: Time, from: &Sender, request: Request, out: &mut Vec<Effect>) {
        if from.control != Incarnation::default()
            && from.control != self.control
            && !matches!(request, Request::Register(_))
        {
            let refusal = crate::protocol::NewIncarnation { old: from.control, new: self.control };
            return self.refuse(from, refusal.into(), out);
        }
        let done = match request {
            Request::Register(msg) => self.register(now, from, msg, out),
            Request::Probe(msg) => self.probe(from, &msg, out),
            Request::Open(msg) => self.open(now, from, msg, out),
            Request::Extend(msg) => self.extend(now, from, msg, out),
            Request::Step(msg) => self.step(now, from, msg, out),
            Request::Close(msg) => self.close(now, from, msg, out),
            Request::Abort(msg) => self.abort(now, from, &msg, out),
            Request::Heartbeat(msg) => {
                if self.members.knows_engine(msg.engine) {
                    self.members.heard(now, msg.engine);
                    self.renew(now, msg.engine);
                    reply(from.reply.clone(), from.op, Done { control: self.control }, out);
                    Ok(())
                } else {
                    Err(crate::protocol::Unknown::new("engine", msg.engine).into())
                }
            }
            Request::Flush(msg) => self.flush(now, from, &msg, out),
            Request::Pin(msg) => self.pin(from, &msg, out),
            Request::Drain(msg) => {
                self.draining = msg.on;
                let (sessions, ops) = (self.sessions.len() as u32, self.in_flight() as u32);
                reply(from.reply.clone(), from.op, crate::protocol::Drained { sessions, ops }, out);
                Ok(())
            }
            Request::Status(_) => {
                let counters = self.counters().into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
                reply(from.reply.clone(), from.op, StatusIs { counters }, out);
                Ok(())
            }
            Request::Replay(msg) => {
                reply(from.reply.clone(), from.op, self.events.replay(msg.from, msg.limit), out);
                Ok(())
            }
            Request::Handover(msg) => self.handover(from, &msg, out),
        };
        if let Err(refusal) = done {
            self.refuse(from, refusal, out);
        }
    }

    fn news(&mut self, now: Time, from: &Sender, news: IndexNews, out: &mut Vec<Effect>) {
        if !given::may_say(from.address, &news) {
            self.counts.foreign += 1;
            let wrong = Malformed::new("sender", from.address, format_args!("the member that says {}", news.code()));
            return self.refuse(from, wrong.into(), out);
        }
        if !self.is_asked(from) {
            return self.broken(from.op, out);
        }
        if let Address::Rank(rank) = from.address
            && !matches!(news, IndexNews::RankHello(_))
            && !self.members.is_current(rank, from.incarnation)
        {
            self.counts.stale += 1;
            return;
        }
        let op = from.op;
        match news {
            IndexNews::Reserved(msg) => self.reserved(now, op, msg.pages.0, out),
            IndexNews::Short(msg) => self.short(now, op, msg.short, out),
            IndexNews::Freed(_) => self.freed(now, op, out),
            IndexNews::Counted(msg) => self.counted(op, &msg, out),
            IndexNews::Restored(msg) => self.restored(now, op, msg.part, out),
            IndexNews::Whose(_) => {
                // Of pages that have not come nothing can be said: they come again, and then it can.
                if self.reserving.contains_key(&op) {
                    return;
                }
                let mine = self.ids.has_drawn(op) && !self.disowned.contains(&op);
                let msg = crate::protocol::WhoseIs { mine };
                out.push(Effect::Send { to: Outgoing::Allocator(msg.into()), op, trace: None });
            }
            IndexNews::Evict(msg) => self.evict(now, from, &msg, out),
            IndexNews::BackupRefused(msg) => self.backup_refused(now, op, &msg.short, out),
            IndexNews::BackupComplete(msg) => self.backup_complete(now, op, msg.slots.0, out),
            IndexNews::BackupFailed(_) => self.backup_failed(now, op, out),
            IndexNews::LoadStarted(msg) => self.load_started(now, op, msg, out),
            IndexNews::LoadMissed(_) => self.load_missed(now, op, out),
            IndexNews::LoadBusy(msg) => self.load_busy(now, op, msg.bound, out),
            IndexNews::LoadEnded(msg) => self.load_ended(now, op, msg.ok, out),
            IndexNews::OpSettled(_) => self.op_settled(op),
            IndexNews::SendTaken(msg) => self.send_taken(now, op, &msg, out),
            IndexNews::SendOver(msg) => self.send_over(now, op, msg, out),
            IndexNews::Expected(msg) => self.expected(op, &msg),
            IndexNews::Arrived(msg) => self.arrived(now, op, msg, out),
            IndexNews::NotArriving(msg) => self.not_arriving(now, op, &msg, out),
            IndexNews::RankHello(msg) => self.rank_hello(now, from, msg, out),
            IndexNews::InventoryPart(msg) => self.inventory_part(now, from, msg, out),
            IndexNews::Attached(msg) => self.attached(now, from, msg, out),
            IndexNews::AttachRefused(msg) => self.attach_refused(from, msg, out),
            IndexNews::Passed(msg) => self.passed(now, from, msg, out),
            IndexNews::Damaged(msg) => self.damaged(now, from, &msg, out),
            IndexNews::Rejected(msg) => self.rejected(now, from, &msg.refusal, out),
        }
    }

    /// Something we asked for broke the rules of its receiver: a fault of ours, counted where it is seen. What
    /// waits for a free goes on, since asking again would be refused again; anything else is asked for again.
    fn rejected(&mut self, now: Time, from: &Sender, refusal: &Refusal, out: &mut Vec<Effect>) {
        out.push(Effect::Mark { op: from.op, name: "error.rejected", value: 1 });
        if self.recovery.is_adopting_rows(from.op) {
            self.calls.answered((from.op, CALL));
            self.rows_rejected(now, from.op, out);
        } else if self.freeing.contains_key(&from.op) {
            self.freed(now, from.op, out);
        } else if self.reserving.contains_key(&from.op) {
            self.short(now, from.op, vec![0; self.config.cp_size().into()], out);
        } else if let (Address::Writer, Refusal::Unknown(_)) = (from.address, refusal) {
            // A verdict that the writer has carried out and forgotten.
            self.op_settled(from.op);
        } else {
            self.handover_rejected(now, from, refusal, out);
        }
    }

    fn refuse(&mut self, from: &Sender, refusal: Refusal, out: &mut Vec<Effect>) {
        self.counts.refusals += 1;
        reply(from.reply.clone(), from.op, refusal, out);
    }

    /// A verdict is carried out, a ring slot is taken back, seals are gone, or a rank's life is known.
    fn op_settled(&mut self, op: OpId) {
        if !self.backup_settled(op) && !self.ring_released(op) && !self.unsealed(op) {
            self.calls.answered((op, CALL));
        }
    }

    /// Room may have come, or something another op waited for may have ended.
    fn settle(&mut self, now: Time, out: &mut Vec<Effect>) {
        self.free_outlived(now, out);
        self.drop_lost(now, out);
        self.retry_parked_backups(now, out);
        self.answer_flushes(out);
        if !self.is_idle() {
            self.census.disturbed();
        }
    }
}

impl Machine for Index {
    type In = IndexIn;

    fn handle(&mut self, now: Time, from: &Sender, msg: IndexIn, out: &mut Vec<Effect>) {
        if self.is_deposed {
            if let IndexIn::Request(_) = msg {
                self.refuse(from, self.busy("control incarnation", 0), out);
            }
            return;
        }
        match msg {
            IndexIn::Request(request) => self.request(now, from, request, out),
            IndexIn::News(news) => self.news(now, from, news, out),
        }
        self.settle(now, out);
    }

    fn wake(&mut self, now: Time, out: &mut Vec<Effect>) {
        if self.is_deposed {
            return;
        }
        self.calls.wake(now, out);
        self.handovers.wake(now);
        while let Some((at, due)) = self.deadlines.first().copied().filter(|(at, _)| *at <= now) {
            self.deadlines.remove(&(at, due));
            match due {
                Due::Lease(engine) => self.lease_ran_out(now, engine, out),
                Due::RankLease(rank) => self.members.silence(rank),
                Due::Adopt => {
                    self.adopt_all(now, out);
                    self.take_census(now, out);
                }
                Due::ParkedOpen(op) => self.parked_open_expired(now, op, out),
            }
        }
        self.settle(now, out);
    }

    fn next_deadline(&self) -> Option<(Time, &'static str)> {
        if self.is_deposed {
            return None;
        }
        let due = self.deadlines.first().map(|(at, due)| {
            let why = match due {
                Due::Lease(_) => "lease of an engine",
                Due::RankLease(_) => "lease of a rank",
                Due::Adopt => "heartbeat to ranks",
                Due::ParkedOpen(_) => "open waiting for a load",
            };
            (*at, why)
        });
        let repeat = self.calls.next_deadline().map(|at| (at, "repeat"));
        let forget = self.handovers.next_deadline().map(|at| (at, "handover that has ended"));
        [due, repeat, forget].into_iter().flatten().min()
    }

    fn resync(&mut self, now: Time, peer: Address, out: &mut Vec<Effect>) {
        if !self.is_deposed {
            self.calls.resync(now, peer, out);
        }
    }

    fn is_over(&self) -> bool {
        self.is_deposed
    }

    fn check_invariants(&self) {
        self.tree.check_invariants();
        for (id, session) in &self.sessions {
            assert_eq!(session.committed == 0, session.tail.is_none(), "{id:?}: a committed path has a tail");
            assert!(session.committed as usize <= session.pages.len(), "{id:?}: committed beyond its pages");
            assert!(session.computed_tokens <= session.frontier_tokens, "{id:?}: computed ahead of its steps");
            if let Some(tail) = session.tail {
                assert!(self.tree.page(tail).l1.is_some(), "{id:?}: its tail has no L1 copy");
            }
        }
        let ending = |session: &Session| matches!(session.phase, session::Phase::Ending(_));
        assert!(self.ending.iter().all(|id| self.sessions.get(id).is_some_and(ending)), "what drains has ended");
        assert_eq!(self.ending.len(), self.sessions.values().filter(|session| ending(session)).count());
        for node in &self.loading {
            assert!(self.tree.page(*node).l2.is_some(), "{node:?} is loaded from nowhere");
        }
        self.evicted.check_invariants();
        self.check_handovers();
        for page in &self.doomed {
            assert!(self.page_holds[page.0 as usize] > 0, "{page:?} waits for no op");
        }
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.figures()
    }
}

/// Answers a request, if somebody waits for the answer.
fn reply(to: Option<ReplyTo>, op: OpId, answer: impl Into<Answer>, out: &mut Vec<Effect>) {
    if let Some(to) = to {
        out.push(Effect::Reply { to, op, answer: answer.into() });
    }
}

/// Calls of an op that has only one.
const CALL: u16 = 0;
/// Calls of an op to rank `n` are this and `n`.
const CALL_RANK: u16 = 64;
/// Where a slot stands in the tree or on its way there.
type Placed = (Rank, HostSlot);
/// Trace of ops that nobody asked for.
const NO_TRACE: Trace = None;
