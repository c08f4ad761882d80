//! What the bus carries: a subject, a place to answer to, a few headers and opaque bytes.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use hicached_actors::span::{Parent, TraceContext};

use super::{BusError, Class};

/// Longest subject or reply subject, in bytes. NATS allows 4,096 for a whole control line.
pub const SUBJECT_BYTES_MAX: usize = 512;
/// Most headers of one frame.
pub const HEADERS_MAX: usize = 16;
/// Longest header value, in bytes: what W3C asks to be passed on of a `tracestate`.
pub const HEADER_VALUE_BYTES_MAX: usize = 512;
/// Names of the headers that carry W3C trace context.
const TRACEPARENT: &str = "traceparent";
const TRACESTATE: &str = "tracestate";

/// One message. Cloning it does not copy the payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Where it goes, or of a received frame the subject that is served.
    pub subject: Arc<str>,
    /// Where an answer is expected. [`Bus::request`](super::Bus::request) sets its own.
    pub reply_to: Option<Arc<str>>,
    /// Which connection and which queue it takes.
    pub class: Class,
    /// An answer: the subject is taken as it stands, also when urgent, because a requester named it.
    pub verbatim: bool,
    /// W3C trace context, opaque here.
    pub headers: Headers,
    /// The encoded message.
    pub payload: Bytes,
}

impl Frame {
    /// A normal frame without headers.
    pub fn new(subject: impl Into<Arc<str>>, payload: impl Into<Bytes>) -> Self {
        Self {
            subject: subject.into(),
            reply_to: None,
            class: Class::Normal,
            verbatim: false,
            headers: Headers::default(),
            payload: payload.into(),
        }
    }

    /// The same frame as `class`.
    #[must_use]
    pub fn of_class(mut self, class: Class) -> Self {
        self.class = class;
        self
    }

    /// The answer to this frame, `None` when it asked for none.
    pub fn reply(&self, payload: impl Into<Bytes>) -> Option<Self> {
        let subject = self.reply_to.clone()?;
        let (class, headers) = (self.class, Headers::default());
        Some(Self { subject, reply_to: None, class, verbatim: true, headers, payload: payload.into() })
    }

    /// Bytes that count against [`Bus::payload_bytes_max`](super::Bus::payload_bytes_max).
    pub fn wire_bytes(&self) -> usize {
        self.headers.wire_bytes() + self.payload.len()
    }

    /// The checks every bus makes before sending.
    ///
    /// # Errors
    /// `BadSubject`, `TooLarge`.
    pub fn check(&self, limit: usize) -> Result<(), BusError> {
        check_subject(&self.subject)?;
        if let Some(reply_to) = &self.reply_to {
            check_subject(reply_to)?;
        }
        let bytes = self.wire_bytes();
        if bytes > limit {
            return Err(BusError::TooLarge { bytes, limit });
        }
        Ok(())
    }
}

/// A short list of headers, ordered by name and then by arrival: NATS keeps no order between names. A name may come
/// more than once, and is compared as it is written. An empty list takes no memory and no bytes on the wire.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers(Vec<(Cow<'static, str>, Box<str>)>);

/// A header was not added: the list is full, or the name or value cannot be one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a frame has at most {HEADERS_MAX} headers of printable ASCII, values up to {HEADER_VALUE_BYTES_MAX} bytes")]
pub struct HeadersFull;

impl Headers {
    /// Adds one header. `value` loses blanks around it on the way, as in any NATS client.
    ///
    /// # Errors
    /// More than [`HEADERS_MAX`] headers, a value over [`HEADER_VALUE_BYTES_MAX`], a name or value that is not
    /// printable ASCII, or a name that is empty or has a colon or blank.
    pub fn push(&mut self, name: impl Into<Cow<'static, str>>, value: &str) -> Result<(), HeadersFull> {
        let name = name.into();
        let name_fits = !name.is_empty() && name.bytes().all(|b| b.is_ascii_graphic() && b != b':');
        let value_fits =
            value.len() <= HEADER_VALUE_BYTES_MAX && value.bytes().all(|b| b.is_ascii_graphic() || b == b' ');
        if self.0.len() == HEADERS_MAX || name.len() > HEADER_VALUE_BYTES_MAX || !name_fits || !value_fits {
            return Err(HeadersFull);
        }
        let at = self.0.partition_point(|(have, _)| *have <= name);
        self.0.insert(at, (name, value.trim().into()));
        Ok(())
    }

    /// The headers that carry `trace`.
    pub fn of_trace(trace: &TraceContext) -> Self {
        let mut headers = Self::default();
        let written = headers.push(TRACEPARENT, &trace.traceparent());
        let state = trace.tracestate().map_or(Ok(()), |state| headers.push(TRACESTATE, state));
        written.and(state).expect("two short headers fit");
        headers
    }

    /// The trace context they carry.
    pub fn trace_parent(&self) -> Parent {
        TraceContext::parse(self.get(TRACEPARENT), self.get(TRACESTATE))
    }

    /// The first value of `name`.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.iter().find(|(have, _)| *have == name).map(|(_, value)| value)
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_ref(), value.as_ref()))
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Bytes on the wire: `NATS/1.0`, one line each, one empty line; 0 when there is no header.
    pub fn wire_bytes(&self) -> usize {
        if self.is_empty() {
            return 0;
        }
        let lines: usize = self.iter().map(|(name, value)| name.len() + ": ".len() + value.len() + "\r\n".len()).sum();
        "NATS/1.0\r\n".len() + lines + "\r\n".len()
    }
}

/// Refuses what NATS would not take as a subject to publish to.
///
/// # Errors
/// `BadSubject` when it is empty, over [`SUBJECT_BYTES_MAX`], or has an empty token, a wildcard, or a byte that is
/// not printable ASCII.
pub fn check_subject(subject: &Arc<str>) -> Result<(), BusError> {
    let bytes = subject.as_bytes();
    let mut token_starts = true;
    let mut fits = !bytes.is_empty() && bytes.len() <= SUBJECT_BYTES_MAX;
    for &b in bytes {
        fits &= b.is_ascii_graphic() && b != b'*' && b != b'>' && !(token_starts && b == b'.');
        token_starts = b == b'.';
    }
    if fits && !token_starts { Ok(()) } else { Err(BusError::BadSubject { subject: subject.clone() }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_has_tokens_and_no_wildcards() {
        let long = "a".repeat(SUBJECT_BYTES_MAX + 1);
        for (subject, fits) in [
            ("hicached.v1.g.rank.0", true),
            ("a", true),
            ("", false),
            (".a", false),
            ("a.", false),
            ("a..b", false),
            ("a.*", false),
            ("a.>", false),
            ("a b", false),
            ("a\r\nPUB b 0", false),
            (&long, false),
        ] {
            assert_eq!(check_subject(&subject.into()).is_ok(), fits, "{subject:?}");
        }
    }

    #[test]
    fn header_bytes_are_what_goes_over_the_wire() {
        let mut headers = Headers::default();
        assert_eq!(headers.wire_bytes(), 0);
        headers.push("traceparent", "00-ab-cd-01").unwrap();
        assert_eq!(headers.wire_bytes(), "NATS/1.0\r\ntraceparent: 00-ab-cd-01\r\n\r\n".len());
        assert_eq!(headers.get("traceparent"), Some("00-ab-cd-01"));
    }

    #[test]
    fn a_header_cannot_break_the_line() {
        for (name, value, fits) in [
            ("tracestate", "a=1, b=2", true),
            ("", "x", false),
            ("a:b", "x", false),
            ("a b", "x", false),
            ("a", "x\r\ny: z", false),
            ("a", "\u{e4}", false),
        ] {
            assert_eq!(Headers::default().push(name, value).is_ok(), fits, "{name:?} {value:?}");
        }
        let mut headers = Headers::default();
        for _ in 0..HEADERS_MAX {
            headers.push("a", "b").unwrap();
        }
        assert_eq!(headers.push("a", "b"), Err(HeadersFull));
        assert_eq!(Headers::default().push("a", &"x".repeat(HEADER_VALUE_BYTES_MAX + 1)), Err(HeadersFull));
    }
}
