//! The conversations of an engine with the daemon: requests on the subject of the index (and of ranks),
//! answers by request/reply.

use super::codec::{Bin, Keys, Owners, Pages, wire, wire_enum};
use super::{HandedOver, Handover, HandoverWish, Incarnation, Key, Manifest, OpId, Rank, Refusal};

wire! {
    /// Where one (component, layer) stands in the engine's segment.
    pub struct Region {
        /// Component name.
        pub component: String,
        /// Layer of that component.
        pub layer: u32,
        /// Byte offset of physical page 0.
        pub offset: u64,
        /// Bytes from one page to the next.
        pub stride: u64,
        /// Bytes of one page.
        pub page_bytes: u32,
    }
    /// One rank of an engine brings its pools.
    pub struct Register {
        /// The rank it is.
        pub rank: Rank,
        /// One life of this engine rank.
        pub engine: Incarnation,
        /// What it stores; refused unless it fits the group in every field.
        pub manifest: Manifest,
        /// Physical pages of its pool, the padding page 0 included.
        pub pages: u32,
        /// Path of the shared-memory segment.
        pub segment: String,
        /// Bytes of the segment.
        pub segment_bytes: u64,
        /// Where each (component, layer) stands; those of zero bytes are left out.
        pub regions: Vec<Region>,
        /// The last step this engine launched, 0 before the first.
        pub last_step: u64,
        /// When this life of the engine began, in milliseconds by its machine's clock. A message of a life that died
        /// before it was heard may come late, and must not replace its successor.
        pub born_ms: u64 = default,
    }
    /// The rank joined.
    pub struct Registered {
        /// The control incarnation that now answers.
        pub control: Incarnation,
        /// The number of the next step.
        pub next_step: u64,
        /// Path of the rank's pool file, which holds its words and load slots.
        pub pool_file: String,
        /// Byte offset of the words in it: target, draft.
        pub words_offset: u64,
        /// Byte offset of the load slots in it.
        pub load_slots_offset: u64,
        /// Paths of every rank's segment, for reading peers' pages; empty for a rank that has not come yet.
        pub peers: Vec<String>,
        /// How long leases last without a heartbeat.
        pub lease_ms: u64,
        /// Where each (component, layer) stands in the segment of every rank, in the order of `peers`. A rank that
        /// registers again hears of those that came behind it.
        pub peer_regions: Vec<Vec<Region>> = default,
    }
    /// How much of a prefix is cached: no pin, no touch, no state.
    pub struct Probe {
        /// The tenant.
        pub tenant: String,
        /// Root of its keys.
        pub salt: Key,
        /// Keys of full pages from the first.
        pub keys: Keys,
    }
    /// Hit pages of a probe.
    pub struct Probed {
        /// Pages whose L1 copy is valid.
        pub l1: u32,
        /// Further pages whose L2 copy is valid.
        pub l2: u32,
    }
    /// Begins a session; the op of the envelope, made by the engine, becomes its id.
    pub struct Open {
        /// The tenant; refused when empty.
        pub tenant: String,
        /// Root of its keys: tenants share pages only if this is equal.
        pub salt: Key,
        /// Keys of the prompt's full pages.
        pub keys: Keys,
        /// Tokens of the prompt.
        pub tokens: u32,
        /// Tokens to reserve beyond the hits, as far as the prompt reaches; decode extends.
        pub reserve_tokens: u32,
        /// Owners of the pages of that reservation; empty means zigzag.
        pub owners: Owners,
        /// Eviction priority of its pages: higher stays longer.
        pub priority: u8 = default,
        /// `true` computes the whole prompt again.
        pub no_match: bool = default,
        /// The handover it takes part in; at most one.
        pub handover: Vec<HandoverWish> = default,
    }
    /// A running load that the engine's streams wait for.
    pub struct LoadTicket {
        /// The load op.
        pub op: OpId,
        /// Slot in each rank's ring.
        pub slot: u32,
        /// The slot's word reads `base + i` when layer i-1 (target layers, then draft layers) has arrived.
        pub base: u64,
        /// Layers of the load.
        pub layers: u32,
        /// First position that is being loaded.
        pub first: u32,
        /// Pages being loaded.
        pub pages: u32,
    }
    /// The session lives.
    pub struct Opened {
        /// The control incarnation.
        pub control: Incarnation,
        /// Its lease without a heartbeat.
        pub lease_ms: u64,
        /// Pages whose L1 copy is used, from the first.
        pub l1_hit: u32,
        /// Pages after those that are being loaded from L2.
        pub l2_hit: u32,
        /// The block table so far: hits, loads, reservation.
        pub pages: Pages,
        /// The load, when `l2_hit` is not 0.
        pub load: Vec<LoadTicket>,
    }
    /// Asks for more pages.
    pub struct Extend {
        /// The session.
        pub session: OpId,
        /// Its tenant.
        pub tenant: String,
        /// Tokens to reserve beyond the pages held.
        pub tokens: u32,
        /// Owners of the new pages; empty means zigzag.
        pub owners: Owners,
        /// The position the first new page will have: the pages held so far.
        pub first: u32,
    }
    /// Further pages of the block table.
    pub struct Extended {
        /// The new pages in order.
        pub pages: Pages,
    }
    /// What one forward does for one session.
    pub struct StepEntry {
        /// The session.
        pub session: OpId,
        /// First token position this forward writes.
        pub first_token: u32,
        /// Tokens it writes.
        pub tokens: u32,
        /// The pages those tokens stand in.
        pub pages: Pages,
        /// Whether the draft track runs for them.
        pub draft: bool,
        /// Keys of pages that can now be keyed, from `first_key` on.
        pub keys: Keys,
        /// Position of the first of `keys`.
        pub first_key: u32,
        /// The final status of the session's load has been read: its ring slot may be used again.
        pub load_read: bool = default,
    }
    /// One forward, sent before its launch by one rank of the engine.
    pub struct Step {
        /// Numbers of a group follow each other from 1.
        pub number: u64,
        /// Its sessions.
        pub entries: Vec<StepEntry>,
        /// The engine rank that sends it.
        pub engine: Incarnation,
        /// Copy all layers at the end of the forward: explicit, warned about and counted.
        pub all_layers_at_end: bool = default,
    }
    /// The step is known.
    pub struct Stepped {
        /// Its number.
        pub number: u64,
        /// Backup ops scheduled for it.
        pub backups: Vec<OpId>,
        /// Sessions named by it that had ended or whose load had failed: nothing of theirs counts.
        pub void: Vec<OpId> = default,
    }
    /// A track has finished layers, from an engine that cannot write words.
    pub struct LayerReady {
        /// The step.
        pub step: u64,
        /// `false` target, `true` draft.
        pub draft: bool,
        /// Layers done so far.
        pub layers_done: u32,
    }
    /// Ends a session.
    pub struct Close {
        /// The session.
        pub session: OpId,
        /// Its tenant.
        pub tenant: String,
        /// Number of the last step that named it, 0 for none.
        pub last_step: u64,
        /// Keys of pages that can only now be keyed.
        pub keys: Keys,
        /// Position of the first of `keys`.
        pub first_key: u32,
        /// Draft tokens proposed.
        pub drafted: u64 = default,
        /// Draft tokens accepted.
        pub accepted: u64 = default,
        /// Opaque bytes for a later handover.
        pub blob: Bin = default,
    }
    /// What became of the session's pages.
    pub struct Closed {
        /// Full pages of its path with an L1 copy.
        pub l1_pages: u32,
        /// Full pages of its path with an L2 copy.
        pub l2_pages: u32,
        /// Backups of its pages still running.
        pub pending: u32,
        /// Its own pages that another session had committed first.
        pub duplicates: u32,
        /// Full pages that were not cached.
        pub uncached: u32,
        /// Why, when `uncached` is not 0: `draft_never_ran`, `no_key`, `step_failed`, `not_computed`.
        pub reason: String,
    }
    /// Gives a session up.
    pub struct Abort {
        /// The session.
        pub session: OpId,
        /// Its tenant.
        pub tenant: String,
        /// Number of the last step that named it, 0 for none.
        pub last_step: u64,
    }
    /// The engine lives: its sessions' leases are renewed as a set.
    pub struct Heartbeat {
        /// The engine rank.
        pub engine: Incarnation,
        /// Steps launched so far.
        pub last_step: u64,
    }
    /// Plain yes.
    pub struct Done {
        /// The control incarnation.
        pub control: Incarnation,
    }
    /// What to give up.
    pub struct Flush {
        /// 1, 2, or 0 for both tiers.
        pub tier: u8,
        /// Only pages of this salt; empty for all.
        pub salt: Vec<Key>,
        /// Only pages below this prefix; empty for all.
        pub prefix: Keys,
        /// Only quarantined records.
        pub quarantined: bool,
    }
    /// What a flush did and could not do.
    pub struct Flushed {
        /// L1 pages given up.
        pub l1: u32,
        /// L2 pages given up.
        pub l2: u32,
        /// L1 pages kept because something uses them.
        pub l1_kept: u32,
        /// L2 pages kept because something uses them.
        pub l2_kept: u32,
        /// Ops and sessions still running.
        pub in_flight: u32,
    }
    /// Keeps a prefix from eviction, or lets it go again.
    pub struct Pin {
        /// Root of the keys.
        pub salt: Key,
        /// Keys from the first page on; the whole path is kept.
        pub keys: Keys,
        /// `false` takes the pin back.
        pub on: bool,
    }
    /// How much of the prefix is pinned per tier.
    pub struct Pinned {
        /// L1 pages of the path.
        pub l1: u32,
        /// L2 pages of the path.
        pub l2: u32,
    }
    /// Stops (or allows again) new sessions, so that what runs can end.
    pub struct Drain {
        /// `false` allows sessions again.
        pub on: bool,
    }
    /// What still runs.
    pub struct Drained {
        /// Sessions that have not ended.
        pub sessions: u32,
        /// Ops that have not ended.
        pub ops: u32,
    }
    /// Free and used pages, for operators and tests.
    pub struct Status {
        /// Cursor of the first page row wanted; `u32::MAX` wants none.
        pub cursor: u32,
    }
    /// The figures of a group.
    pub struct StatusIs {
        /// Named counters in a fixed order.
        pub counters: Vec<(String, u64)>,
    }
    /// Asks any member, whatever state it is in, for its figures: answered by its host, with [`StatusIs`].
    pub struct Figures {}
    /// Events from a number on.
    pub struct Replay {
        /// First number wanted.
        pub from: u64,
        /// Most events wanted.
        pub limit: u32,
    }
    /// Pages stored in, or removed from, a tier.
    pub struct CacheEvent {
        /// Numbers follow each other within the incarnation.
        pub number: u64,
        /// Whose numbers these are.
        pub control: Incarnation,
        /// 1 or 2.
        pub tier: u8,
        /// `false` removed.
        pub stored: bool,
        /// Keys of the pages.
        pub keys: Keys,
        /// Parent of the first, when stored.
        pub parent: Key,
    }
    /// A part of the event log.
    pub struct Replayed {
        /// Events in order; a `from` older than the log starts at its oldest.
        pub events: Vec<CacheEvent>,
        /// The number after the newest event.
        pub next: u64,
    }
}

wire_enum! {
    /// What an engine, router or operator asks of the index.
    pub enum Request {
        /// A rank of an engine joins.
        "register" => Register(Register),
        /// How much is cached.
        "probe" => Probe(Probe),
        /// Begin a session.
        "open" => Open(Open),
        /// More pages.
        "extend" => Extend(Extend),
        /// One forward.
        "step" => Step(Step),
        /// End a session.
        "close" => Close(Close),
        /// Give a session up.
        "abort" => Abort(Abort),
        /// The engine lives.
        "heartbeat" => Heartbeat(Heartbeat),
        /// Give pages up.
        "flush" => Flush(Flush),
        /// Keep or release a prefix.
        "pin" => Pin(Pin),
        /// Stop or allow sessions.
        "drain" => Drain(Drain),
        /// Figures.
        "status" => Status(Status),
        /// Events from a number on.
        "replay" => Replay(Replay),
        /// Wait for received pages.
        "handover" => Handover(Handover),
    }
}

wire_enum! {
    /// What they get back.
    pub enum Answer {
        /// To `register`.
        "registered" => Registered(Registered),
        /// To `probe`.
        "probed" => Probed(Probed),
        /// To `open`.
        "opened" => Opened(Opened),
        /// To `extend`.
        "extended" => Extended(Extended),
        /// To `step`.
        "stepped" => Stepped(Stepped),
        /// To `close`.
        "closed" => Closed(Closed),
        /// To `abort`, `heartbeat`.
        "done" => Done(Done),
        /// To `flush`.
        "flushed" => Flushed(Flushed),
        /// To `pin`.
        "pinned" => Pinned(Pinned),
        /// To `drain`.
        "drained" => Drained(Drained),
        /// To `status`.
        "status_is" => StatusIs(StatusIs),
        /// To `replay`.
        "replayed" => Replayed(Replayed),
        /// To `handover`.
        "handed_over" => HandedOver(HandedOver),
        /// To anything.
        "refused" => Refused(Refusal),
    }
}
