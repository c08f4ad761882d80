//! What a sending rank has mapped: the boards of its grants, and the pools they speak of.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex};

use hicached_actors::protocol::Rank;
use hicached_client::shm::{Segment, ShmError};

use crate::wire::Cause;
use crate::wire::board::{Board, BoardFault, PoolAt};
use crate::wire::pool::Pool;

/// Mapped boards and pools. Pools are kept between transfers: to touch each page of a fresh mapping for the first time
/// costs more than to copy it.
#[derive(Debug, Default)]
pub(super) struct Attached {
    mapped: Mutex<Mapped>,
}

#[derive(Debug, Default)]
struct Mapped {
    boards: BTreeMap<String, Arc<Board>>,
    /// By device and inode: a path can be given anew.
    segments: BTreeMap<(u64, u64), Arc<Segment>>,
}

impl Attached {
    /// The board at `path`, on which `rank` writes.
    ///
    /// # Errors
    /// [`NotAttached`].
    pub(super) fn board(&self, path: &str, rank: Rank) -> Result<Arc<Board>, NotAttached> {
        let mut mapped = self.mapped.lock().expect(NO_PANIC);
        if let Some(board) = mapped.boards.get(path) {
            return Ok(board.clone());
        }
        mapped.forget();
        let opened = Board::open(Path::new(path), |at| mapped.pool(at).map(Some)).and_then(|board| {
            if board.become_writer(rank)? { Ok(Arc::new(board)) } else { Err(BoardFault::Taken(rank)) }
        });
        let board = opened.map_err(|fault| match &fault {
            BoardFault::Shm(ShmError::Io { path: of, source, .. })
                if source.kind() == ErrorKind::NotFound && of == Path::new(path) =>
            {
                NotAttached::Revoked
            }
            BoardFault::Shm(_) | BoardFault::Io(_) | BoardFault::Content(_) | BoardFault::Taken(_) => {
                NotAttached::Unreachable(Cause::Unreachable { endpoint: path.to_owned(), error: fault.to_string() })
            }
        })?;
        mapped.boards.insert(path.to_owned(), board.clone());
        Ok(board)
    }
}

/// Why there is no board.
#[derive(Debug)]
pub(super) enum NotAttached {
    /// Its file is gone: a landing removes it when the grant is revoked.
    Revoked,
    /// It is damaged, its pool cannot be mapped, or another process writes as this rank.
    Unreachable(Cause),
}

impl Mapped {
    /// Lets go of what is of no use any more: revoked grants, and pools whose file is gone or another one.
    fn forget(&mut self) {
        self.boards.retain(|_, board| !board.is_closed());
        self.segments
            .retain(|id, segment| Arc::strong_count(segment) > 1 || identity(segment.path()).ok() == Some(*id));
    }

    fn pool(&mut self, at: PoolAt) -> Result<Arc<Pool>, BoardFault> {
        let segment = match self.segments.get(&at.device_inode) {
            Some(segment) => segment.clone(),
            None => {
                let segment = Arc::new(Segment::open(&at.path)?);
                if identity(&at.path)? != at.device_inode {
                    return Err(BoardFault::Content("the pool was replaced"));
                }
                self.segments.insert(at.device_inode, segment.clone());
                segment
            }
        };
        let pool = Pool::new(segment, at.buffers).map_err(|_| BoardFault::Content("buffers outside the pool"))?;
        Ok(Arc::new(pool))
    }
}

fn identity(path: &Path) -> std::io::Result<(u64, u64)> {
    let metadata = std::fs::metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

const NO_PANIC: &str = "no thread panics with the mappings locked";
