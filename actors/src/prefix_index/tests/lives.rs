//! Engines and ranks that go and come back: whose pages the L1 copies are.

use super::*;

const NEXT_ENGINE: Incarnation = Incarnation([0xe1; 16]);
const NEXT_RANK: Incarnation = Incarnation([0xa1; 16]);

fn register_as(script: &mut Script, engine: Incarnation) -> OpId {
    let op = OpId::new(engine, 1);
    let msg = Register {
        rank: Rank(0),
        engine,
        manifest: manifest(1),
        pages: 65,
        segment: format!("{engine:?}"),
        segment_bytes: 1,
        regions: vec![],
        last_step: 0,
    };
    script.deliver(Address::Engine, engine, op, IndexIn::Request(msg.into()));
    op
}

#[test]
fn pages_of_an_engine_whose_pool_could_not_be_mapped_again_are_not_served_to_the_next() {
    let mut script = Script::serving(0);
    let path = keys(1, 2);
    let session = script.open(&path);
    script.compute(session, 1, 0..2, true);
    script.close(session, 1);
    script.hello(NEXT_RANK, 0);
    let attach = script.op_of("attach");
    let gone = AttachRefused { engine: ENGINE, refusal: Unknown::new("segment", "a").into() };
    script.deliver(Address::Rank(Rank(0)), NEXT_RANK, attach, IndexIn::News(gone.into()));
    register_as(&mut script, NEXT_ENGINE);
    assert_eq!(script.probe(&path), Probed { l1: 0, l2: 0 }, "another pool holds other bytes");
    assert_eq!(script.freed(), [PageId(2), PageId(1)]);
    let op = register_as(&mut script, ENGINE);
    assert!(matches!(script.refusal(op), Refusal::Unknown(_)), "a replaced life is refused for good");
}

#[test]
fn an_engine_that_registers_again_after_a_failed_mapping_keeps_its_pages() {
    let mut script = Script::serving(0);
    let path = keys(1, 2);
    let session = script.open(&path);
    script.compute(session, 1, 0..2, true);
    script.hello(NEXT_RANK, 0);
    let attach = script.op_of("attach");
    let busy = AttachRefused { engine: ENGINE, refusal: Unknown::new("segment", "a").into() };
    script.deliver(Address::Rank(Rank(0)), NEXT_RANK, attach, IndexIn::News(busy.into()));
    register_as(&mut script, ENGINE);
    assert_eq!(script.probe(&path), Probed { l1: 2, l2: 0 });
    assert_eq!(script.close(session, 1).l1_pages, 2);
}
