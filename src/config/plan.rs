//! What a configuration amounts to: tokens per tier, bytes pinned, the longest request.

use hicached_actors::allocator::PagePool;
use serde::Serialize;

use super::Checked;

/// The capacity of a group.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    /// The group's name.
    pub group: String,
    /// Ranks.
    pub cp_size: u8,
    /// Tokens of a page.
    pub page_tokens: u32,
    /// Bytes of one page: every layer of every component.
    pub record_bytes: u64,
    /// Device memory.
    pub l1: TierPlan,
    /// Host memory.
    pub l2: TierPlan,
    /// Tokens of the longest request: what the device holds, at most `request_pages_max` pages.
    pub longest_request_tokens: u64,
    /// Bytes of bitmaps and index entries when both tiers are full.
    pub metadata_bytes: u64,
}

/// The capacity of one tier.
#[derive(Clone, Debug, Serialize)]
pub struct TierPlan {
    /// Usable pages of the group.
    pub pages: u32,
    /// Tokens they hold.
    pub tokens: u64,
    /// Bytes of one rank's pool, padding and tiles included; of L1 the engine's device memory, of L2 pinned host memory.
    pub bytes_per_rank: u64,
    /// Bytes of all ranks.
    pub bytes: u64,
    /// Free pages per rank below which room is made.
    pub low_pages_per_rank: u32,
    /// Free pages per rank up to which room is made.
    pub high_pages_per_rank: u32,
}

impl Checked {
    /// Pages that one largest chunk needs on one rank.
    pub fn chunk_pages_per_rank(&self) -> u32 {
        let group = &self.config.group;
        group.chunk_tokens_max.div_ceil(group.page_tokens).div_ceil(u32::from(group.cp_size))
    }

    /// What the configuration amounts to.
    pub fn plan(&self) -> Plan {
        let (group, cp_size) = (&self.config.group, u32::from(self.config.group.cp_size));
        let (l1_lane, l2_lane) = (self.config.l1.pages / cp_size, self.config.l2.pages / cp_size);
        let l1_bytes = u64::from(l1_lane + 1) * self.layout.record_bytes();
        let tier = |lane: u32, bytes_per_rank: u64, room: super::FreeRoom| {
            let marks = room.marks(lane, self.chunk_pages_per_rank());
            TierPlan {
                pages: lane * cp_size,
                tokens: u64::from(lane) * u64::from(cp_size) * u64::from(group.page_tokens),
                bytes_per_rank,
                bytes: bytes_per_rank * u64::from(cp_size),
                low_pages_per_rank: marks.low_pages(),
                high_pages_per_rank: marks.high_pages(),
            }
        };
        let bitmap = |slots: u32| PagePool::new(slots, 0).map_or(0, |pool| pool.metadata_bytes() as u64);
        let bitmaps = (bitmap(l1_lane + 1) + bitmap(l2_lane)) * u64::from(cp_size);
        let entries = u64::from(self.config.l1.pages.max(self.config.l2.pages));
        let longest_pages = self.config.l1.pages.min(group.request_pages_max);
        Plan {
            group: group.name.clone(),
            cp_size: group.cp_size,
            page_tokens: group.page_tokens,
            record_bytes: self.layout.record_bytes(),
            l1: tier(l1_lane, l1_bytes, self.l1_room),
            l2: tier(l2_lane, self.layout.host_pool_bytes(l2_lane), self.l2_room),
            longest_request_tokens: u64::from(longest_pages) * u64::from(group.page_tokens),
            metadata_bytes: bitmaps + entries * INDEX_BYTES_PER_PAGE,
        }
    }
}

/// Bytes of one page in the index, both tiers, owners, pins and recency in it (`hicached bench index`).
const INDEX_BYTES_PER_PAGE: u64 = 80;
