//! One run of one engine against one group of this process, from the first request to the last page given back.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use hicached_actors::protocol::Address;
use hicached_client::client::{Client, ClientError};
use hicached_client::engine::{Ended, EngineError, Hit, Progress, Prompt, Report};
use sha2::{Digest, Sha256};
use tokio::time::sleep;

use super::figures::{figures, members, moved};
use super::folder::FolderError;
use super::load::Load;
use super::outcome::{LatencyUs, MovedPages, Outcome, Percentiles};
use super::sending::Sending;
use super::side::{Engines, Over, Side};
use super::signals::Signals;
use crate::config::{Checked, ConfigRefused};
use crate::shell::{NoBroker, StartError, connect};

/// What is run.
#[derive(Debug)]
pub struct Run<'a> {
    /// What the figures are called: a file name, or `demo`.
    pub name: String,
    /// The group.
    pub group: &'a Checked,
    /// The group that every request is handed over to, where there is one.
    pub decode: Option<&'a Checked>,
    /// What its engine does.
    pub load: Load,
}

/// Why there is no outcome.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// No broker.
    #[error(transparent)]
    NoBroker(#[from] NoBroker),
    /// The group does not pass its own check.
    #[error(transparent)]
    Config(#[from] ConfigRefused),
    /// The group did not start.
    #[error(transparent)]
    Group(#[from] StartError),
    /// The engine did not join it.
    #[error("the engine cannot join: {0}")]
    Engine(#[from] EngineError),
    /// The group did not answer.
    #[error("the group does not answer: {0}")]
    Client(#[from] ClientError),
    /// No place for pool files.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// Signals cannot be heard.
    #[error("signals: {0}")]
    Signal(std::io::Error),
    /// Ended by the signal of this number.
    #[error("interrupted")]
    Interrupted(u8),
}

impl Run<'_> {
    /// Serves `prompts`, then gives every page back. `in_file_order` says of each prompt which place its hits have in
    /// the hash over all of them; `None` means the order in which they came.
    ///
    /// # Errors
    /// [`RunError`]: what a run measures is never an error, what keeps it from running is.
    pub async fn run(
        &self,
        prompts: impl Stream<Item = Prompt>,
        in_file_order: Option<&[usize]>,
        mut progress: impl FnMut(u64),
    ) -> Result<Outcome, RunError> {
        let mut signals = Signals::heard().map_err(RunError::Signal)?;
        let bus = tokio::select! {
            bus = connect(&self.group.config.bus) => bus?,
            number = signals.next() => return Err(RunError::Interrupted(number)),
        };
        let mut sides = vec![Side::start(self.group, bus.clone()).await?];
        if let Some(decode) = self.decode {
            sides.push(Side::start(decode, bus.clone()).await?);
        }
        let mut with_spans = sides.iter().map(|side| (&side.group, side.spans()));
        let (prefill, decode) = (with_spans.next().expect("a run has a group"), with_spans.next());
        let mut engines = Engines::start(prefill, decode, ATTEMPTS_MAX, &self.load, &bus).await?;
        let (done, clients) = (AtomicU64::new(0), engines.clients());
        let (mut hits, mut handovers) = (Vec::new(), 0);
        let count = |over: Over, now: Progress| {
            note(&mut hits, &over.ended);
            handovers += u64::from(over.handed_over());
            done.store(now.over, Ordering::Relaxed);
            progress(now.over);
        };
        let served = tokio::select! {
            report = engines.run_numbered(prompts.enumerate(), count) => Ok(report),
            never = tell_of_stalls(&sides, &clients, &done) => match never {},
            number = signals.next() => Err(RunError::Interrupted(number)),
        };
        let outcome = match served {
            Ok(report) => {
                let hash = hash_of_hits(&hits, in_file_order);
                self.measure(report, handovers, hash, sides.iter().zip(&clients)).await
            }
            Err(error) => Err(error),
        };
        engines.stop().await;
        for side in sides {
            side.stop(STOP_MAX).await;
        }
        bus.close();
        outcome
    }

    async fn measure(
        &self,
        report: Report,
        handovers: u64,
        per_request_sha256: String,
        sides: impl Iterator<Item = (&Side, &Client)>,
    ) -> Result<Outcome, RunError> {
        let (mut pages, mut leaked_pages, mut sending) = (MovedPages::default(), 0, None);
        for (side, client) in sides {
            if sending.is_none() && self.decode.is_some() {
                let cp_size = side.group.config.group.cp_size;
                sending = Some(Sending::of(&figures(client, Address::Sender).await?, cp_size));
            }
            pages += moved(&figures(client, Address::Index).await?);
            leaked_pages += side.leaked_pages(client).await?;
        }
        let config = &self.group.config;
        Ok(Outcome {
            trace: self.name.clone(),
            bus: config.bus.kind.name(),
            page_tokens: config.group.page_tokens,
            cp: config.group.cp_size,
            requests: report.requests,
            requests_ended: report.requests_ended,
            aborted: report.aborted,
            full_pages: report.full_pages,
            hit_pages: report.hit_pages.into(),
            per_request_sha256,
            pages,
            handovers,
            handover_pages: report.handover_pages,
            decode: self.decode.is_some(),
            sending: sending.unwrap_or_default(),
            bytes_verified: report.bytes_verified,
            mismatches: report.mismatches,
            leaked_pages,
            refusals: report.refusals,
            wall_s: report.elapsed.as_secs_f64(),
            latency_us: LatencyUs {
                open: Percentiles::of(&report.latencies.open),
                commit: Percentiles::of(&report.latencies.commit),
                load: Percentiles::of(&report.latencies.load),
                handover: Percentiles::of(&report.latencies.handover),
            },
            control_only: self.group.layout.record_bytes() == 0,
            concurrency: self.load.sessions as u64,
            l1_pages: config.l1.pages,
            l2_pages: config.l2.pages,
        })
    }
}

/// Logs every figure of the groups when no request has ended for a while.
async fn tell_of_stalls(sides: &[Side], clients: &[Client], over: &AtomicU64) -> Infallible {
    loop {
        let before = over.load(Ordering::Relaxed);
        sleep(STALL).await;
        if over.load(Ordering::Relaxed) != before {
            continue;
        }
        for (side, client) in sides.iter().zip(clients) {
            let group = &side.group.config.group;
            for actor in members(group.cp_size) {
                let figures = figures(client, actor).await;
                tracing::warn!(group = group.name, %actor, ?figures, "no request has ended for {STALL:?}");
            }
        }
    }
}

/// Keeps what a request hit at the place of its number.
fn note(hits: &mut Vec<Hit>, ended: &Ended) {
    if hits.len() <= ended.number {
        hits.resize(ended.number + 1, Hit::default());
    }
    hits[ended.number] = ended.hit;
}

/// SHA-256 over the hit pages of every request, decimal, a newline after each.
fn hash_of_hits(hits: &[Hit], in_file_order: Option<&[usize]>) -> String {
    let mut pages: Vec<(usize, u64)> =
        hits.iter().enumerate().map(|(sent, hit)| (sent, u64::from(hit.l1) + u64::from(hit.l2))).collect();
    if let Some(places) = in_file_order {
        pages.sort_by_key(|(sent, _)| places.get(*sent).copied());
    }
    hash_of(pages.into_iter().map(|(_, pages)| pages))
}

/// SHA-256 over numbers, decimal, a newline after each.
pub(crate) fn hash_of(pages: impl Iterator<Item = u64>) -> String {
    let mut hash = Sha256::new();
    pages.for_each(|pages| hash.update(format!("{pages}\n")));
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Attempts at one handover: more mean that something is broken, not late.
const ATTEMPTS_MAX: u32 = 8;
/// Longer than any request of a healthy run takes.
const STALL: Duration = Duration::from_secs(10);
/// After a flush nothing runs; what does is reported as leaked.
const STOP_MAX: Duration = Duration::from_secs(1);
