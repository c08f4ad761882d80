//! A second control group that reaches a rank past the process that leads.

use hicached::bus::Frame;
use hicached_actors::protocol::{
    Adopt, Bin, Envelope, Incarnation, Lead, LeadIn, OpId, OpIds, Rank, VERSION, encode, lead_subject,
};

use super::*;

/// What an index of another incarnation says to take a rank.
fn adopt(rival: Incarnation) -> Vec<u8> {
    encode(&Envelope {
        version: VERSION,
        kind: "adopt".to_owned(),
        id: OpIds::new(rival).draw(),
        op: OpId::default(),
        sender: Address::Index.to_string(),
        incarnation: rival,
        control: rival,
        seq: 1,
        urgent: true,
        remaining_ms: 0,
        body: Bin(encode(&Adopt { lease_ms: 1_000 })),
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rank_obeys_another_control_group_only_when_its_own_is_silent() {
    let Some(world) = World::new("rival") else { return };
    let mut processes = ["control", "rank.0", "rank.1"].map(|run| world.process("rival", run));
    processes.iter_mut().for_each(|process| drop(process.ready()));
    let mut engine = world.engine("rival").await;
    let (client, bus, rank) = (engine.client().clone(), world.bus().await, Address::Rank(Rank(0)));
    let control = client.control();

    bus.send(Frame::new(rank.subject("rival"), adopt(Incarnation([7; 16])))).expect("sent");
    until(&client, rank, "rank.refused", |refused| refused == 1).await;
    let report = serve(&mut engine, world.prompts("rival", 3)).await;
    assert_eq!((report.reopened, client.control()), (0, control), "the rank obeys whom it obeyed");

    processes[0].killed();
    processes[0] = world.process("rival", "control");
    processes[0].ready();
    let report = serve(&mut engine, world.prompts("rival", 3)).await;
    assert!(report.hit_pages.l2 > 0 && client.control() != control, "{report:?}");
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_stood_still_while_another_led_begins_again() {
    let Some(world) = World::new("still") else { return };
    let mut processes = ["control", "rank.0", "rank.1"].map(|run| world.process("still", run));
    processes.iter_mut().for_each(|process| drop(process.ready()));
    let mut engine = world.engine("still").await;
    let client = engine.client().clone();
    let prompts = world.prompts("still", 24);
    let mut controls = vec![client.control()];
    serve(&mut engine, prompts[..8].to_vec()).await;

    processes[0].suspended();
    let mut second = world.process("still", "control");
    second.ready();
    // The pages of before are used for others, so that whoever still believes in them serves wrong bytes.
    serve(&mut engine, prompts[8..].to_vec()).await;
    controls.push(client.control());
    second.killed();

    processes[0].resumed();
    serve(&mut engine, prompts).await;
    controls.push(client.control());
    let [first, second, third] = controls[..] else { panic!("{controls:?}") };
    assert!(first != second && second != third && first != third, "{controls:?}");
    engine.stop().await;
    let (code, log) = processes[0].terminated();
    assert!(code == Some(0) && log.contains("this incarnation is over"), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_beat_that_nobody_stands_behind_ends_no_leader() {
    let Some(world) = World::new("beat") else { return };
    let mut processes = ["control", "ranks"].map(|run| world.process("beat", run));
    processes.iter_mut().for_each(|process| drop(process.ready()));
    let (mut engine, bus) = (world.engine("beat").await, world.bus().await);
    let beat = Envelope {
        version: VERSION,
        kind: "lead".to_owned(),
        id: OpId::default(),
        op: OpId::default(),
        sender: "process".to_owned(),
        incarnation: Incarnation::default(),
        control: Incarnation::default(),
        seq: 0,
        urgent: false,
        remaining_ms: 0,
        body: Bin(LeadIn::from(Lead {}).encode_body()),
    };
    bus.send(Frame::new(lead_subject("beat"), encode(&beat))).expect("sent");
    let control = engine.client().control();
    serve(&mut engine, world.prompts("beat", 3)).await;
    assert_eq!(engine.client().control(), control);
    engine.stop().await;
    let (code, log) = processes[0].terminated();
    assert_eq!(code, Some(0), "{log}");
}
