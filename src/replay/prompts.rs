//! From the requests of a trace to the prompts of an engine.

use hicached_actors::protocol::Manifest;
use hicached_client::engine::Prompt;
use hicached_client::tokens::{BlockPlans, Paging};

use super::options::Job;
use super::trace::Trace;
use super::workload::root;

/// The tenant of every request of a trace: a trace is one namespace.
pub const TENANT: &str = "trace";

/// The keys of `trace` in a group that stores what `manifest` says.
pub(super) fn plans(trace: &Trace, manifest: &Manifest) -> BlockPlans {
    let paging = Paging { page_tokens: manifest.page_tokens, lookahead_tokens: manifest.draft_lookahead_tokens };
    let block_tokens = u32::try_from(trace.block_units).unwrap_or(u32::MAX);
    BlockPlans::new(root(manifest, TENANT), paging, block_tokens)
}

/// Request `number` of `trace`.
pub(super) fn prompt(plans: &mut BlockPlans, trace: &Trace, number: usize, whole_pages: bool) -> Prompt {
    let request = &trace.requests[number];
    let tokens = u32::try_from(request.input_length).unwrap_or(u32::MAX);
    // Ids of blocks count up from 0: the other end of the numbers is free for what belongs to one request alone.
    let plan = plans.plan(&request.hash_ids, tokens, u64::MAX - number as u64);
    Prompt::new(TENANT, if whole_pages { plan.whole_pages() } else { plan })
}

/// The prompts of `job` in the order in which they are sent. With `whole_pages` the tail that fills no page is left
/// out, as the stated semantics want it.
pub fn prompts(job: &Job, whole_pages: bool) -> impl Iterator<Item = Prompt> {
    let mut plans = plans(&job.trace, &job.group.manifest);
    job.sent.iter().map(move |number| prompt(&mut plans, &job.trace, *number, whole_pages))
}
