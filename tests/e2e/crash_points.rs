//! Processes that die at every named point while an engine is served: nothing is lost, nothing is leaked, no byte is
//! wrong, every request ends once.
//!
//! The control group and each rank are processes of their own. Each is started with a point at which it dies; when it
//! has, it is started with the next. `CRASH_POINTS=all` tries every point, the default one moment of each message.

use std::collections::VecDeque;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use hicached::crash::{MESSAGES, Moment, Point, names};
use hicached::rank::PageTable;
use hicached_actors::protocol::{Flush, Keys};
use hicached_client::shm::Segment;
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::time::timeout;

use super::*;

/// Within this a point is reached, whatever the group has to recover from first.
const REACHED_MAX: Duration = LONG;

/// A request that is in the middle of it is begun again as often.
const DEATHS_AT_ONCE: u64 = 4;

/// Points that wait for a process that hosts them.
struct Waiting {
    points: Mutex<VecDeque<Point>>,
    died: Mutex<Vec<Point>>,
}

impl Waiting {
    fn of(points: Vec<Point>) -> Self {
        Self { points: Mutex::new(points.into()), died: Mutex::default() }
    }

    fn next(&self) -> Option<Point> {
        self.points.lock().expect("no panic holds it").pop_front()
    }
}

/// A process of a group that is started again and again.
struct Mortal<'a> {
    config: &'a Path,
    run: String,
}

impl Mortal<'_> {
    fn start(&self, point: Option<&Point>) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hicached"));
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("HICACHED__")) {
            command.env_remove(name);
        }
        command.args(["serve", "--drain-s", "5", "--config"]).arg(self.config);
        command.args(["--set", &format!("actors.run={}", self.run)]);
        if let Some(point) = point {
            command.args(["--crash-at", &point.to_string()]);
        }
        command.stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
        command.spawn().expect("the program starts")
    }

    /// Dies at every point that waits, one life each; the process of the life after the last one. Every
    /// [`DEATHS_AT_ONCE`] deaths it lives until one more request has `ended`: an engine begins a request again only so
    /// often.
    async fn dies_at(&self, waiting: &Waiting, mut ended: watch::Receiver<u64>) -> Child {
        let mut deaths = 0;
        while let Some(point) = waiting.next() {
            deaths += 1;
            if deaths % DEATHS_AT_ONCE == 0 {
                let mut child = self.start(None);
                let before = *ended.borrow_and_update();
                let one_more = timeout(REACHED_MAX, ended.wait_for(|now| *now > before)).await;
                one_more.unwrap_or_else(|_| panic!("no request ended in {REACHED_MAX:?}")).expect("the engine runs");
                child.kill().await.expect("it lives");
            }
            let child = self.start(Some(&point));
            let ended = timeout(REACHED_MAX, child.wait_with_output()).await;
            let output =
                ended.unwrap_or_else(|_| panic!("{point} was not reached in {REACHED_MAX:?}")).expect("waited");
            let log = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.signal(), Some(9), "{} was to die at {point}: {}; {log}", self.run, output.status);
            waiting.died.lock().expect("no panic holds it").push(point);
        }
        self.start(None)
    }
}

/// The points to try: all, or of each message one moment and every place inside a rank.
fn points() -> Vec<Point> {
    if std::env::var("CRASH_POINTS").is_ok_and(|which| which == "all") {
        return Point::all().collect();
    }
    let kinds = MESSAGES.iter().flat_map(|(actor, kinds)| kinds.iter().map(move |kind| (*actor, *kind)));
    let once = kinds.zip(Moment::ALL.into_iter().cycle());
    let once = once.map(|((actor, kind), moment)| Point::Message { actor, kind, moment });
    once.chain(Point::all().filter(|point| matches!(point, Point::Inside(_)))).collect()
}

/// Recovery and traffic by turns: no request is ended again and again without getting anywhere.
fn mixed(points: Vec<Point>) -> Vec<Point> {
    let (mut first, mut second) = (points, Vec::new());
    second.extend(first.split_off(first.len() / 2));
    let longer = second.split_off(first.len());
    first.into_iter().zip(second).flat_map(|(a, b)| [a, b]).chain(longer).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_process_can_die_at_any_named_point() {
    let Some(world) = World::new("crash-points") else { return };
    let name = "mortal";
    let config = world.file(name);
    let text = std::fs::read_to_string(&config).expect("it was written");
    // Device and host smaller than what is asked for, leases short: a successor waits for those of the dead.
    let text = text.replace("pages = 512", "pages = 192").replace("pages = 2048", "pages = 256");
    std::fs::write(&config, text.replace("rank_ms = 1000", "rank_ms = 250")).expect("written");

    let (of_ranks, of_control): (Vec<Point>, Vec<Point>) = points().into_iter().partition(Point::is_of_rank);
    let all = of_ranks.len() + of_control.len();
    let (control, ranks) = (Waiting::of(mixed(of_control)), Waiting::of(mixed(of_ranks)));
    let mortal = |run: &str| Mortal { config: &config, run: run.to_owned() };
    let (leader, first, second) = (mortal("control"), mortal("rank.0"), mortal("rank.1"));

    let is_over = AtomicBool::new(false);
    let (has_ended, ended) = watch::channel(0);
    let prompts = world.prompts(name, 96);
    let endless = prompts.iter().cycle().take_while(|_| !is_over.load(Ordering::Relaxed)).cloned();
    let serve = async {
        let group = world.checked(name);
        let config = EngineConfig {
            sessions_max: 4,
            chunk_tokens: 1_024,
            away_after: LONG,
            deadline: LONG,
            room_patience: LONG,
            load_deadline: Duration::from_secs(2),
            ..EngineConfig::new(name, group.manifest, group.config.l1.pages / 2 + 1, &world.folder)
        };
        let mut engine = Engine::start(world.bus().await, config).await.expect("the group takes the engine");
        let report = engine.run(stream::iter(endless), |_, _| has_ended.send_modify(|ended| *ended += 1)).await;
        (engine, report)
    };
    let die = async {
        let alive = tokio::join!(
            leader.dies_at(&control, ended.clone()),
            first.dies_at(&ranks, ended.clone()),
            second.dies_at(&ranks, ended.clone())
        );
        is_over.store(true, Ordering::Relaxed);
        alive
    };
    let ((engine, report), alive) = tokio::join!(serve, die);
    assert!(report.is_clean() && report.bytes_verified > 0, "{report:?}");
    let died = control.died.into_inner().expect("no panic").len() + ranks.died.into_inner().expect("no panic").len();
    assert_eq!(died, all, "each point once");
    println!("{died} deaths, {} requests, {} begun again", report.requests, report.reopened);

    nothing_is_lost_or_left(&world, name, engine).await;
    drop(alive);
}

/// Rows that are sealed in the pools of both ranks, read past the processes that hold them.
fn sealed_rows(world: &World, name: &str) -> u64 {
    let sealed = |rank: u8| {
        let path = world.folder.join(format!("hicached-{name}-rank{rank}.pool"));
        let segment = Arc::new(Segment::open(&path).expect("a pool file"));
        let field = |at: u64| {
            let mut word = [0; 8];
            segment.read(at * 8, &mut word).expect("a header");
            u64::from_ne_bytes(word)
        };
        let (slots, table_offset) = (field(SLOTS_FIELD) as u32, field(TABLE_OFFSET_FIELD));
        let table = PageTable::at(segment.clone(), table_offset, slots).expect("a page table");
        (0..slots).filter(|slot| table.sealed(*slot).is_some()).count() as u64
    };
    sealed(0) + sealed(1)
}

/// Words of the header of a pool file.
const SLOTS_FIELD: u64 = 8;
const TABLE_OFFSET_FIELD: u64 = 13;

#[test]
fn a_point_that_does_not_exist_is_refused_with_the_names_of_those_that_do() {
    let (code, log) = Process::start(&["serve", "--crash-at", "index.open"]).ended();
    assert_eq!(code, Some(2), "{log}");
    assert!(names().iter().all(|name| log.contains(name)), "{log}");
}

/// The host tier is what the index says it is, and after a flush both tiers are empty and whole.
async fn nothing_is_lost_or_left(world: &World, name: &str, engine: Engine) {
    let client = engine.client().clone();
    let of_index = [("index.sessions", 0), ("index.in_flight", 0), ("index.unseals_open", 0)];
    for (figure, wanted) in of_index {
        until(&client, Address::Index, figure, |value| value == wanted).await;
    }
    let sealed = sealed_rows(world, name);
    until(&client, Address::Index, "index.cached_l2", |pages| pages == sealed).await;
    assert!(sealed > 0, "a host tier in which nothing survived proves nothing");
    let flush = Flush { tier: 0, salt: Vec::new(), prefix: Keys::default(), quarantined: false };
    let flushed = client.flush(flush).await.expect("a flush");
    assert_eq!((flushed.l1_kept, flushed.l2_kept, flushed.in_flight), (0, 0, 0), "{flushed:?}");
    assert_eq!(sealed_rows(world, name), 0, "a restart would undo the flush");
    let config = world.checked(name).config;
    for (figure, pages) in [("allocator.l1_free_pages", config.l1.pages), ("allocator.l2_free_pages", config.l2.pages)]
    {
        until(&client, Address::Allocator, figure, |free| free == u64::from(pages)).await;
    }
    engine.stop().await;
}
