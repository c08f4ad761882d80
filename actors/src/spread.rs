//! How values are spread, in memory that does not grow: percentiles within an eighth of the value, the maximum exact.

/// Counts of values by size: one of its own up to 15, then eight for each doubling.
#[derive(Clone, Debug)]
pub(crate) struct Spread {
    counts: Vec<u64>,
    total: u64,
    max: u64,
}

impl Spread {
    /// No value yet.
    pub(crate) fn new() -> Self {
        Self { counts: vec![0; PLACES], total: 0, max: 0 }
    }

    /// One more value.
    pub(crate) fn add(&mut self, value: u64) {
        self.counts[place(value)] += 1;
        self.total += 1;
        self.max = self.max.max(value);
    }

    /// The value that `permille` of a thousand do not exceed, rounded up by at most an eighth; 0 without values.
    pub(crate) fn permille(&self, permille: u64) -> u64 {
        let wanted = (self.total * permille).div_ceil(1_000).max(1);
        let mut seen = 0;
        for (place, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return last_of(place).min(self.max);
            }
        }
        0
    }

    /// The largest value, 0 without any.
    pub(crate) fn max(&self) -> u64 {
        self.max
    }
}

fn place(value: u64) -> usize {
    if value < SINGLES {
        return value as usize;
    }
    let doubling = value.ilog2();
    let part = (value >> (doubling - PARTS_LOG2)) & (PARTS - 1);
    (SINGLES + u64::from(doubling - SINGLES_LOG2) * PARTS + part) as usize
}

/// The largest value that is counted there.
fn last_of(place: usize) -> u64 {
    let place = place as u64;
    if place < SINGLES {
        return place;
    }
    let (doubling, part) = ((place - SINGLES) / PARTS + u64::from(SINGLES_LOG2), (place - SINGLES) % PARTS);
    // Wraps for the last place of all, to the largest value there is.
    ((PARTS + part + 1) << (doubling - u64::from(PARTS_LOG2))).wrapping_sub(1)
}

const SINGLES_LOG2: u32 = 4;
const SINGLES: u64 = 1 << SINGLES_LOG2;
const PARTS_LOG2: u32 = 3;
const PARTS: u64 = 1 << PARTS_LOG2;
const PLACES: usize = (SINGLES + (64 - SINGLES_LOG2 as u64) * PARTS) as usize;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_counted_where_the_next_larger_end_is_within_an_eighth() {
        let around = (0..64).flat_map(|bit| [(1_u64 << bit) - 1, 1 << bit, (1 << bit) + (1 << bit) / 3]);
        for value in around.chain([u64::MAX, u64::MAX - 1]) {
            let (place, last) = (place(value), last_of(place(value)));
            assert!(last >= value && last - value <= value / 8, "{value} at {place} up to {last}");
            assert!(place == 0 || last_of(place - 1) < value, "{value} at {place}");
        }
    }

    #[test]
    fn percentiles_are_those_of_a_sorted_list_within_an_eighth() {
        let mut state = 7;
        for count in [1_usize, 2, 10, 99, 1_000] {
            let mut values: Vec<u64> = (0..count).map(|_| crate::calls::draw(&mut state) >> (state % 60)).collect();
            let mut spread = Spread::new();
            values.iter().for_each(|value| spread.add(*value));
            values.sort_unstable();
            for permille in [1, 500, 990, 999, 1_000] {
                let exact = values[(count * permille).div_ceil(1_000).max(1) - 1];
                let found = spread.permille(permille as u64);
                assert!(found >= exact && found - exact <= exact / 8, "{permille} of {count}: {found} for {exact}");
            }
            assert_eq!(spread.max(), values[count - 1]);
        }
        assert_eq!((Spread::new().permille(500), Spread::new().max()), (0, 0));
    }
}
