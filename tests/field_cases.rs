//! Field cases on the scripted world, under their names. Numbers are used as they stand.

use hicached_actors::protocol::{Address, Answer, Flush, Keys, Pin, Rank, Refusal};
use hicached_sim::{PairScript, Prompt, Script, Sizes, Write};

/// The sizes of a case: pages of each rank in L1 and L2.
fn sizes(l1_pages: u32, l2_pages: u32) -> Sizes {
    Sizes { l1_pages, l2_pages, ..Sizes::default() }
}

fn pin(script: &mut Script, prompt: &Prompt, on: bool) {
    let (salt, keys) = (script.salt(), Keys(script.keys(prompt)));
    let answer = script.request(Pin { salt, keys, on }.into());
    assert!(matches!(answer, Answer::Pinned(_)), "{answer:?}");
}

#[test]
fn f01_host_tier_smaller_than_device_tier() {
    let mut script = Script::new(sizes(64, 16));
    let prompts: Vec<Prompt> = (1..=32).map(|text| Prompt::new(text, 64)).collect();
    for prompt in &prompts {
        script.insert(prompt);
        assert!(script.cached(2) <= 16);
    }
    assert_eq!(script.figure(Address::Index, "index.backups_refused"), 0);
    for (at, prompt) in prompts.iter().enumerate() {
        assert_eq!(script.resident(prompt), [(true, at >= 16)], "prefix {}", at + 1);
        assert_eq!(script.matched(prompt), 64);
    }
    script.end();
}

#[test]
fn f03_one_sweep_several_backups_in_flight() {
    let mut script = Script::new(Sizes { write: Write::Back, ..sizes(6, 4) });
    let prompts: Vec<Prompt> = (1..=3).map(|text| Prompt::new(text, 128)).collect();
    prompts.iter().for_each(|prompt| drop(script.insert(prompt)));
    script.hold("copy_ack");
    script.evict(1, &[6]);
    assert_eq!(script.free(2), [0], "4 host pages are reserved for A and B");
    assert_eq!(script.free(1), [0], "their L1 pages are not free");
    script.release("copy_ack");
    script.settle();
    let resident: Vec<_> = prompts.iter().map(|prompt| script.resident(prompt)).collect();
    assert_eq!(script.cached(2), 4, "{resident:?}");
    assert_eq!(script.free(2), [0]);
    assert_eq!(script.sealed_slots().len(), 4, "host bytes equal the patterns");
    assert!(script.free(1)[0] >= 4);
    assert_eq!(resident[0], [(false, true); 2]);
    assert_eq!(resident[1], [(false, true); 2]);
    script.end();
}

#[test]
fn f04_eviction_during_a_load_back() {
    let mut script = Script::new(Sizes { write: Write::Back, ..sizes(12, 8) });
    let (p, q, r) = (Prompt::new(1, 256), Prompt::new(2, 256), Prompt::new(3, 256));
    script.insert(&p);
    script.insert(&q);
    script.evict(1, &[8]);
    script.settle();
    assert_eq!((script.free(1), script.cached(2)), (vec![12], 8), "P and Q are on the host only");
    script.insert(&r);
    let slots_of_p = script.slots(&p);
    script.sim.ranks[0].load_stop_after = Some(3);
    let session = script.open(&p).unwrap();
    assert_eq!(script.hits(session), (0, 4));
    script.settle();
    script.evict(1, &[4]);
    assert_eq!(script.resident(&r).iter().filter(|(_, l2)| *l2).count(), 4, "R is backed up");
    assert_eq!(script.resident(&q).iter().filter(|(_, l2)| *l2).count(), 0, "room comes from Q");
    assert_eq!(script.slots(&p), slots_of_p, "none of P's host pages moves");
    script.go_on();
    script.settle();
    assert!((0..4).all(|at| script.is_right(session, at)), "L1 bytes of P are right in all 12 layers");
    script.close(session);
    script.evict(2, &[8]);
    assert!(script.resident(&p).iter().all(|(_, l2)| !l2), "P can be evicted from L2");
    script.end();
}

#[test]
fn f05_no_gaps_in_the_host_chain() {
    let mut script = Script::new(sizes(8, 2));
    let a = Prompt::new(1, 192);
    let ab = a.clone().then(2, 64);
    script.insert(&a);
    script.insert(&ab);
    let flushed = script.flush(1);
    assert_eq!(flushed.l1_kept, 0);
    script.settle();
    assert_eq!(script.cached(2) * 64, script.matched(&ab));
    assert_eq!(script.matched(&ab), 0);
    assert_eq!(script.free(1), [8]);
    script.end();
}

#[test]
fn f08_target_and_draft_stay_together() {
    let mut script = Script::new(sizes(64, 64));
    let p = Prompt::new(1, 256);
    script.insert(&p);
    script.flush(1);
    let session = script.open(&p).unwrap();
    assert_eq!(script.hits(session), (0, 4));
    script.settle();
    assert!((0..4).all(|at| script.is_right(session, at)), "12 target layers and the draft");
    script.close(session);
    script.flush(1);
    let slot = script.slots(&p)[2];
    script.sim.damage(slot.0, slot.1, "draft.kv");
    let (ranks, net) = (&mut script.sim.ranks, &mut script.sim.net);
    ranks[0].report_damage(net, slot.1, "draft.kv".to_owned());
    script.settle();
    assert_eq!(script.matched(&p), 128, "never 256");
    let session = script.open(&p).unwrap();
    assert_eq!(script.hits(session), (0, 2));
    assert_eq!(script.figure(Address::Index, "index.cut_short"), 1);
    script.abort(session);
    script.settle();
    assert_eq!(script.free(2), [61], "pages 0, 1 and the quarantined one; page 3's copy is freed");
    script.flush_quarantined();
    script.settle();
    assert_eq!(script.free(2), [62], "the record is freed whole");
    script.end();
}

/// The record breaks where nobody looks, and a load finds it: the fake rank does what a rank with fingerprints does.
#[test]
fn f08_a_load_finds_the_damage() {
    let mut script = Script::new(sizes(64, 64));
    let p = Prompt::new(1, 256);
    script.insert(&p);
    script.flush(1);
    let slot = script.slots(&p)[2];
    script.sim.damage(slot.0, slot.1, "draft.kv");
    let session = script.open(&p).unwrap();
    assert_eq!(script.hits(session), (0, 4), "nobody knows yet");
    script.compute(session);
    script.settle();
    assert_eq!(script.figure(Address::Index, "index.loads_failed"), 1);
    assert!((0..4).all(|at| script.is_right(session, at)), "the session has computed all four pages");
    assert_eq!(script.figure(Address::Index, "index.quarantined"), 2, "page 3's copy is in use");
    script.close(session);
    script.settle();
    assert_eq!(script.figure(Address::Index, "index.quarantined"), 1);
    assert_eq!((script.free(2), script.cached(2)), (vec![61], 3), "page 3's copy is freed");
    assert_eq!(script.flush_quarantined().l2, 1);
    assert_eq!((script.free(2), script.figure(Address::Index, "index.quarantined")), (vec![62], 0));
    script.end();
}

#[test]
fn f09_abort_in_the_middle_of_a_per_layer_backup() {
    let mut script = Script::new(Sizes { cp: 2, ..sizes(16, 3) });
    let lock = Prompt::new(9, 128).owned_by(&[1, 1]);
    script.insert(&lock);
    pin(&mut script, &lock, true);
    assert_eq!(script.free(2), [3, 1]);
    let prompt = |own: u32| Prompt::new(1, 130).then(own, 62).owned_by(&[0, 1, 0]);
    let own_page = |own: u32| Prompt::new(1, 130).then(own, 62).owned_by(&[0]);
    let first = script.open(&prompt(2)).unwrap();
    script.compute(first);
    script.settle();
    let second = script.open(&own_page(3)).unwrap();
    assert_eq!(script.hits(second), (2, 0));
    script.sim.engine.stop_after = Some(7);
    let tokens = script.session(second).next_tokens(&script.sim.memory.layout);
    script.launch(&[(second, tokens)]);
    script.settle();
    assert_eq!(script.free(2), [0, 0], "request 2 holds the last slot");
    script.ask_abort(second);
    script.settle();
    let third = script.open(&own_page(4)).unwrap();
    let tokens = script.session(third).next_tokens(&script.sim.memory.layout);
    let step = script.launch(&[(third, tokens)]);
    script.settle();
    script.go_on();
    script.until("step", |sim| sim.engine.last_done >= step);
    script.settle();
    assert_eq!((script.cached(2), script.free(2)), (6, vec![0, 0]), "4 and the locked 2");
    script.close(first);
    script.close(third);
    script.settle();
    script.flush(1);
    script.settle();
    for (own, tokens) in [(2, 192), (3, 128), (4, 192)] {
        assert_eq!(script.matched(&prompt(own)), tokens, "request {}", own - 1);
    }
    pin(&mut script, &lock, false);
    script.end();
}

#[test]
fn f10_pins_taken_by_a_lookup() {
    let mut script = Script::new(sizes(64, 16));
    let (p, q) = (Prompt::new(1, 1_024), Prompt::new(2, 1_024));
    script.insert(&p);
    assert_eq!(script.resident(&p), [(true, true); 16]);
    let sessions: Vec<u64> = (0..50).map(|_| script.open(&p).unwrap()).collect();
    for (at, session) in sessions.into_iter().enumerate() {
        assert_eq!(script.hits(session), (16, 0));
        if at < 10 { script.abort(session) } else { drop(script.close(session)) }
    }
    assert_eq!(script.pins(&p), [[0, 0]; 16]);
    script.insert(&q);
    assert_eq!(script.resident(&q), [(true, true); 16], "Q takes P's place in L2");
    assert_eq!(script.resident(&p), [(true, false); 16]);
    script.end();
}

#[test]
fn f11_a_backup_that_cannot_fit() {
    let mut script = Script::new(sizes(64, 4));
    let locks = [Prompt::new(8, 128), Prompt::new(9, 128)];
    for lock in &locks {
        script.insert(lock);
        pin(&mut script, lock, true);
    }
    let request = Prompt::new(1, 256).in_chunks_of(64);
    let session = script.open(&request).unwrap();
    let run = |script: &mut Script| {
        let layout = script.sim.memory.layout.clone();
        if script.session(session).next_tokens(&layout) == 0 {
            script.extend(session, 64);
        }
        let step = script.launch(&[(session, 64)]);
        script.until("step", |sim| sim.engine.last_done >= step);
    };
    (0..3).for_each(|_| run(&mut script));
    script.settle();
    let attempts = |script: &Script| script.figure(Address::Index, "index.backups");
    let before = attempts(&script) - 2;
    assert!(before <= 3, "{before} attempts for 3 pages");
    for step in 4..=1_000 {
        match step {
            500 => run(&mut script),
            800 => {
                assert!(attempts(&script) - 2 <= 4, "1 attempt per page before step 800");
                pin(&mut script, &locks[0], false);
                script.settle();
            }
            _ => {
                let other = script.open(&Prompt::new(100 + step, 1)).unwrap();
                script.compute(other);
                script.close(other);
            }
        }
    }
    script.settle();
    let all = attempts(&script) - 2;
    assert!(all <= 8, "{all} attempts: at most one new one per waiting page");
    assert_eq!(script.resident(&request).iter().filter(|(_, l2)| *l2).count(), 2);
    assert_eq!(script.figure(Address::Index, "index.in_flight"), 1, "the session; pending 0");
    script.close(session);
    pin(&mut script, &locks[1], false);
    script.end();
}

#[test]
fn f12_split_at_a_page_edge() {
    let mut script = Script::new(sizes(64, 0));
    let short = Prompt::new(1, 63);
    script.insert(&short);
    assert_eq!((script.cached(1), script.matched(&short)), (0, 0));
    let a = Prompt::new(2, 192);
    let b = Prompt::new(2, 130).then(3, 62);
    script.insert(&a);
    script.insert(&b);
    assert_eq!(script.cached(1), 4);
    let free = script.free(1)[0];
    script.evict(1, &[1]);
    assert_eq!(script.free(1), [free + 1]);
    assert_eq!((script.matched(&b), script.matched(&a)), (192, 128));
    script.end();
}

#[test]
fn f13_a_cap_inside_a_page() {
    let mut script = Script::new(Sizes { page_tokens: 512, ..sizes(8, 0) });
    let prompt = Prompt::new(1, 1_000);
    let session = script.open(&prompt).unwrap();
    script.compute(session);
    let pages = script.pages(session);
    assert_eq!(script.free(1), [6]);
    let closed = script.close(session);
    script.settle();
    assert_eq!((closed.l1_pages, script.matched(&prompt)), (1, 512));
    assert_eq!(script.free(1), [7], "page 1 is released once");
    script.free_from_outside(pages[1]);
    assert_eq!(script.free(1), [7], "another release is refused");
    script.end();
}

#[test]
fn f14_one_decision_for_the_group() {
    for locked in [false, true] {
        let mut script = Script::new(Sizes { cp: 2, ..sizes(4, 16) });
        let p = Prompt::new(1, 256).owned_by(&[0, 1, 1, 0]);
        script.insert(&p);
        script.flush(1);
        script.settle();
        assert_eq!(script.free(1), [4, 4]);
        let held = script.open(&Prompt::new(2, 128).owned_by(&[1, 1])).unwrap();
        script.compute(held);
        let idle = script.open(&Prompt::new(3, 64).owned_by(&[1])).unwrap();
        script.compute(idle);
        script.settle();
        if !locked {
            script.close(idle);
            script.settle();
        }
        assert_eq!(script.free(1), [4, 1]);
        let began = script.sim.net.now;
        match script.open(&p) {
            Ok(session) if !locked => {
                assert_eq!(script.hits(session), (0, 4), "both ranks report 256");
                let owners: Vec<Rank> = script.pages(session).iter().map(|page| page.owner(2)).collect();
                assert_eq!(owners, [Rank(0), Rank(1), Rank(1), Rank(0)]);
                script.settle();
                assert!((0..4).all(|at| script.is_right(session, at)));
                script.close(session);
            }
            Err(Refusal::OutOfPages(_)) if locked => {
                script.settle();
                assert_eq!(script.free(1), [4, 1], "nothing stays reserved");
                script.close(idle);
            }
            other => panic!("locked {locked}: {other:?}"),
        }
        assert!(began.ms_until(script.sim.net.now) < 1_000 + 400);
        script.close(held);
        script.end();
    }
}

#[test]
fn f16_one_slow_rank() {
    let sizes = |cp| Sizes { cp, ..sizes(64, 0) };
    let mut script = PairScript::new(sizes(4), sizes(1), 1_000);
    for (rank, page_us) in script.pair.prefill.ranks.iter_mut().zip([5_000, 5_000, 5_000, 500_000]) {
        rank.page_us = Some(page_us);
    }
    let prompts: Vec<Prompt> = (1..=8).map(|text| Prompt::new(text, 256).owned_by(&[0, 1, 2, 3])).collect();
    let ninth = Prompt::new(9, 192).owned_by(&[0, 1, 2]);
    for (transfer, prompt) in (1..).zip(prompts.iter().chain([&ninth])) {
        script.send(transfer, prompt);
    }
    let began = script.pair.between.now;
    let waiting: Vec<u64> = (1..).zip(&prompts).map(|(transfer, prompt)| script.receive(transfer, prompt)).collect();
    let ninth = script.receive(9, &ninth);
    script.until("the ninth", |pair| pair.decode.engine.sessions[&ninth].came);
    assert!(began.ms_until(script.pair.between.now) < 100, "the ninth waits for no slow rank");
    script.until("all", |pair| waiting.iter().all(|number| pair.decode.engine.sessions[number].came));
    let last_ms = began.ms_until(script.pair.between.now);
    assert!((4_000..=4_600).contains(&last_ms), "the last after {last_ms} ms");
    let transfers = script.pair.transfers();
    assert_eq!((transfers.done, transfers.overdue), (9, 0), "no deadline failure");
    script.end();
    let figure = |name| script.pair.prefill.control.figure(Address::Sender, name);
    assert_eq!((figure("sender.transfers"), figure("sender.received"), figure("sender.failed")), (9, 9, 0), "no retry");
    assert_eq!(script.sender_tells("sender.straggler_rank"), Some(3));
    for rank in 0..4 {
        let p99_us = ["wire_us.p99", "total_us.p99"].map(|name| script.rank_figure(Rank(rank), name));
        match rank {
            3 => assert!(p99_us.iter().all(|us| *us >= 500_000), "rank 3: {p99_us:?}"),
            _ => assert!(p99_us.iter().all(|us| *us < 50_000), "rank {rank}: {p99_us:?}"),
        }
    }
}

#[test]
fn f21_a_worker_restarts_under_the_same_name() {
    let mut script = Script::new(sizes(64, 16));
    let (p, q, r) = (Prompt::new(1, 256), Prompt::new(2, 64), Prompt::new(3, 64));
    script.insert(&p);
    script.insert(&q);
    script.hold("copy_ack");
    let session = script.open(&r).unwrap();
    script.compute(session);
    script.settle();
    script.new_host_with_only(Rank(0), &q);
    script.until_serving();
    script.settle();
    let stale = script.figure(Address::Writer, "writer.stale");
    script.release_once("copy_ack");
    script.settle();
    assert!(script.figure(Address::Writer, "writer.stale") > stale, "message 6 is dropped and counted");
    assert_eq!((script.matched(&p), script.matched(&q), script.matched(&r)), (0, 64, 0));
    assert_eq!(script.cached(2), 1, "the index holds 1 L2 page for W");
    script.end();
}

#[test]
fn f21_a_worker_that_stays_silent_serves_nothing_after_one_lease() {
    let mut script = Script::new(sizes(64, 16));
    let p = Prompt::new(1, 256);
    script.insert(&p);
    script.flush(1);
    assert_eq!(script.matched(&p), 256);
    let sim = &mut script.sim;
    sim.ranks[0].die(&mut sim.net, &mut sim.memory);
    script.run_ms(2_500);
    assert_eq!(script.matched(&p), 0);
}

#[test]
fn f25_a_worker_that_does_not_fit() {
    let mut script = Script::new(sizes(64, 16));
    let fits = script.sim.engine.register_of(&script.sim.memory, 0);
    let mut wrong = [fits.clone(), fits.clone(), fits.clone()];
    wrong[0].manifest.page_tokens = 16;
    wrong[1].manifest.components[0].page_bytes.pop();
    wrong[2].manifest.components[0].dtype = "bf16".to_owned();
    let fields = [("page_tokens", "16", "64"), ("target.kv.layers", "11", "12"), ("target.kv.dtype", "bf16", "u8")];
    for (register, (field, yours, mine)) in wrong.into_iter().zip(fields) {
        let began = script.sim.net.now;
        match script.request(register.into()) {
            Answer::Refused(Refusal::Mismatch(found)) => {
                assert_eq!((found.field.as_str(), found.yours.as_str(), found.mine.as_str()), (field, yours, mine));
            }
            other => panic!("{field}: {other:?}"),
        }
        assert!(began.ms_until(script.sim.net.now) < 1_000);
    }
    script.insert(&Prompt::new(1, 130));
    assert_eq!(script.matched(&Prompt::new(1, 130)), 128);
    let flush = Flush { tier: 0, salt: Vec::new(), prefix: Keys::default(), quarantined: false };
    assert!(matches!(script.request(flush.into()), Answer::Flushed(_)));
    script.end();
}
