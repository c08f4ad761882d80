//! One member of a group as an actix actor: its inbox is a stream of frames, its clock one timer.

use std::io::Write as _;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context as TaskContext, Poll};

use actix::{Actor, ActorContext, AsyncContext, Context, Handler, Message, Recipient, SpawnHandle, StreamHandler};
use futures_util::Stream;
use hicached_actors::host::{Beside, Host, Output};
use hicached_actors::machine::{Machine, Trace};
use hicached_actors::protocol::{
    Address, Answer, Bin, Busy, Envelope, Incarnation, OpIds, Refusal, Time, VERSION, encode,
};
use tokio::sync::{Notify, oneshot};

use super::clock::Clock;
use super::post::Post;
use crate::bus::{BusError, BusyReply, Frame, Inbox, Served, inbox};
use crate::crash::{Moment, Passage};
use crate::rank::RankHost;
use crate::telemetry::Handling;

/// What an actor drives: bytes in, bytes out, a deadline to arm.
pub trait Hostable: Unpin + 'static {
    /// Takes the bytes of one message.
    fn deliver(&mut self, now: Time, bytes: &[u8], reply: Option<Arc<str>>, trace: Trace, out: &mut Output);

    /// Acts on time.
    fn wake(&mut self, now: Time, out: &mut Output);

    /// Takes in what happened outside: its bell was rung.
    fn collect(&mut self, now: Time, out: &mut Output);

    /// The earliest deadline and what it is for.
    fn next_deadline(&self) -> Option<(Time, &'static str)>;

    /// Stops what runs outside; an end of it is collected.
    fn stop(&mut self);

    /// Whether nothing runs outside.
    fn is_idle(&mut self) -> bool;

    /// Whether its life is over, and another one is to be hosted in its place.
    fn is_over(&self) -> bool;

    /// Tells these figures with its own.
    fn set_beside(&mut self, figures: Beside);
}

impl<M: Machine + Unpin + 'static> Hostable for Host<M> {
    fn deliver(&mut self, now: Time, bytes: &[u8], reply: Option<Arc<str>>, trace: Trace, out: &mut Output) {
        Self::deliver(self, now, bytes, reply, trace, out);
    }

    fn wake(&mut self, now: Time, out: &mut Output) {
        Self::wake(self, now, out);
    }

    /// Nothing happens to a machine but its messages.
    fn collect(&mut self, _: Time, _: &mut Output) {}

    fn next_deadline(&self) -> Option<(Time, &'static str)> {
        Self::next_deadline(self)
    }

    /// Nothing runs for a machine.
    fn stop(&mut self) {}

    fn is_idle(&mut self) -> bool {
        true
    }

    fn is_over(&self) -> bool {
        self.machine.is_over()
    }

    fn set_beside(&mut self, figures: Beside) {
        Self::set_beside(self, figures);
    }
}

impl Hostable for RankHost {
    fn deliver(&mut self, now: Time, bytes: &[u8], reply: Option<Arc<str>>, trace: Trace, out: &mut Output) {
        Self::deliver(self, now, bytes, reply, trace, out);
    }

    fn wake(&mut self, now: Time, out: &mut Output) {
        Self::wake(self, now, out);
    }

    fn collect(&mut self, now: Time, out: &mut Output) {
        Self::collect(self, now, out);
    }

    fn next_deadline(&self) -> Option<(Time, &'static str)> {
        Self::next_deadline(self)
    }

    fn stop(&mut self) {
        self.machine().stop_all("the process ends");
    }

    fn is_idle(&mut self) -> bool {
        self.machine().is_idle()
    }

    /// A rank lives as long as its process.
    fn is_over(&self) -> bool {
        false
    }

    fn set_beside(&mut self, figures: Beside) {
        Self::set_beside(self, figures);
    }
}

/// What is done before the first message.
pub type Start<H> = Box<dyn FnOnce(&mut H, Time, &mut Output) + Send>;

/// A member, its inbox and its timer.
pub struct Hosted<H> {
    host: H,
    address: Address,
    post: Arc<Post>,
    clock: Clock,
    start: Option<Start<H>>,
    bell: Option<Arc<Bell>>,
    over: Option<Arc<Notify>>,
    inbox: Option<Inbox>,
    _served: Served,
    out: Output,
    armed: Option<(Time, SpawnHandle)>,
    /// Last, so that what this actor served is nobody's when it is dropped.
    stopping: Option<oneshot::Sender<()>>,
}

/// Rung from any thread when something happened that its actor has to collect; rings once until it is heard.
#[derive(Debug, Default)]
pub struct Bell {
    rung: AtomicBool,
    hears: OnceLock<Recipient<Rung>>,
}

impl Bell {
    /// Rings.
    pub fn ring(&self) {
        if !self.rung.swap(true, Ordering::AcqRel)
            && let Some(hears) = self.hears.get()
        {
            hears.do_send(Rung);
        }
    }

    /// `actor` hears it from now on, and what was rung before.
    fn heard_by(&self, actor: Recipient<Rung>) {
        if self.hears.set(actor.clone()).is_ok() {
            actor.do_send(Rung);
        }
    }

    /// What rings from now on is new.
    fn hear(&self) {
        self.rung.store(false, Ordering::Release);
    }
}

/// A bell was rung.
#[derive(Clone, Copy, Debug)]
pub struct Rung;

impl Message for Rung {
    type Result = ();
}

/// Ends an actor once nothing runs for it outside. Nothing is sent: who waits learns of the end when the actor drops it.
#[derive(Debug)]
pub(super) struct Stop(pub(super) oneshot::Sender<()>);

impl Message for Stop {
    type Result = ();
}

impl<H: Hostable> Hosted<H> {
    /// Serves the subject of `address` for `host`. Messages wait in the inbox until the actor starts.
    ///
    /// # Errors
    /// Those of [`crate::bus::Bus::serve`].
    pub async fn serve(
        mut host: H,
        address: Address,
        post: Arc<Post>,
        clock: Clock,
        inbox_frames: usize,
    ) -> Result<Self, BusError> {
        let (sender, inbox) = inbox(inbox_frames, Some(busy_reply(address, inbox_frames)));
        let subject = post.subject(address).cloned().ok_or(BusError::Closed)?;
        let served = post.bus().serve(&subject, sender).await?;
        let beside = post.clone();
        host.set_beside(Beside(Arc::new(move || beside.named_figures())));
        Ok(Self {
            host,
            address,
            post,
            clock,
            start: None,
            bell: None,
            over: None,
            inbox: Some(inbox),
            _served: served,
            out: Output::default(),
            armed: None,
            stopping: None,
        })
    }

    /// Does `start` before the first message.
    #[must_use]
    pub fn starting_with(mut self, start: Start<H>) -> Self {
        self.start = Some(start);
        self
    }

    /// Collects when `bell` is rung.
    #[must_use]
    pub fn hearing(mut self, bell: Arc<Bell>) -> Self {
        self.bell = Some(bell);
        self
    }

    /// Tells `over` once when the life of what is hosted is over.
    #[must_use]
    pub fn telling(mut self, over: Arc<Notify>) -> Self {
        self.over = Some(over);
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
        }
        if let Some(recorder) = self.post.telemetry().recorder() {
            recorder.told(self.address, self.out.spans.drain(..));
            // What is told of at a deadline serves the op that waited for it: there is no message to link.
            self.out.links.clear();
        }
        if self.stopping.is_some() && self.host.is_idle() {
            return ctx.stop();
        }
        if self.host.is_over()
            && let Some(over) = self.over.take()
        {
            over.notify_one();
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

impl<H: Hostable> Actor for Hosted<H> {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        if let Some(inbox) = self.inbox.take() {
            ctx.add_stream(Frames(inbox));
        }
        if let Some(start) = self.start.take() {
            let guard = EndProcess(self.address);
            start(&mut self.host, self.clock.now(), &mut self.out);
            std::mem::forget(guard);
        }
        if let Some(bell) = &self.bell {
            bell.heard_by(ctx.address().recipient());
        }
        self.finish(ctx);
    }
}

impl<H: Hostable> StreamHandler<Frame> for Hosted<H> {
    fn handle(&mut self, frame: Frame, ctx: &mut Self::Context) {
        if self.stopping.is_some() {
            // As if the process had gone already: nothing new begins.
            return;
        }
        let guard = EndProcess(self.address);
        tracing::trace!(target: "hicached::op", actor = %self.address, bytes = frame.payload.len(), "taken");
        let passage = Passage::of(self.address, &frame.payload);
        passage.at(Moment::Taken);
        let now = self.clock.now();
        let handling = self.post.telemetry().recorder().and_then(|it| it.begin(self.address, &frame, now));
        let trace = handling.as_ref().and_then(Handling::trace);
        self.host.deliver(now, &frame.payload, frame.reply_to, trace, &mut self.out);
        std::mem::forget(guard);
        passage.at(Moment::Handled);
        if let (Some(handling), Some(recorder)) = (handling, self.post.telemetry().recorder()) {
            recorder.end(handling, &mut self.out, self.clock.now());
        }
        self.finish(ctx);
        passage.at(Moment::Sent);
    }

    /// The bus was closed: nothing can come any more.
    fn finished(&mut self, ctx: &mut Self::Context) {
        ctx.stop();
    }
}

impl<H: Hostable> Handler<Rung> for Hosted<H> {
    type Result = ();

    fn handle(&mut self, _: Rung, ctx: &mut Self::Context) {
        let guard = EndProcess(self.address);
        if let Some(bell) = &self.bell {
            bell.hear();
        }
        self.host.collect(self.clock.now(), &mut self.out);
        std::mem::forget(guard);
        self.finish(ctx);
    }
}

impl<H: Hostable> Handler<Stop> for Hosted<H> {
    type Result = ();

    fn handle(&mut self, stop: Stop, ctx: &mut Self::Context) {
        self.stopping = Some(stop.0);
        self.host.stop();
        self.finish(ctx);
    }
}

impl<H> std::fmt::Debug for Hosted<H> {
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
        // The process ends either way, whether or not somebody can read why.
        writeln!(std::io::stderr(), "hicached: {} contradicts itself, the process ends", self.0).ok();
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
