//! Which late traces the processes of a group keep, told to each other: best effort, batched, one small message.

use std::sync::Arc;

use hicached_actors::protocol::{Bin, Envelope, Incarnation, OpId, OpIds, VERSION};

use super::late::TraceId;
use super::recorder::Recorder;
use crate::bus::{Bus, Frame, Served, inbox};

/// The way to the other recorders of a group.
pub(super) struct Peers {
    bus: Arc<dyn Bus>,
    subject: Arc<str>,
    ids: std::sync::Mutex<OpIds>,
    life: Incarnation,
    _served: Served,
}

/// Listens for the traces that others keep. A subject that cannot be served is a warning: traces of this process are
/// then exported in part.
pub(super) async fn join(recorder: &Arc<Recorder>, bus: &Arc<dyn Bus>) {
    let subject: Arc<str> = format!("hicached.v1.{}.keep", recorder.origin.group).into();
    let (sender, mut inbox) = inbox(INBOX_FRAMES, None);
    let served = match bus.serve(&subject, sender).await {
        Ok(served) => served,
        Err(error) => return tracing::warn!(%error, "late traces that other processes keep are not heard of"),
    };
    let life = Incarnation(uuid::Uuid::new_v4().into_bytes());
    let ids = std::sync::Mutex::new(OpIds::new(life));
    let peers = Peers { bus: bus.clone(), subject, ids, life, _served: served };
    if recorder.peers.set(peers).is_err() {
        return tracing::debug!("the recorder hears its peers already");
    }
    // The recorder owns the way here: held by this task as well, neither would ever end.
    let recorder = Arc::downgrade(recorder);
    tokio::spawn(async move {
        while let Some(frame) = inbox.recv().await {
            let Some(recorder) = recorder.upgrade() else { return };
            match read(&frame.payload) {
                Some(traces) => recorder.kept_elsewhere(traces.iter().copied()),
                None => tracing::debug!(bytes = frame.payload.len(), "not a list of traces"),
            }
        }
    });
}

/// Tells the others of what was kept here since the last time.
pub(super) fn tell(recorder: &Recorder) {
    let Some(peers) = recorder.peers.get() else {
        // Nobody else is there; what was kept is forgotten, or it would wait for ever.
        recorder.take_kept(usize::MAX);
        return;
    };
    loop {
        let traces = recorder.take_kept(TRACES_MAX);
        if traces.is_empty() {
            return;
        }
        if let Err(error) = peers.bus.send(Frame::new(peers.subject.clone(), peers.write(&traces))) {
            recorder.count_untold(traces.len());
            tracing::debug!(%error, "the others do not hear which traces are kept");
        }
    }
}

impl Peers {
    fn write(&self, traces: &[TraceId]) -> Vec<u8> {
        // An id is drawn or not; nothing can be left half done.
        let id = self.ids.lock().unwrap_or_else(std::sync::PoisonError::into_inner).draw();
        let envelope = Envelope {
            version: VERSION,
            kind: KIND.to_owned(),
            id,
            op: OpId::default(),
            sender: SENDER.to_owned(),
            incarnation: self.life,
            control: Incarnation::default(),
            seq: 0,
            urgent: false,
            remaining_ms: 0,
            body: Bin(traces.concat()),
        };
        hicached_actors::protocol::encode(&envelope)
    }
}

/// The traces of one message; `None` when it is none.
fn read(payload: &[u8]) -> Option<Vec<TraceId>> {
    let envelope = Envelope::decode(payload).ok().filter(|envelope| envelope.kind == KIND)?;
    let (traces, rest) = envelope.body.0.as_chunks::<16>();
    (rest.is_empty() && traces.len() <= TRACES_MAX).then(|| traces.to_vec())
}

impl std::fmt::Debug for Peers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Peers").field("subject", &self.subject).finish_non_exhaustive()
    }
}

const KIND: &str = "keep";
const SENDER: &str = "recorder";
/// Traces of one message: 16 KiB.
const TRACES_MAX: usize = 1_024;
/// Messages of peers that wait to be read.
const INBOX_FRAMES: usize = 256;

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use hicached_actors::protocol::{Address, Time};
    use hicached_actors::span::{Span, TraceContext};

    use super::*;
    use crate::bus::memory::{MemoryBus, MemoryConfig};
    use crate::config::{BusKind, TraceConfig};
    use crate::shell::Clock;
    use crate::telemetry::Origin;

    fn recorder() -> Arc<Recorder> {
        let config = TraceConfig { slow_ms: 10, ..TraceConfig::default() };
        let origin = Origin { group: "g".to_owned(), actors: Vec::new(), bus: BusKind::Memory };
        Arc::new(Recorder::new(&config, origin, Clock::start()))
    }

    fn span(of: &TraceContext, fault: Option<&str>) -> Span {
        Span::new("open", OpId::default(), of.clone(), Time { ns: 0 }, Time { ns: 1 }).fault(fault)
    }

    #[tokio::test]
    async fn a_trace_that_fails_in_one_process_is_exported_by_all() {
        let bus: Arc<dyn Bus> = Arc::new(MemoryBus::new(MemoryConfig::default()));
        let (here, there) = (recorder(), recorder());
        join(&here, &bus).await;
        join(&there, &bus).await;
        let (failed, other) = (here.begin_trace(), here.begin_trace());
        there.told(Address::Rank(Default::default()), [span(&failed, None), span(&other, None)].into_iter());
        here.told(Address::Index, [span(&failed, Some("Busy"))].into_iter());
        tell(&here);
        let until = Instant::now() + Duration::from_secs(10);
        let exported = loop {
            let exported = there.outbox.take();
            if !exported.is_empty() {
                break exported;
            }
            assert!(Instant::now() < until, "nobody told");
            tokio::task::yield_now().await;
        };
        let traces: Vec<TraceId> = exported.iter().map(|record| record.context().trace_id).collect();
        assert_eq!(traces, [failed.trace_id]);
        assert_eq!((there.figures().stored, here.figures().untold), (1, 0));
    }

    #[test]
    fn what_is_no_list_of_traces_is_not_read() {
        let envelope = |kind: &str, body: Vec<u8>| {
            hicached_actors::protocol::encode(&Envelope {
                kind: kind.to_owned(),
                version: VERSION,
                body: Bin(body),
                ..empty()
            })
        };
        assert_eq!(read(&envelope(KIND, vec![7; 32])), Some(vec![[7; 16]; 2]));
        assert_eq!(read(&envelope(KIND, vec![7; 17])), None, "half an id");
        assert_eq!(read(&envelope("open", vec![7; 16])), None, "another kind");
        assert_eq!(read(&envelope(KIND, vec![7; 16 * (TRACES_MAX + 1)])), None, "too many");
        assert_eq!(read(b"nothing"), None);
    }

    fn empty() -> Envelope {
        Envelope {
            version: VERSION,
            kind: String::new(),
            id: OpId::default(),
            op: OpId::default(),
            sender: SENDER.to_owned(),
            incarnation: Incarnation::default(),
            control: Incarnation::default(),
            seq: 0,
            urgent: false,
            remaining_ms: 0,
            body: Bin(Vec::new()),
        }
    }
}
