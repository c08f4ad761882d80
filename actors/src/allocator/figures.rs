//! What a pool shows of itself, and the marks that keep room free in it.

use thiserror::Error;

/// Buckets of a run histogram: bucket `i` counts free runs of `2^i..2^(i+1)` pages.
pub const RUN_BUCKETS: usize = 32;

/// What one pool shows of itself (requirement B1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolFigures {
    /// Pages that can be given out at all: the slots without the reserved ones.
    pub capacity_pages: u32,
    /// Pages that are free.
    pub free_pages: u32,
    /// Pages of the longest free run.
    pub longest_run_pages: u32,
    /// Free runs by size: bucket `i` counts runs of `2^i..2^(i+1)` pages.
    pub runs_by_size: [u32; RUN_BUCKETS],
    /// Bytes of bitmap and summary.
    pub metadata_bytes: usize,
}

/// Low and high mark of free room in one pool, in pages (requirement B7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marks {
    low_pages: u32,
    high_pages: u32,
}

/// A low mark above the high mark, or a high mark above the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("marks low {low_pages} and high {high_pages} do not fit a pool of {capacity_pages} pages")]
pub struct MarksError {
    /// The low mark asked for, in pages.
    pub low_pages: u32,
    /// The high mark asked for, in pages.
    pub high_pages: u32,
    /// What the pool can give out, in pages; `u32::MAX` where no pool was looked at.
    pub capacity_pages: u32,
}

impl Marks {
    /// No marks: room is made for exactly what is asked.
    pub const OFF: Self = Self { low_pages: 0, high_pages: 0 };

    /// Acts below `low_pages`, works up to `high_pages`.
    ///
    /// # Errors
    /// [`MarksError`] when low is above high.
    pub const fn new(low_pages: u32, high_pages: u32) -> Result<Self, MarksError> {
        if low_pages > high_pages {
            return Err(MarksError { low_pages, high_pages, capacity_pages: u32::MAX });
        }
        Ok(Self { low_pages, high_pages })
    }

    /// The defaults of requirement B7: low 1 % and high 2 % of the pool, at least one page, at most what one
    /// largest chunk needs of this pool, and never more than the pool.
    pub fn default_for(capacity_pages: u32, chunk_pages: u32) -> Self {
        let most = chunk_pages.max(1).min(capacity_pages);
        let share = |percent: u32| (capacity_pages / 100).saturating_mul(percent).max(1).min(most);
        Self { low_pages: share(1), high_pages: share(2) }
    }

    /// The low mark, in pages.
    pub const fn low_pages(self) -> u32 {
        self.low_pages
    }

    /// The high mark, in pages.
    pub const fn high_pages(self) -> u32 {
        self.high_pages
    }

    /// Pages to reach the high mark when `free_pages` is below the low one.
    pub const fn below_low(self, free_pages: u32) -> Option<u32> {
        if free_pages < self.low_pages { Some(self.high_pages - free_pages) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_marks_are_shares_of_the_pool_within_one_page_and_one_chunk() {
        for (capacity, chunk, low, high) in
            [(55_000, 2_048, 550, 1_100), (55_000, 256, 256, 256), (50, 2_048, 1, 1), (5_500, 0, 1, 1), (0, 64, 0, 0)]
        {
            let marks = Marks::default_for(capacity, chunk);
            assert_eq!((marks.low_pages(), marks.high_pages()), (low, high), "{capacity} pages, chunks of {chunk}");
        }
    }

    #[test]
    fn acts_below_low_and_works_up_to_high() {
        let marks = Marks::new(10, 30).expect("low is below high");
        for (free, wanted) in [(0, Some(30)), (9, Some(21)), (10, None), (40, None)] {
            assert_eq!(marks.below_low(free), wanted, "{free} free");
        }
        assert_eq!(Marks::OFF.below_low(0), None);
        assert!(Marks::new(2, 1).is_err());
    }
}
