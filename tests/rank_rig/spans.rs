//! What a rank says of its copies when somebody records them.

use hicached_actors::protocol::*;
use hicached_actors::span::{Fact, Sampling, Span, TraceContext};

use crate::rank_rig::*;

const TRACE: TraceContext = TraceContext { trace_id: [1; 16], span_id: [2; 8], sampling: Sampling::Sampled };

fn row(span: &Span, name: &str) -> Vec<u64> {
    match span.facts.iter().find(|(known, _)| *known == name) {
        Some((_, Fact::Counts(row))) => row.clone(),
        other => panic!("no row {name}: {other:?}"),
    }
}

#[test]
fn every_copy_ends_in_one_span_with_a_number_for_each_layer_that_has_bytes() {
    let mut rig = Rig::new();
    rig.store(&[1], &[1]);
    assert_eq!(rig.spans, [], "nobody records");
    rig.trace = Some(TRACE);
    rig.store(&[2, 3], &[2, 3]);
    let load = rig.load_msg(&[4, 5], &[2, 3], 1, 1);
    let op = rig.send(Address::Loader, RankIn::LoadCopy(load.clone()));
    assert!(rig.hear_ack(op).complete);
    rig.send_op(Address::Loader, op, RankIn::LoadCopy(load.clone()));
    let wrong = LoadCopy { ring_slot: u32::MAX, ..load };
    let refused = rig.send(Address::Loader, RankIn::LoadCopy(wrong));
    assert!(!rig.hear_ack(refused).complete);
    let spans = std::mem::take(&mut rig.spans);
    let said: Vec<(&str, Option<&str>)> = spans.iter().map(|span| (span.name, span.fault.as_deref())).collect();
    assert_eq!(said, [("backup.rank", None), ("load.rank", None), ("load.rank", Some("Malformed"))]);
    for span in &spans[..2] {
        assert_eq!(span.parent, TRACE);
        let bytes = row(span, "layer.bytes");
        assert_eq!(bytes.len(), 20, "12 layers and 6 with an index of the target, one with an index of the draft");
        assert_eq!(bytes[0], 2 * 1_024);
        assert!(span.facts.contains(&("copy.bytes", Fact::Count(bytes.iter().sum()))), "{span:?}");
        for name in ["layer.ready_us", "layer.wait_us", "layer.copy_us", "layer.runs"] {
            assert_eq!(row(span, name).len(), bytes.len(), "{name}");
        }
        assert_eq!(span.parts.len(), LAYERS as usize, "components of a layer are copied together");
        assert!(span.parts.iter().all(|part| part.began <= part.ended && part.began >= span.began));
    }
    assert_ne!(spans[1].context(), spans[2].context());
}
