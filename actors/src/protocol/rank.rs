//! What a rank hears and says: whom it obeys, which pools it maps, what it copies.

use super::codec::{Bin, Keys, Owners, Pages, Slots, wire, wire_enum};
use super::engine::{LayerReady, Region};
use super::internal::OpSettled;
use super::transfer::{Accept, Push, Report, Revoke, StopPush};
use super::{Incarnation, Key, Rank, Refusal};

wire! {
    /// The control incarnation takes the rank; repeated as its heartbeat.
    pub struct Adopt {
        /// Lease of the adoption.
        pub lease_ms: u64,
    }
    /// A rank presents itself, again and again until adopted; then as a heartbeat.
    pub struct RankHello {
        /// The rank.
        pub rank: Rank,
        /// Host slots of its pool.
        pub host_slots: u32,
        /// Whether it obeys the control incarnation that reads this.
        pub adopted_by: Incarnation,
        /// Copies still running for another control incarnation.
        pub old_ops: u32,
        /// The engine it has attached.
        pub engine: Incarnation,
        /// Step both of its tracks have passed.
        pub passed: u64,
        /// How many control incarnations it has obeyed in this life, one after the other.
        pub adoptions: u64 = default,
    }
    /// Rows of the rank's page table from a slot on.
    pub struct Inventory {
        /// First slot.
        pub cursor: u32,
    }
    /// One sealed record.
    pub struct InventoryRow {
        /// Host slot.
        pub slot: u32,
        /// Page key.
        pub key: Key,
        /// Key of the page before it.
        pub parent: Key,
        /// Salt id.
        pub salt: Key,
        /// Position in its path.
        pub position: u32,
        /// Use of the slot.
        pub generation: u32,
    }
    /// A part of a page table.
    pub struct InventoryPart {
        /// The cursor it answers.
        pub cursor: u32,
        /// Sealed records.
        pub rows: Vec<InventoryRow>,
        /// Next cursor; `u32::MAX` at the end.
        pub next: u32,
    }
    /// Map an engine's pool.
    pub struct Attach {
        /// The engine rank.
        pub engine: Incarnation,
        /// Physical pages, padding included.
        pub pages: u32,
        /// Path of the segment.
        pub segment: String,
        /// Bytes of the segment.
        pub segment_bytes: u64,
        /// Where each (component, layer) stands.
        pub regions: Vec<Region>,
        /// The last step this engine launched.
        pub last_step: u64,
    }
    /// The pool is mapped.
    pub struct Attached {
        /// The engine rank.
        pub engine: Incarnation,
        /// Path of the pool file.
        pub pool_file: String,
        /// Offset of the words in it.
        pub words_offset: u64,
        /// Offset of the load slots in it.
        pub load_slots_offset: u64,
        /// How many control incarnations the rank has obeyed in this life.
        pub adoptions: u64 = default,
    }
    /// The pool cannot be mapped.
    pub struct AttachRefused {
        /// The engine rank.
        pub engine: Incarnation,
        /// Why.
        pub refusal: Refusal,
    }
    /// Tell when both tracks have passed this step.
    pub struct Watch {
        /// The newest step of interest.
        pub step: u64,
    }
    /// Both tracks of this rank have passed this step.
    pub struct Passed {
        /// The step.
        pub step: u64,
        /// Whose words these are.
        pub engine: Incarnation,
    }
    /// Copy the pages this rank owns from L1 to L2, each layer when its track has finished it.
    pub struct BackupCopy {
        /// One try of the op.
        pub attempt: u32,
        /// The step that computes the pages; 0 when every layer is ready.
        pub step: u64,
        /// L1 pages of all ranks in path order: the owner follows from the id.
        pub pages: Pages,
        /// Host slots of all ranks.
        pub slots: Slots,
        /// Keys, for the page table.
        pub keys: Keys,
        /// Key before the first.
        pub parent: Key,
        /// Position of the first.
        pub first: u32,
        /// Salt id.
        pub salt: Key,
        /// Copy all layers when the last is done.
        pub all_layers_at_end: bool,
        /// Life of every rank that this is for; a rank in another life does nothing with it. A message that
        /// outlived its rank would else write where others stand by then. Empty is any life.
        pub lives: Vec<Incarnation> = default,
    }
    /// Fate of a copy on one rank.
    pub struct CopyAck {
        /// The try it speaks of.
        pub attempt: u32,
        /// The rank.
        pub rank: Rank,
        /// One bit per (component, layer) in record order, set when copied.
        pub layers: Bin,
        /// Every bit is set and the bytes are in place.
        pub complete: bool,
        /// Nothing of this try reads or writes any more, and it did not complete.
        pub failed: Vec<Refusal>,
    }
    /// Copy from L2 to L1.
    pub struct LoadCopy {
        /// One try of the op.
        pub attempt: u32,
        /// L1 pages of all ranks, path order.
        pub pages: Pages,
        /// Owners of the host slots; equal to the owners of the pages.
        pub owners: Owners,
        /// Host slots.
        pub slots: Slots,
        /// Ring slot whose word and status tell the engine.
        pub ring_slot: u32,
        /// The word's value before the first layer.
        pub base: u64,
        /// Life of every rank that this is for, as in a backup.
        pub lives: Vec<Incarnation> = default,
    }
    /// Seal the kept records of a backup, clear the rest.
    pub struct Seal {
        /// One byte per page of the op: 1 kept.
        pub kept: Bin,
        /// The op's host slots.
        pub slots: Slots,
        /// Their owners.
        pub owners: Owners,
    }
    /// These records have left L2: they count no more, in this life or a later one. A slot that holds another page
    /// by then is left alone.
    pub struct Unseal {
        /// Host slots of this rank.
        pub slots: Slots,
        /// The page that each held.
        pub keys: Keys,
    }
    /// Sealed.
    pub struct Sealed {
        /// The rank.
        pub rank: Rank,
    }
    /// Stop a try; answered by a `copy_ack` that is complete or failed, when nothing writes any more.
    pub struct Stop {
        /// The try.
        pub attempt: u32,
    }
    /// A record failed a checked read.
    pub struct Damaged {
        /// The rank.
        pub rank: Rank,
        /// The host slot.
        pub slot: u32,
        /// The component.
        pub component: String,
    }
}

wire_enum! {
    /// Everything that can reach a rank.
    pub enum RankIn {
        /// Obey.
        "adopt" => Adopt(Adopt),
        /// Show the page table.
        "inventory" => Inventory(Inventory),
        /// Map an engine's pool.
        "attach" => Attach(Attach),
        /// Watch a step.
        "watch" => Watch(Watch),
        /// An engine without words reports layers.
        "layer_ready" => LayerReady(LayerReady),
        /// L1 to L2.
        "backup_copy" => BackupCopy(BackupCopy),
        /// L2 to L1.
        "load_copy" => LoadCopy(LoadCopy),
        /// Seal.
        "seal" => Seal(Seal),
        /// Take seals away.
        "unseal" => Unseal(Unseal),
        /// Stop a try.
        "stop" => Stop(Stop),
        /// The index has heard of a damaged record.
        "op_settled" => OpSettled(OpSettled),
        /// Bytes of a transfer may land.
        "accept" => Accept(Accept),
        /// What has landed?
        "report" => Report(Report),
        /// Nothing may land any more.
        "revoke" => Revoke(Revoke),
        /// L1 to a rank of a peer.
        "push" => Push(Push),
        /// Stop sending.
        "stop_push" => StopPush(StopPush),
    }
}
