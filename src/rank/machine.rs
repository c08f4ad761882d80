//! The rank as its messages see it: what it obeys, which ops it knows, which engine it has attached.
//!
//! It has the shape of a machine, so that the same host numbers and checks its messages, but it owns memory and
//! starts copies: their ends come back through [`RankMachine::collect`]. It decides nothing about pages.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use hicached_actors::calls::Calls;
use hicached_actors::machine::{Effect, Machine, Sender, Trace};
use hicached_actors::protocol::{
    Address, Adopt, Answer, Attach, Done, Incarnation, LayerReady, Malformed, NewIncarnation, OpId, OpIds, Passed,
    Rank, RankHello, RankIn, Time, Watch, WrongState, same,
};
use hicached_client::shm::{Track as Word, passed_step, word_value};
use hicached_kernels::layout::Layout;

use super::claims::{Claim, Claims};
use super::copies::{CopyThreads, Event, Events, Ground, Job, JobId, Notify, WatchId};
use super::l1::L1;
use super::layout::LayerCount;
use super::ops::{OpKind, Ops};
use super::orders::{BackupRows, Lane};
use super::pool_file::PoolFile;
use super::telling::to_index;
use super::transfers::Wire;

/// What a rank is made of.
#[derive(Debug)]
pub(super) struct RankParts {
    /// Which rank of the group.
    pub rank: Rank,
    /// Ranks of the group.
    pub cp_size: u8,
    /// This life of it.
    pub incarnation: Incarnation,
    /// The shape of a page.
    pub layout: Layout,
    /// Its host pool.
    pub pool: PoolFile,
    /// Whether stored records get checksums and loads compare them: a diagnostic that reads every byte again, each
    /// way.
    pub fingerprints: bool,
    /// What carries its pages to and from other groups, if anything.
    pub wire: Option<Wire>,
}

/// One rank: drives copies, answers messages. See the module for how it differs from a pure machine.
#[derive(Debug)]
pub struct RankMachine {
    pub(super) rank: Rank,
    pub(super) cp_size: u8,
    pub(super) layout: Arc<Layout>,
    pub(super) layers: LayerCount,
    pub(super) pool: Arc<PoolFile>,
    pub(super) l1: Option<Arc<L1>>,
    pub(super) fingerprints: bool,
    pub(super) copies: Arc<CopyThreads>,
    pub(super) watch_id: WatchId,
    pub(super) events: Events,
    inbox: Receiver<Event>,
    pub(super) obeys: Obeys,
    /// How many control incarnations it has obeyed.
    pub(super) adoptions: u64,
    /// Those whose time is over: what they still say comes late.
    deposed: VecDeque<Incarnation>,
    pub(super) ops: Ops,
    pub(super) jobs: BTreeMap<JobId, Running>,
    pub(super) next_job: u64,
    pub(super) claims: Claims,
    pub(super) wire: Option<Wire>,
    /// The newest use of each load slot that the control incarnation has begun.
    pub(super) ring_uses: BTreeMap<u32, u64>,
    /// An engine that waits for the copies of its predecessor to stop.
    pub(super) attaching: Option<(Attach, Arc<L1>, OpId, Trace)>,
    watches: BTreeSet<(u64, OpId)>,
    /// Damage that the index has not taken in yet.
    pub(super) damaged: Calls,
    pub(super) ids: OpIds,
    hello_at: Time,
    pub(super) counts: Counts,
}

/// Whom the rank obeys.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Obeys {
    /// The control incarnation; all zero before the first.
    pub(super) control: Incarnation,
    lease_ms: u64,
    lease_until: Time,
}

/// A job and what is to be said when it ends.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) op: OpId,
    pub(super) attempt: u32,
    pub(super) kind: OpKind,
    /// Of an older control incarnation: nobody hears of its end.
    pub(super) old: bool,
    pub(super) job: Arc<Job>,
    pub(super) rows: BackupRows,
    pub(super) claim: Claim,
    pub(super) trace: Trace,
    pub(super) began: Time,
}

/// Named figures.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) backups: u64,
    pub(super) loads: u64,
    pub(super) failed: u64,
    pub(super) bytes_down: u64,
    pub(super) bytes_up: u64,
    pub(super) runs: u64,
    pub(super) copy_us: u64,
    pub(super) wait_us: u64,
    pub(super) all_layers_at_end: u64,
    pub(super) sealed: u64,
    pub(super) unsealed: u64,
    pub(super) refused: u64,
    pub(super) stale: u64,
    pub(super) verified: u64,
    pub(super) unsummed: u64,
    pub(super) damaged: u64,
}

impl RankMachine {
    /// Starts a rank on `copies`; `notify` is called, from any thread, when [`Self::collect`] has something to do.
    pub(super) fn new(parts: RankParts, copies: Arc<CopyThreads>, notify: Notify) -> Self {
        let RankParts { rank, cp_size, incarnation, layout, pool, fingerprints, wire } = parts;
        if fingerprints {
            tracing::warn!(
                rank = rank.0,
                "fingerprints are on: every record is read once more after its copy to the host and once more before \
                 its load, do not measure this run"
            );
        }
        let (to, inbox) = channel();
        let events = Events::new(to, notify);
        let layers = LayerCount::of(&layout);
        let watch_id = copies.watch_words(pool.words().clone(), layers, events.clone());
        let [seed, ..] = incarnation.0;
        Self {
            rank,
            cp_size,
            layout: Arc::new(layout),
            layers,
            pool: Arc::new(pool),
            l1: None,
            fingerprints,
            copies,
            watch_id,
            events,
            inbox,
            obeys: Obeys::default(),
            adoptions: 0,
            deposed: VecDeque::new(),
            ops: Ops::default(),
            jobs: BTreeMap::new(),
            next_job: 0,
            claims: Claims::default(),
            wire,
            ring_uses: BTreeMap::new(),
            attaching: None,
            watches: BTreeSet::new(),
            damaged: Calls::new(u64::from(seed)),
            ids: OpIds::new(incarnation),
            hello_at: Time::ZERO,
            counts: Counts::default(),
        }
    }

    /// The control incarnation it obeys; all zero before the first.
    pub fn control(&self) -> Incarnation {
        self.obeys.control
    }

    /// Its pool file.
    pub fn pool(&self) -> &PoolFile {
        &self.pool
    }

    /// Takes in what the copying threads have said since the last call.
    pub fn collect(&mut self, now: Time, out: &mut Vec<Effect>) {
        while let Ok(event) = self.inbox.try_recv() {
            match event {
                Event::Ended(job, end) => self.job_ended(now, job, *end, out),
                Event::Passed => {}
            }
        }
        self.collect_wire(now, out);
        self.answer_watches(out);
        self.attach_if_idle(now, out);
    }

    /// Stops every copy; what it holds is free once [`Self::is_idle`]. For a shell that ends in order; dropping the
    /// rank does the same without waiting.
    pub fn stop_all(&mut self, why: &str) {
        for running in self.jobs.values() {
            self.copies.forget_job(self.watch_id, running.job.id());
            running.job.stop(WrongState { what: format!("{:?}", self.rank), state: why.to_owned() }.into());
        }
        if let Some(wire) = &mut self.wire {
            wire.stop_all();
        }
    }

    /// Whether no copy runs, and nothing lands or is sent.
    pub fn is_idle(&self) -> bool {
        self.jobs.is_empty() && self.wire.as_ref().is_none_or(Wire::is_idle)
    }

    /// What older control incarnations began and has not ended.
    pub(super) fn old_ops(&self) -> u32 {
        let copies = self.jobs.values().filter(|job| job.old).count();
        (copies + self.wire.as_ref().map_or(0, Wire::old)) as u32
    }

    pub(super) fn lane(&self) -> Lane {
        let l1_pages = self.l1.as_ref().map(|l1| l1.layout().pages());
        Lane { rank: self.rank, cp_size: self.cp_size, l1_pages, host_slots: self.pool.slots() }
    }

    pub(super) fn ground(&self) -> Option<Ground> {
        let l1 = self.l1.clone()?;
        Some(Ground { layout: self.layout.clone(), pool: self.pool.clone(), l1 })
    }

    /// The rank presents itself.
    pub(super) fn hello(&mut self, now: Time, op: OpId, out: &mut Vec<Effect>) {
        let every_ms = if self.obeys.lease_ms == 0 { HELLO_MS } else { (self.obeys.lease_ms / 4).max(1) };
        self.hello_at = now.plus_ms(every_ms);
        let hello = RankHello {
            rank: self.rank,
            host_slots: self.pool.slots(),
            adopted_by: self.obeys.control,
            old_ops: self.old_ops(),
            engine: self.l1.as_ref().map(|l1| l1.engine()).unwrap_or_default(),
            passed: self.passed(),
            adoptions: self.adoptions,
        };
        to_index(hello.into(), op, out);
    }

    fn adopt(&mut self, now: Time, from: &Sender, msg: &Adopt, out: &mut Vec<Effect>) {
        if from.address != Address::Index || from.incarnation == Incarnation::default() {
            return self.reject(from, Malformed::new("sender", from.address, "a living index").into(), out);
        }
        if msg.lease_ms == 0 || msg.lease_ms > LEASE_MS_MAX {
            let limit = format!("1..={LEASE_MS_MAX}");
            return self.reject(from, Malformed::new("lease_ms", msg.lease_ms, limit).into(), out);
        }
        let mine = self.obeys.control;
        if mine != from.incarnation {
            let refusal = NewIncarnation { old: from.incarnation, new: mine };
            if self.deposed.contains(&from.incarnation) {
                return self.reject(from, refusal.into(), out);
            }
            if mine != Incarnation::default() && now < self.obeys.lease_until {
                // It presents itself when it is free to obey; an answer to each of these would be asked again at once.
                self.hello_at = self.hello_at.min(self.obeys.lease_until);
                return self.reject(from, refusal.into(), out);
            }
            self.forget_control();
        }
        let (control, lease_ms) = (from.incarnation, msg.lease_ms);
        self.obeys = Obeys { control, lease_ms, lease_until: now.plus_ms(lease_ms) };
        self.hello(now, from.op, out);
    }

    /// Another control incarnation takes over: the copies of the old one are stopped and nobody hears of them.
    fn forget_control(&mut self) {
        self.adoptions += 1;
        if self.obeys.control != Incarnation::default() {
            self.deposed.push_back(self.obeys.control);
        }
        if self.deposed.len() > DEPOSED_MAX {
            self.deposed.pop_front();
        }
        self.stop_all("another control incarnation has taken the rank");
        self.jobs.values_mut().for_each(|running| running.old = true);
        if let Some(wire) = &mut self.wire {
            wire.forget_control();
        }
        self.ops = Ops::default();
        self.ring_uses.clear();
        self.watches.clear();
        self.copies.forget_steps(self.watch_id);
        let [seed, ..] = self.ids.incarnation().0;
        self.damaged = Calls::new(u64::from(seed));
    }

    fn watch(&mut self, from: &Sender, msg: &Watch, out: &mut Vec<Effect>) {
        if self.watches.len() >= WATCHES_MAX && !self.watches.contains(&(msg.step, from.op)) {
            let busy = super::busy("watches", WATCHES_MAX);
            return self.reject(from, busy, out);
        }
        // A word that moves after this look is seen by the watching thread, which looks again.
        if self.watches.insert((msg.step, from.op)) && self.passed() < msg.step {
            self.copies.watch_step(self.watch_id, msg.step);
        }
        self.answer_watches(out);
    }

    fn answer_watches(&mut self, out: &mut Vec<Effect>) {
        if self.watches.is_empty() {
            return;
        }
        let (passed, engine) = (self.passed(), self.pool.engine());
        while let Some((_, op)) = self.watches.first().copied().filter(|(step, _)| *step <= passed) {
            self.watches.pop_first();
            to_index(Passed { step: passed, engine }.into(), op, out);
        }
    }

    /// The newest step that both tracks have passed.
    fn passed(&self) -> u64 {
        let words = self.pool.words();
        let target = passed_step(words.value(Word::Target), self.layers.target);
        target.min(passed_step(words.value(Word::Draft), self.layers.draft))
    }

    /// Layers of an engine that cannot write words. It must name its own life: a replaced engine moves nothing.
    fn layer_ready(&mut self, from: &Sender, msg: &LayerReady, out: &mut Vec<Effect>) {
        let (word, layers) =
            if msg.draft { (Word::Draft, self.layers.draft) } else { (Word::Target, self.layers.target) };
        let attached = self.l1.as_ref().map(|l1| l1.engine()).unwrap_or_default();
        let checked = same("engine", format!("{:?}", from.incarnation), format!("{attached:?}")).and_then(|()| {
            let too_many = || Malformed::new("layers_done", msg.layers_done, format_args!("at most {layers}")).into();
            if msg.layers_done > layers { Err(too_many()) } else { Ok(()) }
        });
        let answer = match checked {
            Ok(()) => {
                self.pool.words().advance(word, word_value(msg.step, layers, msg.layers_done));
                Answer::Done(Done { control: self.obeys.control })
            }
            Err(refusal) => {
                self.counts.refused += 1;
                Answer::Refused(refusal)
            }
        };
        if let Some(to) = from.reply.clone() {
            out.push(Effect::Reply { to, op: from.op, answer });
        }
    }
}

impl RankMachine {
    /// A copy ordered from an older life would write where others stand by now.
    fn is_for_another_life(&self, msg: &RankIn) -> bool {
        let lives = match msg {
            RankIn::BackupCopy(copy) => &copy.lives,
            RankIn::LoadCopy(copy) => &copy.lives,
            RankIn::Accept(accept) => &accept.lives,
            RankIn::Push(push) => &push.lives,
            RankIn::Adopt(_)
            | RankIn::Inventory(_)
            | RankIn::Attach(_)
            | RankIn::Watch(_)
            | RankIn::LayerReady(_)
            | RankIn::Seal(_)
            | RankIn::Unseal(_)
            | RankIn::Stop(_)
            | RankIn::OpSettled(_)
            | RankIn::Report(_)
            | RankIn::Revoke(_)
            | RankIn::StopPush(_) => return false,
        };
        lives.get(usize::from(self.rank.0)).is_some_and(|life| *life != self.ids.incarnation())
    }
}

impl Machine for RankMachine {
    type In = RankIn;

    fn handle(&mut self, now: Time, from: &Sender, msg: RankIn, out: &mut Vec<Effect>) {
        let from_engine = matches!(msg, RankIn::LayerReady(_));
        if !matches!(msg, RankIn::Adopt(_)) && !from_engine {
            if self.obeys.control == Incarnation::default() {
                let refusal = WrongState { what: format!("{:?}", self.rank), state: "not adopted".to_owned() };
                return self.reject(from, refusal.into(), out);
            }
            if from.incarnation != self.obeys.control {
                self.counts.stale += 1;
                return;
            }
        }
        if self.is_for_another_life(&msg) {
            self.counts.stale += 1;
            if let RankIn::LoadCopy(copy) = &msg {
                self.disown_slot(now, from, copy, out);
            }
            return;
        }
        match msg {
            RankIn::Adopt(msg) => self.adopt(now, from, &msg, out),
            RankIn::Inventory(msg) => self.inventory(from, &msg, out),
            RankIn::Attach(msg) => self.attach(from, msg, out),
            RankIn::Watch(msg) => self.watch(from, &msg, out),
            RankIn::LayerReady(msg) => self.layer_ready(from, &msg, out),
            RankIn::BackupCopy(msg) => self.backup_copy(now, from, &msg, out),
            RankIn::LoadCopy(msg) => self.load_copy(now, from, &msg, out),
            RankIn::Seal(msg) => self.seal(from, &msg, out),
            RankIn::Unseal(msg) => self.unseal(from, &msg, out),
            RankIn::Stop(msg) => self.stop(now, from, &msg, out),
            RankIn::OpSettled(_) => drop(self.damaged.answered((from.op, 0))),
            RankIn::Accept(msg) => self.accept(from, &msg, out),
            RankIn::Report(msg) => self.report(from, &msg, out),
            RankIn::Revoke(msg) => self.revoke(from, &msg, out),
            RankIn::Push(msg) => self.push(from, &msg, out),
            RankIn::StopPush(msg) => self.stop_push(from, &msg, out),
        }
        self.collect(now, out);
    }

    fn wake(&mut self, now: Time, out: &mut Vec<Effect>) {
        if self.hello_at <= now {
            self.hello(now, OpId::default(), out);
        }
        self.damaged.wake(now, out);
        self.collect(now, out);
    }

    fn next_deadline(&self) -> Option<(Time, &'static str)> {
        let damaged = self.damaged.next_deadline().map(|at| (at, "damaged"));
        [Some((self.hello_at, "hello")), damaged].into_iter().flatten().min()
    }

    fn resync(&mut self, now: Time, peer: Address, out: &mut Vec<Effect>) {
        let kind = match peer {
            Address::Index => {
                self.hello(now, OpId::default(), out);
                return self.damaged.resync(now, peer, out);
            }
            Address::Writer => OpKind::Backup,
            Address::Loader => OpKind::Load,
            Address::Sender => return self.pushed_again(RESYNC_ACKS_MAX, out),
            // What a receiver waits for it asks for until it is answered.
            Address::Allocator | Address::Evictor | Address::Receiver | Address::Rank(_) | Address::Engine => return,
        };
        for (op, ack) in self.ops.newest_acks(kind, RESYNC_ACKS_MAX) {
            self.acknowledge(kind, op, ack, &None, out);
        }
    }

    fn check_invariants(&self) {
        assert!(self.jobs.values().all(|job| job.old || self.ops.get(job.op).is_some()), "a job without its op");
        assert!(!self.is_idle() || self.claims.len() == 0, "pages are claimed and nothing runs");
        assert!(self.l1.is_some() || self.is_idle(), "copies without an engine's pool");
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let counts = self.counts;
        let mut all = vec![
            ("rank.copies_in_flight", self.jobs.len() as u64),
            ("rank.ops", self.ops.len() as u64),
            ("rank.backups", counts.backups),
            ("rank.loads", counts.loads),
            ("rank.failed", counts.failed),
            ("rank.bytes_down", counts.bytes_down),
            ("rank.bytes_up", counts.bytes_up),
            ("rank.runs", counts.runs),
            ("rank.copy_us", counts.copy_us),
            ("rank.wait_us", counts.wait_us),
            ("rank.all_layers_at_end", counts.all_layers_at_end),
            ("rank.sealed", counts.sealed),
            ("rank.unsealed", counts.unsealed),
            ("rank.refused", counts.refused),
            ("rank.stale", counts.stale),
            ("rank.verified", counts.verified),
            ("rank.unsummed", counts.unsummed),
            ("rank.damaged", counts.damaged),
            ("rank.damaged_open", self.damaged.len() as u64),
            ("rank.fingerprints", u64::from(self.fingerprints)),
        ];
        all.extend(self.wire.iter().flat_map(Wire::figures));
        all
    }
}

impl Drop for RankMachine {
    fn drop(&mut self) {
        self.stop_all("the rank ends");
        self.copies.forget_words(self.watch_id);
    }
}

/// How often an unadopted rank presents itself.
const HELLO_MS: u64 = 250;
/// No lease is longer: a rank must become free for a successor of a control group that died.
const LEASE_MS_MAX: u64 = 600_000;
/// Replaced control incarnations remembered: a message of one comes late by seconds, not by so many takeovers.
const DEPOSED_MAX: usize = 64;
/// Steps watched at a time; the index watches the newest one.
const WATCHES_MAX: usize = 1_024;
/// Acknowledgements repeated to a peer that has missed some; older ones it asks for by op.
const RESYNC_ACKS_MAX: usize = 256;
