//! A stretch of contiguous pages, and how much one is wanted.

/// Contiguous pages of one pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Run {
    /// First slot.
    pub start: u32,
    /// Number of pages, at least 1.
    pub pages: u32,
}

impl Run {
    /// The slot after the last one.
    ///
    /// # Panics
    /// When it does not fit 32 bits.
    pub const fn end(self) -> u32 {
        self.start + self.pages
    }

    /// The runs of `slots`: each ascending stretch is one, in the order of the input.
    pub fn of_slots(slots: impl IntoIterator<Item = u32>, runs: &mut Vec<Run>) {
        let first = runs.len();
        for slot in slots {
            match runs[first..].last_mut() {
                Some(run) if run.start.checked_add(run.pages) == Some(slot) => run.pages += 1,
                Some(_) | None => runs.push(Run { start: slot, pages: 1 }),
            }
        }
    }
}

/// Whether the pages of one reservation lie side by side (requirement B1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Contiguity {
    /// Any free pages, in address order.
    Off,
    /// One run if one exists, else the fewest runs.
    #[default]
    Prefer,
    /// One run, or a refusal.
    Require,
}
