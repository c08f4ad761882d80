//! The free pages of one pool, one bit each.
//!
//! Invariants: a set bit is a free page; bits past the last slot are never set.
//! Not here: what is not seen from a word and the next one, such as the length of a long run (summary).

use super::run::Run;
use super::word::{WORD_PAGES, bits, fits, longest_run, without_first_run};

/// One bit per page.
#[derive(Clone, Debug)]
pub(super) struct Bitmap {
    words: Box<[u64]>,
}

impl Bitmap {
    /// `slots` slots, none of them free.
    pub(super) fn all_taken(slots: u32) -> Self {
        Self { words: vec![0; slots.div_ceil(WORD_PAGES).max(1) as usize].into_boxed_slice() }
    }

    /// Number of words.
    pub(super) fn words(&self) -> usize {
        self.words.len()
    }

    /// Bytes of the bits.
    pub(super) fn bytes(&self) -> usize {
        size_of_val::<[u64]>(&self.words)
    }

    /// Whether `slot` is free; a slot outside the pool is not.
    #[inline]
    pub(super) fn is_free(&self, slot: u32) -> bool {
        self.words.get(word_of(slot)).is_some_and(|word| word >> (slot % WORD_PAGES) & 1 == 1)
    }

    /// The first free slot of `run`.
    pub(super) fn first_free_of(&self, run: Run) -> Option<u32> {
        let mut found = None;
        for_each_piece(run, |index, mask| {
            let free = self.words[index] & mask;
            if free != 0 && found.is_none() {
                found = Some(start_of(index) + free.trailing_zeros());
            }
        });
        found
    }

    /// Sets the bits of `run`.
    #[inline]
    pub(super) fn mark_free(&mut self, run: Run) {
        for_each_piece(run, |index, mask| self.words[index] |= mask);
    }

    /// Clears the bits of `run`.
    #[inline]
    pub(super) fn mark_taken(&mut self, run: Run) {
        for_each_piece(run, |index, mask| self.words[index] &= !mask);
    }

    /// The bits of the word at `index` that belong to runs which start in it.
    #[inline]
    pub(super) fn starting_in(&self, index: usize) -> u64 {
        let word = self.words[index];
        if index > 0 && self.words[index - 1] >> (WORD_PAGES - 1) == 1 { without_first_run(word) } else { word }
    }

    /// The bit where the run starts that crosses the end of the word at `index`, which it starts in.
    #[inline]
    pub(super) fn last_start_in(&self, index: usize) -> u32 {
        WORD_PAGES - self.words[index].leading_ones()
    }

    /// Longest run that starts in the word at `index`. `long` is asked for the length of the run that starts
    /// at the given slot when it fills the next word and so cannot be measured here.
    #[inline]
    pub(super) fn longest_starting_in(&self, index: usize, long: impl FnOnce(u32) -> u32) -> u32 {
        let mine = self.starting_in(index);
        let crossing = mine.leading_ones();
        if crossing == 0 {
            return longest_run(mine);
        }
        match self.words.get(index + 1).map_or(0, |next| next.trailing_ones()) {
            // Over 64 pages: nothing that ends in this word can be as long.
            WORD_PAGES => long(start_of(index) + WORD_PAGES - crossing),
            further => longest_run(mine).max(crossing + further),
        }
    }

    /// Longest run of the word at `index` alone, where no run crosses the end of the word.
    #[inline]
    pub(super) fn longest_inside(&self, index: usize) -> u32 {
        longest_run(self.starting_in(index))
    }

    /// Takes the first `pages` pages, at most 64, of the first run of that many that starts in the word at
    /// `index` and ends before its last bit. Returns where, and the pages of the whole run.
    #[inline]
    pub(super) fn take_inside(&mut self, index: usize, pages: u32) -> Option<(u32, u32)> {
        let mine = self.starting_in(index);
        let bit = fits(mine, pages).trailing_zeros();
        if bit == WORD_PAGES {
            return None;
        }
        let run_pages = (mine >> bit).trailing_ones();
        if bit + run_pages == WORD_PAGES {
            return None;
        }
        self.words[index] &= !bits(bit, bit + pages);
        Some((start_of(index) + bit, run_pages))
    }

    /// Length of the free run that starts at `start`; None when it fills the next word.
    #[inline]
    pub(super) fn pages_from(&self, start: u32) -> Option<u32> {
        let (index, bit) = (word_of(start), start % WORD_PAGES);
        let here = (self.words[index] >> bit).trailing_ones();
        if bit + here < WORD_PAGES {
            return Some(here);
        }
        match self.words.get(index + 1).map_or(0, |next| next.trailing_ones()) {
            WORD_PAGES => None,
            further => Some(here + further),
        }
    }

    /// Where the free run that covers `slot` starts; None when that is in an earlier word.
    pub(super) fn start_in_word_around(&self, slot: u32) -> Option<u32> {
        let index = word_of(slot);
        let upto = slot % WORD_PAGES + 1;
        let here = (self.words[index] << (WORD_PAGES - upto)).leading_ones();
        let from_before = here == upto && index > 0 && self.words[index - 1] >> (WORD_PAGES - 1) == 1;
        (!from_before).then(|| slot + 1 - here)
    }

    /// Takes whole runs of `longest` pages, at most 64, that start in the word at `index`, where none is longer,
    /// while more than one of them is wanted. Returns what is still wanted, and the longest run that is left.
    #[inline]
    pub(super) fn take_runs_in(&mut self, index: usize, longest: u32, wanted: u32, runs: &mut Vec<Run>) -> (u32, u32) {
        let mut wanted = wanted;
        let mine = self.starting_in(index);
        let mut inside = fits(mine, longest);
        let mut taken = 0;
        while inside != 0 && wanted > longest {
            let bit = inside.trailing_zeros();
            inside &= inside - 1;
            taken |= bits(bit, bit + longest);
            runs.push(Run { start: start_of(index) + bit, pages: longest });
            wanted -= longest;
        }
        self.words[index] &= !taken;
        let left = mine & !taken;
        let crossing = left.leading_ones();
        if crossing == 0 {
            return (wanted, longest_run(left));
        }
        let crossing_pages = crossing + self.words.get(index + 1).map_or(0, |next| next.trailing_ones());
        if crossing_pages < longest || wanted <= longest {
            return (wanted, longest_run(left).max(crossing_pages));
        }
        let run = Run { start: start_of(index) + WORD_PAGES - crossing, pages: longest };
        self.mark_taken(run);
        runs.push(run);
        (wanted - longest, longest_run(left & !bits(WORD_PAGES - crossing, WORD_PAGES)))
    }

    /// Calls `each` with every run of free pages in address order.
    pub(super) fn for_each_run(&self, mut each: impl FnMut(Run)) {
        let mut open: Option<Run> = None;
        for (index, word) in self.words.iter().enumerate() {
            let mut rest = *word;
            while rest != 0 {
                let bit = rest.trailing_zeros();
                let pages = (rest >> bit).trailing_ones();
                rest &= !bits(bit, bit + pages);
                let start = start_of(index) + bit;
                match &mut open {
                    Some(run) if run.end() == start => run.pages += pages,
                    Some(run) => each(std::mem::replace(run, Run { start, pages })),
                    None => open = Some(Run { start, pages }),
                }
            }
        }
        if let Some(run) = open {
            each(run);
        }
    }
}

/// Index of the word that holds `slot`.
pub(super) const fn word_of(slot: u32) -> usize {
    (slot / WORD_PAGES) as usize
}

/// First slot of the word at `index`.
pub(super) const fn start_of(index: usize) -> u32 {
    index as u32 * WORD_PAGES
}

/// Calls `each` with every word that `run` touches and the bits that it touches there.
#[inline]
fn for_each_piece(run: Run, mut each: impl FnMut(usize, u64)) {
    let last_slot = run.start + (run.pages - 1);
    let (first, last) = (word_of(run.start), word_of(last_slot));
    let (from, to) = (run.start % WORD_PAGES, last_slot % WORD_PAGES + 1);
    if first == last {
        return each(first, bits(from, to));
    }
    each(first, bits(from, WORD_PAGES));
    for index in first + 1..last {
        each(index, u64::MAX);
    }
    each(last, bits(0, to));
}
