//! A sender and a receiver against each other: whole handovers, and what is left of those that break.

mod chaos;
mod decode;
mod prefill;
mod world;

use world::{World, counter, transfer};

#[test]
fn a_handover_puts_every_page_where_its_position_is_wanted() {
    for (tokens, here) in [(1, 0), (64, 0), (1_191, 1), (1_191, 0), (256, 4), (532, 9)] {
        let mut world = World::new(1);
        world.begin(transfer(1), 1, tokens, here);
        world.run();
        let ends = (world.prefill.over.get(&(transfer(1), 1)), world.decode.ends.get(&(transfer(1), 1)));
        assert_eq!(ends, (Some(&Ok(())), Some(&Ok(()))), "{tokens} tokens, {here} pages here");
        let pages = u64::from(tokens.div_ceil(world::PAGE_TOKENS) - here);
        assert_eq!(counter(&world.sender, "sender.pages"), pages);
        assert_eq!(counter(&world.receiver, "receiver.pages"), pages);
    }
}

#[test]
fn it_does_not_matter_which_side_comes_first() {
    for is_offered_first in [true, false] {
        let mut world = World::new(2);
        if is_offered_first {
            world.open_prefill(transfer(1), 1, 300);
        } else {
            world.open_decode(transfer(1), 1, 300, 0);
        }
        world.run_for(10_000);
        if is_offered_first {
            world.open_decode(transfer(1), 1, 300, 0);
        } else {
            world.open_prefill(transfer(1), 1, 300);
        }
        world.run();
        assert_eq!(world.decode.ends.get(&(transfer(1), 1)), Some(&Ok(())));
    }
}

/// Breaks a handover of five pages after each number of steps that a whole one takes, and hands it over again.
fn broken_after_each_step(holds: bool, what: &str, break_it: impl Fn(&mut World)) {
    let whole = {
        let mut world = World::new(3);
        world.begin(transfer(1), 1, 300, 1);
        let mut steps = 0;
        while !world.is_quiet() {
            world.step();
            steps += 1;
        }
        steps
    };
    for steps in 0..whole {
        let mut world = World::new(3);
        world.prefill.holds = holds;
        world.begin(transfer(1), 1, 300, 1);
        for _ in 0..steps {
            world.step();
        }
        break_it(&mut world);
        world.run();
        world.prefill.holds = false;
        world.begin(transfer(1), 2, 300, 1);
        world.run();
        let ends = (world.prefill.over.get(&(transfer(1), 2)), world.decode.ends.get(&(transfer(1), 2)));
        assert_eq!(ends, (Some(&Ok(())), Some(&Ok(()))), "{what} after {steps} steps of {whole}");
    }
}

#[test]
fn whoever_gives_up_in_whatever_state_ends_both_sides_and_the_next_attempt_works() {
    for holds in [false, true] {
        broken_after_each_step(holds, "stopped by prefill", |world| world.stop(transfer(1)));
        broken_after_each_step(holds, "given up by decode", |world| world.unexpect(transfer(1)));
        broken_after_each_step(holds, "given up by both", |world| {
            world.unexpect(transfer(1));
            world.stop(transfer(1));
        });
    }
}

#[test]
fn whoever_dies_in_whatever_state_ends_both_sides_and_the_next_attempt_works() {
    for holds in [false, true] {
        broken_after_each_step(holds, "prefill died", |world| {
            world.replace_prefill(0x31);
            world.run_for(5_000);
            world.adopt_prefill();
        });
        broken_after_each_step(holds, "decode died", |world| world.replace_decode(0x32));
        broken_after_each_step(holds, "a rank of decode died", |world| world.replace_decode_rank(0x33));
        broken_after_each_step(holds, "ranks of prefill died", |world| {
            for rank in 0..world::CP {
                world.replace_prefill_rank(hicached_actors::protocol::Rank(rank), 0x40 + rank);
            }
        });
    }
}

#[test]
fn pages_that_a_rank_may_still_write_are_free_only_when_it_has_stopped() {
    let mut world = World::new(4);
    world.prefill.holds = true;
    world.begin(transfer(1), 1, 300, 0);
    world.run_for(1_000);
    world.unexpect(transfer(1));
    world.run();
    assert!(matches!(world.decode.ends.get(&(transfer(1), 1)), Some(Err(_))));
    assert_eq!((counter(&world.receiver, "receiver.drained"), counter(&world.receiver, "receiver.fenced")), (1, 0));
    world.push_held();
    assert_eq!(world.decode.refused, 0, "nothing was left to push");
}

#[test]
fn what_a_dead_sender_left_behind_is_fenced_when_its_lease_has_run_out() {
    let mut world = World::new(4);
    world.prefill.holds = true;
    world.begin(transfer(1), 1, 300, 0);
    world.run_for(1_000);
    world.replace_prefill(0x31);
    world.unexpect(transfer(1));
    world.run_for(1_000);
    assert_eq!(world.decode.ends.get(&(transfer(1), 1)), None, "its ranks may write");
    world.run_for(2_000);
    assert!(matches!(world.decode.ends.get(&(transfer(1), 1)), Some(Err(_))));
    assert_eq!(counter(&world.receiver, "receiver.fenced"), 1);
    world.push_held();
    assert_eq!(world.decode.refused, 5, "late pages of the dead");
}

#[test]
fn transfers_that_prefill_gives_up_end_on_both_sides_without_waiting_for_a_timer() {
    let mut world = World::new(4);
    world.prefill.holds = true;
    for n in 1..=64 {
        world.begin(transfer(n), 1, 256, 0);
    }
    world.run_for(1_000);
    for n in 1..=64 {
        world.stop(transfer(n));
    }
    world.run_for(2_000);
    assert!(world.is_quiet());
    let failed = world.decode.ends.values().filter(|end| end.is_err()).count();
    assert_eq!((failed, world.decode.ends.len()), (64, 64), "each has one end");
}

#[cfg(feature = "planted-faults")]
mod planted {
    use super::*;
    use hicached_actors::faults::{Fault, Faults};

    #[test]
    #[should_panic(expected = "has ended, and bytes can land")]
    fn pages_given_up_by_a_timer_are_found() {
        let mut world = World::with_faults(5, Faults::planted(Fault::TransferFreedByTimer));
        world.prefill.holds = true;
        world.begin(transfer(1), 1, 300, 0);
        world.run();
    }

    #[test]
    #[should_panic(expected = "position 0")]
    fn a_position_that_is_off_by_one_is_found() {
        let mut world = World::with_faults(5, Faults::planted(Fault::TransferPositionOffByOne));
        world.begin(transfer(1), 1, 300, 0);
        world.run();
    }
}
