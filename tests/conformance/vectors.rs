//! The vectors of transfers.

use hicached::wire::Name;
use hicached_actors::protocol::OpId;
use serde::Deserialize;

use crate::world::{Plan, shuffled};

#[derive(Deserialize)]
struct File {
    transfers: Vec<Vector>,
}

/// A request and what each rank sends of it.
#[derive(Deserialize)]
pub(crate) struct Vector {
    pub(crate) cp_size: u8,
    pub(crate) tokens: u32,
    owners: Vec<u8>,
    physical_page: Vec<u32>,
    decode_prefix_pages: u32,
    pub(crate) sends: Vec<Send>,
    valid_tokens_in_last_page: u32,
}

/// What one rank sends.
#[derive(Deserialize)]
pub(crate) struct Send {
    pub(crate) rank: u8,
    pub(crate) positions: Vec<u32>,
    source_pages: Vec<u32>,
}

/// Every vector.
pub(crate) fn positions() -> Vec<Vector> {
    let file = include_str!("../data/positions.json");
    let file: File = serde_json::from_str(file).expect("a file of this shape");
    assert!(!file.transfers.is_empty());
    file.transfers
}

impl Vector {
    /// The plan it stands for, into pages that a seed scatters.
    pub(crate) fn plan(&self) -> Plan {
        let pages = self.owners.len() as u32;
        assert_eq!(self.tokens - (pages - 1) * 64, self.valid_tokens_in_last_page, "one tail page, not padded");
        let name = Name { transfer: OpId([1; 16]), attempt: 1 };
        let mut slots = shuffled(4_096, u64::from(self.tokens));
        slots.truncate((pages - self.decode_prefix_pages) as usize);
        let (owners, sources) = (self.owners.clone(), self.physical_page.clone());
        let plan = Plan { name, owners, sources, prefix: self.decode_prefix_pages, slots };
        for send in &self.sends {
            let of_rank = |(at, _): &(usize, u32)| plan.owners[*at] == send.rank;
            let positions: Vec<u32> = plan.wanted().filter(of_rank).map(|(_, position)| position).collect();
            let sources: Vec<u32> = plan.wanted().filter(of_rank).map(|(at, _)| plan.sources[at]).collect();
            assert_eq!((&positions, &sources), (&send.positions, &send.source_pages), "{} tokens", self.tokens);
        }
        plan
    }
}
