//! Pages between ranks of one host, each byte copied once: the sending rank maps the receiving engine's pool and
//! writes there itself.
//!
//! A grant is a file that both map (a board): what may land where, who is writing, what has landed. The sender checks
//! itself against it before each write and enters and leaves it around each, so that a fence waits for writes and
//! needs no answer; a writer that died in the middle of one is known by its lock, which went with it. Whoever can open
//! these files can write the pool: they belong to the deployment's user alone.

mod attached;
mod landing;
mod launch;

use std::path::PathBuf;

use super::{Backend, Contract, Events, Landing, Launch, StartError};

/// How pages go through shared memory.
#[derive(Clone, Debug)]
pub struct ShmSettings {
    /// Folder of the grants, in memory, on the host that all ranks share.
    pub folder: PathBuf,
    /// What the names of this rank's grants begin with: no two ranks that use the folder have the same.
    pub rank_name: String,
    /// Threads that copy.
    pub threads: usize,
    /// Bytes of one copy, unless a single page has more.
    pub piece_bytes: u64,
}

impl ShmSettings {
    /// Grants of the rank called `rank_name` stand in `folder`.
    pub fn new(folder: impl Into<PathBuf>, rank_name: impl Into<String>) -> Self {
        Self { folder: folder.into(), rank_name: rank_name.into(), threads: 2, piece_bytes: 1 << 20 }
    }

    fn check(&self) -> Result<(), Vec<StartError>> {
        let mut faults = Vec::new();
        let mut fault = |setting: &'static str, value: String, change: String| {
            faults.push(StartError::Setting { setting, value, change });
        };
        if !self.folder.is_dir() {
            let change = "name a folder that exists, in memory, such as one in /dev/shm".to_owned();
            fault("transfer.shm.folder", self.folder.display().to_string(), change);
        }
        if self.rank_name.is_empty() || self.rank_name.contains('/') {
            fault("transfer.shm.rank_name", format!("{:?}", self.rank_name), "take a name without slashes".to_owned());
        }
        if !(1..=THREADS_MAX).contains(&self.threads) {
            fault("transfer.shm.threads", self.threads.to_string(), format!("take 1 to {THREADS_MAX}"));
        }
        if self.piece_bytes == 0 {
            fault("transfer.shm.piece_bytes", "0".to_owned(), "take at least 1".to_owned());
        }
        if faults.is_empty() { Ok(()) } else { Err(faults) }
    }
}

/// The backend `shm`.
#[derive(Clone, Debug)]
pub struct Shm {
    settings: ShmSettings,
}

impl Shm {
    /// Pages go through shared memory as `settings` say.
    ///
    /// # Errors
    /// [`StartError::Setting`] for each setting that cannot be followed.
    pub fn new(settings: ShmSettings) -> Result<Self, Vec<StartError>> {
        settings.check()?;
        Ok(Self { settings })
    }
}

impl Backend for Shm {
    fn name(&self) -> &'static str {
        NAME
    }

    fn contract(&self) -> Contract {
        Contract { addressed: true, drain_proof: true, fence: true }
    }

    /// Only after the lock of the rank's own pool file was won: grants that an older life of this rank left behind are
    /// revoked, and the landing is not still until nothing writes into them.
    fn landing(&self, events: Events) -> Result<Box<dyn Landing>, StartError> {
        Ok(Box::new(landing::ShmLanding::start(&self.settings, events)?))
    }

    fn launch(&self, events: Events) -> Result<Box<dyn Launch>, StartError> {
        Ok(Box::new(launch::ShmLaunch::start(&self.settings, events)?))
    }
}

/// The name of the backend; endpoints are `shm:` and the path of a grant.
pub const NAME: &str = "shm";
const THREADS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_cannot_be_followed_are_refused_all_at_once() {
        let wrong = ShmSettings { threads: 0, piece_bytes: 0, ..ShmSettings::new("/nobody/made/this", "a/b") };
        assert_eq!(Shm::new(wrong).expect_err("four faults").len(), 4);
        assert!(Shm::new(ShmSettings::new(std::env::temp_dir(), "g-rank.0")).is_ok());
    }
}
