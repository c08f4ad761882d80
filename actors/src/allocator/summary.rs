//! For every bitmap word the longest run that starts in it, and how to find a word by that length.
//!
//! A run is counted where it starts, whatever words it reaches into, so a word inside a long run holds 0.
//! Words whose longest run is short, under 64 pages, are in one list per length. Words with a longer one
//! are found through a tree of maxima, 16 entries a node, one node a cache line; such runs pay for a walk of
//! `log16` steps with their length. One list entry per word and not per run is what keeps a comb small.
//!
//! Invariants: an entry of a word is always exact; a word is in the list of its length when that is short
//! and above 0; an entry of the tree is the maximum of the node below, 0 when that is short, except on the
//! path above the group of 16 words where a long run was written last. That path is brought up to date when
//! a long run is written elsewhere or the tree is asked, so calls that stay in one place never touch it.
//! Not here: the bits themselves (bitmap).

use super::word::WORD_PAGES;

/// Entries per node: 16 times `u32` fill one cache line.
const FAN_OUT: usize = 16;

/// Runs of this many pages and more are long. At most one of them starts in a word.
pub(super) const LONG_PAGES: u32 = WORD_PAGES;

/// No word: the end of a list.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Node([u32; FAN_OUT]);

impl Node {
    fn max(&self) -> u32 {
        self.0.iter().copied().fold(0, u32::max)
    }

    /// What stands for this node in the tree: short runs do not count.
    fn max_long(&self) -> u32 {
        let longest = self.max();
        if longest >= LONG_PAGES { longest } else { 0 }
    }

    fn first_at_least(&self, pages: u32) -> Option<usize> {
        self.0.iter().position(|longest| *longest >= pages)
    }

    fn last_long_before(&self, end: usize) -> Option<usize> {
        self.0[..end].iter().rposition(|longest| *longest >= LONG_PAGES)
    }
}

/// Neighbours of a word in the list of its length.
#[derive(Clone, Copy, Debug)]
struct Links {
    before: u32,
    after: u32,
}

/// Longest run starting in each word, in pages, the lists of the short ones and the tree above the long ones.
#[derive(Clone, Debug)]
pub(super) struct RunSummary {
    words: Box<[Node]>,
    /// Valid for the words that are in a list.
    links: Box<[Links]>,
    /// First word of the list of each short length.
    heads: [u32; LONG_PAGES as usize],
    /// Bit `i` is set when the list of length `i` has a word.
    lengths: u64,
    /// Words in which a long run starts.
    long_words: u32,
    /// Lowest level first; the last one is a single node. Empty when the words are a single node.
    upper: Vec<Box<[Node]>>,
    /// The word where a long run was written last: only the path above its group may be out of date.
    hot: usize,
}

impl RunSummary {
    /// A summary of `words` words without free pages.
    pub(super) fn new(words: usize) -> Self {
        let level = |entries: usize| vec![Node([0; FAN_OUT]); entries.div_ceil(FAN_OUT).max(1)].into_boxed_slice();
        let bottom = level(words);
        let mut upper: Vec<Box<[Node]>> = Vec::new();
        let mut below = bottom.len();
        while below > 1 {
            upper.push(level(below));
            below = below.div_ceil(FAN_OUT);
        }
        Self {
            words: bottom,
            links: vec![Links { before: NONE, after: NONE }; words].into_boxed_slice(),
            heads: [NONE; LONG_PAGES as usize],
            lengths: 0,
            long_words: 0,
            upper,
            hot: 0,
        }
    }

    /// Longest run that starts in `word`.
    #[inline]
    pub(super) fn longest_in(&self, word: usize) -> u32 {
        self.words[word / FAN_OUT].0[word % FAN_OUT]
    }

    /// Sets the longest run that starts in `word`. It becomes the first place to look for runs like that.
    #[inline]
    pub(super) fn set(&mut self, word: usize, longest: u32) {
        let entry = &mut self.words[word / FAN_OUT].0[word % FAN_OUT];
        let before = std::mem::replace(entry, longest);
        if before == longest {
            return;
        }
        if before >= LONG_PAGES || longest >= LONG_PAGES {
            self.touch_long(word, before, longest);
        }
        if 0 < before && before < LONG_PAGES {
            self.unlink(word, before);
        }
        if 0 < longest && longest < LONG_PAGES {
            self.link(word, longest);
        }
    }

    /// A word in which a run of at least `pages`, above 0, starts, and none when no run is that long.
    /// Short runs go first, the shortest that fit; among long ones the place written last, then the lowest.
    #[inline]
    pub(super) fn word_with(&mut self, pages: u32) -> Option<usize> {
        if pages < LONG_PAGES {
            let fitting = self.lengths & (u64::MAX << pages);
            if fitting != 0 {
                return Some(self.heads[fitting.trailing_zeros() as usize] as usize);
            }
        }
        if self.long_words == 0 {
            return None;
        }
        let pages = pages.max(LONG_PAGES);
        if self.longest_in(self.hot) >= pages {
            return Some(self.hot);
        }
        let group = self.hot / FAN_OUT;
        if let Some(entry) = self.words[group].first_at_least(pages) {
            return Some(group * FAN_OUT + entry);
        }
        self.settle();
        let mut at = 0;
        for level in self.upper.iter().rev() {
            at = at * FAN_OUT + level[at].first_at_least(pages)?;
        }
        Some(at * FAN_OUT + self.words[at].first_at_least(pages)?)
    }

    /// The word where the run starts that covers the last page of the word before `word`.
    pub(super) fn start_before(&mut self, word: usize) -> Option<usize> {
        let before = word.checked_sub(1)?;
        if self.longest_in(before) > 0 {
            return Some(before);
        }
        // It covers all of the word before, so it is long and no other run starts in between.
        let mut at = word / FAN_OUT;
        if let Some(entry) = self.words[at].last_long_before(word % FAN_OUT) {
            return Some(at * FAN_OUT + entry);
        }
        self.settle();
        for (height, level) in self.upper.iter().enumerate() {
            let entry = at % FAN_OUT;
            at /= FAN_OUT;
            let Some(entry) = level[at].last_long_before(entry) else { continue };
            at = at * FAN_OUT + entry;
            for below in self.upper[..height].iter().rev() {
                at = at * FAN_OUT + below[at].last_long_before(FAN_OUT)?;
            }
            return Some(at * FAN_OUT + self.words[at].last_long_before(FAN_OUT)?);
        }
        None
    }

    /// Longest run of the pool.
    #[inline]
    pub(super) fn longest(&self) -> u32 {
        if self.long_words == 0 {
            return self.lengths.checked_ilog2().unwrap_or(0);
        }
        let mut at = self.hot / FAN_OUT;
        let mut longest = self.words[at].max_long();
        for level in &self.upper {
            let mut node = level[at / FAN_OUT];
            node.0[at % FAN_OUT] = longest;
            longest = node.max();
            at /= FAN_OUT;
        }
        longest
    }

    /// Bytes of the words, their links and the levels above.
    pub(super) fn bytes(&self) -> usize {
        let nodes = self.words.len() + self.upper.iter().map(|level| level.len()).sum::<usize>();
        let levels = self.upper.capacity() * size_of::<Box<[Node]>>();
        nodes * size_of::<Node>() + size_of_val::<[Links]>(&self.links) + levels
    }

    fn touch_long(&mut self, word: usize, before: u32, longest: u32) {
        if word / FAN_OUT != self.hot / FAN_OUT {
            self.settle();
        }
        self.hot = word;
        self.long_words += u32::from(longest >= LONG_PAGES);
        self.long_words -= u32::from(before >= LONG_PAGES);
    }

    #[inline]
    fn unlink(&mut self, word: usize, length: u32) {
        let Links { before, after } = self.links[word];
        match before {
            NONE => {
                self.heads[length as usize] = after;
                self.lengths &= !(u64::from(after == NONE) << length);
            }
            before => self.links[before as usize].after = after,
        }
        if after != NONE {
            self.links[after as usize].before = before;
        }
    }

    #[inline]
    fn link(&mut self, word: usize, length: u32) {
        let after = std::mem::replace(&mut self.heads[length as usize], word as u32);
        self.links[word] = Links { before: NONE, after };
        if after != NONE {
            self.links[after as usize].before = word as u32;
        }
        self.lengths |= 1 << length;
    }

    /// Brings the path above the last written group up to date.
    fn settle(&mut self) {
        let mut at = self.hot / FAN_OUT;
        let mut longest = self.words[at].max_long();
        for level in &mut self.upper {
            let entry = &mut level[at / FAN_OUT].0[at % FAN_OUT];
            if *entry == longest {
                return;
            }
            *entry = longest;
            at /= FAN_OUT;
            longest = level[at].max();
        }
    }

    /// Compares the lists with the words and every entry of the tree with the node it stands for.
    ///
    /// # Panics
    /// When one differs.
    pub(super) fn check_invariants(&self) {
        let words = self.links.len();
        let short = (0..words).filter(|word| (1..LONG_PAGES).contains(&self.longest_in(*word))).count();
        let long = (0..words).filter(|word| self.longest_in(*word) >= LONG_PAGES).count();
        assert_eq!(self.long_words as usize, long, "words with a long run");
        let mut listed = 0;
        for length in 0..LONG_PAGES {
            let (mut word, mut before) = (self.heads[length as usize], NONE);
            assert_eq!(self.lengths >> length & 1 == 1, word != NONE, "the bit of length {length}");
            while word != NONE {
                assert_eq!(self.longest_in(word as usize), length, "word {word} in the list of {length}");
                assert_eq!(self.links[word as usize].before, before, "before word {word}");
                listed += 1;
                assert!(listed <= short, "a list of length {length} runs in a circle");
                (before, word) = (word, self.links[word as usize].after);
            }
        }
        assert_eq!(listed, short, "words with short runs that are in a list");
        let mut settled = self.clone();
        settled.settle();
        let mut below = &settled.words;
        for level in &settled.upper {
            for (at, node) in below.iter().enumerate() {
                assert_eq!(level[at / FAN_OUT].0[at % FAN_OUT], node.max_long(), "the entry above node {at}");
            }
            below = level;
        }
        assert_eq!(below.len(), 1, "the top level is one node");
    }
}
