//! Pool files of engines that ended without removing them. An engine holds the lock of its files for as long as it
//! lives, so a file that can be locked has no owner any more.

use std::io;
use std::path::{Path, PathBuf};

use crate::shm::{Segment, ShmError};

/// Where an engine of `group` that lives as `life` keeps the pool of `rank`.
pub(super) fn pool_file(folder: &Path, group: &str, rank: usize, life: u64) -> PathBuf {
    folder.join(format!("{}{rank}-{life:016x}", prefix(group)))
}

/// Makes a pool file and takes its lock.
///
/// # Errors
/// [`ShmError`] of the file system.
pub(super) fn create_locked(path: &Path, bytes: u64) -> Result<Segment, ShmError> {
    loop {
        let segment = Segment::create(path, bytes)?;
        // Between the two calls another engine may have taken the file for one without an owner.
        if segment.try_lock()? && path.exists() {
            return Ok(segment);
        }
    }
}

/// Removes the pool files of engines of `group` in `folder` that are gone; how many there were.
///
/// # Errors
/// The folder cannot be read. A file that cannot be removed is left to the next engine.
pub fn remove_left_over(folder: &Path, group: &str) -> io::Result<usize> {
    let mut removed = 0;
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let is_pool = path.file_name().and_then(|name| name.to_str()).is_some_and(|name| is_pool_file(name, group));
        if !is_pool {
            continue;
        }
        match remove_unowned(&path) {
            Ok(true) => removed += 1,
            Ok(false) => {}
            Err(error) => tracing::debug!(path = %path.display(), %error, "a pool file stays behind"),
        }
    }
    Ok(removed)
}

/// Removes `path` under its lock; `false` while its owner lives.
fn remove_unowned(path: &Path) -> Result<bool, ShmError> {
    let segment = Segment::open(path)?;
    if !segment.try_lock()? {
        return Ok(false);
    }
    std::fs::remove_file(path).map_err(|source| ShmError::Io { doing: "remove", path: path.into(), source })?;
    Ok(true)
}

/// Group names have no `-engine-` of their own followed by a rank and a life, so that no other group is meant.
fn is_pool_file(name: &str, group: &str) -> bool {
    let Some((rank, life)) = name.strip_prefix(&prefix(group)).and_then(|rest| rest.split_once('-')) else {
        return false;
    };
    let is_hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    rank.parse::<u8>().is_ok() && life.len() == 16 && is_hex(life)
}

fn prefix(group: &str) -> String {
    format!("hicached-{group}-engine-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_without_an_owner_go_and_all_others_stay() {
        let folder = std::env::temp_dir().join(format!("hicached-left-over-{}", uuid::Uuid::new_v4().simple()));
        std::fs::create_dir(&folder).unwrap();
        let held = pool_file(&folder, "g", 0, 1);
        let owner = create_locked(&held, 4_096).unwrap();
        let dead = pool_file(&folder, "g", 1, 2);
        drop(create_locked(&dead, 4_096).unwrap());
        let others =
            [pool_file(&folder, "g2", 0, 3), folder.join("hicached-g-rank0.pool"), folder.join("hicached-g-engine-x")];
        for other in &others {
            std::fs::write(other, [0; 8]).unwrap();
        }
        assert_eq!(remove_left_over(&folder, "g").unwrap(), 1);
        assert!(held.exists() && !dead.exists() && others.iter().all(|other| other.exists()));
        drop(owner);
        assert_eq!(remove_left_over(&folder, "g").unwrap(), 1);
        assert!(!held.exists());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
