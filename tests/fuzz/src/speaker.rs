//! Envelopes around what a fuzzer says, and the shapes of the groups that hear it.

use std::collections::BTreeMap;

use hicached_actors::protocol::*;
use hicached_sim::{Birth, Layout, Sizes, Write};

use crate::drawn;
use crate::known::Known;
use crate::source::Source;
use crate::transfers::Told;

/// Groups that inputs begin with, by the first byte.
pub(crate) fn shape(number: u8) -> Sizes {
    let small = Sizes { page_tokens: 16, l1_pages: 8, l2_pages: 6, target_layers: 2, ..Sizes::default() };
    match number % SHAPES {
        0 => small,
        1 => Sizes { cp: 2, l1_pages: 6, l2_pages: 4, free_room: true, ..small },
        2 => Sizes { cp: 3, l2_pages: 2, write: Write::Back, ..small },
        3 => Sizes { cp: 2, write: Write::Selective, lookahead: 1, compute_tokens_min: 1, ..small },
        _ => Sizes { l2_pages: 0, draft_layers: 0, ..small },
    }
}

pub(crate) const SHAPES: u8 = 5;

/// What an input begins with: a shape, and the life and the seed of its control group.
pub(crate) fn birth(src: &mut Source<'_>) -> (Sizes, Birth) {
    let sizes = shape(src.u8());
    let life = Incarnation(src.array());
    (sizes, Birth { life, number: 0, seed: src.u64(), now: Time::ZERO })
}

/// What a group of these sizes knows from the start.
pub(crate) fn known(sizes: &Sizes, life: Incarnation) -> Known {
    Known::new(life, sizes.cp, encode(&Layout::new(sizes).manifest))
}

/// A message on its way, and whether an answer is waited for.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) bytes: Vec<u8>,
    pub(crate) asked: bool,
}

/// Numbers what is said, as each sender would.
#[derive(Debug, Default)]
pub(crate) struct Speaker {
    given: BTreeMap<(Address, Incarnation, bool), u64>,
}

impl Speaker {
    /// A message as it was heard: sender, life, control, op, kind and body stand in the input.
    pub(crate) fn literal(&mut self, src: &mut Source<'_>) -> Said {
        let flags = src.u8();
        let from = address(src.u8());
        let (life, control) = (Incarnation(src.array()), Incarnation(src.array()));
        let op = OpId(src.array());
        let kind = String::from_utf8_lossy(src.counted()).into_owned();
        let body = src.counted().to_vec();
        self.envelope(src, flags, from, (life, control), op, kind, body)
    }

    /// A message that follows the schema and speaks of what is known.
    pub(crate) fn drawn(&mut self, to: Address, src: &mut Source<'_>, known: &Known) -> Said {
        let flags = src.u8();
        let from = address(src.u8());
        let (life, control) = (Incarnation(known.id(src)), Incarnation(known.id(src)));
        let op = OpId(known.id(src));
        let (kind, body) = drawn::message(to, src, known);
        self.envelope(src, flags, from, (life, control), op, kind, body)
    }

    /// A message without anything unusual around it.
    pub(crate) fn plain(&mut self, from: Address, life: Incarnation, op: OpId, kind: String, body: Vec<u8>) -> Said {
        self.envelope(&mut Source::new(&[]), 1, from, (life, life), op, kind, body)
    }

    /// What somebody of the control group `control`, or a peer of it, says of transfers.
    pub(crate) fn told(&mut self, control: Incarnation, told: Told) -> Said {
        let Told { from, life, op, kind, body } = told;
        self.envelope(&mut Source::new(&[]), 1, from, (life, control), op, kind, body)
    }

    /// Flags: 1 asks for an answer, 2 is urgent, 4 has a number of its own.
    #[expect(clippy::too_many_arguments, reason = "they are the fields of an envelope")]
    fn envelope(
        &mut self,
        src: &mut Source<'_>,
        flags: u8,
        from: Address,
        (incarnation, control): (Incarnation, Incarnation),
        op: OpId,
        kind: String,
        body: Vec<u8>,
    ) -> Said {
        let urgent = flags & 2 != 0;
        let given = self.given.entry((from, incarnation, urgent)).or_insert(0);
        *given = given.saturating_add(1);
        let seq = if flags & 4 != 0 { src.number() } else { *given };
        let envelope = Envelope {
            version: VERSION,
            kind,
            id: OpId::default(),
            op,
            sender: from.to_string(),
            incarnation,
            control,
            seq,
            urgent,
            remaining_ms: 1_000,
            body: Bin(body),
        };
        Said { bytes: encode(&envelope), asked: flags & 1 != 0 }
    }
}

/// Members by number; every number is one.
pub(crate) fn address(number: u8) -> Address {
    match number % 16 {
        0 => Address::Index,
        1 => Address::Allocator,
        2 => Address::Evictor,
        3 => Address::Writer,
        4 => Address::Loader,
        5 => Address::Engine,
        14 => Address::Sender,
        15 => Address::Receiver,
        rank => Address::Rank(Rank(rank - 6)),
    }
}

/// The number of a member.
pub(crate) fn number_of(address: Address) -> u8 {
    match address {
        Address::Index => 0,
        Address::Allocator => 1,
        Address::Evictor => 2,
        Address::Writer => 3,
        Address::Loader => 4,
        Address::Engine => 5,
        Address::Sender => 14,
        Address::Receiver => 15,
        Address::Rank(Rank(rank)) => 6 + rank % 8,
    }
}
