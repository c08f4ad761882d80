//! How to reach the broker, and the bounds of this side.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_nats::ConnectOptions;

use crate::bus::Class;

/// Everything that can be set about a NATS bus. Credentials are not printed, those of a URL neither.
#[derive(Clone, PartialEq, Eq)]
pub struct NatsConfig {
    /// Servers of one cluster, such as `nats://127.0.0.1:4222`.
    pub urls: Vec<String>,
    /// Name shown by the broker for these connections; the class is appended.
    pub name: String,
    /// Who this is.
    pub auth: NatsAuth,
    /// Certificates; `None` speaks plain TCP unless a URL says `tls://`.
    pub tls: Option<NatsTls>,
    /// How long the first connection may take, retries included.
    pub connect_deadline_ms: u64,
    /// How long a served subject may take until its message to itself came back.
    pub serve_deadline_ms: u64,
    /// A broker that answers none of three pings is taken for gone: a loss without a reset is seen within three
    /// intervals. 300 keeps that under one second.
    pub ping_interval_ms: u64,
    /// Longest wait between two attempts to connect again.
    pub reconnect_delay_ms_max: u64,
    /// Frames waiting to be written, per class.
    pub send_queue_frames_max: usize,
    /// Messages read but not yet in an inbox, per subject and class. Beyond it the client library drops, counted. Not
    /// below `requests_max`, or answers could be among the dropped.
    pub receive_queue_frames_max: usize,
    /// Requests waiting for an answer, per class.
    pub requests_max: usize,
}

/// Credentials. They are not printed.
#[derive(Clone, PartialEq, Eq)]
pub enum NatsAuth {
    /// The broker asks for none, or a URL or client certificate carries it.
    None,
    /// One shared token.
    Token(String),
    /// A user of an account.
    UserPassword {
        /// User.
        user: String,
        /// Password.
        password: String,
    },
}

/// Certificates for TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NatsTls {
    /// Root certificates in PEM.
    pub ca: PathBuf,
    /// Certificate and key of this client in PEM, for mutual TLS.
    pub client: Option<(PathBuf, PathBuf)>,
}

impl std::fmt::Debug for NatsAuth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::Token(_) => "Token(..)",
            Self::UserPassword { .. } => "UserPassword(..)",
        })
    }
}

impl std::fmt::Debug for NatsConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            urls,
            name,
            auth,
            tls,
            connect_deadline_ms,
            serve_deadline_ms,
            ping_interval_ms,
            reconnect_delay_ms_max,
            send_queue_frames_max,
            receive_queue_frames_max,
            requests_max,
        } = self;
        f.debug_struct("NatsConfig")
            .field("urls", &urls.iter().map(|url| masked(url)).collect::<Vec<_>>())
            .field("name", name)
            .field("auth", auth)
            .field("tls", tls)
            .field("connect_deadline_ms", connect_deadline_ms)
            .field("serve_deadline_ms", serve_deadline_ms)
            .field("ping_interval_ms", ping_interval_ms)
            .field("reconnect_delay_ms_max", reconnect_delay_ms_max)
            .field("send_queue_frames_max", send_queue_frames_max)
            .field("receive_queue_frames_max", receive_queue_frames_max)
            .field("requests_max", requests_max)
            .finish()
    }
}

/// `url` without what stands before the host: a name, a password or a token.
pub fn masked(url: &str) -> String {
    let Some((credentials, host)) = url.rsplit_once('@') else { return url.to_owned() };
    match credentials.split_once("://") {
        Some((scheme, _)) => format!("{scheme}://***@{host}"),
        None => format!("***@{host}"),
    }
}

impl NatsConfig {
    /// The defaults for one server.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            urls: vec![url.into()],
            name: "hicached".into(),
            auth: NatsAuth::None,
            tls: None,
            connect_deadline_ms: 10_000,
            serve_deadline_ms: 5_000,
            ping_interval_ms: 300,
            reconnect_delay_ms_max: 1_000,
            send_queue_frames_max: 1_024,
            receive_queue_frames_max: 4_096,
            requests_max: 4_096,
        }
    }

    /// Options without callbacks. One attempt may take one second: a broker that accepts but does not speak must
    /// not hold the next attempt back.
    pub(super) fn options(&self, class: Class) -> ConnectOptions {
        let class = match class {
            Class::Urgent => "urgent",
            Class::Normal => "normal",
        };
        let mut options = ConnectOptions::new()
            .name(format!("{} {class}", self.name))
            .connection_timeout(Duration::from_secs(1))
            .ping_interval(Duration::from_millis(self.ping_interval_ms))
            .client_capacity(self.send_queue_frames_max)
            .subscription_capacity(self.receive_queue_frames_max)
            .skip_subject_validation(true);
        options = match &self.auth {
            NatsAuth::None => options,
            NatsAuth::Token(token) => options.token(token.clone()),
            NatsAuth::UserPassword { user, password } => options.user_and_password(user.clone(), password.clone()),
        };
        if let Some(tls) = &self.tls {
            options = options.require_tls(true).add_root_certificates(tls.ca.clone());
            if let Some((cert, key)) = &tls.client {
                options = options.add_client_certificate(cert.clone(), key.clone());
            }
        }
        options
    }
}

/// Waits between attempts: none before the first, then doubling from 10 ms up to a bound, each shortened by up to
/// half, so that the clients of a broker do not return in step.
#[derive(Debug)]
pub(super) struct Backoff {
    max_ms: u64,
    chance: AtomicU64,
}

impl Backoff {
    pub(super) fn new(max_ms: u64, seed: u64) -> Self {
        Self { max_ms, chance: AtomicU64::new(seed) }
    }

    /// The wait before attempt number `attempt`; the first is 1.
    pub(super) fn delay(&self, attempt: usize) -> Duration {
        let Some(doublings) = attempt.checked_sub(2) else {
            return Duration::ZERO;
        };
        let full_ms = (10_u64 << doublings.min(20)).min(self.max_ms);
        let chance = self.chance.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        Duration::from_millis(full_ms - split_mix(chance) % (full_ms / 2 + 1))
    }
}

/// The output step of SplitMix64 (Steele, Lea, Flood 2014).
fn split_mix(state: u64) -> u64 {
    let z = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_bound_and_differ() {
        let backoff = Backoff::new(1_000, 1);
        for (attempt, full_ms) in [(0, 0), (1, 0), (2, 10), (3, 20), (8, 640), (9, 1_000), (10_000, 1_000)] {
            for _ in 0..100 {
                let ms = backoff.delay(attempt).as_millis() as u64;
                assert!(ms <= full_ms && ms >= full_ms / 2, "attempt {attempt}: {ms} ms");
            }
        }
        assert_ne!(backoff.delay(9), backoff.delay(9), "jittered");
    }

    #[test]
    fn secrets_are_not_printed() {
        let mut config = NatsConfig::new("nats://127.0.0.1:4222");
        config.auth = NatsAuth::UserPassword { user: "u".into(), password: "secret".into() };
        assert!(!format!("{config:?}").contains("secret"));
        config.auth = NatsAuth::Token("secret".into());
        assert!(!format!("{config:?}").contains("secret"));
        config.urls = vec!["nats://me:secret@127.0.0.1:4222".into(), "tls://secret@host".into()];
        let shown = format!("{config:?}");
        assert!(!shown.contains("secret") && shown.contains("nats://***@127.0.0.1:4222"), "{shown}");
    }

    #[test]
    fn nothing_before_the_host_is_shown() {
        for (url, shown) in [
            ("nats://127.0.0.1:4222", "nats://127.0.0.1:4222"),
            ("nats://me:secret@host:4222", "nats://***@host:4222"),
            ("tls://token@host", "tls://***@host"),
            ("me:sec@ret@host", "***@host"),
        ] {
            assert_eq!(masked(url), shown);
        }
    }
}
