//! The exporter: a thread with a runtime of its own that hands batches to a collector over OTLP.
//!
//! Batches are made here, from whole records, so no limit of an SDK drops anything. The transport runs on the runtime
//! it was built in: on an actor's it would stand behind the actor.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use hicached_client::spans::SpanSink;
use opentelemetry::KeyValue;
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SpanExporter as _;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout, timeout_at};

use super::attributes::Writer;
use super::outbox::Record;
use super::recorder::{BATCH_SPANS, Recorder};
use super::{Origin, TelemetryError, keep};
use crate::config::TraceConfig;
use crate::shell::Clock;

/// A recorder and its exporter.
#[derive(Debug)]
pub(super) struct Running {
    recorder: Arc<Recorder>,
    /// Taken by whoever ends it. Dropped, the thread ends as well, after what waits.
    thread: Mutex<Option<(oneshot::Sender<()>, JoinHandle<()>)>>,
}

impl Running {
    /// Starts the thread. A collector that is not there yet is tried again with every batch.
    pub(super) fn start(config: &TraceConfig, origin: Origin, clock: Clock) -> Result<Self, TelemetryError> {
        let recorder = Arc::new(Recorder::new(config, origin, clock));
        let writer = Writer::new(&recorder.origin, config.layers, recorder.now());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let exporter = {
            let _entered = runtime.enter();
            exporter(&config.endpoint, &recorder.origin)?
        };
        let (stop, stopped) = oneshot::channel();
        let exports = Exports { recorder: recorder.clone(), writer, exporter };
        let thread = std::thread::Builder::new().name("hicached traces".to_owned());
        let thread = thread.spawn(move || runtime.block_on(exports.run(stopped)))?;
        Ok(Self { recorder, thread: Mutex::new(Some((stop, thread))) })
    }

    /// The recorder.
    pub(super) fn recorder(&self) -> &Arc<Recorder> {
        &self.recorder
    }

    /// Ends the thread after what waits was exported, or was tried for [`STOP_MAX`].
    pub(super) async fn stop(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some((stop, thread)) = thread else { return };
        // An error means that the thread has ended already.
        stop.send(()).ok();
        let joined = tokio::task::spawn_blocking(move || thread.join().is_ok()).await;
        let figures = self.recorder.figures();
        tracing::debug!(ended = joined.unwrap_or(false), ?figures, "the exporter has ended");
    }
}

/// What the thread owns.
struct Exports {
    recorder: Arc<Recorder>,
    writer: Writer,
    exporter: SpanExporter,
}

impl Exports {
    async fn run(self, mut stopped: oneshot::Receiver<()>) {
        loop {
            let goes_on = tokio::select! {
                _ = &mut stopped => false,
                _ = timeout(PAUSE, self.recorder.outbox.full()) => true,
            };
            keep::tell(&self.recorder);
            if goes_on {
                self.export(self.recorder.outbox.take()).await;
                continue;
            }
            let records = self.recorder.outbox.take();
            let left = records.len() as u64;
            let before = self.settled();
            if timeout_at(Instant::now() + STOP_MAX, self.export(records)).await.is_err() {
                let settled = self.settled() - before;
                self.recorder.failed.fetch_add(left.saturating_sub(settled), Ordering::Relaxed);
            }
            return;
        }
    }

    async fn export(&self, records: Vec<Record>) {
        let mut records = records.into_iter();
        while records.len() > 0 {
            let batch: Vec<Record> = records.by_ref().take(BATCH_SPANS).collect();
            let (count, mut spans) = (batch.len() as u64, Vec::with_capacity(batch.len()));
            batch.into_iter().for_each(|record| self.writer.write(record, &mut spans));
            let figure = match self.exporter.export(spans).await {
                Ok(()) => &self.recorder.exported,
                Err(error) => {
                    tracing::warn!(%error, spans = count, "spans were not exported");
                    &self.recorder.failed
                }
            };
            figure.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// Records whose fate is known.
    fn settled(&self) -> u64 {
        self.recorder.exported.load(Ordering::Relaxed) + self.recorder.failed.load(Ordering::Relaxed)
    }
}

fn exporter(endpoint: &str, origin: &Origin) -> Result<SpanExporter, TelemetryError> {
    let exporter = SpanExporter::builder().with_tonic().with_endpoint(endpoint).with_timeout(EXPORT_MAX).build();
    let mut exporter =
        exporter.map_err(|error| TelemetryError::Endpoint { endpoint: endpoint.to_owned(), why: error.to_string() })?;
    let resource = Resource::builder_empty().with_attributes([
        KeyValue::new("service.name", "hicached"),
        KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
        KeyValue::new("service.instance.id", uuid::Uuid::new_v4().to_string()),
        KeyValue::new("process.pid", i64::from(std::process::id())),
        KeyValue::new("hicached.group", origin.group.clone()),
        KeyValue::new("hicached.actors", origin.actors.join(",")),
    ]);
    exporter.set_resource(&resource.build());
    Ok(exporter)
}

/// Between two looks into the outbox.
const PAUSE: Duration = Duration::from_millis(200);
/// One export may take this long; the next spans wait in the outbox meanwhile.
const EXPORT_MAX: Duration = Duration::from_secs(3);
/// What waits at the end is tried for this long.
const STOP_MAX: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use hicached_actors::protocol::{Address, OpId, Time};
    use hicached_actors::span::Span;

    use super::*;
    use crate::config::BusKind;

    #[tokio::test]
    async fn what_no_collector_takes_is_lost_and_counted_and_the_end_is_bounded() {
        // A port that was free a moment ago and is again.
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let endpoint = format!("http://127.0.0.1:{port}");
        let config = TraceConfig { endpoint, ratio_permille: 1_000, ..TraceConfig::default() };
        let origin = Origin { group: "g".to_owned(), actors: Vec::new(), bus: BusKind::Memory };
        let running = Running::start(&config, origin, Clock::start()).unwrap();
        let trace = running.recorder().begin_trace();
        let span = Span::new("open", OpId::default(), trace, Time { ns: 0 }, Time { ns: 1 });
        running.recorder().told(Address::Index, vec![span; 2 * BATCH_SPANS + 1].into_iter());
        let stopping = Instant::now();
        running.stop().await;
        assert!(stopping.elapsed() < STOP_MAX + EXPORT_MAX + Duration::from_secs(10), "{:?}", stopping.elapsed());
        let figures = running.recorder().figures();
        assert_eq!((figures.exported, figures.lost), (0, 2 * BATCH_SPANS as u64 + 1));
    }
}
