//! A daemon of one struct: it gives pages out, keeps what was closed, and plays the ranks.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

use hicached_actors::protocol::*;

use crate::scripted_bus::{Came, Reaction, ScriptedBus};
use crate::shm::{LOAD_RING_BYTES, LoadRing, Segment, Track, Words, word_value};

/// Where hits come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Serve {
    Nothing,
    FromL1,
    FromL2,
    /// The load fails after this many layers.
    FailedLoad(u32),
}

pub(super) struct FakeRank {
    pub(super) segment: Option<Arc<Segment>>,
    pub(super) regions: Vec<Region>,
    pub(super) words: Words,
    ring: LoadRing,
    pool_file: PathBuf,
    next_physical: u32,
}

#[derive(Default)]
pub(super) struct FakeSession {
    pub(super) pages: Vec<PageId>,
    pub(super) keys: BTreeMap<u32, Key>,
    tokens: u32,
    hits: u32,
    handover: Option<HandoverWish>,
}

/// What came over of one attempt of one transfer.
#[derive(Clone)]
pub(super) struct Parcel {
    pub(super) tokens: u32,
    pub(super) blob: Bin,
    taken: bool,
    /// Every region's bytes of each page.
    pub(super) records: Vec<Vec<Vec<u8>>>,
}

/// What daemons of several groups share: the parcels between them.
pub(super) type Between = Arc<Mutex<BTreeMap<(OpId, u32), Parcel>>>;

pub(super) struct State {
    pub(super) manifest: Manifest,
    pub(super) control: Incarnation,
    pub(super) ranks: Vec<FakeRank>,
    pub(super) serve: Serve,
    /// The next step counts for none of its sessions.
    pub(super) void: u32,
    /// No rank ever moves a word of a load.
    pub(super) dead_ranks: bool,
    /// Nobody is there.
    pub(super) away: bool,
    /// At the first request of this kind the daemon goes away; whether that one is still carried out.
    pub(super) leaves_at: Option<(&'static str, bool)>,
    /// Refusals to give before anything else, by kind of request.
    pub(super) refuse: VecDeque<(&'static str, Refusal)>,
    /// What the next request of this kind is answered with.
    pub(super) answer: Option<(&'static str, Answer)>,
    /// Everything that came but heartbeats.
    pub(super) log: Vec<(OpId, Request)>,
    pub(super) sessions: BTreeMap<OpId, FakeSession>,
    pub(super) l1: BTreeMap<Key, PageId>,
    host: BTreeMap<Key, Vec<Vec<u8>>>,
    pub(super) next_step: u64,
    pub(super) heartbeats: u64,
    pub(super) between: Between,
    /// A session that sends is closed when its pages have been taken.
    pub(super) sends_until_taken: bool,
    uses: u64,
    folder: PathBuf,
}

/// A shared handle on the daemon.
#[derive(Clone)]
pub(super) struct Daemon(Arc<Mutex<State>>);

impl Daemon {
    pub(super) fn new(manifest: Manifest) -> Self {
        let folder = std::env::temp_dir().join(format!("hicached-fake-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir(&folder).unwrap();
        let rank = |rank| {
            let pool_file = folder.join(format!("rank-{rank}"));
            let segment = Arc::new(Segment::create(&pool_file, 4_096 + LOAD_RING_BYTES).unwrap());
            FakeRank {
                segment: None,
                regions: Vec::new(),
                words: Words::at(segment.clone(), 0).unwrap(),
                ring: LoadRing::at(segment, 4_096).unwrap(),
                pool_file,
                next_physical: 1,
            }
        };
        Self(Arc::new(Mutex::new(State {
            ranks: (0..manifest.cp_size).map(rank).collect(),
            manifest,
            control: Incarnation([8; 16]),
            serve: Serve::Nothing,
            void: 0,
            dead_ranks: false,
            away: false,
            leaves_at: None,
            refuse: VecDeque::new(),
            answer: None,
            log: Vec::new(),
            sessions: BTreeMap::new(),
            l1: BTreeMap::new(),
            host: BTreeMap::new(),
            next_step: 1,
            heartbeats: 0,
            between: Between::default(),
            sends_until_taken: false,
            uses: 0,
            folder,
        })))
    }

    pub(super) fn bus(&self) -> Arc<ScriptedBus> {
        let daemon = self.clone();
        ScriptedBus::new(move |came| daemon.take(came))
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Kinds of what came since the last call.
    pub(super) fn kinds(&self) -> Vec<&'static str> {
        self.state().log.drain(..).map(|(_, request)| request.code()).collect()
    }

    /// What came since the last call, without its ops.
    pub(super) fn requests(&self) -> Vec<Request> {
        self.state().log.drain(..).map(|(_, request)| request).collect()
    }

    fn take(&self, Came { envelope, request, .. }: Came) -> Reaction {
        let (mut state, request) = (self.state(), request.expect("engines send requests"));
        let leaves = state.leaves_at.take_if(|(kind, _)| *kind == request.code());
        state.away |= leaves.is_some();
        if state.away && leaves.is_none_or(|(_, carried_out)| !carried_out) {
            return Reaction::Nobody;
        }
        let reaction = self.react(&mut state, envelope.op, envelope.control, request);
        if leaves.is_some() { Reaction::Nobody } else { reaction }
    }

    fn react(&self, state: &mut State, op: OpId, meant: Incarnation, request: Request) -> Reaction {
        let control = state.control;
        if let Request::Heartbeat(_) = request {
            state.heartbeats += 1;
            if meant != control {
                return Answer::from(Refusal::from(NewIncarnation { old: meant, new: control })).into();
            }
            return Done { control }.into();
        }
        state.log.push((op, request.clone()));
        if state.refuse.front().is_some_and(|(kind, _)| *kind == request.code()) {
            let (_, refusal) = state.refuse.pop_front().unwrap();
            return Answer::from(refusal).into();
        }
        if let Some((_, answer)) = state.answer.take_if(|(kind, _)| *kind == request.code()) {
            return answer.into();
        }
        if meant != control && request.code() != "register" {
            return Answer::from(Refusal::from(NewIncarnation { old: meant, new: control })).into();
        }
        match request {
            Request::Register(register) => state.register(register).into(),
            Request::Open(open) => {
                let opened = state.open(op, open);
                if let Some(load) = opened.load.first().filter(|_| !state.dead_ranks) {
                    tokio::spawn(self.clone().load(op, load.clone()));
                }
                opened.into()
            }
            Request::Extend(extend) => state.extend(extend).into(),
            Request::Step(step) => state.step(step).into(),
            Request::Close(close) => match state.sends(&close) {
                true => Reaction::Silence,
                false => state.close(close).into(),
            },
            Request::Handover(handover) => state.handover(handover),
            Request::Abort(abort) => {
                state.sessions.remove(&abort.session);
                Done { control }.into()
            }
            other => panic!("nobody expects {}", other.code()),
        }
    }

    /// Plays the ranks of a load: layer after layer, giving way in between.
    async fn load(self, session: OpId, load: LoadTicket) {
        for layer in 0..load.layers {
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            let state = self.state();
            let failed = matches!(state.serve, Serve::FailedLoad(after) if after == layer);
            state.load_layer(&state.sessions[&session], &load, layer);
            for (rank, fake) in state.ranks.iter().enumerate() {
                let (value, uses) = (load.base + u64::from(layer) + 1, load.base / (u64::from(load.layers) + 1));
                if failed && rank + 1 == state.ranks.len() {
                    fake.ring.fail(load.slot, uses, load.base + u64::from(load.layers)).unwrap();
                    return;
                }
                if layer + 1 == load.layers {
                    fake.ring.finish(load.slot, uses).unwrap();
                }
                fake.ring.advance(load.slot, value);
            }
        }
    }
}

impl State {
    fn register(&mut self, register: Register) -> Answer {
        let rank = &mut self.ranks[usize::from(register.rank.0)];
        rank.segment = Some(Arc::new(Segment::open(register.segment.as_ref()).unwrap()));
        rank.regions = register.regions;
        self.next_step = self.next_step.max(register.last_step + 1);
        let pool_file = rank.pool_file.display().to_string();
        let (control, next_step) = (self.control, self.next_step);
        let (words_offset, load_slots_offset) = (0, 4_096);
        Registered {
            control,
            next_step,
            pool_file,
            words_offset,
            load_slots_offset,
            peers: vec![],
            lease_ms: 30_000,
            peer_regions: vec![],
        }
        .into()
    }

    fn reserve(&mut self, owners: impl IntoIterator<Item = u8>) -> Vec<PageId> {
        let cp_size = self.manifest.cp_size;
        let mut page = |owner: u8| {
            let rank = &mut self.ranks[usize::from(owner)];
            rank.next_physical += 1;
            PageId::at(Rank(owner), rank.next_physical - 1, cp_size)
        };
        owners.into_iter().map(&mut page).collect()
    }

    fn open(&mut self, op: OpId, open: Open) -> Opened {
        let (cp_size, page_tokens) = (u32::from(self.manifest.cp_size), self.manifest.page_tokens);
        let known = |key: &&Key| match self.serve {
            Serve::Nothing => false,
            Serve::FromL1 => self.l1.contains_key(key),
            Serve::FromL2 | Serve::FailedLoad(_) => self.host.contains_key(key),
        };
        let hits = open.keys.0.iter().take_while(known).count() as u32;
        let wanted = open.tokens.min(hits * page_tokens + open.reserve_tokens).div_ceil(page_tokens);
        let from_l1 = if self.serve == Serve::FromL1 { hits } else { 0 };
        let mut pages: Vec<PageId> = open.keys.0[..from_l1 as usize].iter().map(|key| self.l1[key]).collect();
        pages.extend(self.reserve((from_l1..wanted).map(|position| (position % cp_size) as u8)));
        let keys = (0..).zip(open.keys.0).collect();
        let (tokens, handover) = (open.tokens, open.handover.into_iter().next());
        self.sessions.insert(op, FakeSession { pages: pages.clone(), keys, tokens, hits, handover });
        let l2_hit = hits - from_l1;
        let (target, draft) = self.manifest.layers();
        let load = (l2_hit > 0).then(|| {
            self.uses += 1;
            let (slot, layers) = (3, target + draft);
            LoadTicket { op, slot, base: self.uses * u64::from(layers + 1), layers, first: from_l1, pages: l2_hit }
        });
        let (control, load, pages) = (self.control, load.into_iter().collect(), Pages(pages));
        Opened { control, lease_ms: 30_000, l1_hit: from_l1, l2_hit, pages, load }
    }

    fn extend(&mut self, extend: Extend) -> Extended {
        let (cp_size, page_tokens) = (u32::from(self.manifest.cp_size), self.manifest.page_tokens);
        let count = extend.tokens.div_ceil(page_tokens);
        let mut owners = extend.owners.0;
        if owners.is_empty() {
            owners = (extend.first..extend.first + count).map(|position| (position % cp_size) as u8).collect();
        }
        let pages = self.reserve(owners);
        let session = self.sessions.get_mut(&extend.session).unwrap();
        assert_eq!(session.pages.len() as u32, extend.first, "pages are asked for in order");
        session.pages.extend(&pages);
        Extended { pages: Pages(pages) }
    }

    fn step(&mut self, step: Step) -> Answer {
        if step.number != self.next_step {
            return Refusal::from(Gap { expected: self.next_step, got: step.number }).into();
        }
        self.next_step += 1;
        if self.void > 0 {
            self.void -= 1;
            let void = step.entries.iter().map(|entry| entry.session).collect();
            return Stepped { number: step.number, backups: vec![], void }.into();
        }
        let mut void = Vec::new();
        for entry in step.entries {
            match self.sessions.get_mut(&entry.session) {
                Some(session) => session.keys.extend((entry.first_key..).zip(entry.keys.0)),
                None => void.push(entry.session),
            }
        }
        Stepped { number: step.number, backups: vec![], void }.into()
    }

    fn close(&mut self, close: Close) -> Closed {
        let (target, draft) = self.manifest.layers();
        for rank in self.ranks.iter().filter(|_| close.last_step > 0) {
            for (track, layers) in [(Track::Target, target), (Track::Draft, draft)] {
                assert!(rank.words.value(track) >= word_value(close.last_step, layers, layers), "{track:?} has passed");
            }
        }
        let mut session = self.sessions.remove(&close.session).unwrap();
        session.keys.extend((close.first_key..).zip(close.keys.0));
        for (position, key) in &session.keys {
            let Some(page) = session.pages.get(*position as usize) else { continue };
            self.l1.insert(*key, *page);
            self.host.insert(*key, self.record(*page));
        }
        let l1_pages = session.keys.len() as u32;
        Closed { l1_pages, l2_pages: 0, pending: 0, duplicates: 0, uncached: 0, reason: String::new() }
    }

    /// Sends the pages of a session that is closed; whether it has to wait for them to be taken.
    fn sends(&self, close: &Close) -> bool {
        let session = &self.sessions[&close.session];
        let Some(wish) = session.handover.as_ref().filter(|wish| !wish.to.is_empty()) else { return false };
        let records = session.pages.iter().map(|page| self.record(*page)).collect();
        let parcel = Parcel { tokens: session.tokens, blob: close.blob.clone(), taken: false, records };
        let mut between = self.between.lock().unwrap();
        let parcel = between.entry((wish.transfer, wish.attempt)).or_insert(parcel);
        self.sends_until_taken && !parcel.taken
    }

    /// Silent until the other group has closed its session.
    fn handover(&mut self, Handover { transfer, attempt, .. }: Handover) -> Reaction {
        let wish = HandoverWish { transfer, attempt, to: String::new() };
        let receives = |session: &&FakeSession| session.handover.as_ref() == Some(&wish);
        let Some(session) = self.sessions.values().find(receives) else {
            return Answer::from(Refusal::from(Unknown::new("transfer", transfer))).into();
        };
        let mut between = self.between.lock().unwrap();
        let Some(parcel) = between.get_mut(&(transfer, attempt)) else { return Reaction::Silence };
        parcel.taken = true;
        let came = session.pages.iter().zip(&parcel.records).skip(session.hits as usize);
        for (page, record) in came {
            let (rank, physical) = self.place(*page);
            for (region, bytes) in rank.regions.iter().zip(record) {
                let offset = region.offset + physical * region.stride;
                rank.segment.as_ref().unwrap().write(offset, bytes).unwrap();
            }
        }
        let received = session.pages.len() as u32 - session.hits;
        Answer::from(HandedOver { tokens: parcel.tokens, received, blob: parcel.blob.clone(), components: vec![] })
            .into()
    }

    /// Every region's bytes of `page`.
    pub(super) fn record(&self, page: PageId) -> Vec<Vec<u8>> {
        let (rank, physical) = self.place(page);
        let read = |region: &Region| {
            let mut bytes = vec![0; region.page_bytes as usize];
            let offset = region.offset + physical * region.stride;
            rank.segment.as_ref().unwrap().read(offset, &mut bytes).unwrap();
            bytes
        };
        rank.regions.iter().map(read).collect()
    }

    /// Overwrites the first word of region `region` of `page`.
    pub(super) fn spoil(&self, page: PageId, region: usize) {
        let (rank, physical) = self.place(page);
        let region = &rank.regions[region];
        rank.segment.as_ref().unwrap().write(region.offset + physical * region.stride, &[0xee; 8]).unwrap();
    }

    fn place(&self, page: PageId) -> (&FakeRank, u64) {
        let cp_size = self.manifest.cp_size;
        (&self.ranks[usize::from(page.owner(cp_size).0)], u64::from(page.physical(cp_size)))
    }

    fn load_layer(&self, session: &FakeSession, load: &LoadTicket, layer: u32) {
        let (target, _) = self.manifest.layers();
        for position in load.first..load.first + load.pages {
            let (rank, physical) = self.place(session.pages[position as usize]);
            let record = &self.host[&session.keys[&position]];
            for (region, bytes) in rank.regions.iter().zip(record) {
                let of_load = if region.component.starts_with("draft.") { target } else { 0 } + region.layer;
                if of_load == layer {
                    let offset = region.offset + physical * region.stride;
                    rank.segment.as_ref().unwrap().write(offset, bytes).unwrap();
                }
            }
        }
    }
}

impl Drop for State {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.folder).ok();
    }
}
