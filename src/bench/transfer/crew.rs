//! Threads that each do their share of a transfer, again and again: to start them is not part of it.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use super::scene::Ends;
use super::{LONG, TransferError};

/// The threads. Dropping it ends them, once they have done what they were told.
#[derive(Debug)]
pub(super) struct Crew {
    go: Vec<Sender<Ends>>,
    tell: Sender<io::Result<()>>,
    done: Receiver<io::Result<()>>,
    threads: Vec<JoinHandle<()>>,
}

impl Crew {
    pub(super) fn new() -> Self {
        let (tell, done) = channel();
        Self { go: Vec::new(), tell, done, threads: Vec::new() }
    }

    /// One more thread, that does `share` of every transfer.
    ///
    /// # Errors
    /// The operating system gives none.
    pub(super) fn add(
        &mut self,
        mut share: impl FnMut(Ends) -> io::Result<()> + Send + 'static,
    ) -> Result<(), TransferError> {
        let (go, told) = channel();
        let tell = self.tell.clone();
        let work = move || {
            for ends in told {
                if tell.send(share(ends)).is_err() {
                    return;
                }
            }
        };
        let thread = crate::threads::spawn("bench-share".to_owned(), work);
        self.threads.push(thread.map_err(TransferError::io("start a thread"))?);
        self.go.push(go);
        Ok(())
    }

    /// Lets every thread do its share, and waits for all.
    ///
    /// # Errors
    /// The first share that failed, or [`TransferError::Late`].
    pub(super) fn transfer(&self, ends: Ends) -> Result<(), TransferError> {
        for go in &self.go {
            go.send(ends).map_err(|_| TransferError::Late)?;
        }
        for _ in &self.go {
            let done = self.done.recv_timeout(LONG).map_err(|_| TransferError::Late)?;
            done.map_err(TransferError::io("move bytes"))?;
        }
        Ok(())
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.go.clear();
        for thread in self.threads.drain(..) {
            // A panic of that thread has ended the process.
            thread.join().ok();
        }
    }
}
