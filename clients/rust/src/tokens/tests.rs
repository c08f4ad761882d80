use super::*;

const SALT: Key = Key([7; 16]);

fn paging(lookahead_tokens: u32) -> Paging {
    Paging { page_tokens: 4, lookahead_tokens }
}

fn none(_: usize) -> &'static [u8] {
    &[]
}

#[test]
fn a_plan_and_its_tail_give_the_keys_of_the_whole_sequence() {
    let tokens: Vec<u32> = (100..123).collect();
    for lookahead in [0, 1] {
        for prompt in 0..tokens.len() {
            let plan = PagePlan::of_tokens(SALT, &tokens[..prompt], paging(lookahead), none);
            let mut tail = Tail::of(&plan, paging(lookahead));
            assert!(tail.keys_from(plan.pages()).is_empty(), "a plan leaves out no key");
            tokens[prompt..].iter().for_each(|token| tail.push(*token));
            let got = [&plan.keys, tail.keys_from(plan.pages())].concat();
            assert_eq!(got, page_keys(SALT, &tokens, 4, lookahead, none), "{prompt} tokens, lookahead {lookahead}");
        }
    }
}

#[test]
fn the_page_before_a_token_has_a_key_as_soon_as_the_token_is_there() {
    for lookahead in [0, 1] {
        let tokens: Vec<u32> = (0..12).collect();
        let plan = PagePlan::of_tokens(SALT, &[], paging(lookahead), none);
        let mut tail = Tail::of(&plan, paging(lookahead));
        for (place, token) in (0..).zip(&tokens) {
            tail.push(*token);
            let keys = page_keys(SALT, &tokens[..=place as usize], 4, lookahead, none);
            let before: u32 = place / 4;
            assert_eq!(
                before.checked_sub(1).map(|page| tail.key(page)),
                before.checked_sub(1).map(|page| Some(keys[page as usize]))
            );
        }
        assert_eq!(tail.key(3), None);
    }
}

#[test]
fn every_plan_gives_the_tokens_that_its_keys_are_made_of() {
    for lookahead in [0, 1] {
        for (block_tokens, ids) in [(4, vec![1, 2, 3]), (16, vec![1]), (3, vec![5, 6])] {
            let plan = BlockPlans::new(SALT, paging(lookahead), block_tokens).plan(&ids, 23, 1 << 40);
            let tokens: Vec<u32> = (0..23).map(|place| plan.token(place)).collect();
            let same = PagePlan::of_tokens(SALT, &tokens, paging(lookahead), none);
            assert_eq!((same.keys, &same.tail), (plan.keys, &plan.tail), "blocks of {block_tokens}");
        }
    }
    let made_up = |page| Key([page; 16]);
    let plan = PagePlan::of_keys(SALT, [made_up(1), made_up(2)].into(), 4);
    assert_eq!((plan.tokens, plan.pages()), (8, 2));
    let other = PagePlan::of_keys(SALT, [made_up(1), made_up(3)].into(), 4);
    let same: Vec<bool> = (0..8).map(|place| plan.token(place) == other.token(place)).collect();
    assert_eq!(same, [true, true, true, true, false, false, false, false]);
}

#[test]
fn equal_blocks_give_equal_keys_whatever_the_sizes_of_page_and_block() {
    for (block_tokens, lookahead) in [(4, 0), (16, 0), (2, 0), (4, 1), (16, 1), (2, 1)] {
        let mut plans = BlockPlans::new(SALT, paging(lookahead), block_tokens);
        let per = |tokens: u32| tokens / block_tokens;
        let shared = 32;
        let one: Vec<u64> = (0..u64::from(per(64))).collect();
        let two: Vec<u64> =
            one.iter().take(per(shared) as usize).copied().chain(100..100 + u64::from(per(32))).collect();
        let (first, second) = (plans.plan(&one, 64, 1 << 40), plans.plan(&two, 64, 1 << 41));
        let same = first.keys.iter().zip(second.keys.iter()).take_while(|(a, b)| a == b).count() as u32;
        assert_eq!(same, shared / 4 - lookahead, "blocks of {block_tokens}, lookahead {lookahead}");
        let again = BlockPlans::new(SALT, paging(lookahead), block_tokens).plan(&two, 64, 1 << 41);
        assert_eq!(again, second, "what was remembered equals what is computed");
    }
}

#[test]
fn tokens_without_a_block_are_nobody_elses() {
    let mut plans = BlockPlans::new(SALT, paging(0), 16);
    let (one, two) = (plans.plan(&[1], 30, 1 << 40), plans.plan(&[1], 30, 1 << 41));
    assert_eq!(one.keys[..4], two.keys[..4]);
    assert!(one.keys[4..].iter().all(|key| !two.keys.contains(key)));
    assert_eq!((one.pages(), one.tail.len()), (7, 2));
    assert_eq!(one.whole_pages().tokens, 28);
}
