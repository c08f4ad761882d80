//! `hicached check`: faults of a configuration, or its capacity.

use clap::Args;

use super::{Failure, GroupsArgs, print, print_json};
use crate::config::{Plan, TierPlan};

/// Arguments of `check`.
#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    #[command(flatten)]
    config: GroupsArgs,
    /// The plan of each group as one JSON object on a line
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &CheckArgs) -> Result<(), Failure> {
    let groups = args.config.checked()?;
    for group in &groups {
        let plan = group.plan();
        if args.json { print_json(&plan)? } else { print(&table(&plan))? }
    }
    for group in groups.iter().filter(|_| !args.json) {
        let (name, transfer) = (&group.config.group.name, &group.config.transfer);
        for to in &transfer.to {
            let is_read = groups.iter().any(|other| other.config.group.name == *to);
            let known = if is_read { "compared" } else { "not compared: its configuration is not among these" };
            print(&format!("{name} hands over to {to} by {}, {known}", transfer.backend))?;
        }
    }
    Ok(())
}

fn table(plan: &Plan) -> String {
    let Plan { group, cp_size, page_tokens, record_bytes, .. } = plan;
    let mut lines = vec![
        format!("group {group}: {cp_size} ranks, pages of {page_tokens} tokens, {record_bytes} bytes each"),
        format!(
            "{:<5}{:>12}{:>14}{:>18}{:>18}{:>12}",
            "tier", "pages", "tokens", "bytes per rank", "bytes", "free room"
        ),
    ];
    for (name, tier) in [("L1", &plan.l1), ("L2", &plan.l2)] {
        let TierPlan { pages, tokens, bytes_per_rank, bytes, low_pages_per_rank, high_pages_per_rank } = tier;
        let room = format!("{low_pages_per_rank},{high_pages_per_rank}");
        lines.push(format!("{name:<5}{pages:>12}{tokens:>14}{bytes_per_rank:>18}{bytes:>18}{room:>12}"));
    }
    lines.push(format!("host memory pinned: {} bytes per rank, {} in all", plan.l2.bytes_per_rank, plan.l2.bytes));
    lines.push(format!("longest request: {} tokens", plan.longest_request_tokens));
    lines.push(format!("metadata: {} bytes", plan.metadata_bytes));
    lines.join("\n")
}
