//! The world itself: its bus, its chance, its memory.

use hicached_actors::faults::Fault;
use hicached_actors::protocol::{Address, Incarnation, PageId, Rank};

use crate::layout::{Layout, PageText};
use crate::memory::{Memory, ring_state};
use crate::{Options, Prompt, Script, Sizes, Write, run};

#[test]
fn a_byte_depends_on_everything_that_comes_before_it() {
    let layout = Layout::new(&Sizes { lookahead: 1, index_components: true, ..Sizes::default() });
    let key = hicached_actors::protocol::Key;
    let tokens: Vec<u32> = (0..65).collect();
    let other: Vec<u32> = (0..64).chain([7]).collect();
    let (a, b) =
        (PageText { parent: key([1; 16]), tokens: &tokens }, PageText { parent: key([2; 16]), tokens: &tokens });
    let next = PageText { parent: key([1; 16]), tokens: &other };
    let page = |part, text: &PageText<'_>| (0..64).map(|slot| layout.byte(part, text, slot)).collect::<Vec<u8>>();
    for part in 0..layout.parts.len() {
        assert_ne!(page(part, &a), page(part, &b), "another parent, part {part}");
        assert_eq!(page(part, &a) != page(part, &next), layout.parts[part].draft, "another next token, part {part}");
        assert!(part == 0 || page(part, &a) != page(part - 1, &a), "another part than {part}");
    }
}

#[test]
fn a_rank_keeps_a_dead_engines_segment_until_it_attaches_the_next() {
    let mut memory = Memory::new(Layout::new(&Sizes::default()), 4, 4);
    let (page, slot) = (PageId(1), hicached_actors::protocol::HostSlot(0));
    memory.attached[0] = memory.segments[0].engine;
    memory.l1_mut(page, 0).fill(7);
    memory.replace_segment(0, 5, Incarnation([1; 16]));
    memory.back_up(page, slot, 0);
    assert!(memory.l2(Rank(0), slot, 0).iter().all(|byte| *byte == 7));
    assert!(memory.l1(page, 0).iter().all(|byte| *byte != 7));
}

#[test]
fn the_status_of_a_ring_slot_changes_once_per_use() {
    let mut memory = Memory::new(Layout::new(&Sizes::default()), 4, 4);
    let slot = &mut memory.pools[0].ring[0];
    assert!(slot.decide(1, ring_state::DONE, 20));
    assert!(!slot.decide(1, ring_state::FAILED, 30) && !slot.decide(0, ring_state::FAILED, 30));
    assert_eq!((slot.state(1), slot.state(2), slot.word), (ring_state::DONE, ring_state::PENDING, 20));
}

#[test]
fn what_is_held_arrives_when_it_is_released() {
    let mut script = Script::new(Sizes { l1_pages: 8, l2_pages: 8, ..Sizes::default() });
    script.hold("copy_ack");
    script.insert(&Prompt::new(1, 64));
    assert_eq!(script.resident(&Prompt::new(1, 64)), [(true, false)]);
    script.release("copy_ack");
    script.settle();
    assert_eq!(script.resident(&Prompt::new(1, 64)), [(true, true)]);
    assert_eq!(script.figure(Address::Index, "index.cached_l2"), 1);
    script.end();
}

#[test]
fn a_few_seeds_find_nothing_and_say_how_to_repeat_them() {
    for seed in 1..6 {
        let options = Options { fault: Fault::None, ..Options::new(seed, 2_000) };
        assert_eq!(options.command(), format!("hicached sim --seed {seed} --steps 2000"));
        assert_eq!(run(&options).violation, None);
        let options = Options { transfers: true, ..options };
        assert_eq!(options.command(), format!("hicached sim --seed {seed} --steps 2000 --transfers"));
        assert_eq!(run(&options).violation, None);
    }
}

#[test]
fn a_write_back_goes_through_leaves_of_other_lanes_to_a_short_one() {
    let sizes = Sizes { cp: 2, l1_pages: 4, l2_pages: 8, write: Write::Back, ..Sizes::default() };
    let mut script = Script::new(sizes);
    let prompt = Prompt::new(1, 128).owned_by(&[1, 0]);
    script.insert(&prompt);
    assert_eq!(script.free(1), [3, 3]);
    script.evict(1, &[0, 1]);
    script.settle();
    assert_eq!(script.free(1), [4, 4], "the page of lane 1 stands behind a leaf of lane 0");
    assert_eq!(script.resident(&prompt), [(false, true); 2]);
    let again = script.open(&prompt).expect("a load");
    assert_eq!(script.hits(again), (0, 2));
    script.compute(again);
    script.close(again);
    script.settle();
    script.evict(1, &[0, 1]);
    script.settle();
    assert_eq!(script.free(1), [4, 4], "also when the host has both already");
    script.end();
}
