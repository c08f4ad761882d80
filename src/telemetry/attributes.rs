//! How a record is written down: names and attributes as the semantic conventions for messaging want them, and what
//! the project adds under `hicached.`.

use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use hicached_actors::protocol::{Address, OpId, Time};
use hicached_actors::span::{Fact, Sampling, Span, SpanPart, TraceContext};
use hicached_client::spans::{ClientSpan, Role};
use opentelemetry::trace::{Link, SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{Array, InstrumentationScope, KeyValue, StringValue, Value};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};

use super::Origin;
use super::outbox::{Handled, Record};

/// Writes records of one process.
#[derive(Debug)]
pub(super) struct Writer {
    group: StringValue,
    system: &'static str,
    layers: bool,
    /// The wall time of the clock's zero.
    began: SystemTime,
    scope: InstrumentationScope,
}

impl Writer {
    /// For records whose clock read `now` just now; parts of spans are written with `layers`.
    pub(super) fn new(origin: &Origin, layers: bool, now: Time) -> Self {
        let scope = InstrumentationScope::builder("hicached").with_version(env!("CARGO_PKG_VERSION")).build();
        let began = SystemTime::now().checked_sub(Duration::from_nanos(now.ns)).unwrap_or(SystemTime::UNIX_EPOCH);
        Self { group: origin.group.clone().into(), system: origin.bus.name(), layers, began, scope }
    }

    /// The spans of `record`: one, and one more for each part that is wanted.
    pub(super) fn write(&self, record: Record, out: &mut Vec<SpanData>) {
        match record {
            Record::Handled(handled) => out.push(self.handled(*handled)),
            Record::Machine { actor, span } => self.machine(actor, *span, out),
            Record::Client(span) => out.push(self.client(*span)),
        }
    }

    fn handled(&self, handled: Handled) -> SpanData {
        let Handled { context, parent, actor, subject, kind, kind_is_known, message, op, sender, bytes, .. } = handled;
        // A name is one of few: what a stranger calls his message is an attribute.
        let name = if kind_is_known { format!("process {kind}").into() } else { Cow::Borrowed("process") };
        let mut attributes = self.messaging("process", &subject);
        attributes.extend([
            KeyValue::new("messaging.message.id", uuid(message)),
            KeyValue::new("messaging.message.body.size", bytes as i64),
            KeyValue::new("hicached.kind", kind),
            KeyValue::new("hicached.sender", sender),
            KeyValue::new("hicached.op", uuid(op)),
        ]);
        attributes.extend(member(actor));
        let mut span = self.span(SpanKind::Consumer, name, &context, parent, (handled.began, handled.ended));
        span.parent_span_is_remote = parent.is_some();
        span.links = links(&handled.links);
        finish(span, attributes, handled.fault.map(Cow::Owned))
    }

    fn machine(&self, actor: Address, span: Span, out: &mut Vec<SpanData>) {
        let (context, times) = (span.context(), (span.began, span.ended));
        let mut attributes = vec![KeyValue::new("hicached.group", self.group.clone())];
        attributes.push(KeyValue::new("hicached.op", uuid(span.op)));
        attributes.extend(member(actor));
        attributes.extend(span.facts.into_iter().map(fact));
        let name = Cow::Borrowed(span.name);
        let mut data = self.span(SpanKind::Internal, name, &context, Some(span.parent.span_id), times);
        data.links = links(&span.links);
        out.push(finish(data, attributes, span.fault.map(Cow::Owned)));
        if self.layers {
            out.extend((1..).zip(span.parts).map(|(nth, part)| self.part(actor, &context, nth, part)));
        }
    }

    /// A part hangs on the span it is part of; its id follows from that one's.
    fn part(&self, actor: Address, whole: &TraceContext, nth: u64, part: SpanPart) -> SpanData {
        let mut state = u64::from_be_bytes(whole.span_id) ^ nth;
        let span_id = (hicached_actors::calls::draw(&mut state) | 1).to_be_bytes();
        let context = TraceContext { span_id, ..whole.clone() };
        let mut attributes = vec![KeyValue::new("hicached.group", self.group.clone())];
        attributes.extend(member(actor));
        attributes.extend(part.facts.into_iter().map(fact));
        let times = (part.began, part.ended);
        let data = self.span(SpanKind::Internal, Cow::Borrowed(part.name), &context, Some(whole.span_id), times);
        finish(data, attributes, None)
    }

    fn client(&self, span: ClientSpan) -> SpanData {
        let ClientSpan { context, parent, role, op, began, ended, facts, fault } = span;
        let (kind, name, mut attributes) = match role {
            Role::Request => (
                SpanKind::Internal,
                Cow::Borrowed("request"),
                vec![KeyValue::new("hicached.group", self.group.clone())],
            ),
            Role::Call { kind, subject } => {
                (SpanKind::Client, format!("send {kind}").into(), self.sent(kind, &subject))
            }
            Role::Tell { kind, subject } => {
                (SpanKind::Producer, format!("send {kind}").into(), self.sent(kind, &subject))
            }
        };
        attributes.push(KeyValue::new("hicached.actor", "engine"));
        if op != OpId::default() {
            attributes.push(KeyValue::new("hicached.op", uuid(op)));
        }
        attributes.extend(facts.into_iter().map(fact));
        finish(self.span(kind, name, &context, parent, (began, ended)), attributes, fault.map(Cow::Borrowed))
    }

    fn sent(&self, kind: &'static str, subject: &str) -> Vec<KeyValue> {
        let mut attributes = self.messaging("send", subject);
        attributes.push(KeyValue::new("hicached.kind", kind));
        attributes
    }

    fn messaging(&self, operation: &'static str, subject: &str) -> Vec<KeyValue> {
        vec![
            KeyValue::new("messaging.system", self.system),
            KeyValue::new("messaging.operation.name", operation),
            KeyValue::new("messaging.operation.type", operation),
            KeyValue::new("messaging.destination.name", subject.to_owned()),
            KeyValue::new("hicached.group", self.group.clone()),
        ]
    }

    fn span(
        &self,
        span_kind: SpanKind,
        name: Cow<'static, str>,
        context: &TraceContext,
        parent: Option<[u8; 8]>,
        (began, ended): (Time, Time),
    ) -> SpanData {
        SpanData {
            span_context: exported(context),
            parent_span_id: parent.map_or(SpanId::INVALID, SpanId::from_bytes),
            parent_span_is_remote: false,
            span_kind,
            name,
            start_time: self.wall(began),
            end_time: self.wall(ended.max(began)),
            attributes: Vec::new(),
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: Status::Unset,
            instrumentation_scope: self.scope.clone(),
        }
    }

    fn wall(&self, at: Time) -> SystemTime {
        self.began.checked_add(Duration::from_nanos(at.ns)).unwrap_or(self.began)
    }
}

fn finish(mut span: SpanData, attributes: Vec<KeyValue>, fault: Option<Cow<'static, str>>) -> SpanData {
    span.attributes = attributes;
    if let Some(code) = fault {
        span.attributes.push(KeyValue::new("error.type", code.clone()));
        span.status = Status::error(code);
    }
    span
}

/// Who: the kind of actor, and of a rank its number.
fn member(actor: Address) -> Vec<KeyValue> {
    match actor {
        Address::Rank(rank) => {
            vec![KeyValue::new("hicached.actor", "rank"), KeyValue::new("hicached.rank", i64::from(rank.0))]
        }
        Address::Index
        | Address::Allocator
        | Address::Evictor
        | Address::Writer
        | Address::Loader
        | Address::Sender
        | Address::Receiver
        | Address::Engine => vec![KeyValue::new("hicached.actor", actor.to_string())],
    }
}

fn fact((name, fact): (&'static str, Fact)) -> KeyValue {
    let value = match fact {
        Fact::Count(count) => Value::I64(whole(count)),
        Fact::Counts(counts) => Value::Array(Array::I64(counts.into_iter().map(whole).collect())),
        Fact::Text(text) => Value::String(text.into()),
        Fact::Flag(flag) => Value::Bool(flag),
    };
    KeyValue::new(format!("hicached.{name}"), value)
}

/// OTLP has no unsigned numbers.
fn whole(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn links(to: &[TraceContext]) -> SpanLinks {
    let mut links = SpanLinks::default();
    links.links = to.iter().map(|context| Link::with_context(exported(context))).collect();
    links
}

/// What is exported is sampled, whatever was known of it at first.
fn exported(context: &TraceContext) -> SpanContext {
    let TraceContext { trace_id, span_id, sampling } = context;
    let flags = match sampling {
        Sampling::Sampled | Sampling::Late => TraceFlags::SAMPLED,
    };
    let (trace, span) = (TraceId::from_bytes(*trace_id), SpanId::from_bytes(*span_id));
    SpanContext::new(trace, span, flags, false, TraceState::NONE)
}

fn uuid(op: OpId) -> String {
    uuid::Uuid::from_bytes(op.0).to_string()
}

#[cfg(test)]
mod tests {
    use hicached_actors::protocol::Rank;

    use super::*;
    use crate::config::BusKind;

    fn of_rank() -> Record {
        let parent = TraceContext { trace_id: [1; 16], span_id: [2; 8], sampling: Sampling::Late };
        let (began, ended) = (Time { ns: 10 }, Time { ns: 30 });
        let mut span = Span::new("backup.rank", OpId([3; 16]), parent, began, ended).count("copy.pages", 5_u64);
        let part =
            |ns: u64| SpanPart { name: "layer", began: Time { ns }, ended: Time { ns: ns + 5 }, facts: Vec::new() };
        span.parts = vec![part(10), part(20)];
        Record::Machine { actor: Address::Rank(Rank(4)), span: Box::new(span.fault(Some("CopyFailed"))) }
    }

    fn written(layers: bool) -> Vec<SpanData> {
        let origin = Origin { group: "g".to_owned(), actors: Vec::new(), bus: BusKind::Nats };
        let mut out = Vec::new();
        Writer::new(&origin, layers, Time { ns: 30 }).write(of_rank(), &mut out);
        out
    }

    #[test]
    fn parts_are_spans_where_they_are_wanted_and_hang_on_the_whole() {
        assert_eq!(written(false).len(), 1);
        let with = written(true);
        let names: Vec<&str> = with.iter().map(|span| span.name.as_ref()).collect();
        assert_eq!(names, ["backup.rank", "layer", "layer"]);
        assert!(with[1..].iter().all(|part| part.parent_span_id == with[0].span_context.span_id()));
        assert_ne!(with[1].span_context.span_id(), with[2].span_context.span_id());
    }

    #[test]
    fn facts_and_faults_are_written_as_they_were_told() {
        let span = written(false).remove(0);
        let value = |name: &str| {
            span.attributes.iter().find(|attribute| attribute.key.as_str() == name).map(|found| found.value.to_string())
        };
        for (name, expected) in [
            ("hicached.copy.pages", "5"),
            ("hicached.actor", "rank"),
            ("hicached.rank", "4"),
            ("hicached.group", "g"),
            ("error.type", "CopyFailed"),
        ] {
            assert_eq!(value(name).as_deref(), Some(expected), "{name}");
        }
        assert_eq!(span.status, Status::error("CopyFailed"));
        assert_eq!(span.end_time, span.start_time + Duration::from_nanos(20));
        assert!(span.span_context.is_sampled(), "what is exported is sampled");
    }
}
