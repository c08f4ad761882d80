//! Replays whole traces on the bare tree and compares the hits, request by request, with what was computed
//! elsewhere (`expected.json` beside the traces, `leaf_lru`).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use hicached_actors::prefix_index::tree::{PrefixTree, SaltId, Victim};
use hicached_actors::protocol::{PageId, Tier};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::pages::PageSplit;
use super::trace::Trace;

#[derive(Deserialize)]
struct Expected {
    traces: BTreeMap<String, ExpectedTrace>,
}

#[derive(Deserialize)]
struct ExpectedTrace {
    file: String,
    #[serde(default)]
    pages: BTreeMap<u64, ExpectedPages>,
}

#[derive(Deserialize)]
struct ExpectedPages {
    unique_pages: usize,
    infinite: ExpectedHits,
    capacity_pages: BTreeMap<usize, ExpectedCapacity>,
}

#[derive(Deserialize)]
struct ExpectedCapacity {
    leaf_lru: ExpectedHits,
}

#[derive(Deserialize)]
struct ExpectedHits {
    hit_pages: u64,
    per_request_sha256: String,
    #[serde(default)]
    evicted_pages: u64,
    resident_at_end: Option<u64>,
}

#[derive(Default)]
struct Outcome {
    hit_pages: u64,
    evicted_pages: u64,
    resident_at_end: u64,
    per_request: Sha256,
}

/// One request after another: match, touch the whole path, make room for what is missing, store it. A request's
/// own pages are the youngest, so that they are safe while others are left.
fn replay(trace: &Trace, split: PageSplit, capacity: usize) -> Outcome {
    let salt = SaltId(0);
    let mut tree = PrefixTree::new(1, capacity);
    let mut outcome = Outcome::default();
    let (mut keys, mut nodes) = (Vec::new(), Vec::new());
    let mut victims: Vec<Victim> = Vec::new();
    for (number, request) in trace.requests.iter().enumerate() {
        let tick = number as u64;
        keys.clear();
        keys.extend(split.keys(request));
        nodes.clear();
        let found = tree.match_into(salt, &keys, &mut nodes);
        nodes.iter().for_each(|node| tree.touch(*node, tick));
        let missing = &keys[found.l1 as usize..];
        tree.validate_path(salt, found.last, missing).expect("a path of the trace");
        victims.clear();
        let over = (tree.len() + missing.len()).saturating_sub(capacity) as u32;
        let done = tree.victims(Tier::L1, &mut [over], over, &mut victims);
        assert_eq!(done.taken, over);
        let mut parent = found.last;
        for key in missing {
            let node = tree.insert(parent, *key, salt, tick).expect("validated");
            tree.set_l1(node, PageId(node.index() as u32 + 1));
            parent = Some(node);
        }
        outcome.hit_pages += u64::from(found.l1);
        outcome.evicted_pages += u64::from(over);
        outcome.per_request.update(format!("{}\n", found.l1));
    }
    tree.check_invariants();
    outcome.resident_at_end = tree.len() as u64;
    outcome
}

impl Outcome {
    fn compare(self, expected: &ExpectedHits, name: &str) {
        assert_eq!(self.hit_pages, expected.hit_pages, "{name}: hit pages");
        assert_eq!(self.evicted_pages, expected.evicted_pages, "{name}: evicted pages");
        if let Some(resident) = expected.resident_at_end {
            assert_eq!(self.resident_at_end, resident, "{name}: resident at the end");
        }
        let hex = self.per_request.finalize().iter().fold(String::new(), |mut hex, byte| {
            write!(hex, "{byte:02x}").expect("a string takes all");
            hex
        });
        assert_eq!(hex, expected.per_request_sha256, "{name}: hits per request");
    }
}

/// Where the traces are, or `None` when the test is to be skipped.
fn traces() -> Option<PathBuf> {
    let folder = std::env::var_os("HICACHED_TRACES")
        .map_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/traces")), PathBuf::from);
    if folder.join("expected.json").is_file() {
        return Some(folder);
    }
    assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "no traces in {}", folder.display());
    eprintln!("skipped: no traces in {} (HICACHED_TRACES names another folder)", folder.display());
    None
}

#[test]
fn every_trace_at_every_page_size_and_capacity_hits_what_lru_hits() {
    let Some(folder) = traces() else { return };
    let expected = std::fs::read(folder.join("expected.json")).expect("readable");
    let expected: Expected = serde_json::from_slice(&expected).expect("as its README says");
    for (name, entry) in expected.traces {
        // Traces without block ids have no pages.
        if entry.pages.is_empty() {
            continue;
        }
        let trace = Trace::open(&folder.join(&entry.file)).expect("a trace");
        for (page_units, pages) in entry.pages {
            let split = trace.split(page_units).expect("a multiple");
            let name = format!("{name} at {page_units}");
            replay(&trace, split, pages.unique_pages).compare(&pages.infinite, &format!("{name}, infinite"));
            for (capacity, expected) in &pages.capacity_pages {
                replay(&trace, split, *capacity).compare(&expected.leaf_lru, &format!("{name}, {capacity} pages"));
            }
        }
    }
}
