//! A world for scenarios: fixed sizes, no faults, and an engine that does what a test says.

use hicached_actors::faults::Fault;
use hicached_actors::prefix_index::tree::PageView;
use hicached_actors::protocol::{
    Address, AllocatorIn, Answer, Closed, Flush, Flushed, Free, HostSlot, Key, Keys, Owners, PageId, Pages, Probe,
    Probed, Rank, Refusal, Request, Slots,
};

use crate::chance::Chance;
use crate::engine::{Engine, Phase, Session, Spec};
use crate::group;
use crate::mix::{Mix, Sizes};
use crate::net::Hold;
use crate::world::Sim;

/// A prompt by what it is made of: (text, tokens) one after the other; equal texts give equal tokens.
#[derive(Clone, Debug)]
pub struct Prompt {
    tokens: Vec<u32>,
    draft: bool,
    owners: Vec<u8>,
    chunk_tokens: u32,
}

impl Prompt {
    /// The first `tokens` tokens of `text`.
    pub fn new(text: u32, tokens: u32) -> Self {
        Self { tokens: Vec::new(), draft: true, owners: Vec::new(), chunk_tokens: u32::MAX }.then(text, tokens)
    }

    /// Followed by the first `tokens` tokens of `text`.
    #[must_use]
    pub fn then(mut self, text: u32, tokens: u32) -> Self {
        self.tokens.extend((0..tokens).map(|at| text * 100_000 + at));
        self
    }

    /// Its draft never runs.
    #[must_use]
    pub const fn without_draft(mut self) -> Self {
        self.draft = false;
        self
    }

    /// What a session is asked to be that computes it under this root.
    pub(crate) fn spec(&self, salt: Key) -> Spec {
        let prompt_tokens = self.tokens.len() as u32;
        Spec {
            tenant: "tenant".to_owned(),
            salt,
            tokens: self.tokens.clone(),
            prompt_tokens,
            chunk_tokens: self.chunk_tokens.min(prompt_tokens),
            draft: self.draft,
            owners: self.owners.clone(),
            no_match: false,
            priority: 0,
            handover: None,
        }
    }

    /// Owners of the pages that its open reserves.
    #[must_use]
    pub fn owned_by(mut self, owners: &[u8]) -> Self {
        self.owners = owners.to_vec();
        self
    }

    /// Runs in chunks of so many tokens.
    #[must_use]
    pub const fn in_chunks_of(mut self, tokens: u32) -> Self {
        self.chunk_tokens = tokens;
        self
    }
}

/// A scripted world. Every method panics when something happens that must never be.
pub struct Script {
    /// The world.
    pub sim: Sim,
}

impl Script {
    /// A group of these sizes whose engine has registered.
    pub fn new(sizes: Sizes) -> Self {
        Self::with_fault(sizes, Fault::None)
    }

    /// The same with a fault planted in its machines.
    pub fn with_fault(sizes: Sizes, fault: Fault) -> Self {
        let mut script = Self::unregistered(sizes, fault);
        script.until_serving();
        script
    }

    /// Waits until every rank is registered and sessions can begin.
    pub fn until_serving(&mut self) {
        self.until("serving", |sim| sim.engine.is_ready(&sim.memory.layout) && group::index(sim).is_serving());
    }

    /// A group whose engine is still on its way.
    pub fn unregistered(sizes: Sizes, fault: Fault) -> Self {
        let mut sim = Sim::new(sizes, Mix::calm(100), Chance::new(1), group::maker(fault));
        sim.scripted = true;
        sim.engine.patient = true;
        Self { sim }
    }

    /// Lets the world run for `ms`.
    pub fn run_ms(&mut self, ms: u64) {
        let until = self.sim.net.now.plus_ms(ms);
        while self.sim.happen(until).unwrap_or_else(|found| panic!("{found:?}")) {}
        self.sim.net.now = until;
    }

    /// Lets everything that is under way come to rest.
    pub fn settle(&mut self) {
        self.run_ms(SETTLE_MS);
    }

    /// Lets the world run until `done`.
    pub fn until(&mut self, what: &str, done: impl Fn(&Sim) -> bool) {
        let until = self.sim.net.now.plus_ms(WAIT_MS);
        while !done(&self.sim) {
            let happened = self.sim.happen(until).unwrap_or_else(|found| panic!("{found:?}"));
            assert!(happened, "{what} never came: {}", self.sim.unfinished());
        }
    }

    /// Root of the keys of the only tenant.
    pub fn salt(&self) -> Key {
        Engine::salt(&self.sim.memory.layout, b"salt")
    }

    /// Asks for a session without waiting; its number.
    pub fn ask_open(&mut self, prompt: &Prompt) -> u64 {
        let spec = prompt.spec(self.salt());
        let layout = self.sim.memory.layout.clone();
        self.sim.engine.open(&mut self.sim.net, &layout, spec)
    }

    /// Opens a session; its number, or the refusal.
    ///
    /// # Errors
    /// The refusal of the index.
    pub fn open(&mut self, prompt: &Prompt) -> Result<u64, Refusal> {
        let number = self.ask_open(prompt);
        self.until("opened", |sim| sim.engine.sessions[&number].phase != Phase::Opening);
        match self.sim.engine.refused.remove(&number) {
            None => Ok(number),
            Some(refusal) => Err(refusal),
        }
    }

    /// A session.
    pub fn session(&self, number: u64) -> &Session {
        &self.sim.engine.sessions[&number]
    }

    /// Pages that a session found in L1 and in L2.
    pub fn hits(&self, number: u64) -> (u32, u32) {
        (self.session(number).hit_pages, self.session(number).load_pages)
    }

    /// Launches one forward over the next tokens of these sessions; its number.
    pub fn launch(&mut self, runs: &[(u64, u32)]) -> u64 {
        let runs: Vec<_> =
            runs.iter().map(|(session, tokens)| (*session, *tokens, self.session(*session).spec.draft)).collect();
        let step = self.sim.engine.step(&mut self.sim.net, &mut self.sim.memory, &runs);
        let step = step.unwrap_or_else(|found| panic!("{found:?}"));
        self.sim.follow_words().unwrap_or_else(|found| panic!("{found:?}"));
        step
    }

    /// Runs the whole prompt of a session and waits for it.
    pub fn compute(&mut self, number: u64) {
        loop {
            let tokens = self.session(number).next_tokens(&self.sim.memory.layout);
            if tokens == 0 && self.session(number).frontier == self.session(number).end() {
                return;
            }
            if tokens == 0 {
                let left = self.session(number).end() - self.session(number).frontier;
                self.sim.engine.extend(&mut self.sim.net, number, left, Vec::new());
                self.until("extended", |sim| !sim.engine.sessions[&number].extending);
                continue;
            }
            let step = self.launch(&[(number, tokens)]);
            self.until("step", |sim| sim.engine.last_done >= step);
        }
    }

    /// Ends a session.
    pub fn close(&mut self, number: u64) -> Closed {
        let layout = self.sim.memory.layout.clone();
        self.sim.engine.close(&mut self.sim.net, &layout, number);
        self.until("closed", |sim| sim.engine.sessions[&number].phase == Phase::Ended);
        self.sim.engine.closed.remove(&number).unwrap_or_else(|| panic!("{:?}", self.sim.engine.refused.get(&number)))
    }

    /// Gives a session up and waits for the answer.
    pub fn abort(&mut self, number: u64) {
        self.ask_abort(number);
        self.until("aborted", |sim| sim.engine.sessions[&number].phase == Phase::Ended);
    }

    /// Gives a session up.
    pub fn ask_abort(&mut self, number: u64) {
        self.sim.engine.abort(&mut self.sim.net, number);
    }

    /// `open`, `step`, `close`, and whatever follows from them.
    pub fn insert(&mut self, prompt: &Prompt) -> Closed {
        let number = self.open(prompt).unwrap_or_else(|refusal| panic!("{refusal:?}"));
        self.compute(number);
        let closed = self.close(number);
        self.settle();
        closed
    }

    /// Asks the index.
    pub fn request(&mut self, request: Request) -> Answer {
        self.sim.request(request).unwrap_or_else(|found| panic!("{found:?}"))
    }

    /// Pages of a prompt that a probe finds in L1, and further ones in L2.
    pub fn probe(&mut self, prompt: &Prompt) -> (u32, u32) {
        let salt = self.salt();
        let keys = self.keys(prompt);
        let probe = Probe { tenant: "tenant".to_owned(), salt, keys: Keys(keys) };
        match self.request(probe.into()) {
            Answer::Probed(Probed { l1, l2 }) => (l1, l2),
            other => panic!("{other:?}"),
        }
    }

    /// Tokens of a prompt that match, in either tier.
    pub fn matched(&mut self, prompt: &Prompt) -> u32 {
        let (l1, l2) = self.probe(prompt);
        (l1 + l2) * self.sim.sizes.page_tokens
    }

    /// Asks the evictor for pages of each lane and waits for what follows.
    pub fn evict(&mut self, tier: u8, wants: &[u32]) {
        self.sim.make_room(tier, wants.to_vec());
        self.settle();
    }

    /// Gives up whatever of a tier nothing uses; 0 is both tiers.
    pub fn flush(&mut self, tier: u8) -> Flushed {
        self.flush_with(Flush { tier, salt: Vec::new(), prefix: Keys::default(), quarantined: false })
    }

    /// The same, of quarantined records only.
    pub fn flush_quarantined(&mut self) -> Flushed {
        self.flush_with(Flush { tier: 0, salt: Vec::new(), prefix: Keys::default(), quarantined: true })
    }

    fn flush_with(&mut self, flush: Flush) -> Flushed {
        match self.request(flush.into()) {
            Answer::Flushed(flushed) => flushed,
            other => panic!("{other:?}"),
        }
    }

    /// Keeps messages of one kind back.
    pub fn hold(&mut self, kind: &str) {
        self.sim.net.hold(Hold { kind: kind.to_owned(), from: None, to: None });
    }

    /// Delivers them.
    pub fn release(&mut self, kind: &str) {
        self.sim.net.release(kind);
    }

    /// Free pages of each lane of a tier.
    pub fn free(&self, tier: u8) -> Vec<u32> {
        group::free_pages(&self.sim, tier)
    }

    /// A figure of a control machine.
    pub fn figure(&self, at: Address, name: &str) -> u64 {
        self.sim.control.figure(at, name)
    }

    /// Whether a page of L1 holds what position `at` of the prompt stands for, in every part.
    pub fn is_right(&self, number: u64, at: u32) -> bool {
        let (session, memory) = (self.session(number), &self.sim.memory);
        memory.l1_wrong(session.pages[at as usize], &session.text(&memory.layout, at)).is_none()
    }

    /// Sealed host slots, by rank, whose bytes are right.
    pub fn sealed_slots(&self) -> Vec<(Rank, HostSlot)> {
        let memory = &self.sim.memory;
        let mut slots = Vec::new();
        for (rank, pool) in memory.pools.iter().enumerate() {
            for (slot, row) in pool.rows.iter().enumerate().filter(|(_, row)| row.sealed) {
                let (rank, slot) = (Rank(rank as u8), HostSlot(slot as u32));
                let text = self.sim.engine.truth.text(row.key);
                if text.is_some_and(|text| memory.l2_wrong(rank, slot, &text).is_none()) {
                    slots.push((rank, slot));
                }
            }
        }
        slots
    }

    /// Block table of a session.
    pub fn pages(&self, number: u64) -> Vec<PageId> {
        self.session(number).pages.clone()
    }

    /// Everything ends, everything is flushed, nothing is left.
    pub fn end(&mut self) {
        let ended = self.sim.engine.with_phase(Phase::Ended);
        ended.iter().for_each(|number| {
            self.sim.engine.sessions.remove(number);
        });
        self.sim.end().unwrap_or_else(|found| panic!("{found:?}"));
    }

    /// Keys of a prompt's pages.
    pub fn keys(&self, prompt: &Prompt) -> Vec<Key> {
        let layout = &self.sim.memory.layout;
        let (page, lookahead) = (layout.page_tokens, layout.lookahead);
        hicached_actors::protocol::page_keys(self.salt(), &prompt.tokens, page, lookahead, |_| &[])
    }

    fn views(&self, prompt: &Prompt) -> Vec<Option<PageView>> {
        let tree = group::index(&self.sim).tree();
        self.keys(prompt).iter().map(|key| tree.find(key).map(|node| tree.page(node))).collect()
    }

    /// Whether each page of a prompt has an L1 and an L2 copy.
    pub fn resident(&self, prompt: &Prompt) -> Vec<(bool, bool)> {
        let copies =
            |view: Option<PageView>| view.map_or((false, false), |view| (view.l1.is_some(), view.l2.is_some()));
        self.views(prompt).into_iter().map(copies).collect()
    }

    /// Host slots of a prompt's pages, those without one left out.
    pub fn slots(&self, prompt: &Prompt) -> Vec<(Rank, HostSlot)> {
        self.views(prompt).into_iter().flatten().filter_map(|view| view.l2).collect()
    }

    /// Pins of a prompt's pages in L1 and L2.
    pub fn pins(&self, prompt: &Prompt) -> Vec<[u16; 2]> {
        self.views(prompt).into_iter().flatten().map(|view| view.pins).collect()
    }

    /// Pages the index has in a tier.
    pub fn cached(&self, tier: u8) -> u32 {
        self.figure(Address::Index, if tier == 1 { "index.cached_l1" } else { "index.cached_l2" }) as u32
    }

    /// Copies and streams that were stopped go on.
    pub fn go_on(&mut self) {
        self.sim.engine.stop_after = None;
        let Sim { net, memory, ranks, engine, .. } = &mut self.sim;
        ranks.iter_mut().for_each(|rank| rank.go_on(net, memory));
        for rank in 0..memory.layout.cp {
            engine.run_stream(net, memory, Rank(rank)).unwrap_or_else(|found| panic!("{found:?}"));
        }
    }

    /// Asks for more pages of a session and waits for them.
    pub fn extend(&mut self, number: u64, tokens: u32) {
        self.sim.engine.extend(&mut self.sim.net, number, tokens, Vec::new());
        self.until("extended", |sim| !sim.engine.sessions[&number].extending);
    }

    /// Somebody who owns nothing tells the allocator that a page is free.
    pub fn free_from_outside(&mut self, page: PageId) {
        let free =
            AllocatorIn::Free(Free { l1: Pages(vec![page]), l2_owners: Owners::default(), l2: Slots::default() });
        let op = self.sim.engine.ids.draw();
        self.sim.say(Address::Allocator, op, free.code(), free.encode_body());
        self.settle();
    }

    /// The host of a rank is replaced: its pool holds one page only, its engine begins again.
    pub fn new_host_with_only(&mut self, rank: Rank, prompt: &Prompt) {
        let slot = self.slots(prompt)[0].1;
        let at = usize::from(rank.0);
        let row = self.sim.memory.pools[at].rows[slot.0 as usize].clone();
        let parts = self.sim.memory.layout.parts.len();
        let bytes: Vec<Vec<u8>> = (0..parts).map(|part| self.sim.memory.l2(rank, slot, part).to_vec()).collect();
        self.sim.lose_host(rank);
        self.sim.memory.pools[at].rows[slot.0 as usize] = row;
        for (part, bytes) in bytes.iter().enumerate() {
            self.sim.memory.l2_mut(rank, slot, part).copy_from_slice(bytes);
        }
    }

    /// Delivers one message of those kept back to each receiver.
    pub fn release_once(&mut self, kind: &str) {
        self.sim.net.release_each_once(kind);
    }
}

/// Rest: longer than any conversation without faults takes, with one round of repeats.
const SETTLE_MS: u64 = 400;

/// Nothing a test waits for takes longer.
const WAIT_MS: u64 = 60_000;
