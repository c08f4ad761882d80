//! Bytes that are no message: refused with field, value and limit; nothing changes, and the next message goes
//! through.

use super::*;
use crate::host::{Dest, FIGURES, Host, Output};

fn envelope(kind: &str, body: Vec<u8>) -> Envelope {
    Envelope {
        version: VERSION,
        kind: kind.to_owned(),
        id: OpId::new(ENGINE, 900),
        op: OpId::new(ENGINE, 901),
        sender: "engine".to_owned(),
        incarnation: ENGINE,
        control: CONTROL,
        seq: 1,
        urgent: false,
        remaining_ms: 1_000,
        body: Bin(body),
    }
}

fn host(script: Script) -> Host<Index> {
    Host::new(script.index, Address::Index, CONTROL, CONTROL, 1 << 20)
}

/// The answer to `bytes`; nothing else may come of them.
fn answer(host: &mut Host<Index>, bytes: &[u8]) -> Answer {
    let mut out = Output::default();
    host.deliver(Time { ns: 9 }, bytes, Some("inbox".into()), None, &mut out);
    host.machine.check_invariants();
    assert_eq!(out.parcels.len(), 1);
    assert!(matches!(out.parcels[0].to, Dest::Reply(_)));
    let envelope = Envelope::decode(&out.parcels[0].bytes).expect("an envelope");
    Answer::decode_body(&envelope.kind, &envelope.body.0).expect("a kind of answer").expect("a body")
}

#[test]
fn bytes_that_are_no_message_are_refused_with_their_field_and_change_nothing() {
    let probe = Probe { tenant: "a".to_owned(), salt: root(), keys: Keys(keys(1, 2)) };
    let body = Request::from(probe).encode_body();
    let good = envelope("probe", body.clone());
    let torn = encode(&good)[..30].to_vec();
    let ragged = {
        let mut body = body.clone();
        // The length of the list of keys: 31 bytes are no whole number of keys.
        let at = body.len() - 33;
        body[at] = 31;
        body.pop();
        body
    };
    let rows: Vec<(&str, Vec<u8>, &str)> = vec![
        ("nothing", Vec::new(), "Malformed"),
        ("no MessagePack", vec![0xc1; 64], "Malformed"),
        ("a torn envelope", torn, "Malformed"),
        ("a torn body", encode(&envelope("probe", body[..body.len() - 5].to_vec())), "Malformed"),
        ("half a key", encode(&envelope("probe", ragged)), "Malformed"),
        ("an unknown kind", encode(&envelope("prefetch", body.clone())), "Unsupported"),
        ("another version", encode(&Envelope { version: 2, ..good.clone() }), "Unsupported"),
        ("an unknown sender", encode(&Envelope { sender: "rank.64".to_owned(), ..good.clone() }), "Malformed"),
    ];
    let mut host = host(Script::serving(8));
    let machine = host.machine.counters();
    for (name, bytes, code) in rows {
        let Answer::Refused(refusal) = answer(&mut host, &bytes) else { panic!("{name}: not refused") };
        assert_eq!(refusal.code(), code, "{name}: {refusal:?}");
        match refusal {
            Refusal::Malformed(r) => assert!(!r.field.is_empty() && !r.limit.is_empty(), "{name}: {r:?}"),
            Refusal::Unsupported(r) => assert!(!r.value.is_empty() && !r.limit.is_empty(), "{name}: {r:?}"),
            other => panic!("{name}: {other:?}"),
        }
        assert_eq!(host.machine.counters(), machine, "{name}");
    }
    assert_eq!(answer(&mut host, &encode(&good)), Probed { l1: 0, l2: 0 }.into(), "the next one goes through");
    let counted = host.counters();
    let count = |name| counted.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
    assert_eq!((count("host.malformed"), count("host.unsupported")), (Some(6), Some(2)));
}

#[test]
fn a_message_over_the_limit_is_refused_with_both_sizes_before_it_is_sent() {
    let many = Probe { tenant: "a".to_owned(), salt: root(), keys: Keys(vec![root(); 70_000]) };
    let too_large = envelope("probe", Request::from(many).encode_body()).encode(1 << 20).expect_err("1.07 MiB");
    assert!(too_large.size > too_large.limit && too_large.limit == 1 << 20, "{too_large:?}");
}

#[test]
fn figures_are_told_by_the_host_to_anybody_before_the_group_serves() {
    let index = Index::new(IndexConfig::new(manifest(1), 65, 8), CONTROL, 1);
    let mut host = Host::new(index, Address::Index, CONTROL, CONTROL, 1 << 20);
    let ask = Envelope { control: Incarnation::default(), ..envelope(FIGURES, encode(&Figures {})) };
    let Answer::StatusIs(figures) = answer(&mut host, &encode(&ask)) else { panic!("no figures") };
    let told: Vec<(&str, u64)> = figures.counters.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    assert_eq!(told, host.counters());
    assert!(told.contains(&("index.serving", 0)));
    let Answer::Refused(Refusal::Malformed(_)) = answer(&mut host, &encode(&envelope(FIGURES, vec![]))) else {
        panic!("an empty body is no message");
    };
}
