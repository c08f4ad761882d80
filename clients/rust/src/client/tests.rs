use std::collections::VecDeque;

use super::*;
use crate::bus::Class;
use crate::scripted_bus::{Came, Reaction, ScriptedBus};

const ENGINE: Incarnation = Incarnation([3; 16]);
const CONTROL: Incarnation = Incarnation([5; 16]);

type Log = Arc<Mutex<Vec<Came>>>;

/// A client of a daemon that reacts as scripted, one reaction per message; and everything that came.
fn client(config: ClientConfig, script: impl IntoIterator<Item = Reaction>) -> (Client, Log) {
    let log = Log::default();
    let (came, mut script) = (log.clone(), script.into_iter().collect::<VecDeque<_>>());
    let bus = ScriptedBus::with_limit(4_096, move |message| {
        came.lock().unwrap().push(message);
        script.pop_front().unwrap_or(Reaction::Silence)
    });
    (Client::new(bus, config), log)
}

fn config() -> ClientConfig {
    ClientConfig::new("g", ENGINE)
}

fn open() -> Open {
    Open {
        tenant: "t".to_owned(),
        salt: Key([1; 16]),
        keys: Keys::default(),
        tokens: 10,
        reserve_tokens: 10,
        owners: Owners::default(),
        priority: 0,
        no_match: false,
        handover: Vec::new(),
    }
}

fn opened() -> Opened {
    Opened { control: CONTROL, lease_ms: 1_000, l1_hit: 0, l2_hit: 0, pages: Pages::default(), load: vec![] }
}

fn out_of_pages() -> Reaction {
    Answer::from(Refusal::from(OutOfPages { short: vec![1], retry_ms: 70 })).into()
}

#[tokio::test(start_paused = true)]
async fn a_lost_request_is_repeated_under_its_op_with_a_new_id_and_number() {
    let (client, log) = client(config(), [Reaction::Silence, Reaction::Nobody, opened().into()]);
    let session = client.draw();
    client.open(session, open()).await.unwrap();
    let log = log.lock().unwrap();
    let envelopes: Vec<&Envelope> = log.iter().map(|came| &came.envelope).collect();
    assert!(envelopes.iter().all(|e| e.op == session && e.sender == "engine" && e.incarnation == ENGINE));
    assert_eq!(envelopes.iter().map(|e| e.seq).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(envelopes[0].id != envelopes[1].id && envelopes[1].id != envelopes[2].id);
    assert!(envelopes[2].remaining_ms < envelopes[0].remaining_ms);
    assert!(log.iter().all(|came| came.subject == "hicached.v1.g.index"));
    assert_eq!(client.counts().repeats, 2);
}

#[tokio::test(start_paused = true)]
async fn what_frees_is_urgent_and_numbered_apart() {
    let done = || Done { control: CONTROL };
    let (client, log) = client(config(), [done().into(), opened().into(), done().into()]);
    client.heartbeat(0).await.unwrap();
    let session = client.draw();
    client.open(session, open()).await.unwrap();
    client.abort(Abort { session, tenant: "t".to_owned(), last_step: 0 }).await.unwrap();
    let log = log.lock().unwrap();
    let seen: Vec<_> = log.iter().map(|came| (came.class, came.envelope.urgent, came.envelope.seq)).collect();
    assert_eq!(seen, [(Class::Urgent, true, 1), (Class::Normal, false, 1), (Class::Urgent, true, 2)]);
    assert_eq!(log[2].envelope.op, session);
}

#[tokio::test(start_paused = true)]
async fn a_session_that_closes_already_is_over_for_who_aborts_it() {
    let closed = Closed { l1_pages: 1, l2_pages: 0, pending: 1, duplicates: 0, uncached: 0, reason: String::new() };
    let abort = |client: &Client| Abort { session: client.draw(), tenant: "t".to_owned(), last_step: 0 };
    let (client, _) = client(config(), [closed.into(), opened().into()]);
    assert_eq!(client.abort(abort(&client)).await, Ok(()));
    let other = client.abort(abort(&client)).await;
    assert!(matches!(&other, Err(ClientError::Decode(wrong)) if wrong.value == "opened"), "{other:?}");
}

#[tokio::test(start_paused = true)]
async fn a_silent_daemon_ends_at_the_deadline_and_an_absent_one_sooner() {
    let (silent, _) = client(config(), []);
    let started = Instant::now();
    let error = silent.drain(true).await.unwrap_err();
    assert!(matches!(error, ClientError::Bus(BusError::TimedOut { after_ms: 30_000, .. })), "{error}");
    assert!(started.elapsed() <= Duration::from_secs(31));

    let (absent, _) = client(config(), (0..1_000).map(|_| Reaction::Nobody));
    let started = Instant::now();
    let error = absent.drain(true).await.unwrap_err();
    assert!(matches!(error, ClientError::Bus(BusError::NoResponders { .. })), "{error}");
    assert!(started.elapsed() >= Duration::from_secs(1) && started.elapsed() < Duration::from_secs(3));
}

#[tokio::test(start_paused = true)]
async fn a_handover_is_asked_for_as_long_as_its_caller_says() {
    let handed = HandedOver { tokens: 10, received: 1, blob: Bin(vec![7]), components: vec![] };
    let silence = (0..50).map(|_| Reaction::Silence);
    let (client, log) = client(config(), silence.chain([handed.clone().into()]));
    let handover = Handover { transfer: client.draw(), attempt: 2, tenant: "t".to_owned() };
    let started = Instant::now();
    assert_eq!(client.patient(Duration::from_secs(300)).handover(handover.clone()).await, Ok(handed));
    assert!(started.elapsed() > Duration::from_secs(100), "longer than any other call of this client");
    assert!(log.lock().unwrap().iter().all(|came| came.envelope.op == handover.transfer));
    let started = Instant::now();
    let error = client.patient(Duration::from_secs(5)).handover(handover).await.unwrap_err();
    assert!(matches!(error, ClientError::Bus(BusError::TimedOut { after_ms: 5_000, .. })), "{error}");
    assert!(started.elapsed() <= Duration::from_secs(6));
}

#[tokio::test(start_paused = true)]
async fn with_bypass_an_open_goes_on_uncached_and_is_counted() {
    let config = ClientConfig { away: Away::Bypass, away_after: Duration::ZERO, ..config() };
    let (client, log) = client(config, [Reaction::Nobody, Reaction::Nobody]);
    let error = client.open(client.draw(), open()).await.unwrap_err();
    assert!(matches!(error, ClientError::Uncached { .. }), "{error}");
    let extend =
        Extend { session: client.draw(), tenant: "t".to_owned(), tokens: 1, owners: Owners::default(), first: 0 };
    assert!(matches!(client.extend(client.draw(), extend).await.unwrap_err(), ClientError::Bus(_)));
    assert_eq!((client.counts().bypassed, log.lock().unwrap().len()), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn an_open_without_room_is_asked_again_after_the_hint_as_a_new_session() {
    let (client, log) = client(config(), [out_of_pages(), out_of_pages(), opened().into()]);
    let started = Instant::now();
    let (session, _) = client.open_when_room(&open(), Duration::from_secs(1)).await.unwrap();
    assert_eq!(started.elapsed(), Duration::from_millis(140));
    let ops: Vec<OpId> = log.lock().unwrap().iter().map(|came| came.envelope.op).collect();
    assert!(ops[0] != ops[1] && ops[1] != ops[2] && ops[2] == session);
    assert_eq!(client.counts().refusals, BTreeMap::from([("OutOfPages".to_owned(), 2)]));
}

#[tokio::test(start_paused = true)]
async fn patience_ends_with_the_refusal() {
    let (client, _) = client(config(), (0..100).map(|_| out_of_pages()));
    let error = client.open_when_room(&open(), Duration::from_millis(200)).await.unwrap_err();
    assert!(matches!(error, ClientError::Refused(Refusal::OutOfPages(_))), "{error}");
    assert_eq!(client.counts().refusals["OutOfPages"], 3);
}

#[tokio::test(start_paused = true)]
async fn a_replaced_control_group_is_an_error_with_both_ids() {
    let (old, new) = (CONTROL, Incarnation([6; 16]));
    let (client, _) = client(config(), [Answer::from(Refusal::from(NewIncarnation { old, new })).into()]);
    let error = client.open(client.draw(), open()).await.unwrap_err();
    assert_eq!(error, ClientError::NewIncarnation { old, new });
}

#[tokio::test(start_paused = true)]
async fn what_no_broker_carries_is_refused_before_it_is_sent() {
    let (client, log) = client(config(), []);
    let open = Open { keys: Keys(vec![Key([1; 16]); 400]), ..open() };
    let error = client.open(client.draw(), open).await.unwrap_err();
    assert!(matches!(error, ClientError::Refused(Refusal::TooLarge(_))), "{error}");
    assert!(log.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_answer_of_another_kind_is_no_answer() {
    let (client, _) = client(config(), [Done { control: CONTROL }.into()]);
    let error = client.open(client.draw(), open()).await.unwrap_err();
    assert!(matches!(error, ClientError::Decode(_)), "{error}");
}

#[tokio::test(start_paused = true)]
async fn layers_are_told_to_their_rank() {
    let (client, log) = client(config(), []);
    client.layer_ready(Rank(2), &LayerReady { step: 1, draft: false, layers_done: 4 }).unwrap();
    let log = log.lock().unwrap();
    assert_eq!((log[0].subject.as_str(), log[0].envelope.kind.as_str()), ("hicached.v1.g.rank.2", "layer_ready"));
}

#[tokio::test(start_paused = true)]
async fn figures_are_asked_of_any_member_without_registration() {
    let figures = StatusIs { counters: vec![("rank.backups".to_owned(), 3)] };
    let (client, log) = client(config(), [figures.clone().into()]);
    assert_eq!(client.figures(Address::Rank(Rank(2))).await.unwrap(), figures);
    let log = log.lock().unwrap();
    assert_eq!((log[0].subject.as_str(), log[0].envelope.kind.as_str()), ("hicached.v1.g.rank.2", "figures"));
    assert_eq!(log[0].envelope.control, Incarnation::default());
}
