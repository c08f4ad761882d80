//! One machine as an actix actor: its inbox is a stream of frames, its clock one timer.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use actix::{Actor, ActorContext, AsyncContext, Context, Handler, Message, SpawnHandle, StreamHandler};
use futures_util::Stream;
use hicached_actors::host::{Host, Output};
use hicached_actors::machine::{Effect, Machine};
use hicached_actors::protocol::{
    Address, Answer, Bin, Busy, Envelope, Incarnation, OpIds, Refusal, Time, VERSION, encode,
};

use super::clock::Clock;
use super::post::{Post, TRACE_HEADER};
use crate::bus::{BusError, BusyReply, Frame, Inbox, Served, inbox};

/// What a machine does before its first message.
pub type Start<M> = Box<dyn FnOnce(&mut M, Time, &mut Vec<Effect>) + Send>;

/// A machine, its inbox and its timer.
pub struct Hosted<M: Machine> {
    host: Host<M>,
    address: Address,
    post: Arc<Post>,
    clock: Clock,
    start: Option<Start<M>>,
    inbox: Option<Inbox>,
    _served: Served,
    out: Output,
    armed: Option<(Time, SpawnHandle)>,
    marks: BTreeMap<&'static str, u64>,
}

/// Asks an actor for its named figures.
#[derive(Clone, Copy, Debug)]
pub struct Figures;

impl Message for Figures {
    type Result = Vec<(&'static str, u64)>;
}

/// Something happened outside that the machine finds when it is woken: a copy ended, a word passed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nudge;

impl Message for Nudge {
    type Result = ();
}

/// Ends an actor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stop;

impl Message for Stop {
    type Result = ();
}

impl<M: Machine + Unpin + 'static> Hosted<M> {
    /// Serves the subject of `address` for `host`. Messages wait in the inbox until the actor starts.
    ///
    /// # Errors
    /// Those of [`crate::bus::Bus::serve`].
    pub async fn serve(
        host: Host<M>,
        address: Address,
        post: Arc<Post>,
        clock: Clock,
        inbox_frames: usize,
    ) -> Result<Self, BusError> {
        let (sender, inbox) = inbox(inbox_frames, Some(busy_reply(address, inbox_frames)));
        let subject = post.subject(address).cloned().ok_or(BusError::Closed)?;
        let served = post.bus().serve(&subject, sender).await?;
        Ok(Self {
            host,
            address,
            post,
            clock,
            start: None,
            inbox: Some(inbox),
            _served: served,
            out: Output::default(),
            armed: None,
            marks: BTreeMap::new(),
        })
    }

    /// Runs `start` on the machine before its first message.
    #[must_use]
    pub fn starting_with(mut self, start: Start<M>) -> Self {
        self.start = Some(start);
        self
    }

    fn wake(&mut self, ctx: &mut Context<Self>) {
        let guard = EndProcess(self.address);
        self.armed = None;
        self.host.wake(self.clock.now(), &mut self.out);
        std::mem::forget(guard);
        self.finish(ctx);
    }

    /// Sends what came out and arms the timer. A timer that is armed too early is left: it finds nothing due,
    /// which costs less than arming it anew for every message.
    fn finish(&mut self, ctx: &mut Context<Self>) {
        for parcel in self.out.parcels.drain(..) {
            self.post.send(parcel);
        }
        for (op, name, value) in self.out.marks.drain(..) {
            tracing::debug!(target: "hicached::op", actor = %self.address, ?op, mark = name, value);
            *self.marks.entry(name).or_insert(0) += value;
        }
        let Some((at, why)) = self.host.next_deadline() else { return };
        if self.armed.is_some_and(|(armed, _)| armed <= at) {
            return;
        }
        if let Some((_, timer)) = self.armed.take() {
            ctx.cancel_future(timer);
        }
        let pause = Clock::until(self.clock.now(), at);
        tracing::trace!(target: "hicached::timer", actor = %self.address, why, ?pause);
        let timer = ctx.run_later(pause, |actor, ctx| actor.wake(ctx));
        self.armed = Some((at, timer));
    }
}

impl<M: Machine + Unpin + 'static> Actor for Hosted<M> {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        if let Some(inbox) = self.inbox.take() {
            ctx.add_stream(Frames(inbox));
        }
        if let Some(start) = self.start.take() {
            let (now, guard) = (self.clock.now(), EndProcess(self.address));
            self.host.with(&mut self.out, |machine, effects| start(machine, now, effects));
            std::mem::forget(guard);
        }
        self.finish(ctx);
    }
}

impl<M: Machine + Unpin + 'static> StreamHandler<Frame> for Hosted<M> {
    fn handle(&mut self, frame: Frame, ctx: &mut Self::Context) {
        let span =
            tracing::debug_span!(target: "hicached::op", "message", actor = %self.address, bytes = frame.payload.len());
        let _entered = span.enter();
        let guard = EndProcess(self.address);
        let trace = frame.headers.get(TRACE_HEADER).map(Arc::from);
        self.host.deliver(self.clock.now(), &frame.payload, frame.reply_to, trace, &mut self.out);
        std::mem::forget(guard);
        self.finish(ctx);
    }

    /// The bus was closed: nothing can come any more.
    fn finished(&mut self, ctx: &mut Self::Context) {
        ctx.stop();
    }
}

impl<M: Machine + Unpin + 'static> Handler<Figures> for Hosted<M> {
    type Result = Vec<(&'static str, u64)>;

    fn handle(&mut self, _: Figures, _: &mut Self::Context) -> Self::Result {
        let mut figures = self.host.counters();
        figures.extend(self.marks.iter().map(|(name, value)| (*name, *value)));
        figures
    }
}

impl<M: Machine + Unpin + 'static> Handler<Nudge> for Hosted<M> {
    type Result = ();

    fn handle(&mut self, _: Nudge, ctx: &mut Self::Context) {
        self.wake(ctx);
    }
}

impl<M: Machine + Unpin + 'static> Handler<Stop> for Hosted<M> {
    type Result = ();

    fn handle(&mut self, _: Stop, ctx: &mut Self::Context) {
        ctx.stop();
    }
}

impl<M: Machine> std::fmt::Debug for Hosted<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hosted").field("address", &self.address).finish_non_exhaustive()
    }
}

/// An inbox as actix wants it.
struct Frames(Inbox);

impl Stream for Frames {
    type Item = Frame;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Option<Frame>> {
        self.0.poll_recv(cx)
    }
}

/// Ends the process when the code it guards panics; forgotten when that code returns. Tokio would swallow the
/// panic with the task and leave a group without one of its machines.
struct EndProcess(Address);

impl Drop for EndProcess {
    fn drop(&mut self) {
        eprintln!("hicached: {} contradicts itself, the process ends", self.0);
        std::process::abort();
    }
}

/// Tells whoever asked that the inbox of `address` is full.
fn busy_reply(address: Address, bound: usize) -> BusyReply {
    Arc::new(move |frame| {
        frame.reply_to.as_ref()?;
        let request = Envelope::decode(&frame.payload).ok()?;
        let queue = format!("{address} inbox");
        let answer = Answer::Refused(Refusal::Busy(Busy { queue, bound: bound as u64, retry_ms: BUSY_RETRY_MS }));
        let envelope = Envelope {
            version: VERSION,
            kind: answer.code().to_owned(),
            id: OpIds::new(Incarnation::default()).draw(),
            op: request.op,
            sender: address.to_string(),
            incarnation: request.control,
            control: request.control,
            seq: 0,
            urgent: false,
            remaining_ms: 0,
            body: Bin(answer.encode_body()),
        };
        Some(encode(&envelope).into())
    })
}

/// A full inbox is worked off in less.
const BUSY_RETRY_MS: u32 = 20;
