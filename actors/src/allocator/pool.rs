//! One pool of one rank: a bitmap of free pages and the summary of its runs.
//!
//! A reservation is one run if one exists, else the fewest runs, which is longest-first. Runs under 64 pages
//! are found in constant time, longer ones in one walk of a tree. Metadata is 1 bit per page for the bitmap
//! and 12.3 bytes per 64 pages for the summary, whatever the state of the pool.
//!
//! Invariants: a set bit is a free page; a word's entry in the summary is the longest maximal run that
//! starts in it; the reserved slots are never free.
//! Not here: owners (pools); who gets the pages (machine).

use super::bitmap::{Bitmap, start_of, word_of};
use super::figures::{Marks, MarksError, PoolFigures, RUN_BUCKETS};
use super::refusal::{PoolSizeError, SLOTS_MAX, Short, SlotError};
use super::run::{Contiguity, Run};
use super::summary::{LONG_PAGES, RunSummary};
use super::word::{WORD_PAGES, fits};

/// One pool of one rank. See the module for how it works.
#[derive(Clone, Debug)]
pub struct PagePool {
    slots: u32,
    /// Slots `0..reserved_slots` are never given out.
    reserved_slots: u32,
    free_pages: u32,
    bitmap: Bitmap,
    summary: RunSummary,
    runs_by_size: [u32; RUN_BUCKETS],
    marks: Marks,
}

impl PagePool {
    /// A pool of `slots` slots that are all free, except the first `reserved_slots`, which are never given out
    /// (physical page 0 of an L1 lane is padding). Marks are off.
    ///
    /// # Errors
    /// [`PoolSizeError`].
    pub fn new(slots: u32, reserved_slots: u32) -> Result<Self, PoolSizeError> {
        if slots > SLOTS_MAX || reserved_slots > slots {
            return Err(PoolSizeError { slots, reserved_slots });
        }
        let bitmap = Bitmap::all_taken(slots);
        let mut pool = Self {
            slots,
            reserved_slots,
            free_pages: 0,
            summary: RunSummary::new(bitmap.words()),
            bitmap,
            runs_by_size: [0; RUN_BUCKETS],
            marks: Marks::OFF,
        };
        if slots > reserved_slots {
            pool.give_back(Run { start: reserved_slots, pages: slots - reserved_slots });
        }
        Ok(pool)
    }

    /// Takes `pages` pages and appends their runs to `runs`: longest first, all or nothing.
    /// With [`Contiguity::Prefer`] never more runs than longest-first needs.
    ///
    /// # Errors
    /// [`Short`] when fewer are free, or, with [`Contiguity::Require`], when no run is that long.
    #[inline]
    pub fn reserve(&mut self, pages: u32, contiguity: Contiguity, runs: &mut Vec<Run>) -> Result<(), Short> {
        if pages == 0 {
            return Ok(());
        }
        if pages > self.free_pages {
            return Err(self.short(pages));
        }
        match contiguity {
            Contiguity::Off => self.reserve_anywhere(pages, runs),
            Contiguity::Prefer => {
                if !self.reserve_one_run(pages, runs) {
                    self.reserve_longest_first(pages, runs);
                }
            }
            Contiguity::Require => {
                if !self.reserve_one_run(pages, runs) {
                    return Err(self.short(pages));
                }
            }
        }
        Ok(())
    }

    /// Gives `runs` back; they are available to the next reservation.
    ///
    /// # Errors
    /// [`SlotError`] of the first bad slot; every run is checked before any is freed.
    pub fn free(&mut self, runs: &[Run]) -> Result<(), SlotError> {
        self.check_free(runs)?;
        self.free_checked(runs);
        Ok(())
    }

    /// Whether [`Self::free`] would accept `runs`; changes nothing.
    ///
    /// # Errors
    /// [`SlotError`] of the first bad slot.
    pub(super) fn check_free(&mut self, runs: &[Run]) -> Result<(), SlotError> {
        // Marking as it goes is what finds a slot that two of the runs share.
        let mut verdict = Ok(());
        let mut marked = 0;
        for run in runs {
            verdict = self.check_taken(*run);
            if verdict.is_err() {
                break;
            }
            if runs.len() > 1 {
                self.bitmap.mark_free(*run);
                marked += 1;
            }
        }
        for run in &runs[..marked] {
            self.bitmap.mark_taken(*run);
        }
        verdict
    }

    /// Frees runs that [`Self::check_free`] has accepted.
    pub(super) fn free_checked(&mut self, runs: &[Run]) {
        for run in runs {
            self.give_back(*run);
        }
    }

    /// Marks `slots` as taken: how a pool is rebuilt from what the index knows.
    ///
    /// # Errors
    /// [`SlotError`] of the first bad slot, then nothing has changed.
    pub fn take(&mut self, slots: &[u32]) -> Result<(), SlotError> {
        self.check_take(slots)?;
        self.take_checked(slots);
        Ok(())
    }

    /// Whether [`Self::take`] would accept `slots`; changes nothing.
    ///
    /// # Errors
    /// [`SlotError`] of the first bad slot.
    pub(super) fn check_take(&mut self, slots: &[u32]) -> Result<(), SlotError> {
        let mut verdict = Ok(());
        let mut marked = 0;
        for slot in slots {
            let page = Run { start: *slot, pages: 1 };
            verdict = self.check_range(page);
            if verdict.is_ok() && !self.is_free(*slot) {
                verdict = Err(SlotError::AlreadyTaken { slot: *slot });
            }
            if verdict.is_err() {
                break;
            }
            self.bitmap.mark_taken(page);
            marked += 1;
        }
        for slot in &slots[..marked] {
            self.bitmap.mark_free(Run { start: *slot, pages: 1 });
        }
        verdict
    }

    /// Takes slots that [`Self::check_take`] has accepted.
    pub(super) fn take_checked(&mut self, slots: &[u32]) {
        let mut runs = Vec::new();
        Run::of_slots(slots.iter().copied(), &mut runs);
        for run in runs {
            let around = self.run_around(run.start);
            self.carve(around, run);
        }
    }

    /// Whether `slot` is free; a slot outside the pool is not.
    pub fn is_free(&self, slot: u32) -> bool {
        self.bitmap.is_free(slot)
    }

    /// Slots of the pool, the reserved ones included.
    pub const fn slots(&self) -> u32 {
        self.slots
    }

    /// Pages that can be given out at all: the slots without the reserved ones.
    pub const fn capacity_pages(&self) -> u32 {
        self.slots - self.reserved_slots
    }

    /// Pages that are free.
    pub const fn free_pages(&self) -> u32 {
        self.free_pages
    }

    /// Pages of the longest free run.
    pub fn longest_run_pages(&self) -> u32 {
        self.summary.longest()
    }

    /// What the pool shows of itself: constant time, so it can be asked at every scrape.
    pub fn figures(&self) -> PoolFigures {
        PoolFigures {
            capacity_pages: self.capacity_pages(),
            free_pages: self.free_pages,
            longest_run_pages: self.longest_run_pages(),
            runs_by_size: self.runs_by_size,
            metadata_bytes: self.metadata_bytes(),
        }
    }

    /// Bytes of bitmap, summary and this struct. The same in every state of the pool.
    pub fn metadata_bytes(&self) -> usize {
        size_of::<Self>() + self.bitmap.bytes() + self.summary.bytes()
    }

    /// Sets the marks of free room.
    ///
    /// # Errors
    /// [`MarksError`] when the high mark is above what the pool can give out.
    pub fn set_marks(&mut self, marks: Marks) -> Result<(), MarksError> {
        let (low_pages, high_pages, capacity_pages) = (marks.low_pages(), marks.high_pages(), self.capacity_pages());
        if high_pages > capacity_pages {
            return Err(MarksError { low_pages, high_pages, capacity_pages });
        }
        self.marks = marks;
        Ok(())
    }

    /// The marks of free room.
    pub const fn marks(&self) -> Marks {
        self.marks
    }

    /// Pages to reach the high mark when fewer than the low mark are free.
    pub const fn below_low(&self) -> Option<u32> {
        self.marks.below_low(self.free_pages)
    }

    /// Calls `each` with every free run in address order. Walks the whole bitmap: for tests and dumps.
    pub fn for_each_free_run(&self, each: impl FnMut(Run)) {
        self.bitmap.for_each_run(each);
    }

    /// Recounts everything from the bitmap. Walks the whole pool: for simulation and tests.
    ///
    /// # Panics
    /// When a count, a summary entry or a reserved slot is wrong.
    pub fn check_invariants(&self) {
        let mut longest = vec![0; self.bitmap.words()];
        let mut runs_by_size = [0; RUN_BUCKETS];
        let mut free_pages = 0;
        self.for_each_free_run(|run| {
            let entry: &mut u32 = &mut longest[word_of(run.start)];
            *entry = run.pages.max(*entry);
            runs_by_size[bucket_of(run.pages)] += 1;
            free_pages += run.pages;
            assert!(run.start >= self.reserved_slots, "{run:?} covers a reserved slot");
            assert!(run.end() <= self.slots, "{run:?} ends outside the pool");
        });
        assert_eq!(self.free_pages, free_pages, "free pages");
        assert_eq!(self.runs_by_size, runs_by_size, "runs by size");
        for (word, expected) in longest.iter().enumerate() {
            assert_eq!(self.summary.longest_in(word), *expected, "longest run that starts in word {word}");
        }
        self.summary.check_invariants();
    }
}

/// How pages are chosen.
impl PagePool {
    fn short(&self, wanted_pages: u32) -> Short {
        Short { wanted_pages, free_pages: self.free_pages, longest_run_pages: self.longest_run_pages() }
    }

    /// Takes one run of `pages`; false when no run is that long.
    #[inline]
    fn reserve_one_run(&mut self, pages: u32, runs: &mut Vec<Run>) -> bool {
        let Some(word) = self.summary.word_with(pages) else { return false };
        let longest = self.summary.longest_in(word);
        let start = if longest >= LONG_PAGES {
            self.take_from_long(word, longest, pages)
        } else {
            self.take_from_short(word, pages)
        };
        runs.push(Run { start, pages });
        true
    }

    /// Takes the first `pages` pages of the run of `longest`, a long one, that starts in `word`. Returns where.
    #[inline]
    fn take_from_long(&mut self, word: usize, longest: u32, pages: u32) -> u32 {
        let start = start_of(word) + self.bitmap.last_start_in(word);
        let taken = Run { start, pages };
        let rest = Run { start: taken.end(), pages: longest - pages };
        if rest.pages < LONG_PAGES {
            self.carve(Run { start, pages: longest }, taken);
            return start;
        }
        self.bitmap.mark_taken(taken);
        self.free_pages -= pages;
        self.uncount(longest);
        self.count(rest.pages);
        // What is left is long, so no other run of the word that it starts in can be the longest there.
        let rest_word = word_of(rest.start);
        if rest_word != word {
            self.summary.set(word, self.bitmap.longest_inside(word));
        }
        self.summary.set(rest_word, rest.pages);
        start
    }

    /// Takes the first `pages` pages of the first run of that many that starts in `word`, where no long run
    /// does. Returns where.
    #[inline]
    fn take_from_short(&mut self, word: usize, pages: u32) -> u32 {
        let Some((start, run_pages)) = self.bitmap.take_inside(word, pages) else {
            let start = start_of(word) + self.bitmap.last_start_in(word);
            self.carve(Run { start, pages: self.pages_from(start) }, Run { start, pages });
            return start;
        };
        self.free_pages -= pages;
        self.uncount(run_pages);
        self.count(run_pages - pages);
        self.resum_short(word);
        start
    }

    fn reserve_longest_first(&mut self, pages: u32, runs: &mut Vec<Run>) {
        let mut wanted = pages;
        loop {
            let longest = self.summary.longest();
            if wanted <= longest || longest >= LONG_PAGES {
                let piece = wanted.min(longest);
                let served = self.reserve_one_run(piece, runs);
                assert!(served, "a run of {longest} serves {piece}");
                wanted -= piece;
                if wanted == 0 {
                    return;
                }
            } else {
                wanted = self.take_short_runs(longest, wanted, runs);
            }
        }
    }

    /// Takes whole runs of `longest` pages, short and the longest there are, out of one word, while more than
    /// one of them is wanted. Returns what is still wanted.
    #[inline]
    fn take_short_runs(&mut self, longest: u32, pages: u32, runs: &mut Vec<Run>) -> u32 {
        let first = runs.len();
        let word = self.summary.word_with(longest).expect("the longest run starts in some word"); // `longest` was read from the same summary
        let (wanted, left) = self.bitmap.take_runs_in(word, longest, pages, runs);
        self.summary.set(word, left);
        assert!(wanted < pages, "no run of {longest} pages in word {word}");
        self.free_pages -= pages - wanted;
        self.runs_by_size[bucket_of(longest)] -= (runs.len() - first) as u32;
        wanted
    }

    fn reserve_anywhere(&mut self, pages: u32, runs: &mut Vec<Run>) {
        let mut wanted = pages;
        while wanted > 0 {
            let word = self.summary.word_with(1).expect("the free count covers what is wanted"); // `reserve` compared them first
            let from = self.run_in(word, 1);
            let taken = Run { start: from.start, pages: from.pages.min(wanted) };
            self.carve(from, taken);
            runs.push(taken);
            wanted -= taken.pages;
        }
    }

    /// The first run of at least `pages` that starts in `word`; the summary says that there is one.
    #[inline]
    fn run_in(&self, word: usize, pages: u32) -> Run {
        let mine = self.bitmap.starting_in(word);
        let inside = if pages <= WORD_PAGES { fits(mine, pages) } else { 0 };
        let bit = if inside != 0 { inside.trailing_zeros() } else { self.bitmap.last_start_in(word) };
        let start = start_of(word) + bit;
        Run { start, pages: self.pages_from(start) }
    }

    /// Length of the free run that starts at `start`.
    #[inline]
    fn pages_from(&self, start: u32) -> u32 {
        // Over 64 pages: no other run that starts in this word can be as long.
        self.bitmap.pages_from(start).unwrap_or_else(|| self.summary.longest_in(word_of(start)))
    }

    /// The free run that covers `slot`.
    fn run_around(&mut self, slot: u32) -> Run {
        let start = self.start_around(slot);
        Run { start, pages: self.pages_from(start) }
    }

    /// Where the free run that covers `slot` starts.
    fn start_around(&mut self, slot: u32) -> u32 {
        if let Some(start) = self.bitmap.start_in_word_around(slot) {
            return start;
        }
        // No run starts in a word that the run covers from before, so the next start to the left is ours.
        let first = self.summary.start_before(word_of(slot)).expect("a free run has a start"); // the run covers this word from before
        start_of(first) + self.bitmap.last_start_in(first)
    }

    /// Takes `taken` out of the free run `from`, which covers it.
    #[inline]
    fn carve(&mut self, from: Run, taken: Run) {
        self.bitmap.mark_taken(taken);
        self.free_pages -= taken.pages;
        self.uncount(from.pages);
        let left = Run { start: from.start, pages: taken.start - from.start };
        let right = Run { start: taken.end(), pages: from.end() - taken.end() };
        self.count(left.pages);
        self.count(right.pages);
        let (first, last) = (word_of(left.start), word_of(right.start));
        self.resum(first, left, right);
        if right.pages > 0 && last != first {
            self.resum(last, left, right);
        }
    }

    /// Makes `run`, which is taken, free and joins it with the free runs beside it.
    fn give_back(&mut self, run: Run) {
        let mut joined = run;
        let next = if self.is_free(run.end()) { self.pages_from(run.end()) } else { 0 };
        if run.start > 0 && self.is_free(run.start - 1) {
            let start = self.start_around(run.start - 1);
            self.uncount(run.start - start);
            joined = Run { start, pages: run.end() - start };
        }
        self.uncount(next);
        joined.pages += next;
        self.bitmap.mark_free(run);
        self.free_pages += run.pages;
        self.count(joined.pages);
        let none = Run { start: 0, pages: 0 };
        let (first, last) = (word_of(joined.start), word_of(run.end()));
        if next > 0 && last != first {
            self.resum(last, none, none);
        }
        self.resum(first, joined, none);
    }

    /// Sums `word` up again after `a` and `b` changed; runs without pages are no runs.
    #[inline]
    fn resum(&mut self, word: usize, a: Run, b: Run) {
        let before = self.summary.longest_in(word);
        let longest = self.bitmap.longest_starting_in(word, |start| match start {
            start if a.pages > 0 && a.start == start => a.pages,
            start if b.pages > 0 && b.start == start => b.pages,
            _ => before,
        });
        self.summary.set(word, longest);
    }

    /// Sums `word` up again, in which no long run starts.
    #[inline]
    fn resum_short(&mut self, word: usize) {
        let longest = self.bitmap.longest_starting_in(word, |start| unreachable!("a run over 64 pages at {start}"));
        self.summary.set(word, longest);
    }

    #[inline]
    fn count(&mut self, pages: u32) {
        if pages > 0 {
            self.runs_by_size[bucket_of(pages)] += 1;
        }
    }

    #[inline]
    fn uncount(&mut self, pages: u32) {
        if pages > 0 {
            self.runs_by_size[bucket_of(pages)] -= 1;
        }
    }

    fn check_taken(&self, run: Run) -> Result<(), SlotError> {
        self.check_range(run)?;
        self.bitmap.first_free_of(run).map_or(Ok(()), |slot| Err(SlotError::AlreadyFree { slot }))
    }

    fn check_range(&self, run: Run) -> Result<(), SlotError> {
        if run.pages == 0 {
            return Err(SlotError::Empty { slot: run.start });
        }
        if run.pages > self.slots || run.start > self.slots - run.pages {
            return Err(SlotError::OutOfRange { slot: run.start.max(self.slots), slots: self.slots });
        }
        if run.start < self.reserved_slots {
            return Err(SlotError::Reserved { slot: run.start });
        }
        Ok(())
    }
}

/// Bucket of a run of `pages` pages, at least 1, in the histogram.
const fn bucket_of(pages: u32) -> usize {
    pages.ilog2() as usize
}
