//! Files that a target reads: one folder of this process, in memory where the system has such a place.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// A path that no other caller was given; nothing stands there.
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// `name` ends the file's name: some readers go by it.
    pub(crate) fn new(name: &str) -> Self {
        static FOLDER: OnceLock<PathBuf> = OnceLock::new();
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let folder = FOLDER.get_or_init(|| {
            let memory = Path::new("/dev/shm");
            if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() }
        });
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self(folder.join(format!("hicached-fuzz-{}-{number}-{name}", std::process::id())))
    }

    /// The same, holding `bytes`.
    pub(crate) fn holding(name: &str, bytes: &[u8]) -> Self {
        let scratch = Self::new(name);
        std::fs::write(&scratch.0, bytes).expect("the folder for scratch files can be written");
        scratch
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // It may never have been made.
        std::fs::remove_file(&self.0).ok();
    }
}
