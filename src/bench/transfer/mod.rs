//! `hicached bench transfer`: pages from the pools of sending ranks into the pool of a receiving one, by every backend
//! of this build, beside a plain copy of the same runs and beside bare sockets (requirement M1).
//!
//! All of it happens in one process on one machine: ranks are threads with pools of their own in shared memory, and TCP
//! goes over the loopback. Each round measures every way in turn, and ratios are those of one round, so that a machine
//! that does something else at the same time hits both sides of a ratio alike. What a way has moved is compared byte
//! by byte once in each case, before it is measured.

mod clock;
mod crew;
mod plain;
mod report;
mod scene;
mod way;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use hicached_actors::allocator::owners::OwnersError;
use hicached_actors::protocol::Refusal;
use hicached_client::shm::ShmError;
use hicached_kernels::layout::{Component, LayoutRefused, NoSuchLayer};
use hicached_kernels::runs::RunsError;

use self::clock::Spent;
use self::plain::{Memcpy, Sockets};
use self::scene::{LAYER_BYTES, Scene, Shape};
use self::way::{Plane, Way};
use super::allocator::RECORD_BYTES;
use crate::wire::nixl::{Nixl, NixlSettings};
use crate::wire::shm::{Shm, ShmSettings};
use crate::wire::tcp::{Tcp, TcpSettings};
use crate::wire::{Event, Missing, PoolFault, StartError};

pub use report::{Absent, Against, Aim, Handovers, Latency, Rate, Report, Row};
pub use scene::Ends;

use report::Sample;

/// Arguments of `bench transfer`.
#[derive(Args, Clone, Debug)]
pub struct TransferArgs {
    /// One JSON object in place of the table
    #[arg(long)]
    pub json: bool,
    /// Bytes of the largest request; each side keeps as many in memory. 2 GiB where 32 GiB are free, else 256 MiB
    #[arg(long, value_parser = clap::value_parser!(u64).range(BYTES_MIN..=BYTES_MAX))]
    pub max_bytes: Option<u64>,
    /// Most ranks that send at a time
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u8).range(1..=8))]
    pub ranks: u8,
    /// Rounds of each case; medians over them are reported
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Handovers of each kind that are timed one by one
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub handovers: u32,
    /// Where the pools stand: a folder in memory
    #[arg(long, default_value = "/dev/shm")]
    pub folder: PathBuf,
    /// Folder of libnixl_capi.so, to measure NIXL as well
    #[arg(long, env = "HICACHED_NIXL", value_name = "FOLDER")]
    pub nixl: Option<PathBuf>,
    /// Seed of the orders of pages
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// Too little memory for the pools of both sides.
    #[error("--max-bytes {bytes_max} needs {wanted_bytes} bytes in {} and in memory, {free_bytes} are free", folder.display())]
    Room {
        /// The largest request.
        bytes_max: u64,
        /// What its pools and all around them need.
        wanted_bytes: u64,
        /// What there is.
        free_bytes: u64,
        /// Where the pools were to be.
        folder: PathBuf,
    },
    /// The operating system refused.
    #[error("cannot {what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// Its error.
        source: std::io::Error,
    },
    /// No memory for a pool.
    #[error(transparent)]
    Shm(#[from] ShmError),
    /// The shape of a page is refused.
    #[error(transparent)]
    Layout(#[from] LayoutRefused),
    /// Pool and layout do not fit.
    #[error(transparent)]
    Layer(#[from] NoSuchLayer),
    /// A pool is smaller than its buffers.
    #[error(transparent)]
    Pool(#[from] PoolFault),
    /// No owners for so many ranks.
    #[error(transparent)]
    Owners(#[from] OwnersError),
    /// Pages do not pair up.
    #[error(transparent)]
    Runs(#[from] RunsError),
    /// A backend does not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A backend refused a grant or a push.
    #[error("refused: {0:?}")]
    Refused(Refusal),
    /// A push did not complete.
    #[error("{way}: {event:?}")]
    Ended {
        /// Which way.
        way: &'static str,
        /// What came in place of its completion.
        event: Box<Event>,
    },
    /// A completed push has left something out.
    #[error("{way}: {missing:?} has not landed")]
    Missing {
        /// Which way.
        way: &'static str,
        /// What.
        missing: Missing,
    },
    /// Bytes arrived wrong.
    #[error("{way}: page {page} of {component} layer {layer} holds other bytes than were sent")]
    Wrong {
        /// Which way.
        way: &'static str,
        /// The component.
        component: Component,
        /// The layer.
        layer: u32,
        /// The page at the receiver.
        page: u32,
    },
    /// Nothing came for too long.
    #[error("a transfer was not over after {LONG:?}")]
    Late,
    /// It was told to stop.
    #[error("interrupted")]
    Stopped,
}

impl TransferError {
    /// Wraps an error of the system.
    fn io(what: &str) -> impl FnOnce(std::io::Error) -> Self + use<> {
        let what = what.to_owned();
        |source| Self::Io { what, source }
    }
}

impl From<Refusal> for TransferError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// How often [`run`] calls its `progress`.
pub fn steps(args: &TransferArgs) -> u64 {
    let bytes_max = bytes_max(args);
    let (cases, handovers) = (cases(bytes_max, args.ranks).len(), handovers(bytes_max, args.ranks).0.len());
    cases as u64 * u64::from(args.rounds) + handovers as u64 * u64::from(args.handovers)
}

/// Measures everything until `stop` is set. `progress` is called after each round, and after each timed handover.
///
/// # Errors
/// [`TransferError`]; nothing is left behind.
pub fn run(args: &TransferArgs, stop: &AtomicBool, mut progress: impl FnMut()) -> Result<Report, TransferError> {
    let bytes_max = bytes_max(args);
    check_room(args, bytes_max)?;
    let mut step = || {
        progress();
        if stop.load(Ordering::Relaxed) { Err(TransferError::Stopped) } else { Ok(()) }
    };
    let load_before = load();
    let mut rows = Vec::new();
    for shape in cases(bytes_max, args.ranks) {
        rows.extend(measure(args, shape, &mut step)?);
    }
    let (shapes, left_out) = handovers(bytes_max, args.ranks);
    let mut handovers = Vec::new();
    for shape in shapes {
        handovers.push(time_handovers(args, shape, &mut step)?);
    }
    let (tcp, shm) = (TcpSettings::default(), ShmSettings::new(&args.folder, NAME_AT_SHM));
    Ok(Report {
        cores: std::thread::available_parallelism().map_or(0, usize::from),
        load_before,
        load_after: load(),
        record_bytes: RECORD_BYTES,
        rounds: args.rounds,
        streams_per_rank: tcp.streams,
        frame_bytes: tcp.frame_bytes,
        copy_threads_per_rank: shm.threads,
        aims: report::aims(&rows),
        rows,
        handovers,
        absent: absent(args).chain(left_out).collect(),
    })
}

/// All ways over one pair of pools, at both kinds of ends.
fn measure(
    args: &TransferArgs,
    shape: Shape,
    step: &mut impl FnMut() -> Result<(), TransferError>,
) -> Result<Vec<Row>, TransferError> {
    let scene = Arc::new(Scene::new(&args.folder, shape, args.seed)?);
    let mut ways = ways(&scene, args.nixl.as_deref())?;
    // A single page stands beside nothing.
    let kinds = if shape.pages == 1 { &Ends::ALL[..1] } else { &Ends::ALL[..] };
    warm(&scene, &mut ways, kinds)?;
    let repeats = (SAMPLE_BYTES_MIN / shape.bytes()).clamp(1, REPEATS_MAX);
    let mut samples = vec![vec![Vec::new(); ways.len()]; kinds.len()];
    for round in 0..args.rounds as usize {
        for nth in 0..ways.len() {
            let at = (round + nth) % ways.len();
            for (ends, samples) in kinds.iter().zip(&mut samples) {
                let mut spent = Spent::default();
                let mut counted = (0, 0);
                for _ in 0..repeats {
                    let moved = ways[at].transfer(*ends)?;
                    spent += moved.spent;
                    counted = (moved.descriptors, moved.runs);
                }
                samples[at].push(Sample::of(shape.bytes() * repeats, spent, counted));
            }
        }
        step()?;
    }
    let names: Vec<&'static str> = ways.iter().map(|way| way.name()).collect();
    Ok(Row::of(shape, kinds, &names, &samples))
}

/// Handovers of scattered pages, one after the other, the ways in turn.
fn time_handovers(
    args: &TransferArgs,
    shape: Shape,
    step: &mut impl FnMut() -> Result<(), TransferError>,
) -> Result<Handovers, TransferError> {
    let scene = Arc::new(Scene::new(&args.folder, shape, args.seed)?);
    let mut ways = ways(&scene, args.nixl.as_deref())?;
    warm(&scene, &mut ways, &[Ends::Scattered])?;
    let mut times = vec![Vec::new(); ways.len()];
    for _ in 0..args.handovers {
        for (way, times) in ways.iter_mut().zip(&mut times) {
            times.push(way.transfer(Ends::Scattered)?.whole);
        }
        step()?;
    }
    let latencies = ways.iter().zip(times).map(|(way, times)| Latency::of(way.name(), times)).collect();
    let Shape { pages, layers, ranks } = shape;
    Ok(Handovers { pages, layers, bytes: shape.bytes(), ranks, timed: args.handovers, latencies })
}

fn ways(scene: &Arc<Scene>, nixl: Option<&Path>) -> Result<Vec<Box<dyn Way>>, TransferError> {
    let (tcp, shm) = (TcpSettings::default(), ShmSettings::new(scene.folder(), NAME_AT_SHM));
    let checked = TcpSettings { checksum: true, ..tcp.clone() };
    let (streams, threads) = (tcp.streams, shm.threads);
    let mut ways: Vec<Box<dyn Way>> = vec![
        Box::new(Memcpy::new(scene, threads)?),
        Box::new(Sockets::new(scene, streams)?),
        Box::new(Plane::new("tcp", &Tcp::new(tcp).map_err(first)?, scene)?),
        Box::new(Plane::new("tcp_checked", &Tcp::new(checked).map_err(first)?, scene)?),
        Box::new(Plane::new("shm", &Shm::new(shm).map_err(first)?, scene)?),
    ];
    if let Some(library) = nixl {
        let settings = NixlSettings { library: library.to_owned(), ..NixlSettings::default() };
        let ucx = NIXL_OVER_TCP.map(str::to_owned).to_vec();
        let over_tcp = Nixl::new(NixlSettings { ucx, ..settings.clone() }).map_err(first)?;
        ways.push(Box::new(Plane::new("nixl", &Nixl::new(settings).map_err(first)?, scene)?));
        ways.push(Box::new(Plane::new("nixl_tcp", &over_tcp, scene)?));
    }
    Ok(ways)
}

/// Moves everything once by each way and compares it; after that nothing is touched for the first time.
fn warm(scene: &Scene, ways: &mut [Box<dyn Way>], kinds: &[Ends]) -> Result<(), TransferError> {
    for way in ways {
        for ends in kinds {
            scene.poison()?;
            way.transfer(*ends)?;
            scene.check(way.name(), *ends)?;
        }
    }
    Ok(())
}

fn first(faults: Vec<StartError>) -> TransferError {
    faults.into_iter().next().map_or(TransferError::Late, TransferError::Start)
}

/// Requests from small to large of one rank, then the largest of several.
fn cases(bytes_max: u64, ranks_max: u8) -> Vec<Shape> {
    let sizes = SIZES_BYTES.into_iter().filter(|bytes| *bytes < bytes_max).chain([bytes_max]);
    let of_one = sizes.map(|bytes| shape_of(bytes, 1));
    let of_more = [2, 4, 8].into_iter().filter(|ranks| *ranks <= ranks_max).map(|ranks| shape_of(bytes_max, ranks));
    of_one.chain(of_more).collect()
}

/// As many whole records as `bytes` hold; of less than one, a page of fewer layers.
fn shape_of(bytes: u64, ranks: u8) -> Shape {
    let (pages, layers) = if bytes < RECORD_BYTES { (1, bytes / LAYER_BYTES) } else { (bytes / RECORD_BYTES, LAYERS) };
    Shape { pages: pages as u32, layers: layers as u32, ranks }
}

/// The kinds of handovers that are timed, from one rank and from the most; and what does not fit.
fn handovers(bytes_max: u64, ranks_max: u8) -> (Vec<Shape>, Option<Absent>) {
    let mut ranks = vec![1, ranks_max];
    ranks.dedup();
    let (mut shapes, mut absent) = (Vec::new(), None);
    for pages in HANDOVER_PAGES {
        match (bytes_max / (pages * LAYER_BYTES)).min(LAYERS) {
            0 => {
                let why = format!("--max-bytes {bytes_max}: one layer of them has {} bytes", pages * LAYER_BYTES);
                absent = Some(Absent { name: format!("handovers of {pages} pages"), why });
            }
            layers => {
                let shape = |ranks: &u8| Shape { pages: pages as u32, layers: layers as u32, ranks: *ranks };
                shapes.extend(ranks.iter().map(shape));
            }
        }
    }
    (shapes, absent)
}

/// Backends that are not measured.
fn absent(args: &TransferArgs) -> impl Iterator<Item = Absent> {
    let all = [Some(NO_NIXL).filter(|_| args.nixl.is_none()), Some(NO_MOONCAKE)];
    all.into_iter().flatten().map(|(name, why)| Absent { name: name.to_owned(), why: why.to_owned() })
}

fn bytes_max(args: &TransferArgs) -> u64 {
    let usual = || if memory_free().is_some_and(|bytes| bytes >= ROOMY_BYTES) { BYTES_MAX } else { BYTES_SMALL };
    args.max_bytes.unwrap_or_else(usual)
}

fn check_room(args: &TransferArgs, bytes_max: u64) -> Result<(), TransferError> {
    let what = format!("look at the free space of {}", args.folder.display());
    let folder = rustix::fs::statvfs(&args.folder).map_err(|errno| TransferError::io(&what)(errno.into()))?;
    let in_folder = folder.f_bavail.saturating_mul(folder.f_frsize);
    let free_bytes = memory_free().map_or(in_folder, |bytes| bytes.min(in_folder));
    let wanted_bytes = 2 * bytes_max + ROOM_BYTES;
    if free_bytes < wanted_bytes {
        return Err(TransferError::Room { bytes_max, wanted_bytes, free_bytes, folder: args.folder.clone() });
    }
    Ok(())
}

/// Bytes that may be used without swapping; none where the kernel does not tell.
fn memory_free() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1 << 10)
}

/// Mean number of threads that ran or wanted to, in the last minute.
fn load() -> Option<f64> {
    std::fs::read_to_string(Path::new("/proc/loadavg")).ok()?.split(' ').next()?.parse().ok()
}

const SIZES_BYTES: [u64; 5] = [1 << 20, 16 << 20, 64 << 20, 256 << 20, 1 << 30];
const BYTES_MIN: u64 = 1 << 20;
const BYTES_SMALL: u64 = 256 << 20;
const BYTES_MAX: u64 = 2 << 30;
/// With so much memory free nobody misses what the largest request takes.
const ROOMY_BYTES: u64 = 32 << 30;
/// Padding pages, grants, and what sockets hold.
const ROOM_BYTES: u64 = 128 << 20;
const LAYERS: u64 = 79;
const _: () = assert!(LAYERS * LAYER_BYTES == RECORD_BYTES);
/// A prompt of 256 tokens, and one of 131,072.
const HANDOVER_PAGES: [u64; 2] = [4, 2_048];
/// A sample of a small request is of many.
const SAMPLE_BYTES_MIN: u64 = 64 << 20;
const REPEATS_MAX: u64 = 64;
const NAME_AT_SHM: &str = "bench";
/// UCX as bare sockets are measured: over the loopback alone.
const NIXL_OVER_TCP: [&str; 2] = ["TLS=tcp", "NET_DEVICES=lo"];
const NO_NIXL: (&str, &str) = ("nixl", "no --nixl or HICACHED_NIXL names the folder of libnixl_capi.so");
const NO_MOONCAKE: (&str, &str) =
    ("mooncake", "it is no backend: what its peers have begun to write cannot be taken back");
/// No transfer takes so long, however busy the machine.
const LONG: Duration = Duration::from_secs(120);

#[cfg(test)]
mod tests {
    use super::*;

    fn args() -> TransferArgs {
        let folder = if Path::new("/dev/shm").is_dir() { "/dev/shm".into() } else { std::env::temp_dir() };
        TransferArgs {
            json: false,
            max_bytes: Some(5 << 20),
            ranks: 2,
            rounds: 2,
            handovers: 3,
            folder,
            nixl: None,
            seed: 1,
        }
    }

    #[test]
    fn every_way_moves_the_right_bytes_in_every_case_and_what_is_left_out_is_named() {
        let mut calls = 0;
        let report = run(&args(), &AtomicBool::new(false), || calls += 1).expect("a report");
        assert_eq!(calls, steps(&args()));
        // One page of 20 layers, one record, the same from two ranks: one page each time.
        assert_eq!(report.rows.len(), 3);
        for row in &report.rows {
            assert_eq!(row.rates.len(), 5, "{row:?}");
            assert!(row.rates.iter().all(|rate| rate.gb_per_s > 0.0 && rate.runs > 0), "{row:?}");
        }
        let named: Vec<&str> = report.absent.iter().map(|absent| absent.name.as_str()).collect();
        assert_eq!(named, ["nixl", "mooncake", "handovers of 2048 pages"]);
        assert_eq!(report.handovers.len(), 2);
        assert!(report.to_string().contains("tcp_checked"));
    }

    #[test]
    fn a_run_that_is_told_to_stop_says_so() {
        assert!(matches!(run(&args(), &AtomicBool::new(true), || ()), Err(TransferError::Stopped)));
    }

    #[test]
    fn sizes_are_whole_records_up_to_the_largest_that_was_asked_for() {
        let pages = |bytes_max| {
            cases(bytes_max, 8).iter().map(|shape| (shape.pages, shape.layers, shape.ranks)).collect::<Vec<_>>()
        };
        assert_eq!(pages(64 << 20), [(1, 20, 1), (4, 79, 1), (16, 79, 1), (16, 79, 2), (16, 79, 4), (16, 79, 8)]);
        let layers = handovers(BYTES_SMALL, 8)
            .0
            .iter()
            .map(|shape| (shape.pages, shape.layers, shape.ranks))
            .collect::<Vec<_>>();
        assert_eq!(layers, [(4, 79, 1), (4, 79, 8), (2_048, 2, 1), (2_048, 2, 8)]);
    }
}
