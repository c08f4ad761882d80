//! For every bitmap word the longest run that starts in it, and above that a tree of maxima.
//!
//! A run is counted where it starts, whatever words it reaches into, so a word inside a long run holds 0
//! and the tree finds the longest run, the first run that is long enough, and the start of the run that
//! covers a page, each in one walk of `log16` steps. One node is one cache line.
//!
//! Invariants: a leaf is always exact; an inner entry is the maximum of its node, except on the path above
//! the group of 16 words that was written last. That path is brought up to date when another group is
//! written or the tree is asked, so calls that stay in one place never touch it.
//! Not here: the bits themselves (pool).

/// Entries per node: 16 times `u32` fill one cache line.
const FAN_OUT: usize = 16;

#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Node([u32; FAN_OUT]);

impl Node {
    fn max(&self) -> u32 {
        self.0.iter().copied().fold(0, u32::max)
    }

    fn first_at_least(&self, pages: u32) -> Option<usize> {
        let mut found = 0u32;
        for (entry, longest) in self.0.iter().enumerate() {
            found |= u32::from(*longest >= pages) << entry;
        }
        (found != 0).then(|| found.trailing_zeros() as usize)
    }

    fn last_nonzero_before(&self, end: usize) -> Option<usize> {
        self.0[..end].iter().rposition(|longest| *longest != 0)
    }
}

/// What a visit of one word leaves behind.
pub(super) struct Visited {
    /// Longest run that starts in the word after the visit.
    pub(super) longest: u32,
    /// Whether the walk goes on.
    pub(super) go_on: bool,
}

/// Longest run starting in each word, in pages, and the maxima above.
#[derive(Clone, Debug)]
pub(super) struct RunSummary {
    leaves: Box<[Node]>,
    /// Lowest level first; the last one is a single node. Empty when the leaves are a single node.
    upper: Vec<Box<[Node]>>,
    /// The word written last: only the path above its group may be out of date.
    hot: usize,
}

impl RunSummary {
    /// A summary of `words` words without free pages.
    pub(super) fn new(words: usize) -> Self {
        let level = |entries: usize| vec![Node([0; FAN_OUT]); entries.div_ceil(FAN_OUT).max(1)].into_boxed_slice();
        let leaves = level(words);
        let mut upper: Vec<Box<[Node]>> = Vec::new();
        let mut below = leaves.len();
        while below > 1 {
            upper.push(level(below));
            below = below.div_ceil(FAN_OUT);
        }
        Self { leaves, upper, hot: 0 }
    }

    /// Longest run that starts in `word`.
    pub(super) fn longest_in(&self, word: usize) -> u32 {
        self.leaves[word / FAN_OUT].0[word % FAN_OUT]
    }

    /// Sets the longest run that starts in `word`, which becomes the first place to look.
    pub(super) fn set(&mut self, word: usize, longest: u32) {
        if word / FAN_OUT != self.hot / FAN_OUT {
            self.settle();
        }
        self.hot = word;
        self.leaves[word / FAN_OUT].0[word % FAN_OUT] = longest;
    }

    /// A word in which a run of at least `pages` starts: the word written last, else its neighbours, else
    /// the first of the pool. None when no run is that long.
    pub(super) fn word_with(&mut self, pages: u32) -> Option<usize> {
        if self.longest_in(self.hot) >= pages {
            return Some(self.hot);
        }
        let group = self.hot / FAN_OUT;
        if let Some(entry) = self.leaves[group].first_at_least(pages) {
            return Some(group * FAN_OUT + entry);
        }
        self.settle();
        let mut at = 0;
        for level in self.upper.iter().rev() {
            at = at * FAN_OUT + level[at].first_at_least(pages)?;
        }
        Some(at * FAN_OUT + self.leaves[at].first_at_least(pages)?)
    }

    /// The last word before `word` in which a run starts.
    pub(super) fn start_before(&mut self, word: usize) -> Option<usize> {
        let mut at = word / FAN_OUT;
        if let Some(entry) = self.leaves[at].last_nonzero_before(word % FAN_OUT) {
            return Some(at * FAN_OUT + entry);
        }
        self.settle();
        for (height, level) in self.upper.iter().enumerate() {
            let entry = at % FAN_OUT;
            at /= FAN_OUT;
            let Some(entry) = level[at].last_nonzero_before(entry) else { continue };
            at = at * FAN_OUT + entry;
            for below in self.upper[..height].iter().rev() {
                at = at * FAN_OUT + below[at].last_nonzero_before(FAN_OUT)?;
            }
            return Some(at * FAN_OUT + self.leaves[at].last_nonzero_before(FAN_OUT)?);
        }
        None
    }

    /// Longest run of the pool.
    pub(super) fn longest(&self) -> u32 {
        let mut at = self.hot / FAN_OUT;
        let mut longest = self.leaves[at].max();
        for level in &self.upper {
            let mut node = level[at / FAN_OUT];
            node.0[at % FAN_OUT] = longest;
            longest = node.max();
            at /= FAN_OUT;
        }
        longest
    }

    /// Visits, in address order, the words whose longest run is exactly `pages`, the longest of the pool,
    /// until a visit says stop. Every node on the way is written once, however many of its words are visited.
    pub(super) fn visit_longest(&mut self, pages: u32, visit: &mut impl FnMut(usize) -> Visited) {
        self.settle();
        visit_node(&mut self.leaves, &mut self.upper, 0, pages, visit);
    }

    /// Bytes of the leaves and of the levels above.
    pub(super) fn bytes(&self) -> usize {
        let nodes = self.leaves.len() + self.upper.iter().map(|level| level.len()).sum::<usize>();
        nodes * size_of::<Node>() + self.upper.capacity() * size_of::<Box<[Node]>>()
    }

    /// Brings the path above the last written group up to date.
    fn settle(&mut self) {
        let mut at = self.hot / FAN_OUT;
        let mut longest = self.leaves[at].max();
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

    /// Compares every inner entry with the node it stands for.
    ///
    /// # Panics
    /// When one differs.
    pub(super) fn check_invariants(&self) {
        let mut settled = self.clone();
        settled.settle();
        let mut below = &settled.leaves;
        for level in &settled.upper {
            for (at, node) in below.iter().enumerate() {
                assert_eq!(level[at / FAN_OUT].0[at % FAN_OUT], node.max(), "the entry above node {at}");
            }
            below = level;
        }
        assert_eq!(below.len(), 1, "the top level is one node");
        assert_eq!(below[0].max(), self.longest());
    }
}

/// Visits below node `at` of the level that `upper` ends with; returns the node's maximum and whether to go on.
fn visit_node(
    leaves: &mut [Node],
    upper: &mut [Box<[Node]>],
    at: usize,
    pages: u32,
    visit: &mut impl FnMut(usize) -> Visited,
) -> Visited {
    let mut go_on = true;
    let longest = match upper.split_last_mut() {
        Some((level, below)) => {
            let node = &mut level[at];
            for entry in 0..FAN_OUT {
                if go_on && node.0[entry] == pages {
                    let visited = visit_node(leaves, below, at * FAN_OUT + entry, pages, visit);
                    node.0[entry] = visited.longest;
                    go_on = visited.go_on;
                }
            }
            node.max()
        }
        None => {
            let node = &mut leaves[at];
            for entry in 0..FAN_OUT {
                if go_on && node.0[entry] == pages {
                    let visited = visit(at * FAN_OUT + entry);
                    node.0[entry] = visited.longest;
                    go_on = visited.go_on;
                }
            }
            node.max()
        }
    };
    Visited { longest, go_on }
}
