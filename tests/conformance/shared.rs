//! What is special to shared memory: writers that die, grants that outlive their landing, files that are damaged.

use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::time::Duration;

use hicached::wire::shm::{Shm, ShmSettings};
use hicached::wire::{Backend as _, Cause, Event, Events, Grant, NOBODY, PushEnd, PushKey, PushOrder};
use hicached_client::shm::Segment;

use crate::world::{Plan, Scratch, World, until};

const PAGES: u32 = 16;
/// Where the gate of rank 0 stands in a grant's file: behind 16 words.
const GATE_AT: u64 = 16 * 8;

fn backend(folder: &Scratch) -> Shm {
    Shm::new(ShmSettings::new(&folder.0, "decode-0")).expect("sound settings")
}

fn file_of(grant: &Grant) -> PathBuf {
    grant.endpoint.strip_prefix("shm:").expect("an endpoint of shm").into()
}

#[test]
fn a_fence_waits_for_a_writer_that_lives_and_not_for_one_that_died() {
    let folder = Scratch::new();
    let world = World::new(&backend(&folder), 1, PAGES);
    let plan = Plan::contiguous(&[0; 4]);
    let grant = world.grant(&plan).expect("a grant");
    // A writer takes its lock, enters, and keeps still in the middle of a write.
    let writer = std::fs::OpenOptions::new().read(true).write(true).open(file_of(&grant)).expect("the grant");
    // SAFETY: all bytes of the structure may be zero.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    (lock.l_type, lock.l_len) = (libc::F_WRLCK as libc::c_short, 1);
    // SAFETY: the descriptor is open, and the command reads this structure.
    assert_eq!(unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_OFD_SETLK, &mut lock) }, 0);
    let words = Segment::open(&file_of(&grant)).expect("the grant");
    words.word(GATE_AT).expect("a word").fetch_add(1, std::sync::atomic::Ordering::AcqRel);
    world.landing.revoke(plan.name, false);
    if let Ok(event) = world.events.recv_timeout(Duration::from_millis(200)) {
        panic!("{event:?} while a writer lives");
    }
    assert!(!world.landing.is_still());
    // It dies as processes do: all it had is closed, and its count stays.
    drop(writer);
    world.is_revoked(plan.name).expect("its death is proof");
    assert!(world.landing.is_still() && !file_of(&grant).exists());
}

#[test]
fn two_processes_cannot_send_as_one_rank() {
    let folder = Scratch::new();
    let mut world = World::new(&backend(&folder), 1, PAGES);
    world.add_sender(&backend(&folder));
    let plan = Plan::contiguous(&[0; 2]);
    world.compute(&plan, 0..u32::MAX);
    let grant = world.grant(&plan).expect("a grant");
    let order = world.order(&plan, &grant, 0);
    assert_eq!(world.push(order.clone()).expect("an end").0, PushEnd::Complete);
    let other = &world.senders[1];
    other.launch.push(PushOrder { key: PushKey { name: plan.name, part: 1 }, ..order }).expect("taken");
    match other.events.recv_timeout(crate::world::LONG).expect("an end") {
        Event::Pushed(_, PushEnd::Failed(Cause::Unreachable { error, .. }), _) => {
            assert!(error.contains("another process sends"), "{error}");
        }
        event => panic!("{event:?}"),
    }
}

#[test]
fn the_next_life_of_a_rank_revokes_what_the_last_one_granted() {
    let folder = Scratch::new();
    let mut world = World::new(&backend(&folder), 1, PAGES);
    let plan = Plan::contiguous(&[0; 4]);
    let grant = world.grant(&plan).expect("a grant");
    // The file of a life that was killed: nobody has closed its gates.
    let left = folder.0.join("decode-0-left.grant");
    std::fs::copy(file_of(&grant), &left).expect("a copy");
    let never_whole = folder.0.join("decode-0-empty.grant");
    std::fs::write(&never_whole, [0; 4_096]).expect("a file");
    let of_another = folder.0.join("decode-1-left.grant");
    std::fs::copy(&left, &of_another).expect("a copy");
    let words = Segment::open(&left).expect("the grant");
    world.revoke(plan.name).expect("revoked");
    let (to, events) = std::sync::mpsc::channel();
    let next = backend(&folder).landing(Events::new(to, std::sync::Arc::new(|| ()))).expect("the next life");
    (world.landing, world.events) = (next, events);
    world.is_revoked(plan.name).expect("by itself");
    until("stillness", || world.landing.is_still()).expect("nothing lives");
    let gate = words.word(GATE_AT).expect("a word").load(std::sync::atomic::Ordering::Acquire);
    assert_eq!(gate >> 63, 1, "closed for whoever has it mapped");
    assert!(!left.exists() && !never_whole.exists() && of_another.exists());
}

#[test]
fn a_damaged_grant_moves_nothing() {
    let folder = Scratch::new();
    let world = World::new(&backend(&folder), 1, PAGES);
    let plan = Plan::contiguous(&[0; 2]);
    world.compute(&plan, 0..u32::MAX);
    let grant = world.grant(&plan).expect("a grant");
    let whole = std::fs::read(file_of(&grant)).expect("the grant");
    let places_at = 16 + 8 * 64;
    for (what, word, value) in [
        ("magic", 0, 0),
        ("positions beyond the file", 6, 60_000),
        ("positions without end", 6, u64::MAX),
        ("buffers without end", 7, u64::MAX),
        ("fewer pages than it names", 8, 1),
        ("more pages than the pool has", 8, 1 << 20),
        ("another pool", 10, 1),
        ("a path without end", 11, u64::MAX),
        ("a page outside the pool", places_at, 999),
        ("a component of nobody", places_at + 2, 7 << 32),
        ("a layer of nobody", places_at + 2, 5_000),
        ("a region outside the pool", places_at + 3, 1 << 62),
    ] {
        let path = folder.0.join("damaged");
        std::fs::write(&path, &whole).expect("a file");
        let file = std::fs::OpenOptions::new().write(true).open(&path).expect("the file");
        file.write_all_at(&u64::to_le_bytes(value), word * 8).expect("a word");
        let endpoint = format!("shm:{}", path.display());
        match world.push(PushOrder { endpoint, ..world.order(&plan, &grant, 0) }).expect("an end").0 {
            PushEnd::Failed(Cause::Unreachable { .. }) => {}
            end => panic!("{what}: {end:?}"),
        }
        std::fs::remove_file(&path).expect("the file");
    }
    world.is_untouched().expect("nothing was written");
    assert_eq!(world.landing.report(plan.name).expect("a grant").owners, [NOBODY; 2]);
}
