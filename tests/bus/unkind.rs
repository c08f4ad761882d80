//! A bus that loses, repeats and holds back frames under a whole group: each is what a broker, a full subscription
//! or a lost connection may do to any frame, one that was handed over just before a loss and written after it too.

use std::collections::VecDeque;
use std::sync::Mutex;

use futures_util::future::BoxFuture;
use futures_util::stream;
use hicached::bus::{BusCounters, Connection, Served};
use tokio::sync::watch;

use super::group::Group;
use super::*;

/// Passes on what it is given, except for every so many-th frame.
struct Unkind {
    bus: Arc<dyn Bus>,
    plan: Plan,
    state: Mutex<State>,
}

/// Which frames fare badly; 0 is none.
#[derive(Clone, Copy, Default)]
struct Plan {
    lose_every: u64,
    repeat_every: u64,
    /// Held back until [`HELD_MAX`] later ones are held, or all together at the end.
    hold_every: u64,
}

#[derive(Default)]
struct State {
    seen: u64,
    lost: u64,
    repeated: u64,
    held: VecDeque<Frame>,
    late: u64,
}

/// Frames held back at once: each comes after some hundred younger ones.
const HELD_MAX: usize = 12;

impl Unkind {
    fn new(bus: Arc<dyn Bus>, plan: Plan) -> Arc<Self> {
        Arc::new(Self { bus, plan, state: Mutex::default() })
    }

    /// How many frames were lost, repeated and late.
    fn done(&self) -> (u64, u64, u64) {
        let state = self.state.lock().unwrap();
        (state.lost, state.repeated, state.late)
    }

    /// Sends everything that is held.
    fn release(&self) {
        let held = std::mem::take(&mut self.state.lock().unwrap().held);
        for frame in held {
            self.bus.send(frame).ok();
        }
    }
}

impl Bus for Unkind {
    fn send(&self, frame: Frame) -> Result<(), BusError> {
        let every = |of: u64, seen: u64| of > 0 && seen.is_multiple_of(of);
        let mut state = self.state.lock().unwrap();
        state.seen += 1;
        let seen = state.seen;
        if every(self.plan.lose_every, seen) {
            state.lost += 1;
            return Ok(());
        }
        if every(self.plan.hold_every, seen) {
            state.held.push_back(frame);
            if state.held.len() <= HELD_MAX {
                return Ok(());
            }
            state.late += 1;
            let late = state.held.pop_front();
            drop(state);
            return late.map_or(Ok(()), |late| self.bus.send(late));
        }
        let again = every(self.plan.repeat_every, seen).then(|| frame.clone());
        state.repeated += u64::from(again.is_some());
        drop(state);
        self.bus.send(frame)?;
        again.map_or(Ok(()), |again| self.bus.send(again))
    }

    fn request(&self, frame: Frame, deadline: Duration) -> BoxFuture<'_, Result<Frame, BusError>> {
        self.bus.request(frame, deadline)
    }

    fn serve(&self, subject: &str, inbox: InboxSender) -> BoxFuture<'_, Result<Served, BusError>> {
        self.bus.serve(subject, inbox)
    }

    fn payload_bytes_max(&self) -> usize {
        self.bus.payload_bytes_max()
    }

    fn connection(&self) -> watch::Receiver<Connection> {
        self.bus.connection()
    }

    fn counters(&self) -> BusCounters {
        self.bus.counters()
    }

    fn close(&self) {
        self.bus.close();
    }
}

/// A workload over a group whose frames fare as `plan` says; afterwards every byte was right and every page is free.
async fn survives(rig: &Rig, plan: Plan) -> (Arc<Unkind>, Group) {
    let bus = Unkind::new(rig.server.clone(), plan);
    let group = Group::start(bus.clone(), 2, 32, 48).await;
    let mut engine = group.engine(rig.caller.clone(), 4).await;
    // More pages than the device holds, each prompt twice: hits of both tiers, loads and evictions.
    let prompts: Vec<_> = (0..24).map(|n| group.prompt(n % 8, 6)).collect();
    let report = engine.run(stream::iter(prompts), |_, _| ()).await;
    assert_eq!((report.requests_ended, report.failed, report.mismatches), (24, 0, 0), "{:?}", report.failures);
    assert!(report.bytes_verified > 0, "nothing was hit");
    bus.release();
    group.gives_everything_back(&engine).await;
    engine.stop().await;
    (bus, group)
}

macro_rules! over_both {
    ($($name:ident)*) => {$(
        mod $name {
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn over_nats() {
                if let Some(rig) = super::nats().await {
                    super::$name(rig).await;
                }
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn over_memory() {
                super::$name(super::memory()).await;
            }
        }
    )*};
}

over_both! {
    lost_frames_are_asked_for_again
    frames_that_come_twice_change_nothing
    frames_that_come_late_change_nothing
}

async fn lost_frames_are_asked_for_again(rig: Rig) {
    let (bus, group) = survives(&rig, Plan { lose_every: 9, ..Plan::default() }).await;
    assert!(bus.done().0 > 10, "{:?}", bus.done());
    assert!(group.sum("link.resyncs").await > 0, "a gap that stays open starts a resync");
}

async fn frames_that_come_twice_change_nothing(rig: Rig) {
    let (bus, group) = survives(&rig, Plan { repeat_every: 2, ..Plan::default() }).await;
    assert!(bus.done().1 > 100, "{:?}", bus.done());
    assert!(group.sum("link.repeats").await > 10, "they are counted");
}

async fn frames_that_come_late_change_nothing(rig: Rig) {
    let (bus, _group) = survives(&rig, Plan { hold_every: 9, ..Plan::default() }).await;
    assert!(bus.done().2 > 10, "{:?}", bus.done());
}
