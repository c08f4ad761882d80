//! NIXL between processes: a sender that is stopped or killed in the middle of its writes.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use hicached::wire::nixl::{Nixl, NixlSettings};
use hicached::wire::{
    Backend as _, Cause, Event, Events, FrameRefusal, Grant, GrantSpec, Landing, LayersReady, Name, Pool, PushEnd,
    PushKey, PushOrder,
};
use hicached_actors::protocol::{OpId, Rank};
use hicached_kernels::layout::{Component, L1Layout, Layout};
use serde::{Deserialize, Serialize};

use crate::nixl::{over_tcp, settings};
use crate::world::{LONG, POISON, Scratch, pool, until};

const PAGES: u32 = 64;
/// Two layers of 64 MiB: long enough to be in the middle of one.
const PAGE_BYTES: u64 = 1 << 20;
const NAME: Name = Name { transfer: OpId([7; 16]), attempt: 1 };
/// What a sender is told, in the environment of its process.
const TOLD: &str = "HICACHED_TEST_SENDER";

#[derive(Serialize, Deserialize)]
struct Told {
    library: PathBuf,
    ucx: Vec<String>,
    endpoint: String,
    secret: [u8; 16],
    /// Where its pool stands: a folder of those who start it, who outlive it.
    folder: PathBuf,
}

fn layout() -> Layout {
    Layout::new(64, vec![(Component::TargetKv, vec![PAGE_BYTES; 2])], 1).expect("a sound layout")
}

fn pool_of(folder: &Scratch, name: &str, filled: u8) -> Arc<Pool> {
    let layout = layout();
    pool(folder, name, &layout, &L1Layout::packed(&layout, PAGES + 1), filled)
}

/// Sends the first layer, and the second when a line comes.
#[test]
#[ignore = "a process that others start, and stop"]
fn a_process_that_sends() {
    let told = std::env::var(TOLD).expect("started by others");
    let Told { library, ucx, endpoint, secret, folder } = serde_json::from_str(&told).expect("what to send");
    let backend = Nixl::new(NixlSettings { library, ucx, ..NixlSettings::default() }).expect("a library that works");
    let (folder, (to, events)) = (Scratch(folder), channel());
    let launch = backend.launch(Events::new(to, Arc::new(|| ()))).expect("a launch");
    let grant = Grant { endpoint, secret };
    let order =
        PushOrder { ready: LayersReady { target: 1, draft: 0 }, ..order(NAME, &grant, pool_of(&folder, "prefill", 1)) };
    let key = order.key;
    launch.push(order).expect("taken");
    std::io::stdin().read_line(&mut String::new()).expect("a line");
    launch.ready(key, LayersReady::ALL);
    match events.recv_timeout(LONG).expect("an end") {
        Event::Pushed(_, PushEnd::Failed(Cause::Refused { refusal: FrameRefusal::Late, .. }), _) => {}
        event => panic!("{event:?}"),
    }
}

/// A landing with a grant, and the process that sends to it.
struct Pair {
    target: Arc<Pool>,
    landing: Box<dyn Landing>,
    events: Receiver<Event>,
    sender: Child,
    _folder: Scratch,
}

impl Pair {
    fn new(settings: &NixlSettings) -> Self {
        let (folder, (to, events)) = (Scratch::new(), channel());
        let target = pool_of(&folder, "decode", POISON);
        let backend = Nixl::new(settings.clone()).expect("a library that works");
        let landing = backend.landing(Events::new(to, Arc::new(|| ()))).expect("a landing");
        let (positions, pages) = ((0..PAGES).collect(), (1..=PAGES).collect());
        let grant = landing.accept(GrantSpec { name: NAME, positions, pages, pool: target.clone() });
        let sender = sender(settings, grant.expect("a grant"), &folder);
        let pair = Self { target, landing, events, sender, _folder: folder };
        let begun = || pair.landing.report(NAME).is_some_and(|report| report.figures.bytes > 0);
        until("the first bytes", begun).expect("they land");
        pair
    }

    fn signal(&self, signal: libc::c_int) {
        // SAFETY: the child was not waited for, so that its number is nobody else's.
        assert_eq!(unsafe { libc::kill(self.sender.id() as libc::pid_t, signal) }, 0);
    }

    /// Revokes the grant; then the pages are somebody else's, who writes them.
    fn revoke(&self) {
        self.landing.revoke(NAME, false);
        assert_eq!(self.events.recv_timeout(LONG), Ok(Event::Revoked(NAME)), "without the sender's help");
        assert!(self.landing.is_still());
        self.target.segment().write(0, &vec![OTHERS; self.target.segment().len_bytes() as usize]).expect("all of it");
    }

    /// Nothing was written since.
    fn is_others(&self) {
        let mut bytes = vec![0; self.target.segment().len_bytes() as usize];
        self.target.segment().read(0, &mut bytes).expect("all of it");
        assert_eq!(bytes.iter().position(|byte| *byte != OTHERS), None, "a byte that came late");
    }
}

fn sender(settings: &NixlSettings, grant: Grant, folder: &Scratch) -> Child {
    let NixlSettings { library, ucx, .. } = settings.clone();
    let folder = folder.0.join("sender");
    std::fs::create_dir(&folder).expect("a folder");
    let told = Told { library, ucx, endpoint: grant.endpoint, secret: grant.secret, folder };
    let test = ["--exact", "nixl_processes::a_process_that_sends", "--ignored"];
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(test).env(TOLD, serde_json::to_string(&told).expect("plain fields"));
    command.stdin(Stdio::piped()).spawn().expect("a process")
}

#[test]
fn a_sender_that_is_stopped_holds_no_fence_up_and_writes_nothing_when_it_goes_on() {
    let Some(settings) = settings() else { return };
    for settings in [over_tcp(&settings), settings] {
        let mut pair = Pair::new(&settings);
        pair.signal(libc::SIGSTOP);
        pair.revoke();
        pair.signal(libc::SIGCONT);
        pair.sender.stdin.take().expect("a pipe").write_all(b"on\n").expect("it reads");
        assert!(pair.sender.wait().expect("an end").success(), "it is refused, and lives");
        pair.is_others();
    }
}

#[test]
fn a_sender_that_is_killed_holds_no_fence_up_and_another_one_is_served() {
    let Some(settings) = settings() else { return };
    for settings in [over_tcp(&settings), settings] {
        let mut pair = Pair::new(&settings);
        pair.signal(libc::SIGKILL);
        pair.revoke();
        assert!(!pair.sender.wait().expect("an end").success());
        pair.is_others();
        let (positions, pages) = ((0..PAGES).collect(), (1..=PAGES).collect());
        let name = Name { attempt: 2, ..NAME };
        let spec = GrantSpec { name, positions, pages, pool: pair.target.clone() };
        let grant = pair.landing.accept(spec).expect("the same pages again");
        another_sends(&settings, &grant, name);
        let report = pair.landing.report(name).expect("a grant");
        assert_eq!((report.missing, report.owners), (None, vec![0; PAGES as usize]));
    }
}

fn another_sends(settings: &NixlSettings, grant: &Grant, name: Name) {
    let (folder, (to, events)) = (Scratch::new(), channel());
    let backend = Nixl::new(settings.clone()).expect("a library that works");
    let launch = backend.launch(Events::new(to, Arc::new(|| ()))).expect("a launch");
    launch.push(order(name, grant, pool_of(&folder, "prefill", 2))).expect("taken");
    let end = events.recv_timeout(LONG).expect("an end");
    assert!(matches!(end, Event::Pushed(_, PushEnd::Complete, _)), "{end:?}");
}

/// Every page, as part 0 with every layer ready.
fn order(name: Name, grant: &Grant, source: Arc<Pool>) -> PushOrder {
    let pages: Vec<u32> = (1..=PAGES).collect();
    PushOrder {
        key: PushKey { name, part: 0 },
        rank: Rank(0),
        source,
        positions: (0..PAGES).collect(),
        slots: pages.clone(),
        pages,
        endpoint: grant.endpoint.clone(),
        secret: grant.secret,
        deadline: LONG,
        ready: LayersReady::ALL,
    }
}

/// What stands in pages that were given to others.
const OTHERS: u8 = 0x33;
