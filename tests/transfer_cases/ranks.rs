//! The ranks of two groups: those that send do so layer by layer, when a test says so; the one that receives keeps what
//! stands in each layer of each page.

use std::collections::BTreeMap;

use hicached_actors::protocol::*;

/// Layers of the model.
pub(crate) const LAYERS: u32 = 12;

/// What a rank answers, and to whom.
pub(crate) type Answers = Vec<(Outgoing, OpId)>;

/// The rank of the decode group.
pub(crate) struct DecodeRank {
    control: Incarnation,
    engine: Incarnation,
    /// What stands in each layer of each page: written by whom is written for what.
    pub(crate) l1: BTreeMap<(u32, u32), u64>,
    /// The same of each host slot.
    pub(crate) l2: BTreeMap<(u32, u32), u64>,
    /// Frames that came for a grant that is over.
    pub(crate) dropped: u64,
    /// Steps up to this one have passed.
    pub(crate) passed: u64,
    watched: Option<(u64, OpId)>,
    grants: BTreeMap<(OpId, u32), Grant>,
    given: u64,
}

struct Grant {
    secret: Bin,
    pages: BTreeMap<Position, PageId>,
    /// Who has written each layer of each position.
    landed: BTreeMap<(Position, u32), Rank>,
}

/// One layer of one push.
pub(crate) struct Frame {
    pub(crate) transfer: OpId,
    pub(crate) attempt: u32,
    pub(crate) secret: Bin,
    pub(crate) rank: Rank,
    pub(crate) layer: u32,
    /// The positions it brings, and what stands at each.
    pub(crate) pages: Vec<(Position, u64)>,
}

impl DecodeRank {
    pub(crate) fn new(control: Incarnation, engine: Incarnation) -> Self {
        Self {
            control,
            engine,
            l1: BTreeMap::new(),
            l2: BTreeMap::new(),
            dropped: 0,
            passed: 0,
            watched: None,
            grants: BTreeMap::new(),
            given: 0,
        }
    }

    pub(crate) fn hello(&self, host_slots: u32) -> IndexNews {
        let Self { control, engine, passed, .. } = *self;
        let (rank, old_ops, adoptions) = (Rank(0), 0, 1);
        RankHello { rank, host_slots, adopted_by: control, old_ops, engine, passed, adoptions }.into()
    }

    /// Does what it is told.
    pub(crate) fn take(&mut self, op: OpId, msg: RankIn, host_slots: u32, said: &mut Answers) {
        let rank = Rank(0);
        let mut index = |news: IndexNews| said.push((Outgoing::Index(news), op));
        match msg {
            RankIn::Adopt(_) => index(self.hello(host_slots)),
            RankIn::Inventory(ask) => index(InventoryPart { cursor: ask.cursor, rows: vec![], next: u32::MAX }.into()),
            RankIn::Attach(attach) => index(
                Attached {
                    engine: attach.engine,
                    pool_file: "pool".to_owned(),
                    words_offset: 0,
                    load_slots_offset: 0,
                    adoptions: 1,
                }
                .into(),
            ),
            RankIn::Watch(watch) => {
                self.watched = Some((watch.step, op));
                said.extend(self.tell_passed());
            }
            RankIn::BackupCopy(copy) => {
                for (page, slot) in copy.pages.0.iter().zip(&copy.slots.0) {
                    for layer in 0..LAYERS {
                        self.l2.insert((slot.0, layer), self.l1.get(&(page.0, layer)).copied().unwrap_or_default());
                    }
                }
                let (attempt, layers) = (copy.attempt, Bin(((1_u16 << LAYERS) - 1).to_le_bytes().to_vec()));
                let ack = CopyAck { attempt, rank, layers, complete: true, failed: vec![] };
                said.push((Outgoing::Writer(ack.into()), op));
            }
            RankIn::Seal(_) => said.push((Outgoing::Writer(Sealed { rank }.into()), op)),
            RankIn::Unseal(_) => index(OpSettled {}.into()),
            RankIn::Accept(accept) => {
                let attempt = accept.attempt;
                self.given += 1;
                let secret = Bin(self.given.to_le_bytes().to_vec());
                let pages = accept.positions.0.into_iter().zip(accept.pages.0).collect();
                let grant = || Grant { secret, pages, landed: BTreeMap::new() };
                let grant = self.grants.entry((op, attempt)).or_insert_with(grant).secret.clone();
                let accepting = Accepting { attempt, rank, endpoint: "decode".to_owned(), grant };
                said.push((Outgoing::Receiver(accepting.into()), op));
            }
            RankIn::Report(report) => {
                let owners = self.grants.get(&(op, report.attempt)).map(Grant::owners).unwrap_or_default();
                let figures = LandFigures { bytes: 1, buffers: u64::from(LAYERS), refused: 0 };
                let landed = Landed { attempt: report.attempt, rank, owners: Owners(owners), figures };
                said.push((Outgoing::Receiver(landed.into()), op));
            }
            RankIn::Revoke(revoke) => {
                self.grants.remove(&(op, revoke.attempt));
                let revoked = Revoked { attempt: revoke.attempt, rank };
                said.push((Outgoing::Receiver(revoked.into()), op));
            }
            RankIn::OpSettled(_) => {}
            other => panic!("{op:?}: {other:?}"),
        }
    }

    /// A step has passed: whoever watches for it is told.
    pub(crate) fn tell_passed(&mut self) -> Option<(Outgoing, OpId)> {
        let (step, op) = self.watched.filter(|(step, _)| *step <= self.passed)?;
        self.watched = None;
        Some((Outgoing::Index(Passed { step, engine: self.engine }.into()), op))
    }

    /// Bytes come; whether they were taken.
    pub(crate) fn land(&mut self, frame: &Frame) -> bool {
        let grant = self.grants.get_mut(&(frame.transfer, frame.attempt)).filter(|grant| grant.secret == frame.secret);
        let Some(grant) = grant else {
            self.dropped += 1;
            return false;
        };
        for (position, content) in &frame.pages {
            let page = grant.pages[position];
            self.l1.insert((page.0, frame.layer), *content);
            grant.landed.insert((*position, frame.layer), frame.rank);
        }
        true
    }

    /// What stands in every layer of a page; `None` when they do not belong together.
    pub(crate) fn content(&self, page: PageId) -> Option<u64> {
        content(&self.l1, page.0)
    }

    /// The same of a host slot.
    pub(crate) fn host_content(&self, slot: u32) -> Option<u64> {
        content(&self.l2, slot)
    }
}

fn content(of: &BTreeMap<(u32, u32), u64>, page: u32) -> Option<u64> {
    let first = of.get(&(page, 0))?;
    (0..LAYERS).all(|layer| of.get(&(page, layer)) == Some(first)).then_some(*first)
}

impl Grant {
    fn owners(&self) -> Vec<u8> {
        let owner = |position: &Position| {
            let rank = self.landed.get(&(*position, 0));
            let whole = (0..LAYERS).all(|layer| self.landed.get(&(*position, layer)) == rank);
            rank.filter(|_| whole).map_or(NOBODY, |rank| rank.0)
        };
        self.pages.keys().map(owner).collect()
    }
}

/// What stands at a position of a transfer.
pub(crate) fn written(transfer: OpId, position: u32) -> u64 {
    transfer.counter() << 32 | u64::from(position)
}

/// A push that a rank of the prefill group was told of.
pub(crate) struct Pushing {
    pub(crate) rank: Rank,
    pub(crate) transfer: OpId,
    pub(crate) push: Push,
    /// Layers that have left.
    pub(crate) layers: u32,
}

impl Pushing {
    /// The next layer leaves.
    pub(crate) fn next(&mut self) -> Frame {
        let layer = self.layers;
        self.layers += 1;
        let positions = self.push.positions.0.iter();
        let pages = positions.map(|position| (*position, written(self.transfer, position.0))).collect();
        let (attempt, secret) = (self.push.attempt, self.push.grant.clone());
        Frame { transfer: self.transfer, attempt, secret, rank: self.rank, layer, pages }
    }
}
