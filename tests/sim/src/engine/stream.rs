//! Forwards of an engine: each rank's stream runs steps one after the other, layer by layer, writes the
//! bytes of the layer and then moves the word. It waits for nothing but the layers a load still owes it.

use std::collections::VecDeque;

use hicached_actors::protocol::{PageId, Rank, Time};

use super::session::Phase;
use super::{Engine, Session};
use crate::checks::Violation;
use crate::layout::POISON;
use crate::memory::{Memory, ring_state};
use crate::net::{Event, Net};

/// What one forward does for one session.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The session's number.
    pub session: u64,
    /// First token position.
    pub first: u32,
    /// Tokens.
    pub tokens: u32,
    /// Whether its draft runs.
    pub draft: bool,
    /// Loads of its session that had failed when it was launched: a later failure makes it void.
    pub epoch: u32,
    /// The pages it writes, with their positions.
    pub pages: Vec<(u32, PageId)>,
}

/// One forward.
#[derive(Clone, Debug)]
pub struct StepRun {
    /// Its sessions.
    pub entries: Vec<Entry>,
    /// Sessions it named, and how many of their loads had failed by then.
    pub named: Vec<(u64, u32)>,
    /// Whether the index has answered.
    pub answered: bool,
    done: u64,
}

/// The stream of one engine rank.
#[derive(Clone, Debug, Default)]
pub struct Stream {
    queue: VecDeque<u64>,
    layer: u32,
    /// A layer runs; otherwise the stream waits for a load or has nothing to do.
    running: bool,
}

impl Engine {
    /// Hands a step to every stream.
    pub fn launch(
        &mut self,
        net: &mut Net,
        memory: &mut Memory,
        number: u64,
        entries: Vec<Entry>,
    ) -> Result<(), Violation> {
        net.stats.steps += 1;
        let named = entries.iter().map(|entry| (entry.session, entry.epoch)).collect();
        self.steps.insert(number, StepRun { entries, named, answered: false, done: 0 });
        for rank in 0..memory.layout.cp {
            self.streams[usize::from(rank)].queue.push_back(number);
            self.run_stream(net, memory, Rank(rank))?;
        }
        Ok(())
    }

    /// Begins the next layer of a rank's stream when nothing keeps it.
    pub fn run_stream(&mut self, net: &mut Net, memory: &mut Memory, rank: Rank) -> Result<(), Violation> {
        let stream = &self.streams[usize::from(rank.0)];
        if stream.running {
            return Ok(());
        }
        let Some(number) = stream.queue.front().copied() else { return Ok(()) };
        let layer = stream.layer;
        if layer == 0 {
            self.poison(memory, rank, number);
        }
        if self.stop_after.is_some_and(|stop| layer >= stop) || self.waits_for_load(memory, rank, number, layer) {
            return Ok(());
        }
        self.verify_layer(net, memory, rank, number, layer)?;
        self.streams[usize::from(rank.0)].running = true;
        let us = net.chance.within(self.layer_us.0, self.layer_us.1);
        net.after_us(us, Event::Layer(rank, self.life_number));
        Ok(())
    }

    /// A layer of a rank's stream ends.
    pub fn layer_done(&mut self, net: &mut Net, memory: &mut Memory, rank: Rank, life: u32) -> Result<(), Violation> {
        if life != self.life_number {
            return Ok(());
        }
        let at = usize::from(rank.0);
        self.streams[at].running = false;
        let (Some(number), layer) = (self.streams[at].queue.front().copied(), self.streams[at].layer) else {
            return Ok(());
        };
        self.write_layer(memory, rank, number, layer);
        let (target, draft) = memory.layout.layers;
        let (of_draft, passed) = if layer < target { (false, layer + 1) } else { (true, layer + 1 - target) };
        self.move_word(memory, rank, of_draft, number, passed);
        let runs_draft = self.steps.get(&number).is_some_and(|step| step.entries.iter().any(|entry| entry.draft));
        let layers = if runs_draft { target + draft } else { target };
        if layer + 1 < layers {
            self.streams[at].layer += 1;
            return self.run_stream(net, memory, rank);
        }
        // The words say passed, also of a track that did not run.
        self.move_word(memory, rank, true, number, draft);
        self.streams[at].queue.pop_front();
        self.streams[at].layer = 0;
        let every = (1_u64 << memory.layout.cp) - 1;
        let step = self.steps.get_mut(&number).expect("a running step is kept until every rank is done");
        step.done |= 1 << rank.0;
        if step.done == every {
            self.step_done(net, memory, number)?;
        }
        self.run_stream(net, memory, rank)
    }

    fn move_word(&self, memory: &mut Memory, rank: Rank, draft: bool, number: u64, layers: u32) {
        let value = memory.layout.word(draft, number, layers);
        let pool = &mut memory.pools[usize::from(rank.0)];
        let word = &mut pool.words[usize::from(draft)];
        *word = value.max(*word);
        memory.words_moved |= 1 << rank.0;
    }

    /// From its launch until a layer is done, what a forward writes is anything.
    fn poison(&self, memory: &mut Memory, rank: Rank, number: u64) {
        for entry in self.entries_of(number) {
            for part in 0..memory.layout.parts.len() {
                if !memory.layout.parts[part].draft || entry.draft {
                    self.for_bytes(memory, rank, entry, part, |_, _, byte| *byte = POISON);
                }
            }
        }
    }

    fn write_layer(&self, memory: &mut Memory, rank: Rank, number: u64, layer: u32) {
        for part in memory.layout.parts_of_layer(layer).collect::<Vec<_>>() {
            for entry in self.entries_of(number) {
                let Some(session) = self.sessions.get(&entry.session) else { continue };
                if memory.layout.parts[part].draft && !entry.draft {
                    continue;
                }
                let layout = memory.layout.clone();
                self.for_bytes(memory, rank, entry, part, |position, slot, byte| {
                    *byte = layout.byte(part, &session.text(&layout, position), slot);
                });
            }
        }
    }

    fn for_bytes(
        &self,
        memory: &mut Memory,
        rank: Rank,
        entry: &Entry,
        part: usize,
        mut act: impl FnMut(u32, usize, &mut u8),
    ) {
        if memory.layout.parts[part].bytes == 0 {
            return;
        }
        let (page_tokens, cp) = (memory.layout.page_tokens, memory.layout.cp);
        for (position, page) in entry.pages.iter().filter(|(_, page)| page.owner(cp) == rank) {
            let start = (position * page_tokens).max(entry.first);
            let end = ((position + 1) * page_tokens).min(entry.first + entry.tokens);
            let bytes = memory.l1_mut(*page, part);
            for token in start..end {
                let slot = (token - position * page_tokens) as usize;
                act(*position, slot, &mut bytes[slot]);
            }
        }
    }

    fn entries_of(&self, number: u64) -> &[Entry] {
        self.steps.get(&number).map_or(&[], |step| &step.entries)
    }

    /// Whether a load still owes this layer to a session of the step.
    fn waits_for_load(&self, memory: &Memory, rank: Rank, number: u64, layer: u32) -> bool {
        self.entries_of(number).iter().filter_map(|entry| self.sessions.get(&entry.session)).any(|session| {
            session.load.iter().any(|load| {
                let ring = &memory.pools[usize::from(rank.0)].ring[load.slot as usize];
                ring.word < load.base + u64::from(layer) + 1
            })
        })
    }

    /// What a forward reads in this layer must be right: pages that were hit or loaded (E1).
    fn verify_layer(
        &self,
        net: &mut Net,
        memory: &Memory,
        rank: Rank,
        number: u64,
        layer: u32,
    ) -> Result<(), Violation> {
        for entry in self.entries_of(number) {
            let Some(session) = self.sessions.get(&entry.session).filter(|session| session.phase != Phase::Ended)
            else {
                continue;
            };
            let failed = session
                .load
                .as_ref()
                .is_some_and(|load| self.load_state(memory, rank, load.slot, load.base) == ring_state::FAILED);
            let reads = if failed { session.hit_pages } else { session.hit_pages + session.load_pages };
            for at in (0..reads).filter(|at| session.pages[*at as usize].owner(memory.layout.cp) == rank) {
                net.stats.pages_checked += 1;
                for part in memory.layout.parts_of_layer(layer) {
                    let (page, text) = (session.pages[at as usize], session.text(&memory.layout, at));
                    if !memory.layout.is_right(part, &text, memory.l1(page, part)) {
                        return Err(wrong_byte(session, at, page, &memory.layout.parts[part].component, layer));
                    }
                }
            }
        }
        Ok(())
    }

    fn load_state(&self, memory: &Memory, rank: Rank, slot: u32, base: u64) -> u64 {
        let count = base / (u64::from(memory.layout.all_layers()) + 1);
        memory.pools[usize::from(rank.0)].ring[slot as usize].state(count)
    }

    /// Every rank has run the step: statuses of loads are read before anything of it is published.
    fn step_done(&mut self, net: &mut Net, memory: &mut Memory, number: u64) -> Result<(), Violation> {
        let entries = self.entries_of(number).to_vec();
        if self.steps.get(&number).is_some_and(|step| step.answered) {
            self.steps.remove(&number);
        } else if let Some(step) = self.steps.get_mut(&number) {
            step.entries.clear();
        }
        self.last_done = self.last_done.max(number);
        for entry in &entries {
            self.read_load(net, memory, entry.session);
            let Some(session) = self.sessions.get(&entry.session).filter(|session| session.phase != Phase::Ended)
            else {
                continue;
            };
            if session.load.is_some() || session.epoch != entry.epoch {
                continue;
            }
            let full = session.frontier.min(entry.first + entry.tokens) / memory.layout.page_tokens;
            for at in 0..full {
                net.stats.pages_checked += 1;
                let (page, text) = (session.pages[at as usize], session.text(&memory.layout, at));
                let own = at >= session.hit_pages + session.load_pages;
                let wrong = (0..memory.layout.parts.len())
                    .filter(|part| !(own && session.draftless && memory.layout.parts[*part].draft))
                    .find(|part| !memory.layout.is_right(*part, &text, memory.l1(page, *part)));
                if let Some(part) = wrong {
                    let part = &memory.layout.parts[part];
                    return Err(wrong_byte(session, at, page, &part.component, part.layer));
                }
            }
        }
        Ok(())
    }

    /// Reads the final status of a session's load once every rank has one.
    pub fn read_load(&mut self, net: &mut Net, memory: &Memory, number: u64) {
        let Some(load) = self.sessions.get(&number).and_then(|session| session.load.clone()) else { return };
        let states: Vec<u64> =
            (0..memory.layout.cp).map(|rank| self.load_state(memory, Rank(rank), load.slot, load.base)).collect();
        if states.contains(&ring_state::PENDING) {
            return;
        }
        let Some(session) = self.sessions.get_mut(&number) else { return };
        session.load = None;
        session.load_read = true;
        let prompt_keys = session.keyable(&memory.layout, session.spec.prompt_tokens);
        if states.contains(&ring_state::FAILED) {
            net.stats.loads_failed += 1;
            session.load_pages = 0;
            session.epoch += 1;
            // Keys that came with void entries were not taken in.
            session.keys_sent = prompt_keys;
            session.frontier = load.first * memory.layout.page_tokens;
        } else {
            net.stats.loads += 1;
        }
    }

    /// Gives up loads whose time has come, and all of them on ranks that are gone.
    pub fn give_up_loads(&mut self, net: &mut Net, memory: &mut Memory, gone: u64) -> Result<(), Violation> {
        let layers = u64::from(memory.layout.all_layers());
        let waiting: Vec<(u64, Time)> = self
            .sessions
            .iter()
            .filter(|(_, session)| session.load.is_some())
            .map(|(number, session)| (*number, session.load_until))
            .collect();
        for (number, until) in waiting {
            let Some(load) = self.sessions.get(&number).and_then(|session| session.load.clone()) else { continue };
            for rank in (0..memory.layout.cp).filter(|rank| until <= net.now || gone >> rank & 1 == 1) {
                let ring = &mut memory.pools[usize::from(rank)].ring[load.slot as usize];
                if ring.decide(load.base / (layers + 1), ring_state::FAILED, load.base + layers) {
                    memory.ring_moved |= 1 << rank;
                }
            }
            self.read_load(net, memory, number);
        }
        Ok(())
    }
}

fn wrong_byte(session: &Session, at: u32, page: PageId, component: &str, layer: u32) -> Violation {
    let detail = format!(
        "session {:?} reads page {at} of {} hit and {} loaded at {page:?}: {component} layer {layer} is wrong",
        session.id, session.hit_pages, session.load_pages
    );
    Violation { checker: "E1", detail }
}
