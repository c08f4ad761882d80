//! Merges pairs of (L1 page, host page) into runs that are consecutive on both sides.
//!
//! The number of runs is the cost of a copy: the copy engine pays per piece, and a fragmented op is a slow one.
//!
//! Invariants: a run has at least one page and ends at or below 2^32 on both sides; no page of either side
//! belongs to two pairs, so the pages of an op can be copied in any order and in either direction.

#[cfg(test)]
mod tests;

use crate::layout::{HostPage, L1Page};

/// Consecutive pages on both sides: pair `i` is `(l1_page + i, host_page + i)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// First page in the device pool.
    pub l1_page: L1Page,
    /// First page in the host pool.
    pub host_page: HostPage,
    /// Pages of the run, at least one.
    pub pages: u32,
}

impl Run {
    /// Cuts the run where its host pages cross from one tile of `tile_pages` pages to the next, in order. Inside
    /// one tile the pages of a layer stand side by side, so every part is one copy per component and layer.
    ///
    /// # Panics
    /// When `tile_pages` is 0, which no layout has.
    pub fn parts_in_tiles(self, tile_pages: u32) -> impl Iterator<Item = Run> {
        assert!(tile_pages > 0, "a tile has pages");
        let mut done_pages = 0;
        std::iter::from_fn(move || {
            let left_pages = self.pages - done_pages;
            if left_pages == 0 {
                return None;
            }
            let host_page = HostPage(self.host_page.0 + done_pages);
            let left_in_tile_pages = tile_pages - host_page.0 % tile_pages;
            let pages = left_pages.min(left_in_tile_pages);
            let part = Run { l1_page: L1Page(self.l1_page.0 + done_pages), host_page, pages };
            done_pages += pages;
            Some(part)
        })
    }

    /// One behind the last page in the device pool.
    pub fn l1_end(self) -> u64 {
        u64::from(self.l1_page.0) + u64::from(self.pages)
    }

    /// One behind the last page in the host pool.
    pub fn host_end(self) -> u64 {
        u64::from(self.host_page.0) + u64::from(self.pages)
    }
}

/// The runs of one op on one rank, in the order of its pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runs {
    runs: Vec<Run>,
    pages: u32,
    l1_end: u64,
    host_end: u64,
}

impl Runs {
    /// Merges the pairs `(l1_pages[i], host_pages[i])`, in their order, into the fewest runs that keep it. No
    /// pairs at all are no runs: a rank that owns nothing of an op.
    ///
    /// # Errors
    /// Lists of different length, more pages than 32 bits count, or a page that stands twice on one side.
    pub fn merge(l1_pages: &[L1Page], host_pages: &[HostPage]) -> Result<Self, RunsError> {
        if l1_pages.len() != host_pages.len() {
            return Err(RunsError::LengthsDiffer { l1_pages: l1_pages.len(), host_pages: host_pages.len() });
        }
        let Ok(pages) = u32::try_from(l1_pages.len()) else {
            return Err(RunsError::TooManyPages { pages: l1_pages.len() });
        };
        let mut runs: Vec<Run> = Vec::new();
        for (&l1_page, &host_page) in l1_pages.iter().zip(host_pages) {
            match runs.last_mut() {
                Some(run) if run.l1_end() == u64::from(l1_page.0) && run.host_end() == u64::from(host_page.0) => {
                    run.pages += 1;
                }
                Some(_) | None => runs.push(Run { l1_page, host_page, pages: 1 }),
            }
        }
        let l1_end = end_of_disjoint(runs.iter().map(|run| (u64::from(run.l1_page.0), run.l1_end())))
            .map_err(|page| RunsError::L1PageTwice { page: L1Page(page as u32) })?;
        let host_end = end_of_disjoint(runs.iter().map(|run| (u64::from(run.host_page.0), run.host_end())))
            .map_err(|page| RunsError::HostPageTwice { page: HostPage(page as u32) })?;
        Ok(Self { runs, pages, l1_end, host_end })
    }

    /// The runs, in the order of the pages.
    pub fn as_slice(&self) -> &[Run] {
        &self.runs
    }

    /// How many runs there are.
    pub fn run_count(&self) -> usize {
        self.runs.len()
    }

    /// Pages of all runs together.
    pub fn pages(&self) -> u32 {
        self.pages
    }

    /// One behind the highest L1 page of any run; 0 without runs.
    pub fn l1_end(&self) -> u64 {
        self.l1_end
    }

    /// One behind the highest host page of any run; 0 without runs.
    pub fn host_end(&self) -> u64 {
        self.host_end
    }
}

/// Why pairs of pages were refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunsError {
    /// The lists do not pair up.
    #[error("{l1_pages} L1 pages and {host_pages} host pages do not pair up")]
    LengthsDiffer {
        /// Pages in the first list.
        l1_pages: usize,
        /// Pages in the second list.
        host_pages: usize,
    },
    /// More pages than 32 bits count.
    #[error("{pages} pages are more than one op can have")]
    TooManyPages {
        /// Pages given.
        pages: usize,
    },
    /// An L1 page belongs to two pairs.
    #[error("L1 page {} is named twice", page.0)]
    L1PageTwice {
        /// The page.
        page: L1Page,
    },
    /// A host page belongs to two pairs.
    #[error("host page {} is named twice", page.0)]
    HostPageTwice {
        /// The page.
        page: HostPage,
    },
}

/// The highest end of spans that share no page; else a page that two of them share.
fn end_of_disjoint(spans: impl Iterator<Item = (u64, u64)>) -> Result<u64, u64> {
    let mut spans: Vec<_> = spans.collect();
    spans.sort_unstable();
    let mut end = 0;
    for (start, span_end) in spans {
        if start < end {
            return Err(start);
        }
        end = span_end;
    }
    Ok(end)
}
