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

/// Appends `count` items, `first` and then each the `next` of the one before: how a run becomes page ids.
#[inline]
pub fn append_steps<T: Copy>(items: &mut Vec<T>, count: u32, first: T, next: impl Fn(T) -> T) {
    let mut following = first;
    let steps = (0..count).map(|_| {
        let item = following;
        following = next(item);
        item
    });
    // A split of a short chunk has stretches of a page or two, for which setting up a vectorised loop costs
    // more than the loop.
    if count < 8 {
        steps.for_each(|item| items.push(item));
    } else {
        items.extend(steps);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_follow_each_other_in_short_and_long_stretches() {
        for count in [0, 1, 7, 8, 100] {
            let mut items = vec![5];
            append_steps(&mut items, count, 2, |item: u32| item.wrapping_add(3));
            let expected: Vec<u32> = std::iter::once(5).chain((0..count).map(|at| 2 + 3 * at)).collect();
            assert_eq!(items, expected, "{count} steps");
        }
        let mut items = Vec::new();
        append_steps(&mut items, 1, u32::MAX, |item: u32| item.wrapping_add(3));
        assert_eq!(items, [u32::MAX], "the step after the last one is never seen");
    }
}
