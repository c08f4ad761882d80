//! A folder of one run for its pool files, removed with everything in it.

use std::path::{Path, PathBuf};

use crate::config::Checked;

/// The folder. Dropping it removes it.
#[derive(Debug)]
pub struct Folder(PathBuf);

/// No place for pool files.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", folder.display())]
pub struct FolderError {
    /// Where they were to be.
    folder: PathBuf,
    /// Why not.
    source: std::io::Error,
}

impl Folder {
    /// Makes a folder named after `group` and makes it the group's pool folder: below the configured one where that
    /// has room, because the memory file system of a container may be smaller than the files of a run, else below
    /// the folder for temporary files.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn create(group: &mut Checked) -> Result<Self, FolderError> {
        let plan = group.plan();
        let wanted_bytes = 2 * (plan.l1.bytes + plan.l2.bytes) + ROOM_BYTES;
        let has_room = |folder: &Path| {
            rustix::fs::statvfs(folder).is_ok_and(|free| free.f_bavail.saturating_mul(free.f_frsize) >= wanted_bytes)
        };
        let memory = group.config.rank.pool_folder.clone();
        let parent = if has_room(&memory) {
            memory
        } else {
            let (pool_folder, used) = (memory.display(), std::env::temp_dir());
            tracing::warn!(%pool_folder, wanted_bytes, used = %used.display(), "rank.pool_folder is missing or too small");
            used
        };
        let folder = parent.join(format!("hicached-{}", group.config.group.name));
        std::fs::create_dir_all(&folder).map_err(|source| FolderError { folder: folder.clone(), source })?;
        group.config.rank.pool_folder = folder.clone();
        Ok(Self(folder))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(folder = %self.0.display(), %error, "left behind");
        }
    }
}

/// Words, page tables and headers of all ranks.
const ROOM_BYTES: u64 = 16 << 20;
