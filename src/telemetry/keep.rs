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
