//! Field case F15: which rank sends which page, with the machines that decide it, real ranks and real bytes.

use std::collections::VecDeque;

use hicached_actors::machine::{Effect, Machine as _, Sender as Speaker};
use hicached_actors::protocol::*;
use hicached_actors::receiver::{Receiver, ReceiverConfig};
use hicached_actors::sender::{Sender, SenderConfig};
use hicached_client::shm::Track as Word;

use crate::rank_rig::{setup as setup_of, *};
use crate::transfers::{TRANSFER, accepted, decode, landed, push, refusal, wired};

const RANKS: u8 = 4;
const TOKENS: u32 = 532;

/// Rank `rank` of four that send.
fn prefill(rank: u8) -> Rig {
    Rig::with(|setup| {
        *setup = setup_of(setup.pool_file.parent().unwrap(), RANKS, rank);
        wired(setup);
    })
}

/// A prefill group of four and a decode group, without their indexes: what those hear is kept.
struct Groups {
    sender: Sender,
    receiver: Receiver,
    prefill: Vec<Rig>,
    decode: Rig,
    /// From whom, in which life, about what, to whom.
    under_way: VecDeque<(Address, Incarnation, OpId, Outgoing)>,
    told: Vec<IndexNews>,
    /// How many pages each rank was told to send.
    ordered: [usize; RANKS as usize],
}

impl Groups {
    fn new() -> Self {
        let sender = SenderConfig::new("prefill".into(), &manifest(RANKS));
        let mut groups = Self {
            sender: Sender::new(sender, CONTROL, 1),
            receiver: Receiver::new(ReceiverConfig::new(&manifest(1)), 2),
            prefill: (0..RANKS).map(prefill).collect(),
            decode: decode(),
            under_way: VecDeque::new(),
            told: Vec::new(),
            ordered: [0; RANKS as usize],
        };
        for rank in 0..RANKS {
            let is = RankIs { rank: Rank(rank), incarnation: Incarnation([0xA0 + rank; 16]) };
            groups.index_says(OpId::new(CONTROL, u64::from(rank)), Outgoing::Sender(is.clone().into()));
            if rank == 0 {
                groups.index_says(OpId::new(CONTROL, 0), Outgoing::Receiver(is.into()));
            }
        }
        groups
    }

    fn index_says(&mut self, op: OpId, to: Outgoing) {
        self.under_way.push_back((Address::Index, CONTROL, op, to));
        while let Some((address, incarnation, op, to)) = self.under_way.pop_front() {
            let from =
                Speaker { address, incarnation, control: CONTROL, op, reply: None, remaining_ms: 0, trace: None };
            let mut out = Vec::new();
            match to {
                Outgoing::Sender(msg) | Outgoing::PeerSender(_, msg) => {
                    self.sender.handle(Time::ZERO, &from, msg, &mut out);
                    self.post(Address::Sender, out);
                }
                Outgoing::Receiver(msg) | Outgoing::PeerReceiver(_, msg) => {
                    self.receiver.handle(Time::ZERO, &from, msg, &mut out);
                    self.post(Address::Receiver, out);
                }
                Outgoing::Rank(rank, msg) => self.order(address, rank, op, msg),
                Outgoing::Index(news) => self.told.push(news),
                other => panic!("{other:?}"),
            }
        }
    }

    fn post(&mut self, from: Address, effects: Vec<Effect>) {
        for effect in effects {
            if let Effect::Send { to, op, .. } = effect {
                self.under_way.push_back((from, CONTROL, op, to));
            }
        }
    }

    /// A rank does what it is told, and says how that went.
    fn order(&mut self, from: Address, rank: Rank, op: OpId, msg: RankIn) {
        if let RankIn::Push(push) = &msg {
            self.ordered[usize::from(rank.0)] += push.pages.0.len();
        }
        let rig = if from == Address::Sender { &mut self.prefill[usize::from(rank.0)] } else { &mut self.decode };
        rig.send_op(from, op, msg);
        let answer = match rig.hear(op) {
            Said::Sender(msg) => Outgoing::Sender(msg),
            Said::Receiver(msg) => Outgoing::Receiver(msg),
            other => panic!("{other:?}"),
        };
        self.under_way.push_back((Address::Rank(rank), Incarnation([0xA0 + rank.0; 16]), op, answer));
    }
}

#[test]
fn f15_who_sends_which_page() {
    let in_turn: Vec<u8> = (0..9).map(|position| position % RANKS).collect();
    for owners in [in_turn, vec![0, 1, 2, 3, 3, 2, 1, 0, 0]] {
        let mut groups = Groups::new();
        // Pages of one rank follow each other in its pool; the tag of a page is its position.
        let mut next = [1; RANKS as usize];
        let mut sources = Vec::new();
        for (position, owner) in owners.iter().enumerate() {
            let (physical, rank) = (next[usize::from(*owner)], &groups.prefill[usize::from(*owner)]);
            for (word, layers) in [(Word::Target, TARGET_LAYERS), (Word::Draft, DRAFT_LAYERS)] {
                (0..layers).for_each(|layer| rank.engine.write_layer(word, layer, physical, position as u64));
            }
            next[usize::from(*owner)] += 1;
            sources.push(PageId(physical * u32::from(RANKS) + u32::from(*owner)));
        }
        let into = [7, 3, 9, 12, 1, 2, 14, 5, 11];
        let expect =
            Expect { attempt: 1, tokens: TOKENS, first: 0, pages: Pages(into.iter().copied().map(PageId).collect()) };
        let open = SendOpen { attempt: 1, to: "decode".to_owned(), session: OpId([1; 16]), tokens: TOKENS };
        let part = SendPart { attempt: 1, part: 0, first: 0, pages: Pages(sources), step: 0 };
        let end = SendEnd { attempt: 1, parts: 1, tokens: TOKENS, blob: Bin(b"seed".to_vec()) };
        groups.index_says(TRANSFER, Outgoing::Receiver(expect.into()));
        groups.index_says(TRANSFER, Outgoing::Sender(open.into()));
        groups.index_says(TRANSFER, Outgoing::Sender(part.into()));
        groups.index_says(TRANSFER, Outgoing::Sender(end.into()));
        let arrived = Arrived { attempt: 1, tokens: TOKENS, blob: Bin(b"seed".to_vec()), components: vec![] };
        assert!(groups.told.contains(&arrived.into()), "{:?}", groups.told);
        assert!(groups.told.contains(&SendOver { attempt: 1, ok: true, cause: String::new() }.into()));
        let page_bytes: u64 = groups.decode.engine.layout.record().map(|piece| piece.page_bytes).sum();
        assert_eq!(groups.ordered, [3, 2, 2, 2], "9 in all, not padded to 12");
        let pushed = groups.prefill.iter().map(|rank| rank.counter("rank.pushed_bytes"));
        assert_eq!(pushed.collect::<Vec<u64>>(), [3, 2, 2, 2].map(|pages| pages * page_bytes));
        let figure = |name: &str| groups.receiver.counters().iter().find(|(of, _)| *of == name).unwrap().1;
        assert_eq!(["receiver.pages", "receiver.bytes"].map(figure), [9, 9 * page_bytes], "each by one rank, once");
        for (page, position) in into.into_iter().zip(0..) {
            groups.decode.engine.assert_page(page, position);
        }
        assert!(groups.prefill.iter_mut().all(|rank| rank.host.machine().is_idle()));
        assert!(groups.decode.host.machine().is_idle());
    }
}

#[test]
fn f15_a_rank_refuses_a_page_that_it_does_not_own() {
    let (mut prefill, mut decode) = (prefill(1), decode());
    let grant = accepted(&mut decode, 1, &[0, 1], &[5, 6]);
    // Page 9 is of rank 1 of 4, page 10 of rank 2.
    prefill.send_op(Address::Sender, TRANSFER, push(&grant, 0, &[0, 1], &[9, 10], &[5, 6]).into());
    assert_eq!(refusal(prefill.hear(TRANSFER)), NotOwner { page: 10, owner: Rank(2), rank: Rank(1) }.into());
    assert_eq!((prefill.counter("rank.pushed_bytes"), landed(&mut decode, 1).figures.bytes), (0, 0));
}
