//! The exporter: a thread with a runtime of its own that hands batches to a collector over OTLP.
//!
//! Batches are made here, from whole records, so no limit of an SDK drops anything. The transport runs on the runtime
//! it was built in: on an actor's it would stand behind the actor.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use std::vec::IntoIter;

use futures_util::FutureExt;
use futures_util::future::Shared;
use hicached_client::spans::SpanSink;
use opentelemetry::KeyValue;
use opentelemetry_otlp::WithExportConfig;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SpanExporter;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::attributes::Writer;
use super::outbox::Record;
use super::recorder::{BATCH_SPANS, Recorder};
use super::{Origin, TelemetryError, TraceFigures, keep};
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
    /// Starts the thread. A collector that is not there is tried again, less and less often.
    pub(super) fn start(config: &TraceConfig, origin: Origin, clock: Clock) -> Result<Self, TelemetryError> {
        let recorder = Arc::new(Recorder::new(config, origin, clock));
        let writer = Writer::new(&recorder.origin, config.layers, recorder.now());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let exporter = {
            let _entered = runtime.enter();
            exporter(&config.endpoint, &recorder.origin)?
        };
        let (stop, stopped) = oneshot::channel();
        let exports = Exports::new(recorder.clone(), writer, exporter);
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
struct Exports<E> {
    recorder: Arc<Recorder>,
    writer: Writer,
    exporter: E,
    /// Taken out of the outbox and not tried yet: at most one outbox.
    taken: IntoIter<Record>,
    /// Records of the batch that is under way.
    under_way: u64,
}

/// Resolves when the end is wanted.
type Stop = Shared<oneshot::Receiver<()>>;

impl<E: SpanExporter> Exports<E> {
    fn new(recorder: Arc<Recorder>, writer: Writer, exporter: E) -> Self {
        Self { recorder, writer, exporter, taken: Vec::new().into_iter(), under_way: 0 }
    }

    /// Exports until `stopped` resolves, and for [`STOP_MAX`] more at most.
    async fn run(mut self, stopped: oneshot::Receiver<()>) {
        let (recorder, stop) = (self.recorder.clone(), stopped.shared());
        tokio::select! {
            biased;
            () = tell_until_over(&recorder, &stop) => {}
            () = self.work(&stop) => {}
        }
        keep::tell(&recorder);
        let left = self.under_way + self.taken.len() as u64 + recorder.outbox.take().len() as u64;
        recorder.failed.fetch_add(left, Ordering::Relaxed);
        let TraceFigures { exported, lost, .. } = recorder.figures();
        if lost > 0 {
            tracing::warn!(lost, exported, "spans were lost: no collector took them in time");
        }
    }

    /// Exports what comes. Once the end is wanted, what is left is tried until a batch fails.
    async fn work(&mut self, stop: &Stop) {
        let (mut backoff, mut is_last) = (BACKOFF_MIN, false);
        loop {
            let went = self.export().await;
            if is_last {
                // What waited in the outbox behind the rest of a list.
                if went {
                    self.export().await;
                }
                return;
            }
            is_last = if went {
                backoff = BACKOFF_MIN;
                tokio::select! {
                    biased;
                    _ = stop.clone() => true,
                    _ = timeout(PAUSE, self.recorder.outbox.full()) => false,
                }
            } else {
                let wanted = timeout(backoff, stop.clone()).await.is_ok();
                backoff = (2 * backoff).min(BACKOFF_MAX);
                wanted
            };
        }
    }

    /// Exports the rest of the list, or what waits in the outbox when there is none. `false` as soon as a batch fails.
    async fn export(&mut self) -> bool {
        if self.taken.len() == 0 {
            self.taken = self.recorder.outbox.take().into_iter();
        }
        while self.taken.len() > 0 {
            let mut spans = Vec::with_capacity(BATCH_SPANS);
            self.under_way = self.taken.len().min(BATCH_SPANS) as u64;
            self.taken.by_ref().take(BATCH_SPANS).for_each(|record| self.writer.write(record, &mut spans));
            let result = self.exporter.export(spans).await;
            let count = std::mem::take(&mut self.under_way);
            if let Err(error) = result {
                tracing::debug!(%error, spans = count, "spans were not exported");
                self.recorder.failed.fetch_add(count, Ordering::Relaxed);
                return false;
            }
            self.recorder.exported.fetch_add(count, Ordering::Relaxed);
        }
        true
    }
}

/// Tells the other processes which traces are kept here, whatever the collector does, until the end has been wanted
/// for [`STOP_MAX`].
async fn tell_until_over(recorder: &Recorder, stop: &Stop) {
    while timeout(PAUSE, stop.clone()).await.is_err() {
        keep::tell(recorder);
    }
    keep::tell(recorder);
    sleep(STOP_MAX).await;
}

fn exporter(endpoint: &str, origin: &Origin) -> Result<opentelemetry_otlp::SpanExporter, TelemetryError> {
    let exporter = opentelemetry_otlp::SpanExporter::builder()
        .with_tonic()
        .with_endpoint(endpoint)
        .with_timeout(EXPORT_MAX)
        .build();
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
/// Pause after a batch that failed; doubled by each further one. What finds no room meanwhile is lost and counted.
const BACKOFF_MIN: Duration = Duration::from_millis(500);
const BACKOFF_MAX: Duration = Duration::from_secs(8);
/// The end waits this long at most for what is under way and what waits.
const STOP_MAX: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};
    use std::sync::atomic::AtomicU64;

    use hicached_actors::protocol::{Address, OpId, Time};
    use hicached_actors::span::Span;
    use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
    use opentelemetry_sdk::trace::SpanData;
    use tokio::sync::Notify;
    use tokio::time::Instant;

    use super::*;
    use crate::config::BusKind;

    const SPANS: usize = 20 * BATCH_SPANS + 1;

    fn config(endpoint: String) -> TraceConfig {
        TraceConfig { endpoint, ratio_permille: 1_000, ..TraceConfig::default() }
    }

    fn origin() -> Origin {
        Origin { group: "g".to_owned(), actors: Vec::new(), bus: BusKind::Memory }
    }

    fn fill(recorder: &Recorder) {
        let span = Span::new("open", OpId::default(), recorder.begin_trace(), Time { ns: 0 }, Time { ns: 1 });
        recorder.told(Address::Index, vec![span; SPANS].into_iter());
    }

    /// What a scripted collector does with a batch.
    #[derive(Clone, Copy, Debug)]
    enum Does {
        Takes,
        Refuses,
        Nothing,
    }

    #[derive(Debug)]
    struct Scripted {
        does: Does,
        asked: Arc<AtomicU64>,
        first: Arc<Notify>,
    }

    impl SpanExporter for Scripted {
        async fn export(&self, _: Vec<SpanData>) -> OTelSdkResult {
            self.asked.fetch_add(1, Ordering::Relaxed);
            self.first.notify_one();
            match self.does {
                Does::Takes => Ok(()),
                Does::Refuses => Err(OTelSdkError::InternalFailure("away".to_owned())),
                Does::Nothing => std::future::pending().await,
            }
        }
    }

    /// Fills an outbox, ends its exporter once it has asked for the first time; how often it asked in all, and what
    /// became of the spans.
    async fn ended(does: Does) -> (u64, u64, u64) {
        let recorder = Arc::new(Recorder::new(&config(String::new()), origin(), Clock::start()));
        let writer = Writer::new(&recorder.origin, crate::config::TraceConfig::default().layers, recorder.now());
        let (asked, first) = (Arc::new(AtomicU64::new(0)), Arc::new(Notify::new()));
        let exporter = Scripted { does, asked: asked.clone(), first: first.clone() };
        fill(&recorder);
        let (stop, stopped) = oneshot::channel();
        let exports = tokio::spawn(Exports::new(recorder.clone(), writer, exporter).run(stopped));
        first.notified().await;
        stop.send(()).unwrap();
        timeout(2 * STOP_MAX, exports).await.expect("the end is bounded").unwrap();
        let figures = recorder.figures();
        (asked.load(Ordering::Relaxed), figures.exported, figures.lost)
    }

    #[tokio::test]
    async fn the_end_exports_all_that_is_taken() {
        assert_eq!(ended(Does::Takes).await, (21, SPANS as u64, 0));
    }

    #[tokio::test]
    async fn a_collector_that_refuses_is_asked_once_more_at_the_end() {
        assert_eq!(ended(Does::Refuses).await, (2, 0, SPANS as u64));
    }

    #[tokio::test]
    async fn the_end_is_seen_while_an_export_is_under_way() {
        assert_eq!(ended(Does::Nothing).await, (1, 0, SPANS as u64));
    }

    #[tokio::test]
    async fn what_no_collector_takes_is_lost_and_counted_and_the_end_is_bounded() {
        // A port that was free a moment ago and is again.
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let running = Running::start(&config(format!("http://127.0.0.1:{port}")), origin(), Clock::start()).unwrap();
        fill(running.recorder());
        let stopping = Instant::now();
        running.stop().await;
        assert!(stopping.elapsed() < 2 * STOP_MAX, "{:?}", stopping.elapsed());
        let figures = running.recorder().figures();
        assert_eq!((figures.exported, figures.lost), (0, SPANS as u64));
    }
}
