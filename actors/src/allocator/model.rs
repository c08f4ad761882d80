//! The pools against a set of free slots and a free list that is searched from end to end.

use std::collections::BTreeSet;

use proptest::prelude::*;
use serde_json::Value;

use super::{
    Contiguity, HostPools, Lanes, Marks, PagePool, PagesError, PoolSizeError, PoolsError, ReserveError, Run, SLOTS_MAX,
    Short, Shortfall, SlotError,
};
use crate::protocol::{HostSlot, PageId, Rank};

/// Free slots, one by one.
#[derive(Clone, Debug)]
struct Model {
    free: BTreeSet<u32>,
}

impl Model {
    fn runs(&self) -> Vec<Run> {
        let mut runs = Vec::new();
        Run::of_slots(self.free.iter().copied(), &mut runs);
        runs
    }

    /// Runs that longest-first needs for `pages`, which are free.
    fn runs_needed(&self, pages: u32) -> usize {
        let mut lengths: Vec<u32> = self.runs().iter().map(|run| run.pages).collect();
        lengths.sort_unstable_by(|a, b| b.cmp(a));
        let mut missing = pages;
        let mut runs = 0;
        for length in lengths {
            if missing == 0 {
                break;
            }
            missing = missing.saturating_sub(length);
            runs += 1;
        }
        runs
    }

    fn longest(&self) -> u32 {
        self.runs().iter().map(|run| run.pages).max().unwrap_or(0)
    }

    fn take(&mut self, run: Run) {
        for slot in run.start..run.end() {
            assert!(self.free.remove(&slot), "slot {slot} was given out twice");
        }
    }

    fn free(&mut self, run: Run) {
        self.free.extend(run.start..run.end());
    }
}

/// One call on a pool. Picks are taken modulo what there is to pick from.
#[derive(Clone, Debug)]
enum Step {
    Reserve { pages: u32, contiguity: Contiguity },
    Free { pick: usize },
    FreePart { pick: usize, from: u32, pages: u32 },
    FreeEverySecond { pick: usize },
    Take { slots: Vec<u32> },
    FreeAgain { slot: u32, pages: u32 },
}

fn contiguity() -> impl Strategy<Value = Contiguity> {
    prop_oneof![6 => Just(Contiguity::Prefer), 1 => Just(Contiguity::Require), 1 => Just(Contiguity::Off)]
}

fn pages() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 0..6u32, 3 => 0..80u32, 2 => 0..700u32]
}

fn step(slots: u32) -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (pages(), contiguity()).prop_map(|(pages, contiguity)| Step::Reserve { pages, contiguity }),
        3 => any::<usize>().prop_map(|pick| Step::Free { pick }),
        4 => (any::<usize>(), any::<u32>(), pages()).prop_map(|(pick, from, pages)| Step::FreePart { pick, from, pages }),
        2 => any::<usize>().prop_map(|pick| Step::FreeEverySecond { pick }),
        1 => prop::collection::vec(0..slots + 2, 0..5).prop_map(|slots| Step::Take { slots }),
        1 => (0..slots + 2, 0..9u32).prop_map(|(slot, pages)| Step::FreeAgain { slot, pages }),
    ]
}

/// The pool, the model and what is taken.
struct Pair {
    pool: PagePool,
    model: Model,
    taken: Vec<Run>,
}

impl Pair {
    fn new(slots: u32, reserved: u32) -> Self {
        let pool = PagePool::new(slots, reserved).expect("a small pool");
        Self { pool, model: Model { free: (reserved..slots).collect() }, taken: Vec::new() }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Reserve { pages, contiguity } => self.reserve(*pages, *contiguity),
            Step::Free { pick } => {
                if let Some(run) = self.pick(*pick) {
                    self.free(&[run]);
                }
            }
            Step::FreePart { pick, from, pages } => {
                if let Some(run) = self.pick(*pick) {
                    let start = run.start + from % run.pages;
                    let part = Run { start, pages: (*pages).clamp(1, run.end() - start) };
                    self.keep(run.start, part.start);
                    self.keep(part.end(), run.end());
                    self.free(&[part]);
                }
            }
            Step::FreeEverySecond { pick } => {
                if let Some(run) = self.pick(*pick) {
                    let every_second = |skip| (run.start..run.end()).skip(skip).step_by(2);
                    self.taken.extend(every_second(1).map(|start| Run { start, pages: 1 }));
                    let comb: Vec<Run> = every_second(0).map(|start| Run { start, pages: 1 }).collect();
                    self.free(&comb);
                }
            }
            Step::Take { slots } => self.take(slots),
            Step::FreeAgain { slot, pages } => {
                let run = Run { start: *slot, pages: *pages };
                let touches_free = (run.start..run.end()).any(|slot| self.model.free.contains(&slot));
                let is_wrong = run.pages == 0 || run.end() > self.pool.slots() || touches_free;
                if is_wrong {
                    assert!(self.pool.free(&[run]).is_err(), "freed {run:?}");
                }
            }
        }
        self.check();
    }

    fn reserve(&mut self, pages: u32, contiguity: Contiguity) {
        let free = self.model.free.len() as u32;
        let longest = self.model.longest();
        let mut runs = Vec::new();
        let result = self.pool.reserve(pages, contiguity, &mut runs);
        let most = match contiguity {
            Contiguity::Off | Contiguity::Prefer => free,
            Contiguity::Require => longest,
        };
        if pages > most {
            let short = Short { wanted_pages: pages, free_pages: free, longest_run_pages: longest };
            assert_eq!((result, runs), (Err(short), vec![]));
            return;
        }
        assert_eq!(result, Ok(()));
        assert_eq!(runs.iter().map(|run| run.pages).sum::<u32>(), pages);
        if contiguity != Contiguity::Off {
            assert_eq!(runs.len(), self.model.runs_needed(pages), "runs for {pages} pages");
        }
        for run in runs {
            self.model.take(run);
            self.taken.push(run);
        }
    }

    fn take(&mut self, slots: &[u32]) {
        let distinct: BTreeSet<u32> = slots.iter().copied().collect();
        let all_free = slots.iter().all(|slot| self.model.free.contains(slot));
        let result = self.pool.take(slots);
        assert_eq!(result.is_ok(), all_free && distinct.len() == slots.len(), "{slots:?}: {result:?}");
        if result.is_ok() {
            for slot in slots {
                let page = Run { start: *slot, pages: 1 };
                self.model.take(page);
                self.taken.push(page);
            }
        }
    }

    fn pick(&mut self, pick: usize) -> Option<Run> {
        (!self.taken.is_empty()).then(|| self.taken.swap_remove(pick % self.taken.len()))
    }

    fn keep(&mut self, start: u32, end: u32) {
        if start < end {
            self.taken.push(Run { start, pages: end - start });
        }
    }

    fn free(&mut self, runs: &[Run]) {
        let mut twice = runs.to_vec();
        twice.push(runs[0]);
        assert_eq!(self.pool.free(&twice), Err(SlotError::AlreadyFree { slot: runs[0].start }));
        self.check();
        assert_eq!(self.pool.free(runs), Ok(()));
        runs.iter().for_each(|run| self.model.free(*run));
    }

    fn check(&self) {
        self.pool.check_invariants();
        let mut runs = Vec::new();
        self.pool.for_each_free_run(|run| runs.push(run));
        assert_eq!(runs, self.model.runs());
        assert_eq!(self.pool.longest_run_pages(), self.model.longest());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_pool_agrees_with_a_set_of_free_slots(
        (slots, steps) in prop_oneof![Just(1u32), 2..140u32, 600..1400u32, 4200..4600u32]
            .prop_flat_map(|slots| (Just(slots), prop::collection::vec(step(slots), 1..60))),
        reserved in 0..2u32,
    ) {
        let mut pair = Pair::new(slots, reserved);
        for step in &steps {
            pair.step(step);
        }
    }

    #[test]
    fn lanes_give_the_owners_asked_for_or_the_exact_shortfall(
        lanes in prop::collection::vec(1..90u32, 1..=64),
        calls in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..70), any::<bool>()), 1..12),
    ) {
        let cp_size = lanes.len() as u8;
        let mut pools = Lanes::new(&lanes).expect("small lanes");
        for (picks, keep) in calls {
            let owners: Vec<u8> = picks.iter().map(|pick| pick % cp_size).collect();
            let free: Vec<u32> = pools.pools().pools().map(PagePool::free_pages).collect();
            let short: Vec<u32> = (0..cp_size).zip(&free)
                .map(|(rank, free)| (owners.iter().filter(|owner| **owner == rank).count() as u32).saturating_sub(*free))
                .collect();
            match pools.alloc_with_owners(&owners) {
                Ok(pages) => {
                    prop_assert!(short.iter().all(|pages| *pages == 0));
                    prop_assert_eq!(pages.iter().map(|page| page.owner(cp_size).0).collect::<Vec<_>>(), owners);
                    prop_assert_eq!(pages.iter().collect::<BTreeSet<_>>().len(), pages.len());
                    prop_assert!(pages.iter().all(|page| page.0 >= u32::from(cp_size)), "padding was given out");
                    if !keep {
                        prop_assert_eq!(pools.free(&pages), Ok(()));
                    }
                }
                Err(error) => {
                    prop_assert_eq!(error, ReserveError::Short(Shortfall { per_rank: short }));
                    prop_assert_eq!(pools.pools().pools().map(PagePool::free_pages).collect::<Vec<_>>(), free);
                }
            }
            pools.pools().check_invariants();
        }
    }
}

#[test]
fn every_vector_of_alloc_with_owners_holds() {
    let vectors: Value = serde_json::from_str(include_str!("../../../tests/data/lanes.json")).expect("valid vectors");
    let rows = vectors["alloc_with_owners"].as_array().filter(|rows| !rows.is_empty()).expect("rows");
    for row in rows {
        let numbers = |field: &str| -> Vec<u32> { serde_json::from_value(row[field].clone()).expect("numbers") };
        let owners: Vec<u8> = numbers("owners").iter().map(|owner| *owner as u8).collect();
        let free = numbers("free_pages_per_lane");
        let mut lanes = Lanes::new(&free.iter().map(|free| free + 1).collect::<Vec<_>>()).expect("small lanes");
        let cp_size = lanes.pools().cp_size();
        assert_eq!(u64::from(cp_size), row["cp_size"], "{row}");
        match lanes.alloc_with_owners(&owners) {
            Ok(pages) => {
                assert_eq!(row["granted"], true, "{row}");
                assert_eq!(pages.iter().map(|page| page.owner(cp_size).0).collect::<Vec<_>>(), owners, "{row}");
            }
            Err(error) => {
                assert_eq!(row["granted"], false, "{row}");
                let per_rank = numbers("shortfall_per_lane");
                assert_eq!(error, ReserveError::Short(Shortfall { per_rank }), "{row}");
            }
        }
        let after: Vec<u32> = lanes.pools().pools().map(PagePool::free_pages).collect();
        assert_eq!(after, numbers("free_after"), "{row}");
        lanes.pools().check_invariants();
    }
}

#[test]
fn pages_of_one_owner_are_contiguous_across_the_pages_of_others() {
    let mut lanes = Lanes::new(&[100; 2]).expect("small lanes");
    let pages = lanes.alloc_with_owners(&[0, 1, 1, 0, 0]).expect("an empty pool");
    assert_eq!(pages.iter().map(|page| page.physical(2)).collect::<Vec<_>>(), [1, 1, 2, 2, 3]);
    let mut more = Vec::new();
    assert_eq!(lanes.alloc_with_owners_into(&[1, 0, 1], &mut more), Ok(2), "one run per lane");
    lanes.free(&pages).expect("pages that were given out");
    assert_eq!(lanes.pools().pool(Rank(0)).map(PagePool::free_pages), Some(98));
}

#[test]
fn a_bad_free_or_take_names_the_slot_and_changes_nothing() {
    let run = |start, pages| Run { start, pages };
    let mut pool = PagePool::new(100, 1).expect("a small pool");
    pool.reserve(50, Contiguity::Prefer, &mut Vec::new()).expect("an empty pool");
    let rows: [(&[Run], SlotError); 8] = [
        (&[run(1, 1), run(10, 0)], SlotError::Empty { slot: 10 }),
        (&[run(1, 1), run(100, 1)], SlotError::OutOfRange { slot: 100, slots: 100 }),
        (&[run(1, 1), run(u32::MAX, u32::MAX)], SlotError::OutOfRange { slot: u32::MAX, slots: 100 }),
        (&[run(1, 1), run(40, 61)], SlotError::OutOfRange { slot: 100, slots: 100 }),
        (&[run(1, 1), run(0, 2)], SlotError::Reserved { slot: 0 }),
        (&[run(1, 1), run(40, 12)], SlotError::AlreadyFree { slot: 51 }),
        (&[run(1, 5), run(3, 1)], SlotError::AlreadyFree { slot: 3 }),
        (&[run(99, 1)], SlotError::AlreadyFree { slot: 99 }),
    ];
    for (runs, error) in rows {
        assert_eq!(pool.free(runs), Err(error));
        assert_eq!(pool.free_pages(), 49, "{error}");
        pool.check_invariants();
    }
    let rows: [(&[u32], SlotError); 4] = [
        (&[60, 50], SlotError::AlreadyTaken { slot: 50 }),
        (&[60, 61, 60], SlotError::AlreadyTaken { slot: 60 }),
        (&[60, 0], SlotError::Reserved { slot: 0 }),
        (&[60, 100], SlotError::OutOfRange { slot: 100, slots: 100 }),
    ];
    for (slots, error) in rows {
        assert_eq!(pool.take(slots), Err(error));
        assert_eq!(pool.free_pages(), 49, "{error}");
        pool.check_invariants();
    }
    assert_eq!(pool.take(&[60, 61, 99]), Ok(()));
    pool.check_invariants();
}

#[test]
fn what_is_wrong_in_one_rank_changes_no_other_rank() {
    let mut host = HostPools::new(&[64, 64]).expect("small pools");
    let slots = host.reserve(&[0, 0, 1], Contiguity::Prefer).expect("empty pools");
    let error = SlotError::AlreadyFree { slot: 9 };
    let wrong = [slots[0], slots[1], HostSlot(9)];
    assert_eq!(host.free(&[0, 0, 1], &wrong), Err(PagesError::Slot { rank: Rank(1), error }));
    assert_eq!(host.free(&[0], &slots), Err(PagesError::Unpaired { owners: 1, slots: 3 }));
    assert_eq!(host.free(&[0, 0, 2], &slots), Err(PagesError::UnknownRank { rank: Rank(2), cp_size: 2 }));
    assert_eq!(host.take(Rank(2), &[]), Err(PagesError::UnknownRank { rank: Rank(2), cp_size: 2 }));
    assert_eq!(host.pools().pool(Rank(0)).map(PagePool::free_pages), Some(62));
    assert_eq!(host.free(&[0, 0, 1], &slots), Ok(()));
    assert_eq!(host.take(Rank(1), &slots[2..]), Ok(()));
    assert_eq!(host.free_runs(Rank(1), &[Run { start: slots[2].0, pages: 1 }]), Ok(()));

    let mut lanes = Lanes::new(&[64, 64]).expect("small lanes");
    let unknown = ReserveError::UnknownOwner { position: 2, owner: 2, cp_size: 2 };
    assert_eq!(lanes.alloc_with_owners(&[0, 1, 2]), Err(unknown));
    let unknown = ReserveError::UnknownOwner { position: 0, owner: 2, cp_size: 2 };
    assert_eq!(lanes.alloc_with_owners(&[2, 2]), Err(unknown));
    let error = SlotError::Reserved { slot: 0 };
    assert_eq!(lanes.take(&[PageId(4), PageId(1)]), Err(PagesError::Slot { rank: Rank(1), error }));
    assert_eq!(lanes.pools().pool(Rank(0)).map(PagePool::free_pages), Some(63));
    assert_eq!(lanes.take(&[PageId(4), PageId(3)]), Ok(()));
    lanes.pools().check_invariants();
    host.pools().check_invariants();
}

#[test]
fn one_run_can_be_required_of_every_rank() {
    let mut host = HostPools::new(&[8, 8]).expect("small pools");
    host.take(Rank(1), &[HostSlot(4)]).expect("a free slot");
    let wanted = [0, 1, 0, 1, 1, 1, 1];
    let short = ReserveError::Short(Shortfall { per_rank: vec![0, 1] });
    assert_eq!(host.reserve(&wanted, Contiguity::Require), Err(short));
    assert_eq!(host.pools().pool(Rank(0)).map(PagePool::free_pages), Some(8));
    assert_eq!(host.reserve(&wanted, Contiguity::Prefer).map(|slots| slots.len()), Ok(7));
    host.pools().check_invariants();
}

#[test]
fn pools_that_cannot_be_are_refused() {
    let error = PoolSizeError { slots: SLOTS_MAX + 1, reserved_slots: 0 };
    assert_eq!(PagePool::new(SLOTS_MAX + 1, 0).err(), Some(error));
    assert_eq!(HostPools::new(&[]).err(), Some(PoolsError::Ranks { ranks: 0 }));
    assert_eq!(HostPools::new(&[1; 65]).err(), Some(PoolsError::Ranks { ranks: 65 }));
    let error = PoolSizeError { slots: 0, reserved_slots: 1 };
    assert_eq!(Lanes::new(&[1, 0]).err(), Some(PoolsError::Pool { rank: Rank(1), error }));
    let slots = 1 << 30;
    assert_eq!(Lanes::new(&[slots; 5]).err(), Some(PoolsError::PageIds { slots, ranks: 5 }));
}

#[test]
fn marks_are_per_pool_and_bounded_by_it() {
    let mut host = HostPools::new(&[100, 20]).expect("small pools");
    let marks = Marks::new(10, 30).expect("low below high");
    assert!(host.pools_mut().set_marks(marks).is_err(), "the second pool is smaller than 30");
    assert_eq!(host.pools().pool(Rank(0)).map(PagePool::marks), Some(Marks::OFF));
    host.pools_mut().set_marks(Marks::new(5, 10).expect("low below high")).expect("both pools are larger");
    assert_eq!(host.pools().below_low().count(), 0);
    host.reserve(&[1; 16], Contiguity::Off).expect("20 are free");
    assert_eq!(host.pools().below_low().collect::<Vec<_>>(), [(Rank(1), 6)]);
}

#[test]
fn metadata_is_a_third_of_a_byte_per_record_in_any_state() {
    let mut pool = PagePool::new(55_000, 0).expect("a pool");
    let empty = pool.figures();
    let comb: Vec<u32> = (0..55_000).step_by(2).collect();
    pool.take(&comb).expect("free slots");
    let figures = pool.figures();
    assert_eq!(figures.metadata_bytes, empty.metadata_bytes);
    assert!(figures.metadata_bytes * 3 <= 55_000, "{} bytes", figures.metadata_bytes);
    assert_eq!((figures.runs_by_size[0], figures.longest_run_pages), (27_500, 1));
    assert_eq!((empty.runs_by_size[15], empty.longest_run_pages), (1, 55_000));
}
