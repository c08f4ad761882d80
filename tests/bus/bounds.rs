//! What happens at the bounds that the default configuration is far from.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_requests_are_bounded_in_memory() {
    let config = MemoryConfig { requests_max: 1, ..MemoryConfig::default() };
    let bus = MemoryBus::new(config);
    one_request_at_a_time(Rig { caller: Arc::new(bus.clone()), server: Arc::new(bus), broker: None }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_requests_are_bounded_over_nats() {
    if let Some(rig) = nats_with(|config| config.requests_max = 1).await {
        one_request_at_a_time(rig).await;
    }
}

async fn one_request_at_a_time(rig: Rig) {
    let (sender, mut inbox) = room(8);
    let _served = rig.server.serve("bus.one", sender).await.unwrap();
    for round in 1..=2 {
        let (first, ()) = tokio::join!(rig.caller.request(Frame::new("bus.one", "first"), LONG), async {
            let first = inbox.recv().await.unwrap();
            let second = rig.caller.request(Frame::new("bus.one", "second"), LONG).await;
            assert_eq!(second, Err(BusError::Busy { subject: "bus.one".into(), queue: "requests", bound: 1 }));
            rig.server.send(first.reply("done").unwrap()).unwrap();
        });
        assert_eq!(first.unwrap().payload, "done", "round {round}: the place was given back");
        assert_eq!(rig.caller.counters().busy_sending, round);
    }
    // A request that is given up gives its place back too.
    let given_up = rig.caller.request(Frame::new("bus.one", "given up"), LONG);
    tokio::select! {
        _ = given_up => panic!("nobody answers it"),
        frame = inbox.recv() => assert_eq!(frame.unwrap().payload, "given up"),
    }
    let error = rig.caller.request(Frame::new("bus.one", "next"), Duration::from_millis(10)).await.unwrap_err();
    assert!(matches!(error, BusError::TimedOut { .. }), "{error}");
}

/// The library drops what a subscription has no room for and says so by an event, of which it may lose some.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_dropped_by_the_library_are_counted() {
    const FRAMES: u64 = 512;
    let Some(rig) = nats_with(|config| config.receive_queue_frames_max = 1).await else { return };
    let (sender, _inbox) = room(FRAMES as usize);
    let _served = rig.server.serve("bus.burst", sender).await.unwrap();
    let mut dropped = 0;
    while dropped == 0 {
        for _ in 0..FRAMES / 2 {
            rig.caller.send(Frame::new("bus.burst", "x")).unwrap();
        }
        // An answer from behind the burst: everything before it on the connection was read.
        let nobody = rig.caller.request(Frame::new("bus.nobody", "x"), LONG).await.unwrap_err();
        assert!(matches!(nobody, BusError::NoResponders { .. }), "{nobody}");
        until(|| rig.server.counters().received + rig.server.counters().dropped > 0).await;
        dropped = rig.server.counters().dropped;
    }
    let counters = rig.server.counters();
    assert!(counters.received + counters.busy_inbox + counters.dropped <= rig.caller.counters().sent, "{counters:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_to_the_connection_is_busy_and_sends_nothing_twice() {
    let Some(rig) = nats_with(|config| config.send_queue_frames_max = 4).await else { return };
    let (sender, mut inbox) = room(4_096);
    let _served = rig.server.serve("bus.queue", sender).await.unwrap();
    let (mut sent, mut busy) = (0_u64, 0_u64);
    let started = Instant::now();
    while busy < 10 {
        assert!(started.elapsed() < LONG && sent < 4_096, "never full: {sent} sent");
        // Large frames: the socket is slower than this loop.
        match rig.caller.send(Frame::new("bus.queue", vec![0; 100_000])) {
            Ok(()) => sent += 1,
            Err(error) => {
                assert_eq!(error, BusError::Busy { subject: "bus.queue".into(), queue: "connection", bound: 4 });
                busy += 1;
            }
        }
    }
    for _ in 0..sent {
        inbox.recv().await.unwrap();
    }
    assert!(inbox.try_recv().is_none(), "what was refused was not sent");
    assert_eq!(rig.caller.counters().busy_sending, busy);
}
