//! NIXL, where `HICACHED_NIXL` names the folder of its library: the suite over each transport that a host without
//! special devices has, and what is special to it.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::Duration;

use hicached::wire::nixl::{Nixl, NixlSettings};
use hicached::wire::tcp::ACK_BYTES;
use hicached::wire::{Backend, Cause, Grant, LayersReady, NOBODY, PushEnd, PushOrder};
use hicached_actors::protocol::Rank;

use crate::frames::{RawFrame, closes};
use crate::passes_the_suite;
use crate::world::{LONG, Plan, World, until};

const PAGES: u32 = 16;

/// The library's folder; `None`, with a word of why, where there is none.
pub(crate) fn settings() -> Option<NixlSettings> {
    let folder = std::env::var_os("HICACHED_NIXL").filter(|folder| !folder.is_empty()).map(PathBuf::from);
    if folder.is_none() {
        println!("nixl: absent, HICACHED_NIXL names no folder with libnixl_capi.so");
    }
    folder.map(|library| NixlSettings { library, ..NixlSettings::default() })
}

/// Over TCP alone.
pub(crate) fn over_tcp(settings: &NixlSettings) -> NixlSettings {
    NixlSettings { ucx: vec!["TLS=tcp".to_owned(), "NET_DEVICES=lo".to_owned()], ..settings.clone() }
}

fn nixl(settings: NixlSettings) -> Nixl {
    Nixl::new(settings).expect("a library that works")
}

#[test]
fn nixl_passes_the_suite_over_every_transport_of_a_plain_host() {
    let Some(settings) = settings() else { return };
    let narrow = NixlSettings { piece_bytes: 4_096, window_bytes: 4_096, ..settings.clone() };
    let backends: Vec<(&str, Box<dyn Backend>)> = vec![
        ("over TCP", Box::new(nixl(over_tcp(&settings)))),
        ("with one small berth", Box::new(nixl(narrow))),
        ("by default", Box::new(nixl(settings))),
    ];
    passes_the_suite(&backends);
}

#[test]
fn transports_that_are_not_there_are_refused_at_the_start() {
    let Some(settings) = settings() else { return };
    let refused = Nixl::new(NixlSettings { ucx: vec!["TLS=carrier_pigeon".to_owned()], ..settings });
    let faults = refused.expect_err("no such transport");
    assert!(faults[0].to_string().contains("transfer.nixl.ucx is [\"TLS=carrier_pigeon\"]"), "{faults:?}");
}

/// A connection to the landing that gave `grant`, with one berth of `berth_bytes`.
fn greeted(grant: &Grant, berth_bytes: u64) -> TcpStream {
    let address = grant.endpoint.strip_prefix("nixl:").expect("an endpoint of nixl");
    let mut stream = TcpStream::connect(address).expect("a landing that listens");
    stream.set_read_timeout(Some(LONG)).expect("a timeout");
    stream.write_all(&greeting(1, berth_bytes)).expect("a connection");
    let mut welcome = [0; 20];
    stream.read_exact(&mut welcome).expect("a welcome");
    let bytes = u32::from_le_bytes(welcome[8..12].try_into().expect("four bytes"));
    stream.read_exact(&mut vec![0; bytes as usize]).expect("a description");
    stream
}

fn greeting(berths: u32, berth_bytes: u64) -> Vec<u8> {
    [&b"HCnx\x01\0\0\0"[..], &berths.to_le_bytes(), &berth_bytes.to_le_bytes()].concat()
}

/// The code and the position that `frame` is answered with; none of its bytes go by the connection.
fn announce(stream: &mut TcpStream, frame: &RawFrame) -> (u8, u32) {
    let payload_bytes = Some(frame.payload_bytes.unwrap_or(frame.payload.len() as u64));
    let head = RawFrame { payload_bytes, payload: Vec::new(), ..frame.clone() };
    stream.write_all(&head.encode()).expect("a connection");
    let mut ack = [0; ACK_BYTES];
    stream.read_exact(&mut ack).expect("an answer");
    (ack[4], u32::from_le_bytes(ack[8..].try_into().expect("four bytes")))
}

#[test]
fn announcements_that_break_a_rule_move_nothing() {
    let Some(settings) = settings() else { return };
    let world = World::new(&nixl(NixlSettings { idle: Duration::from_millis(200), ..settings }), 1, PAGES);
    let plan = Plan::contiguous(&[0; 4]);
    let grant = world.grant(&plan).expect("a grant");
    let mut stream = greeted(&grant, 64);
    let one = RawFrame::new(&grant, 1, vec![0; 64]);
    for (what, frame, wanted) in [
        ("another secret", RawFrame { secret: [1; 16], ..one.clone() }, (1, 0)),
        ("another attempt", RawFrame { attempt: 0, ..one.clone() }, (2, 0)),
        ("a rank of no group", RawFrame { rank: 64, ..one.clone() }, (4, 0)),
        ("a layer without bytes", RawFrame { component: 1, layer: 1, ..one.clone() }, (5, 0)),
        ("too few bytes", RawFrame { payload_bytes: Some(63), ..one.clone() }, (6, 0)),
        ("more than a berth has", RawFrame { runs: vec![(1, 2)], payload_bytes: Some(128), ..one.clone() }, (6, 0)),
        ("a position of nobody", RawFrame { runs: vec![(4, 1)], ..one.clone() }, (7, 4)),
    ] {
        assert_eq!(announce(&mut stream, &frame), wanted, "{what}");
    }
    world.is_untouched().expect("nothing is written");
    assert_eq!(world.landing.report(plan.name).expect("a grant").owners, [NOBODY; 4]);
    world.revoke(plan.name).expect("revoked");
    assert_eq!(announce(&mut stream, &one), (3, 0), "a late one");
    world.is_untouched().expect("nothing is written");
    assert_eq!(announce(&mut stream, &RawFrame { magic: *b"GET ", ..one.clone() }), (10, 0), "no frame");
    assert!(closes(&mut stream));
    // Greetings that are none, ask for too much, or stop in the middle end their connection alone.
    let address = grant.endpoint.strip_prefix("nixl:").expect("an endpoint of nixl");
    let whole = greeting(1, 64);
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n.."[..], &greeting(u32::MAX, 1 << 20), &greeting(0, 64), &whole[..19]] {
        let mut stream = TcpStream::connect(address).expect("a landing that listens");
        stream.set_read_timeout(Some(LONG)).expect("a timeout");
        stream.write_all(bytes).expect("a connection");
        assert!(closes(&mut stream), "{bytes:?}");
    }
    until("the counts", || world.landing.figures().broken == 5).expect("each is counted");
}

#[test]
fn a_receiver_that_goes_ends_the_pushes_to_it_and_its_next_life_takes_others() {
    let Some(settings) = settings() else { return };
    for settings in [over_tcp(&settings), settings] {
        let backend = nixl(settings);
        let mut world = World::new(&backend, 1, PAGES);
        let plan = Plan::contiguous(&[0; 4]);
        world.compute(&plan, 0..u32::MAX);
        let grant = world.grant(&plan).expect("a grant");
        let first = LayersReady { target: 1, draft: 0 };
        world.begin(PushOrder { ready: first, ..world.order(&plan, &grant, 0) }).expect("begun");
        let landed = || world.landing.report(plan.name).is_some_and(|report| report.figures.bytes > 0);
        until("the first layer", landed).expect("it lands");
        let (to, events) = std::sync::mpsc::channel();
        let next = backend.landing(hicached::wire::Events::new(to, std::sync::Arc::new(|| ()))).expect("a landing");
        (world.landing, world.events) = (next, events);
        let key = world.order(&plan, &grant, 0).key;
        world.senders[0].launch.ready(key, LayersReady::ALL);
        match world.end_of(Rank(0)).expect("an end").0 {
            PushEnd::Failed(Cause::Unreachable { .. } | Cause::Broken { .. }) => {}
            end => panic!("{end:?}"),
        }
        assert!(world.senders[0].launch.is_still());
        world.transfer(&plan).expect("to the next life");
        world.bytes_are_right(&plan).expect("right bytes");
    }
}
