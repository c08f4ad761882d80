//! One request until its answer: the same op again and again, numbered, jittered, up to a deadline.

use std::time::Duration;

use hicached_actors::calls::draw;
use hicached_actors::host::FIGURES;
use hicached_actors::machine::{Trace, is_urgent};
use hicached_actors::protocol::{
    Address, Answer, Bin, Envelope, Figures, Incarnation, Malformed, OpId, Request, VERSION, encode,
};
use tokio::time::{Instant, sleep};

use super::error::{can_repeat, is_away};
use super::spans::end_call;
use super::{Client, ClientError};
use crate::bus::{BusError, Class, Frame, Headers};

/// What is asked, encoded once for all repeats.
struct Call {
    to: Address,
    op: OpId,
    control: Incarnation,
    kind: &'static str,
    body: Bin,
    trace: Trace,
}

impl Client {
    /// Asks `request` of the index until it is answered or this client's deadline has passed.
    pub(super) async fn ask(&self, op: OpId, request: &Request) -> Result<Answer, ClientError> {
        let control = match request {
            // Who registers joins whichever control group lives.
            Request::Register(_) => Incarnation::default(),
            _ => self.control(),
        };
        let (to, kind, body) = (Address::Index, request.code(), Bin(request.encode_body()));
        let span = self.begin_call(to, op, kind);
        let call = Call { to, op, control, kind, body, trace: self.trace_of(span.as_ref()) };
        let mut repeats = 0;
        let answer = self.repeat(&call, &mut repeats).await;
        end_call(span, repeats, answer.as_ref().err());
        answer
    }

    /// Asks any member for its figures.
    pub(super) async fn ask_figures(&self, of: Address) -> Result<Answer, ClientError> {
        let (control, body) = (Incarnation::default(), Bin(encode(&Figures {})));
        let call = Call { to: of, op: self.draw(), control, kind: FIGURES, body, trace: None };
        self.repeat(&call, &mut 0).await
    }

    /// Sends `call` again and again; `repeats` says how often after the first time.
    async fn repeat(&self, call: &Call, repeats: &mut u32) -> Result<Answer, ClientError> {
        let config = &self.shared.config;
        let started = Instant::now();
        let mut away_since = None;
        for tries in 0.. {
            let left = self.deadline.saturating_sub(started.elapsed());
            let frame = self.frame(call, left)?;
            let subject = frame.subject.clone();
            let error = match self.shared.bus.request(frame, left.min(config.attempt)).await {
                Ok(reply) => return self.read(call.op, &reply),
                Err(error) => error,
            };
            if !can_repeat(&error) {
                return Err(error.into());
            }
            away_since = is_away(&error).then(|| away_since.unwrap_or_else(Instant::now));
            if away_since.is_some_and(|since| since.elapsed() >= config.away_after) {
                return Err(error.into());
            }
            let pause = self.pause(tries);
            if started.elapsed() + pause >= self.deadline {
                let after_ms = self.deadline.as_millis() as u64;
                return Err(if is_away(&error) { error } else { BusError::TimedOut { subject, after_ms } }.into());
            }
            sleep(pause).await;
            self.lock().counts.repeats += 1;
            *repeats += 1;
        }
        unreachable!("the tries do not end before the deadline")
    }

    /// Hands one message over without waiting for anything.
    pub(super) fn tell(&self, to: Address, op: OpId, kind: &'static str, body: Vec<u8>) -> Result<(), ClientError> {
        let span = self.begin_tell(to, op, kind);
        let trace = self.trace_of(span.as_ref());
        let call = Call { to, op, control: self.control(), kind, body: Bin(body), trace };
        let frame = self.frame(&call, Duration::ZERO)?;
        let sent = self.shared.bus.send(frame).map_err(ClientError::from);
        if let Some(span) = span {
            span.end(Vec::new(), sent.as_ref().err().map(ClientError::code));
        }
        sent
    }

    fn frame(&self, call: &Call, left: Duration) -> Result<Frame, ClientError> {
        let shared = &*self.shared;
        let urgent = is_urgent(call.kind);
        let (id, seq) = {
            let mut state = self.lock();
            let seq = state.given.entry((call.to, urgent)).or_insert(0);
            *seq += 1;
            let seq = *seq;
            (state.ids.draw(), seq)
        };
        let envelope = Envelope {
            version: VERSION,
            kind: call.kind.to_owned(),
            id,
            op: call.op,
            sender: Address::Engine.to_string(),
            incarnation: shared.config.engine,
            control: call.control,
            seq,
            urgent,
            remaining_ms: left.as_millis().try_into().unwrap_or(u32::MAX),
            body: call.body.clone(),
        };
        let bytes = envelope.encode(shared.bus.payload_bytes_max())?;
        let class = if urgent { Class::Urgent } else { Class::Normal };
        let mut frame = Frame::new(call.to.subject(&shared.config.group), bytes).of_class(class);
        if let Some(trace) = &call.trace {
            frame.headers = Headers::of_trace(trace);
        }
        Ok(frame)
    }

    fn read(&self, op: OpId, reply: &Frame) -> Result<Answer, ClientError> {
        let envelope = Envelope::decode(&reply.payload).map_err(|refusal| {
            let found = format!("{refusal:?}");
            ClientError::Decode(Malformed::new("answer", found, "an envelope"))
        })?;
        // A receiver that could not read the envelope knows no op.
        if envelope.op != op && envelope.op != OpId::default() {
            let (got, asked) = (format!("{:?}", envelope.op), format!("{op:?}"));
            return Err(ClientError::Decode(Malformed::new("op", got, asked)));
        }
        match Answer::decode_body(&envelope.kind, &envelope.body.0) {
            Some(Ok(Answer::Refused(refusal))) => {
                *self.lock().counts.refusals.entry(refusal.code().to_owned()).or_insert(0) += 1;
                Err(refusal.into())
            }
            Some(Ok(answer)) => Ok(answer),
            Some(Err(malformed)) => Err(ClientError::Decode(malformed)),
            None => Err(ClientError::Decode(Malformed::new("kind", envelope.kind, "a kind of answer"))),
        }
    }

    /// The pause after `tries` repeats: doubling up to a bound, three quarters to all of it.
    fn pause(&self, tries: u32) -> Duration {
        let whole = (PAUSE_MS_MIN << tries.min(8)).min(PAUSE_MS_MAX);
        Duration::from_millis(whole - draw(&mut self.lock().chance) % (whole / 4))
    }
}

/// First pause: several round trips of a loopback broker.
const PAUSE_MS_MIN: u64 = 20;
/// Longest pause: an engine notices within a second that the daemon is back.
const PAUSE_MS_MAX: u64 = 1_000;
