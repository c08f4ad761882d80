//! A whole group on a bus, for what a bus does to the conversations of machines.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use hicached::config::{Checked, ComponentConfig, Config, Layers, load};
use hicached::rank::{PoolView, layout_of};
use hicached::shell::LocalGroup;
use hicached_actors::protocol::{Address, FORMAT_VERSION, Flush, Key, KeyRoot, Keys};
use hicached_client::engine::{Engine, EngineConfig, Prompt};
use hicached_client::shm::Segment;
use hicached_client::tokens::{PagePlan, Paging};
use hicached_kernels::layout::{Component, HostPage};

use super::*;

/// A running group and the folder of its pool files, which goes with it.
pub(crate) struct Group {
    pub(crate) running: LocalGroup,
    checked: Checked,
    folder: PathBuf,
}

impl Drop for Group {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.folder).ok();
    }
}

impl Group {
    /// One rank or more with so many pages per tier; 12 layers and a draft layer.
    pub(crate) async fn start(bus: Arc<dyn Bus>, cp_size: u8, l1_pages: u32, l2_pages: u32) -> Self {
        Self::start_with(bus, cp_size, l1_pages, l2_pages, |_| ()).await
    }

    pub(crate) async fn start_with(
        bus: Arc<dyn Bus>,
        cp_size: u8,
        l1_pages: u32,
        l2_pages: u32,
        change: impl FnOnce(&mut Config),
    ) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("bus-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(format!("hicached-{name}"));
        std::fs::create_dir_all(&folder).unwrap();
        let set = ["group.shared_kv=true", "bus.kind=nats", "l1.free_room=off", "l2.free_room=off"];
        let mut config = load(&Layers { set: set.map(str::to_owned).to_vec(), ..Layers::default() }).unwrap();
        let component = |name: &str, layers: usize| ComponentConfig {
            name: name.into(),
            dtype: "u8".into(),
            layers: None,
            page_bytes: vec![64; layers],
        };
        config.group.name = name;
        config.group.cp_size = cp_size;
        (config.l1.pages, config.l2.pages) = (l1_pages, l2_pages);
        config.model.components = vec![component("target.kv", 12), component("draft.kv", 1)];
        config.rank.pool_folder = folder.clone();
        change(&mut config);
        let checked = config.checked().unwrap();
        let running = LocalGroup::start(&checked, bus).await.unwrap();
        Self { running, checked, folder }
    }

    /// An engine that waits for the daemon as long as anything here may take.
    pub(crate) async fn engine(&self, bus: Arc<dyn Bus>, sessions_max: usize) -> Engine {
        let config = &self.checked.config;
        let physical_pages = config.l1.pages / u32::from(config.group.cp_size) + 1;
        let config = EngineConfig {
            sessions_max,
            away_after: LONG,
            seed: 5,
            ..EngineConfig::new(config.group.name.clone(), self.checked.manifest.clone(), physical_pages, &self.folder)
        };
        let engine = Engine::start(bus, config).await.unwrap();
        self.until("serving", async || self.figure(Address::Index, "index.serving").await > 0).await;
        engine
    }

    pub(crate) fn name(&self) -> &str {
        &self.checked.config.group.name
    }

    pub(crate) async fn figure(&self, of: Address, name: &str) -> u64 {
        self.running.figure(of, name).await
    }

    /// One figure summed over all members.
    pub(crate) async fn sum(&self, name: &str) -> u64 {
        let all = self.running.figures().await;
        all.iter().flat_map(|(_, figures)| figures).filter(|(of, _)| *of == name).map(|(_, value)| value).sum()
    }

    pub(crate) async fn free_pages(&self) -> (u64, u64) {
        let free = async |name| self.figure(Address::Allocator, name).await;
        (free("allocator.l1_free_pages").await, free("allocator.l2_free_pages").await)
    }

    /// Waits for a state of the group that nobody announces.
    pub(crate) async fn until(&self, what: &str, reached: impl AsyncFn() -> bool) {
        let started = Instant::now();
        while !reached().await {
            assert!(started.elapsed() < LONG, "{what}: {:?}", self.running.figures().await);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// A prompt of so many whole pages that shares nothing with one of another `text`.
    pub(crate) fn prompt(&self, text: u32, pages: u32) -> Prompt {
        let manifest = &self.checked.manifest;
        let paging = Paging { page_tokens: manifest.page_tokens, lookahead_tokens: manifest.draft_lookahead_tokens };
        // One token more, so that the last page is whole and something is left to compute.
        let tokens: Vec<u32> = (0..pages * paging.page_tokens + 1).map(|at| text * 1_000_000 + at).collect();
        Prompt::new("tenant", PagePlan::of_tokens(self.salt(), &tokens, paging, |_| &[]))
    }

    fn salt(&self) -> Key {
        let root = KeyRoot {
            target_model: "model".into(),
            draft_model: "draft".into(),
            weights_version: "1".into(),
            manifest_digest: self.checked.manifest.digest(),
            page_tokens: self.checked.manifest.page_tokens,
            format_version: FORMAT_VERSION,
            adapter: String::new(),
            tenant_salt: b"salt".to_vec(),
        };
        root.key()
    }

    /// Changes one bit of the sealed record of `key`, on whichever rank it is.
    pub(crate) fn damage(&self, key: Key) {
        for rank in 0..self.checked.config.group.cp_size {
            let path = self.folder.join(format!("hicached-{}-rank{rank}.pool", self.name()));
            let view = PoolView::open(&path).unwrap();
            let Some((slot, _)) = view.sealed().find(|(_, row)| row.key == key) else { continue };
            let layout = layout_of(&self.checked.manifest).unwrap();
            let pool = Segment::open(&path).unwrap();
            let mut word = [0; 8];
            pool.read(RECORDS_OFFSET_FIELD * 8, &mut word).unwrap();
            let at = u64::from_ne_bytes(word) + layout.host_offset(HostPage(slot), Component::TargetKv, 5).unwrap();
            pool.read(at, &mut word).unwrap();
            word[3] ^= 4;
            return pool.write(at, &word).unwrap();
        }
        panic!("no sealed record of {key:?}");
    }

    /// Gives every page up and waits until all are free.
    pub(crate) async fn gives_everything_back(&self, engine: &Engine) {
        let (l1, l2) = (u64::from(self.checked.config.l1.pages), u64::from(self.checked.config.l2.pages));
        self.until("all pages free", async || {
            let flush = Flush { tier: 0, salt: Vec::new(), prefix: Keys::default(), quarantined: false };
            engine.client().flush(flush).await.unwrap();
            self.free_pages().await == (l1, l2)
        })
        .await;
    }
}

/// Word of the header of a pool file.
const RECORDS_OFFSET_FIELD: u64 = 14;
