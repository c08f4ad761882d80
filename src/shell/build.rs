//! Machines and ranks as a configuration wants them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use hicached_actors::allocator::{
    Allocator, AllocatorConfig, Contiguity as Runs, FreeRoom as Room, LedgerError, Marks,
};
use hicached_actors::evictor::{Evictor, EvictorConfig};
use hicached_actors::loader::{Loader, LoaderConfig};
use hicached_actors::prefix_index::{HandoverRules, Index, IndexConfig, WritePolicy as Policy};
use hicached_actors::protocol::{Address, Incarnation, Mismatch, Rank, Refusal, Taken};
use hicached_actors::receiver::{Receiver, ReceiverConfig};
use hicached_actors::sender::{Sender, SenderConfig};
use hicached_actors::writer::{Writer, WriterConfig};

use super::hosted::Bell;
use crate::bus::{Bus, BusError};
use crate::config::{Checked, ConfigRefused, Contiguity, WritePolicy, message_bytes_for};
use crate::rank::{CopyThreads, PoolSpec, RankError, RankHost, RankSetup};
use crate::telemetry::TelemetryError;

/// Why a group does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A subject cannot be served.
    #[error("{address} cannot be reached: {source}")]
    Serve {
        /// Whose subject.
        address: Address,
        /// Why not.
        source: BusError,
    },
    /// The broker carries less than the longest request needs.
    #[error("the bus carries {limit} bytes: requests of {pages} pages need {bytes}, lower group.request_pages_max")]
    SmallMessages {
        /// What the bus carries.
        limit: usize,
        /// Pages of the longest request.
        pages: u32,
        /// Bytes it needs.
        bytes: usize,
    },
    /// A rank cannot have its pool.
    #[error("{}: {source}", Address::Rank(*rank))]
    Rank {
        /// Which one.
        rank: Rank,
        /// Why not.
        source: RankError,
    },
    /// No allocator has such pools.
    #[error(transparent)]
    Pools(LedgerError),
    /// The subject of the leader cannot be served or asked.
    #[error("whether the group is led already cannot be known: {source}")]
    Lead {
        /// Why not.
        source: BusError,
    },
    /// Another process has the index of this group.
    #[error(
        "the group is led by another process, under the control incarnation {control:?}: end that one first, or take the index out of actors.run"
    )]
    SecondLeader {
        /// The incarnation it leads.
        control: Incarnation,
    },
    /// Another process that lives hosts a machine of this one.
    #[error("{0} is hosted by process {1:?} of the same group: end that one first, or take {0} out of actors.run", taken.actor, taken.by)]
    Taken {
        /// Which one.
        taken: Taken,
    },
    /// The leader of the group does not take this process.
    #[error("{}", refused(refusal))]
    Refused {
        /// Why not.
        refusal: Refusal,
    },
    /// Pages cannot go to other groups as the configuration says.
    #[error("{}", .0.join("; "))]
    Transfer(Vec<String>),
    /// Traces cannot be exported.
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    /// No thread.
    #[error("no thread: {0}")]
    Thread(#[from] std::io::Error),
    /// The control thread ended before it was ready.
    #[error("the control thread ended")]
    Gone,
}

fn refused(refusal: &Refusal) -> String {
    match refusal {
        Refusal::Mismatch(Mismatch { field, yours, mine }) => {
            format!("{field} is {yours}, the process with the index has {mine}: give both the same configuration")
        }
        other => format!("the process with the index refuses this one: {other:?}"),
    }
}

/// What all processes of a group must be told alike: what is wrong when a machine and its peers differ in it.
pub(super) fn agreed(group: &Checked) -> Vec<(String, String)> {
    let config = &group.config;
    [
        ("group.cp_size", config.group.cp_size.to_string()),
        ("group.page_tokens", config.group.page_tokens.to_string()),
        ("group.request_pages_max", config.group.request_pages_max.to_string()),
        ("l1.pages", config.l1.pages.to_string()),
        ("l2.pages", config.l2.pages.to_string()),
        ("l2.tile_pages", config.l2.tile_pages.to_string()),
        ("model.components", format!("{:?}", group.manifest.components)),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .to_vec()
}

/// Refuses a bus that cannot carry what the group may have to say.
pub(super) fn check_bus(group: &Checked, bus: &dyn Bus) -> Result<(), StartError> {
    let pages = group.config.group.request_pages_max;
    let (bytes, limit) = (message_bytes_for(pages), bus.payload_bytes_max());
    if bytes > limit { Err(StartError::SmallMessages { limit, pages, bytes }) } else { Ok(()) }
}

/// Refuses a pool folder that is not there, or has too little room for the pool files that are still to be made.
///
/// # Errors
/// The fault, naming its key and what to change.
pub fn check_pools(group: &Checked) -> Result<(), ConfigRefused> {
    if group.ranks().next().is_none() {
        return Ok(());
    }
    let folder = &group.config.rank.pool_folder;
    let refused =
        |fault| Err(ConfigRefused { faults: vec![format!("rank.pool_folder is {}: {fault}", folder.display())] });
    if !folder.is_dir() {
        return refused("there is no such folder, make it or name another".to_owned());
    }
    let wanted = |rank: Rank| {
        let spec = PoolSpec { manifest: &group.manifest, layout: &group.layout, rank, slots: host_slots(group) };
        if pool_file(group, rank).exists() { 0 } else { spec.file_bytes() }
    };
    let wanted_bytes: u64 = group.ranks().map(wanted).sum();
    match rustix::fs::statvfs(folder) {
        Ok(room) => {
            let free_bytes = room.f_bavail.saturating_mul(room.f_frsize);
            if wanted_bytes <= free_bytes {
                return Ok(());
            }
            refused(format!("{free_bytes} bytes are free and pools need {wanted_bytes}, make room or lower l2.pages"))
        }
        Err(error) => refused(format!("{error}")),
    }
}

fn pool_file(group: &Checked, rank: Rank) -> PathBuf {
    group.config.rank.pool_folder.join(format!("hicached-{}-rank{}.pool", group.config.group.name, rank.0))
}

fn host_slots(group: &Checked) -> u32 {
    group.config.l2.pages / u32::from(group.config.group.cp_size)
}

/// The threads that copy for all ranks of this process.
pub(super) fn copy_threads(group: &Checked) -> Result<Arc<CopyThreads>, StartError> {
    let ranks = group.ranks().count();
    Ok(CopyThreads::start(ranks * group.config.rank.copy_threads as usize)?)
}

/// One rank in a new life, its pool file attached or made.
pub(super) fn rank(
    group: &Checked,
    rank: Rank,
    copies: Arc<CopyThreads>,
    bell: Arc<Bell>,
    payload_bytes_max: usize,
) -> Result<RankHost, StartError> {
    let (config, pool_file) = (&group.config, pool_file(group, rank));
    let wire = config.transfer.backend(&pool_file);
    let wire = wire.map_err(|wrong| StartError::Transfer(wrong.iter().map(ToString::to_string).collect()))?;
    let setup = RankSetup {
        manifest: group.manifest.clone(),
        rank,
        incarnation: Incarnation(uuid::Uuid::new_v4().into_bytes()),
        pool_file,
        host_slots: host_slots(group),
        fingerprints: config.cache.fingerprints,
        payload_bytes_max,
        wire,
    };
    RankHost::start(setup, copies, Arc::new(move || bell.ring())).map_err(|source| StartError::Rank { rank, source })
}

/// The index of `group`.
pub(super) fn index(group: &Checked, control: Incarnation) -> Index {
    let (config, cp_size) = (&group.config, u32::from(group.config.group.cp_size));
    let shape = IndexConfig::new(group.manifest.clone(), config.l1.pages / cp_size + 1, config.l2.pages / cp_size);
    let config = IndexConfig {
        group: config.group.name.clone(),
        handovers: HandoverRules { to: Some(config.transfer.to.clone()), takes: !config.transfer.is_off() },
        write_policy: match config.cache.write_policy {
            WritePolicy::WriteThrough => Policy::WriteThrough,
            WritePolicy::WriteThroughSelective => Policy::Selective,
            WritePolicy::WriteBack => Policy::WriteBack,
        },
        compute_tokens_min: config.group.compute_tokens_min,
        request_pages_max: config.group.request_pages_max,
        lease_ms: config.leases.session_ms,
        rank_lease_ms: config.leases.rank_ms,
        ..shape
    };
    Index::new(config, control, seed(control, 1))
}

/// The allocator of `group`.
///
/// # Errors
/// Pools of a size that no allocator has, or marks that do not fit them.
pub(super) fn allocator(group: &Checked, control: Incarnation) -> Result<Allocator, StartError> {
    let (config, cp_size) = (&group.config, group.config.group.cp_size);
    let (l1_lane, l2_slots) = (config.l1.pages / u32::from(cp_size), config.l2.pages / u32::from(cp_size));
    let chunk = group.chunk_pages_per_rank();
    let (l1, l2) = (group.l1_room.marks(l1_lane, chunk), group.l2_room.marks(l2_slots, chunk));
    let allocator = AllocatorConfig {
        contiguity: match config.l2.contiguity {
            Contiguity::Off => Runs::Off,
            Contiguity::Prefer => Runs::Prefer,
            Contiguity::Require => Runs::Require,
        },
        free_room: (l1 != Marks::OFF || l2 != Marks::OFF).then_some(Room { l1, l2 }),
        ..AllocatorConfig::new(cp_size, l1_lane + 1, l2_slots)
    };
    Allocator::new(allocator, control, seed(control, 0)).map_err(StartError::Pools)
}

/// The writer of `group`.
pub(super) fn writer(group: &Checked, control: Incarnation) -> Writer {
    let pages_max = group.config.group.request_pages_max as usize;
    let config = WriterConfig { pages_max, ..WriterConfig::new(&group.manifest) };
    Writer::new(config, control, seed(control, 2))
}

/// The loader of `group`. Load words outlive it and never fall: it counts their uses from the milliseconds since
/// 1970, which is above every use of an earlier life unless that used each slot more than a thousand times a second.
pub(super) fn loader(group: &Checked, control: Incarnation) -> Loader {
    let first_use =
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
    let config = LoaderConfig { first_use, ..LoaderConfig::new(&group.manifest) };
    Loader::new(config, control, seed(control, 3))
}

/// The evictor of `group`.
pub(super) fn evictor(group: &Checked, control: Incarnation) -> Evictor {
    Evictor::new(EvictorConfig::new(group.config.group.cp_size), control, seed(control, 4))
}

/// The transfer sender of `group`.
pub(super) fn sender(group: &Checked, control: Incarnation) -> Sender {
    let (transfer, leases) = (&group.config.transfer, &group.config.leases);
    let config = SenderConfig {
        peer_lease_ms: leases.peer_ms,
        wait_ms_max: transfer.wait_ms,
        deadline_ms: transfer.deadline_ms,
        ..SenderConfig::new(group.config.group.name.as_str().into(), &group.manifest)
    };
    Sender::new(config, control, seed(control, 5))
}

/// The transfer receiver of `group`.
pub(super) fn receiver(group: &Checked, control: Incarnation) -> Receiver {
    let (transfer, leases) = (&group.config.transfer, &group.config.leases);
    let config = ReceiverConfig {
        peer_lease_ms: leases.peer_ms,
        wait_ms_max: transfer.wait_ms,
        ..ReceiverConfig::new(&group.manifest)
    };
    Receiver::new(config, seed(control, 6))
}

/// Chance of one machine: part of its state, drawn from the incarnation.
fn seed(control: Incarnation, machine: u64) -> u64 {
    let drawn = u64::from_be_bytes(control.0[8..].try_into().unwrap_or_default());
    drawn.wrapping_add(machine)
}
