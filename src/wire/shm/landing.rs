//! The receiving half through shared memory: a file for each grant. It moves nothing; senders do.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use hicached_actors::protocol::{Refusal, WrongState};

use super::{NAME, ShmSettings};
use crate::wire::board::{Board, BoardFault};
use crate::wire::grants::Grants;
use crate::wire::{Events, Grant, GrantSpec, Landing, LandingFigures, Name, Report, StartError};

/// The landing of one rank.
#[derive(Debug)]
pub(super) struct ShmLanding {
    grants: Grants,
    folder: PathBuf,
    /// What the names of this life's files begin with.
    prefix: String,
    next: AtomicU64,
}

impl ShmLanding {
    pub(super) fn start(settings: &ShmSettings, events: Events) -> Result<Self, StartError> {
        let (folder, of_rank) = (settings.folder.clone(), format!("{}-", settings.rank_name));
        let grants = Grants::start(events)?;
        for path in left_behind(&folder, &of_rank)? {
            match Board::open(&path, |_| Ok(None)) {
                Ok(board) => grants.inherit(board),
                // It was never whole, so that no sender has used it.
                Err(BoardFault::Content(what)) => {
                    tracing::warn!(path = %path.display(), what, "a grant that was never whole is removed");
                    std::fs::remove_file(&path).map_err(|source| failed("remove", &path, source))?;
                }
                Err(fault) => return Err(failed("read", &path, io::Error::other(fault.to_string()))),
            }
        }
        let life = uuid::Uuid::new_v4().simple();
        Ok(Self { grants, folder, prefix: format!("{of_rank}{life}"), next: AtomicU64::new(0) })
    }
}

impl Landing for ShmLanding {
    fn accept(&self, spec: GrantSpec) -> Result<Grant, Refusal> {
        let make = |secret| {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let path = self.folder.join(format!("{}-{number}{SUFFIX}", self.prefix));
            let made = Board::in_file(&path, &spec, secret);
            made.map_err(|error| WrongState { what: "grant".to_owned(), state: error.to_string() }.into())
        };
        let endpoint = |board: &Board| format!("{NAME}:{}", board.path().unwrap_or(Path::new("")).display());
        self.grants.accept(&spec, make, endpoint)
    }

    fn report(&self, name: Name) -> Option<Report> {
        self.grants.report(name)
    }

    fn revoke(&self, name: Name, _drained: bool) {
        self.grants.revoke(name);
    }

    fn revoke_all(&self) {
        self.grants.revoke_all();
    }

    fn is_still(&self) -> bool {
        self.grants.is_still()
    }

    fn figures(&self) -> LandingFigures {
        self.grants.figures(0)
    }
}

fn left_behind(folder: &Path, of_rank: &str) -> Result<Vec<PathBuf>, StartError> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(|source| failed("list", folder, source))? {
        let path = entry.map_err(|source| failed("list", folder, source))?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.starts_with(of_rank) && name.ends_with(SUFFIX) {
            found.push(path);
        }
    }
    Ok(found)
}

fn failed(doing: &str, path: &Path, source: io::Error) -> StartError {
    StartError::Io { doing: format!("{doing} {}", path.display()), source }
}

const SUFFIX: &str = ".grant";
