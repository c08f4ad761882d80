//! Scripts for single rules; `model` plays random scripts beside an obvious tree.

mod model;

use sha2::{Digest, Sha256};

use super::*;

const SALT: SaltId = SaltId(7);

/// The key of a path of symbols, chained over all of it as real keys are.
fn key_of(path: &[u8]) -> Key {
    let digest: [u8; 32] = Sha256::digest(path).into();
    Key(digest[..16].try_into().expect("16 of 32 bytes"))
}

fn keys_of(path: &[u8]) -> Vec<Key> {
    (1..=path.len()).map(|end| key_of(&path[..end])).collect()
}

/// A tree on `cp_size` ranks whose L1 pages are numbered by the caller.
struct Script {
    tree: PrefixTree,
    tick: u64,
}

impl Script {
    fn new(cp_size: u8) -> Self {
        Self { tree: PrefixTree::new(cp_size, 0), tick: 0 }
    }

    /// Stores `path`; page `i` gets the L1 page `l1[i]` if it is new.
    fn store(&mut self, path: &[u8], l1: &[u32]) -> Vec<NodeId> {
        self.tick += 1;
        let mut nodes: Vec<NodeId> = Vec::new();
        for (key, page) in keys_of(path).into_iter().zip(l1) {
            let node = self.tree.insert(nodes.last().copied(), key, SALT, self.tick).expect("a chain");
            self.tree.touch(node, self.tick);
            if self.tree.page(node).l1.is_none() {
                self.tree.set_l1(node, PageId(*page));
            }
            nodes.push(node);
        }
        self.tree.check_invariants();
        nodes
    }

    /// Evicts from L1; says which pages went, collateral as negative numbers.
    fn evict(&mut self, wants: &mut [u32], pages_max: u32) -> Vec<i64> {
        let mut victims = Vec::new();
        let done = self.tree.victims(Tier::L1, wants, pages_max, &mut victims);
        self.tree.check_invariants();
        assert_eq!(done.taken as usize, victims.len());
        let pages = victims.iter().map(|victim| match victim.copy {
            TakenCopy::L1(page) => {
                if victim.is_collateral {
                    -i64::from(page.0)
                } else {
                    page.0.into()
                }
            }
            TakenCopy::L2(..) => panic!("asked for L1"),
        });
        pages.collect()
    }
}

#[test]
fn the_leaf_wanted_longest_ago_leaves_first_and_then_what_it_uncovers() {
    let mut script = Script::new(1);
    script.store(b"abc", &[1, 2, 3]);
    script.store(b"abde", &[1, 2, 4, 5]);
    script.store(b"xy", &[6, 7]);
    for (wanted, pages) in [(1, vec![3]), (2, vec![5, 4]), (4, vec![2, 1, 7, 6]), (1, vec![])] {
        assert_eq!(script.evict(&mut [wanted], 100), pages, "{wanted} wanted");
    }
    assert!(script.tree.is_empty());
}

#[test]
fn a_lower_priority_leaves_before_an_older_page() {
    let mut script = Script::new(1);
    let old = script.store(b"a", &[1]);
    script.store(b"b", &[2]);
    script.tree.set_priority(old[0], 1);
    assert_eq!(script.evict(&mut [1], 100), [2]);
}

#[test]
fn only_the_lanes_that_are_short_give_pages() {
    let mut script = Script::new(2);
    script.store(b"a", &[2]);
    script.store(b"b", &[3]);
    script.store(b"c", &[5]);
    let mut wants = [0, 5];
    assert_eq!(script.evict(&mut wants, 100), [3, 5]);
    assert_eq!(wants, [0, 3], "the shortfall is left");
}

#[test]
fn pages_of_other_lanes_go_only_where_they_stand_in_front_of_a_short_lane() {
    let mut script = Script::new(2);
    script.store(b"xx", &[2, 4]);
    script.store(b"abcd", &[6, 7, 8, 10]);
    script.store(b"zz", &[13, 12]);
    // The oldest leaf, 4, leads to nothing of lane 1; the tail 10, 8 stands in front of 7.
    assert_eq!(script.evict(&mut [0, 1], 100), [-10, -8, 7]);
    assert_eq!(script.tree.counts(Tier::L1, Rank(0)).collateral, 2);
    assert_eq!(script.evict(&mut [0, 2], 100), [-12, 13]);
}

#[test]
fn a_batch_ends_at_its_limit_in_the_middle_of_a_tail() {
    let mut script = Script::new(2);
    script.store(b"abcd", &[7, 8, 10, 12]);
    assert_eq!(script.evict(&mut [0, 1], 2), [-12, -10]);
    assert_eq!(script.evict(&mut [0, 1], 2), [-8, 7]);
}

#[test]
fn looking_for_a_short_lane_ends_at_its_limit_and_says_so() {
    for (pages, gave_up) in [(PrefixTree::LOOK_PAGES_MAX, false), (PrefixTree::LOOK_PAGES_MAX + 2, true)] {
        let mut tree = PrefixTree::new(2, 0);
        let mut parent = None;
        for page in 0..pages {
            let node = tree.insert(parent, key_of(&page.to_le_bytes()), SALT, 1).expect("a chain");
            // Only the first page is of lane 1.
            tree.set_l1(node, PageId(if page == 0 { 3 } else { 2 + 2 * page }));
            parent = Some(node);
        }
        let done = tree.victims(Tier::L1, &mut [0, 1], 5, &mut Vec::new());
        let taken = if gave_up { 0 } else { 5 };
        assert_eq!(done, Eviction { taken, collateral: taken, gave_up }, "{pages} pages");
    }
}

#[test]
fn a_page_in_use_and_all_before_it_stay() {
    let mut script = Script::new(2);
    let nodes = script.store(b"abcd", &[7, 8, 9, 10]);
    script.tree.pin(nodes[2], Tier::L1).expect("few pins");
    assert_eq!(script.evict(&mut [1, 0], 100), [10]);
    assert_eq!(script.evict(&mut [1, 0], 100), [] as [i64; 0]);
    script.tree.unpin(nodes[2], Tier::L1);
    script.tree.hold(nodes[2], Tier::L1).expect("few holds");
    assert_eq!(script.evict(&mut [1, 0], 100), [] as [i64; 0]);
    script.tree.release(nodes[2], Tier::L1);
    assert_eq!(script.evict(&mut [1, 0], 100), [-9, 8]);
}

#[test]
fn a_match_counts_the_device_pages_and_the_host_pages_behind_them() {
    let mut script = Script::new(1);
    let nodes = script.store(b"abcd", &[1, 2, 3, 4]);
    for (slot, node) in nodes[..3].iter().enumerate() {
        script.tree.set_l2(*node, Rank(0), HostSlot(slot as u32));
    }
    script.evict(&mut [2], 100);
    let keys = keys_of(b"abcd");
    let found = script.tree.match_prefix(SALT, &keys);
    assert_eq!((found.l1, found.l2, found.cut_short), (2, 1, None), "page 4 had no host copy and is gone");
    assert_eq!((found.last_l1, found.last), (Some(nodes[1]), Some(nodes[2])));
    let mut served = Vec::new();
    assert_eq!(script.tree.match_into(SALT, &keys, &mut served), found);
    assert_eq!(served, nodes[..3]);

    script.tree.quarantine(nodes[2]);
    let found = script.tree.match_prefix(SALT, &keys);
    assert_eq!((found.l1, found.l2, found.cut_short), (2, 0, Some(nodes[2])));
    assert!(!script.tree.is_evictable(nodes[2], Tier::L2));
    script.tree.clear_l2(nodes[2]);
    assert_eq!(script.tree.prune(nodes[2]), 1);
    script.tree.check_invariants();
    assert_eq!(script.tree.match_prefix(SaltId(8), &keys).last, None, "another salt");
}

#[test]
fn a_key_is_refused_at_any_other_place() {
    let mut script = Script::new(1);
    let nodes = script.store(b"abc", &[1, 2, 3]);
    let [a, b, c] = keys_of(b"abc")[..] else { unreachable!() };
    let [x, y] = keys_of(b"xy")[..] else { unreachable!() };
    let known = |key, parent, position| PathError::KeyConflict { key, known: Known { parent, position, salt: SALT } };
    let rows = [
        ("as it is", SALT, None, vec![a, b, c], None),
        ("continued", SALT, None, vec![a, b, c, x, y], None),
        ("branched", SALT, Some(nodes[0]), vec![x, y], None),
        ("another salt", SaltId(8), None, vec![a], Some(known(a, None, 0))),
        ("another position", SALT, None, vec![b], Some(known(b, Some(a), 1))),
        ("another parent", SALT, None, vec![x, b], Some(known(b, Some(a), 1))),
        ("behind itself", SALT, Some(nodes[2]), vec![c], Some(known(c, Some(b), 2))),
        ("twice and new", SALT, Some(nodes[2]), vec![x, y, x], Some(PathError::Repeated { key: x })),
        ("twice and known", SALT, None, vec![a, b, a], Some(known(a, None, 0))),
    ];
    for (name, salt, parent, keys, refused) in rows {
        assert_eq!(script.tree.validate_path(salt, parent, &keys).err(), refused, "{name}");
    }
    assert_eq!(script.tree.insert(Some(nodes[0]), c, SALT, 9), Err(known(c, Some(b), 2)));
    assert_eq!(script.tree.insert(Some(nodes[0]), b, SALT, 9), Ok(nodes[1]));
    script.tree.check_invariants();
}

#[test]
fn pins_and_holds_are_counted_and_refused_at_their_limit() {
    let mut script = Script::new(1);
    let nodes = script.store(b"ab", &[1, 2]);
    for _ in 0..PrefixTree::PINS_MAX {
        script.tree.pin(nodes[1], Tier::L1).expect("below the limit");
    }
    let refused = InUse { key: key_of(b"ab"), limit: 65_535 };
    assert_eq!(script.tree.pin_all(&nodes, Tier::L1), Err(refused));
    assert_eq!(script.tree.page(nodes[0]).pins, [0, 0], "all or none");
    for _ in 0..PrefixTree::HOLDS_MAX {
        script.tree.hold(nodes[1], Tier::L2).expect("below the limit");
    }
    assert_eq!(script.tree.hold(nodes[1], Tier::L2), Err(InUse { limit: 255, ..refused }));
}

#[test]
fn misuse_is_a_panic() {
    type Misuse = fn(&mut Script, &[NodeId]);
    let rows: [(&str, Misuse); 7] = [
        ("unpin without a pin", |script, nodes| script.tree.unpin(nodes[1], Tier::L1)),
        ("release without a hold", |script, nodes| script.tree.release(nodes[1], Tier::L2)),
        ("pin of no copy", |script, nodes| script.tree.pin(nodes[1], Tier::L2).expect("few pins")),
        ("clear before the child", |script, nodes| assert_eq!(script.tree.clear_l1(nodes[0]), PageId(1))),
        ("set twice", |script, nodes| script.tree.set_l1(nodes[1], PageId(9))),
        ("child before its parent", |script, nodes| script.tree.set_l2(nodes[1], Rank(0), HostSlot(0))),
        ("kept too long", |script, nodes| {
            script.evict(&mut [2], 100);
            script.tree.touch(nodes[1], 9);
        }),
    ];
    for (name, misuse) in rows {
        let outcome = std::panic::catch_unwind(|| {
            let mut script = Script::new(1);
            let nodes = script.store(b"ab", &[1, 2]);
            misuse(&mut script, &nodes);
        });
        assert!(outcome.is_err(), "{name}");
    }
}

#[test]
fn an_empty_entry_goes_with_the_empty_ones_above_it_and_others_stay() {
    let mut tree = PrefixTree::new(1, 0);
    let mut nodes: Vec<NodeId> = Vec::new();
    for key in keys_of(b"abc") {
        nodes.push(tree.insert(nodes.last().copied(), key, SALT, 1).expect("a chain"));
    }
    assert_eq!(tree.prune(nodes[1]), 0, "it has a child");
    tree.set_pending(nodes[2], true);
    assert_eq!(tree.prune(nodes[2]), 0, "a backup is under way");
    tree.set_pending(nodes[2], false);
    tree.hold(nodes[0], Tier::L2).expect("few holds");
    assert_eq!(tree.prune(nodes[2]), 2, "the first is held");
    tree.check_invariants();
    assert!(tree.is_at(nodes[0], &key_of(b"a")) && !tree.is_at(nodes[1], &key_of(b"ab")));
    tree.release(nodes[0], Tier::L2);
    assert_eq!(tree.prune(nodes[0]), 1);
    assert!(tree.is_empty());
}

#[test]
fn descendants_come_behind_their_parents_and_only_if_resident() {
    let mut script = Script::new(1);
    let trunk = script.store(b"abc", &[1, 2, 3]);
    let branch = script.store(b"abde", &[1, 2, 4, 5]);
    let mut below = Vec::new();
    script.tree.descendants(trunk[0], Tier::L1, &mut below);
    assert_eq!(below.len(), 4);
    for node in below.iter().rev() {
        script.tree.clear_l1(*node);
    }
    script.tree.check_invariants();
    below.clear();
    script.tree.descendants(trunk[0], Tier::L1, &mut below);
    assert_eq!(below, []);
    assert_eq!(script.tree.prune(branch[3]), 2, "the copyless branch goes, the other child keeps its parent");
}

#[test]
fn paths_stand_in_a_row_and_their_slots_are_taken_again() {
    let mut script = Script::new(1);
    let pages = (0..200).collect::<Vec<u32>>();
    let path = |first: u8| std::iter::once(first).chain(1..100).collect::<Vec<u8>>();
    for first in 0..4 {
        script.store(&path(first), &pages);
    }
    assert_eq!(script.tree.slots(), 400);
    assert_eq!(script.evict(&mut [150], 1000).len(), 150);
    let nodes = script.store(&path(10), &pages);
    let breaks = nodes.windows(2).filter(|pair| pair[1].index() != pair[0].index() + 1).count();
    assert!(breaks <= 1, "{breaks} breaks");
    assert_eq!(script.tree.slots(), 400, "no new slot while old ones are free");
}
