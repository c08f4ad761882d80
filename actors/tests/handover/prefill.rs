//! The prefill group without its sender: an index that names pages, and ranks that push them.

use std::collections::BTreeMap;

use hicached_actors::calls::{Calls, draw};
use hicached_actors::machine::Effect;
use hicached_actors::protocol::{
    Address, Bin, Incarnation, IndexNews, OpId, Outgoing, PageId, Pages, Push, PushFigures, PushStopped, Pushed, Rank,
    RankIn, RankIs, Refusal, SendEnd, SendOpen, SendPart, SendStop, SenderIn, Time, Unknown,
};

use crate::decode::Decode;
use crate::world::{CP, PAGE_TOKENS, Said, life};

/// Index and ranks.
pub(crate) struct Prefill {
    pub(crate) control: Incarnation,
    pub(crate) calls: Calls,
    /// How each attempt ended: `Ok`, or why not.
    pub(crate) over: BTreeMap<(OpId, u32), Result<(), String>>,
    /// Whether ranks keep pushes until they are told to carry them out.
    pub(crate) holds: bool,
    sends: BTreeMap<OpId, Send>,
    ranks: Vec<PushRank>,
    next_op: u64,
}

struct Send {
    attempt: u32,
    tokens: u32,
    parts: Vec<(u32, Vec<PageId>)>,
    taken: u32,
}

struct PushRank {
    life: Incarnation,
    /// Pushes that have not been carried out: by transfer, attempt and part.
    held: BTreeMap<(OpId, u32, u32), Push>,
    done: BTreeMap<(OpId, u32, u32), bool>,
    /// The highest attempt that was stopped.
    stopped: BTreeMap<OpId, u32>,
}

impl Prefill {
    pub(crate) fn new(control: Incarnation) -> Self {
        let rank = |rank| PushRank {
            life: life(0x10 + rank),
            held: BTreeMap::new(),
            done: BTreeMap::new(),
            stopped: BTreeMap::new(),
        };
        Self {
            control,
            calls: Calls::new(7),
            over: BTreeMap::new(),
            holds: false,
            sends: BTreeMap::new(),
            ranks: (0..CP).map(rank).collect(),
            next_op: 0,
        }
    }

    /// Begins an attempt: pages with drawn owners, named in parts of drawn sizes.
    pub(crate) fn open(&mut self, now: Time, seed: &mut u64, of: (OpId, u32), tokens: u32, said: &mut Said) {
        let (transfer, attempt) = of;
        let pages: Vec<PageId> = (0..tokens.div_ceil(PAGE_TOKENS))
            .map(|position| PageId(u32::from(CP) * (position + 1) + (draw(seed) % u64::from(CP)) as u32))
            .collect();
        let (mut parts, mut first) = (Vec::new(), 0);
        while first < pages.len() {
            let end = pages.len().min(first + 1 + (draw(seed) % 7) as usize);
            parts.push((first as u32, pages[first..end].to_vec()));
            first = end;
        }
        // The pages of a load are named when it has ended, after those that were computed behind it.
        if parts.len() > 2 {
            parts.swap(0, 1);
        }
        self.end_calls(transfer);
        self.sends.insert(transfer, Send { attempt, tokens, parts, taken: 0 });
        let open = SendOpen { attempt, to: "decode".to_owned(), session: transfer, tokens };
        self.call(now, (transfer, OPEN), open.into(), said);
    }

    pub(crate) fn stop(&mut self, now: Time, transfer: OpId, said: &mut Said) {
        let Some(attempt) = self.sends.get(&transfer).map(|send| send.attempt) else { return };
        if !self.over.contains_key(&(transfer, attempt)) {
            self.end_calls(transfer);
            self.call(now, (transfer, STOP), SendStop { attempt, cause: "aborted".to_owned() }.into(), said);
        }
    }

    /// The pages of a transfer, by position.
    pub(crate) fn content(transfer: OpId, position: u32) -> u64 {
        transfer.counter() << 32 | u64::from(position)
    }

    pub(crate) fn tell_lives(&mut self, now: Time, said: &mut Said) {
        for rank in 0..CP {
            self.tell_life(now, Rank(rank), said);
        }
    }

    pub(crate) fn replace_rank(&mut self, now: Time, rank: Rank, life: Incarnation, said: &mut Said) {
        let dead = &mut self.ranks[usize::from(rank.0)];
        dead.life = life;
        dead.held.clear();
        dead.done.clear();
        dead.stopped.clear();
        self.tell_life(now, rank, said);
    }

    pub(crate) fn life_of(&self, rank: Rank) -> Incarnation {
        self.ranks[usize::from(rank.0)].life
    }

    /// The index begins again.
    pub(crate) fn forget(&mut self) {
        self.calls = Calls::new(8);
        self.sends.clear();
        self.next_op = 0;
    }

    pub(crate) fn stop_everything(&mut self) {
        self.ranks.iter_mut().for_each(|rank| rank.held.clear());
    }

    /// Whether a rank may still read pages for this attempt.
    pub(crate) fn is_pushing(&self, transfer: OpId, attempt: u32) -> bool {
        self.ranks.iter().flat_map(|rank| rank.held.keys()).any(|(of, number, _)| (*of, *number) == (transfer, attempt))
    }

    /// What the index hears of its sender.
    pub(crate) fn hear(&mut self, now: Time, op: OpId, msg: IndexNews, said: &mut Said) {
        match msg {
            IndexNews::SendTaken(taken) => {
                let Some(send) = self.sends.get_mut(&op).filter(|send| send.attempt == taken.attempt) else { return };
                if self.over.contains_key(&(op, taken.attempt)) || self.calls.is_open((op, STOP)) {
                    return;
                }
                send.taken = send.taken.max(taken.parts);
                let (attempt, part) = (send.attempt, send.taken);
                self.calls.answered((op, OPEN));
                let next: SenderIn = match send.parts.get(part as usize).cloned() {
                    Some((first, pages)) => {
                        SendPart { attempt, part, first, pages: Pages(pages), step: u64::from(part) }.into()
                    }
                    None => {
                        let (tokens, parts) = (send.tokens, part);
                        SendEnd { attempt, parts, tokens, blob: blob(op) }.into()
                    }
                };
                let asked = Outgoing::Sender(next.clone());
                if self.calls.asked((op, PART)) != Some(&asked) {
                    self.call(now, (op, PART), next, said);
                }
            }
            IndexNews::SendOver(over) => {
                assert!(!self.is_pushing(op, over.attempt), "{op:?} is over, and a rank reads its pages");
                let end = if over.ok { Ok(()) } else { Err(over.cause) };
                self.over.entry((op, over.attempt)).or_insert(end);
                if self.sends.get(&op).is_some_and(|send| send.attempt == over.attempt) {
                    self.end_calls(op);
                }
            }
            IndexNews::OpSettled(_) => {
                self.calls.answered((op, LIFE));
            }
            other => panic!("{op:?}: {other:?}"),
        }
    }

    /// What a rank is ordered to do.
    pub(crate) fn order(&mut self, decode: &mut Decode, rank: Rank, op: OpId, msg: RankIn, said: &mut Said) {
        let at = &mut self.ranks[usize::from(rank.0)];
        match msg {
            RankIn::Push(push) => {
                let key = (op, push.attempt, push.part);
                let is_void = push.lives[usize::from(rank.0)] != at.life;
                if is_void || at.stopped.get(&op).is_some_and(|stopped| push.attempt <= *stopped) {
                    return say_pushed(rank, key, false, said);
                }
                match at.done.get(&key) {
                    Some(ok) => say_pushed(rank, key, *ok, said),
                    None => {
                        at.held.insert(key, push);
                    }
                }
                if !self.holds {
                    self.push_held(decode, said);
                }
            }
            RankIn::StopPush(stop) => {
                at.held.retain(|(of, attempt, _), _| (*of, *attempt) != (op, stop.attempt));
                let stopped = at.stopped.entry(op).or_default();
                *stopped = stop.attempt.max(*stopped);
                let answer = PushStopped { attempt: stop.attempt, rank };
                said.push((Address::Rank(rank), op, Outgoing::Sender(answer.into())));
            }
            other => panic!("{op:?}: {other:?}"),
        }
    }

    /// Ranks carry out what they hold.
    pub(crate) fn push_held(&mut self, decode: &mut Decode, said: &mut Said) {
        for (rank, at) in (0..).map(Rank).zip(&mut self.ranks) {
            for (key, push) in std::mem::take(&mut at.held) {
                let (transfer, attempt, _) = key;
                let pairs = push.positions.0.iter().zip(push.pages.0.iter().zip(&push.slots.0));
                let mut ok = true;
                for (position, (page, slot)) in pairs {
                    assert_eq!(page.owner(CP), rank, "a rank pushes what it does not own");
                    let bytes = Self::content(transfer, position.0);
                    ok &= decode.write((transfer, attempt), &push.grant, rank, *position, (*slot, bytes));
                }
                at.done.insert(key, ok);
                say_pushed(rank, key, ok, said);
            }
        }
    }

    pub(crate) fn wake(&mut self, now: Time, said: &mut Said) {
        let mut out = Vec::new();
        self.calls.wake(now, &mut out);
        post(out, said);
    }

    fn tell_life(&mut self, now: Time, rank: Rank, said: &mut Said) {
        self.next_op += 1;
        let op = OpId::new(self.control, self.next_op);
        self.call(now, (op, LIFE), RankIs { rank, incarnation: self.life_of(rank) }.into(), said);
    }

    fn call(&mut self, now: Time, id: (OpId, u16), msg: SenderIn, said: &mut Said) {
        let mut out = Vec::new();
        self.calls.call(now, id, Outgoing::Sender(msg), &None, &mut out);
        post(out, said);
    }

    fn end_calls(&mut self, transfer: OpId) {
        for topic in [OPEN, PART, STOP] {
            self.calls.answered((transfer, topic));
        }
    }
}

/// What the prefill engine has for the decode engine.
pub(crate) fn blob(transfer: OpId) -> Bin {
    Bin(transfer.0.to_vec())
}

/// What an index says, from its effects.
pub(crate) fn post(effects: Vec<Effect>, said: &mut Said) {
    for effect in effects {
        if let Effect::Send { to, op, .. } = effect {
            said.push((Address::Index, op, to));
        }
    }
}

fn say_pushed(rank: Rank, key: (OpId, u32, u32), ok: bool, said: &mut Said) {
    let (op, attempt, part) = key;
    let gone: Refusal = Unknown::new("grant", op).into();
    let failed = if ok { vec![] } else { vec![gone] };
    let figures = PushFigures { bytes: 32, runs: 1, ..PushFigures::NONE };
    let answer = Pushed { attempt, part, rank, complete: ok, failed, figures };
    said.push((Address::Rank(rank), op, Outgoing::Sender(answer.into())));
}

const OPEN: u16 = 0;
const PART: u16 = 1;
const STOP: u16 = 2;
const LIFE: u16 = 3;
