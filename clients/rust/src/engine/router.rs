//! Two engines that serve every request together: one computes the prompt, the other one decodes behind it.
//!
//! Prefill begins when decode has room for the whole prompt. So whoever holds pages of prefill waits for no page of
//! decode, and requests that hold pages on one side while they wait for the other side's cannot wait for each other. A
//! side that does not end well ends the other one. What then can be tried again is: the same transfer, by the next
//! attempt, on both sides.
//! Not here: which engines there are and who serves what; when requests come (the caller's stream).

use std::pin::pin;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, Stream, StreamExt};
use hicached_actors::protocol::{Incarnation, OpId, OpIds};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::stop::Stop;
use super::{Ended, Engine, EngineError, How, Progress, Prompt, Report, Side, Times};

/// A prefill engine and a decode engine.
pub struct Router {
    prefill: Engine,
    decode: Engine,
    transfers: OpIds,
    attempts_max: u32,
}

/// One request that is over on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Routed {
    /// Its number.
    pub number: usize,
    /// In which way: never [`How::NotHandedOver`], which is [`How::Failed`] when it is the last attempt's.
    pub how: How,
    /// Attempts made.
    pub attempts: u32,
    /// The last one on the side of prefill.
    pub prefill: Ended,
    /// The last one on the side of decode, with the time it waited for its pages.
    pub decode: Ended,
    /// Nanoseconds from the start of the last attempt until its prefill side was over.
    pub prefill_ns: u64,
}

/// What a run did.
#[derive(Clone, Debug, Default)]
pub struct RoutedReport {
    /// Each request once, with the hits of its prefill; all else is the sum of both sides.
    pub whole: Report,
    /// The sessions of prefill: one for each attempt for which decode had room.
    pub prefill: Report,
    /// The sessions of decode: one for each attempt.
    pub decode: Report,
    /// How long prefills took that were handed over.
    pub prefills: Times,
}

impl Router {
    /// Routes over two running engines, with at most `attempts_max` attempts for a request.
    ///
    /// # Errors
    /// [`EngineError::Config`] when the decode engine has more ranks than one, or there may be no attempt.
    pub fn new(prefill: Engine, decode: Engine, attempts_max: u32) -> Result<Self, EngineError> {
        let cp_size = decode.core.config.manifest.cp_size;
        if cp_size != 1 {
            let (field, value) = ("cp_size of the decode engine", u64::from(cp_size));
            return Err(EngineError::Config { field, value, limit: "1" });
        }
        if attempts_max == 0 {
            return Err(EngineError::Config { field: "attempts_max", value: 0, limit: "at least 1" });
        }
        let transfers = OpIds::new(Incarnation(uuid::Uuid::new_v4().into_bytes()));
        Ok(Self { prefill, decode, transfers, attempts_max })
    }

    /// The engine that computes prompts.
    pub fn prefill(&self) -> &Engine {
        &self.prefill
    }

    /// The engine that decodes.
    pub fn decode(&self) -> &Engine {
        &self.decode
    }

    /// Serves `prompts` with the numbers their caller gives, as many at a time as both engines may have sessions,
    /// until the stream ends and the last request is over. `over` is called after each.
    pub async fn run_numbered(
        &mut self,
        prompts: impl Stream<Item = (usize, Prompt)>,
        mut over: impl FnMut(Routed, Progress),
    ) -> RoutedReport {
        let Self { prefill, decode, transfers, attempts_max } = self;
        let pair = Pair { prefill, decode, attempts_max: *attempts_max };
        let sessions_max = pair.prefill.core.config.sessions_max.min(pair.decode.core.config.sessions_max);
        let begun = (pair.prefill.begin(), pair.decode.begin());
        let mut report = RoutedReport::default();
        let mut prompts = pin!(prompts.fuse());
        let mut in_flight = FuturesUnordered::new();
        loop {
            tokio::select! {
                biased;
                Some((number, prompt)) = prompts.next(), if in_flight.len() < sessions_max => {
                    report.whole.begin(&prompt);
                    in_flight.push(pair.serve(transfers.draw(), number, prompt));
                }
                Some((routed, cause)) = in_flight.next() => {
                    report.over(&routed, cause);
                    over(routed, pair.progress(&report.whole));
                }
                else => break,
            }
        }
        report.prefill = pair.prefill.end(begun.0);
        report.decode = pair.decode.end(begun.1);
        report.whole.absorb(&report.prefill);
        report.whole.absorb(&report.decode);
        report
    }

    /// Ends both engines.
    pub async fn stop(self) {
        tokio::join!(self.prefill.stop(), self.decode.stop());
    }
}

impl RoutedReport {
    fn over(&mut self, routed: &Routed, cause: Option<String>) {
        if let Some(cause) = cause {
            self.whole.failure(routed.number, &cause);
        }
        if routed.how == How::Closed {
            self.prefills.record(routed.prefill_ns);
        }
        self.whole.ended(&Ended { how: routed.how, ..routed.prefill });
    }
}

/// The engines of a run.
#[derive(Clone, Copy)]
struct Pair<'a> {
    prefill: &'a Engine,
    decode: &'a Engine,
    attempts_max: u32,
}

/// One side of an attempt that is over.
struct Over {
    ended: Ended,
    error: Option<EngineError>,
    /// Whether the other side had ended first.
    stopped: bool,
}

impl Pair<'_> {
    /// Serves one request until it is over on both sides. With the reason, when it failed.
    async fn serve(self, transfer: OpId, number: usize, prompt: Prompt) -> (Routed, Option<String>) {
        for attempt in 1.. {
            let (mut routed, cause) = self.attempt((transfer, attempt), number, &prompt).await;
            match routed.how {
                How::NotHandedOver(_) if attempt < self.attempts_max => sleep(pause_behind(attempt)).await,
                How::NotHandedOver(_) | How::Failed => {
                    routed.how = How::Failed;
                    return (routed, Some(cause));
                }
                How::Closed | How::Aborted | How::Uncached => return (routed, None),
            }
        }
        unreachable!("the last attempt returns")
    }

    async fn attempt(&self, (transfer, attempt): (OpId, u32), number: usize, prompt: &Prompt) -> (Routed, String) {
        let to = self.decode.core.config.group.clone();
        let of_side = |side| Prompt { handover: Some(side), ..prompt.clone() };
        let (end_prefill, prefill_ends) = Stop::new();
        let (end_decode, decode_ends) = Stop::new();
        let (opened, decode_opens) = watch::channel(false);
        let started = Instant::now();
        let prefill = async {
            let prompt = of_side(Side::Send { transfer, attempt, to });
            let over = match is_raised_before(decode_opens, &prefill_ends).await {
                true => one_side(self.prefill, number, prompt, prefill_ends).await,
                false => Over::not_begun(number, &prompt),
            };
            if over.ends_the_other() {
                end_decode.send_replace(true);
            }
            (over, started.elapsed().as_nanos() as u64)
        };
        let decode = async {
            let prompt = of_side(Side::Receive { transfer, attempt });
            let over = one_side(self.decode, number, prompt, decode_ends.and_tells(opened)).await;
            if over.ends_the_other() {
                end_prefill.send_replace(true);
            }
            over
        };
        let ((prefill, prefill_ns), decode) = tokio::join!(prefill, decode);
        let how = how_of_both(prefill.ended.how, decode.ended.how);
        let (prefill_ended, decode_ended) = (prefill.ended, decode.ended);
        let routed =
            Routed { number, how, attempts: attempt, prefill: prefill_ended, decode: decode_ended, prefill_ns };
        let sides = [("prefill", prefill), ("decode", decode)];
        let causes = sides
            .iter()
            .filter(|(_, over)| !over.stopped)
            .filter_map(|(name, over)| over.error.as_ref().map(|error| format!("attempt {attempt}, {name}: {error}")));
        (routed, causes.collect::<Vec<_>>().join("; "))
    }

    fn progress(&self, whole: &Report) -> Progress {
        let mut progress = whole.progress();
        for engine in [self.prefill, self.decode] {
            let of_side = engine.core.report().progress();
            progress.bytes_verified += of_side.bytes_verified;
            progress.mismatches += of_side.mismatches;
        }
        progress
    }
}

impl Over {
    /// A side whose other one has ended before it could begin.
    fn not_begun(number: usize, prompt: &Prompt) -> Self {
        let how = How::NotHandedOver("not_begun");
        let ended = Ended { how, ..Ended::new(number, prompt.plan.pages()) };
        Self { ended, error: None, stopped: true }
    }

    /// A side that ended well needs the other one to end well too.
    fn ends_the_other(&self) -> bool {
        self.ended.how != How::Closed && !self.stopped
    }
}

/// Waits for `raised`; `false` when `stop` comes first.
async fn is_raised_before(mut raised: watch::Receiver<bool>, stop: &Stop) -> bool {
    tokio::select! {
        biased;
        Ok(_) = raised.wait_for(|raised| *raised) => true,
        () = stop.raised() => false,
    }
}

async fn one_side(engine: &Engine, number: usize, prompt: Prompt, stop: Stop) -> Over {
    let (ended, error) = engine.serve(number, prompt, stop.clone()).await;
    Over { ended, error, stopped: stop.is_raised() }
}

/// A fault of either side is one of the request. Else it is over as decode is over; where nothing came, as it was fated
/// to be or by another attempt.
fn how_of_both(prefill: How, decode: How) -> How {
    match (prefill, decode) {
        (How::Failed, _) | (_, How::Failed) => How::Failed,
        (How::Aborted, How::NotHandedOver(_)) => How::Aborted,
        (How::NotHandedOver(code), How::NotHandedOver(_)) => How::NotHandedOver(code),
        (_, decode) => decode,
    }
}

/// The pause behind an attempt that failed: what fails again and again has to come back first.
fn pause_behind(attempt: u32) -> Duration {
    ATTEMPT_PAUSE_MIN * 2u32.pow((attempt - 1).min(PAUSES_DOUBLED_MAX))
}

/// Behind the first attempt: its failure has to be noticed by two groups.
const ATTEMPT_PAUSE_MIN: Duration = Duration::from_millis(50);
/// How often the pause is doubled: to 800 ms.
const PAUSES_DOUBLED_MAX: u32 = 4;
