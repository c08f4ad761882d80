//! The file of a grant in shared memory that somebody has written over: the launch that is told of it ends its push,
//! the landing that gave it takes it back, and the next life of that landing clears it away.

use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use hicached::wire::shm::{Shm, ShmSettings};
use hicached::wire::{Backend as _, Event, Events, GrantSpec, LayersReady, Name, PushEnd, PushKey, PushOrder};
use hicached_actors::protocol::{OpId, Rank};

use super::pools::Filled;
use crate::scratch::Scratch;
use crate::source::Source;

/// Edits of the file of a grant: each a word and what is written there.
pub(super) fn run(src: &mut Source<'_>) {
    let folder = Folder::new();
    let (source, pool) = (Filled::new("source", 0xA5), Filled::new("pool", 0x5A));
    let shm = Shm::new(ShmSettings { threads: 1, ..ShmSettings::new(&folder.0, "rank") }).expect("sound settings");
    let (to, landed) = channel();
    let landing = shm.landing(Events::new(to, Arc::new(|| ()))).expect("threads");
    let name = Name { transfer: OpId([0x71; 16]), attempt: 1 };
    let (positions, pages) = (vec![0, 1, 2, 5], vec![3, 4, 7, 2]);
    let spec = GrantSpec { name, positions: positions.clone(), pages: pages.clone(), pool: pool.pool.clone() };
    let grant = landing.accept(spec).expect("a good grant");
    let path = PathBuf::from(grant.endpoint.strip_prefix("shm:").expect("an endpoint of shm"));
    let edited = edit(&path, src);
    let (to, pushed) = channel();
    let launch = shm.launch(Events::new(to, Arc::new(|| ()))).expect("threads");
    let key = PushKey { name, part: 0 };
    let order = PushOrder {
        key,
        rank: Rank(0),
        source: source.pool.clone(),
        positions,
        slots: pages,
        pages: vec![1, 2, 3, 4],
        endpoint: grant.endpoint,
        secret: grant.secret,
        deadline: LONG,
        ready: LayersReady::ALL,
    };
    launch.push(order).expect("a good push");
    let Event::Pushed(ended, end, _) = pushed.recv_timeout(LONG).expect("a push ends") else { panic!("no end") };
    assert_eq!(ended, key);
    match end {
        PushEnd::Complete => {}
        PushEnd::Failed(cause) => assert!(edited > 0 && !cause.to_string().is_empty(), "{cause}"),
        PushEnd::Stopped => panic!("nobody has stopped it"),
    }
    assert!(source.bytes().iter().all(|byte| *byte == 0xA5), "the pool that is sent from was written");
    let report = landing.report(name).expect("a grant that lives");
    assert_eq!(report.owners.len(), 4);
    assert!(edited > 0 || (report.missing.is_none() && report.owners == [0; 4]));
    landing.figures();
    // A writer that is gone holds nothing up, whatever the file says of it.
    drop(launch);
    let left = std::fs::read(&path).expect("the file of a grant that lives");
    landing.revoke(name, false);
    assert_eq!(landed.recv_timeout(LONG).expect("a grant without writers is revoked"), Event::Revoked(name));
    drop(landing);
    begin_again(&shm, &path, &left);
}

/// Writes over some words; how many.
fn edit(path: &Path, src: &mut Source<'_>) -> usize {
    let file = std::fs::OpenOptions::new().write(true).open(path).expect("the file of a grant");
    let words = file.metadata().expect("an open file").len() / 8;
    let mut edits = 0;
    while edits < EDITS_MAX && !src.is_empty() {
        edits += 1;
        let at = match src.u8() {
            head @ 0..=191 => u64::from(head) % HEAD_WORDS.len() as u64,
            _ => HEAD_WORDS.len() as u64 + u64::from(src.u16()),
        };
        let at = HEAD_WORDS.get(at as usize).copied().unwrap_or(at) % words;
        let value = match src.u8() % 4 {
            0 => src.u64(),
            1 => src.number() << 32,
            _ => src.number(),
        };
        file.write_all_at(&value.to_le_bytes(), at * 8).expect("room for a word");
    }
    edits
}

/// What an older life left is cleared away, or the landing says why it does not start.
fn begin_again(shm: &Shm, path: &Path, left: &[u8]) {
    std::fs::write(path, left).expect("room for a small file");
    let (to, _events) = channel();
    match shm.landing(Events::new(to, Arc::new(|| ()))) {
        Err(refused) => assert!(!refused.to_string().is_empty()),
        Ok(landing) => {
            for _ in 0..LOOKS_MAX {
                if landing.is_still() {
                    assert!(!path.exists(), "a grant that is over has no file");
                    return;
                }
                std::thread::yield_now();
            }
            panic!("a grant without writers does not end");
        }
    }
}

/// A folder of one input, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let scratch = Scratch::new("grants");
        std::fs::create_dir(scratch.path()).expect("the folder for scratch files can be written");
        Self(scratch.path().to_owned())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// What stands before the gates, and the places, buffers and path behind those.
const HEAD_WORDS: [u64; 27] =
    [0, 1, 3, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16, 17, 24, 528, 529, 530, 531, 532, 533, 534, 535, 547, 548, 549];
const EDITS_MAX: usize = 8;
/// Longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(60);
/// A minute and more, also on a machine where every look gives the processor away.
const LOOKS_MAX: u64 = 100_000_000;
