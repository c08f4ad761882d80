use std::ptr::NonNull;

use super::*;

/// Memory at a multiple of 16.
struct Memory(Vec<u128>);

impl Memory {
    fn filled(bytes: u64, with: impl Fn(u64) -> u8) -> Self {
        let word = |at: u64| u128::from_le_bytes(std::array::from_fn(|byte| with(at * 16 + byte as u64)));
        Self((0..bytes / 16).map(word).collect())
    }

    fn shared(&mut self) -> SharedBytes {
        let bytes = self.0.len() as u64 * 16;
        // SAFETY: the vector is mapped, lives longer than the handle is used, and is not touched meanwhile.
        unsafe { SharedBytes::new(NonNull::from(self.0.as_mut_slice()).cast(), bytes) }
    }

    fn bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|word| word.to_le_bytes()).collect()
    }
}

/// What stands at byte `at` of a rank's region.
fn pattern(rank: u64, at: u64) -> u8 {
    (rank * 131 + at * 7 + at / 251) as u8
}

fn shards(ranks: u64, pages: u64, page_bytes: u64) -> Vec<Memory> {
    (0..ranks).map(|rank| Memory::filled(pages * page_bytes, |at| pattern(rank, at))).collect()
}

#[test]
fn every_page_stands_at_its_position() {
    for (ranks, page_bytes, pages) in [
        (1, 16, vec![1, 2, 3, 9, 4]),
        (2, 48, vec![2, 3, 4, 5, 9, 7, 2]),
        // The zigzag of one chunk over four ranks: neighbours of a lane follow each other.
        (4, 8_448, vec![4, 8, 5, 9, 6, 10, 7, 11, 15, 19, 14, 18, 13, 17, 12, 16]),
        (8, 64, vec![]),
    ] {
        let mut memory = shards(ranks, 10, page_bytes);
        let shared: Vec<SharedBytes> = memory.iter_mut().map(Memory::shared).collect();
        let mut view = Memory::filled(pages.len() as u64 * page_bytes, |_| 0x5A);
        let named: Vec<LogicalPage> = pages.iter().copied().map(LogicalPage).collect();
        let moved = gather(&shared, page_bytes, &named, view.shared()).expect("a sound call");
        assert_eq!(moved, pages.len() as u64 * page_bytes);
        let expected = pages.iter().flat_map(|page| {
            let (rank, physical) = (u64::from(*page) % ranks, u64::from(*page) / ranks);
            (0..page_bytes).map(move |byte| pattern(rank, physical * page_bytes + byte))
        });
        assert_eq!(view.bytes(), expected.collect::<Vec<u8>>(), "{ranks} ranks, {page_bytes} bytes");
    }
}

#[test]
fn a_bad_call_writes_nothing_and_says_what_is_wrong() {
    let mut memory = shards(2, 4, 32);
    let shared: Vec<SharedBytes> = memory.iter_mut().map(Memory::shared).collect();
    let mut odd = Memory::filled(48, |_| 0);
    let cut = vec![shared[0], odd.shared()];
    let mut view = Memory::filled(64, |_| 0x5A);
    let into = view.shared();
    let page = |position, page, rank, physical| GatherError::Page {
        position,
        page: LogicalPage(page),
        rank,
        physical,
        held: 4,
    };
    type Call<'a> = (&'a [SharedBytes], u64, [u32; 2], SharedBytes, GatherError);
    let rows: Vec<Call<'_>> = vec![
        (&[], 32, [2, 3], into, GatherError::Ranks { ranks: 0 }),
        (&shared, 0, [2, 3], into, GatherError::PageBytes { page_bytes: 0 }),
        (&shared, 24, [2, 3], into, GatherError::PageBytes { page_bytes: 24 }),
        (&cut, 32, [2, 3], into, GatherError::ShardBytes { rank: 1, bytes: 48, page_bytes: 32 }),
        (&shared, 32, [2, 3], shared[1], GatherError::Overlap { rank: 1 }),
        (&shared, 16, [2, 3], into, GatherError::ViewBytes { bytes: 64, pages: 2, page_bytes: 16 }),
        (&shared, 32, [2, 1], into, page(1, 1, 1, 0)),
        (&shared, 32, [8, 2], into, page(0, 8, 0, 4)),
        (&shared, 32, [2, u32::MAX], into, page(1, u32::MAX, 1, u32::MAX / 2)),
    ];
    for (shards, page_bytes, pages, into, fault) in rows {
        assert_eq!(gather(shards, page_bytes, &pages.map(LogicalPage), into), Err(fault), "{fault}");
    }
    assert!(view.bytes().iter().all(|byte| *byte == 0x5A));
}
