//! A tree that is slow and obvious: full paths in a sorted map, every question answered by looking at all pages.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const CP_SIZE: u8 = 3;

type Path = Vec<u8>;

#[derive(Clone, Debug)]
struct Page {
    node: NodeId,
    copies: [Option<TakenCopy>; 2],
    pins: [u16; 2],
    holds: [u8; 2],
    is_pending: bool,
    is_quarantined: bool,
    priority: u8,
    tick: u64,
    hits: u8,
}

#[derive(Default)]
struct Model {
    pages: BTreeMap<Path, Page>,
}

impl Model {
    fn has_child(&self, path: &[u8], tier: Option<Tier>) -> bool {
        self.pages.iter().any(|(other, page)| {
            let is_child = other.len() == path.len() + 1 && other.starts_with(path);
            is_child && tier.is_none_or(|tier| page.copies[ix(tier)].is_some())
        })
    }

    fn lane(&self, path: &[u8], tier: Tier) -> Option<usize> {
        self.pages[path].copies[ix(tier)].map(|copy| match copy {
            TakenCopy::L1(page) => page.owner(CP_SIZE).0.into(),
            TakenCopy::L2(owner, _) => owner.0.into(),
        })
    }

    fn is_idle(&self, path: &[u8], tier: Tier) -> bool {
        self.pages[path].pins[ix(tier)] == 0 && self.pages[path].holds[ix(tier)] == 0
    }

    fn is_evictable(&self, path: &[u8], tier: Tier) -> bool {
        let aside = tier == Tier::L2 && self.pages[path].is_quarantined;
        let leaf = !self.has_child(path, Some(tier));
        self.lane(path, tier).is_some() && leaf && self.is_idle(path, tier) && !aside
    }

    /// Evictable pages of all lanes, the first to go first.
    fn in_order(&self, tier: Tier) -> Vec<Path> {
        let mut paths: Vec<Path> = self.pages.keys().filter(|path| self.is_evictable(path, tier)).cloned().collect();
        paths.sort_by_key(|path| (self.pages[path].priority, self.pages[path].tick, self.pages[path].node));
        paths
    }

    fn leads_to(&self, leaf: &[u8], tier: Tier, wants: &[u32]) -> bool {
        let mut above = (1..leaf.len()).rev().map(|end| &leaf[..end]).take_while(|path| self.is_idle(path, tier));
        above.any(|path| self.lane(path, tier).is_some_and(|lane| wants[lane] > 0))
    }

    fn clear(&mut self, path: &[u8], tier: Tier) -> TakenCopy {
        let page = self.pages.get_mut(path).expect("a known page");
        if tier == Tier::L2 {
            page.is_quarantined = false;
        }
        page.copies[ix(tier)].take().expect("a copy")
    }

    fn prune(&mut self, path: &[u8]) {
        for end in (1..=path.len()).rev() {
            let page = &self.pages[&path[..end]];
            let used = page.pins != [0; 2] || page.holds != [0; 2] || page.is_pending;
            if used || page.copies != [None; 2] || self.has_child(&path[..end], None) {
                return;
            }
            self.pages.remove(&path[..end]);
        }
    }

    fn victims(&mut self, tier: Tier, wants: &mut [u32], pages_max: usize) -> Vec<(Key, TakenCopy, bool)> {
        let mut taken = Vec::new();
        let mut tail: Option<Path> = None;
        while taken.len() < pages_max && wants.iter().any(|want| *want > 0) {
            let order = self.in_order(tier);
            let lane = |path: &Path| self.lane(path, tier).expect("resident");
            let goes_on = tail.take().filter(|path| order.contains(path) && wants[lane(path)] == 0);
            let short = || order.iter().find(|path| wants[lane(path)] > 0).cloned();
            let blocking = || order.iter().find(|path| self.leads_to(path, tier, wants)).cloned();
            let is_tail = goes_on.is_some();
            let Some(path) = goes_on.or_else(short).or_else(blocking) else { break };
            let lane = lane(&path);
            let is_collateral = wants[lane] == 0;
            assert!(is_collateral || !is_tail);
            if is_collateral {
                tail = Some(path[..path.len() - 1].to_vec());
            } else {
                wants[lane] -= 1;
            }
            taken.push((key_of(&path), self.clear(&path, tier), is_collateral));
            self.prune(&path);
        }
        taken
    }
}

#[derive(Clone, Debug)]
enum Step {
    Store { path: Path, lanes: u8 },
    Backup { path: Path, pages: usize, lanes: u8 },
    Touch { path: Path },
    Priority { at: usize, priority: u8 },
    Pin { at: usize, tier: bool },
    Unpin { at: usize, tier: bool },
    Hold { at: usize, tier: bool },
    Release { at: usize, tier: bool },
    Pending { at: usize, is_pending: bool },
    Quarantine { at: usize },
    Clear { at: usize, tier: bool },
    Evict { tier: bool, wants: [u32; 3], pages_max: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let path = || prop::collection::vec(0..3u8, 1..9);
    let (at, tier) = (|| 0..64usize, any::<bool>);
    prop_oneof![
        4 => (path(), any::<u8>()).prop_map(|(path, lanes)| Step::Store { path, lanes }),
        3 => (path(), 1..9usize, any::<u8>()).prop_map(|(path, pages, lanes)| Step::Backup { path, pages, lanes }),
        1 => path().prop_map(|path| Step::Touch { path }),
        1 => (at(), 0..3u8).prop_map(|(at, priority)| Step::Priority { at, priority }),
        1 => (at(), tier()).prop_map(|(at, tier)| Step::Pin { at, tier }),
        2 => (at(), tier()).prop_map(|(at, tier)| Step::Unpin { at, tier }),
        1 => (at(), tier()).prop_map(|(at, tier)| Step::Hold { at, tier }),
        2 => (at(), tier()).prop_map(|(at, tier)| Step::Release { at, tier }),
        1 => (at(), any::<bool>()).prop_map(|(at, is_pending)| Step::Pending { at, is_pending }),
        1 => at().prop_map(|at| Step::Quarantine { at }),
        1 => (at(), tier()).prop_map(|(at, tier)| Step::Clear { at, tier }),
        3 => (tier(), any::<[u8; 3]>(), 1..12usize).prop_map(|(tier, wants, pages_max)| Step::Evict {
            tier,
            wants: wants.map(|want| u32::from(want % 4)),
            pages_max,
        }),
    ]
}

struct Pair {
    tree: PrefixTree,
    model: Model,
    tick: u64,
    copies: u32,
}

fn tier_of(is_l2: bool) -> Tier {
    if is_l2 { Tier::L2 } else { Tier::L1 }
}

impl Pair {
    /// A number never used for a copy before, of a lane drawn from the step.
    fn fresh(&mut self, lanes: u8, at: usize) -> (Rank, u32) {
        self.copies += 1;
        (Rank((lanes >> (at % 4 * 2)) % CP_SIZE), self.copies)
    }

    fn store(&mut self, path: &[u8], lanes: u8) {
        let mut parent = None;
        for end in 1..=path.len() {
            let node = self.tree.insert(parent, key_of(&path[..end]), SALT, self.tick).expect("a chain");
            let (owner, number) = self.fresh(lanes, end);
            let page = self.model.pages.entry(path[..end].to_vec()).or_insert(Page {
                node,
                copies: [None; 2],
                pins: [0; 2],
                holds: [0; 2],
                is_pending: false,
                is_quarantined: false,
                priority: 0,
                tick: self.tick,
                hits: 1,
            });
            assert_eq!(page.node, node);
            if page.copies[0].is_none() {
                let l1 = PageId::at(owner, number, CP_SIZE);
                self.tree.set_l1(node, l1);
                page.copies[0] = Some(TakenCopy::L1(l1));
            }
            parent = Some(node);
        }
    }

    fn backup(&mut self, path: &[u8], pages: usize, lanes: u8) {
        for end in 1..=path.len().min(pages) {
            let (owner, number) = self.fresh(lanes, end);
            let Some(page) = self.model.pages.get_mut(&path[..end]) else { break };
            if page.copies[1].is_none() {
                self.tree.set_l2(page.node, owner, HostSlot(number));
                page.copies[1] = Some(TakenCopy::L2(owner, HostSlot(number)));
            }
        }
    }

    fn touch(&mut self, path: &[u8]) {
        for end in 1..=path.len() {
            let Some(page) = self.model.pages.get_mut(&path[..end]) else { break };
            self.tree.touch(page.node, self.tick);
            (page.tick, page.hits) = (self.tick, page.hits.saturating_add(1));
        }
    }

    fn evict(&mut self, tier: Tier, wants: [u32; 3], pages_max: usize) {
        let (mut left, mut left_model) = (wants, wants);
        let mut victims = Vec::new();
        let done = self.tree.victims(tier, &mut left, pages_max as u32, &mut victims);
        let expected = self.model.victims(tier, &mut left_model, pages_max);
        let got: Vec<_> = victims.iter().map(|victim| (victim.key, victim.copy, victim.is_collateral)).collect();
        assert_eq!(got, expected);
        assert_eq!(left, left_model);
        assert_eq!(done.collateral as usize, expected.iter().filter(|(_, _, is_collateral)| *is_collateral).count());
    }

    fn play(&mut self, step: &Step) {
        self.tick += 1;
        match step {
            Step::Store { path, lanes } => self.store(path, *lanes),
            Step::Backup { path, pages, lanes } => self.backup(path, *pages, *lanes),
            Step::Touch { path } => self.touch(path),
            Step::Evict { tier, wants, pages_max } => self.evict(tier_of(*tier), *wants, *pages_max),
            Step::Priority { at, .. }
            | Step::Pin { at, .. }
            | Step::Unpin { at, .. }
            | Step::Hold { at, .. }
            | Step::Release { at, .. }
            | Step::Pending { at, .. }
            | Step::Quarantine { at }
            | Step::Clear { at, .. } => {
                if !self.model.pages.is_empty() {
                    let path = self.model.pages.keys().nth(at % self.model.pages.len()).expect("below").clone();
                    self.play_at(&path, step);
                }
            }
        }
    }

    /// Steps that change one page, left out where they would be misuse.
    fn play_at(&mut self, path: &[u8], step: &Step) {
        let (tree, model) = (&mut self.tree, &mut self.model);
        let clears = |tier| model.is_evictable(path, tier) || tier == Tier::L2 && model.pages[path].is_quarantined;
        let may_clear = [Tier::L1, Tier::L2]
            .map(|tier| clears(tier) && !model.has_child(path, Some(tier)) && model.is_idle(path, tier));
        let page = model.pages.get_mut(path).expect("a known page");
        match *step {
            Step::Priority { priority, .. } => {
                tree.set_priority(page.node, priority);
                page.priority = priority;
            }
            Step::Pin { tier, .. } if page.copies[usize::from(tier)].is_some() => {
                tree.pin(page.node, tier_of(tier)).expect("few pins");
                page.pins[usize::from(tier)] += 1;
            }
            Step::Unpin { tier, .. } if page.pins[usize::from(tier)] > 0 => {
                tree.unpin(page.node, tier_of(tier));
                page.pins[usize::from(tier)] -= 1;
            }
            Step::Hold { tier, .. } => {
                tree.hold(page.node, tier_of(tier)).expect("few holds");
                page.holds[usize::from(tier)] += 1;
            }
            Step::Release { tier, .. } if page.holds[usize::from(tier)] > 0 => {
                tree.release(page.node, tier_of(tier));
                page.holds[usize::from(tier)] -= 1;
            }
            Step::Pending { is_pending, .. } => {
                tree.set_pending(page.node, is_pending);
                page.is_pending = is_pending;
            }
            Step::Quarantine { .. } if page.copies[1].is_some() => {
                tree.quarantine(page.node);
                page.is_quarantined = true;
            }
            Step::Clear { tier, .. } if may_clear[usize::from(tier)] => {
                let node = page.node;
                let copy = match tier_of(tier) {
                    Tier::L1 => TakenCopy::L1(tree.clear_l1(node)),
                    Tier::L2 => {
                        let (owner, slot) = tree.clear_l2(node);
                        TakenCopy::L2(owner, slot)
                    }
                };
                assert_eq!(model.clear(path, tier_of(tier)), copy);
                tree.prune(node);
                model.prune(path);
            }
            _ => {}
        }
    }

    fn compare(&self) {
        let (tree, model) = (&self.tree, &self.model);
        tree.check_invariants();
        assert_eq!(tree.len(), model.pages.len());
        for (path, page) in &model.pages {
            let view = tree.page(page.node);
            assert_eq!(view.key, key_of(path));
            assert_eq!(view.position as usize, path.len() - 1);
            let copies = [view.l1.map(TakenCopy::L1), view.l2.map(|(owner, slot)| TakenCopy::L2(owner, slot))];
            assert_eq!((copies, view.pins, view.holds), (page.copies, page.pins, page.holds));
            assert_eq!((view.is_pending, view.is_quarantined), (page.is_pending, page.is_quarantined));
            assert_eq!((view.priority, view.tick, view.hits), (page.priority, page.tick, page.hits));
        }
        for tier in [Tier::L1, Tier::L2] {
            let order = model.in_order(tier);
            for lane in 0..CP_SIZE {
                let expected = order.iter().filter(|path| model.lane(path, tier) == Some(lane.into()));
                let expected: Vec<NodeId> = expected.map(|path| model.pages[path].node).collect();
                assert_eq!(tree.evictable(tier, Rank(lane)).collect::<Vec<_>>(), expected, "{tier:?} lane {lane}");
            }
        }
    }

    fn compare_match(&self, path: &[u8]) {
        let mut nodes = Vec::new();
        let found = self.tree.match_into(SALT, &keys_of(path), &mut nodes);
        let known: Vec<&Page> = (1..=path.len()).map_while(|end| self.model.pages.get(&path[..end])).collect();
        let l1 = known.iter().take_while(|page| page.copies[0].is_some()).count();
        let host = known[l1..].iter().take_while(|page| page.copies[1].is_some());
        let served: Vec<NodeId> = known[..l1].iter().map(|page| page.node).collect();
        let valid: Vec<NodeId> = host.clone().take_while(|page| !page.is_quarantined).map(|page| page.node).collect();
        assert_eq!((found.l1 as usize, found.l2 as usize), (l1, valid.len()));
        assert_eq!(found.cut_short, host.clone().find(|page| page.is_quarantined).map(|page| page.node));
        assert_eq!(nodes, [served, valid].concat());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_tree_is_what_the_obvious_tree_is(
        steps in prop::collection::vec(step(), 1..80),
        asked in prop::collection::vec(0..3u8, 1..9),
    ) {
        let tree = PrefixTree::new(CP_SIZE, 0);
        let mut pair = Pair { tree, model: Model::default(), tick: 0, copies: 0 };
        for step in &steps {
            pair.play(step);
            pair.compare();
            pair.compare_match(&asked);
        }
    }
}
