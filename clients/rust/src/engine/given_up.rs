//! Sessions that ended here without an answer of the daemon: each is aborted again and again until one comes.
//!
//! One message is not enough: it is lost with the connection whose loss ended the session, and the heartbeats of a
//! living engine renew the leases of all its sessions, so that no lease would end this one.

use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use hicached_actors::protocol::Abort;
use tokio::sync::mpsc;
use tokio::time::sleep;

use crate::bus::BusError;
use crate::client::{Client, ClientError};

/// The way to the task that tells.
#[derive(Debug)]
pub(super) struct GivenUp(mpsc::Sender<(Client, Abort)>);

impl GivenUp {
    /// The way, and its end for [`tell`].
    pub(super) fn new() -> (Self, mpsc::Receiver<(Client, Abort)>) {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        (Self(sender), receiver)
    }

    /// Takes one in, without waiting for anything.
    pub(super) fn push(&self, client: Client, abort: Abort) {
        let session = abort.session;
        if self.0.try_send((client, abort)).is_err() {
            tracing::warn!(?session, "too many sessions are given up at once; this one ends with its engine");
        }
    }
}

/// Tells of every session that is given up until it is answered.
pub(super) async fn tell(mut given_up: mpsc::Receiver<(Client, Abort)>) {
    let mut told = FuturesUnordered::new();
    loop {
        tokio::select! {
            Some((client, abort)) = given_up.recv(), if told.len() < AT_ONCE_MAX => {
                told.push(until_answered(client, abort));
            }
            Some(()) = told.next() => {}
            else => return,
        }
    }
}

/// A refusal is an answer: the session is over for the daemon, or it never knew it.
async fn until_answered(client: Client, abort: Abort) {
    loop {
        let error = match client.abort(abort.clone()).await {
            Ok(_) => return,
            Err(error) => error,
        };
        let pause = match &error {
            ClientError::Bus(BusError::Closed) => return,
            ClientError::Bus(_) => PAUSE,
            ClientError::Refused(_) => match error.room_hint() {
                Some(hint) => hint,
                None => return,
            },
            ClientError::NewIncarnation { .. } | ClientError::Decode(_) | ClientError::Uncached { .. } => return,
        };
        sleep(pause).await;
    }
}

/// Most that wait: hours of an engine that fails a few requests a second because nobody is there.
const WAITING_MAX: usize = 65_536;
/// Most that are told at a time.
const AT_ONCE_MAX: usize = 64;
/// The client has repeated for a while already.
const PAUSE: Duration = Duration::from_millis(250);
