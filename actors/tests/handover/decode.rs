//! The decode group without its receiver: an index that waits for pages, and a rank where they land.

use std::collections::BTreeMap;

use hicached_actors::calls::Calls;
use hicached_actors::protocol::{
    Accepting, Address, Bin, Expect, HandoverSettled, Incarnation, IndexNews, LandFigures, Landed, NOBODY, OpId,
    Outgoing, Owners, PageId, Pages, PeerPage, Position, Rank, RankIn, RankIs, ReceiverIn, Revoked, Time, Unexpect,
};

use crate::prefill::{Prefill, blob, post};
use crate::world::{PAGE_TOKENS, Said, life};

/// Index and rank.
pub(crate) struct Decode {
    pub(crate) control: Incarnation,
    pub(crate) life: Incarnation,
    pub(crate) calls: Calls,
    /// How each attempt ended: `Ok`, or why not.
    pub(crate) ends: BTreeMap<(OpId, u32), Result<(), String>>,
    /// Writes that were refused, because nothing of their attempt may land.
    pub(crate) refused: u64,
    waits: BTreeMap<OpId, Wait>,
    grants: BTreeMap<(OpId, u32), Grant>,
    revoked: BTreeMap<OpId, u32>,
    /// What stands in each page.
    pool: BTreeMap<PeerPage, u64>,
    next_page: u32,
    next_op: u64,
}

struct Wait {
    attempt: u32,
    tokens: u32,
    first: u32,
    pages: Vec<PageId>,
}

struct Grant {
    bytes: Bin,
    slots: BTreeMap<Position, PeerPage>,
    landed: BTreeMap<Position, Rank>,
}

impl Decode {
    pub(crate) fn new(control: Incarnation) -> Self {
        Self {
            control,
            life: life(0x20),
            calls: Calls::new(9),
            ends: BTreeMap::new(),
            refused: 0,
            waits: BTreeMap::new(),
            grants: BTreeMap::new(),
            revoked: BTreeMap::new(),
            pool: BTreeMap::new(),
            next_page: 1,
            next_op: 0,
        }
    }

    pub(crate) fn open(&mut self, now: Time, of: (OpId, u32), tokens: u32, here: u32, said: &mut Said) {
        let (transfer, attempt) = of;
        let missing = tokens.div_ceil(PAGE_TOKENS) - here;
        let pages: Vec<PageId> = (self.next_page..self.next_page + missing).map(PageId).rev().collect();
        self.next_page += missing;
        let expect = Expect { attempt, tokens, first: here, pages: Pages(pages.clone()) };
        self.waits.insert(transfer, Wait { attempt, tokens, first: here, pages });
        self.calls.answered((transfer, UNEXPECT));
        self.call(now, (transfer, EXPECT), expect.into(), said);
    }

    pub(crate) fn unexpect(&mut self, now: Time, transfer: OpId, said: &mut Said) {
        let Some(attempt) = self.waits.get(&transfer).map(|wait| wait.attempt) else { return };
        if !self.ends.contains_key(&(transfer, attempt)) {
            self.calls.answered((transfer, EXPECT));
            let unexpect = Unexpect { attempt, cause: "aborted".to_owned() };
            self.call(now, (transfer, UNEXPECT), unexpect.into(), said);
        }
    }

    pub(crate) fn tell_life(&mut self, now: Time, said: &mut Said) {
        self.next_op += 1;
        let op = OpId::new(self.control, self.next_op);
        self.call(now, (op, LIFE), RankIs { rank: Rank(0), incarnation: self.life }.into(), said);
    }

    pub(crate) fn replace_rank(&mut self, now: Time, life: Incarnation, said: &mut Said) {
        self.life = life;
        self.grants.clear();
        self.revoked.clear();
        self.tell_life(now, said);
    }

    /// The index begins again, and the rank obeys it: nothing that was granted before may land.
    pub(crate) fn forget(&mut self) {
        self.calls = Calls::new(10);
        self.waits.clear();
        self.grants.clear();
        self.revoked.clear();
        self.next_op = 0;
    }

    /// What the index hears of its receiver.
    pub(crate) fn hear(&mut self, op: OpId, msg: IndexNews, said: &mut Said) {
        let (attempt, end) = match msg {
            IndexNews::Expected(expected) => {
                if self.waits.get(&op).is_some_and(|wait| wait.attempt == expected.attempt) {
                    self.calls.answered((op, EXPECT));
                }
                return;
            }
            IndexNews::OpSettled(_) => {
                self.calls.answered((op, LIFE));
                return;
            }
            IndexNews::Arrived(arrived) => {
                if !self.ends.contains_key(&(op, arrived.attempt)) {
                    assert_eq!(arrived.blob, blob(op));
                    self.check_pages(op, arrived.attempt, arrived.tokens);
                }
                (arrived.attempt, Ok(()))
            }
            IndexNews::NotArriving(failed) => (failed.attempt, Err(failed.cause)),
            other => panic!("{op:?}: {other:?}"),
        };
        assert!(!self.grants.contains_key(&(op, attempt)), "{op:?} has ended, and bytes can land: {end:?}");
        self.ends.entry((op, attempt)).or_insert(end);
        if self.waits.get(&op).is_some_and(|wait| wait.attempt == attempt) {
            self.calls.answered((op, EXPECT));
            self.calls.answered((op, UNEXPECT));
        }
        let settled = HandoverSettled { attempt };
        said.push((Address::Index, op, Outgoing::Receiver(settled.into())));
    }

    /// What the rank is ordered to do.
    pub(crate) fn order(&mut self, prefill: &Prefill, op: OpId, msg: RankIn, said: &mut Said) {
        let rank = Rank(0);
        let answer: ReceiverIn = match msg {
            RankIn::Accept(accept) => {
                let attempt = accept.attempt;
                let is_over = self.revoked.get(&op).is_some_and(|revoked| attempt <= *revoked);
                if is_over || accept.lives != [self.life] {
                    return;
                }
                let bytes = Bin(format!("{op:?} {attempt}").into_bytes());
                let slots = accept.positions.0.iter().copied().zip(accept.pages.0.iter().map(|page| PeerPage(page.0)));
                let slots: BTreeMap<Position, PeerPage> = slots.collect();
                self.grants.entry((op, attempt)).or_insert_with(|| Grant {
                    bytes: bytes.clone(),
                    slots,
                    landed: BTreeMap::new(),
                });
                Accepting { attempt, rank, endpoint: "tcp://decode".to_owned(), grant: bytes }.into()
            }
            RankIn::Report(report) => {
                let grant = self.grants.get(&(op, report.attempt));
                let owners = grant.map_or_else(Vec::new, |grant| {
                    let positions = grant.slots.keys();
                    positions.map(|position| grant.landed.get(position).map_or(NOBODY, |rank| rank.0)).collect()
                });
                let figures = LandFigures { bytes: owners.len() as u64 * 32, buffers: 2, refused: 0 };
                Landed { attempt: report.attempt, rank, owners: Owners(owners), figures }.into()
            }
            RankIn::Revoke(revoke) => {
                let attempt = revoke.attempt;
                if revoke.drained && self.grants.contains_key(&(op, attempt)) {
                    assert!(!prefill.is_pushing(op, attempt), "{op:?} is said to be drained, and a rank pushes");
                }
                self.grants.remove(&(op, attempt));
                let highest = self.revoked.entry(op).or_default();
                *highest = attempt.max(*highest);
                Revoked { attempt, rank }.into()
            }
            other => panic!("{op:?}: {other:?}"),
        };
        said.push((Address::Rank(rank), op, Outgoing::Receiver(answer)));
    }

    /// Bytes of one page come; whether they were taken.
    pub(crate) fn write(
        &mut self,
        of: (OpId, u32),
        grant: &Bin,
        from: Rank,
        position: Position,
        to: (PeerPage, u64),
    ) -> bool {
        let (slot, content) = to;
        match self.grants.get_mut(&of) {
            Some(known) if known.bytes == *grant && known.slots.contains_key(&position) => {
                self.pool.insert(slot, content);
                known.landed.insert(position, from);
                true
            }
            Some(_) | None => {
                self.refused += 1;
                false
            }
        }
    }

    pub(crate) fn wake(&mut self, now: Time, said: &mut Said) {
        let mut out = Vec::new();
        self.calls.wake(now, &mut out);
        post(out, said);
    }

    /// Every page that was waited for holds what stands at its position.
    fn check_pages(&self, op: OpId, attempt: u32, tokens: u32) {
        let wait = self.waits.get(&op).expect("somebody waits for it"); // the receiver made nothing up
        assert_eq!((wait.attempt, wait.tokens), (attempt, tokens));
        for (position, page) in (wait.first..).zip(&wait.pages) {
            let held = self.pool.get(&PeerPage(page.0));
            assert_eq!(held, Some(&Prefill::content(op, position)), "{op:?} position {position}");
        }
    }

    fn call(&mut self, now: Time, id: (OpId, u16), msg: ReceiverIn, said: &mut Said) {
        let mut out = Vec::new();
        self.calls.call(now, id, Outgoing::Receiver(msg), &None, &mut out);
        post(out, said);
    }
}

const EXPECT: u16 = 0;
const UNEXPECT: u16 = 1;
const LIFE: u16 = 2;
