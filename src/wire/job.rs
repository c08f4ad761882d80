//! A push under way: which of its layers are ready, what is in the air, and how it ends.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use hicached_actors::protocol::{Malformed, PushFigures, Rank, Refusal, TooLarge};
use hicached_kernels::layout::{HostPage, L1Page, Track};
use hicached_kernels::runs::Runs;

use super::piece::{Piece, PieceBounds, Run};
use super::pool::Pool;
use super::{Cause, FrameRefusal, LayersReady, POSITIONS_MAX, PushEnd, PushKey, PushOrder, SECRET_BYTES};

/// One push, shared by the threads that send it.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) key: PushKey,
    pub(super) rank: Rank,
    pub(super) secret: [u8; SECRET_BYTES],
    pub(super) source: Arc<Pool>,
    pub(super) endpoint: String,
    pub(super) positions: Vec<u32>,
    pub(super) pages: Vec<u32>,
    /// Longest first.
    runs: Vec<Run>,
    /// Places of the buffers of each track, by layer.
    tracks: [Vec<usize>; 2],
    deadline: Duration,
    pub(super) began: Instant,
    progress: Mutex<Progress>,
}

#[derive(Debug)]
struct Progress {
    /// Buffers of each track that are ready, of those in `tracks`.
    announced: [usize; 2],
    /// Ready buffers that have not left whole; the first of them stands at `cursor`.
    waiting: VecDeque<usize>,
    cursor: Cursor,
    /// Whether a lane has it in its row.
    queued: bool,
    /// Pieces on their way.
    flying: u32,
    /// Bytes that are not acknowledged.
    left_bytes: u64,
    stop: Option<PushEnd>,
    over: bool,
    first_byte: Option<Instant>,
    all_ready: Option<Instant>,
    spent: Spent,
    figures: PushFigures,
}

#[derive(Clone, Copy, Debug, Default)]
struct Cursor {
    run: usize,
    page: u32,
}

/// Where the time of a push went.
#[derive(Debug)]
struct Spent {
    since: Instant,
    queue: Duration,
    layers: Duration,
    wire: Duration,
}

/// The end of a push, to be told.
pub(super) type Ended = (PushEnd, PushFigures);

impl Job {
    /// A push of `order`.
    ///
    /// # Errors
    /// As [`super::Launch::push`].
    pub(super) fn new(order: PushOrder, now: Instant) -> Result<Self, Refusal> {
        let runs = check(&order)?;
        let PushOrder { key, rank, source, positions, pages, endpoint, secret, deadline, .. } = order;
        let buffers = source.buffers().as_slice();
        let tracks = Track::ALL.map(|track| {
            let of_track = |place: &usize| buffers[*place].component.track() == track;
            let mut places: Vec<usize> = (0..buffers.len()).filter(of_track).collect();
            places.sort_by_key(|place| (buffers[*place].layer, *place));
            places
        });
        let page_bytes: u64 = buffers.iter().map(|buffer| buffer.page_bytes).sum();
        let progress = Progress {
            announced: [0; 2],
            waiting: VecDeque::new(),
            cursor: Cursor::default(),
            queued: false,
            flying: 0,
            left_bytes: pages.len() as u64 * page_bytes,
            stop: None,
            over: false,
            first_byte: None,
            all_ready: None,
            spent: Spent { since: now, queue: Duration::ZERO, layers: Duration::ZERO, wire: Duration::ZERO },
            figures: PushFigures {
                bytes: 0,
                runs: (runs.len() * buffers.len()) as u64,
                descriptors: 0,
                queue_us: 0,
                layers_us: 0,
                wire_us: 0,
                total_us: 0,
            },
        };
        let progress = Mutex::new(progress);
        Ok(Self { key, rank, secret, source, endpoint, positions, pages, runs, tracks, deadline, began: now, progress })
    }

    /// Layers before these are complete. Whether the job has to be put into the row of its lane; the end of a push
    /// that has nothing to send.
    pub(super) fn ready(&self, layers: LayersReady, now: Instant) -> (bool, Option<Ended>) {
        let mut progress = self.lock();
        progress.settle(now);
        let buffers = self.source.buffers().as_slice();
        for (nth, layers) in [layers.target, layers.draft].into_iter().enumerate() {
            let next = &self.tracks[nth][progress.announced[nth]..];
            let ready = next.iter().take_while(|place| buffers[**place].layer < layers).count();
            progress.waiting.extend(&next[..ready]);
            progress.announced[nth] += ready;
        }
        if self.tracks.iter().zip(progress.announced).all(|(all, announced)| all.len() == announced) {
            progress.all_ready.get_or_insert(now);
        }
        let ended = self.end_if_due(&mut progress, now);
        let moves = !progress.over && progress.stop.is_none() && !progress.waiting.is_empty();
        let queue = moves && !progress.queued;
        progress.queued |= queue;
        (queue, ended)
    }

    /// The next piece, and whether more wait.
    pub(super) fn take(self: &Arc<Self>, bounds: PieceBounds, now: Instant) -> (Option<Piece>, bool) {
        let mut progress = self.lock();
        let place = match progress.waiting.front() {
            Some(place) if progress.stop.is_none() && !progress.over => *place,
            Some(_) | None => {
                progress.queued = false;
                return (None, false);
            }
        };
        progress.settle(now);
        let page_bytes = self.source.buffers().as_slice()[place].page_bytes;
        let mut room = (bounds.bytes / page_bytes).clamp(1, u64::from(bounds.pages)) as u32;
        let mut runs = Vec::new();
        while room > 0
            && let Some(run) = self.runs.get(progress.cursor.run)
        {
            let Cursor { page, .. } = progress.cursor;
            let pages = room.min(run.pages - page);
            runs.push(Run { first: run.first + page, pages });
            room -= pages;
            progress.cursor.page += pages;
            if progress.cursor.page == run.pages {
                progress.cursor = Cursor { run: progress.cursor.run + 1, page: 0 };
            }
        }
        if progress.cursor.run == self.runs.len() {
            progress.cursor = Cursor::default();
            progress.waiting.pop_front();
        }
        progress.flying += 1;
        progress.figures.descriptors += 1;
        progress.first_byte.get_or_insert(now);
        let more = !progress.waiting.is_empty();
        progress.queued = more;
        let bytes = runs.iter().map(|run| u64::from(run.pages)).sum::<u64>() * page_bytes;
        (Some(Piece { job: self.clone(), place, runs, bytes }), more)
    }

    /// A piece of `bytes` bytes was acknowledged.
    pub(super) fn landed(&self, bytes: u64, now: Instant) -> Option<Ended> {
        let mut progress = self.lock();
        progress.settle(now);
        progress.flying -= 1;
        progress.left_bytes -= bytes;
        progress.figures.bytes += bytes;
        self.end_if_due(&mut progress, now)
    }

    /// A piece is not on its way any more and has not landed.
    pub(super) fn lost(&self, why: PushEnd, now: Instant) -> Option<Ended> {
        let mut progress = self.lock();
        progress.settle(now);
        progress.flying -= 1;
        progress.stop.get_or_insert(why);
        self.end_if_due(&mut progress, now)
    }

    /// A piece of the buffer at `place` was refused.
    pub(super) fn refused(&self, place: usize, refusal: FrameRefusal, now: Instant) -> Option<Ended> {
        let buffer = self.source.buffers().as_slice()[place];
        let (component, layer) = (buffer.component.name(), buffer.layer);
        self.lost(PushEnd::Failed(Cause::Refused { component, layer, refusal }), now)
    }

    /// Nothing further leaves; the push ends when nothing is on its way.
    pub(super) fn stop(&self, why: PushEnd, now: Instant) -> Option<Ended> {
        let mut progress = self.lock();
        progress.settle(now);
        progress.stop.get_or_insert(why);
        progress.waiting.clear();
        self.end_if_due(&mut progress, now)
    }

    /// Whether it was stopped or has failed.
    pub(super) fn is_stopping(&self) -> bool {
        self.lock().stop.is_some()
    }

    /// Why it fails at `now`, when its time is over.
    pub(super) fn overdue(&self, now: Instant) -> Option<PushEnd> {
        let progress = self.lock();
        let (Some(first_byte), Some(all_ready)) = (progress.first_byte, progress.all_ready) else { return None };
        if now.duration_since(first_byte.max(all_ready)) < self.deadline || progress.stop.is_some() {
            return None;
        }
        Some(PushEnd::Failed(Cause::Deadline { ms: self.deadline.as_millis() as u64 }))
    }

    fn end_if_due(&self, progress: &mut Progress, now: Instant) -> Option<Ended> {
        if progress.over {
            return None;
        }
        let end = match &progress.stop {
            Some(why) if progress.flying == 0 => why.clone(),
            None if progress.left_bytes == 0 => PushEnd::Complete,
            Some(_) | None => return None,
        };
        progress.over = true;
        progress.waiting.clear();
        let us = |time: Duration| time.as_micros() as u64;
        let figures = &mut progress.figures;
        let Spent { queue, layers, wire, .. } = progress.spent;
        (figures.queue_us, figures.layers_us, figures.wire_us) = (us(queue), us(layers), us(wire));
        figures.total_us = us(now.duration_since(self.began));
        Some((end, progress.figures.clone()))
    }

    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().expect(NO_PANIC)
    }
}

impl Progress {
    /// Counts the time since the last change to what it was spent with.
    fn settle(&mut self, now: Instant) {
        let time = now.saturating_duration_since(self.spent.since);
        self.spent.since = now;
        if self.flying > 0 {
            self.spent.wire += time;
        } else if self.waiting.is_empty() {
            self.spent.layers += time;
        } else {
            self.spent.queue += time;
        }
    }
}

/// The runs of an order, longest first.
fn check(order: &PushOrder) -> Result<Vec<Run>, Refusal> {
    let PushOrder { positions, pages, slots, source, .. } = order;
    if pages.len() > POSITIONS_MAX {
        return Err(TooLarge::new("pages", pages.len() as u64, POSITIONS_MAX as u64).into());
    }
    for (field, entries) in [("positions", positions.len()), ("slots", slots.len())] {
        if entries != pages.len() {
            let limit = format!("{}, as the pages", pages.len());
            return Err(Malformed::new(field, format_args!("{entries} entries"), limit).into());
        }
    }
    if let Some(pair) = positions.windows(2).find(|pair| pair[0] >= pair[1]) {
        return Err(Malformed::new("positions", pair[1], format_args!("more than {}", pair[0])).into());
    }
    if let Some(page) = pages.iter().find(|page| !source.holds(**page)) {
        return Err(Malformed::new("pages", page, format_args!("1..{}", source.buffers().pages())).into());
    }
    let here: Vec<L1Page> = pages.iter().copied().map(L1Page).collect();
    let there: Vec<HostPage> = slots.iter().copied().map(HostPage).collect();
    let merged = Runs::merge(&here, &there).map_err(|error| Malformed::new("pages", error, "pairs, each page once"))?;
    let mut first = 0;
    let mut runs: Vec<Run> = Vec::with_capacity(merged.run_count());
    for run in merged.as_slice() {
        runs.push(Run { first, pages: run.pages });
        first += run.pages;
    }
    runs.sort_by_key(|run| (std::cmp::Reverse(run.pages), run.first));
    Ok(runs)
}

const NO_PANIC: &str = "no thread panics with a push locked";
