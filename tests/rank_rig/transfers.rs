//! Pages between the ranks of two groups: grants and pushes as messages, bytes over loopback.

use std::sync::Arc;

use hicached::rank::RankSetup;
use hicached::wire::tcp::{Tcp, TcpSettings};
use hicached_actors::protocol::*;
use hicached_client::shm::Track as Word;

use crate::rank_rig::*;

pub(crate) const TRANSFER: OpId = OpId([7; 16]);

pub(crate) fn wired(setup: &mut RankSetup) {
    setup.wire = Some(Arc::new(Tcp::new(TcpSettings::default()).unwrap()));
}

/// A rank that receives, attached and with poisoned memory.
pub(crate) fn decode() -> Rig {
    Rig::with(wired)
}

fn positions(all: &[u32]) -> Positions {
    Positions(all.iter().copied().map(Position).collect())
}

fn pages(all: &[u32]) -> Pages {
    Pages(all.iter().copied().map(PageId).collect())
}

fn accept(attempt: u32, at: &[u32], into: &[u32]) -> RankIn {
    Accept { attempt, positions: positions(at), pages: pages(into), lives: Vec::new(), components: Vec::new() }.into()
}

/// Pages of the decode rank are its physical ones.
pub(crate) fn push(grant: &Accepting, step: u64, at: &[u32], from: &[u32], into: &[u32]) -> Push {
    Push {
        attempt: grant.attempt,
        part: 0,
        step,
        positions: positions(at),
        pages: pages(from),
        slots: PeerPages(into.iter().copied().map(PeerPage).collect()),
        endpoint: grant.endpoint.clone(),
        grant: grant.grant.clone(),
        deadline_ms: 20_000,
        lives: Vec::new(),
        components: Vec::new(),
    }
}

pub(crate) fn accepted(rig: &mut Rig, attempt: u32, at: &[u32], into: &[u32]) -> Accepting {
    rig.send_op(Address::Receiver, TRANSFER, accept(attempt, at, into));
    match rig.hear(TRANSFER) {
        Said::Receiver(ReceiverIn::Accepting(accepting)) => accepting,
        other => panic!("not accepted but {other:?}"),
    }
}

pub(crate) fn landed(rig: &mut Rig, attempt: u32) -> Landed {
    rig.send_op(Address::Receiver, TRANSFER, Report { attempt }.into());
    match rig.hear(TRANSFER) {
        Said::Receiver(ReceiverIn::Landed(landed)) => landed,
        other => panic!("no report but {other:?}"),
    }
}

fn revoke(rig: &mut Rig, attempt: u32) {
    rig.send_op(Address::Receiver, TRANSFER, Revoke { attempt, drained: false }.into());
    let revoked = Revoked { attempt, rank: Rank(0) };
    assert_eq!(rig.hear(TRANSFER), Said::Receiver(ReceiverIn::Revoked(revoked)));
}

fn pushed(rig: &mut Rig) -> Pushed {
    match rig.hear(TRANSFER) {
        Said::Sender(SenderIn::Pushed(pushed)) => pushed,
        other => panic!("not pushed but {other:?}"),
    }
}

pub(crate) fn refusal(said: Said) -> Refusal {
    match said {
        Said::Receiver(ReceiverIn::Rejected(rejected)) => rejected.refusal,
        Said::Sender(SenderIn::Pushed(Pushed { complete: false, mut failed, .. })) => failed.remove(0),
        other => panic!("not refused but {other:?}"),
    }
}

#[test]
fn pages_land_where_their_positions_are_granted_layer_by_layer() {
    let (mut prefill, mut decode) = (Rig::with(wired), decode());
    let grant = accepted(&mut decode, 1, &[4, 5, 9], &[11, 3, 12]);
    assert_eq!(accepted(&mut decode, 1, &[4, 5, 9], &[11, 3, 12]), grant, "a repeat is answered from the grant");
    let order = push(&grant, 1, &[4, 5, 9], &[2, 6, 7], &[11, 3, 12]);
    prefill.send_op(Address::Sender, TRANSFER, RankIn::Push(order.clone()));
    prefill.send_op(Address::Sender, TRANSFER, RankIn::Push(order));
    assert!(matches!(pushed(&mut prefill), Pushed { complete: false, failed, .. } if failed.is_empty()), "under way");
    prefill.engine.clone().compute(1, &[(2, 4), (6, 5), (7, 9)], |word, layer| {
        if (word, layer) == (Word::Target, 6) {
            // What is computed leaves while the rest is not.
            while landed(&mut decode, 1).figures.bytes == 0 {
                std::thread::yield_now();
            }
            assert_eq!(landed(&mut decode, 1).owners, Owners(vec![NOBODY; 3]));
        }
    });
    let end = pushed(&mut prefill);
    assert!(end.complete && end.failed.is_empty(), "{end:?}");
    let report = landed(&mut decode, 1);
    assert_eq!((&report.owners, report.figures.bytes), (&Owners(vec![0; 3]), end.figures.bytes));
    revoke(&mut decode, 1);
    for (page, tag) in [(11, 4), (3, 5), (12, 9)] {
        decode.engine.assert_page(page, tag);
    }
    for untouched in [1, 2, 4, 10, 13] {
        let all = decode.engine.all_bytes();
        let at = decode.engine.l1.l1_offset(hicached_kernels::layout::L1Page(untouched), KV, 0).unwrap() as usize;
        assert!(all[at..at + 1_024].iter().all(|byte| *byte == POISON), "page {untouched}");
    }
    assert!(prefill.host.machine().is_idle() && decode.host.machine().is_idle());
}

#[test]
fn nothing_but_the_components_that_are_named_is_sent_or_lands() {
    let (mut prefill, mut decode) = (Rig::with(wired), decode());
    let kv = vec!["target.kv".to_owned()];
    let only = |components: &[String]| Accept {
        attempt: 1,
        positions: positions(&[4]),
        pages: pages(&[11]),
        lives: Vec::new(),
        components: components.to_vec(),
    };
    decode.send_op(Address::Receiver, TRANSFER, only(&["target.value".to_owned()]).into());
    assert_eq!(refusal(decode.hear(TRANSFER)).code(), "Malformed");
    decode.send_op(Address::Receiver, TRANSFER, only(&kv).into());
    let Said::Receiver(ReceiverIn::Accepting(grant)) = decode.hear(TRANSFER) else { panic!("not accepted") };
    prefill.engine.clone().compute(1, &[(2, 4)], |_, _| ());
    let order = Push { components: kv, ..push(&grant, 0, &[4], &[2], &[11]) };
    prefill.send_op(Address::Sender, TRANSFER, order.into());
    let end = pushed(&mut prefill);
    assert!(end.complete, "{end:?}");
    assert_eq!(landed(&mut decode, 1).owners, Owners(vec![0]), "that is all of it");
    let other = Push { attempt: 1, part: 1, ..push(&grant, 0, &[4], &[2], &[11]) };
    prefill.send_op(Address::Sender, TRANSFER, other.into());
    assert_eq!(refusal(prefill.hear(TRANSFER)).code(), "WrongState", "what is not granted is refused");
    revoke(&mut decode, 1);
    let all = decode.engine.all_bytes();
    for component in [KV, hicached_kernels::layout::Component::DraftKv] {
        let at = decode.engine.l1.l1_offset(hicached_kernels::layout::L1Page(11), component, 0).unwrap() as usize;
        assert_eq!(all[at] == POISON, component != KV, "{component}");
    }
}

const KV: hicached_kernels::layout::Component = hicached_kernels::layout::Component::TargetKv;

#[test]
fn an_attempt_that_was_ended_before_it_came_begins_nothing() {
    let (mut prefill, mut decode) = (Rig::with(wired), decode());
    revoke(&mut decode, 2);
    for attempt in [1, 2] {
        decode.send_op(Address::Receiver, TRANSFER, accept(attempt, &[0], &[5]));
        assert!(matches!(refusal(decode.hear(TRANSFER)), Refusal::WrongState(_)), "attempt {attempt}");
    }
    let grant = accepted(&mut decode, 3, &[0], &[5]);
    prefill.send_op(Address::Sender, TRANSFER, StopPush { attempt: 3 }.into());
    let stopped = PushStopped { attempt: 3, rank: Rank(0) };
    assert_eq!(prefill.hear(TRANSFER), Said::Sender(SenderIn::PushStopped(stopped)));
    prefill.send_op(Address::Sender, TRANSFER, push(&grant, 0, &[0], &[2], &[5]).into());
    assert!(matches!(refusal(prefill.hear(TRANSFER)), Refusal::WrongState(_)));
    assert_eq!(landed(&mut decode, 3).figures.bytes, 0);
}

#[test]
fn what_a_page_is_used_for_is_its_only_use() {
    let mut decode = decode();
    accepted(&mut decode, 1, &[0, 1], &[5, 6]);
    let table: [(&[u32], &[u32], &str); 5] = [
        (&[0], &[6], "page 6"),
        (&[1, 0], &[7, 8], "positions"),
        (&[0, 1], &[7, 7], "pages"),
        (&[0], &[L1_PAGES], "pages"),
        (&[0, 1], &[7], "positions"),
    ];
    for (at, into, field) in table {
        let other = decode.draw();
        decode.send_op(Address::Receiver, other, accept(1, at, into));
        match refusal(decode.hear(other)) {
            Refusal::Malformed(malformed) => assert_eq!(malformed.field, field),
            Refusal::WrongState(wrong) => assert_eq!(wrong.what, field),
            other => panic!("{field}: {other:?}"),
        }
    }
    let backup = decode.backup_msg(0, &[5], &[1]);
    let op = decode.send(Address::Writer, RankIn::BackupCopy(backup));
    assert!(matches!(decode.hear_ack(op).failed[..], [Refusal::WrongState(_)]), "its bytes are still coming");
    revoke(&mut decode, 1);
    assert_eq!(accepted(&mut decode, 2, &[0], &[6]).attempt, 2, "and then it is free");
}

/// Another control incarnation gives these pages to others: nothing of the old one may land or leave by then.
#[test]
fn a_new_control_incarnation_ends_what_the_old_one_began() {
    let (mut prefill, mut decode) = (Rig::with(wired), decode());
    let grant = accepted(&mut decode, 1, &[0], &[5]);
    prefill.send_op(Address::Sender, TRANSFER, push(&grant, 1, &[0], &[2], &[5]).into());
    for rig in [&mut prefill, &mut decode] {
        rig.now = rig.now.plus_ms(LEASE_MS + 1);
        let next = Incarnation([0xC1; 16]);
        rig.send_as(next, Address::Index, OpId::default(), RankIn::Adopt(Adopt { lease_ms: LEASE_MS }));
        while !rig.host.machine().is_idle() {
            rig.collect();
            std::thread::yield_now();
        }
        let mut hellos = rig.heard(OpId::default()).into_iter().filter_map(|said| match said {
            Said::Index(IndexNews::RankHello(hello)) => Some((hello.adopted_by, hello.old_ops)),
            _ => None,
        });
        assert_eq!(hellos.next_back(), Some((next, 0)));
        assert!(rig.heard(TRANSFER).is_empty(), "nobody hears of it");
    }
    // What the engine still computes goes nowhere.
    prefill.engine.clone().compute(1, &[(2, 4)], |_, _| ());
    assert!(decode.engine.all_bytes().iter().all(|byte| *byte == POISON));
}
