//! The life of one request: `open`, the load, prefill in chunks, decode, `close` or `abort`.
//!
//! A request that two engines serve has one session with each: the first computes the prompt, the second waits for its
//! pages instead ([`receive`]). Such a session has one life; whoever made the handover tries again.

mod pages;
mod receive;

use std::ops::Range;
use std::time::Duration;

use hicached_actors::protocol::{
    Abort, Bin, Close, Closed, Extend, Keys, LoadTicket, Malformed, OpId, Open, Opened, Owners, PageId, Pages, Refusal,
    StepEntry, WrongState,
};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep};

use super::core::{Core, Life};
use super::fate::{End, Fate};
use super::forward::{Job, Work, ended, join_again};
use super::pools::Components;
use super::stop::{Stop, stopped};
use super::words::is_sound;
use super::{Ended, EngineError, Hit, How, Prompt, Side, Verify, request_span};
use crate::client::{Client, ClientError};
use crate::spans::OpenSpan;
use crate::tokens::Tail;

/// Serves request `number` until it is over, in whatever way, and puts that into the report. With what made it fail.
pub(super) async fn serve(
    core: &Core,
    jobs: &mpsc::Sender<Job>,
    number: usize,
    prompt: Prompt,
    stop: Stop,
) -> (Ended, Option<EngineError>) {
    let mut ended = Ended::new(number, prompt.plan.pages());
    let span = request_span::begin(&core.config.spans);
    let client = core.lead().within(span.as_ref().map(OpenSpan::context));
    let over = lives(core, &client, jobs, (&prompt, &stop), &mut ended).await;
    ended.how = match &over {
        Ok(how) => *how,
        Err(EngineError::Client(error)) if prompt.handover.is_some() && can_be_tried_again(error) => {
            core.report().handover_failure(number, error);
            How::NotHandedOver(error.code())
        }
        Err(EngineError::Client(ClientError::Uncached { .. })) => How::Uncached,
        Err(error) => {
            core.report().failure(number, error);
            How::Failed
        }
    };
    core.report().ended(&ended);
    let error = over.err();
    if let Some(span) = span {
        request_span::end(span, &ended, error.as_ref());
    }
    (ended, error)
}

/// Whether a handover that ended so may go well the next time: what contradicts itself is a fault, and stays one.
fn can_be_tried_again(error: &ClientError) -> bool {
    match error {
        ClientError::Decode(_) => false,
        ClientError::Refused(_)
        | ClientError::NewIncarnation { .. }
        | ClientError::Bus(_)
        | ClientError::Uncached { .. } => true,
    }
}

/// One session after the other until one ends by itself.
async fn lives(
    core: &Core,
    client: &Client,
    jobs: &mpsc::Sender<Job>,
    (prompt, stop): (&Prompt, &Stop),
    ended: &mut Ended,
) -> Result<How, EngineError> {
    let lives_max = if prompt.handover.is_some() { 1 } else { LIVES_MAX };
    for life in 1.. {
        ended.sessions = life;
        let control = client.control();
        match live(core, client, jobs, (prompt, stop), ended).await {
            Ok(Over::Closed) => return Ok(How::Closed),
            Ok(Over::Aborted) => return Ok(How::Aborted),
            Ok(Over::WithoutPages(error)) => return Err(error.into()),
            Ok(Over::Preempted(_)) if life < lives_max => core.report().preempted += 1,
            Ok(Over::Preempted(error)) if prompt.handover.is_some() => return Err(error.into()),
            Ok(Over::Preempted(_)) => return Err(odd("lives", life, "fewer").into()),
            // Whatever is said of a session behind the end of its control group says that it is over.
            Err(error) if matches!(error, ClientError::NewIncarnation { .. }) || core.lead().control() != control => {
                join_again(jobs, control).await?;
                if life == lives_max {
                    return Err(error.into());
                }
                core.report().reopened += 1;
            }
            Err(error) => return Err(error.into()),
        }
    }
    unreachable!("the last life returns")
}

/// How a session was over.
enum Over {
    Closed,
    Aborted,
    /// Aborted for want of pages: the request has to begin again.
    Preempted(ClientError),
    /// Aborted because its handover has failed.
    WithoutPages(ClientError),
}

/// One session.
struct Session<'a> {
    core: &'a Core,
    /// Its calls hang on the request.
    client: &'a Client,
    jobs: &'a mpsc::Sender<Job>,
    ended: &'a mut Ended,
    life: Life,
    prompt: &'a Prompt,
    stop: &'a Stop,
    fate: Fate,
    id: OpId,
    /// The block table.
    pages: Vec<PageId>,
    hit: Hit,
    load: Option<LoadTicket>,
    /// Positions that came over, and the components that they hold, when these are not all.
    came: Option<(Range<u32>, Components)>,
    /// First position of its load, to which the session falls back when the load has failed.
    load_first: Option<u32>,
    /// When it fell back, until the step behind that counts.
    fell_back: Option<Instant>,
    /// Tokens that are in the pages, or on their way into them by the load.
    frontier: u32,
    tail: Tail,
    /// Tokens decoded so far, written or not.
    decoded: u32,
    /// Pages whose keys the daemon has.
    keyed: u32,
    last_step: u64,
    forwards: u64,
}

/// Opens a session and leads it to its end.
async fn live(
    core: &Core,
    client: &Client,
    jobs: &mpsc::Sender<Job>,
    (prompt, stop): (&Prompt, &Stop),
    ended: &mut Ended,
) -> Result<Over, ClientError> {
    let (id, opened, open_ns) = open(core, client, prompt, stop).await?;
    stop.session_is_open();
    let hit = Hit { l1: opened.l1_hit, l2: opened.l2_hit };
    (ended.hit, ended.open_ns) = (hit, Some(open_ns));
    let life = Life { request: ended.number, control: opened.control };
    let mut session = Session {
        core,
        client,
        jobs,
        fate: Fate::draw(&core.config, ended.number, prompt.handover.as_ref()),
        ended,
        life,
        prompt,
        stop,
        id,
        pages: Vec::new(),
        hit,
        load: None,
        came: None,
        load_first: None,
        fell_back: None,
        frontier: 0,
        tail: Tail::of(&prompt.plan, core.config.paging()),
        decoded: 0,
        keyed: prompt.plan.pages(),
        last_step: 0,
        forwards: 0,
    };
    let over = match session.enter(opened) {
        Ok(()) => session.run().await,
        Err(error) => Err(error),
    };
    if over.is_err() {
        core.give_up(client, id, &prompt.tenant, session.last_step);
    }
    over
}

/// Opens a session, asking again under a new op after each refusal with a hint. With the nanoseconds of the last try.
async fn open(core: &Core, client: &Client, prompt: &Prompt, stop: &Stop) -> Result<(OpId, Opened, u64), ClientError> {
    let plan = &prompt.plan;
    let reserve_tokens = match prompt.handover {
        Some(Side::Receive { .. }) => plan.tokens,
        Some(Side::Send { .. }) | None => plan.tokens.min(core.config.chunk_tokens),
    };
    let open = Open {
        tenant: prompt.tenant.clone(),
        salt: plan.salt,
        keys: Keys(plan.keys.to_vec()),
        tokens: plan.tokens,
        reserve_tokens,
        owners: Owners::default(),
        priority: prompt.priority,
        no_match: prompt.no_match,
        handover: prompt.handover.iter().map(Side::wish).collect(),
    };
    let until = Instant::now() + core.config.room_patience;
    loop {
        let (session, asked) = (client.draw(), Instant::now());
        match stop.or(session, client.open(session, open.clone())).await {
            Ok(opened) => {
                let open_ns = asked.elapsed().as_nanos() as u64;
                core.report().latencies.open.record(open_ns);
                return Ok((session, opened, open_ns));
            }
            Err(error) => {
                if error.leaves_doubt() || stop.is_raised() {
                    core.give_up(client, session, &prompt.tenant, 0);
                }
                stop.or(session, client.wait_for_room(error, until)).await?;
            }
        }
    }
}

impl Session<'_> {
    /// Takes what `open` gave, refusing what cannot be.
    fn enter(&mut self, opened: Opened) -> Result<(), ClientError> {
        let (l1, l2, keyed) = (opened.l1_hit, opened.l2_hit, self.prompt.plan.pages());
        let hits = l1.checked_add(l2).filter(|hits| *hits <= keyed && *hits as usize <= opened.pages.0.len());
        let Some(hits) = hits else { return Err(odd("hits", format_args!("{l1}+{l2}"), keyed)) };
        self.take_pages(opened.pages)?;
        self.load = opened.load.into_iter().next();
        self.load_first = self.load.as_ref().map(|load| load.first);
        let layers = self.core.pools.layers_of_load();
        match &self.load {
            Some(load) if (load.first, load.pages) != (l1, l2) || !is_sound(load, layers) => {
                return Err(odd("load", format_args!("{load:?}"), format_args!("pages {l1}+{l2}, {layers} layers")));
            }
            None if l2 > 0 => return Err(odd("load", "none", format_args!("a ticket for {l2} pages"))),
            Some(_) => self.core.report().loads += 1,
            None => {}
        }
        self.frontier = hits * self.page_tokens();
        Ok(())
    }

    fn take_pages(&mut self, pages: Pages) -> Result<(), ClientError> {
        if let Some(page) = pages.0.iter().find(|page| !self.core.pools.holds(**page)) {
            return Err(odd("pages", page.0, "a page of the pool, not of its padding"));
        }
        self.pages.extend(pages.0);
        Ok(())
    }

    async fn run(&mut self) -> Result<Over, ClientError> {
        let l1_hits = self.placed(0, self.hit.l1);
        self.core.verify_all(self.life, &l1_hits).await;
        let stop_after = self.fate.end.after(self.forwards_left());
        if stop_after != Some(0)
            && let Err(error) = self.receive().await
        {
            return self.give_handover_up(error).await;
        }
        loop {
            if self.sends() && self.stop.is_raised() {
                return self.give_handover_up(stopped(self.id)).await;
            }
            if stop_after.is_some_and(|after| self.forwards >= after) {
                return match self.fate.end {
                    End::Abort { .. } => self.abort(Over::Aborted).await,
                    End::Early { .. } | End::Whole => self.close().await,
                };
            }
            if self.frontier < self.end() {
                match self.forward().await {
                    Ok(()) => {}
                    Err(error) if error.room_hint().is_some() => return self.abort(Over::Preempted(error)).await,
                    Err(error @ ClientError::Refused(Refusal::WrongState(_))) => {
                        return self.abort(Over::Preempted(error)).await;
                    }
                    Err(error) => return Err(error),
                }
            } else if let Some(load) = self.load.take() {
                let load = self.with_pages(load);
                match self.core.load(self.life, &load).await {
                    Some(load_ns) => self.ended.load_ns = Some(load_ns),
                    None => {
                        self.fall_back().await;
                    }
                }
            } else {
                break;
            }
        }
        if self.core.config.verify == Verify::Everything {
            // Without a draft only what was served holds every component.
            let whole = if self.fate.draft { self.end() / self.page_tokens() } else { self.hit.l1 };
            let full = self.placed(0, whole);
            self.core.verify_all(self.life, &full).await;
        }
        if self.core.config.paging().lookahead_tokens > 0 {
            // The token that was sampled last is in no page, and keys the page before it.
            self.tail.push(self.prompt.output_token(self.decoded));
        }
        self.close().await
    }

    /// One forward: the next chunk of the prompt, or the next tokens of the output.
    async fn forward(&mut self) -> Result<(), ClientError> {
        let (config, prompt_tokens) = (&self.core.config, self.prompt.plan.tokens);
        let first_token = self.frontier;
        let end = match first_token < prompt_tokens {
            true => first_token.saturating_add(config.chunk_tokens).min(prompt_tokens),
            false => first_token.saturating_add(config.decode_stride_tokens).min(self.end()),
        };
        self.grow(end).await?;
        for token in self.decoded..end.saturating_sub(prompt_tokens) {
            self.tail.push(self.prompt.output_token(token));
            self.decoded = token + 1;
        }
        let load = self.load.take().map(|load| self.with_pages(load));
        let keys = self.tail.keys_from(self.keyed).to_vec();
        let keyed = self.keyed + keys.len() as u32;
        let (first, last) = (first_token / self.page_tokens(), (end - 1) / self.page_tokens());
        let entry = StepEntry {
            session: self.id,
            first_token,
            tokens: end - first_token,
            pages: Pages(self.pages[first as usize..=last as usize].to_vec()),
            draft: self.fate.draft,
            keys: Keys(keys),
            first_key: self.keyed,
            load_read: self.hit.l2 > 0 && load.is_none(),
        };
        let (done, outcome) = oneshot::channel();
        let (life, trace) = (self.life, self.client.trace());
        let work = Work { life, entry, fills: self.fills(first_token, end), trace, load, done };
        self.jobs.send(Job::Run(Box::new(work))).await.map_err(|_| ended())?;
        let outcome = outcome.await.map_err(|_| ended())?;
        self.forwards += 1;
        self.ended.load_ns = outcome.load_ns.or(self.ended.load_ns);
        self.last_step = outcome.step;
        let is_void = outcome.told?.contains(&self.id);
        if !outcome.load_failed && !is_void {
            (self.frontier, self.keyed) = (end, keyed);
            if self.fell_back.take().is_some() {
                self.load_first = None;
            }
            return Ok(());
        }
        // The load failed here, or on a rank that had said otherwise; or the session is over.
        match self.fall_back().await {
            true => Ok(()),
            false => Err(ClientError::Refused(WrongState::new(self.id, "void").into())),
        }
    }

    /// The load failed: its pages are this session's to compute, under a new step. That is void as well while another
    /// rank still writes them, and runs again. `false` when it has no load, or when that takes too long.
    async fn fall_back(&mut self) -> bool {
        let Some(first) = self.load_first else { return false };
        match self.fell_back {
            None => {
                self.core.report().loads_failed += 1;
                self.fell_back = Some(Instant::now());
            }
            Some(since) if since.elapsed() < self.core.config.preempt_after => sleep(VOID_PAUSE).await,
            Some(_) => return false,
        }
        self.frontier = first * self.page_tokens();
        true
    }

    /// Asks for pages until the tokens before `end` have theirs. A chunk gets the zigzag split; the single pages of
    /// a growing output go from lane to lane.
    async fn grow(&mut self, end: u32) -> Result<(), ClientError> {
        let page_tokens = self.page_tokens();
        let wanted = end.div_ceil(page_tokens);
        while (self.pages.len() as u32) < wanted {
            let first = self.pages.len() as u32;
            let decodes = end > self.prompt.plan.tokens;
            let cp_size = u32::from(self.core.config.manifest.cp_size);
            let owners = (first..wanted).map(|position| (position % cp_size) as u8);
            let extend = Extend {
                session: self.id,
                tenant: self.prompt.tenant.clone(),
                tokens: end - first * page_tokens,
                owners: Owners(if decodes { owners.collect() } else { Vec::new() }),
                first,
            };
            let patience = self.core.config.preempt_after.min(self.core.config.room_patience);
            let extended = self.client.extend_when_room(&extend, patience).await?;
            if extended.pages.0.is_empty() {
                return Err(odd("pages", 0, format_args!("up to {}", wanted - first)));
            }
            self.take_pages(extended.pages)?;
        }
        Ok(())
    }

    async fn close(&mut self) -> Result<Over, ClientError> {
        let drafted = if self.fate.draft { u64::from(self.decoded) } else { 0 };
        let close = Close {
            session: self.id,
            tenant: self.prompt.tenant.clone(),
            last_step: self.last_step,
            keys: Keys(self.tail.keys_from(self.keyed).to_vec()),
            first_key: self.keyed,
            drafted,
            accepted: drafted / 2,
            blob: Bin(if self.sends() { self.prompt.blob() } else { Vec::new() }),
        };
        let asked = Instant::now();
        let closed = match self.sends() {
            true => {
                let client = self.client.patient(self.core.config.handover_deadline);
                match self.stop.or(self.id, self.until_closed(&client, &close)).await {
                    Ok(closed) => closed,
                    Err(error) => return self.give_handover_up(error).await,
                }
            }
            false => self.until_closed(self.client, &close).await?,
        };
        let commit_ns = asked.elapsed().as_nanos() as u64;
        self.ended.commit_ns = Some(commit_ns);
        let mut report = self.core.report();
        report.latencies.commit.record(commit_ns);
        report.closed.l1_pages += u64::from(closed.l1_pages);
        report.closed.l2_pages += u64::from(closed.l2_pages);
        report.closed.duplicates += u64::from(closed.duplicates);
        report.closed.uncached += u64::from(closed.uncached);
        Ok(Over::Closed)
    }

    async fn until_closed(&self, client: &Client, close: &Close) -> Result<Closed, ClientError> {
        let until = Instant::now() + self.core.config.room_patience;
        loop {
            match client.close(close.clone()).await {
                Ok(closed) => return Ok(closed),
                Err(error) => client.wait_for_room(error, until).await?,
            }
        }
    }

    async fn abort(&self, over: Over) -> Result<Over, ClientError> {
        let abort = Abort { session: self.id, tenant: self.prompt.tenant.clone(), last_step: self.last_step };
        let until = Instant::now() + self.core.config.room_patience;
        loop {
            match self.client.abort(abort.clone()).await {
                Ok(_) => return Ok(over),
                Err(error) => self.client.wait_for_room(error, until).await?,
            }
        }
    }

    /// Forwards until the end, if no load fails.
    fn forwards_left(&self) -> u64 {
        let config = &self.core.config;
        let prompt = match self.prompt.handover {
            Some(Side::Receive { .. }) => 0,
            Some(Side::Send { .. }) | None => {
                self.prompt.plan.tokens.saturating_sub(self.frontier).div_ceil(config.chunk_tokens)
            }
        };
        u64::from(prompt) + u64::from(self.prompt.decodes().div_ceil(config.decode_stride_tokens))
    }

    fn end(&self) -> u32 {
        self.prompt.plan.tokens.saturating_add(self.prompt.decodes())
    }

    fn sends(&self) -> bool {
        matches!(self.prompt.handover, Some(Side::Send { .. }))
    }

    fn page_tokens(&self) -> u32 {
        self.core.config.manifest.page_tokens
    }
}

/// An answer that contradicts what was asked.
fn odd(field: &str, value: impl std::fmt::Display, limit: impl std::fmt::Display) -> ClientError {
    ClientError::Decode(Malformed::new(field, value, limit))
}

/// Until a rank that still writes has stopped: a few messages.
const VOID_PAUSE: Duration = Duration::from_millis(5);
/// Times one request is begun: every life but the last ended with its control group, or for want of pages.
const LIVES_MAX: u32 = 64;
