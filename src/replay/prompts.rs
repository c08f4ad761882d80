//! From the requests of a trace to the prompts of an engine.

use hicached_client::engine::Prompt;
use hicached_client::tokens::{BlockPlans, Paging};

use super::options::Job;
use super::workload::root;

/// The tenant of every request of a trace: a trace is one namespace.
const TENANT: &str = "trace";

/// The prompts of `job` in the order in which they are sent. With `whole_pages` the tail that fills no page is left
/// out, as the stated semantics want it.
pub fn prompts(job: &Job, whole_pages: bool) -> impl Iterator<Item = Prompt> {
    let manifest = &job.group.manifest;
    let paging = Paging { page_tokens: manifest.page_tokens, lookahead_tokens: manifest.draft_lookahead_tokens };
    let block_tokens = u32::try_from(job.trace.block_units).unwrap_or(u32::MAX);
    let mut plans = BlockPlans::new(root(manifest, TENANT), paging, block_tokens);
    job.sent.iter().map(move |number| {
        let request = &job.trace.requests[*number];
        let tokens = u32::try_from(request.input_length).unwrap_or(u32::MAX);
        // Ids of blocks count up from 0: the other end of the numbers is free for what belongs to one request alone.
        let plan = plans.plan(&request.hash_ids, tokens, u64::MAX - *number as u64);
        Prompt::new(TENANT, if whole_pages { plan.whole_pages() } else { plan })
    })
}
