//! The sending half through shared memory: threads that copy from this rank's pool into the receiver's.

use std::sync::Arc;
use std::thread::JoinHandle;

use hicached_actors::protocol::{Malformed, Refusal};

use super::attached::{Attached, NotAttached};
use super::{NAME, ShmSettings};
use crate::wire::claim::Claim;
use crate::wire::lane::Lane;
use crate::wire::piece::{Piece, PieceBounds};
use crate::wire::pushes::{Pushes, Running};
use crate::wire::{Cause, Events, FrameRefusal, Launch, LayersReady, Name, PushKey, PushOrder, StartError};

/// The launch of one rank.
#[derive(Debug)]
pub(super) struct ShmLaunch {
    pushes: Pushes,
    lane: Arc<Lane>,
    threads: Vec<JoinHandle<()>>,
}

impl ShmLaunch {
    pub(super) fn start(settings: &ShmSettings, events: Events) -> Result<Self, StartError> {
        let bounds = PieceBounds { bytes: settings.piece_bytes, pages: u32::MAX };
        let (pushes, lane) = (Pushes::start(events)?, Arc::new(Lane::new(bounds)));
        let mut launch = Self { pushes, lane, threads: Vec::new() };
        let attached = Arc::new(Attached::default());
        for _ in 0..settings.threads {
            let copier = Copier {
                lane: launch.lane.clone(),
                running: launch.pushes.running().clone(),
                attached: attached.clone(),
            };
            launch.threads.push(crate::wire::spawn("wire-copy", move || copier.work())?);
        }
        Ok(launch)
    }
}

impl Launch for ShmLaunch {
    fn push(&self, order: PushOrder) -> Result<(), Refusal> {
        self.pushes.push(order, |endpoint| match path_of(endpoint) {
            Some(_) => Ok(self.lane.clone()),
            None => Err(Malformed::new("endpoint", endpoint, format_args!("{NAME}:/path")).into()),
        })
    }

    fn ready(&self, key: PushKey, layers: LayersReady) {
        self.pushes.ready(key, layers);
    }

    fn stop(&self, name: Name) {
        self.pushes.stop(name);
    }

    fn stop_all(&self) {
        self.pushes.stop_all();
    }

    fn is_still(&self) -> bool {
        self.pushes.is_still()
    }
}

impl Drop for ShmLaunch {
    fn drop(&mut self) {
        self.lane.close();
        for thread in self.threads.drain(..) {
            // A panic of that thread has ended the process.
            thread.join().ok();
        }
    }
}

#[derive(Debug)]
struct Copier {
    lane: Arc<Lane>,
    running: Arc<Running>,
    attached: Arc<Attached>,
}

enum Failed {
    Refused(FrameRefusal),
    Lost(Cause),
}

impl Copier {
    fn work(&self) {
        while let Some(piece) = self.lane.wait() {
            if piece.job.is_stopping() {
                self.running.dropped(&piece);
                continue;
            }
            match self.copy(&piece) {
                Ok(()) => self.running.landed(&piece),
                Err(Failed::Refused(refusal)) => self.running.refused(&piece, refusal),
                Err(Failed::Lost(cause)) => self.running.lost(&piece, cause),
            }
        }
    }

    fn copy(&self, piece: &Piece) -> Result<(), Failed> {
        let path = path_of(&piece.job.endpoint).unwrap_or_default();
        let board = self.attached.board(path, piece.job.rank).map_err(|fault| match fault {
            NotAttached::Revoked => Failed::Refused(FrameRefusal::Late),
            NotAttached::Unreachable(cause) => Failed::Lost(cause),
        })?;
        let rows = piece.positions();
        let claim = Claim::take(&board, &piece.claiming(&rows)).map_err(Failed::Refused)?;
        let (mut from, mut to) = (piece.spans().into_iter(), claim.spans().into_iter());
        let (mut source, mut destination) = (from.next(), to.next());
        // Both hold the same pages in the same order, cut at different places.
        while let (Some(here), Some(there)) = (source, destination) {
            let bytes = here.bytes.min(there.bytes);
            let writing = claim.enter().map_err(Failed::Refused)?;
            there.copy_from(here, bytes);
            drop(writing);
            source = Some(here.skip(bytes)).filter(|left| left.bytes > 0).or_else(|| from.next());
            destination = Some(there.skip(bytes)).filter(|left| left.bytes > 0).or_else(|| to.next());
        }
        claim.land().map_err(Failed::Refused)
    }
}

fn path_of(endpoint: &str) -> Option<&str> {
    endpoint.strip_prefix(NAME)?.strip_prefix(':').filter(|path| path.starts_with('/'))
}
