//! One suite over every bus: what an actor may rely on whichever carries its messages.
//! Without a nats-server the NATS half prints "skipped"; where `CI` is `true` it fails.

mod bounds;
mod broker_lost;
mod damaged;
mod f23;
mod group;
mod unkind;

use std::sync::Arc;
use std::time::{Duration, Instant};

use hicached::bus::memory::{MemoryBus, MemoryConfig};
use hicached::bus::nats::{NatsBus, NatsConfig};
use hicached::bus::server::{NatsServer, find_nats_server};
use hicached::bus::{Bus, BusError, Class, Frame, Headers, Inbox, InboxSender, inbox};

use damaged::a_record_that_was_damaged_on_its_host_is_computed_again_and_set_aside;

/// Longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(20);
/// What "at once" may take.
const SOON: Duration = Duration::from_millis(100);
/// The limit of an untouched NATS server.
const LIMIT: usize = 1_048_576;

/// Two parties on one medium, and the broker between them if there is one.
struct Rig {
    caller: Arc<dyn Bus>,
    server: Arc<dyn Bus>,
    broker: Option<NatsServer>,
}

fn memory() -> Rig {
    let bus = MemoryBus::new(MemoryConfig::default());
    Rig { caller: Arc::new(bus.clone()), server: Arc::new(bus), broker: None }
}

/// `None` where there is no nats-server.
async fn nats() -> Option<Rig> {
    nats_with(|_| {}).await
}

async fn nats_with(change: impl Fn(&mut NatsConfig)) -> Option<Rig> {
    let Some(program) = find_nats_server(env!("CARGO_MANIFEST_DIR").as_ref()) else {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "CI has to test over NATS: run scripts/tools");
        eprintln!("skipped: no nats-server; scripts/tools installs one");
        return None;
    };
    let broker = NatsServer::start(&program, &[]).unwrap();
    let mut config = NatsConfig::new(broker.url());
    change(&mut config);
    let (caller, server) = tokio::join!(NatsBus::connect(&config), NatsBus::connect(&config));
    Some(Rig { caller: Arc::new(caller.unwrap()), server: Arc::new(server.unwrap()), broker: Some(broker) })
}

macro_rules! over_every_bus {
    ($($name:ident)*) => {
        mod over_memory {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() { super::$name(super::memory()).await; })*
        }
        over_nats! { $($name)* }
    };
}

macro_rules! over_nats {
    ($($name:ident)*) => {
        mod over_nats {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                if let Some(rig) = super::nats().await {
                    super::$name(rig).await;
                }
            })*
        }
    };
}

over_every_bus! {
    a_request_is_answered_with_its_headers
    urgent_frames_are_read_first
    nobody_there_is_said_at_once
    f24_larger_than_a_message_may_be
    headers_count_against_the_limit
    a_full_inbox_is_busy
    silence_ends_at_the_deadline
    a_late_answer_finds_nobody
    nothing_is_delivered_twice
    a_dropped_subject_is_nobodys
    the_same_subject_can_be_served_again
    what_is_no_subject_is_refused
    a_closed_bus_says_so
    a_record_that_was_damaged_on_its_host_is_computed_again_and_set_aside
}

/// Answers every frame with its own payload and headers.
fn echo(bus: Arc<dyn Bus>, mut inbox: Inbox) {
    tokio::spawn(async move {
        while let Some(frame) = inbox.recv().await {
            if let Some(mut reply) = frame.reply(frame.payload.clone()) {
                reply.headers = frame.headers.clone();
                bus.send(reply).expect("the requester waits");
            }
        }
    });
}

fn room(bound: usize) -> (InboxSender, Inbox) {
    inbox(bound, None)
}

async fn a_request_is_answered_with_its_headers(rig: Rig) {
    let (sender, inbox) = room(8);
    let _served = rig.server.serve("bus.echo", sender).await.unwrap();
    echo(rig.server.clone(), inbox);
    for class in Class::ALL {
        let mut frame = Frame::new("bus.echo", &b"abc"[..]).of_class(class);
        frame.headers.push("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01").unwrap();
        let answer = rig.caller.request(frame.clone(), LONG).await.unwrap();
        assert_eq!(answer, frame, "same subject, class, headers and payload");
    }
    let counters = rig.caller.counters();
    assert_eq!((counters.requests, counters.replies), (2, 2));
}

async fn urgent_frames_are_read_first(rig: Rig) {
    let (sender, mut inbox) = room(8);
    let filled = sender.clone();
    let _served = rig.server.serve("bus.class", sender).await.unwrap();
    for (class, payload) in [(Class::Normal, "n1"), (Class::Normal, "n2"), (Class::Urgent, "u1"), (Class::Urgent, "u2")]
    {
        rig.caller.send(Frame::new("bus.class", payload).of_class(class)).unwrap();
    }
    until(|| Class::ALL.iter().all(|class| filled.queued(*class) == 2)).await;
    let mut read = Vec::new();
    for _ in 0..4 {
        let frame = inbox.recv().await.unwrap();
        assert_eq!(&*frame.subject, "bus.class", "whatever subject carried it");
        read.push(frame.payload);
    }
    assert_eq!(read, ["u1", "u2", "n1", "n2"]);
}

async fn nobody_there_is_said_at_once(rig: Rig) {
    for class in Class::ALL {
        let started = Instant::now();
        let error = rig.caller.request(Frame::new("bus.nobody", "x").of_class(class), LONG).await.unwrap_err();
        assert_eq!(error, BusError::NoResponders { subject: "bus.nobody".into() });
        assert!(started.elapsed() < SOON, "{class:?}: {:?}", started.elapsed());
    }
    assert_eq!(rig.caller.counters().no_responders, 2);
    rig.caller.send(Frame::new("bus.nobody", "x")).expect("handed over is all that a send says");
}

async fn f24_larger_than_a_message_may_be(rig: Rig) {
    let (sender, inbox) = room(8);
    let _served = rig.server.serve("bus.large", sender).await.unwrap();
    echo(rig.server.clone(), inbox);
    assert_eq!(rig.caller.payload_bytes_max(), LIMIT);
    for bytes in [1_048_000, LIMIT, LIMIT + 1, 1_223_632] {
        let payload: Vec<u8> = (0..bytes).map(|i| (i % 251) as u8).collect();
        let started = Instant::now();
        let answer = rig.caller.request(Frame::new("bus.large", payload.clone()), LONG).await;
        if bytes <= LIMIT {
            assert!(answer.unwrap().payload == payload, "{bytes} bytes came back changed");
        } else {
            assert_eq!(answer.unwrap_err(), BusError::TooLarge { bytes, limit: LIMIT });
            assert!(started.elapsed() < SOON, "{bytes}: {:?}", started.elapsed());
            let sent = rig.caller.send(Frame::new("bus.large", payload));
            assert_eq!(sent, Err(BusError::TooLarge { bytes, limit: LIMIT }));
        }
        let next = rig.caller.request(Frame::new("bus.large", "next"), LONG).await.unwrap();
        assert_eq!(next.payload, "next");
    }
    let counters = rig.caller.counters();
    assert_eq!((counters.too_large, counters.disconnects, counters.timed_out), (4, 0, 0));
}

async fn headers_count_against_the_limit(rig: Rig) {
    let (sender, inbox) = room(8);
    let _served = rig.server.serve("bus.headers", sender).await.unwrap();
    echo(rig.server.clone(), inbox);
    let mut headers = Headers::default();
    headers.push("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01").unwrap();
    headers.push("tracestate", "a=1,b=2").unwrap();
    let room_left = LIMIT - headers.wire_bytes();
    for (bytes, fits) in [(room_left, true), (room_left + 1, false)] {
        let mut frame = Frame::new("bus.headers", vec![7; bytes]);
        frame.headers = headers.clone();
        match rig.caller.request(frame, LONG).await {
            Ok(answer) => assert!(fits && answer.payload.len() == bytes && answer.headers == headers),
            Err(error) => {
                assert!(!fits, "{error}");
                assert_eq!(error, BusError::TooLarge { bytes: LIMIT + 1, limit: LIMIT });
            }
        }
    }
    assert_eq!(rig.caller.counters().disconnects, 0);
}

async fn a_full_inbox_is_busy(rig: Rig) {
    let (sender, mut inbox) = inbox(2, Some(Arc::new(|frame: &Frame| Some(format!("busy: {}", frame.subject).into()))));
    let filled = sender.clone();
    let _served = rig.server.serve("bus.full", sender).await.unwrap();
    for payload in ["1", "2"] {
        rig.caller.send(Frame::new("bus.full", payload)).unwrap();
    }
    until(|| filled.queued(Class::Normal) == 2).await;
    // In memory the sender itself learns of it; over a broker the receiver has to say so.
    match rig.caller.request(Frame::new("bus.full", "3"), LONG).await {
        Ok(answer) => assert_eq!(answer.payload, "busy: bus.full"),
        Err(error) => assert_eq!(error, BusError::Busy { subject: "bus.full".into(), queue: "inbox", bound: 2 }),
    }
    assert_eq!(rig.server.counters().busy_inbox, 1);
    rig.caller.send(Frame::new("bus.full", "urgent").of_class(Class::Urgent)).expect("a queue of its own");
    until(|| filled.queued(Class::Urgent) == 1).await;
    let read: Vec<_> = std::iter::from_fn(|| inbox.try_recv()).map(|frame| frame.payload).collect();
    assert_eq!(read, ["urgent", "1", "2"], "the third was refused, not queued");
}

async fn silence_ends_at_the_deadline(rig: Rig) {
    let (sender, mut inbox) = room(8);
    let _served = rig.server.serve("bus.silent", sender).await.unwrap();
    let deadline = Duration::from_millis(50);
    let started = Instant::now();
    let error = rig.caller.request(Frame::new("bus.silent", "x"), deadline).await.unwrap_err();
    assert_eq!(error, BusError::TimedOut { subject: "bus.silent".into(), after_ms: 50 });
    assert!(started.elapsed() >= deadline, "{:?}", started.elapsed());
    assert_eq!(rig.caller.counters().timed_out, 1);
    assert_eq!(inbox.recv().await.unwrap().payload, "x");
}

async fn a_late_answer_finds_nobody(rig: Rig) {
    let (sender, mut inbox) = room(8);
    let _served = rig.server.serve("bus.late", sender).await.unwrap();
    rig.caller.request(Frame::new("bus.late", "1"), Duration::from_millis(20)).await.unwrap_err();
    let first = inbox.recv().await.unwrap();
    let (second, answer) = tokio::join!(
        async {
            let second = inbox.recv().await.unwrap();
            rig.server.send(first.reply("to the first").unwrap()).unwrap();
            rig.server.send(second.reply("to the second").unwrap()).unwrap();
            rig.server.send(second.reply("again").unwrap()).unwrap();
            second
        },
        rig.caller.request(Frame::new("bus.late", "2"), LONG),
    );
    assert_ne!(first.reply_to, second.reply_to);
    assert_eq!(answer.unwrap().payload, "to the second");
    until(|| rig.caller.counters().late_replies == 2).await;
}

async fn nothing_is_delivered_twice(rig: Rig) {
    let (sender, mut inbox) = room(512);
    let _served = rig.server.serve("bus.once", sender).await.unwrap();
    let mut sent = [0_u32; 2];
    for n in 0..400_u32 {
        let class = Class::ALL[n as usize % 2];
        rig.caller.send(Frame::new("bus.once", n.to_le_bytes().to_vec()).of_class(class)).unwrap();
        sent[n as usize % 2] += 1;
    }
    let mut next = [0_u32, 1];
    for _ in 0..400 {
        let payload = inbox.recv().await.unwrap().payload;
        let n = u32::from_le_bytes(payload[..].try_into().unwrap());
        let class = n as usize % 2;
        assert_eq!(n, next[class], "in order within a class on one connection");
        next[class] += 2;
    }
    assert!(inbox.try_recv().is_none(), "no probe and no copy came after");
}

async fn a_dropped_subject_is_nobodys(rig: Rig) {
    let (sender, inbox) = room(8);
    let served = rig.server.serve("bus.gone", sender).await.unwrap();
    echo(rig.server.clone(), inbox);
    rig.caller.request(Frame::new("bus.gone", "x"), LONG).await.unwrap();
    drop(served);
    let started = Instant::now();
    loop {
        match rig.caller.request(Frame::new("bus.gone", "x"), SOON).await {
            Err(BusError::NoResponders { .. }) => break,
            other => assert!(started.elapsed() < LONG, "still {other:?}"),
        }
    }
}

async fn the_same_subject_can_be_served_again(rig: Rig) {
    for round in 0..3 {
        let (sender, inbox) = room(8);
        let served = rig.server.serve("bus.again", sender).await.unwrap();
        echo(rig.server.clone(), inbox);
        let answer = rig.caller.request(Frame::new("bus.again", vec![round]), LONG).await.unwrap();
        assert_eq!(answer.payload[..], [round]);
        drop(served);
    }
}

async fn what_is_no_subject_is_refused(rig: Rig) {
    for subject in ["", "a b", "a..b", "a.*", "a\r\nb"] {
        let refused = BusError::BadSubject { subject: subject.into() };
        assert_eq!(rig.caller.send(Frame::new(subject, "x")), Err(refused.clone()));
        assert_eq!(rig.caller.request(Frame::new(subject, "x"), LONG).await, Err(refused.clone()));
        assert_eq!(rig.server.serve(subject, room(1).0).await.unwrap_err(), refused);
    }
}

async fn a_closed_bus_says_so(rig: Rig) {
    let (sender, mut inbox) = room(8);
    let _served = rig.server.serve("bus.closing", sender).await.unwrap();
    let (answer, _) = tokio::join!(rig.caller.request(Frame::new("bus.closing", "x"), LONG), async {
        inbox.recv().await.unwrap();
        rig.caller.close();
    });
    assert_eq!(answer, Err(BusError::Closed));
    assert_eq!(rig.caller.send(Frame::new("bus.closing", "x")), Err(BusError::Closed));
    assert_eq!(rig.caller.serve("bus.other", room(1).0).await.unwrap_err(), BusError::Closed);
}

/// Waits for a state that nobody announces; gives up after [`LONG`].
async fn until(reached: impl Fn() -> bool) {
    let started = Instant::now();
    while !reached() {
        assert!(started.elapsed() < LONG, "the state was not reached");
        tokio::task::yield_now().await;
    }
}
