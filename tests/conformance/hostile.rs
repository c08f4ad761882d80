//! Peers of the TCP backend that break its rules, stop in the middle, or do not read.

use std::io::Write;
use std::net::{Shutdown, TcpListener};
use std::time::{Duration, Instant};

use hicached::wire::tcp::{Tcp, TcpSettings};
use hicached::wire::{Cause, Grant, LayersReady, NOBODY, PushEnd, PushKey, PushOrder};
use hicached_actors::protocol::Rank;

use crate::frames::{RawFrame, answer, ask, closes, connect};
use crate::world::{Plan, World, pattern, until};

const PAGES: u32 = 16;

/// A landing with a grant for 4 pages, and their first layer's bytes.
struct Landed {
    world: World,
    plan: Plan,
    grant: Grant,
}

impl Landed {
    fn new() -> Self {
        let settings = TcpSettings { idle: Duration::from_millis(200), ..TcpSettings::default() };
        let world = World::new(&Tcp::new(settings).expect("sound settings"), 1, PAGES);
        let plan = Plan::contiguous(&[0; 4]);
        let grant = world.grant(&plan).expect("a grant");
        Self { world, plan, grant }
    }

    fn bytes(&self, position: u32) -> Vec<u8> {
        pattern(self.plan.name, &self.world.pool.buffers().as_slice()[0], position)
    }

    fn frame(&self, position: u32) -> RawFrame {
        RawFrame::new(&self.grant, position, self.bytes(position))
    }

    /// The first layer of these positions holds their bytes, and nothing else was written.
    fn holds(&self, positions: &[u32]) {
        let first = self.world.pool.buffers().as_slice()[0];
        let held = self.world.bytes_are(|buffer, page| {
            let at = self.plan.slots.iter().position(|slot| *slot == page)? as u32;
            (*buffer == first && positions.contains(&at)).then(|| self.bytes(at))
        });
        held.expect("nothing else");
    }
}

#[test]
fn frames_that_break_a_rule_are_refused_and_their_connection_goes_on() {
    let landed = Landed::new();
    let mut stream = connect(&landed.grant);
    let good = landed.frame(0);
    assert_eq!(ask(&mut stream, &good), (0, 0), "a good frame");
    let one = landed.frame(1);
    let two_pages = [landed.bytes(1), landed.bytes(2)].concat();
    let rows: Vec<(&str, RawFrame, (u8, u32))> = vec![
        ("another secret", RawFrame { secret: [1; 16], ..one.clone() }, (1, 0)),
        ("another attempt", RawFrame { attempt: 0, ..one.clone() }, (2, 0)),
        ("a rank of no group", RawFrame { rank: 64, ..one.clone() }, (4, 0)),
        ("the mark of nobody", RawFrame { rank: NOBODY, ..one.clone() }, (4, 0)),
        ("an unknown component", RawFrame { component: 4, ..one.clone() }, (5, 0)),
        ("an unknown layer", RawFrame { layer: 3, ..one.clone() }, (5, 0)),
        ("a layer without bytes", RawFrame { component: 1, layer: 1, ..one.clone() }, (5, 0)),
        ("too few bytes", RawFrame { payload: vec![7; 63], ..one.clone() }, (6, 0)),
        ("too many bytes", RawFrame { payload: vec![7; 128], ..one.clone() }, (6, 0)),
        ("no runs", RawFrame { runs: vec![], payload: vec![], ..one.clone() }, (6, 0)),
        ("counts that overflow", RawFrame { runs: vec![(1, u32::MAX), (2, u32::MAX)], ..one.clone() }, (6, 0)),
        ("a position of nobody", RawFrame { runs: vec![(4, 1)], ..one.clone() }, (7, 4)),
        (
            "a run that leaves the grant",
            RawFrame { runs: vec![(3, 2)], payload: two_pages.clone(), ..one.clone() },
            (7, 4),
        ),
        ("the last position there is", RawFrame { runs: vec![(u32::MAX, 1)], ..one.clone() }, (7, u32::MAX)),
        ("a position that has landed", good, (8, 0)),
        (
            "a position twice in a frame",
            RawFrame { runs: vec![(1, 1), (1, 1)], payload: two_pages, ..one.clone() },
            (8, 1),
        ),
        ("another checksum", RawFrame { flags: 1, checksum: 1, ..one.clone() }, (9, 0)),
    ];
    let refused = rows.len() as u64;
    for (what, frame, wanted) in rows {
        assert_eq!(ask(&mut stream, &frame), wanted, "{what}");
    }
    assert_eq!(landed.world.landing.figures().refused, refused);
    // Nothing of them counts: not even the position whose checksum differed, which comes again.
    assert_eq!(ask(&mut stream, &one), (0, 0), "a good frame behind them");
    landed.holds(&[0, 1]);
    landed.world.revoke(landed.plan.name).expect("revoked");
    assert_eq!(ask(&mut stream, &landed.frame(2)), (3, 0), "a late frame");
    landed.holds(&[0, 1]);
    assert_eq!((landed.world.landing.figures().late, landed.world.landing.figures().broken), (1, 0));
}

#[test]
fn whoever_has_said_everything_is_answered() {
    let landed = Landed::new();
    let mut stream = connect(&landed.grant);
    let both = [landed.frame(0).encode(), landed.frame(1).encode()].concat();
    stream.write_all(&both).expect("a connection");
    stream.shutdown(Shutdown::Write).expect("a connection");
    assert_eq!((answer(&mut stream), answer(&mut stream)), ((0, 0), (0, 0)));
    assert!(closes(&mut stream));
    landed.holds(&[0, 1]);
    assert_eq!(landed.world.landing.figures().broken, 0);
}

#[test]
fn what_is_no_frame_ends_its_connection_alone() {
    let landed = Landed::new();
    let mut good = connect(&landed.grant);
    for (what, frame) in [
        ("another magic", RawFrame { magic: *b"GET ", ..landed.frame(0) }),
        ("another version", RawFrame { version: 2, ..landed.frame(0) }),
        ("unknown flags", RawFrame { flags: 2, ..landed.frame(0) }),
        ("more runs than a frame has", RawFrame { run_count: Some(1_025), ..landed.frame(0) }),
        ("more bytes than a frame has", RawFrame { payload_bytes: Some((64 << 20) + 1), ..landed.frame(0) }),
    ] {
        let mut stream = connect(&landed.grant);
        assert_eq!(ask(&mut stream, &frame), (10, 0), "{what}");
        assert!(closes(&mut stream), "{what}");
    }
    until("the counts", || landed.world.landing.figures().broken == 5).expect("each is counted");
    assert_eq!(ask(&mut good, &landed.frame(0)), (0, 0), "the others go on");
    landed.holds(&[0]);
}

#[test]
fn a_frame_that_is_cut_short_gives_its_places_back() {
    let landed = Landed::new();
    let whole = landed.frame(2).encode();
    for cut in [1, 51, 52, 56, 60, 61, 90, whole.len() - 1] {
        // One peer stops and stays, the other goes.
        for stays in [true, false] {
            let mut stream = connect(&landed.grant);
            stream.write_all(&whole[..cut]).expect("a connection");
            if stays {
                assert!(closes(&mut stream), "cut at {cut}");
            }
        }
    }
    until("the counts", || landed.world.landing.figures().broken == 16).expect("each is counted");
    let report = landed.world.landing.report(landed.plan.name).expect("a grant");
    assert_eq!(report.owners, [NOBODY; 4]);
    assert_eq!(ask(&mut connect(&landed.grant), &landed.frame(2)), (0, 0), "whole");
    landed.holds(&[2]);
}

#[test]
fn a_frame_that_waits_for_its_bytes_holds_no_fence_up() {
    let landed = Landed::new();
    let (mut slow, whole) = (connect(&landed.grant), landed.frame(1).encode());
    slow.write_all(&whole[..90]).expect("a connection");
    let first = landed.world.pool.buffers().as_slice()[0];
    let begun = || crate::world::read(&landed.world.pool, &first, 2)[..30] == landed.bytes(1)[..30];
    until("the first bytes", begun).expect("they are written at once");
    // Its places are taken meanwhile.
    assert_eq!(ask(&mut connect(&landed.grant), &landed.frame(1)), (8, 1));
    let began = Instant::now();
    landed.world.revoke(landed.plan.name).expect("revoked");
    assert!(began.elapsed() < Duration::from_millis(150), "{:?}, while a peer keeps still", began.elapsed());
    slow.write_all(&whole[90..]).expect("a connection");
    assert_eq!(answer(&mut slow), (3, 0), "the rest is thrown away");
    assert_eq!(crate::world::read(&landed.world.pool, &first, 2)[30..], [crate::world::POISON; 34]);
}

#[test]
fn a_landing_takes_no_more_connections_than_it_may() {
    let settings = TcpSettings { connections_max: 2, ..TcpSettings::default() };
    let world = World::new(&Tcp::new(settings).expect("sound settings"), 1, PAGES);
    let plan = Plan::contiguous(&[0; 4]);
    let grant = world.grant(&plan).expect("a grant");
    let frame =
        |position| RawFrame::new(&grant, position, pattern(plan.name, &world.pool.buffers().as_slice()[0], position));
    let (mut first, mut second) = (connect(&grant), connect(&grant));
    assert_eq!((ask(&mut first, &frame(0)), ask(&mut second, &frame(1))), ((0, 0), (0, 0)));
    assert!(closes(&mut connect(&grant)), "the third");
    drop(first);
    until("room", || {
        let mut stream = connect(&grant);
        stream.write_all(&frame(2).encode()).is_ok() && !closes(&mut stream)
    })
    .expect("one that ends makes room");
}

#[test]
fn a_peer_that_never_reads_fails_its_own_pushes_and_delays_no_others() {
    let settings = TcpSettings { idle: Duration::from_millis(300), ..TcpSettings::default() };
    let tcp = Tcp::new(settings).expect("sound settings");
    let world = World::new(&tcp, 1, PAGES);
    let plan = Plan::contiguous(&[0; 4]);
    world.compute(&plan, 0..u32::MAX);
    let grant = world.grant(&plan).expect("a grant");
    // It listens and takes nothing: connections come about in its backlog.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let to_silent = format!("tcp:{}", silent.local_addr().expect("an address"));
    let order = world.order(&plan, &grant, 0);
    let lost = PushOrder { key: PushKey { name: plan.name, part: 9 }, endpoint: to_silent.clone(), ..order.clone() };
    world.begin(lost).expect("taken");
    let (end, _) = world.push(order).expect("the other one");
    assert_eq!(end, PushEnd::Complete, "not delayed");
    match world.end_of(Rank(0)).expect("an end") {
        (PushEnd::Failed(Cause::Stalled { endpoint, ms }), _) => assert!(to_silent.ends_with(&endpoint) && ms >= 300),
        other => panic!("{other:?}"),
    }
    world.bytes_are_right(&plan).expect("right bytes");
}

#[test]
fn a_push_to_a_silent_peer_ends_by_its_deadline_and_when_it_is_stopped() {
    let stop = Duration::from_millis(50);
    let tcp = Tcp::new(TcpSettings { stop, ..TcpSettings::default() }).expect("sound settings");
    let world = World::new(&tcp, 1, PAGES);
    let plan = Plan::contiguous(&[0; 4]);
    let grant = world.grant(&plan).expect("a grant");
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let endpoint = format!("tcp:{}", silent.local_addr().expect("an address"));
    let order = PushOrder { endpoint, ..world.order(&plan, &grant, 0) };
    let (end, figures) =
        world.push(PushOrder { deadline: Duration::from_millis(100), ..order.clone() }).expect("an end");
    assert_eq!(end, PushEnd::Failed(Cause::Deadline { ms: 100 }));
    assert!(figures.total_us >= 100_000 && figures.bytes == 0, "{figures:?}");
    world.begin(order).expect("taken");
    world.senders[0].launch.stop(plan.name);
    assert_eq!(world.end_of(Rank(0)).expect("an end").0, PushEnd::Stopped);
}

#[test]
fn a_receiver_that_is_gone_fails_the_push_and_one_that_came_back_is_reached() {
    let settings = TcpSettings { connect: Duration::from_millis(500), ..TcpSettings::default() };
    let tcp = Tcp::new(settings).expect("sound settings");
    let mut world = World::new(&tcp, 1, PAGES);
    let plan = Plan::contiguous(&[0; 4]);
    let figures = world.transfer(&plan).expect("arrives");
    assert_eq!(figures[0].bytes, 4 * 256);
    let old = world.order(&plan, &world.grant(&plan).expect("the same grant"), 0);
    let address = old.endpoint.strip_prefix("tcp:").expect("of tcp").parse().expect("an address");
    let (to, events) = std::sync::mpsc::channel();
    // The landing ends; what is pushed to it cannot be reached.
    let nobody: Box<dyn hicached::wire::Landing> = {
        let backend = Tcp::default();
        let events = hicached::wire::Events::new(to.clone(), std::sync::Arc::new(|| ()));
        hicached::wire::Backend::landing(&backend, events).expect("a landing")
    };
    drop(std::mem::replace(&mut world.landing, nobody));
    match world.push(PushOrder { ready: LayersReady::ALL, ..old }).expect("an end").0 {
        PushEnd::Failed(Cause::Unreachable { .. } | Cause::Broken { .. }) => {}
        other => panic!("{other:?}"),
    }
    // Another life at the same address: the connections of the launch are of no use, and it makes new ones.
    let again = Tcp::new(TcpSettings { listen: address, ..TcpSettings::default() }).expect("sound settings");
    let sink = hicached::wire::Events::new(to, std::sync::Arc::new(|| ()));
    world.landing = hicached::wire::Backend::landing(&again, sink).expect("the same port");
    world.events = events;
    let plan = Plan { name: hicached::wire::Name { attempt: 2, ..plan.name }, ..plan };
    world.transfer(&plan).expect("arrives");
    world.bytes_are_right(&plan).expect("right bytes");
}
