//! Pages by NIXL: its library writes the bytes into memory that the receiving rank keeps for each of its senders
//! (berths), over whatever transport it finds; the receiver copies them from there into the pool.
//!
//! Why not straight into the pool: nothing can take back what a peer of NIXL may write. Measured with 1.5.1, between
//! two processes: of 2,048 pages that were given back to the library 2,048 were written all the same, over TCP and by
//! address alike; and a receiver that had been stopped took 982 pages of a sender that had ended its agent. Pulling
//! has the receiver write, but then to end a read over TCP aborts the sender's process.
//!
//! So a fence is that of the other backends: a grant is entered around each copy, and a closed one lets none begin.
//! What comes late comes into berths. They go with their connection, after its agent, which ends what crosses a
//! network; a process of the same host that writes by address finds memory that cannot be written, for the addresses
//! of a connection that broke are never used again.
//!
//! A push that ends over a connection that held has every frame answered, and each was announced when NIXL had said
//! that its bytes are there. Where the connection is given up, the sender's agent ends before the push is told of.
//!
//! Whoever reaches an agent can write the memory of its process, as with any such transport: keep it on a network that
//! is trusted.

mod agent;
mod berths;
mod greeting;
mod landing;
mod launch;
mod library;
mod link;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::tcp::frame::PAYLOAD_BYTES_MAX;
use super::{Backend, Contract, Events, Landing, Launch, StartError};
use agent::{Agent, Side};
use library::{FILE, Failed, Fault, Library};

/// How pages go by NIXL.
#[derive(Clone, Debug)]
pub struct NixlSettings {
    /// Folder of the library and of what belongs to it; empty for where the system looks.
    pub library: PathBuf,
    /// Settings of UCX, each `KEY=VALUE`, without `UCX_`.
    pub ucx: Vec<String>,
    /// Where a landing takes announcements; port 0 lets the system choose.
    pub listen: SocketAddr,
    /// The address that peers are told; the one of `listen` when there is none.
    pub advertise: Option<String>,
    /// Connections a landing has at a time, each with two threads and its berths.
    pub connections_max: usize,
    /// Peers a launch has at a time.
    pub peers_max: usize,
    /// Bytes of pages in one frame, unless a single page has more.
    pub piece_bytes: u64,
    /// Bytes of the berths of one sender at one receiver.
    pub window_bytes: u64,
    /// A peer that stops in the middle of a frame, or takes nothing, for so long is given up.
    pub idle: Duration,
    /// How long a peer that takes nothing is waited for once a push to it is being stopped.
    pub stop: Duration,
    /// How long a connection may take to come about.
    pub connect: Duration,
}

impl Default for NixlSettings {
    fn default() -> Self {
        Self {
            library: PathBuf::new(),
            ucx: Vec::new(),
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            advertise: None,
            connections_max: 512,
            peers_max: 64,
            piece_bytes: 1 << 20,
            window_bytes: 16 << 20,
            idle: Duration::from_secs(10),
            stop: Duration::from_secs(1),
            connect: Duration::from_secs(2),
        }
    }
}

impl NixlSettings {
    /// What of them cannot be followed, the library aside, all at once.
    ///
    /// # Errors
    /// [`StartError::Setting`] for each.
    pub fn check(&self) -> Result<(), Vec<StartError>> {
        let mut faults = Vec::new();
        let mut fault = |setting: &'static str, value: String, change: String| {
            faults.push(StartError::Setting { setting, value, change });
        };
        for setting in &self.ucx {
            let is_pair = setting.split_once('=').is_some_and(|(key, value)| !key.is_empty() && !value.is_empty());
            if !is_pair || setting.contains([',', '\0']) {
                let change = "write KEY=VALUE as UCX has them, without UCX_ and without commas".to_owned();
                fault("transfer.nixl.ucx", format!("{setting:?}"), change);
            }
        }
        if !(1..=PAYLOAD_BYTES_MAX).contains(&self.piece_bytes) {
            let change = format!("take 1 to {PAYLOAD_BYTES_MAX}");
            fault("transfer.nixl.piece_bytes", self.piece_bytes.to_string(), change);
        }
        if !(self.piece_bytes..=WINDOW_BYTES_MAX).contains(&self.window_bytes) {
            let change = format!("take {} to {WINDOW_BYTES_MAX}", self.piece_bytes);
            fault("transfer.nixl.window_bytes", self.window_bytes.to_string(), change);
        }
        if faults.is_empty() { Ok(()) } else { Err(faults) }
    }
}

/// The backend `nixl`.
#[derive(Clone, Debug)]
pub struct Nixl {
    settings: NixlSettings,
    runtime: Runtime,
}

impl Nixl {
    /// Pages go by NIXL as `settings` say. The library is loaded, and an agent is made once, to see that both work.
    ///
    /// # Errors
    /// [`StartError::Setting`] for each setting that cannot be followed: a library that is not there, is of a version
    /// that lacks something, has no plugin for UCX, or finds no transport, among them.
    pub fn new(settings: NixlSettings) -> Result<Self, Vec<StartError>> {
        settings.check()?;
        let mut loaded = library::loaded();
        let library = loaded.library(&settings.library).map_err(|fault| vec![absent(&settings, &fault)])?;
        let runtime = Runtime { library, ucx: settings.ucx.clone().into() };
        let tried = (settings.library.clone(), settings.ucx.clone());
        if !loaded.tried.contains(&tried) {
            runtime.agent(Side::Receives).map_err(|failed| vec![absent(&settings, &failed.into())])?;
            loaded.tried.push(tried);
        }
        Ok(Self { settings, runtime })
    }
}

impl Backend for Nixl {
    fn name(&self) -> &'static str {
        NAME
    }

    fn contract(&self) -> Contract {
        Contract { addressed: true, drain_proof: true, fence: true }
    }

    fn landing(&self, events: Events) -> Result<Box<dyn Landing>, StartError> {
        Ok(Box::new(landing::NixlLanding::start(&self.settings, &self.runtime, events)?))
    }

    fn launch(&self, events: Events) -> Result<Box<dyn Launch>, StartError> {
        Ok(Box::new(launch::NixlLaunch::start(&self.settings, &self.runtime, events)?))
    }
}

/// What agents are made of.
#[derive(Clone, Debug)]
struct Runtime {
    library: &'static Library,
    ucx: Arc<[String]>,
}

impl Runtime {
    /// A new agent, with a name that no other has.
    fn agent(&self, side: Side) -> Result<Agent, Failed> {
        Agent::new(self.library, &uuid::Uuid::new_v4().simple().to_string(), side, &self.ucx)
    }
}

fn absent(settings: &NixlSettings, fault: &Fault) -> StartError {
    let place = "the folder that holds it and its plugins";
    let (setting, value, what) = match fault {
        Fault::Absent(_) | Fault::Function(_) => {
            let what = format!("install NIXL 1.5, such as the wheel nixl-cu12, and name {place}");
            ("transfer.nixl.library", format!("{:?}", settings.library), what)
        }
        Fault::Failed(_) if settings.ucx.is_empty() => {
            let what = format!("name {place}, of a NIXL with the plugin UCX; what failed stands in its log");
            ("transfer.nixl.library", format!("{:?}", settings.library), what)
        }
        Fault::Failed(_) => {
            let what = "name transports and devices that this host has; what failed stands in the log".to_owned();
            ("transfer.nixl.ucx", format!("{:?}", settings.ucx), what)
        }
    };
    StartError::Setting { setting, value, change: format!("{what} ({FILE}: {fault})") }
}

/// The name of the backend; endpoints are `nixl:` and an address.
pub const NAME: &str = "nixl";
/// Half of what one connection may have at most: pages that are larger than a piece need more.
const WINDOW_BYTES_MAX: u64 = 512 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_cannot_be_followed_are_refused_all_at_once() {
        assert!(NixlSettings::default().check().is_ok());
        let ucx = ["TLS", "=x", "TLS=a,b"].map(str::to_owned).to_vec();
        let wrong = NixlSettings { ucx, piece_bytes: 0, window_bytes: 1 << 40, ..NixlSettings::default() };
        assert_eq!(wrong.check().expect_err("five faults").len(), 5);
    }

    #[test]
    fn a_library_that_is_not_there_is_refused_with_what_to_install() {
        let library = PathBuf::from("/nobody/made/this");
        let refused = Nixl::new(NixlSettings { library, ..NixlSettings::default() }).expect_err("no such folder");
        let [fault] = refused.as_slice() else { panic!("{refused:?}") };
        let said = fault.to_string();
        for part in ["transfer.nixl.library is \"/nobody/made/this\"", "install NIXL", FILE] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
}
