//! Field cases of pages that come from another group, with an allocator of 8 pages.

use std::collections::BTreeSet;
use std::ops::{Deref, DerefMut};

use super::receiving::receives;
use super::*;

/// A decode group and its allocator: 8 pages.
struct Pool {
    script: Script,
    free: BTreeSet<PageId>,
    seen: BTreeSet<OpId>,
}

impl Deref for Pool {
    type Target = Script;
    fn deref(&self) -> &Script {
        &self.script
    }
}

impl DerefMut for Pool {
    fn deref_mut(&mut self) -> &mut Script {
        &mut self.script
    }
}

impl Pool {
    fn of_8(l2_slots: u32) -> Self {
        let config = IndexConfig { compute_tokens_min: 0, ..IndexConfig::new(manifest(1), 9, l2_slots) };
        let free = (1..9).map(PageId).collect();
        Self { script: Script::of(config), free, seen: BTreeSet::new() }
    }

    /// Takes frees, and grants or refuses reservations; what is short is evicted once.
    fn serve(&mut self) {
        loop {
            let is_new = |op: &OpId, msg: &AllocatorIn| {
                matches!(msg, AllocatorIn::Free(_) | AllocatorIn::Reserve(_)) && !self.seen.contains(op)
            };
            let next = self.script.sent.iter().find_map(|(op, msg)| match msg {
                Outgoing::Allocator(msg) if is_new(op, msg) => Some((*op, msg.clone())),
                _ => None,
            });
            let Some((op, msg)) = next else { return };
            self.seen.insert(op);
            match msg {
                AllocatorIn::Free(free) => {
                    for page in free.l1.0 {
                        assert!(self.free.insert(page), "{page:?} was freed twice");
                    }
                    self.script.news(Address::Allocator, op, Freed {}.into());
                }
                AllocatorIn::Reserve(reserve) => self.reserve(op, reserve.owners.0.len()),
                _ => {}
            }
        }
    }

    fn reserve(&mut self, op: OpId, pages: usize) {
        if self.free.len() < pages {
            let short = (pages - self.free.len()) as u32;
            let evict = OpId::new(CONTROL, (2 << 56) + self.seen.len() as u64);
            self.script.news(Address::Evictor, evict, Evict { tier: 1, wants: vec![short] }.into());
            self.serve();
        }
        if self.free.len() < pages {
            let short = vec![(pages - self.free.len()) as u32];
            return self.script.news(Address::Allocator, op, Short { short }.into());
        }
        let granted: Vec<PageId> = self.free.iter().take(pages).copied().collect();
        granted.iter().for_each(|page| assert!(self.free.remove(page)));
        self.script.news(Address::Allocator, op, Reserved { pages: Pages(granted) }.into());
    }

    fn open_served(&mut self, msg: Open) -> OpId {
        let op = self.script.ask(msg);
        self.serve();
        op
    }

    fn free(&mut self) -> usize {
        self.serve();
        self.free.len()
    }
}

#[test]
fn f07_pages_that_are_still_arriving() {
    let path = keys(1, 4);
    for arrives in [true, false] {
        let mut pool = Pool::of_8(8);
        let session = pool.open_served(receives(1, &path, 256));
        let pages = pool.opened(session).pages.clone();
        assert_eq!(pool.told_receiver(), [Expect { attempt: 1, tokens: 256, first: 0, pages }.into()]);
        pool.receiver_says(Expected { attempt: 1 });
        assert_eq!(pool.probe(&path), Probed { l1: 0, l2: 0 });
        let step = pool.announce(session, 1, 0..256, true);
        assert_eq!(pool.refusal(step), &WrongState::new(session, "waiting for its handover").into());
        assert_eq!((pool.count_of("backup"), pool.counter("index.cached_l2")), (0, 0));
        if arrives {
            pool.arrive(1, 256);
            assert_eq!(pool.probe(&path), Probed { l1: 4, l2: 0 });
            let backup = pool.op_of("backup");
            assert_eq!((pool.backup().keys.0, pool.backup().step), (path.clone(), 0));
            pool.back_up(backup, 0..4);
            assert_eq!(pool.probe(&path).l1, 4);
            let closed = pool.close(session, 0);
            assert_eq!((closed.l1_pages, closed.l2_pages, closed.uncached), (4, 4, 0));
            assert_eq!((pool.free(), pool.counter("index.cached_l2")), (4, 4));
        } else {
            pool.not_arriving(1);
            pool.ask(abort(session, 0));
            assert_eq!(pool.probe(&path), Probed { l1: 0, l2: 0 });
            assert_eq!((pool.free(), pool.counter("index.cached_l2"), pool.counter("index.in_flight")), (8, 0, 0));
        }
    }
}

#[test]
fn f17_late_writes_after_an_abort() {
    let mut pool = Pool::of_8(0);
    let first = pool.open_served(receives(1, &keys(1, 6), 384));
    pool.receiver_says(Expected { attempt: 1 });
    pool.ask(abort(first, 0));
    let cause = "its session was aborted".to_owned();
    assert_eq!(pool.told_receiver()[1..], [Unexpect { attempt: 1, cause }.into()]);
    let refused = pool.open_served(open(&keys(2, 6), 384));
    assert!(matches!(pool.refusal(refused), Refusal::OutOfPages(r) if r.short == [4]));
    pool.pass_ms(600_000);
    pool.hello(RANK, 0);
    assert_eq!(pool.free(), 2, "no timer frees what may still be written");
    assert!(!pool.is_answered(first) || matches!(pool.answer(first), Answer::Opened(_)));
    pool.not_arriving(1);
    assert_eq!(pool.free(), 8);
    let second = pool.open_served(open(&keys(2, 6), 384));
    assert_eq!(pool.opened(second).pages.0.len(), 6);
    pool.not_arriving(1);
    assert_eq!(pool.free(), 2, "said again it frees nothing");
}

#[test]
fn f20_the_same_request_id_a_second_time() {
    let mut pool = Pool::of_8(0);
    let (one, two) = (keys(1, 4), keys(2, 6));
    let first = pool.open_served(receives(1, &one, 256));
    pool.arrive(1, 256);
    let other = pool.open_served(open(&two[..4], 256));
    let grow = |first| Extend { session: other, tenant: "a".to_owned(), tokens: 64, owners: Owners(vec![]), first };
    let fifth = pool.ask(grow(4));
    pool.serve();
    assert!(matches!(pool.refusal(fifth), Refusal::OutOfPages(_)));
    pool.ask(abort(first, 0));
    for first in [4, 5] {
        let op = pool.ask(grow(first));
        pool.serve();
        assert!(matches!(pool.answer(op), Answer::Extended(_)), "the idle pages give way");
    }
    let again = receives(2, &one, 256);
    let early = pool.open_served(again.clone());
    assert!(matches!(pool.refusal(early), Refusal::OutOfPages(_)), "it waits for room");
    let mut entry = pool.entry(other, 0..256, true);
    (entry.keys, entry.first_key) = (Keys(two[4..].to_vec()), 4);
    pool.ask(Step { number: 1, entries: vec![entry], engine: ENGINE, all_layers_at_end: false });
    pool.pass(1);
    pool.close(other, 1);
    let second = pool.open_served(again);
    assert_eq!(pool.opened(second).l1_hit, 2, "what did not give way is still here");
    let waits = pool.ask_handover(2);
    pool.arrive(1, 256);
    pool.not_arriving(1);
    assert!(!pool.is_answered(waits), "a word of the first attempt says nothing of the second");
    let stale = pool.ask_handover(1);
    assert_eq!(pool.refusal(stale), &WrongState::new(TRANSFER, "attempt 2 is known").into());
    pool.arrive(2, 256);
    assert_eq!(
        pool.answer(waits),
        &HandedOver { tokens: 256, received: 2, blob: Bin(b"seed".to_vec()), components: vec![] }.into()
    );
    assert_eq!(pool.probe(&one).l1, 4);
    pool.close(second, 1);
    let free = pool.free() as u64;
    assert_eq!((free + pool.counter("index.cached_l1"), pool.counter("index.private_l1")), (8, 0));
    pool.ask(Flush { tier: 0, salt: vec![], prefix: Keys(vec![]), quarantined: false });
    assert_eq!(pool.free(), 8);
}
