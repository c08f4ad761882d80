//! A second control group that reaches a rank past the process that leads.

use hicached::bus::Frame;
use hicached_actors::protocol::{Adopt, Bin, Envelope, Incarnation, OpId, OpIds, Rank, VERSION, encode};

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
