//! Prompts that go over from a group of two ranks to a decode group, each in processes of its own.

use hicached_actors::protocol::{FORMAT_VERSION, Key, KeyRoot};
use hicached_client::engine::{RoutedReport, Router};
use hicached_client::tokens::PagePlan;

use super::*;

const PAGE_TOKENS: u32 = 64;
/// What pages are made of; a layer of one component has no bytes.
const COMPONENTS: [(&str, &str); 4] =
    [("target.kv", "128, 128, 128"), ("target.index", "64, 0, 64"), ("draft.kv", "128"), ("draft.index", "64")];

/// Two groups whose ranks move pages by `backend`.
struct Pair {
    world: World,
    backend: &'static str,
}

impl Pair {
    /// A world of its own for each `name` and backend.
    fn new(name: &str, backend: &'static str) -> Option<Self> {
        Some(Self { world: World::new(&format!("{name}-{backend}"))?, backend })
    }

    /// The configuration of one side, which stores the first of [`COMPONENTS`].
    fn file(&self, name: &str, cp_size: u8, to: &str, components: usize) -> PathBuf {
        let (url, folder, backend) = (self.world.broker.url(), self.world.folder.display(), self.backend);
        let components: Vec<String> = COMPONENTS[..components]
            .iter()
            .map(|(name, bytes)| {
                format!("[[model.components]]\nname = \"{name}\"\ndtype = \"bytes\"\npage_bytes = [{bytes}]\n")
            })
            .collect();
        let components = components.concat();
        let shared = cp_size > 1;
        let text = format!(
            "[group]\nname = \"{name}\"\ncp_size = {cp_size}\nshared_kv = {shared}\nrequest_pages_max = 64\n{components}\
             [l1]\npages = 512\n[l2]\npages = 512\n[bus]\nkind = \"nats\"\nurl = \"{url}\"\n\
             [rank]\npool_folder = \"{folder}\"\n[transfer]\nbackend = \"{backend}\"\nto = [{to}]\n"
        );
        let file = self.world.folder.join(format!("{name}.toml"));
        std::fs::write(&file, text).expect("written");
        file
    }

    /// Starts a control process and one of its ranks for each side.
    fn processes(&self) -> Vec<Process> {
        self.serve([self.file("prefill", 2, "\"decode\"", 4), self.file("decode", 1, "", 4)])
    }

    fn serve(&self, files: [PathBuf; 2]) -> Vec<Process> {
        let mut all: Vec<Process> = files
            .iter()
            .flat_map(|file| ["control", "ranks"].map(|run| (file, run)))
            .map(|(file, run)| {
                let (file, run) = (file.display().to_string(), format!("actors.run={run}"));
                Process::start(&["serve", "--config", &file, "--set", &run])
            })
            .collect();
        all.iter_mut().for_each(|process| drop(process.ready()));
        all
    }

    async fn router(&self) -> Router {
        let (prefill, decode) = tokio::join!(self.world.engine("prefill"), self.world.engine("decode"));
        Router::new(prefill, decode, 4).expect("a decode engine of one rank")
    }

    /// Prompts of so many tokens each, which share nothing but what their numbers make equal.
    fn prompts(&self, lengths: impl Iterator<Item = u32>) -> Vec<(usize, Prompt)> {
        let group = self.world.checked("prefill");
        let root = KeyRoot {
            target_model: "model".into(),
            draft_model: "draft".into(),
            weights_version: "1".into(),
            manifest_digest: group.manifest.digest(),
            page_tokens: PAGE_TOKENS,
            format_version: FORMAT_VERSION,
            adapter: String::new(),
            tenant_salt: b"salt".to_vec(),
        };
        let (salt, paging): (Key, _) = (root.key(), EngineConfig::new("", group.manifest, 2, "").paging());
        let prompt = |(number, length): (usize, u32)| {
            let tokens: Vec<u32> = (0..length).map(|at| number as u32 * 100_000 + at).collect();
            let plan = PagePlan::of_tokens(salt, &tokens, paging, |_| &[]);
            (number, Prompt { output_tokens: 20, output_seed: number as u64, ..Prompt::new("tenant", plan) })
        };
        lengths.enumerate().map(prompt).collect()
    }
}

async fn hand_over(router: &mut Router, prompts: Vec<(usize, Prompt)>) -> RoutedReport {
    let requests = prompts.len() as u64;
    let report = router.run_numbered(stream::iter(prompts), |_, _| ()).await;
    assert!(report.whole.is_clean(), "{report:?}");
    assert_eq!((report.whole.requests, report.decode.handovers), (requests, requests), "{report:?}");
    report
}

async fn every_length_goes_over(backend: &'static str) {
    let Some(pair) = Pair::new("handover", backend) else { return };
    let mut processes = pair.processes();
    let mut router = pair.router().await;
    // No page, one and several before a tail of every length.
    let tails = || 1..PAGE_TOKENS;
    let lengths = tails().zip([0, 1, 5].into_iter().cycle()).map(|(tail, pages)| pages * PAGE_TOKENS + tail);
    let prompts = pair.prompts(lengths);
    let first = hand_over(&mut router, prompts.clone()).await;
    let pages: u64 = prompts.iter().map(|(_, prompt)| u64::from(prompt.plan.tokens.div_ceil(PAGE_TOKENS))).sum();
    assert_eq!(first.decode.handover_pages, pages);
    // The same prompts again: decode has their whole pages, and takes tails alone.
    let again = hand_over(&mut router, prompts).await;
    assert!(again.decode.handover_pages < pages && again.decode.hit_pages.l1 > 0, "{again:?}");
    for client in [router.prefill().client().clone(), router.decode().client().clone()] {
        until(&client, Address::Index, "index.in_flight", |ops| ops == 0).await;
    }
    router.stop().await;
    for process in &mut processes {
        let (code, log) = process.terminated();
        assert_eq!(code, Some(0), "{log}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prompts_of_every_tail_length_go_over_tcp() {
    every_length_goes_over("tcp").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prompts_of_every_tail_length_go_over_shared_memory() {
    every_length_goes_over("shm").await;
}

/// In a rolling upgrade one side of two plain groups stores more than the other: what both store goes over, and what
/// came so is nobody else's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn groups_that_store_different_components_hand_over_those_that_both_have() {
    for (prefill, decode) in [(4, 2), (2, 4)] {
        let Some(pair) = Pair::new("upgrade", if prefill > decode { "tcp" } else { "shm" }) else { return };
        let mut processes =
            pair.serve([pair.file("prefill", 1, "\"decode\"", prefill), pair.file("decode", 1, "", decode)]);
        let mut router = pair.router().await;
        let prompts = pair.prompts([640, 650, 63, 129].into_iter());
        for _ in 0..2 {
            let report = hand_over(&mut router, prompts.clone()).await;
            let pages: u64 =
                prompts.iter().map(|(_, prompt)| u64::from(prompt.plan.tokens.div_ceil(PAGE_TOKENS))).sum();
            assert_eq!((report.decode.handover_pages, report.decode.hit_pages.l1), (pages, 0), "{report:?}");
            assert!(report.decode.bytes_verified > 0, "{report:?}");
        }
        let client = router.decode().client().clone();
        until(&client, Address::Index, "index.came_incomplete", |sessions| sessions == 8).await;
        until(&client, Address::Index, "index.in_flight", |ops| ops == 0).await;
        router.stop().await;
        for process in &mut processes {
            let (code, log) = process.terminated();
            assert_eq!(code, Some(0), "{log}");
        }
    }
}
