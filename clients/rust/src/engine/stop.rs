//! How one side of a handover learns that the other one is open, or has ended, so that it waits for nothing.

use std::future::pending;

use hicached_actors::protocol::{OpId, WrongState};
use tokio::sync::watch;

use crate::client::ClientError;

/// What a request is asked to end early by, and tells of its session.
#[derive(Clone, Debug)]
pub(super) struct Stop {
    raised: Option<watch::Receiver<bool>>,
    opened: Option<watch::Sender<bool>>,
}

impl Stop {
    /// For a request that nobody ends early.
    pub(super) fn never() -> Self {
        Self { raised: None, opened: None }
    }

    /// The way to raise it, and what it is seen by.
    pub(super) fn new() -> (watch::Sender<bool>, Self) {
        let (raise, seen) = watch::channel(false);
        (raise, Self { raised: Some(seen), opened: None })
    }

    /// This, and `opened` is raised when the session of its request is open.
    pub(super) fn and_tells(self, opened: watch::Sender<bool>) -> Self {
        Self { opened: Some(opened), ..self }
    }

    /// The session of the request is open.
    pub(super) fn session_is_open(&self) {
        if let Some(opened) = &self.opened {
            opened.send_replace(true);
        }
    }

    /// Whether it has been raised.
    pub(super) fn is_raised(&self) -> bool {
        self.raised.as_ref().is_some_and(|seen| *seen.borrow())
    }

    /// Waits until it is raised, for ever if need be.
    pub(super) async fn raised(&self) {
        if let Some(mut seen) = self.raised.clone()
            && seen.wait_for(|raised| *raised).await.is_ok()
        {
            return;
        }
        pending().await
    }

    /// `work` of `session`, unless this is raised before it ends.
    pub(super) async fn or<T>(
        &self,
        session: OpId,
        work: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<T, ClientError> {
        tokio::select! {
            biased;
            result = work => result,
            () = self.raised() => Err(stopped(session)),
        }
    }
}

/// Why `session` is given up.
pub(super) fn stopped(session: OpId) -> ClientError {
    ClientError::Refused(WrongState::new(session, "the other side of its handover is over").into())
}
