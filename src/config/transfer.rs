//! How pages travel to another group: what can be configured of it, and what is refused.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hicached_actors::protocol::{ComponentSpec, Refusal, Unsupported, group_name};
use hicached_kernels::layout::Component;
use serde::Deserialize;

use super::Config;
use super::actors::list_or_text;
use super::check::Faults;
use crate::wire::nixl::{self, Nixl, NixlSettings};
use crate::wire::shm::{self, Shm, ShmSettings};
use crate::wire::tcp::{self, Tcp, TcpSettings, TlsSettings};
use crate::wire::{Backend, Contract, StartError};

/// Handovers to other groups, and from them.
#[derive(Clone, Debug, Default, Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Transfer {
    /// The data plane, or `none`.
    pub backend: String,
    /// Decode groups that pages of this group may go to.
    #[serde(deserialize_with = "list_or_text")]
    pub to: Vec<String>,
    /// How long one rank's own part of a transfer may take.
    pub deadline_ms: u64,
    /// How long a handover may take from its offer to its end.
    pub wait_ms: u64,
    /// The backend `tcp`.
    pub tcp: TcpTransfer,
    /// The backend `shm`.
    pub shm: ShmTransfer,
    /// The backend `nixl`.
    pub nixl: NixlTransfer,
}

/// How pages go over TCP.
#[derive(Clone, Debug, Default, Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct TcpTransfer {
    /// Where ranks take pages; port 0 lets each draw one.
    pub listen: String,
    /// The address that peers are told; that of `listen` when empty.
    pub advertise: String,
    /// Connections to one peer rank.
    pub streams: usize,
    /// Bytes sent to one peer rank and not acknowledged.
    pub window_bytes: u64,
    /// A checksum with every frame.
    pub checksum: bool,
    /// Encrypted connections.
    pub tls: TlsTransfer,
}

/// How connections are encrypted: all of it is set, or none.
#[derive(Clone, Debug, Default, Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct TlsTransfer {
    /// The certificate that this group's ranks show, a PEM file.
    pub certificate: String,
    /// Its private key, a PEM file.
    pub key: String,
    /// The authority that signs certificates of peers, a PEM file.
    pub authority: String,
}

impl TlsTransfer {
    fn settings(&self) -> Option<TlsSettings> {
        let TlsTransfer { certificate, key, authority } = self;
        self.is_on().then(|| TlsSettings {
            certificate: certificate.into(),
            key: key.into(),
            authority: authority.into(),
        })
    }

    fn is_on(&self) -> bool {
        [&self.certificate, &self.key, &self.authority].iter().any(|path| !path.is_empty())
    }
}

/// How pages go through shared memory.
#[derive(Clone, Debug, Default, Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct ShmTransfer {
    /// Threads of one rank that copy.
    pub threads: usize,
}

/// How pages go by NIXL.
#[derive(Clone, Debug, Default, Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct NixlTransfer {
    /// Folder of its library; where the system looks when empty.
    pub library: PathBuf,
    /// Settings of UCX, as `KEY=VALUE`.
    #[serde(deserialize_with = "list_or_text")]
    pub ucx: Vec<String>,
    /// Where ranks take announcements; port 0 lets each draw one.
    pub listen: String,
    /// The address that peers are told; that of `listen` when empty.
    pub advertise: String,
    /// Memory that a receiving rank keeps for each sending one.
    pub window_bytes: u64,
}

impl Transfer {
    /// Whether handovers are refused.
    pub fn is_off(&self) -> bool {
        self.backend == NONE
    }

    /// The data plane of the rank whose pool file is `pool_file`; `None` when handovers are refused.
    ///
    /// # Errors
    /// Every setting that cannot be followed.
    pub fn backend(&self, pool_file: &Path) -> Result<Option<Arc<dyn Backend>>, Vec<StartError>> {
        Ok(match self.backend.as_str() {
            tcp::NAME => {
                let settings = TcpSettings {
                    listen: address(&self.tcp.listen),
                    advertise: host(&self.tcp.advertise),
                    streams: self.tcp.streams,
                    window_bytes: self.tcp.window_bytes,
                    checksum: self.tcp.checksum,
                    tls: self.tcp.tls.settings(),
                    ..TcpSettings::default()
                };
                Some(Arc::new(Tcp::new(settings)?))
            }
            shm::NAME => {
                let folder = pool_file.parent().unwrap_or(Path::new("/"));
                let name = pool_file.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
                let settings = ShmSettings { threads: self.shm.threads, ..ShmSettings::new(folder, name) };
                Some(Arc::new(Shm::new(settings)?))
            }
            nixl::NAME => {
                let settings = NixlSettings {
                    library: self.nixl.library.clone(),
                    ucx: self.nixl.ucx.clone(),
                    listen: address(&self.nixl.listen),
                    advertise: host(&self.nixl.advertise),
                    window_bytes: self.nixl.window_bytes,
                    ..NixlSettings::default()
                };
                Some(Arc::new(Nixl::new(settings)?))
            }
            _ => None,
        })
    }
}

/// What is no address is named when the configuration is checked.
fn address(listen: &str) -> SocketAddr {
    listen.parse().unwrap_or(SocketAddr::from(([127, 0, 0, 1], 0)))
}

fn host(advertise: &str) -> Option<String> {
    Some(advertise.to_owned()).filter(|name| !name.is_empty())
}

impl Config {
    pub(super) fn check_transfer(&self, faults: &mut Faults) {
        let (transfer, cp_size) = (&self.transfer, self.group.cp_size);
        let name = transfer.backend.as_str();
        faults.unless(!transfer.is_off() || transfer.to.is_empty(), || {
            format!("transfer.to is {:?} without transfer.backend: name one, or no group", transfer.to)
        });
        // The folder of its pools is looked for when all else is sound.
        match transfer.backend(&Path::new("/").join("rank")) {
            Ok(Some(backend)) => {
                if let Err(refused) = backend.contract().accepts_group(name, cp_size) {
                    faults.push(unfit(&refused));
                }
            }
            Ok(None) if transfer.is_off() => {}
            Ok(None) => match NOT_HERE.iter().find(|known| known.name == name) {
                Some(known) => faults.push(match known.contract.accepts_group(name, cp_size) {
                    Err(refused) => unfit(&refused),
                    Ok(()) => format!("transfer.backend is {name:?}: {}, {USE}", known.why),
                }),
                None => faults.push(format!("transfer.backend is {name:?}: {USE}")),
            },
            Err(wrong) => wrong.iter().for_each(|fault| faults.push(fault.to_string())),
        }
        for to in &transfer.to {
            if let Err(wrong) = group_name("transfer.to", to) {
                faults.push(format!("transfer.to names {to:?}: use {}", wrong.limit));
            }
            faults.unless(*to != self.group.name, || format!("transfer.to names {to:?}: that is this group"));
        }
        for (key, listen) in [("tcp", &transfer.tcp.listen), ("nixl", &transfer.nixl.listen)] {
            faults.unless(listen.parse::<SocketAddr>().is_ok(), || {
                format!("transfer.{key}.listen is {listen:?}: write IP:PORT, port 0 for one of the system's")
            });
        }
        for (key, ms) in [("deadline_ms", transfer.deadline_ms), ("wait_ms", transfer.wait_ms)] {
            faults.unless((1..=WAIT_MS_MAX).contains(&ms), || {
                format!("transfer.{key} is {ms}: make it 1..={WAIT_MS_MAX}")
            });
        }
    }
}

/// What keeps pages of one group of `groups` from going to another of them: every pair that `transfer.to` names.
pub fn pair_faults(groups: &[Config]) -> Vec<String> {
    let named = |name: &String| groups.iter().find(|group| group.group.name == *name);
    let pairs = groups.iter().flat_map(|from| from.transfer.to.iter().filter_map(named).map(move |to| (from, to)));
    pairs.flat_map(|(from, to)| faults_between(from, to)).collect()
}

fn faults_between(a: &Config, b: &Config) -> Vec<String> {
    let (from, to) = (a.manifest(), b.manifest());
    let pair = format!("{} hands over to {}", a.group.name, b.group.name);
    let lookaheads = (a.group.draft_lookahead_tokens, b.group.draft_lookahead_tokens);
    let mut faults = vec![
        differ(&pair, "transfer.backend", (&a.transfer.backend, &b.transfer.backend)),
        differ(&pair, "group.page_tokens", (a.group.page_tokens, b.group.page_tokens)),
        differ(&pair, "group.draft_lookahead_tokens", lookaheads),
    ];
    if over_tcp(a, b) {
        let encrypted = |group: &Config| if group.transfer.tcp.tls.is_on() { "set" } else { "not set" };
        faults.push(differ(&pair, "transfer.tcp.tls", (encrypted(a), encrypted(b))));
    }
    // Groups of one rank hand over what both store.
    let is_plain = (a.group.cp_size, b.group.cp_size) == (1, 1);
    let may_lack = |name: &str| is_plain && Component::from_name(name) != Some(Component::TargetKv);
    let lacks = |group: &Config, name: &str| {
        (!may_lack(name)).then(|| format!("{pair}: {} has no {name}, add it", group.group.name))
    };
    for mine in &from.components {
        let Some(theirs) = to.components.iter().find(|theirs| theirs.name == mine.name) else {
            faults.push(lacks(b, &mine.name));
            continue;
        };
        let bytes = (format!("{:?}", mine.page_bytes), format!("{:?}", theirs.page_bytes));
        faults.push(differ(&pair, &format!("{} dtype", mine.name), (&mine.dtype, &theirs.dtype)));
        faults.push(differ(&pair, &format!("{} page_bytes", mine.name), bytes));
    }
    let unknown = |theirs: &&ComponentSpec| !from.components.iter().any(|mine| mine.name == theirs.name);
    faults.extend(to.components.iter().filter(unknown).map(|theirs| lacks(a, &theirs.name)));
    if b.group.cp_size != 1 {
        let (name, cp_size) = (&b.group.name, b.group.cp_size);
        faults.push(Some(format!("{pair}: {name} has group.cp_size {cp_size}, a decode group has 1")));
    }
    faults.into_iter().flatten().collect()
}

fn over_tcp(a: &Config, b: &Config) -> bool {
    [a, b].iter().all(|group| group.transfer.backend == tcp::NAME)
}

fn differ<T: PartialEq + std::fmt::Display>(pair: &str, field: &str, (one, other): (T, T)) -> Option<String> {
    (one != other).then(|| format!("{pair}: {field} is {one} and {other}, make them equal"))
}

fn unfit(refused: &Refusal) -> String {
    match refused {
        Refusal::Unsupported(Unsupported { field, value, limit }) => format!("{field} is {value}: use {limit}"),
        other => format!("transfer.backend: {other:?}"),
    }
}

/// A data plane that is known by name and not part of this build.
struct NotHere {
    name: &'static str,
    contract: Contract,
    why: &'static str,
}

/// What operators may know from elsewhere.
const NOT_HERE: [NotHere; 2] = [
    NotHere {
        name: "in_order",
        contract: Contract { addressed: false, drain_proof: true, fence: false },
        why: "lists of pages that are paired by their order are no addresses",
    },
    NotHere {
        name: "mooncake",
        contract: Contract { addressed: true, drain_proof: true, fence: false },
        why: "what its peers have begun to write cannot be taken back",
    },
];
const NONE: &str = "none";
const USE: &str = "use \"none\", \"tcp\", \"shm\" or \"nixl\"";
const WAIT_MS_MAX: u64 = 3_600_000;
