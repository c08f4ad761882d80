//! Two groups of one test: the pools of the ranks that send and of the one that receives, and the halves between them.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use hicached::wire::{
    Backend, Buffer, Buffers, Event, Events, Grant, GrantSpec, Landing, Launch, LayersReady, Name, Pool, PushEnd,
    PushKey, PushOrder,
};
use hicached_actors::protocol::{OpId, PushFigures, Rank};
use hicached_client::shm::Segment;
use hicached_kernels::layout::{Component, L1Layout, L1Region, Layout, RegisteredRegion};

/// What a check found wrong.
pub(crate) type Verdict = Result<(), String>;

/// Longer than anything here takes on a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(20);
/// What stands where nobody has written.
pub(crate) const POISON: u8 = 0x5A;
/// What stands in source pages that are not of the request, or not computed yet.
pub(crate) const STALE: u8 = 0xA5;

/// A folder in shared memory, removed at the end.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let base = if PathBuf::from("/dev/shm").is_dir() { "/dev/shm".into() } else { std::env::temp_dir() };
        let path = base.join(format!("hicached-wire-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// One attempt of a request: what is sent from where to where.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) name: Name,
    /// Owner and source page of each position.
    pub(crate) owners: Vec<u8>,
    pub(crate) sources: Vec<u32>,
    /// Positions before this one are there already.
    pub(crate) prefix: u32,
    /// Destination page of each position from `prefix` on.
    pub(crate) slots: Vec<u32>,
}

impl Plan {
    /// A request whose pages stand side by side at both ends.
    pub(crate) fn contiguous(owners: &[u8]) -> Self {
        let mut next = [1; 64];
        let sources = owners.iter().map(|owner| {
            next[usize::from(*owner)] += 1;
            next[usize::from(*owner)] - 1
        });
        let name = Name { transfer: OpId([7; 16]), attempt: 1 };
        let slots = (1..=owners.len() as u32).collect();
        Self { name, owners: owners.to_vec(), sources: sources.collect(), prefix: 0, slots }
    }

    /// The same with source and destination pages drawn from `pages`.
    pub(crate) fn scattered(mut self, pages: u32, seed: u64) -> Self {
        let mut drawn = shuffled(pages, seed);
        for rank in 0..64 {
            let mut of_rank = shuffled(pages, seed ^ (u64::from(rank) + 1) << 32).into_iter();
            for (owner, source) in self.owners.iter().zip(&mut self.sources) {
                if *owner == rank {
                    *source = of_rank.next().expect("more pages than positions");
                }
            }
        }
        drawn.truncate(self.slots.len());
        self.slots = drawn;
        self
    }

    pub(crate) fn wanted(&self) -> impl Iterator<Item = (usize, u32)> {
        (self.prefix..self.owners.len() as u32).map(|position| (position as usize, position))
    }
}

/// Pages `1..pages` in an order that a seed gives.
pub(crate) fn shuffled(pages: u32, seed: u64) -> Vec<u32> {
    let mut state = seed ^ 0x9E37_79B9_7F4A_7C15;
    let mut all: Vec<u32> = (1..pages).collect();
    for last in (1..all.len()).rev() {
        let at = hicached_actors::calls::draw(&mut state) % (last as u64 + 1);
        all.swap(last, at as usize);
    }
    all
}

/// A sending rank.
pub(crate) struct Sender {
    pub(crate) pool: Arc<Pool>,
    pub(crate) launch: Box<dyn Launch>,
    pub(crate) events: Receiver<Event>,
}

/// A receiving rank, and the ranks that send to it.
pub(crate) struct World {
    pub(crate) pool: Arc<Pool>,
    pub(crate) landing: Box<dyn Landing>,
    pub(crate) events: Receiver<Event>,
    pub(crate) senders: Vec<Sender>,
    pages: u32,
    folder: Scratch,
}

impl World {
    /// `cp_size` ranks that send over `backend` to one that receives; pools of `pages` pages. The receiver's regions
    /// stand in another order than the senders'.
    pub(crate) fn new(backend: &dyn Backend, cp_size: u8, pages: u32) -> Self {
        let folder = Scratch::new();
        let layout = layout();
        let pool = pool(&folder, "decode", &layout, &reversed(&layout, pages), POISON);
        let (to, events) = channel();
        let landing = backend.landing(Events::new(to, Arc::new(|| ()))).expect("a landing");
        let mut world = Self { pool, landing, events, senders: Vec::new(), pages, folder };
        for _ in 0..cp_size {
            world.add_sender(backend);
        }
        world
    }

    /// One more rank that sends.
    pub(crate) fn add_sender(&mut self, backend: &dyn Backend) {
        let layout = layout();
        let name = format!("prefill-{}", self.senders.len());
        let pool = pool(&self.folder, &name, &layout, &L1Layout::packed(&layout, self.pages), STALE);
        let (to, events) = channel();
        let launch = backend.launch(Events::new(to, Arc::new(|| ()))).expect("a launch");
        self.senders.push(Sender { pool, launch, events });
    }

    /// Writes the bytes of `plan` into layers `from` of the sending pools.
    pub(crate) fn compute(&self, plan: &Plan, layers: std::ops::Range<u32>) {
        for (at, position) in plan.wanted() {
            let sender = &self.senders[usize::from(plan.owners[at])];
            for buffer in sender.pool.buffers().as_slice().iter().filter(|buffer| layers.contains(&buffer.layer)) {
                write(&sender.pool, buffer, plan.sources[at], &pattern(plan.name, buffer, position));
            }
        }
    }

    pub(crate) fn grant(&self, plan: &Plan) -> Result<Grant, String> {
        let (positions, pages) = (plan.wanted().map(|(_, position)| position).collect(), plan.slots.clone());
        let spec = GrantSpec { name: plan.name, positions, pages, pool: self.pool.clone() };
        self.landing.accept(spec).map_err(|refusal| format!("the grant is refused: {refusal:?}"))
    }

    /// What `rank` sends of `plan`, as part 0 with every layer ready.
    pub(crate) fn order(&self, plan: &Plan, grant: &Grant, rank: u8) -> PushOrder {
        let of_rank = || plan.wanted().filter(|(at, _)| plan.owners[*at] == rank);
        PushOrder {
            key: PushKey { name: plan.name, part: 0 },
            rank: Rank(rank),
            source: self.senders[usize::from(rank)].pool.clone(),
            positions: of_rank().map(|(_, position)| position).collect(),
            pages: of_rank().map(|(at, _)| plan.sources[at]).collect(),
            slots: of_rank().map(|(at, _)| plan.slots[at - plan.prefix as usize]).collect(),
            endpoint: grant.endpoint.clone(),
            secret: grant.secret,
            deadline: LONG,
            ready: LayersReady::ALL,
        }
    }

    /// Pushes `order` and waits for its end.
    pub(crate) fn push(&self, order: PushOrder) -> Result<(PushEnd, PushFigures), String> {
        let rank = order.rank;
        self.begin(order)?;
        self.end_of(rank)
    }

    pub(crate) fn begin(&self, order: PushOrder) -> Verdict {
        let launch = &self.senders[usize::from(order.rank.0)].launch;
        launch.push(order).map_err(|refusal| format!("the push is refused: {refusal:?}"))
    }

    /// Waits for the end of a push of `rank`.
    pub(crate) fn end_of(&self, rank: Rank) -> Result<(PushEnd, PushFigures), String> {
        match self.event_of(rank)? {
            Event::Pushed(_, end, figures) => Ok((end, figures)),
            other => Err(format!("{rank:?} says {other:?}")),
        }
    }

    pub(crate) fn event_of(&self, rank: Rank) -> Result<Event, String> {
        let event = self.senders[usize::from(rank.0)].events.recv_timeout(LONG);
        event.map_err(|_| format!("{rank:?} says nothing"))
    }

    /// Every rank sends its part of `plan`; all complete. With what each counted.
    pub(crate) fn transfer(&self, plan: &Plan) -> Result<Vec<PushFigures>, String> {
        self.compute(plan, 0..u32::MAX);
        let grant = self.grant(plan)?;
        for rank in 0..self.senders.len() as u8 {
            self.begin(self.order(plan, &grant, rank))?;
        }
        let ends = (0..self.senders.len() as u8).map(|rank| match self.end_of(Rank(rank))? {
            (PushEnd::Complete, figures) => Ok(figures),
            (end, _) => Err(format!("rank {rank} ends with {end:?}")),
        });
        ends.collect()
    }

    /// The report names the owner of each position.
    pub(crate) fn owners_are_reported(&self, plan: &Plan) -> Verdict {
        let report = self.landing.report(plan.name).ok_or("no report")?;
        let owners = &plan.owners[plan.prefix as usize..];
        if report.owners != owners || report.missing.is_some() {
            return Err(format!("reported {:?} and {:?}, owned by {owners:?}", report.owners, report.missing));
        }
        Ok(())
    }

    /// The bytes of `plan` stand where they belong, and poison everywhere else.
    pub(crate) fn bytes_are_right(&self, plan: &Plan) -> Verdict {
        self.bytes_are(|buffer, page| {
            let at = plan.slots.iter().position(|slot| *slot == page)?;
            Some(pattern(plan.name, buffer, plan.prefix + at as u32))
        })
    }

    /// Nothing was written anywhere.
    pub(crate) fn is_untouched(&self) -> Verdict {
        self.bytes_are(|_, _| None)
    }

    /// Every page of every buffer holds what `expected` says, or poison.
    pub(crate) fn bytes_are(&self, expected: impl Fn(&Buffer, u32) -> Option<Vec<u8>>) -> Verdict {
        for buffer in self.pool.buffers().as_slice() {
            for page in 0..self.pages {
                let wanted = expected(buffer, page).unwrap_or_else(|| vec![POISON; buffer.page_bytes as usize]);
                let found = read(&self.pool, buffer, page);
                if found != wanted {
                    let at = found.iter().zip(&wanted).position(|(found, wanted)| found != wanted).unwrap_or_default();
                    let (component, layer) = (buffer.component, buffer.layer);
                    let (found, wanted) = (found[at], wanted[at]);
                    return Err(format!("{component} layer {layer} page {page} byte {at}: {found:#x} for {wanted:#x}"));
                }
            }
        }
        Ok(())
    }

    /// Revokes `name` and waits until it is.
    pub(crate) fn revoke(&self, name: Name) -> Verdict {
        self.landing.revoke(name, false);
        self.is_revoked(name)
    }

    /// Waits until `name` is revoked.
    pub(crate) fn is_revoked(&self, name: Name) -> Verdict {
        match self.events.recv_timeout(LONG) {
            Ok(Event::Revoked(revoked)) if revoked == name => Ok(()),
            other => Err(format!("{other:?} for the end of {name:?}")),
        }
    }
}

/// Waits until `so`.
pub(crate) fn until(what: &str, so: impl Fn() -> bool) -> Verdict {
    let began = Instant::now();
    while !so() {
        if began.elapsed() > LONG {
            return Err(format!("{what} does not come about"));
        }
        std::thread::yield_now();
    }
    Ok(())
}

/// Layers of different sizes, one of them without index; a draft.
pub(crate) fn layout() -> Layout {
    let components = vec![
        (Component::TargetKv, vec![64, 32, 64]),
        (Component::TargetIndex, vec![16, 0, 16]),
        (Component::DraftKv, vec![48]),
        (Component::DraftIndex, vec![16]),
    ];
    Layout::new(64, components, 1).expect("a sound layout")
}

/// Layers of `layout`'s target track.
pub(crate) const TARGET_LAYERS: u32 = 3;

/// All regions side by side, the last of a record first.
fn reversed(layout: &Layout, pages: u32) -> L1Layout {
    let pieces: Vec<_> = layout.record().filter(|piece| piece.page_bytes > 0).collect();
    let mut base_offset_bytes = 0;
    let mut regions = Vec::new();
    for piece in pieces.iter().rev() {
        let region = L1Region { base_offset_bytes, stride_bytes: piece.page_bytes };
        regions.push(RegisteredRegion { component: piece.component, layer: piece.layer, region });
        base_offset_bytes += u64::from(pages) * piece.page_bytes;
    }
    L1Layout::registered(layout, pages, base_offset_bytes, &regions).expect("sound regions")
}

pub(crate) fn pool(folder: &Scratch, name: &str, layout: &Layout, l1: &L1Layout, filled: u8) -> Arc<Pool> {
    let segment = Segment::create(&folder.0.join(name), l1.segment_bytes()).expect("a segment");
    segment.write(0, &vec![filled; l1.segment_bytes() as usize]).expect("the whole segment");
    let buffers = Buffers::of(layout, l1).expect("the same layers");
    Arc::new(Pool::new(Arc::new(segment), buffers).expect("buffers inside"))
}

/// The bytes of one layer of one component of a page.
pub(crate) fn pattern(name: Name, buffer: &Buffer, position: u32) -> Vec<u8> {
    let of_page = u64::from(name.attempt) << 48 | u64::from(position) << 16;
    let mut state = of_page | u64::from(buffer.layer) << 8 | buffer.component as u64;
    let words = (0..buffer.page_bytes / 8).map(|_| hicached_actors::calls::draw(&mut state));
    words.flat_map(u64::to_le_bytes).collect()
}

pub(crate) fn write(pool: &Pool, buffer: &Buffer, page: u32, bytes: &[u8]) {
    let offset = buffer.base + u64::from(page) * buffer.page_bytes;
    pool.segment().write(offset, bytes).expect("a page of the pool");
}

pub(crate) fn read(pool: &Pool, buffer: &Buffer, page: u32) -> Vec<u8> {
    let mut bytes = vec![0; buffer.page_bytes as usize];
    let offset = buffer.base + u64::from(page) * buffer.page_bytes;
    pool.segment().read(offset, &mut bytes).expect("a page of the pool");
    bytes
}
