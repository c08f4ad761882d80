//! A broker that goes away under a whole group, and what its return finds.

use futures_util::future::join_all;
use futures_util::stream;
use hicached_actors::protocol::{Address, Incarnation, Keys, Probe};
use hicached_client::client::{Client, ClientConfig, ClientError};

use hicached::bus::BusCounters;
use hicached::shell::PostFigures;
use hicached_client::engine::{Engine, Prompt};

use super::broker_lost::{both_connected, signal};
use super::group::Group;
use super::*;

/// How long the broker stays away.
const AWAY: Duration = Duration::from_secs(3);
/// Tries of one request while it does: pauses double from 20 ms to a second, each shortened by up to a quarter, and
/// the broker's restart takes a while itself.
const TRIES_MAX: u64 = 40;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f23_the_broker_goes_away() {
    let Some(mut rig) = nats().await else { return };
    let group = Group::start(rig.server.clone(), 1, 64, 64).await;
    let mut engine = group.engine(rig.caller.clone(), 3).await;
    let before = group.prompt(0, 2);
    engine.run(stream::iter([before.clone()]), |_, _| ()).await;

    // Ten requests of a client that is told at once, on their way into a broker that reads no more.
    let config = ClientConfig {
        away_after: Duration::from_millis(300),
        ..ClientConfig::new(group.name(), Incarnation([7; 16]))
    };
    let client = Client::new(rig.caller.clone(), config);
    let probe = Probe { tenant: "tenant".into(), salt: before.plan.salt, keys: Keys(before.plan.keys.to_vec()) };
    signal(rig.broker.as_ref().unwrap(), rustix::process::Signal::STOP);
    let requests = rig.caller.counters().requests;
    let asked = join_all((0..10).map(|_| async { (client.probe(probe.clone()).await, Instant::now()) }));
    let caller = rig.caller.clone();
    let broker = rig.broker.as_mut().unwrap();
    let (ended, lost) = tokio::join!(asked, async {
        until(|| caller.counters().requests >= requests + 10).await;
        broker.kill();
        Instant::now()
    });
    for (answer, at) in ended {
        assert!(matches!(answer, Err(ClientError::Bus(BusError::Disconnected { .. }))), "{answer:?}");
        assert!(at.saturating_duration_since(lost) < Duration::from_secs(1), "{:?}", at - lost);
    }

    let counted = (rig.caller.counters(), rig.server.counters(), group.running.unsent());
    let inserts = [1, 2, 3].map(|text| group.prompt(text, 2));
    let (report, ()) = tokio::join!(engine.run(stream::iter(inserts.clone()), |_, _| ()), async {
        tokio::time::sleep(AWAY.saturating_sub(lost.elapsed())).await;
        no_storm(&rig, &group, counted);
        rig.broker.as_mut().unwrap().restart().unwrap();
        both_connected(&rig).await;
    });
    assert_eq!((report.requests_ended, report.failed, report.mismatches), (3, 0, 0), "{:?}", report.failures);
    assert!(report.repeats <= TRIES_MAX * report.steps.max(3) * 4, "{} repeats", report.repeats);
    found_once(&group, &engine, &inserts).await;

    let started = Instant::now();
    let nobody = rig.caller.request(Frame::new("bus.nobody", "x"), LONG).await.unwrap_err();
    assert_eq!(nobody, BusError::NoResponders { subject: "bus.nobody".into() });
    assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
    group.gives_everything_back(&engine).await;
    engine.stop().await;
}

/// What was done while the broker was away: refused at once and counted, repeated more and more rarely, and nothing
/// was handed over.
fn no_storm(rig: &Rig, group: &Group, (caller, server, unsent): (BusCounters, BusCounters, PostFigures)) {
    let (caller_now, server_now) = (rig.caller.counters(), rig.server.counters());
    assert_eq!((caller_now.sent, server_now.sent), (caller.sent, server.sent), "nothing is handed over to nobody");
    // Three opens and the heartbeats.
    let tries = caller_now.requests - caller.requests;
    assert!((1..=4 * TRIES_MAX).contains(&tries), "{tries} tries");
    for (now, then) in [(caller_now, caller), (server_now, server)] {
        // Two connections, each waiting up to a second between attempts after the first few.
        let attempts = now.connect_attempts - then.connect_attempts;
        assert!(attempts <= 2 * TRIES_MAX, "{attempts} attempts to connect");
    }
    // Machines repeat what is open between them; a rank and its index say that they live.
    let refused = group.running.unsent().disconnected - unsent.disconnected;
    assert!((1..=200).contains(&refused), "{refused} frames refused");
}

/// Every insert that was reported ok is there, and no page more than once.
async fn found_once(group: &Group, engine: &Engine, inserts: &[Prompt]) {
    for prompt in inserts {
        let keys = Keys(prompt.plan.keys.to_vec());
        let probe = Probe { tenant: "tenant".into(), salt: prompt.plan.salt, keys };
        let found = engine.client().probe(probe).await.unwrap();
        assert_eq!(found.l1 + found.l2, prompt.plan.pages());
    }
    group.until("nothing in flight", async || group.figure(Address::Index, "index.in_flight").await == 0).await;
    let stored = group.figure(Address::Index, "index.cached_l1").await;
    let (l1_free, _) = group.free_pages().await;
    assert_eq!(64 - l1_free, stored, "each page is taken once");
}
