//! What the actors of a group and its ranks say to each other. Every request is repeated by its sender
//! until it is answered, and answered from the state of its op; the op stands in the envelope.

use super::codec::{Bin, Keys, Owners, Pages, Slots, wire, wire_enum};
use super::engine::Request;
use super::rank::{AttachRefused, Attached, CopyAck, Damaged, InventoryPart, Passed, RankHello, RankIn, Sealed};
use super::transfer::{
    Accepting, Arrived, Cease, Ceased, CeasedHeard, Expect, Expected, Finished, HandoverSettled, Landed, Meet, Met,
    NotArriving, Offer, PushStopped, Pushed, Received, Revoked, SendEnd, SendOpen, SendOver, SendPart, SendStop,
    SendTaken, Unexpect, Wanted,
};
use super::{CacheEvent, Incarnation, Key, Rank, Refusal};

wire! {
    /// Reserve pages of one tier whose owners are exactly these, in order; short lanes get room made once.
    pub struct Reserve {
        /// 1 or 2.
        pub tier: u8,
        /// One owner per page.
        pub owners: Owners,
    }
    /// The pages, in the order of the owners: page ids of L1, slots of L2.
    pub struct Reserved {
        /// Page ids or slots.
        pub pages: Pages,
    }
    /// Nothing was taken.
    pub struct Short {
        /// Pages missing on each lane.
        pub short: Vec<u32>,
    }
    /// Pages nobody can read or write any more.
    pub struct Free {
        /// L1 pages.
        pub l1: Pages,
        /// Owners of the L2 slots.
        pub l2_owners: Owners,
        /// L2 slots.
        pub l2: Slots,
    }
    /// The pages are free.
    pub struct Freed {}
    /// What is taken when an incarnation begins; the rest of L2 is free, the rest of L1 only with `l1_open`.
    pub struct Restore {
        /// Messages of one restore count from 0.
        pub part: u32,
        /// Owners of the taken L2 slots.
        pub l2_owners: Owners,
        /// Taken L2 slots.
        pub l2: Slots,
        /// The last part: reservations may begin.
        pub last: bool,
    }
    /// Every L1 page is proven unused: lanes open.
    pub struct OpenLanes {}
    /// How much is free?
    pub struct Count {}
    /// Free pages of each rank.
    pub struct Counted {
        /// In L1.
        pub l1_free: Vec<u32>,
        /// In L2.
        pub l2_free: Vec<u32>,
    }
    /// Is the reservation of this op still yours?
    pub struct Whose {}
    /// The answer to `whose`.
    pub struct WhoseIs {
        /// `false` frees the reservation.
        pub mine: bool,
    }

    /// Lanes are short, or below their low mark.
    pub struct MakeRoom {
        /// 1 or 2.
        pub tier: u8,
        /// Pages wanted on each lane.
        pub wants: Vec<u32>,
    }
    /// The evictor is done with an op.
    pub struct RoomMade {
        /// Pages freed on each lane.
        pub freed: Vec<u32>,
        /// Pages that will become free when a write-back commits.
        pub pending: u32,
    }
    /// Give up whole pages from leaf tails.
    pub struct Evict {
        /// 1 or 2.
        pub tier: u8,
        /// Pages wanted on each lane.
        pub wants: Vec<u32>,
    }
    /// What was given up.
    pub struct Evicted {
        /// Pages freed on each lane.
        pub freed: Vec<u32>,
        /// Pages of other lanes that had to go first.
        pub collateral: u32,
        /// Pages that go when their write-back commits.
        pub pending: u32,
    }

    /// Copy pages of L1 to L2, layer by layer, and say when every owner has all of them.
    pub struct Backup {
        /// The step that computes them; 0 when they are computed already.
        pub step: u64,
        /// L1 pages in path order.
        pub pages: Pages,
        /// Their keys.
        pub keys: Keys,
        /// Key of the page before the first.
        pub parent: Key,
        /// Position of the first.
        pub first: u32,
        /// Salt id of the path.
        pub salt: Key,
        /// Copy all layers when the last is done (explicit setting).
        pub all_layers_at_end: bool,
    }
    /// No room: nothing is reserved, the op has ended.
    pub struct BackupRefused {
        /// Lanes that are short.
        pub short: Vec<u32>,
    }
    /// Every owner has acknowledged every layer of every component.
    pub struct BackupComplete {
        /// The host slots, in path order.
        pub slots: Slots,
    }
    /// The op's copies came to nothing; nothing writes or reads its pages any more.
    pub struct BackupFailed {
        /// Why.
        pub cause: String,
    }
    /// The index's decision on a complete backup.
    pub struct BackupVerdict {
        /// One byte per page: 1 kept, 0 forfeited.
        pub kept: Bin,
    }
    /// What the message of this op asked for has been done.
    pub struct OpSettled {}

    /// Bring pages of L2 to L1 pages with exactly these owners.
    pub struct Load {
        /// Owners stored with the L2 copies, in path order.
        pub owners: Owners,
        /// Their host slots.
        pub slots: Slots,
        /// Owners of the pages to reserve behind them.
        pub behind: Owners,
    }
    /// Pages for the load and behind it; the copies have been ordered.
    pub struct LoadStarted {
        /// L1 pages: loaded ones, then those behind.
        pub pages: Pages,
        /// Ring slot.
        pub ring_slot: u32,
        /// The word's value before the first layer.
        pub base: u64,
    }
    /// No room for it, also after room was made: the load is a miss.
    pub struct LoadMissed {
        /// Lanes that are short.
        pub short: Vec<u32>,
    }
    /// All ring slots are in use.
    pub struct LoadBusy {
        /// How many there are.
        pub bound: u32,
    }
    /// The last layer is acknowledged by every owner, or the load failed and nothing writes any more.
    pub struct LoadEnded {
        /// `false` failed.
        pub ok: bool,
    }
    /// The engine has read the slot's status.
    pub struct ReleaseSlot {}
    /// A rank is in this life; what an older one said is void and its running ops are forfeited.
    pub struct RankIs {
        /// The rank.
        pub rank: Rank,
        /// Its life; all zero while it is gone.
        pub incarnation: Incarnation,
    }
    /// Numbers of yours are missing here: say again what you and I have open.
    pub struct Resync {
        /// The first number missing.
        pub expected: u64,
    }
    /// A try of this name is not known, or its message broke the rules.
    pub struct Rejected {
        /// Why.
        pub refusal: Refusal,
    }
}

wire_enum! {
    /// What the index hears from the actors and ranks of its group.
    pub enum IndexNews {
        /// From the allocator.
        "reserved" => Reserved(Reserved),
        /// From the allocator.
        "short" => Short(Short),
        /// From the allocator.
        "freed" => Freed(Freed),
        /// From the allocator.
        "counted" => Counted(Counted),
        /// From the allocator.
        "restored" => Restored(Restored),
        /// From the allocator.
        "whose" => Whose(Whose),
        /// From the evictor.
        "evict" => Evict(Evict),
        /// From the writer.
        "backup_refused" => BackupRefused(BackupRefused),
        /// From the writer.
        "backup_complete" => BackupComplete(BackupComplete),
        /// From the writer.
        "backup_failed" => BackupFailed(BackupFailed),
        /// From the loader.
        "load_started" => LoadStarted(LoadStarted),
        /// From the loader.
        "load_missed" => LoadMissed(LoadMissed),
        /// From the loader.
        "load_busy" => LoadBusy(LoadBusy),
        /// From the loader.
        "load_ended" => LoadEnded(LoadEnded),
        /// From the writer, the loader, the sender or the receiver: a verdict, a released slot or a rank's life was
        /// taken in. From a rank: seals are gone.
        "op_settled" => OpSettled(OpSettled),
        /// From a rank.
        "rank_hello" => RankHello(RankHello),
        /// From a rank.
        "inventory_part" => InventoryPart(InventoryPart),
        /// From a rank.
        "attached" => Attached(Attached),
        /// From a rank.
        "attach_refused" => AttachRefused(AttachRefused),
        /// From a rank.
        "passed" => Passed(Passed),
        /// From a rank.
        "damaged" => Damaged(Damaged),
        /// From the sender.
        "send_taken" => SendTaken(SendTaken),
        /// From the sender.
        "send_over" => SendOver(SendOver),
        /// From the receiver.
        "expected" => Expected(Expected),
        /// From the receiver.
        "arrived" => Arrived(Arrived),
        /// From the receiver.
        "not_arriving" => NotArriving(NotArriving),
        /// From anybody.
        "rejected" => Rejected(Rejected),
    }
}

wire! {
    /// A part of a restore was taken.
    pub struct Restored {
        /// Which.
        pub part: u32,
    }
}

/// Everything that can reach the index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IndexIn {
    /// From outside: an engine, a router, an operator.
    Request(Request),
    /// From inside the group.
    News(IndexNews),
}

impl IndexIn {
    /// Reads a body of `kind`; `None` for an unknown kind.
    pub fn decode_body(kind: &str, body: &[u8]) -> Option<Result<Self, super::Malformed>> {
        if let Some(request) = Request::decode_body(kind, body) {
            return Some(request.map(Self::Request));
        }
        IndexNews::decode_body(kind, body).map(|news| news.map(Self::News))
    }
}

wire_enum! {
    /// Everything that can reach the allocator.
    pub enum AllocatorIn {
        /// Take pages.
        "reserve" => Reserve(Reserve),
        /// Give pages back.
        "free" => Free(Free),
        /// Begin an incarnation.
        "restore" => Restore(Restore),
        /// Open L1.
        "open_lanes" => OpenLanes(OpenLanes),
        /// Compare.
        "count" => Count(Count),
        /// The evictor has done what it could.
        "room_made" => RoomMade(RoomMade),
        /// An owner speaks for its reservation.
        "whose_is" => WhoseIs(WhoseIs),
    }
}

wire_enum! {
    /// Everything that can reach the evictor.
    pub enum EvictorIn {
        /// From the allocator, or from an operator.
        "make_room" => MakeRoom(MakeRoom),
        /// From the index.
        "evicted" => Evicted(Evicted),
    }
}

wire_enum! {
    /// Everything that can reach the writer.
    pub enum WriterIn {
        /// From the index.
        "backup" => Backup(Backup),
        /// From the index.
        "backup_verdict" => BackupVerdict(BackupVerdict),
        /// From the index.
        "rank_is" => RankIs(RankIs),
        /// From the allocator.
        "reserved" => Reserved(Reserved),
        /// From the allocator.
        "short" => Short(Short),
        /// From the allocator.
        "freed" => Freed(Freed),
        /// From the allocator.
        "whose" => Whose(Whose),
        /// From a rank.
        "copy_ack" => CopyAck(CopyAck),
        /// From a rank.
        "sealed" => Sealed(Sealed),
        /// From anybody.
        "rejected" => Rejected(Rejected),
    }
}

wire_enum! {
    /// Everything that can reach the loader.
    pub enum LoaderIn {
        /// From the index.
        "load" => Load(Load),
        /// From the index.
        "release_slot" => ReleaseSlot(ReleaseSlot),
        /// From the index.
        "rank_is" => RankIs(RankIs),
        /// From the allocator.
        "reserved" => Reserved(Reserved),
        /// From the allocator.
        "short" => Short(Short),
        /// From the allocator.
        "freed" => Freed(Freed),
        /// From the allocator.
        "whose" => Whose(Whose),
        /// From a rank.
        "copy_ack" => CopyAck(CopyAck),
        /// From anybody.
        "rejected" => Rejected(Rejected),
    }
}

wire_enum! {
    /// Everything that can reach the sender.
    pub enum SenderIn {
        /// From the index.
        "send_open" => SendOpen(SendOpen),
        /// From the index.
        "send_part" => SendPart(SendPart),
        /// From the index.
        "send_end" => SendEnd(SendEnd),
        /// From the index.
        "send_stop" => SendStop(SendStop),
        /// From the index.
        "rank_is" => RankIs(RankIs),
        /// From a rank.
        "pushed" => Pushed(Pushed),
        /// From a rank.
        "push_stopped" => PushStopped(PushStopped),
        /// From a peer's receiver.
        "met" => Met(Met),
        /// From a peer's receiver.
        "wanted" => Wanted(Wanted),
        /// From a peer's receiver.
        "received" => Received(Received),
        /// From a peer's receiver.
        "cease" => Cease(Cease),
        /// From a peer's receiver.
        "ceased_heard" => CeasedHeard(CeasedHeard),
        /// From anybody.
        "rejected" => Rejected(Rejected),
    }
}

wire_enum! {
    /// Everything that can reach the receiver.
    pub enum ReceiverIn {
        /// From the index.
        "expect" => Expect(Expect),
        /// From the index.
        "unexpect" => Unexpect(Unexpect),
        /// From the index.
        "handover_settled" => HandoverSettled(HandoverSettled),
        /// From the index.
        "rank_is" => RankIs(RankIs),
        /// From a rank.
        "accepting" => Accepting(Accepting),
        /// From a rank.
        "landed" => Landed(Landed),
        /// From a rank.
        "revoked" => Revoked(Revoked),
        /// From a peer's sender.
        "meet" => Meet(Meet),
        /// From a peer's sender.
        "offer" => Offer(Offer),
        /// From a peer's sender.
        "finished" => Finished(Finished),
        /// From a peer's sender.
        "ceased" => Ceased(Ceased),
        /// From anybody.
        "rejected" => Rejected(Rejected),
    }
}

/// Name of another group, as subjects have it.
pub type GroupName = std::sync::Arc<str>;

/// One message to a member of the group, or to its counterpart in another group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outgoing {
    /// To the index.
    Index(IndexNews),
    /// To the allocator.
    Allocator(AllocatorIn),
    /// To the evictor.
    Evictor(EvictorIn),
    /// To the writer.
    Writer(WriterIn),
    /// To the loader.
    Loader(LoaderIn),
    /// To the sender.
    Sender(SenderIn),
    /// To the receiver.
    Receiver(ReceiverIn),
    /// To the sender of another group.
    PeerSender(GroupName, SenderIn),
    /// To the receiver of another group.
    PeerReceiver(GroupName, ReceiverIn),
    /// To one rank.
    Rank(Rank, RankIn),
    /// To whoever listens: pages stored and removed.
    Event(CacheEvent),
}
