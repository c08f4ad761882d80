//! The receiving side of a fake rank: what may land where, what has landed, and the proof that nothing will any more.
//!
//! It stands for the least careful data plane that is accepted, an addressed one: a frame names the slot of each page,
//! and all that is checked is that the grant lives, holds the slot, and has the position not yet. A frame takes a while
//! to be written, and a grant that is taken back waits for those that have begun.

use std::collections::BTreeMap;

use hicached_actors::protocol::{
    Accept, Accepting, Address, Bin, LandFigures, Landed, NOBODY, OpId, Outgoing, Owners, PageId, Position, ReceiverIn,
    Refusal, Rejected, Report, Revoke, Revoked, Unknown, WrongState,
};

use super::{Answered, RankProcess};
use crate::memory::Memory;
use crate::net::{Event, Net};
use crate::wire::{Frame, FrameAnswer};

/// One attempt of a transfer.
pub(crate) type Name = (OpId, u32);

/// Grants, and frames that are being written.
#[derive(Debug, Default)]
pub(super) struct Landing {
    grants: BTreeMap<Name, Grant>,
    /// The highest attempt of each transfer of which nothing may land any more.
    revoked: BTreeMap<OpId, u32>,
    writing: BTreeMap<u64, Writing>,
    writes_made: u64,
    grants_made: u64,
    /// Answers on their way out.
    answers: Vec<FrameAnswer>,
}

#[derive(Debug)]
struct Grant {
    secret: Bin,
    positions: Vec<Position>,
    pages: Vec<PageId>,
    /// By part and place of the position: the rank whose bytes stand there, [`CLAIMED`] or [`NOBODY`].
    marks: Vec<Vec<u8>>,
    writing: u32,
    is_revoking: bool,
    figures: LandFigures,
}

/// A frame that is being written.
#[derive(Debug)]
struct Writing {
    of: Name,
    frame: Frame,
    part: usize,
    /// Place of each of its positions.
    places: Vec<usize>,
}

/// What a frame has written.
pub(crate) struct Written {
    /// The attempt.
    pub(crate) of: Name,
    /// The pages.
    pub(crate) pages: Vec<PageId>,
}

impl RankProcess {
    /// Pages that bytes may land in.
    pub(crate) fn landing_pages(&self) -> impl Iterator<Item = (PageId, Name)> + '_ {
        self.landing.grants.iter().flat_map(|(name, grant)| grant.pages.iter().map(|page| (*page, *name)))
    }

    /// Whether bytes of this attempt may land.
    pub(crate) fn lets_land(&self, name: Name) -> bool {
        self.landing.grants.contains_key(&name)
    }

    /// What it has to say of frames.
    pub(crate) fn take_answers(&mut self) -> Vec<FrameAnswer> {
        std::mem::take(&mut self.landing.answers)
    }

    pub(super) fn accept(&mut self, net: &mut Net, memory: &Memory, op: OpId, msg: &Accept) {
        let name = (op, msg.attempt);
        match self.granted(memory, name, msg) {
            Ok(grant) => {
                let endpoint = format!("sim://{}", self.life_number());
                let accepting = Accepting { attempt: msg.attempt, rank: self.rank, endpoint, grant };
                self.tell_receiver(net, op, accepting.into());
            }
            Err(refusal) => self.answer(net, Address::Receiver, op, Answered::Rejected(Rejected { refusal })),
        }
    }

    fn granted(&mut self, memory: &Memory, name: Name, msg: &Accept) -> Result<Bin, Refusal> {
        let (op, pages) = (name.0, &msg.pages.0);
        if self.landing.revoked.get(&op).is_some_and(|revoked| name.1 <= *revoked) {
            return Err(WrongState::new(op, "revoked").into());
        }
        if let Some(grant) = self.landing.grants.get(&name) {
            let is_same = grant.pages == *pages && grant.positions == msg.positions.0 && !grant.is_revoking;
            return if is_same { Ok(grant.secret.clone()) } else { Err(WrongState::new(op, "other pages").into()) };
        }
        let is_mine = |page: &PageId| page.owner(memory.layout.cp) == self.rank && memory.holds(Some(*page), None);
        if self.engine.is_none() || !pages.iter().all(is_mine) || pages.len() != msg.positions.0.len() {
            return Err(self.no_pool(op));
        }
        self.landing.grants_made += 1;
        let secret = Bin([self.life.0.as_slice(), &self.landing.grants_made.to_le_bytes()].concat());
        let buffers = memory.layout.parts.iter().filter(|part| part.bytes > 0).count() as u64;
        let grant = Grant {
            secret: secret.clone(),
            positions: msg.positions.0.clone(),
            pages: pages.clone(),
            marks: vec![vec![NOBODY; pages.len()]; memory.layout.parts.len()],
            writing: 0,
            is_revoking: false,
            figures: LandFigures { bytes: 0, buffers, refused: 0 },
        };
        self.landing.grants.insert(name, grant);
        Ok(secret)
    }

    pub(super) fn report(&mut self, net: &mut Net, memory: &Memory, op: OpId, msg: &Report) {
        let Some(grant) = self.landing.grants.get(&(op, msg.attempt)) else {
            let refusal = Unknown::new("transfer", op).into();
            return self.answer(net, Address::Receiver, op, Answered::Rejected(Rejected { refusal }));
        };
        let owners = (0..grant.pages.len()).map(|place| grant.owner(memory, place)).collect();
        let figures = grant.figures.clone();
        let landed = Landed { attempt: msg.attempt, rank: self.rank, owners: Owners(owners), figures };
        self.tell_receiver(net, op, landed.into());
    }

    pub(super) fn revoke(&mut self, net: &mut Net, op: OpId, msg: &Revoke) {
        let highest = self.landing.revoked.entry(op).or_default();
        *highest = msg.attempt.max(*highest);
        if let Some(grant) = self.landing.grants.get_mut(&(op, msg.attempt)) {
            grant.is_revoking = true;
        }
        self.revoked_if_still(net, (op, msg.attempt));
    }

    /// A frame arrives.
    pub(crate) fn take_frame(&mut self, net: &mut Net, memory: &mut Memory, frame: Frame) {
        let (to, lives, number) = (frame.from, frame.lives, frame.number);
        if let Err(refused) = self.begin_write(net, memory, frame) {
            self.landing.answers.push(FrameAnswer { to, lives, number, refused: Some(refused) });
        }
    }

    fn begin_write(&mut self, net: &mut Net, memory: &mut Memory, frame: Frame) -> Result<(), &'static str> {
        if !self.alive {
            return Err("nobody is there");
        }
        let by_secret = self.landing.grants.iter_mut().find(|(_, grant)| grant.secret == frame.grant);
        let (name, grant) = by_secret.ok_or("no such grant")?;
        if *name != (frame.transfer, frame.attempt) {
            return Err("another attempt");
        }
        let claimed = grant.claim(memory, &frame);
        grant.figures.refused += u64::from(claimed.is_err());
        let (part, places) = claimed?;
        grant.writing += 1;
        if let Some(page) = frame.pages.first() {
            memory.land(PageId::at(self.rank, page.slot, memory.layout.cp), part, &page.bytes[..page.bytes.len() / 2]);
        }
        self.landing.writes_made += 1;
        self.landing.writing.insert(self.landing.writes_made, Writing { of: *name, frame, part, places });
        let us = net.chance.within(1, 300);
        net.after_us(us, Event::Land(self.rank, self.lives, self.landing.writes_made));
        Ok(())
    }

    /// A frame is written; what it has written.
    pub(crate) fn land(&mut self, net: &mut Net, memory: &mut Memory, lives: u32, write: u64) -> Option<Written> {
        if !self.alive || lives != self.lives {
            return None;
        }
        let Writing { of, frame, part, places } = self.landing.writing.remove(&write)?;
        let grant = self.landing.grants.get_mut(&of)?;
        let pages: Vec<PageId> =
            frame.pages.iter().map(|page| PageId::at(self.rank, page.slot, memory.layout.cp)).collect();
        for (page, to) in frame.pages.iter().zip(&pages) {
            memory.land(*to, part, &page.bytes);
            grant.figures.bytes += page.bytes.len() as u64;
        }
        grant.writing -= 1;
        let mark = if grant.is_revoking { NOBODY } else { frame.from.0 };
        places.iter().for_each(|place| grant.marks[part][*place] = mark);
        let refused = grant.is_revoking.then_some("late");
        let Frame { from, lives, number, .. } = frame;
        self.landing.answers.push(FrameAnswer { to: from, lives, number, refused });
        self.revoked_if_still(net, of);
        Some(Written { of, pages })
    }

    /// Says that a grant is gone that is being taken back, once nothing of it is being written.
    fn revoked_if_still(&mut self, net: &mut Net, name: Name) {
        if self.landing.grants.get(&name).is_some_and(|grant| grant.writing > 0 || !grant.is_revoking) {
            return;
        }
        self.landing.grants.remove(&name);
        self.tell_receiver(net, name.0, Revoked { attempt: name.1, rank: self.rank }.into());
    }

    /// Another engine comes: what is written ends where it is, and nothing of any grant lands any more.
    pub(super) fn revoke_all(&mut self, net: &mut Net) {
        self.landing.writing.clear();
        for (name, grant) in std::mem::take(&mut self.landing.grants) {
            let highest = self.landing.revoked.entry(name.0).or_default();
            *highest = name.1.max(*highest);
            if grant.is_revoking {
                self.tell_receiver(net, name.0, Revoked { attempt: name.1, rank: self.rank }.into());
            }
        }
    }

    /// Another control group comes, or the process is gone: nobody hears of what landed.
    pub(super) fn forget_landing(&mut self) {
        let Landing { writes_made, grants_made, .. } = self.landing;
        self.landing = Landing { writes_made, grants_made, ..Landing::default() };
    }

    fn tell_receiver(&mut self, net: &mut Net, op: OpId, msg: ReceiverIn) {
        self.send(net, Outgoing::Receiver(msg), op);
    }
}

impl Grant {
    /// Takes the places of a frame that nothing has landed at yet: its part, and the place of each page.
    fn claim(&mut self, memory: &Memory, frame: &Frame) -> Result<(usize, Vec<usize>), &'static str> {
        if self.is_revoking {
            return Err("late");
        }
        let layout = &memory.layout;
        let is_of = |part: &&usize| {
            let part = &layout.parts[**part];
            part.component == frame.component && part.layer == frame.layer
        };
        let part = (0..layout.parts.len()).collect::<Vec<_>>().iter().find(is_of).copied().ok_or("no such buffer")?;
        let mut places = Vec::new();
        for page in &frame.pages {
            let place = self.positions.binary_search(&Position(page.position)).map_err(|_| "no such position")?;
            if !self.pages.iter().any(|granted| granted.physical(layout.cp) == page.slot) {
                return Err("no such slot");
            }
            if page.bytes.len() != layout.parts[part].bytes {
                return Err("another size");
            }
            if self.marks[part][place] != NOBODY {
                return Err("twice");
            }
            places.push(place);
        }
        places.iter().for_each(|place| self.marks[part][*place] = CLAIMED);
        Ok((part, places))
    }

    /// The rank whose bytes stand at a place in every buffer.
    fn owner(&self, memory: &Memory, place: usize) -> u8 {
        let parts = (0..self.marks.len()).filter(|part| memory.layout.parts[*part].bytes > 0);
        let mut marks = parts.map(|part| self.marks[part][place]);
        let Some(first) = marks.next() else { return NOBODY };
        if first != CLAIMED && marks.all(|mark| mark == first) { first } else { NOBODY }
    }
}

/// The mark of a place that is being written: no rank has this number.
const CLAIMED: u8 = NOBODY - 1;
const _: () = assert!(CLAIMED >= hicached_actors::protocol::CP_SIZE_MAX);
