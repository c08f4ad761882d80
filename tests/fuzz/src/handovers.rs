//! Transfers between a sender and a receiver of two groups, as what each of the two was given: ranks that do what they
//! are told, indexes that want the pages handed over, and one thing that goes wrong.

use std::collections::VecDeque;

use hicached_actors::host::{Dest, Output, Parcel};
use hicached_actors::protocol::*;
use hicached_sim::{Birth, Control, Heard, machines};

use crate::machine::{drive, wake};
use crate::speaker::{Speaker, shape};
use crate::transfers::{TRANSFERS, Told};

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    Nothing,
    /// The prefill index gives it up while pages are pushed.
    Stopped,
    /// The decode index gives it up when bytes may land.
    Unexpected,
    /// The sender is not heard any more once bytes may land.
    Silent,
    /// A rank fails to push, and the next attempt is whole.
    Failed,
    /// A rank of each side dies while pages are pushed.
    RankDied,
}

pub(crate) const TROUBLES: [(&str, Trouble); 6] = [
    ("whole", Trouble::Nothing),
    ("stopped", Trouble::Stopped),
    ("unexpected", Trouble::Unexpected),
    ("silent", Trouble::Silent),
    ("again", Trouble::Failed),
    ("rank-died", Trouble::RankDied),
];

/// How the group of a machine begins, and what the machine is given, for the sender of a group of shape `number` and
/// for the receiver of one of shape 0.
pub(crate) fn transfer(number: u8, trouble: Trouble) -> [(Birth, Vec<Heard>); 2] {
    let births = [0x51, 0x52].map(|life| Birth {
        life: Incarnation([life; 16]),
        number: 0,
        seed: u64::from(number),
        now: Time::ZERO,
    });
    let controls = [machines(&shape(number), &births[0]).0, machines(&shape(0), &births[1]).0];
    let (cp_size, page_tokens) = (shape(number).cp, shape(number).page_tokens);
    let mut world = World {
        controls,
        cp_size,
        page_tokens,
        trouble,
        attempt: 0,
        owners: Owners(Vec::new()),
        now: Time::ZERO,
        under_way: VecDeque::new(),
        heard: Default::default(),
        speakers: Default::default(),
    };
    world.begin();
    world.open();
    for _ in 0..WAKES_MAX {
        world.settle();
        world.wake();
    }
    let [sent, received] = world.heard;
    let [prefill, decode] = births;
    [(prefill, sent), (decode, received)]
}

struct World {
    controls: [Control; 2],
    cp_size: u8,
    page_tokens: u32,
    trouble: Trouble,
    attempt: u32,
    /// Of what was sent last.
    owners: Owners,
    now: Time,
    under_way: VecDeque<(usize, Told)>,
    heard: [Vec<Heard>; 2],
    speakers: [Speaker; 2],
}

impl World {
    fn begin(&mut self) {
        for rank in (0..self.cp_size).map(Rank) {
            self.rank_is(SENDS, rank, 0xA0);
        }
        self.rank_is(RECEIVES, Rank(0), 0xA0);
    }

    fn rank_is(&mut self, side: usize, rank: Rank, life: u8) {
        let is = RankIs { rank, incarnation: Incarnation([life + rank.0; 16]) };
        let op = OpId::new(self.controls[side].life, u64::from(life));
        if side == SENDS {
            self.say(side, Address::Index, op, SenderIn::from(is).encode_body(), "rank_is");
        } else {
            self.say(side, Address::Index, op, ReceiverIn::from(is).encode_body(), "rank_is");
        }
    }

    /// Both indexes open the next attempt.
    fn open(&mut self) {
        self.attempt += 1;
        let (attempt, tokens) = (self.attempt, 3 * self.page_tokens - 5);
        let pages = |count: u32, first: u32| Pages((first..first + count).map(PageId).collect());
        self.tell_sender(SendOpen { attempt, to: "decode".to_owned(), session: OpId([1; 16]), tokens });
        self.tell_receiver(Expect { attempt, tokens, first: 0, pages: pages(3, 1) });
        let first = u32::from(self.cp_size);
        self.tell_sender(SendPart { attempt, part: 0, first: 0, pages: pages(2, first), step: 1 });
        self.tell_sender(SendPart { attempt, part: 1, first: 2, pages: pages(1, first + 4), step: 2 });
        self.tell_sender(SendEnd { attempt, parts: 2, tokens, blob: Bin(vec![7; 4]) });
    }

    fn tell_sender(&mut self, msg: impl Into<SenderIn>) {
        let msg: SenderIn = msg.into();
        self.say(SENDS, Address::Index, TRANSFERS[0], msg.encode_body(), msg.code());
    }

    fn tell_receiver(&mut self, msg: impl Into<ReceiverIn>) {
        let msg: ReceiverIn = msg.into();
        self.say(RECEIVES, Address::Index, TRANSFERS[0], msg.encode_body(), msg.code());
    }

    fn say(&mut self, side: usize, from: Address, op: OpId, body: Vec<u8>, kind: &str) {
        let life = match from {
            Address::Rank(rank) => Incarnation([0xA0 + rank.0; 16]),
            _ => self.controls[side].life,
        };
        self.under_way.push_back((side, Told { from, life, op, kind: kind.to_owned(), body }));
    }

    /// Delivers what is under way, and what comes of it.
    fn settle(&mut self) {
        while let Some((side, told)) = self.under_way.pop_front() {
            let said = self.speakers[side].told(self.controls[side].life, told);
            let (at, now) = (AT[side], self.now);
            let bytes = Some(said.bytes.as_slice().into());
            self.heard[side].push(Heard { now, at, bytes, asked: false });
            let mut out = Output::default();
            drive(&mut self.controls[side], at, |actor| actor.deliver(now, &said.bytes, None, None, &mut out));
            self.take(side, out);
        }
    }

    /// Whichever of the two is due first acts on time.
    fn wake(&mut self) {
        let due = |side: usize| Some((self.controls[side].next_deadline(AT[side])?.0, side));
        let Some((at, side)) = [SENDS, RECEIVES].into_iter().filter_map(due).min() else { return };
        self.now = at.max(self.now);
        self.heard[side].push(Heard { now: self.now, at: AT[side], bytes: None, asked: false });
        let mut out = Output::default();
        wake(&mut self.controls[side], AT[side], self.now, &mut out);
        self.take(side, out);
    }

    fn take(&mut self, side: usize, out: Output) {
        for Parcel { to, bytes, .. } in out.parcels {
            let Ok(Envelope { kind, op, body, incarnation: life, .. }) = Envelope::decode(&bytes) else { continue };
            match to {
                Dest::Actor(Address::Rank(rank)) => {
                    if let Some(Ok(order)) = RankIn::decode_body(&kind, &body.0) {
                        self.order(side, rank, op, order);
                    }
                }
                Dest::Actor(Address::Index) if kind == "arrived" || kind == "not_arriving" => {
                    self.tell_receiver(HandoverSettled { attempt: self.attempt });
                    if kind == "not_arriving" && self.trouble == Trouble::Failed && self.attempt == 1 {
                        self.open();
                    }
                }
                Dest::Peer(_, _) if side == SENDS && self.is_silent(&kind) => {}
                Dest::Peer(_, _) => {
                    if kind == "finished"
                        && let Some(Ok(ReceiverIn::Finished(finished))) = ReceiverIn::decode_body(&kind, &body.0)
                    {
                        self.owners = finished.owners;
                    }
                    let told = Told { from: AT[side], life, op, kind, body: body.0 };
                    self.under_way.push_back((1 - side, told));
                }
                Dest::Actor(_) | Dest::Reply(_) | Dest::Events => {}
            }
        }
    }

    fn is_silent(&self, kind: &str) -> bool {
        self.trouble == Trouble::Silent && kind != "offer" && (kind != "meet" || self.now > Time::ZERO)
    }

    /// A rank does what it is told.
    fn order(&mut self, side: usize, rank: Rank, op: OpId, order: RankIn) {
        let from = Address::Rank(rank);
        match order {
            RankIn::Push(push) => {
                let is_first = (self.attempt, push.part) == (1, 0);
                let failed = match self.trouble {
                    Trouble::Stopped => return self.tell_sender(SendStop { attempt: 1, cause: "enough".to_owned() }),
                    Trouble::RankDied if is_first => return self.rank_is(SENDS, rank, 0xB0),
                    Trouble::Failed if is_first => vec![WrongState::new(op, "broken").into()],
                    _ => Vec::new(),
                };
                let (attempt, part, complete) = (push.attempt, push.part, failed.is_empty());
                let pushed = Pushed { attempt, part, rank, complete, failed, figures: PushFigures::NONE };
                self.say(side, from, op, SenderIn::from(pushed).encode_body(), "pushed");
            }
            RankIn::StopPush(stop) => {
                let stopped = PushStopped { attempt: stop.attempt, rank };
                self.say(side, from, op, SenderIn::from(stopped).encode_body(), "push_stopped");
            }
            RankIn::Accept(accept) => {
                if self.trouble == Trouble::Unexpected {
                    self.tell_receiver(Unexpect { attempt: 1, cause: "enough".to_owned() });
                }
                let endpoint = "tcp:127.0.0.1:1".to_owned();
                let accepting = Accepting { attempt: accept.attempt, rank, endpoint, grant: Bin(vec![7; 16]) };
                self.say(side, from, op, ReceiverIn::from(accepting).encode_body(), "accepting");
            }
            RankIn::Report(report) => {
                let figures = LandFigures { bytes: 640, buffers: 3, refused: 0 };
                let landed = Landed { attempt: report.attempt, rank, owners: self.owners.clone(), figures };
                self.say(side, from, op, ReceiverIn::from(landed).encode_body(), "landed");
            }
            RankIn::Revoke(revoke) => {
                let revoked = Revoked { attempt: revoke.attempt, rank };
                self.say(side, from, op, ReceiverIn::from(revoked).encode_body(), "revoked");
            }
            _ => {}
        }
    }
}

const SENDS: usize = 0;
const RECEIVES: usize = 1;
const AT: [Address; 2] = [Address::Sender, Address::Receiver];
/// Leases run out, and what is repeated is repeated once or twice.
const WAKES_MAX: usize = 12;
