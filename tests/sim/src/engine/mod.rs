//! An engine model: registers its ranks, runs sessions in steps, waits for loads layer by layer, checks
//! every byte it reads and writes the bytes that belong to what it computes.

mod answers;
mod door;
mod handover;
mod session;
mod stream;
pub mod traffic;

use std::collections::BTreeMap;

use hicached_actors::protocol::{
    Abort, Close, Extend, Heartbeat, Incarnation, Key, Keys, OpId, OpIds, Open, Owners, Pages, Rank, Region, Register,
    Request, Step, StepEntry, Time,
};

pub(crate) use door::{Ask, Pending};
pub use session::{Phase, Session, Spec};
pub(crate) use stream::{Entry, StepRun, Stream};

use crate::checks::Violation;
use crate::layout::{Layout, Truth};
use crate::memory::Memory;
use crate::net::Net;

/// One engine: `cp` ranks that live and die together.
#[derive(Debug)]
pub struct Engine {
    /// Lives of its ranks.
    pub lives: Vec<Incarnation>,
    /// Which life this is.
    pub life_number: u32,
    /// Ids of sessions and requests.
    pub ids: OpIds,
    /// The control incarnation it believes in.
    pub control: Incarnation,
    /// Ranks that are registered.
    pub registered: u64,
    /// Number of the next step.
    pub next_step: u64,
    /// Newest step that every rank has run.
    pub last_done: u64,
    /// Sessions by number.
    pub sessions: BTreeMap<u64, Session>,
    /// Steps that are not done or not answered.
    pub steps: BTreeMap<u64, StepRun>,
    /// Streams by rank.
    pub streams: Vec<Stream>,
    /// Requests without an answer.
    pub pending: BTreeMap<u64, Pending>,
    /// Requests made so far.
    pub requests_made: u64,
    /// Answers to requests that had one.
    pub late_answers: u64,
    /// Until when its sessions surely live.
    pub lease_until: Time,
    /// How long a lease is.
    pub lease_ms: u64,
    /// Microseconds a layer takes: at least, at most.
    pub layer_us: (u64, u64),
    /// What the bus carries.
    pub payload_bytes_max: usize,
    /// What keys stand for.
    pub truth: Truth,
    /// Answers to plain requests, for scripts.
    pub plain: BTreeMap<u64, hicached_actors::protocol::Answer>,
    /// The last refusal of a session's request, for scripts.
    pub refused: BTreeMap<u64, hicached_actors::protocol::Refusal>,
    /// Answers to `close`, for scripts.
    pub closed: BTreeMap<u64, hicached_actors::protocol::Closed>,
    /// Streams stop in front of this layer until a script lets them go on.
    pub stop_after: Option<u32>,
    /// Sessions give up after so many refusals in a row; a script never does.
    pub patient: bool,
    /// Whether it names the last step that it has launched itself. Else it names the one before its next, which nobody
    /// can tell apart where something is launched all the time.
    pub tells_launched: bool,
    launched: u64,
    sessions_made: u64,
    pages: u32,
    heartbeat_at: Time,
    load_ms: u64,
}

impl Engine {
    /// An engine that has not registered yet, with segments of `l1_pages` usable pages.
    pub fn new(net: &mut Net, memory: &mut Memory, l1_pages: u32, payload_bytes_max: usize) -> Self {
        let mut engine = Self {
            lives: Vec::new(),
            life_number: 0,
            ids: OpIds::new(Incarnation::default()),
            control: Incarnation::default(),
            registered: 0,
            next_step: 1,
            last_done: 0,
            sessions: BTreeMap::new(),
            steps: BTreeMap::new(),
            streams: Vec::new(),
            pending: BTreeMap::new(),
            requests_made: 0,
            late_answers: 0,
            lease_until: Time::ZERO,
            lease_ms: 30_000,
            layer_us: (50, 600),
            payload_bytes_max,
            truth: Truth::default(),
            plain: BTreeMap::new(),
            refused: BTreeMap::new(),
            closed: BTreeMap::new(),
            stop_after: None,
            patient: false,
            tells_launched: false,
            launched: 0,
            sessions_made: 0,
            pages: l1_pages + 1,
            heartbeat_at: Time::ZERO,
            load_ms: 5_000,
        };
        engine.restart(net, memory);
        engine
    }

    /// Begins a new life: new segments, nothing remembered.
    pub fn restart(&mut self, net: &mut Net, memory: &mut Memory) {
        let cp = memory.layout.cp;
        self.lives = (0..cp).map(|_| Incarnation(net.chance.uuid())).collect();
        self.life_number += 1;
        self.ids = OpIds::new(self.lives[0]);
        self.streams = vec![Stream::default(); usize::from(cp)];
        self.sessions.clear();
        self.steps.clear();
        self.pending.clear();
        (self.next_step, self.last_done, self.registered, self.launched) = (1, 0, 0, 0);
        for (rank, life) in self.lives.iter().enumerate() {
            memory.replace_segment(rank, self.pages, *life);
        }
        self.register_missing(net, memory);
    }

    /// Whether every rank is registered and steps may be launched.
    pub fn is_ready(&self, layout: &Layout) -> bool {
        self.registered == (1 << layout.cp) - 1
    }

    /// Asks for every rank that is neither registered nor asking.
    pub fn register_missing(&mut self, net: &mut Net, memory: &Memory) {
        for rank in 0..memory.layout.cp {
            let asking = self.pending.values().any(|pending| pending.ask == Ask::Register(rank));
            if self.registered >> rank & 1 == 0 && !asking {
                let op = self.ids.draw();
                let register = self.register_of(memory, rank);
                self.ask(net, Ask::Register(rank), op, register.into());
            }
        }
    }

    /// What rank `rank` brings.
    pub fn register_of(&self, memory: &Memory, rank: u8) -> Register {
        let mut regions = Vec::new();
        let mut offset = 0;
        for part in memory.layout.parts.iter().filter(|part| part.bytes > 0) {
            let page_bytes = part.bytes as u32;
            let (component, layer) = (part.component.clone(), part.layer);
            regions.push(Region { component, layer, offset, stride: u64::from(page_bytes), page_bytes });
            offset += u64::from(page_bytes) * u64::from(self.pages);
        }
        Register {
            rank: Rank(rank),
            engine: self.lives[usize::from(rank)],
            manifest: memory.layout.manifest.clone(),
            pages: self.pages,
            segment: format!("segment.{rank}"),
            segment_bytes: offset,
            regions,
            last_step: self.last_step(),
            born_ms: self.life_number.into(),
        }
    }

    fn last_step(&self) -> u64 {
        if self.tells_launched { self.launched } else { self.next_step - 1 }
    }

    /// The rank has a new life: what it knew of this engine is gone.
    pub fn rank_restarted(&mut self, net: &mut Net, memory: &Memory, rank: u8) {
        self.registered &= !(1 << rank);
        self.register_missing(net, memory);
    }

    /// Opens a session; its number.
    pub fn open(&mut self, net: &mut Net, layout: &Layout, spec: Spec) -> u64 {
        let id = self.ids.draw();
        self.sessions_made += 1;
        let number = self.sessions_made;
        let mut session = Session::new(id, spec, layout);
        self.truth.learn(session.spec.salt, &session.keys, &session.spec.tokens, layout.page_tokens, layout.lookahead);
        let keyable = session.keyable(layout, session.spec.prompt_tokens);
        session.keys_sent = keyable;
        let spec = &session.spec;
        let open = Open {
            tenant: spec.tenant.clone(),
            salt: spec.salt,
            keys: Keys(session.keys[..keyable as usize].to_vec()),
            tokens: spec.prompt_tokens,
            reserve_tokens: spec.chunk_tokens.min(spec.prompt_tokens),
            owners: Owners(spec.owners.clone()),
            priority: spec.priority,
            no_match: spec.no_match,
            handover: spec.handover.iter().cloned().collect(),
        };
        self.sessions.insert(number, session);
        self.ask(net, Ask::Open(number), id, open.into());
        number
    }

    /// Asks for more pages of a session.
    pub fn extend(&mut self, net: &mut Net, number: u64, tokens: u32, owners: Vec<u8>) {
        let Some(session) = self.sessions.get_mut(&number) else { return };
        session.extending = true;
        let extend = Extend {
            session: session.id,
            tenant: session.spec.tenant.clone(),
            tokens,
            owners: Owners(owners),
            first: session.pages.len() as u32,
        };
        let op = self.ids.draw();
        self.ask(net, Ask::Extend(number), op, extend.into());
    }

    /// Launches one forward for the sessions named, each with so many tokens; its number.
    pub fn step(&mut self, net: &mut Net, memory: &mut Memory, runs: &[(u64, u32, bool)]) -> Result<u64, Violation> {
        let number = self.next_step;
        self.next_step += 1;
        self.launched = number;
        let mut entries = Vec::new();
        let mut wire = Vec::new();
        for (session, tokens, draft) in runs {
            let (entry, on_wire) = self.entry(&memory.layout, number, *session, *tokens, *draft);
            entries.push(entry);
            wire.push(on_wire);
        }
        let op = self.ids.draw();
        let step = Step { number, entries: wire, engine: self.lives[0], all_layers_at_end: false };
        self.ask(net, Ask::Step(number), op, step.into());
        self.launch(net, memory, number, entries)?;
        Ok(number)
    }

    fn entry(&mut self, layout: &Layout, step: u64, number: u64, tokens: u32, draft: bool) -> (Entry, StepEntry) {
        let session = self.sessions.get_mut(&number).expect("a caller names sessions that live");
        let first = session.frontier;
        let positions = first / layout.page_tokens..(first + tokens).div_ceil(layout.page_tokens);
        let pages: Vec<_> = positions.map(|at| (at, session.pages[at as usize])).collect();
        let known = session.spec.prompt_tokens.max(first + tokens);
        let first_key = session.keys_sent;
        let keyable = session.keyable(layout, known).max(first_key);
        session.frontier += tokens;
        session.keys_sent = keyable;
        session.last_step = step;
        session.draftless |= !draft;
        let wire = StepEntry {
            session: session.id,
            first_token: first,
            tokens,
            pages: Pages(pages.iter().map(|(_, page)| *page).collect()),
            draft,
            keys: Keys(session.keys[first_key as usize..keyable as usize].to_vec()),
            first_key,
            load_read: std::mem::take(&mut session.load_read),
        };
        let epoch = session.epoch;
        (Entry { session: number, first, tokens, draft, epoch, pages }, wire)
    }

    /// Ends a session.
    pub fn close(&mut self, net: &mut Net, layout: &Layout, number: u64) {
        let Some(session) = self.sessions.get_mut(&number) else { return };
        session.phase = Phase::Ending;
        let known = (session.frontier + layout.lookahead).min(session.end()).max(session.spec.prompt_tokens);
        let first_key = session.keys_sent;
        let keyable = session.keyable(layout, known).max(first_key);
        let close = Close {
            session: session.id,
            tenant: session.spec.tenant.clone(),
            last_step: session.last_step,
            keys: Keys(session.keys[first_key as usize..keyable as usize].to_vec()),
            first_key,
            drafted: 0,
            accepted: 0,
            blob: session.spec.handover.as_ref().filter(|_| session.sends()).map(handover::blob).unwrap_or_default(),
        };
        let op = self.ids.draw();
        net.stats.closes += 1;
        self.ask(net, Ask::Close(number), op, close.into());
    }

    /// Gives a session up.
    pub fn abort(&mut self, net: &mut Net, number: u64) {
        let Some(session) = self.sessions.get_mut(&number) else { return };
        session.phase = Phase::Ending;
        let (tenant, last_step) = (session.spec.tenant.clone(), session.last_step);
        let abort = Abort { session: session.id, tenant, last_step };
        let op = self.ids.draw();
        net.stats.aborts += 1;
        self.ask(net, Ask::Abort(number), op, abort.into());
    }

    /// Sends what an operator or router would.
    pub fn plain(&mut self, net: &mut Net, request: Request) -> u64 {
        let op = self.ids.draw();
        self.ask(net, Ask::Plain, op, request)
    }

    /// Renews leases when it is time, and gives up sessions whose lease is over.
    pub fn keep_alive(&mut self, net: &mut Net, layout: &Layout) {
        if !self.is_ready(layout) {
            return;
        }
        if net.now >= self.heartbeat_at {
            self.heartbeat_at = net.now.plus_ms(self.lease_ms / 4);
            let op = OpId::default();
            let heartbeat = Heartbeat { engine: self.lives[0], last_step: self.last_step() };
            self.pending.retain(|_, pending| !matches!(pending.ask, Ask::Heartbeat(_)));
            self.ask(net, Ask::Heartbeat(net.now), op, heartbeat.into());
        }
        if net.now > self.lease_until {
            let live: Vec<u64> = self.with_phase(Phase::Live);
            live.into_iter().for_each(|number| self.abort(net, number));
        }
    }

    /// Numbers of the sessions in `phase`.
    pub fn with_phase(&self, phase: Phase) -> Vec<u64> {
        self.sessions.iter().filter(|(_, session)| session.phase == phase).map(|(number, _)| *number).collect()
    }

    /// L1 pages a live session names or a running step writes, with the session's number.
    pub fn used_pages(&self) -> impl Iterator<Item = (hicached_actors::protocol::PageId, u64)> + '_ {
        let live = self.sessions.iter().filter(|(_, session)| session.phase == Phase::Live);
        let of_sessions = live.flat_map(|(number, session)| session.pages.iter().map(|page| (*page, *number)));
        let entries = self.steps.values().flat_map(|step| &step.entries);
        of_sessions.chain(entries.flat_map(|entry| entry.pages.iter().map(|(_, page)| (*page, entry.session))))
    }

    /// Root of the keys of one salt of this world.
    pub fn salt(layout: &Layout, tenant_salt: &[u8]) -> Key {
        hicached_actors::protocol::KeyRoot {
            target_model: "target".to_owned(),
            draft_model: if layout.layers.1 > 0 { "draft".to_owned() } else { String::new() },
            weights_version: "1".to_owned(),
            manifest_digest: layout.manifest.digest(),
            page_tokens: layout.page_tokens,
            format_version: hicached_actors::protocol::FORMAT_VERSION,
            adapter: String::new(),
            tenant_salt: tenant_salt.to_vec(),
        }
        .key()
    }
}
