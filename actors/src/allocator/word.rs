//! Bit tricks on one bitmap word: 64 pages, a set bit is a free page.

/// Pages per bitmap word.
pub(super) const WORD_PAGES: u32 = u64::BITS;

/// Bits `from..to` of a word, `from < to <= 64`.
pub(super) const fn bits(from: u32, to: u32) -> u64 {
    (u64::MAX >> (WORD_PAGES - (to - from))) << from
}

/// Bit `i` is set when bits `i..i + pages` of `word` all are; `pages` is 1..=64.
///
/// Every step at most doubles the length already known, so this takes `log2(pages)` steps.
pub(super) const fn fits(word: u64, pages: u32) -> u64 {
    let mut fits = word;
    let mut known = 1;
    while known < pages {
        let step = if known < pages - known { known } else { pages - known };
        fits &= fits >> step;
        known += step;
    }
    fits
}

/// Length of the longest run of set bits: doubles until nothing is left, then adds the halves back.
pub(super) const fn longest_run(word: u64) -> u32 {
    if word == 0 {
        return 0;
    }
    let mut fits = word;
    let mut known = 1;
    let mut step = 1;
    while step < WORD_PAGES {
        let longer = fits & (fits >> step);
        if longer == 0 {
            break;
        }
        fits = longer;
        known += step;
        step *= 2;
    }
    while step > 1 {
        step /= 2;
        let longer = fits & (fits >> step);
        if longer != 0 {
            fits = longer;
            known += step;
        }
    }
    known
}

/// `word` without the run that touches bit 0.
pub(super) const fn without_first_run(word: u64) -> u64 {
    word & word.wrapping_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn runs_one_by_one(word: u64) -> Vec<(u32, u32)> {
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for bit in (0..64).filter(|bit| word >> bit & 1 == 1) {
            match runs.last_mut() {
                Some((start, pages)) if *start + *pages == bit => *pages += 1,
                Some(_) | None => runs.push((bit, 1)),
            }
        }
        runs
    }

    proptest! {
        #[test]
        fn longest_run_and_fits_agree_with_counting_bit_by_bit(a: u64, b: u64, c: u64, thin in 0..4u8, pages in 1..=64u32) {
            let word = [a, a & b, a | b, a | b | c][usize::from(thin)];
            let runs = runs_one_by_one(word);
            prop_assert_eq!(longest_run(word), runs.iter().map(|run| run.1).max().unwrap_or(0));
            let mut expected = 0u64;
            for (start, length) in runs.iter().filter(|run| run.1 >= pages) {
                expected |= bits(*start, start + length - pages + 1);
            }
            prop_assert_eq!(fits(word, pages), expected);
            let rest = if word & 1 == 1 { word & !bits(0, runs[0].1) } else { word };
            prop_assert_eq!(without_first_run(word), rest);
        }
    }

    #[test]
    fn the_edges_of_a_word_are_runs_too() {
        for (word, longest) in [(0, 0), (1, 1), (1 << 63, 1), (u64::MAX, 64), (u64::MAX >> 1, 63), (u64::MAX << 1, 63)]
        {
            assert_eq!(longest_run(word), longest, "{word:#x}");
        }
        assert_eq!(bits(0, 64), u64::MAX);
    }
}
