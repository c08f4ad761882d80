//! Cross-checks: every unsupported combination is refused at start (requirement A8), all faults at once.

use std::collections::BTreeSet;

use hicached_actors::allocator::{Marks, SLOTS_MAX};
use hicached_actors::protocol::{Address, CP_SIZE_MAX, ComponentSpec, HEADER_BYTES_MAX, Manifest, Rank, group_name};
use hicached_kernels::layout::{Component, LAYERS_MAX, Layout, LayoutError};

use super::{BusKind, ComponentConfig, Config, ConfigRefused, masked};

/// A configuration without contradictions, with what follows from it.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The keys.
    pub config: Config,
    /// What this process hosts.
    pub actors: BTreeSet<Address>,
    /// What two holders of the same pages must agree on.
    pub manifest: Manifest,
    /// Where the bytes of a page stand.
    pub layout: Layout,
    /// Free room of device lanes.
    pub l1_room: FreeRoom,
    /// Free room of host pools.
    pub l2_room: FreeRoom,
}

/// How much of each pool is kept free.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FreeRoom {
    /// Room is made for exactly what is asked.
    Off,
    /// Below `low_percent` of a pool, work up to `high_percent`.
    Percent {
        /// Acts below this share.
        low_percent: f64,
        /// Works up to this share.
        high_percent: f64,
    },
}

impl FreeRoom {
    /// Reads `off` or `LOW,HIGH` in percent.
    ///
    /// # Errors
    /// What to write, as the end of a sentence that names the key.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self::Off);
        }
        let percent = |part: &str| part.trim().parse::<f64>().ok().filter(|share| (0.0..=50.0).contains(share));
        let marks = text.split_once(',').and_then(|(low, high)| Some((percent(low)?, percent(high)?)));
        match marks {
            Some((low, high)) if low > high => {
                Err(format!("is {text:?}: the low mark {low} is above the high mark {high}, swap them"))
            }
            Some((low_percent, high_percent)) => Ok(Self::Percent { low_percent, high_percent }),
            None => Err(format!("is {text:?}: write off, or LOW,HIGH in percent, each 0 to 50")),
        }
    }

    /// The marks of a pool of `capacity_pages` of which one largest chunk needs `chunk_pages`: at least one page,
    /// at most one chunk.
    pub fn marks(self, capacity_pages: u32, chunk_pages: u32) -> Marks {
        let Self::Percent { low_percent, high_percent } = self else { return Marks::OFF };
        let most = chunk_pages.max(1).min(capacity_pages);
        let share = |percent: f64| ((f64::from(capacity_pages) * percent / 100.0) as u32).max(1).min(most);
        Marks::new(share(low_percent), share(high_percent)).unwrap_or(Marks::OFF)
    }
}

impl Checked {
    /// The ranks that this process hosts.
    pub fn ranks(&self) -> impl Iterator<Item = Rank> {
        self.actors.iter().filter_map(|actor| if let Address::Rank(rank) = actor { Some(*rank) } else { None })
    }
}

impl Config {
    /// Looks for everything this build cannot do and everything that contradicts itself.
    ///
    /// # Errors
    /// All faults, each naming its key and what to change.
    pub fn checked(&self) -> Result<Checked, ConfigRefused> {
        let mut faults = Faults(Vec::new());
        self.check_group(&mut faults);
        let actors = self.actors.named(self.group.cp_size, self.bus.kind);
        let actors = actors.unwrap_or_else(|found| {
            faults.0.extend(found);
            BTreeSet::new()
        });
        let components = self.check_components(&mut faults);
        let layout = Layout::new(self.group.page_tokens, components, self.l2.tile_pages);
        if let Err(refused) = &layout {
            faults.0.extend(refused.faults.iter().map(layout_fault));
        }
        let l1_room = faults.take("l1.free_room", FreeRoom::parse(&self.l1.free_room));
        let l2_room = faults.take("l2.free_room", FreeRoom::parse(&self.l2.free_room));
        self.check_pools(layout.as_ref().ok(), &mut faults);
        self.check_parts(&mut faults);
        self.check_transfer(&mut faults);
        self.check_bus(&mut faults);
        self.check_rank(&mut faults);
        self.check_trace(&mut faults);
        match (layout, l1_room, l2_room, faults.0.is_empty()) {
            (Ok(layout), Some(l1_room), Some(l2_room), true) => {
                let (config, manifest) = (self.clone(), self.manifest());
                Ok(Checked { config, actors, manifest, layout, l1_room, l2_room })
            }
            _ => Err(ConfigRefused { faults: faults.0 }),
        }
    }

    fn check_group(&self, faults: &mut Faults) {
        let group = &self.group;
        let (cp_size, name) = (group.cp_size, &group.name);
        if let Err(wrong) = group_name("group.name", name) {
            faults.0.push(format!("group.name is {name:?}: use {}, it is part of a subject", wrong.limit));
        }
        faults.unless((1..=CP_SIZE_MAX).contains(&cp_size), || {
            format!("group.cp_size is {cp_size}: make it 1..={CP_SIZE_MAX}")
        });
        faults.unless(cp_size <= 1 || group.shared_kv, || {
            format!(
                "group.cp_size is {cp_size} without group.shared_kv: set it to true, a full copy per rank is not kept"
            )
        });
        faults.unless(group.split == "zigzag", || {
            format!("group.split is {:?}: use \"zigzag\", owners follow from nothing else", group.split)
        });
        let lookahead = group.draft_lookahead_tokens;
        faults.unless(lookahead <= 1, || {
            format!("group.draft_lookahead_tokens is {lookahead}: make it 0 or 1, longer look-ahead is not supported")
        });
        faults.unless(lookahead == 0 || self.has_draft(), || {
            "group.draft_lookahead_tokens is 1 without a draft component: describe draft.kv or make it 0".to_owned()
        });
        let (compute_min, page_tokens) = (group.compute_tokens_min, group.page_tokens);
        faults.unless(compute_min <= page_tokens, || {
            format!("group.compute_tokens_min is {compute_min}: make it at most group.page_tokens, {page_tokens}")
        });
        let chunk = group.chunk_tokens_max;
        faults.unless(chunk >= page_tokens.max(1), || {
            format!("group.chunk_tokens_max is {chunk}: make it at least group.page_tokens, {page_tokens}")
        });
        faults.unless(group.request_pages_max > 0, || "group.request_pages_max is 0: make it at least 1".to_owned());
    }

    /// The table as the layout takes it; faults that the layout cannot know are named here.
    fn check_components(&self, faults: &mut Faults) -> Vec<(Component, Vec<u64>)> {
        let mut components = Vec::new();
        for (at, row) in self.model.components.iter().enumerate() {
            let path = format!("model.components[{at}]");
            faults.unless(!row.dtype.is_empty(), || format!("{path}.dtype is missing: name the element type"));
            let layers = row.layers.map_or(row.page_bytes.len(), |layers| layers as usize);
            faults.unless(row.page_bytes.len() == layers || row.page_bytes.len() == 1, || {
                let given = row.page_bytes.len();
                format!("{path}.page_bytes has {given} entries for {layers} layers: give one for each, or one for all")
            });
            faults.unless(layers <= LAYERS_MAX, || format!("{path}.layers is {layers}: make it 1..={LAYERS_MAX}"));
            match Component::from_name(&row.name) {
                Some(component) if layers <= LAYERS_MAX => {
                    components.push((component, row.layer_bytes().iter().map(|bytes| u64::from(*bytes)).collect()));
                }
                Some(_) => {}
                None => faults.0.push(format!("{path}.name is {:?}: {}", row.name, why_unknown(&row.name))),
            }
        }
        components
    }

    fn check_pools(&self, layout: Option<&Layout>, faults: &mut Faults) {
        let cp_size = u32::from(self.group.cp_size.max(1));
        for (key, pages) in [("l1.pages", self.l1.pages), ("l2.pages", self.l2.pages)] {
            faults.unless(pages.is_multiple_of(cp_size), || {
                let near = [Some(pages / cp_size * cp_size), pages.checked_next_multiple_of(cp_size)];
                let fits = |near: &u32| (*near > 0 || key == "l2.pages") && near / cp_size < SLOTS_MAX;
                let near: Vec<String> = near.into_iter().flatten().filter(fits).map(|near| near.to_string()).collect();
                let example =
                    if near.is_empty() { String::new() } else { format!(", for example {}", near.join(" or ")) };
                format!("{key} is {pages}: make it a multiple of group.cp_size {cp_size}{example}")
            });
            faults.unless(u64::from(pages / cp_size) < u64::from(SLOTS_MAX), || {
                format!("{key} is {pages}: make it less than {SLOTS_MAX} per rank")
            });
        }
        faults.unless(self.l1.pages > 0, || "l1.pages is 0: give the device at least one page per rank".to_owned());
        faults.unless(u64::from(self.l1.pages) + u64::from(cp_size) <= 1 << 32, || {
            format!("l1.pages is {}: page ids have 32 bits, with one padding page per rank", self.l1.pages)
        });
        if let Some(layout) = layout {
            let bytes = u128::from(self.l2.pages / cp_size) * u128::from(layout.record_bytes());
            faults.unless(bytes <= u128::from(POOL_BYTES_MAX), || {
                format!("l2.pages is {}: {bytes} bytes per rank, at most {POOL_BYTES_MAX} are supported", self.l2.pages)
            });
        }
    }

    fn check_parts(&self, faults: &mut Faults) {
        let storage = &self.storage.backend;
        faults.unless(storage == "none", || {
            format!("storage.backend is {storage:?}: use \"none\", there is no tier below host memory")
        });
        let engine = &self.rank.copy_engine;
        faults.unless(engine == "cpu", || {
            let why = if engine == "cuda" { "this build has no CUDA engine" } else { "no other is known" };
            format!("rank.copy_engine is {engine:?}: use \"cpu\", {why}")
        });
    }

    fn check_bus(&self, faults: &mut Faults) {
        let bus = &self.bus;
        faults.unless(
            bus.kind == BusKind::Memory || bus.url.starts_with("nats://") || bus.url.starts_with("tls://"),
            || format!("bus.url is {:?}: write nats://HOST:PORT or tls://HOST:PORT", masked(&bus.url)),
        );
        faults.unless((INBOX_FRAMES_MIN..=INBOX_FRAMES_MAX).contains(&bus.inbox_frames), || {
            let bound = bus.inbox_frames;
            format!("bus.inbox_frames is {bound}: make it {INBOX_FRAMES_MIN}..={INBOX_FRAMES_MAX}")
        });
        faults.unless(bus.payload_bytes_max <= PAYLOAD_BYTES_MAX, || {
            format!("bus.payload_bytes_max is {}: NATS carries at most {PAYLOAD_BYTES_MAX}", bus.payload_bytes_max)
        });
        let pages_max = message_pages_max(bus.payload_bytes_max);
        faults.unless(self.group.request_pages_max <= pages_max, || {
            let (pages, limit) = (self.group.request_pages_max, bus.payload_bytes_max);
            format!(
                "group.request_pages_max is {pages}: make it at most {pages_max}, or raise bus.payload_bytes_max above {limit}"
            )
        });
    }

    fn check_rank(&self, faults: &mut Faults) {
        let (rank, leases) = (&self.rank, &self.leases);
        faults.unless((1..=COPY_THREADS_MAX).contains(&rank.copy_threads), || {
            format!("rank.copy_threads is {}: make it 1..={COPY_THREADS_MAX}", rank.copy_threads)
        });
        faults.unless(rank.pool_folder.is_absolute(), || {
            format!("rank.pool_folder is {:?}: name an absolute path, engines map its files", rank.pool_folder)
        });
        for (key, ms) in [
            ("leases.session_ms", leases.session_ms),
            ("leases.rank_ms", leases.rank_ms),
            ("leases.control_ms", leases.control_ms),
            ("leases.peer_ms", leases.peer_ms),
        ] {
            faults.unless((LEASE_MS_MIN..=LEASE_MS_MAX).contains(&ms), || {
                format!("{key} is {ms}: make it {LEASE_MS_MIN}..={LEASE_MS_MAX}")
            });
        }
    }

    fn check_trace(&self, faults: &mut Faults) {
        let trace = &self.trace;
        let (endpoint, shown) = (&trace.endpoint, masked(&trace.endpoint));
        let has_host = endpoint.strip_prefix("http://").is_some_and(|host| host.bytes().any(|b| b != b'/'));
        let fits = has_host && endpoint.bytes().all(|b| b.is_ascii_graphic());
        faults.unless(endpoint.is_empty() || fits, || {
            format!(
                "trace.endpoint is {shown:?}: write http://HOST:PORT of a collector that takes OTLP over gRPC, or \"\""
            )
        });
        faults.unless(endpoint.is_empty() || cfg!(feature = "trace"), || {
            format!("trace.endpoint is {shown:?}: make it \"\", this build has no traces")
        });
        faults.unless(trace.ratio_permille <= 1_000, || {
            format!("trace.ratio_permille is {}: make it 0..=1000", trace.ratio_permille)
        });
    }

    fn has_draft(&self) -> bool {
        self.model.components.iter().any(|row| row.name.starts_with("draft."))
    }

    /// The components as both sides compare them.
    pub(super) fn manifest(&self) -> Manifest {
        let component = |row: &ComponentConfig| ComponentSpec {
            name: row.name.clone(),
            dtype: row.dtype.clone(),
            page_bytes: row.layer_bytes(),
        };
        Manifest {
            page_tokens: self.group.page_tokens,
            cp_size: self.group.cp_size,
            tile_pages: self.l2.tile_pages,
            draft_lookahead_tokens: self.group.draft_lookahead_tokens,
            components: self.model.components.iter().map(component).collect(),
        }
    }
}

impl ComponentConfig {
    /// Bytes of one page for each layer.
    fn layer_bytes(&self) -> Vec<u32> {
        match (self.page_bytes.as_slice(), self.layers) {
            ([bytes], Some(layers)) => vec![*bytes; layers as usize],
            (all, _) => all.to_vec(),
        }
    }
}

/// Faults found so far.
pub(super) struct Faults(Vec<String>);

impl Faults {
    pub(super) fn push(&mut self, fault: String) {
        self.0.push(fault);
    }

    pub(super) fn unless(&mut self, good: bool, fault: impl FnOnce() -> String) {
        if !good {
            self.0.push(fault());
        }
    }

    fn take<T>(&mut self, key: &str, read: Result<T, String>) -> Option<T> {
        read.map_err(|fault| self.0.push(format!("{key} {fault}"))).ok()
    }
}

/// A fault of the layout under the key that caused it.
fn layout_fault(fault: &LayoutError) -> String {
    match fault {
        LayoutError::PageTokens { .. } => format!("group.{fault}"),
        LayoutError::TilePages { .. } => format!("l2.{fault}"),
        LayoutError::ComponentTwice { .. }
        | LayoutError::ComponentOutOfOrder { .. }
        | LayoutError::KvMissing { .. }
        | LayoutError::IndexPageTokens { .. }
        | LayoutError::Layers { .. }
        | LayoutError::LayersDiffer { .. }
        | LayoutError::PageBytes { .. }
        | LayoutError::RecordTooLarge { .. } => format!("model.components: {fault}"),
    }
}

fn why_unknown(name: &str) -> &'static str {
    if name.contains("recurrent") || name.contains("mamba") || name.contains("sliding_window") {
        "remove it, recurrent state and sliding windows are not page-granular and are not supported"
    } else {
        "use target.kv, target.index, draft.kv or draft.index"
    }
}

/// Pages whose ids, slots and keys fit one message: the longest list one message carries.
fn message_pages_max(payload_bytes_max: usize) -> u32 {
    let room = payload_bytes_max.saturating_sub(message_bytes_for(0));
    u32::try_from(room / BYTES_PER_PAGE).unwrap_or(u32::MAX)
}

/// Bytes of the largest message about a request of `pages` pages, headers included.
pub fn message_bytes_for(pages: u32) -> usize {
    HEADER_BYTES_MAX + ENVELOPE_BYTES_MAX + pages as usize * BYTES_PER_PAGE
}

/// Key, page id, slot, owner and verdict of one page.
const BYTES_PER_PAGE: usize = 16 + 4 + 4 + 1 + 1;
/// Envelope and the fields of a body that do not grow with its pages.
const ENVELOPE_BYTES_MAX: usize = 1_024;
/// Half of the address space that Linux gives a process.
const POOL_BYTES_MAX: u64 = 1 << 46;
const COPY_THREADS_MAX: u32 = 64;
/// Below this, the answers of one step of a large group find no room.
const INBOX_FRAMES_MIN: usize = 256;
const INBOX_FRAMES_MAX: usize = 1 << 20;
/// The most a NATS server can be told to take.
const PAYLOAD_BYTES_MAX: usize = 64 << 20;
/// Heartbeats are a quarter of a lease: shorter ones would be noise.
const LEASE_MS_MIN: u64 = 100;
const LEASE_MS_MAX: u64 = 3_600_000;
