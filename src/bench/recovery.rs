//! `hicached bench recovery`: everything of a group is killed and started again; how long until it serves, and whether
//! every page is served again.
//!
//! The group is processes: a broker, the control group, each rank, and an engine in this one, which dies with its
//! pools. What was sealed on the hosts is found again; the same prompts are asked again and every byte is compared.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use futures_util::stream;
use hicached_actors::calls::draw;
use hicached_actors::protocol::{Address, Key};
use hicached_client::bus::Bus;
use hicached_client::client::Client;
use hicached_client::engine::{Engine, Prompt, Verify};
use hicached_client::tokens::PagePlan;
use serde::Serialize;
use tokio::time::{Instant, sleep};

use super::error::{BenchError, clean};
use super::processes::{Processes, ranks};
use crate::bus::server::nats_server;
use crate::config::{BusKind, Checked, ComponentConfig, ConfigRefused};
use crate::replay::figures::{figures, named};
use crate::replay::folder::Folder;
use crate::replay::load::Load;
use crate::replay::options::built_in;
use crate::replay::signals::Signals;
use crate::shell::connect;

/// Arguments of `bench recovery`.
#[derive(Args, Clone, Debug)]
pub struct RecoveryArgs {
    /// One JSON object in place of the table
    #[arg(long)]
    pub json: bool,
    /// Host records of each run, in 10^9 bytes of memory; the device pool comes on top
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=512))]
    pub gb: u32,
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// One per size of a record.
    pub runs: Vec<Recovered>,
}

/// One group that was killed.
#[derive(Clone, Debug, Serialize)]
pub struct Recovered {
    /// Bytes of one record.
    pub record_bytes: u64,
    /// Sealed records, over all ranks.
    pub records: u64,
    /// Ranks, each a process.
    pub ranks: u8,
    /// How long it took to fill, bytes written and copied.
    pub filled_ms: u64,
    /// From the first start until the broker listens.
    pub broker_ms: f64,
    /// From there until every process says that it serves, the ranks with their pools attached.
    pub started_ms: f64,
    /// From the first start until the engine is registered and sessions can begin.
    pub ready_ms: f64,
    /// From the begin of the control group until every page table is read.
    pub read_ms: f64,
    /// From there until the tree is built and the allocator knows what is taken.
    pub rebuilt_ms: f64,
    /// From there until L1 is open: engines mapped, nothing launched before still running.
    pub opened_ms: f64,
    /// Records read and built into the tree, a second.
    pub records_per_s: f64,
    /// Pages that the same prompts were served from L2.
    pub hit_pages: u64,
    /// Bytes of them that were compared.
    pub bytes_verified: u64,
    /// Pieces of pages that were wrong.
    pub mismatches: u64,
}

/// Measures large and small records, one after the other. `progress` is called after each.
///
/// # Errors
/// [`BenchError`]; nothing is left behind.
pub async fn run(args: &RecoveryArgs, mut progress: impl FnMut()) -> Result<Report, BenchError> {
    let mut signals = Signals::heard().map_err(BenchError::Signals)?;
    let mut runs = Vec::new();
    for model in [LARGE, SMALL] {
        runs.push(model.measure(u64::from(args.gb) * 1_000_000_000, &mut signals).await?);
        progress();
    }
    Ok(Report { runs })
}

/// Whose records are stored.
struct Model {
    /// Layers of the target; the draft has one.
    layers: u32,
    kv_bytes: u32,
    /// 0 for none.
    index_bytes: u32,
    /// Pages of one prompt.
    prompt_pages: u32,
    l1_pages: u32,
}

/// A GLM-5-class model: 78 layers and a draft layer, KV in fp8 with scales, index keys.
const LARGE: Model = Model { layers: 78, kv_bytes: 41_984, index_bytes: 8_448, prompt_pages: 32, l1_pages: 64 };
/// Records of 64 KiB, so that there are many.
const SMALL: Model = Model { layers: 3, kv_bytes: 16_384, index_bytes: 0, prompt_pages: 512, l1_pages: 1_024 };

impl Model {
    async fn measure(&self, bytes: u64, signals: &mut Signals) -> Result<Recovered, BenchError> {
        let mut group = self.group(bytes)?;
        let _folder = Folder::create(&mut group)?;
        let hosted: Vec<String> = ranks(RANKS).chain(["control".to_owned()]).collect();
        let processes = Processes::new(&mut group, Some(&nats_server(Path::new("."))?), &hosted)?;
        processes.through(signals, async |processes| self.recovered(&group, processes).await).await
    }

    async fn recovered(&self, group: &Checked, processes: &mut Processes) -> Result<Recovered, BenchError> {
        let prompts = || (0..group.config.l2.pages / self.prompt_pages).map(|number| self.prompt(number));
        let records = u64::from(group.config.l2.pages);

        processes.start_broker().await?;
        let (_, (mut engine, bus)) = tokio::try_join!(processes.start_members(), self.engine(group))?;
        let began = Instant::now();
        let filled = async {
            clean(engine.run(stream::iter(prompts()), |_, _| ()).await)?;
            until(engine.client(), "index.cached_l2", records).await?;
            until(engine.client(), "index.in_flight", 0).await
        };
        processes.beside(filled).await?;
        let filled_ms = began.elapsed().as_millis() as u64;

        processes.kill().await;
        drop(engine);
        bus.close();

        let again = Instant::now();
        let broker_ms = ms(processes.start_broker().await?);
        let (started, (mut engine, bus)) = tokio::try_join!(processes.start_members(), self.engine(group))?;
        let started_ms = ms(started);
        let served = async {
            until(engine.client(), "index.serving", 1).await?;
            let ready_ms = ms(again.elapsed());
            let figures = figures(engine.client(), Address::Index).await?;
            Ok((ready_ms, figures, clean(engine.run(stream::iter(prompts()), |_, _| ()).await)?))
        };
        let (ready_ms, figures, report) = processes.beside(served).await?;
        engine.stop().await;
        bus.close();
        let end_ms = |name: &str| named(&figures, name) as f64 / 1_000.0;
        let [read, rebuilt, serving] = ["index.read_us", "index.rebuilt_us", "index.serving_us"].map(end_ms);
        Ok(Recovered {
            record_bytes: group.layout.record_bytes(),
            records,
            ranks: RANKS,
            filled_ms,
            broker_ms,
            started_ms,
            ready_ms,
            read_ms: read,
            rebuilt_ms: rebuilt - read,
            opened_ms: serving - rebuilt,
            records_per_s: records as f64 / (rebuilt / 1_000.0).max(f64::MIN_POSITIVE),
            hit_pages: report.hit_pages.l2,
            bytes_verified: report.bytes_verified,
            mismatches: report.mismatches,
        })
    }

    /// A group whose host tier holds `bytes` of records, and nothing more, on a broker whose port is not known yet.
    fn group(&self, bytes: u64) -> Result<Checked, ConfigRefused> {
        let mut config = built_in(&[])?;
        let component = |name: &str, layers: u32, page_bytes: u32| ComponentConfig {
            name: name.to_owned(),
            dtype: "bytes".to_owned(),
            layers: Some(layers),
            page_bytes: vec![page_bytes],
        };
        let rows = [
            ("target.kv", self.layers, self.kv_bytes),
            ("target.index", self.layers, self.index_bytes),
            ("draft.kv", 1, self.kv_bytes),
            ("draft.index", 1, self.index_bytes),
        ];
        let rows = rows.into_iter().filter(|(.., bytes)| *bytes > 0);
        config.model.components = rows.map(|(name, layers, bytes)| component(name, layers, bytes)).collect();
        let record_bytes = u64::from(self.layers + 1) * u64::from(self.kv_bytes + self.index_bytes);
        let prompts = (bytes / record_bytes / u64::from(self.prompt_pages)).max(1);
        config.bus.kind = BusKind::Nats;
        (config.group.cp_size, config.group.shared_kv, config.group.compute_tokens_min) = (RANKS, true, 0);
        config.l1.pages = self.l1_pages;
        config.l2.pages = u32::try_from(prompts).unwrap_or(u32::MAX).saturating_mul(self.prompt_pages);
        config.l2.free_room = "off".to_owned();
        config.checked()
    }

    async fn engine(&self, group: &Checked) -> Result<(Engine, Arc<dyn Bus>), BenchError> {
        let bus = connect(&group.config.bus).await?;
        let (chunk_tokens, verify) = (u32::MAX, Verify::Hits);
        let load = Load { sessions: SESSIONS, chunk_tokens, abort_permille: 0, verify, seed: 1 };
        Ok((Engine::start(bus.clone(), load.engine_config(group, None)).await?, bus))
    }

    /// A prompt that shares nothing with any other.
    fn prompt(&self, number: u32) -> Prompt {
        let mut chance = u64::from(number) << 32;
        let keys = (0..self.prompt_pages).map(|_| {
            let mut key = [0; 16];
            key[..8].copy_from_slice(&draw(&mut chance).to_le_bytes());
            key[8..].copy_from_slice(&draw(&mut chance).to_le_bytes());
            Key(key)
        });
        Prompt::new("bench", PagePlan::of_keys(Key([1; 16]), keys.collect(), PAGE_TOKENS))
    }
}

/// Waits until a figure of the index has a value.
async fn until(client: &Client, what: &'static str, want: u64) -> Result<(), BenchError> {
    let began = Instant::now();
    loop {
        let have = named(&figures(client, Address::Index).await?, what);
        if have == want {
            return Ok(());
        }
        if began.elapsed() > SETTLED_MAX {
            return Err(BenchError::Late { after: SETTLED_MAX, what, have, want });
        }
        sleep(PAUSE).await;
    }
}

fn ms(of: Duration) -> f64 {
    of.as_secs_f64() * 1_000.0
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, run) in self.runs.iter().enumerate() {
            let bytes = run.record_bytes * run.records;
            let head = format!("{} records of {} bytes, {} ranks", run.records, run.record_bytes, run.ranks);
            writeln!(f, "{head}, {:.1} GB, filled in {} ms", bytes as f64 / 1e9, run.filled_ms)?;
            for (what, ms) in [
                ("ready", run.ready_ms),
                ("  broker", run.broker_ms),
                ("  processes, pools attached", run.started_ms),
                ("page tables read", run.read_ms),
                ("tree and allocator rebuilt", run.rebuilt_ms),
                ("L1 opened", run.opened_ms),
            ] {
                writeln!(f, "{what:<32}{ms:>10.1} ms")?;
            }
            writeln!(f, "{:<32}{:>10.0}", "records a second", run.records_per_s)?;
            let end = if at + 1 < self.runs.len() { "\n\n" } else { "" };
            let (hit, wrong) = (run.hit_pages, run.mismatches);
            write!(f, "{hit} pages hit in L2, {} bytes compared, {wrong} mismatches{end}", run.bytes_verified)?;
        }
        Ok(())
    }
}

const RANKS: u8 = 4;
/// What the device pool has room for.
const SESSIONS: usize = 2;
const PAGE_TOKENS: u32 = 64;
/// Backups of the last prompts have ended after less.
const SETTLED_MAX: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_have_the_size_they_are_to_have_and_prompts_fill_every_lane() {
        for (model, record_bytes, pages) in [(LARGE, 3_984_128, 992), (SMALL, 65_536, 60_928)] {
            let group = model.group(4_000_000_000).unwrap();
            assert_eq!((group.layout.record_bytes(), group.config.l2.pages), (record_bytes, pages));
            assert_eq!(model.prompt_pages % (2 * u32::from(RANKS)), 0, "each rank owns as many of a prompt's pages");
        }
    }
}
