//! One thread that reads the words of every rank that waits for something, and lets what waited go on.
//!
//! Words are memory that a device or another process stores to: nobody calls when they change, so they are read
//! again and again, shortly after a change without pause, then with short sleeps. With nothing waiting the thread
//! sleeps until something does.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use hicached_client::shm::{Track as Word, Words, word_value};
use hicached_kernels::layout::Track;

use super::job::{Job, JobId};
use super::queue::Queue;
use super::{Event, Events};
use crate::rank::layout::LayerCount;
use crate::wire::{Launch, LayersReady, PushKey};

/// Names the words of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::rank) struct WatchId(u64);

/// What waits for words, in one process.
#[derive(Debug)]
pub(super) struct Watcher {
    queue: Arc<Queue>,
    watched: Mutex<Watched>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Watched {
    ranks: BTreeMap<WatchId, RankWords>,
    next: u64,
    closed: bool,
}

#[derive(Debug)]
struct RankWords {
    words: Words,
    layers: LayerCount,
    events: Events,
    /// What the words were when the gates were last compared; `None` compares again.
    seen: Option<[u64; 2]>,
    gates: Vec<Gate>,
}

/// Something that waits for words.
#[derive(Debug)]
enum Gate {
    /// Layers of a track, from `next` on, each when the track's word says that it is done.
    Layers { job: Arc<Job>, step: u64, track: Track, next: u32 },
    /// All layers of a job, when both tracks have passed the step.
    AtEnd { job: Arc<Job>, step: u64 },
    /// A push to another group, whose layers leave as they are done.
    Push { launch: Arc<dyn Launch>, key: PushKey, step: u64, ready: LayersReady },
    /// Somebody asked for the end of this step.
    Step { step: u64 },
}

impl Watcher {
    pub(super) fn new(queue: Arc<Queue>) -> Self {
        Self { queue, watched: Mutex::default(), changed: Condvar::new() }
    }

    pub(super) fn add(&self, words: Words, layers: LayerCount, events: Events) -> WatchId {
        let mut watched = self.lock();
        watched.next += 1;
        let id = WatchId(watched.next);
        watched.ranks.insert(id, RankWords { words, layers, events, seen: None, gates: Vec::new() });
        id
    }

    pub(super) fn remove(&self, id: WatchId) {
        self.lock().ranks.remove(&id);
    }

    pub(super) fn gate_layers(&self, id: WatchId, job: &Arc<Job>, step: u64, at_end: bool) {
        let job = job.clone();
        if at_end {
            return self.gate(id, [Gate::AtEnd { job, step }]);
        }
        let tracks = Track::ALL.into_iter().filter(|track| job.layers().of_track(*track) > 0);
        let gates: Vec<Gate> = tracks.map(|track| Gate::Layers { job: job.clone(), step, track, next: 0 }).collect();
        self.gate(id, gates);
    }

    pub(super) fn gate_push(&self, id: WatchId, launch: Arc<dyn Launch>, key: PushKey, step: u64) {
        self.gate(id, [Gate::Push { launch, key, step, ready: LayersReady { target: 0, draft: 0 } }]);
    }

    /// Layers of this push are not looked for any more.
    pub(super) fn forget_push(&self, id: WatchId, key: PushKey) {
        if let Some(rank) = self.lock().ranks.get_mut(&id) {
            rank.gates.retain(|gate| !matches!(gate, Gate::Push { key: of, .. } if *of == key));
        }
    }

    pub(super) fn gate_step(&self, id: WatchId, step: u64) {
        self.gate(id, [Gate::Step { step }]);
    }

    pub(super) fn forget(&self, id: WatchId, job: JobId) {
        if let Some(rank) = self.lock().ranks.get_mut(&id) {
            rank.gates.retain(|gate| gate.job() != Some(job));
        }
    }

    pub(super) fn forget_steps(&self, id: WatchId) {
        if let Some(rank) = self.lock().ranks.get_mut(&id) {
            rank.gates.retain(|gate| !matches!(gate, Gate::Step { .. }));
        }
    }

    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// Reads words until closed.
    pub(super) fn run(&self) {
        let mut quiet_rounds = 0;
        let mut watched = self.lock();
        while !watched.closed {
            if watched.ranks.values().all(|rank| rank.gates.is_empty()) {
                watched = self.changed.wait(watched).expect(NO_PANIC);
                quiet_rounds = 0;
                continue;
            }
            let mut passed = Vec::new();
            let moved =
                watched.ranks.values_mut().fold(false, |moved, rank| rank.scan(&self.queue, &mut passed) | moved);
            quiet_rounds = if moved { 0 } else { quiet_rounds + 1 };
            if !passed.is_empty() {
                drop(watched);
                passed.drain(..).for_each(|events: Events| events.send(Event::Passed));
                watched = self.lock();
            } else if quiet_rounds < YIELD_ROUNDS {
                drop(watched);
                std::thread::yield_now();
                watched = self.lock();
            } else {
                watched = self.changed.wait_timeout(watched, PAUSE).expect(NO_PANIC).0;
            }
        }
    }

    fn gate(&self, id: WatchId, gates: impl IntoIterator<Item = Gate>) {
        let mut watched = self.lock();
        // A rank that was removed is being dropped; what it still submits goes with it.
        let Some(rank) = watched.ranks.get_mut(&id) else { return };
        rank.gates.extend(gates);
        rank.seen = None;
        drop(watched);
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Watched> {
        self.watched.lock().expect(NO_PANIC)
    }
}

impl RankWords {
    /// Lets pass what the words allow; whether the words had moved.
    fn scan(&mut self, queue: &Queue, passed: &mut Vec<Events>) -> bool {
        if self.gates.is_empty() {
            return false;
        }
        let words = [self.words.value(Word::Target), self.words.value(Word::Draft)];
        if self.seen == Some(words) {
            return false;
        }
        self.seen = Some(words);
        let (layers, events) = (self.layers, &self.events);
        self.gates.retain_mut(|gate| match gate {
            Gate::Layers { job, step, track, next } => {
                let layers = layers.of_track(*track);
                let ready = layers_ready(words, *step, *track, layers);
                if ready > *next {
                    let first = job.layers().index(*track, *next);
                    queue.push_layers(job, first..first + (ready - *next));
                    *next = ready;
                }
                *next < layers
            }
            Gate::AtEnd { job, step } => {
                let ended = is_passed(words, *step, layers);
                if ended {
                    queue.push_layers(job, 0..job.layers().total());
                }
                !ended
            }
            Gate::Push { launch, key, step, ready } => {
                let target = layers_ready(words, *step, Track::Target, layers.of_track(Track::Target));
                let draft = layers_ready(words, *step, Track::Draft, layers.of_track(Track::Draft));
                if (LayersReady { target, draft }) != *ready {
                    *ready = LayersReady { target, draft };
                    launch.ready(*key, *ready);
                }
                !is_passed(words, *step, layers)
            }
            Gate::Step { step } => {
                let ended = is_passed(words, *step, layers);
                if ended {
                    passed.push(events.clone());
                }
                !ended
            }
        });
        true
    }
}

impl Gate {
    fn job(&self) -> Option<JobId> {
        match self {
            Self::Layers { job, .. } | Self::AtEnd { job, .. } => Some(job.id()),
            Self::Push { .. } | Self::Step { .. } => None,
        }
    }
}

/// Layers of `track` that `words` say are done in `step`: all of them once a later step has begun.
fn layers_ready(words: [u64; 2], step: u64, track: Track, layers: u32) -> u32 {
    let word = match track {
        Track::Target => words[0],
        Track::Draft => words[1],
    };
    word.saturating_sub(word_value(step, layers, 0)).min(u64::from(layers)) as u32
}

/// Whether both tracks have passed `step`; a track without layers has passed every step.
fn is_passed(words: [u64; 2], step: u64, layers: LayerCount) -> bool {
    Track::ALL.into_iter().all(|track| {
        let layers = layers.of_track(track);
        layers_ready(words, step, track, layers) == layers
    })
}

/// Rounds without a change before the thread sleeps between two looks.
const YIELD_ROUNDS: u32 = 16;
/// Between two looks at words that do not move: a layer of a forward takes 1 ms and more (`h200.md`, section 4).
const PAUSE: Duration = Duration::from_micros(30);
/// A panic of the watching thread ends the process.
const NO_PANIC: &str = "no thread panics with the words locked";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_is_ready_when_its_word_says_so_and_stays_ready_in_later_steps() {
        for (step, word, ready) in
            [(2, 26, 0), (2, 27, 1), (2, 37, 11), (2, 38, 12), (2, 39, 12), (2, 400, 12), (2, 0, 0), (u64::MAX, 400, 0)]
        {
            assert_eq!(layers_ready([word, 0], step, Track::Target, 12), ready, "word {word} of step {step}");
        }
        let layers = LayerCount { target: 12, draft: 1 };
        assert!(is_passed([25, 3], 1, layers) && !is_passed([25, 2], 1, layers) && !is_passed([24, 3], 1, layers));
        assert!(is_passed([25, 0], 1, LayerCount { target: 12, draft: 0 }));
    }
}
