//! Threads whose death is the death of the process.

use std::io;
use std::thread::{Builder, JoinHandle};

/// Starts a thread called `name`. When it panics the process ends: what it moved would never end and its pages never
/// be free; the next incarnation is the restart.
///
/// # Errors
/// The operating system gives no thread.
pub(crate) fn spawn(name: String, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    Builder::new().name(name).spawn(|| {
        let bomb = AbortOnPanic;
        run();
        drop(bomb);
    })
}

struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}
