//! Pages over TCP: several connections to each peer, frames checked before a byte of them is written, bytes read from
//! the socket straight into the pool and written to it straight from there.
//!
//! The landing reads without waiting while it holds a grant open and waits without holding it, so that revoking never
//! waits for a peer. A frame that is refused is read to its end and thrown away: the others on its connection go on.
//! Whatever is no frame, stops in the middle of one, or is not read ends its connection alone.
//!
//! A push that ends over a connection that held has every frame answered: nothing of it is on the way. Where the
//! connection broke or was given up it was reset, and what the receiver's system had taken by then may still be read:
//! revoking the grant, which a receiver does before it uses a page again, keeps that out.

mod checksum;
pub(super) mod frame;
mod landing;
mod launch;
mod link;
mod session;
pub(super) mod socket;
mod stream;
mod tls;

use std::net::SocketAddr;
use std::time::Duration;

use super::{Backend, Contract, Events, Landing, Launch, StartError};

use tls::Tls;

pub use frame::{ACK_BYTES, HEADER_BYTES, VERSION};
pub use tls::TlsSettings;

/// How pages go over TCP.
#[derive(Clone, Debug)]
pub struct TcpSettings {
    /// Where a landing listens; port 0 lets the system choose.
    pub listen: SocketAddr,
    /// The address that peers are told; the one of `listen` when there is none.
    pub advertise: Option<String>,
    /// Connections to each peer, each with a thread.
    pub streams: usize,
    /// Connections a landing has at a time, each with a thread.
    pub connections_max: usize,
    /// Peers a launch has at a time.
    pub peers_max: usize,
    /// Bytes of pages in one frame, unless a single page has more.
    pub frame_bytes: u64,
    /// Bytes sent to one peer and not acknowledged, over all its connections.
    pub window_bytes: u64,
    /// A peer that stops in the middle of a frame, or takes nothing, for so long is given up.
    pub idle: Duration,
    /// How long a peer that takes nothing is waited for once a push to it is being stopped.
    pub stop: Duration,
    /// How long a connection may take to come about.
    pub connect: Duration,
    /// Whether frames carry a CRC-32 of their bytes.
    pub checksum: bool,
    /// How connections are encrypted, if they are.
    pub tls: Option<TlsSettings>,
}

impl Default for TcpSettings {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            advertise: None,
            streams: 4,
            connections_max: 512,
            peers_max: 64,
            frame_bytes: 1 << 20,
            // 50 GB/s times 200 us of round trip, and as much again for the receiver's work.
            window_bytes: 16 << 20,
            idle: Duration::from_secs(10),
            stop: Duration::from_secs(1),
            connect: Duration::from_secs(2),
            checksum: false,
            tls: None,
        }
    }
}

impl TcpSettings {
    /// What of them cannot be followed, all at once.
    ///
    /// # Errors
    /// [`StartError::Setting`] for each.
    pub fn check(&self) -> Result<(), Vec<StartError>> {
        let mut faults = Vec::new();
        let mut fault = |setting: &'static str, value: String, change: &str| {
            faults.push(StartError::Setting { setting, value, change: change.to_owned() });
        };
        for (setting, value, max) in [
            ("transfer.tcp.streams", self.streams, STREAMS_MAX),
            ("transfer.tcp.connections_max", self.connections_max, CONNECTIONS_MAX),
            ("transfer.tcp.peers_max", self.peers_max, PEERS_MAX),
        ] {
            if !(1..=max).contains(&value) {
                fault(setting, value.to_string(), &format!("take 1 to {max}"));
            }
        }
        if !(FRAME_BYTES_MIN..=frame::PAYLOAD_BYTES_MAX).contains(&self.frame_bytes) {
            let change = format!("take {FRAME_BYTES_MIN} to {}", frame::PAYLOAD_BYTES_MAX);
            fault("transfer.tcp.frame_bytes", self.frame_bytes.to_string(), &change);
        }
        if self.window_bytes < self.frame_bytes {
            let change = "take at least transfer.tcp.frame_bytes";
            fault("transfer.tcp.window_bytes", self.window_bytes.to_string(), change);
        }
        for (setting, value) in [("transfer.tcp.idle_ms", self.idle), ("transfer.tcp.connect_ms", self.connect)] {
            if value.is_zero() {
                fault(setting, "0".to_owned(), "take at least 1");
            }
        }
        if faults.is_empty() { Ok(()) } else { Err(faults) }
    }
}

/// The backend `tcp`.
#[derive(Clone, Debug, Default)]
pub struct Tcp {
    settings: TcpSettings,
    tls: Option<Tls>,
}

impl Tcp {
    /// Pages go over TCP as `settings` say.
    ///
    /// # Errors
    /// As [`TcpSettings::check`], and for files of [`TlsSettings`] that do not hold what they should.
    pub fn new(settings: TcpSettings) -> Result<Self, Vec<StartError>> {
        let mut faults = settings.check().err().unwrap_or_default();
        let tls = settings.tls.as_ref().and_then(|tls| Tls::load(tls).map_err(|wrong| faults.extend(wrong)).ok());
        if faults.is_empty() { Ok(Self { settings, tls }) } else { Err(faults) }
    }
}

impl Backend for Tcp {
    fn name(&self) -> &'static str {
        NAME
    }

    fn contract(&self) -> Contract {
        Contract { addressed: true, drain_proof: true, fence: true }
    }

    fn landing(&self, events: Events) -> Result<Box<dyn Landing>, StartError> {
        Ok(Box::new(landing::TcpLanding::start(&self.settings, self.tls.clone(), events)?))
    }

    fn launch(&self, events: Events) -> Result<Box<dyn Launch>, StartError> {
        Ok(Box::new(launch::TcpLaunch::start(&self.settings, self.tls.clone(), events)?))
    }
}

/// The name of the backend; endpoints are `tcp:` and an address.
pub const NAME: &str = "tcp";
const STREAMS_MAX: usize = 64;
const CONNECTIONS_MAX: usize = 4_096;
const PEERS_MAX: usize = 1_024;
/// Smaller frames are mostly headers and system calls.
const FRAME_BYTES_MIN: u64 = 1 << 12;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_cannot_be_followed_are_refused_all_at_once() {
        assert!(TcpSettings::default().check().is_ok());
        let nowhere = |file: &str| std::path::Path::new("/nowhere").join(file);
        let (certificate, key, authority) = (nowhere("c.pem"), nowhere("k.pem"), nowhere("a.pem"));
        let tls = Some(TlsSettings { certificate, key, authority });
        let wrong = TcpSettings { tls, streams: 0, frame_bytes: 1, window_bytes: 0, ..TcpSettings::default() };
        let faults = Tcp::new(wrong).expect_err("six faults");
        let named: Vec<String> = faults.iter().map(ToString::to_string).collect();
        for name in [
            "tcp.streams is 0",
            "tcp.frame_bytes is 1",
            "tcp.window_bytes is 0",
            "tls.certificate is \"/nowhere/c.pem\"",
            "tls.key is \"/nowhere/k.pem\"",
            "tls.authority is \"/nowhere/a.pem\"",
        ] {
            assert!(named.iter().any(|fault| fault.contains(name)), "{name}: {named:?}");
        }
        assert_eq!(faults.len(), 6);
    }
}
