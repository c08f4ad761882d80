//! A collector inside a test: takes OTLP over gRPC on loopback and keeps what it got.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{TraceService, TraceServiceServer};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::Span;
use tokio::task::JoinHandle;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

/// A span and the process it came from.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    pub(crate) span: Span,
    pub(crate) resource: Vec<KeyValue>,
}

/// A running collector. Dropping it ends it.
pub(crate) struct Receiver {
    pub(crate) endpoint: String,
    taken: Arc<Mutex<Vec<Received>>>,
    task: JoinHandle<()>,
}

#[derive(Clone)]
struct Taking(Arc<Mutex<Vec<Received>>>);

#[tonic::async_trait]
impl TraceService for Taking {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let mut taken = self.0.lock().unwrap();
        for of_process in request.into_inner().resource_spans {
            let resource = of_process.resource.unwrap_or_default().attributes;
            for span in of_process.scope_spans.into_iter().flat_map(|of_scope| of_scope.spans) {
                assert_eq!(
                    (span.dropped_attributes_count, span.dropped_events_count, span.dropped_links_count),
                    (0, 0, 0),
                    "{span:?}"
                );
                taken.push(Received { span, resource: resource.clone() });
            }
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Receiver {
    pub(crate) async fn start() -> Self {
        let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let endpoint = format!("http://{}", incoming.local_addr().unwrap());
        let taken = Arc::<Mutex<Vec<Received>>>::default();
        let service = TraceServiceServer::new(Taking(taken.clone()));
        let served = tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming);
        let task = tokio::spawn(async move { served.await.unwrap() });
        Self { endpoint, taken, task }
    }

    /// Everything so far.
    pub(crate) fn spans(&self) -> Spans {
        Spans(self.taken.lock().unwrap().clone())
    }

    /// Everything, once `enough` of it is there.
    pub(crate) async fn spans_when(&self, enough: impl Fn(&Spans) -> bool) -> Spans {
        let until = tokio::time::Instant::now() + LONG;
        loop {
            let spans = self.spans();
            if enough(&spans) {
                return spans;
            }
            assert!(tokio::time::Instant::now() < until, "not in {LONG:?}: {spans}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(30);

/// Spans of one or more traces.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spans(pub(crate) Vec<Received>);

impl Spans {
    /// By trace.
    pub(crate) fn traces(&self) -> BTreeMap<Vec<u8>, Self> {
        let mut traces = BTreeMap::<_, Self>::new();
        for received in &self.0 {
            traces.entry(received.span.trace_id.clone()).or_default().0.push(received.clone());
        }
        traces
    }

    pub(crate) fn named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Span> {
        self.spans().filter(move |span| span.name == name)
    }

    pub(crate) fn spans(&self) -> impl Iterator<Item = &Span> {
        self.0.iter().map(|received| &received.span)
    }

    /// Spans without a parent.
    pub(crate) fn roots(&self) -> Vec<&Span> {
        self.spans().filter(|span| span.parent_span_id.is_empty()).collect()
    }

    /// Every span has an id of its own, and a parent that is here as well, if any.
    pub(crate) fn assert_whole(&self) {
        let ids: BTreeSet<_> = self.spans().map(|span| (&span.trace_id, &span.span_id)).collect();
        assert_eq!(ids.len(), self.0.len(), "two spans of one id in {self}");
        for span in self.spans().filter(|span| !span.parent_span_id.is_empty()) {
            let parent = (&span.trace_id, &span.parent_span_id);
            assert!(ids.contains(&parent), "{} is an orphan in {self}", span.name);
        }
    }

    /// What hangs on what, a line for each span.
    fn write(&self, f: &mut std::fmt::Formatter<'_>, of: &[u8], depth: usize) -> std::fmt::Result {
        let mut below: Vec<&Span> = self.spans().filter(|span| span.parent_span_id == of).collect();
        below.sort_by_key(|span| span.start_time_unix_nano);
        for span in below {
            let fault = span.status.as_ref().map_or("", |status| &status.message);
            let (actor, rank) = (text(span, "hicached.actor"), text(span, "hicached.rank"));
            let us = (span.end_time_unix_nano - span.start_time_unix_nano) / 1_000;
            writeln!(f, "{:depth$}{} @{actor}{rank} {us} us {fault} +{} links", "", span.name, span.links.len())?;
            self.write(f, &span.span_id, depth + 2)?;
        }
        Ok(())
    }
}

impl std::fmt::Display for Spans {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (id, trace) in self.traces() {
            writeln!(f, "trace {:032x}", u128::from_be_bytes(id.try_into().unwrap()))?;
            trace.write(f, &[], 2)?;
        }
        Ok(())
    }
}

/// An attribute as text, empty when there is none.
pub(crate) fn text(span: &Span, name: &str) -> String {
    value(&span.attributes, name)
}

/// A value by its name as text, empty when there is none.
pub(crate) fn value(attributes: &[KeyValue], name: &str) -> String {
    let found = attributes.iter().find(|attribute| attribute.key == name);
    match found.and_then(|attribute| attribute.value.as_ref()) {
        Some(AnyValue { value: Some(Value::StringValue(text)) }) => text.clone(),
        Some(AnyValue { value: Some(Value::IntValue(number)) }) => number.to_string(),
        Some(AnyValue { value: Some(Value::BoolValue(flag)) }) => flag.to_string(),
        Some(other) => format!("{other:?}"),
        None => String::new(),
    }
}
