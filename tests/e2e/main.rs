//! Groups spread over processes: real processes of the program, a real nats-server, an engine in this one.
//! Without a nats-server everything here prints "skipped"; where `CI` is `true` it fails.

mod bench;
mod collectors;
mod crash_points;
mod handover;
mod processes;
mod receiver;
mod refused;
mod replaced;
mod rival;
mod served;
mod traces;
mod up;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::stream;
use hicached::bus::Bus;
use hicached::bus::nats::{NatsBus, NatsConfig};
use hicached::bus::server::{NatsServer, find_nats_server};
use hicached::config::{Checked, Layers, load};
use hicached::replay::workload::Workload;
use hicached_actors::protocol::Address;
use hicached_client::client::Client;
use hicached_client::engine::{Engine, EngineConfig, Prompt, Report};

use processes::Process;

/// Longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// The nats-server to test with, `None` where there is none; where there has to be one, its absence fails.
fn nats_server() -> Option<PathBuf> {
    let program = find_nats_server(env!("CARGO_MANIFEST_DIR").as_ref());
    if program.is_none() {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "CI has to test over NATS: run scripts/tools");
        eprintln!("skipped: no nats-server; scripts/tools installs one");
    }
    program
}

/// A broker, a folder for files and pools, and a configuration of two ranks per group.
struct World {
    broker: NatsServer,
    folder: PathBuf,
}

impl World {
    /// `None` where there is no nats-server.
    fn new(name: &str) -> Option<Self> {
        let program = nats_server()?;
        let folder = std::env::temp_dir().join(format!("hicached-e2e-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        Some(Self { broker: NatsServer::start(&program, &[]).expect("a broker"), folder })
    }

    /// The configuration file of the group `name`, made once.
    fn file(&self, name: &str) -> PathBuf {
        let file = self.folder.join(format!("{name}.toml"));
        if file.exists() {
            // A process may be reading it.
            return file;
        }
        let (url, folder) = (self.broker.url(), self.folder.display());
        let components: String = [("target.kv", "128, 128, 128"), ("draft.kv", "128")]
            .map(|(name, bytes)| {
                format!("[[model.components]]\nname = \"{name}\"\ndtype = \"bytes\"\npage_bytes = [{bytes}]\n")
            })
            .concat();
        let text = format!(
            "[group]\nname = \"{name}\"\ncp_size = 2\nshared_kv = true\nrequest_pages_max = 256\n{components}\
             [l1]\npages = 512\n[l2]\npages = 2048\n[bus]\nkind = \"nats\"\nurl = \"{url}\"\n\
             [rank]\npool_folder = \"{folder}\"\n[leases]\nrank_ms = 1000\ncontrol_ms = 1000\n"
        );
        std::fs::write(&file, text).expect("written");
        file
    }

    /// What the file of the group `name` says.
    fn checked(&self, name: &str) -> Checked {
        let layers = Layers { file: Some(self.file(name)), ..Layers::default() };
        load(&layers).expect("it loads").checked().expect("it passes")
    }

    /// A process that hosts `run` of the group `name`.
    fn process(&self, name: &str, run: &str) -> Process {
        self.process_with(name, run, &[])
    }

    fn process_with(&self, name: &str, run: &str, more: &[&str]) -> Process {
        let file = self.file(name).display().to_string();
        let run = format!("actors.run={run}");
        Process::start(&[&["serve", "--config", &file, "--set", &run], more].concat())
    }

    async fn bus(&self) -> Arc<dyn Bus> {
        Arc::new(NatsBus::connect(&NatsConfig::new(self.broker.url())).await.expect("a connection"))
    }

    /// An engine of the group `name`, which waits for a group that is away.
    async fn engine(&self, name: &str) -> Engine {
        let group = self.checked(name);
        let physical_pages = group.config.l1.pages / u32::from(group.config.group.cp_size) + 1;
        let config = EngineConfig {
            sessions_max: 4,
            away_after: LONG,
            deadline: LONG,
            room_patience: LONG,
            ..EngineConfig::new(name, group.manifest, physical_pages, &self.folder)
        };
        Engine::start(self.bus().await, config).await.expect("the group takes the engine")
    }

    /// The first requests of the demo's workload: conversations that share prefixes.
    fn prompts(&self, name: &str, count: usize) -> Vec<Prompt> {
        Workload::new(7, &self.checked(name).manifest).take(count).collect()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.broker.kill();
        std::fs::remove_dir_all(&self.folder).expect("removed");
    }
}

/// Every actor of a group in a process of its own; the one with the index comes first.
const APART: [&str; 9] =
    ["index", "allocator", "writer", "loader", "evictor", "sender", "receiver", "rank.0", "rank.1"];

/// Serves `prompts`; every request ends well and every byte is right.
async fn serve(engine: &mut Engine, prompts: Vec<Prompt>) -> Report {
    let report = engine.run(stream::iter(prompts), |_, _| ()).await;
    assert!(report.is_clean(), "{report:?}");
    assert!(report.bytes_verified > 0 || (report.hit_pages.l1, report.hit_pages.l2) == (0, 0), "{report:?}");
    report
}

/// Waits until `figure` of the actor `of` is what `wanted` says.
async fn until(client: &Client, of: Address, figure: &str, wanted: impl Fn(u64) -> bool) {
    let started = Instant::now();
    loop {
        let figures = client.figures(of).await.expect("figures");
        let value = figures.counters.iter().find(|(name, _)| name == figure).expect("a figure of that name").1;
        if wanted(value) {
            return;
        }
        assert!(started.elapsed() < LONG, "{figure} of {of} stays {value}");
    }
}
