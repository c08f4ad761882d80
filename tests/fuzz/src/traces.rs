//! Trace files, plain and packed.

use hicached::replay::trace::Trace;

use crate::scratch::Scratch;

/// The first byte chooses the name, the rest is the file.
pub fn trace(data: &[u8]) {
    let Some((first, bytes)) = data.split_first() else { return };
    let name = ["x.b16.jsonl", "x.b16.jsonl.gz", "x.b64bytes.jsonl", "x.b1048576.jsonl", "x.jsonl"];
    let scratch = Scratch::holding(name[usize::from(*first) % name.len()], bytes);
    let Ok(trace) = Trace::open(scratch.path()) else { return };
    let mut last_ms = 0;
    assert!(!trace.requests.is_empty());
    for request in &trace.requests {
        assert!(request.timestamp_ms >= last_ms, "arrivals are in order");
        last_ms = request.timestamp_ms;
        let ids = request.hash_ids.len() as u64;
        let blocks = request.input_length / trace.block_units..=request.input_length.div_ceil(trace.block_units);
        assert!(blocks.contains(&ids), "{ids} ids for {blocks:?} blocks");
    }
}
