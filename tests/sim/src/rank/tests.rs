//! What a fake rank lets land, and what it says of the end of a grant.

use hicached_actors::protocol::{
    Accept, Bin, Envelope, Incarnation, OpId, PageId, Pages, Position, Positions, Rank, Revoke,
};

use super::RankProcess;
use crate::chance::Chance;
use crate::layout::Layout;
use crate::memory::Memory;
use crate::mix::{Mix, Sizes};
use crate::net::{Event, Net};
use crate::wire::{Frame, FramePage};

struct Rig {
    net: Net,
    memory: Memory,
    rank: RankProcess,
}

const TRANSFER: OpId = OpId([7; 16]);

impl Rig {
    /// A rank that lets positions 3 and 4 land in its pages 2 and 1 by attempt 2.
    fn new() -> Self {
        let sizes = Sizes { target_layers: 1, draft_layers: 0, ..Sizes::default() };
        let mut net = Net::new(Chance::new(1), Mix::calm(100));
        let memory = Memory::new(Layout::new(&sizes), 4, 0);
        let mut rank = RankProcess::start(Rank(0), &mut net);
        rank.engine = Some(Incarnation([1; 16]));
        let accept = Accept {
            attempt: 2,
            positions: Positions(vec![Position(3), Position(4)]),
            pages: Pages(vec![PageId(2), PageId(1)]),
            lives: Vec::new(),
            components: Vec::new(),
        };
        rank.accept(&mut net, &memory, TRANSFER, &accept);
        Self { net, memory, rank }
    }

    fn frame(&self, number: u64, position: u32, slot: u32) -> Frame {
        let grant = Bin([self.rank.life().0.as_slice(), &1_u64.to_le_bytes()].concat());
        let pages = vec![FramePage { position, slot, bytes: vec![number as u8; 64] }];
        let component = "target.kv".to_owned();
        Frame { from: Rank(5), lives: 1, number, transfer: TRANSFER, attempt: 2, grant, component, layer: 0, pages }
    }

    /// What is said of a frame at once; `None` while it is being written.
    fn arrives(&mut self, frame: Frame) -> Option<&'static str> {
        self.rank.take_frame(&mut self.net, &mut self.memory, frame);
        self.rank.take_answers().first().and_then(|answer| answer.refused)
    }

    /// Everything that is under way happens: what is said of each frame that has begun, and the kinds of all messages.
    fn goes_on(&mut self) -> (Vec<Option<&'static str>>, Vec<String>) {
        let mut said = Vec::new();
        let until = self.net.now.plus_ms(10);
        while let Some(event) = self.net.next(until) {
            match event {
                Event::Land(_, lives, write) => drop(self.rank.land(&mut self.net, &mut self.memory, lives, write)),
                Event::Deliver(message) => said.extend(Envelope::decode(&message.bytes).map(|envelope| envelope.kind)),
                _ => {}
            }
        }
        (self.rank.take_answers().into_iter().map(|answer| answer.refused).collect(), said)
    }
}

#[test]
fn a_frame_lands_once_at_a_position_and_slot_of_its_grant() {
    let mut rig = Rig::new();
    assert_eq!(rig.goes_on().1, ["accepting"]);
    for (frame, refused) in [
        (Frame { attempt: 1, ..rig.frame(1, 3, 2) }, "another attempt"),
        (Frame { grant: Bin(vec![1]), ..rig.frame(1, 3, 2) }, "no such grant"),
        (Frame { layer: 1, ..rig.frame(1, 3, 2) }, "no such buffer"),
        (rig.frame(1, 5, 2), "no such position"),
        (rig.frame(1, 3, 3), "no such slot"),
    ] {
        assert_eq!(rig.arrives(frame), Some(refused));
    }
    let frame = rig.frame(9, 3, 2);
    assert_eq!(rig.arrives(frame.clone()), None);
    assert_eq!(rig.arrives(frame.clone()), Some("twice"), "also while the first one is being written");
    assert_eq!(rig.goes_on().0, [None]);
    assert_eq!(rig.arrives(frame), Some("twice"));
    assert!(rig.memory.l1(PageId(2), 0).iter().all(|byte| *byte == 9));
    assert!(rig.memory.l1(PageId(1), 0).iter().all(|byte| *byte != 9));
}

#[test]
fn a_grant_that_is_taken_back_is_gone_when_nothing_is_being_written() {
    let mut rig = Rig::new();
    let frame = rig.frame(9, 3, 2);
    assert_eq!(rig.arrives(frame), None);
    rig.rank.revoke(&mut rig.net, TRANSFER, &Revoke { attempt: 2, drained: false });
    assert!(rig.rank.lets_land((TRANSFER, 2)), "the first frame is being written");
    let frame = rig.frame(10, 4, 1);
    assert_eq!(rig.arrives(frame), Some("late"), "nothing new begins");
    assert_eq!(rig.goes_on(), (vec![Some("late")], vec!["accepting".to_owned(), "revoked".to_owned()]));
    assert!(!rig.rank.lets_land((TRANSFER, 2)));
    let frame = rig.frame(11, 4, 1);
    assert_eq!(rig.arrives(frame), Some("no such grant"));
}
