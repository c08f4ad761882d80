//! The broker goes away, falls silent, or is not there yet.

use futures_util::future::join_all;
use hicached::bus::Connection;

use super::*;

/// Field case: ten requests in flight, the broker stops and comes back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_requests_end_with_the_connection_and_later_ones_work() {
    let Some(mut rig) = nats().await else { return };
    let (sender, mut inbox) = room(16);
    let _served = rig.server.serve("bus.lost", sender).await.unwrap();
    let mut state = rig.caller.connection();
    let requests =
        (0..10).map(|n| rig.caller.request(Frame::new("bus.lost", vec![n]).of_class(Class::ALL[n as usize % 2]), LONG));
    let killed = async {
        for _ in 0..10 {
            inbox.recv().await.unwrap();
        }
        rig.broker.as_mut().unwrap().kill();
        Instant::now()
    };
    let (ended, killed) = tokio::join!(join_all(requests), killed);
    assert!(killed.elapsed() < Duration::from_secs(1), "{:?}", killed.elapsed());
    for answer in ended {
        assert_eq!(answer, Err(BusError::Disconnected { subject: "bus.lost".into() }));
    }
    state.wait_for(|state| matches!(state, Connection::Disconnected { .. })).await.unwrap();
    for class in Class::ALL {
        let frame = Frame::new("bus.lost", "while away").of_class(class);
        let refused = BusError::Disconnected { subject: "bus.lost".into() };
        assert_eq!(rig.caller.send(frame.clone()), Err(refused.clone()));
        assert_eq!(rig.caller.request(frame, LONG).await, Err(refused.clone()));
    }

    rig.broker.as_mut().unwrap().restart().unwrap();
    both_connected(&rig).await;
    // The server's subscription is made again by the library; a request until then finds nobody.
    let started = Instant::now();
    let (answer, first) = tokio::join!(
        async {
            loop {
                match rig.caller.request(Frame::new("bus.lost", "back"), LONG).await {
                    Err(BusError::NoResponders { .. }) if started.elapsed() < LONG => continue,
                    other => break other,
                }
            }
        },
        async {
            let frame = inbox.recv().await.unwrap();
            rig.server.send(frame.reply("yes").unwrap()).unwrap();
            frame
        }
    );
    assert_eq!(first.payload, "back", "nothing that was refused came later");
    assert_eq!(answer.unwrap().payload, "yes");
    let started = Instant::now();
    let nobody = rig.caller.request(Frame::new("bus.nobody", "x"), LONG).await.unwrap_err();
    assert_eq!(nobody, BusError::NoResponders { subject: "bus.nobody".into() });
    assert!(started.elapsed() < SOON);
    let counters = rig.caller.counters();
    assert_eq!((counters.disconnects, counters.reconnects), (2, 2), "each class once");
    assert_eq!(counters.disconnected, 10 + 4);
}

/// A broker that is stopped keeps its sockets open: only pings find out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_broker_is_noticed_and_its_requests_end() {
    let Some(rig) = nats().await else { return };
    let (sender, mut inbox) = room(16);
    let _served = rig.server.serve("bus.frozen", sender).await.unwrap();
    let request = rig.caller.request(Frame::new("bus.frozen", "x"), LONG);
    let frozen = async {
        inbox.recv().await.unwrap();
        signal(rig.broker.as_ref().unwrap(), rustix::process::Signal::STOP);
        Instant::now()
    };
    let (answer, frozen) = tokio::join!(request, frozen);
    signal(rig.broker.as_ref().unwrap(), rustix::process::Signal::CONT);
    assert_eq!(answer, Err(BusError::Disconnected { subject: "bus.frozen".into() }));
    assert!(frozen.elapsed() < Duration::from_secs(5), "{:?}", frozen.elapsed());
    both_connected(&rig).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_is_not_there_is_an_error_at_the_deadline() {
    let Some(mut rig) = nats().await else { return };
    let mut config = NatsConfig::new(rig.broker.as_ref().unwrap().url());
    rig.broker.as_mut().unwrap().kill();
    config.connect_deadline_ms = 100;
    let started = Instant::now();
    NatsBus::connect(&config).await.expect_err("nobody listens");
    assert!(started.elapsed() < LONG);
    config.connect_deadline_ms = 20_000;
    let (bus, ()) = tokio::join!(NatsBus::connect(&config), async {
        rig.broker.as_mut().unwrap().restart().unwrap();
    });
    bus.expect("a broker that comes later is found");
}

pub(crate) async fn both_connected(rig: &Rig) {
    for bus in [&rig.caller, &rig.server] {
        let mut state = bus.connection();
        let up = state.wait_for(|state| *state == Connection::Connected);
        tokio::time::timeout(LONG, up).await.expect("the broker is back").unwrap();
    }
}

pub(crate) fn signal(broker: &NatsServer, signal: rustix::process::Signal) {
    let pid = broker.pid().and_then(|pid| rustix::process::Pid::from_raw(pid as i32)).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}
