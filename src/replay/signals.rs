//! The signals that end a run early.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Hears them for as long as it lives.
#[derive(Debug)]
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// From now on these signals end nothing by themselves, so that a run can leave nothing behind.
    ///
    /// # Errors
    /// The operating system's.
    pub fn heard() -> std::io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// The number of the next one.
    pub async fn next(&mut self) -> u8 {
        let kind = tokio::select! {
            _ = self.interrupt.recv() => SignalKind::interrupt(),
            _ = self.terminate.recv() => SignalKind::terminate(),
        };
        u8::try_from(kind.as_raw_value()).expect("signals have small numbers")
    }
}
