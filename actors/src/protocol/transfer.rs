//! How pages of a prefill group reach a decode group: what an index, its sender or receiver, the peer in the other
//! group and the ranks say to each other. The op of every envelope is the transfer's id, which a router gave; every
//! body names the attempt, which only the router raises.
//!
//! ```text
//! prefill                                                            decode
//! index --send_open--> sender --meet, offer--> receiver <--expect-- index     (each may come first)
//!                                         receiver --accept--> rank
//! sender <--wanted-- receiver <--accepting-- rank
//! index --send_part--> sender --push--> ranks ==bytes==> rank            (again and again)
//! index --send_end--> sender <--pushed-- ranks
//!                     sender --finished--> receiver --report--> rank
//! index <--send_over-- sender <--received-- receiver <--landed-- rank
//!                                         receiver --arrived--> index --handed_over--> engine
//! ```

use super::codec::{Bin, Owners, Pages, PeerPages, Positions, wire};
use super::{Incarnation, Manifest, OpId, Rank, Refusal};

wire! {
    /// The handover that a session takes part in.
    pub struct HandoverWish {
        /// The id a router gave.
        pub transfer: OpId,
        /// Raised by the router for each new try, from 1; lower ones are refused and ignored.
        pub attempt: u32,
        /// The decode group its pages go to; empty on the side that receives.
        pub to: String,
    }
    /// Waits for the pages of a transfer; asked on the decode side, and answered when they are there.
    pub struct Handover {
        /// The transfer.
        pub transfer: OpId,
        /// The attempt.
        pub attempt: u32,
        /// The tenant of the session that receives.
        pub tenant: String,
    }
    /// Every byte of the request is in the session's pages.
    pub struct HandedOver {
        /// Valid tokens, from the first on.
        pub tokens: u32,
        /// Pages that came over; those before them were here.
        pub received: u32,
        /// What the prefill engine gave with its `close`.
        pub blob: Bin,
        /// Components that came over when the other group does not store all of this one's, or stores more; empty when
        /// both store the same. Pages that came so serve this session only.
        pub components: Vec<String> = default,
    }

    /// To the sender: pages of this session will be named in parts, to be sent.
    pub struct SendOpen {
        /// The attempt.
        pub attempt: u32,
        /// The decode group.
        pub to: String,
        /// The session whose pages they are.
        pub session: OpId,
        /// Tokens of its prompt.
        pub tokens: u32,
    }
    /// To the sender: pages that stay until it says `send_over`.
    pub struct SendPart {
        /// The attempt.
        pub attempt: u32,
        /// Parts count from 0 and are taken in order.
        pub part: u32,
        /// Position of the first page.
        pub first: u32,
        /// L1 pages in path order.
        pub pages: Pages,
        /// The step that computes them; 0 when they are complete already.
        pub step: u64,
    }
    /// From the sender: so many parts are taken; the answer to `send_open` and `send_part`.
    pub struct SendTaken {
        /// The attempt.
        pub attempt: u32,
        /// Parts taken so far.
        pub parts: u32,
    }
    /// To the sender: every page of the request is named.
    pub struct SendEnd {
        /// The attempt.
        pub attempt: u32,
        /// How many parts there are.
        pub parts: u32,
        /// Valid tokens of the request.
        pub tokens: u32,
        /// Opaque bytes for the decode engine.
        pub blob: Bin,
    }
    /// To the sender: give the attempt up.
    pub struct SendStop {
        /// The attempt.
        pub attempt: u32,
        /// Why.
        pub cause: String,
    }
    /// From the sender: nothing reads the pages of this attempt any more; the answer to `send_end` and `send_stop`.
    pub struct SendOver {
        /// The attempt.
        pub attempt: u32,
        /// Whether the decode side has all of it.
        pub ok: bool,
        /// Why not.
        pub cause: String,
    }

    /// To the receiver: a transfer for these pages will come.
    pub struct Expect {
        /// The attempt.
        pub attempt: u32,
        /// Tokens of the prompt.
        pub tokens: u32,
        /// Position of the first page that is wanted; those before it are here, complete.
        pub first: u32,
        /// L1 pages for the positions from there on.
        pub pages: Pages,
    }
    /// From the receiver: taken.
    pub struct Expected {
        /// The attempt.
        pub attempt: u32,
    }
    /// To the receiver: give the attempt up.
    pub struct Unexpect {
        /// The attempt.
        pub attempt: u32,
        /// Why.
        pub cause: String,
    }
    /// From the receiver, repeated until settled: the set is complete.
    pub struct Arrived {
        /// The attempt.
        pub attempt: u32,
        /// Valid tokens.
        pub tokens: u32,
        /// What the prefill engine gave.
        pub blob: Bin,
        /// Components that came over, when the two groups do not store the same; else empty.
        pub components: Vec<String> = default,
    }
    /// From the receiver, repeated until settled: nothing can write the pages of this attempt any more, and it did
    /// not complete.
    pub struct NotArriving {
        /// The attempt.
        pub attempt: u32,
        /// Why.
        pub cause: String,
    }
    /// The end of an attempt has been taken in.
    pub struct HandoverSettled {
        /// The attempt.
        pub attempt: u32,
    }

    /// To the peer's receiver: compare what both store, and hear of each other. Repeated as the sender's sign of
    /// life. The op is one that the sender drew for this peer; whatever answers it carries it.
    pub struct Meet {
        /// The sender's group.
        pub group: String,
        /// What it stores.
        pub manifest: Manifest,
    }
    /// To the peer's sender: the manifests agree, and the receiver lives.
    pub struct Met {
        /// How long the receiver waits for the next `meet` before it takes the sender for dead.
        pub lease_ms: u64,
    }
    /// To the peer's receiver: pages of this transfer can be had.
    pub struct Offer {
        /// The attempt.
        pub attempt: u32,
        /// The sender's group.
        pub group: String,
        /// Tokens of the prompt.
        pub tokens: u32,
    }
    /// To the peer's sender: these positions, into these slots.
    pub struct Wanted {
        /// The attempt.
        pub attempt: u32,
        /// Positions in ascending order.
        pub positions: Positions,
        /// The physical page of each at its receiver.
        pub slots: PeerPages,
        /// Where the receiving rank takes bytes.
        pub endpoint: String,
        /// What a frame has to carry to be taken.
        pub grant: Bin,
        /// Components that both groups store, when these are not all of either; empty for all.
        pub components: Vec<String> = default,
    }
    /// To the peer's receiver: every wanted page has been sent and acknowledged by the rank there.
    pub struct Finished {
        /// The attempt.
        pub attempt: u32,
        /// Valid tokens of the request.
        pub tokens: u32,
        /// Which rank sent each wanted position, in their order.
        pub owners: Owners,
        /// The rank that was the last to have sent everything.
        pub straggler: Rank,
        /// Opaque bytes for the decode engine.
        pub blob: Bin,
    }
    /// To the peer's sender: the set is complete.
    pub struct Received {
        /// The attempt.
        pub attempt: u32,
    }
    /// To the peer's sender: stop, and say when nothing writes any more.
    pub struct Cease {
        /// The attempt.
        pub attempt: u32,
        /// Why.
        pub cause: String,
    }
    /// To the peer's receiver: nothing of this attempt is written any more, and it will not complete. The answer to
    /// `cease`; unasked, repeated until `ceased_heard`, when the sender's side ends it.
    pub struct Ceased {
        /// The attempt.
        pub attempt: u32,
        /// Why.
        pub cause: String,
    }
    /// To the peer's sender: that has been taken in.
    pub struct CeasedHeard {
        /// The attempt.
        pub attempt: u32,
    }

    /// To a receiving rank: bytes for these positions may land in these pages.
    pub struct Accept {
        /// The attempt.
        pub attempt: u32,
        /// Positions in ascending order.
        pub positions: Positions,
        /// The page of each.
        pub pages: Pages,
        /// Life of every rank that this is for, as in a backup.
        pub lives: Vec<Incarnation>,
        /// Components that will come; empty for all.
        pub components: Vec<String> = default,
    }
    /// From a receiving rank: they may.
    pub struct Accepting {
        /// The attempt.
        pub attempt: u32,
        /// The rank.
        pub rank: Rank,
        /// Where it takes bytes.
        pub endpoint: String,
        /// What a frame has to carry to be taken.
        pub grant: Bin,
    }
    /// To a receiving rank: what has landed?
    pub struct Report {
        /// The attempt.
        pub attempt: u32,
    }
    /// From a receiving rank.
    pub struct Landed {
        /// The attempt.
        pub attempt: u32,
        /// The rank.
        pub rank: Rank,
        /// Which rank's bytes landed at each position, in their order; [`NOBODY`] where a layer of a component is
        /// missing.
        pub owners: Owners,
        /// What was counted.
        pub figures: LandFigures,
    }
    /// To a receiving rank: nothing of this attempt may land any more.
    pub struct Revoke {
        /// The attempt.
        pub attempt: u32,
        /// The sender has said that it stopped; `false` fences a sender that is taken for dead.
        pub drained: bool,
    }
    /// From a receiving rank: nothing of it is being written, and nothing of it will be.
    pub struct Revoked {
        /// The attempt.
        pub attempt: u32,
        /// The rank.
        pub rank: Rank,
    }
    /// To a sending rank: send the pages it owns, each layer when its track has finished it.
    pub struct Push {
        /// The attempt.
        pub attempt: u32,
        /// Which part of it.
        pub part: u32,
        /// The step that computes the pages; 0 when they are complete.
        pub step: u64,
        /// Positions of this rank's pages, ascending.
        pub positions: Positions,
        /// Its page for each.
        pub pages: Pages,
        /// The physical page of each at the receiver.
        pub slots: PeerPages,
        /// Where the receiving rank takes bytes.
        pub endpoint: String,
        /// What a frame has to carry to be taken.
        pub grant: Bin,
        /// How long this rank's own transfer may take, from its first byte or from the end of the step, whichever is
        /// later: time in a queue is not transfer time.
        pub deadline_ms: u64,
        /// Life of every rank that this is for, as in a backup.
        pub lives: Vec<Incarnation>,
        /// Components to send; empty for all.
        pub components: Vec<String> = default,
    }
    /// From a sending rank.
    pub struct Pushed {
        /// The attempt.
        pub attempt: u32,
        /// The part.
        pub part: u32,
        /// The rank.
        pub rank: Rank,
        /// Every byte is where it belongs: the receiving rank has said so.
        pub complete: bool,
        /// Nothing of this part is sent any more, and it did not complete.
        pub failed: Vec<Refusal>,
        /// What was counted.
        pub figures: PushFigures,
    }
    /// To a sending rank: stop every part of an attempt.
    pub struct StopPush {
        /// The attempt.
        pub attempt: u32,
    }
    /// From a sending rank: nothing of the attempt is read or written any more.
    pub struct PushStopped {
        /// The attempt.
        pub attempt: u32,
        /// The rank.
        pub rank: Rank,
    }
    /// One rank's part of a transfer, measured where it was sent.
    pub struct PushFigures {
        /// Bytes of pages.
        pub bytes: u64,
        /// Runs contiguous at both ends, over all layers and components.
        pub runs: u64,
        /// Frames or descriptors they were sent as.
        pub descriptors: u64,
        /// Waited for a worker.
        pub queue_us: u64,
        /// Waited for layers that were not computed.
        pub layers_us: u64,
        /// Moved bytes.
        pub wire_us: u64,
        /// From the order to the acknowledgement.
        pub total_us: u64,
    }
    /// What a receiving rank counted of one transfer.
    pub struct LandFigures {
        /// Bytes of pages.
        pub bytes: u64,
        /// Buffers it has registered, one per component and layer with bytes.
        pub buffers: u64,
        /// Bytes or frames refused before they were written.
        pub refused: u64,
    }
}

impl PushFigures {
    /// Nothing measured.
    pub const NONE: Self =
        Self { bytes: 0, runs: 0, descriptors: 0, queue_us: 0, layers_us: 0, wire_us: 0, total_us: 0 };

    /// Adds what was counted of another part; the total of parts that overlap is that of the longest.
    pub fn add(&mut self, part: &Self) {
        for (sum, more) in [
            (&mut self.bytes, part.bytes),
            (&mut self.runs, part.runs),
            (&mut self.descriptors, part.descriptors),
            (&mut self.queue_us, part.queue_us),
            (&mut self.layers_us, part.layers_us),
            (&mut self.wire_us, part.wire_us),
        ] {
            *sum = sum.saturating_add(more);
        }
        self.total_us = self.total_us.max(part.total_us);
    }
}

/// The owner of a position that has not landed in every layer of every component.
pub const NOBODY: u8 = u8::MAX;
/// Most bytes of a handover's blob (requirement C8).
pub const BLOB_BYTES_MAX: usize = 256 << 10;
