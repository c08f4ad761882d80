//! The sending side of a fake rank: pages leave layer by layer, each when its track has finished it, the oldest push
//! first; a push ends when every frame is answered, or when nothing of it is read or on its way any more.

use std::collections::{BTreeMap, BTreeSet};

use hicached_actors::protocol::{
    Bin, OpId, Outgoing, PageId, PeerPage, Position, Push, PushFigures, PushStopped, Pushed, Refusal, SenderIn,
    StopPush, Time, WrongState,
};

use super::RankProcess;
use super::landing::Name;
use crate::memory::Memory;
use crate::net::{Event, Net};
use crate::wire::{Frame, FrameAnswer, FramePage};

/// A part of an attempt of a transfer.
pub(crate) type PushKey = (OpId, u32, u32);

/// Pushes that run, and the ends of others.
#[derive(Debug, Default)]
pub(super) struct Pushes {
    running: BTreeMap<PushKey, Running>,
    ended: BTreeMap<PushKey, Pushed>,
    /// The highest attempt of each transfer that was stopped.
    stopped: BTreeMap<OpId, u32>,
    /// Attempts whose end somebody waits for.
    stopping: BTreeSet<Name>,
    /// What is being sent: the push and its part.
    sending: Option<(PushKey, usize)>,
    begun: u64,
    frames_made: u64,
    /// Frames on their way out.
    frames: Vec<Frame>,
    /// Whether its connection is to be given up.
    gives_up: bool,
}

#[derive(Debug)]
struct Running {
    age: u64,
    step: u64,
    positions: Vec<Position>,
    pages: Vec<PageId>,
    slots: Vec<PeerPage>,
    grant: Bin,
    deadline_ms: u64,
    /// By part: whether its frame has left.
    sent: Vec<bool>,
    flying: BTreeSet<u64>,
    stop: Option<Refusal>,
    began: Time,
    first_byte: Option<Time>,
    all_ready: Option<Time>,
    settled: Time,
    figures: PushFigures,
}

impl RankProcess {
    /// Pages that a push reads, and for which attempt.
    pub(crate) fn pushed_pages(&self) -> impl Iterator<Item = (PageId, Name)> + '_ {
        let running = self.pushes.running.iter();
        running.flat_map(|(key, push)| push.pages.iter().map(|page| (*page, (key.0, key.1))))
    }

    /// Whether nothing is sent and nothing may land.
    pub(crate) fn has_no_transfers(&self) -> bool {
        self.pushes.running.is_empty() && self.landing_pages().next().is_none()
    }

    /// Frames that leave.
    pub(crate) fn take_frames(&mut self) -> Vec<Frame> {
        std::mem::take(&mut self.pushes.frames)
    }

    /// Whether it gives its connection up.
    pub(crate) fn takes_connection_down(&mut self) -> bool {
        std::mem::take(&mut self.pushes.gives_up)
    }

    pub(super) fn push(&mut self, net: &mut Net, memory: &Memory, op: OpId, msg: Push) {
        let key = (op, msg.attempt, msg.part);
        if let Some(pushed) = self.pushes.ended.get(&key).cloned() {
            return self.tell_sender(net, op, pushed.into());
        }
        if self.pushes.running.contains_key(&key) {
            return self.say_pushed(net, key, false, Vec::new());
        }
        if let Err(refusal) = self.check_push(memory, key, &msg) {
            return self.end_push(net, key, vec![refusal]);
        }
        self.pushes.begun += 1;
        let parts = &memory.layout.parts;
        let buffers = parts.iter().filter(|part| part.bytes > 0).count() as u64;
        let running = Running {
            age: self.pushes.begun,
            step: msg.step,
            deadline_ms: msg.deadline_ms,
            sent: parts.iter().map(|part| part.bytes == 0).collect(),
            flying: BTreeSet::new(),
            stop: None,
            began: net.now,
            first_byte: None,
            all_ready: None,
            settled: net.now,
            figures: PushFigures { runs: runs_of(&msg, memory.layout.cp) * buffers, ..PushFigures::NONE },
            positions: msg.positions.0,
            pages: msg.pages.0,
            slots: msg.slots.0,
            grant: msg.grant,
        };
        self.pushes.running.insert(key, running);
        self.send_what_is_ready(net, memory);
    }

    fn check_push(&self, memory: &Memory, key: PushKey, msg: &Push) -> Result<(), Refusal> {
        let op = key.0;
        if self.pushes.stopped.get(&op).is_some_and(|stopped| key.1 <= *stopped) {
            return Err(WrongState::new(op, "was stopped").into());
        }
        let is_mine = |page: &PageId| page.owner(memory.layout.cp) == self.rank && memory.holds(Some(*page), None);
        let pages = &msg.pages.0;
        let is_paired = pages.len() == msg.positions.0.len() && pages.len() == msg.slots.0.len();
        if self.engine.is_none() || !is_paired || !pages.iter().all(is_mine) {
            return Err(self.no_pool(op));
        }
        Ok(())
    }

    pub(super) fn stop_push(&mut self, net: &mut Net, op: OpId, msg: &StopPush) {
        let highest = self.pushes.stopped.entry(op).or_default();
        *highest = msg.attempt.max(*highest);
        self.pushes.stopping.insert((op, msg.attempt));
        let keys: Vec<PushKey> = self.running_of((op, msg.attempt)).collect();
        for key in &keys {
            self.stop_running(net, *key, WrongState::new(op, "was stopped").into());
        }
        self.stopped_if_still(net, (op, msg.attempt));
    }

    /// Nothing further leaves; what is on its way is waited for, but not for long.
    fn stop_running(&mut self, net: &mut Net, key: PushKey, why: Refusal) {
        let Some(push) = self.pushes.running.get_mut(&key) else { return };
        push.stop.get_or_insert(why);
        if !push.flying.is_empty() {
            net.after_us(STOP_US, Event::Overdue(self.rank, self.lives, key));
        }
        self.end_if_due(net, key);
    }

    /// Words have moved, a frame has left or a push has begun: the oldest push with a layer that is ready goes on.
    pub(super) fn send_what_is_ready(&mut self, net: &mut Net, memory: &Memory) {
        let mut overdue = Vec::new();
        for (key, push) in &mut self.pushes.running {
            let is_ready = (0..push.sent.len()).all(|part| is_ready(memory, self.rank.0, push.step, part));
            if is_ready && push.all_ready.is_none() {
                push.all_ready = Some(net.now);
                overdue.push((push.deadline_ms, *key));
            }
        }
        for (ms, key) in overdue {
            net.at(net.now.plus_ms(ms), Event::Overdue(self.rank, self.lives, key));
        }
        if self.pushes.sending.is_some() {
            return;
        }
        let rank = self.rank.0;
        let next = self.pushes.running.iter().filter(|(_, push)| push.stop.is_none()).filter_map(|(key, push)| {
            let unsent = (0..push.sent.len()).filter(|part| !push.sent[*part]);
            let mut ready: Vec<usize> = unsent.filter(|part| is_ready(memory, rank, push.step, *part)).collect();
            ready.sort_by_key(|part| (memory.layout.parts[*part].layer, *part));
            Some((push.age, *key, *ready.first()?, push.pages.len() as u64))
        });
        let Some((_, key, part, pages)) = next.min() else { return };
        self.pushes.sending = Some((key, part));
        let buffers = memory.layout.parts.iter().filter(|part| part.bytes > 0).count() as u64;
        let us = match self.page_us {
            Some(page_us) => page_us * pages / buffers,
            None => net.chance.within(20, net.mix.copy_us),
        };
        net.after_us(us, Event::Push(self.rank, self.lives));
        let Some(push) = self.pushes.running.get_mut(&key) else { return };
        push.settle(net.now, Spent::Queue);
        if push.first_byte.is_none() {
            push.first_byte = Some(net.now);
            net.at(net.now.plus_ms(push.deadline_ms), Event::Overdue(self.rank, self.lives, key));
        }
    }

    /// The frame that is being sent leaves.
    pub(crate) fn frame_leaves(&mut self, net: &mut Net, memory: &mut Memory, lives: u32) {
        if !self.alive || lives != self.lives {
            return;
        }
        let Some((key, part)) = self.pushes.sending.take() else { return };
        if let Some(push) = self.pushes.running.get_mut(&key).filter(|push| push.stop.is_none()) {
            self.pushes.frames_made += 1;
            let number = self.pushes.frames_made;
            push.sent[part] = true;
            push.flying.insert(number);
            push.figures.descriptors += 1;
            push.settle(net.now, Spent::Wire);
            let places = push.positions.iter().zip(push.pages.iter().zip(&push.slots));
            let pages = places.map(|(position, (page, slot))| {
                let bytes = memory.read(*page, part);
                FramePage { position: position.0, slot: slot.0, bytes }
            });
            let pages: Vec<FramePage> = pages.collect();
            push.figures.bytes += pages.iter().map(|page| page.bytes.len() as u64).sum::<u64>();
            let of = &memory.layout.parts[part];
            self.pushes.frames.push(Frame {
                from: self.rank,
                lives: self.lives,
                number,
                transfer: key.0,
                attempt: key.1,
                grant: push.grant.clone(),
                component: of.component.clone(),
                layer: of.layer,
                pages,
            });
            self.chatter_of_push(net, key);
        }
        self.send_what_is_ready(net, memory);
    }

    /// What must move nothing, and what must be found out: how far a push is, a try that was never made, and that it is
    /// complete although a layer is missing.
    fn chatter_of_push(&mut self, net: &mut Net, key: PushKey) {
        let (op, attempt, part) = key;
        if net.chance.happens(net.mix.chatter) {
            self.say_pushed(net, key, false, Vec::new());
        }
        if net.chance.happens(net.mix.chatter / 4) {
            self.say_pushed(net, (op, attempt + 1, part), true, Vec::new());
        }
        let is_short = self.pushes.running.get(&key).is_some_and(|push| !push.sent.iter().all(|sent| *sent));
        if is_short && net.chance.happens(net.mix.chatter / 4) {
            net.transfers.lies += 1;
            self.end_push(net, key, Vec::new());
        }
    }

    /// A frame is answered.
    pub(crate) fn frame_answered(&mut self, net: &mut Net, memory: &Memory, answer: &FrameAnswer) {
        if !self.alive || answer.lives != self.lives {
            return;
        }
        let flying = self.pushes.running.iter_mut().find(|(_, push)| push.flying.contains(&answer.number));
        let Some((key, push)) = flying else { return };
        let key = *key;
        push.flying.remove(&answer.number);
        push.settle(net.now, Spent::Wire);
        if let Some(refused) = answer.refused {
            let refusal = WrongState::new(key.0, &format!("a frame was refused: {refused}"));
            self.stop_running(net, key, refusal.into());
        } else {
            self.end_if_due(net, key);
        }
        self.send_what_is_ready(net, memory);
    }

    /// The connection is gone: so is what was on its way.
    pub(crate) fn connection_broke(&mut self, net: &mut Net, memory: &Memory) {
        let flying = self.pushes.running.iter().filter(|(_, push)| !push.flying.is_empty());
        let keys: Vec<PushKey> = flying.map(|(key, _)| *key).collect();
        for key in keys {
            if let Some(push) = self.pushes.running.get_mut(&key) {
                push.flying.clear();
            }
            self.stop_running(net, key, WrongState::new(key.0, "the connection broke").into());
        }
        self.send_what_is_ready(net, memory);
    }

    /// The time of a push may be over: from its first byte, or from when all of it was ready.
    pub(crate) fn overdue(&mut self, net: &mut Net, memory: &Memory, lives: u32, key: PushKey) {
        if !self.alive || lives != self.lives {
            return;
        }
        let Some(push) = self.pushes.running.get(&key) else { return };
        let began = push.first_byte.zip(push.all_ready).map(|(first, ready)| first.max(ready));
        let is_over = began.is_some_and(|began| began.plus_ms(push.deadline_ms) <= net.now);
        if push.stop.is_some() && !push.flying.is_empty() {
            self.pushes.gives_up = true;
        } else if is_over {
            net.transfers.overdue += 1;
            let why = format!("not over after {} ms", push.deadline_ms);
            self.stop_running(net, key, WrongState::new(key.0, &why).into());
        }
        self.send_what_is_ready(net, memory);
    }

    fn end_if_due(&mut self, net: &mut Net, key: PushKey) {
        let Some(push) = self.pushes.running.get(&key).filter(|push| push.flying.is_empty()) else { return };
        match &push.stop {
            Some(refusal) => {
                let failed = vec![refusal.clone()];
                self.end_push(net, key, failed);
            }
            None if push.sent.iter().all(|sent| *sent) => self.end_push(net, key, Vec::new()),
            None => {}
        }
    }

    /// A push is over: its pages are not read any more.
    fn end_push(&mut self, net: &mut Net, key: PushKey, failed: Vec<Refusal>) {
        let (op, attempt, part) = key;
        let figures = self.pushes.running.remove(&key).map_or(PushFigures::NONE, |mut push| {
            push.figures.total_us = us_between(push.began, net.now);
            push.figures
        });
        let pushed = Pushed { attempt, part, rank: self.rank, complete: failed.is_empty(), failed, figures };
        self.pushes.ended.insert(key, pushed.clone());
        self.tell_sender(net, op, pushed.into());
        self.stopped_if_still(net, (op, attempt));
    }

    fn stopped_if_still(&mut self, net: &mut Net, name: Name) {
        if self.pushes.stopping.contains(&name) && self.running_of(name).next().is_none() {
            self.pushes.stopping.remove(&name);
            self.tell_sender(net, name.0, PushStopped { attempt: name.1, rank: self.rank }.into());
        }
    }

    /// Another engine comes: nothing of the old one's pages is sent any more.
    pub(super) fn stop_all_pushes(&mut self, net: &mut Net) {
        let keys: Vec<PushKey> = self.pushes.running.keys().copied().collect();
        for key in keys {
            self.end_push(net, key, vec![WrongState::new(key.0, "another engine came").into()]);
        }
    }

    /// Another control group comes, or the process is gone: nobody hears of what was sent.
    pub(super) fn forget_pushes(&mut self) {
        let Pushes { begun, frames_made, sending, .. } = self.pushes;
        self.pushes = Pushes { begun, frames_made, sending, ..Pushes::default() };
    }

    /// The sender misses messages: ends are said again.
    pub(super) fn say_pushed_again(&mut self, net: &mut Net) {
        let newest: Vec<(OpId, Pushed)> =
            self.pushes.ended.iter().rev().take(SAID_AGAIN_MAX).map(|(key, pushed)| (key.0, pushed.clone())).collect();
        for (op, pushed) in newest {
            self.tell_sender(net, op, pushed.into());
        }
    }

    fn say_pushed(&mut self, net: &mut Net, key: PushKey, complete: bool, failed: Vec<Refusal>) {
        let (op, attempt, part) = key;
        let figures = PushFigures::NONE;
        self.tell_sender(net, op, Pushed { attempt, part, rank: self.rank, complete, failed, figures }.into());
    }

    fn tell_sender(&mut self, net: &mut Net, op: OpId, msg: SenderIn) {
        self.send(net, Outgoing::Sender(msg), op);
    }

    fn running_of(&self, name: Name) -> impl Iterator<Item = PushKey> + '_ {
        self.pushes.running.range((name.0, name.1, 0)..=(name.0, name.1, u32::MAX)).map(|(key, _)| *key)
    }
}

/// What the time of a push goes by with.
enum Spent {
    Queue,
    Wire,
}

impl Running {
    /// Counts the time since the last change.
    fn settle(&mut self, now: Time, with: Spent) {
        let us = us_between(self.settled, now);
        match with {
            Spent::Queue if self.all_ready.is_some() => self.figures.queue_us += us,
            Spent::Queue => self.figures.layers_us += us,
            Spent::Wire => self.figures.wire_us += us,
        }
        self.settled = now;
    }
}

/// Whether a part of the pages that `step` computes is done on this rank.
fn is_ready(memory: &Memory, rank: u8, step: u64, part: usize) -> bool {
    let of = &memory.layout.parts[part];
    let word = memory.pools[usize::from(rank)].words[usize::from(of.draft)];
    step == 0 || of.bytes == 0 || word >= memory.layout.word(of.draft, step, of.layer + 1)
}

/// Runs that are contiguous at both ends.
fn runs_of(msg: &Push, cp: u8) -> u64 {
    let pairs = msg.pages.0.iter().zip(&msg.slots.0).map(|(page, slot)| (page.physical(cp), slot.0));
    let pairs: Vec<(u32, u32)> = pairs.collect();
    let breaks = pairs.windows(2).filter(|pair| pair[1] != (pair[0].0 + 1, pair[0].1 + 1));
    (pairs.len().min(1) + breaks.count()) as u64
}

fn us_between(from: Time, to: Time) -> u64 {
    to.ns.saturating_sub(from.ns) / 1_000
}

/// What is on its way when a push is stopped is waited for so long; then the connection is given up.
const STOP_US: u64 = 200_000;

/// Ends said again at once.
const SAID_AGAIN_MAX: usize = 32;
