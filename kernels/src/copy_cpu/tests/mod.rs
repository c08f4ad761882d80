mod properties;
mod refusals;

use super::*;
use crate::layout::RegisteredRegion;
use Component::{DraftIndex, DraftKv, TargetIndex, TargetKv};
use std::cell::UnsafeCell;
use std::ptr::NonNull;

/// Memory that a test owns: 16-byte aligned, changed through handles only.
struct Memory {
    words: Box<[UnsafeCell<u128>]>,
}

impl Memory {
    /// `bytes` bytes, a multiple of 16, byte `i` being `byte_at(i)`.
    fn new(bytes: u64, byte_at: impl Fn(u64) -> u8) -> Self {
        let word_at = |word: u64| u128::from_ne_bytes(std::array::from_fn(|i| byte_at(word * 16 + i as u64)));
        Self { words: (0..bytes / 16).map(|word| UnsafeCell::new(word_at(word))).collect() }
    }

    fn poisoned(bytes: u64) -> Self {
        Self::new(bytes, |_| POISON)
    }

    fn shared(&self) -> SharedBytes {
        self.shared_from(0, self.words.len() as u64 * 16)
    }

    fn shared_from(&self, offset: usize, bytes: u64) -> SharedBytes {
        let start = NonNull::new(self.words.as_ptr().cast_mut().cast::<u8>()).unwrap();
        assert!(offset + bytes as usize <= self.words.len() * 16);
        // SAFETY: the range lies inside the box, whose contents are cells; each test uses it from one thread and
        // keeps it alive while it uses the handle.
        unsafe { SharedBytes::new(start.add(offset), bytes) }
    }

    fn bytes(&self) -> Vec<u8> {
        // SAFETY: nothing writes the cells during the read; the test is one thread.
        self.words.iter().flat_map(|word| unsafe { *word.get() }.to_ne_bytes()).collect()
    }
}

const POISON: u8 = 0xA5;

/// A byte that tells its place from every other place near by, and is never poison.
fn mark(place: u64) -> u8 {
    let mixed = (place.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8;
    if mixed == POISON { !mixed } else { mixed }
}

fn runs(pairs: &[(u32, u32)]) -> Runs {
    let (l1, host): (Vec<_>, Vec<_>) = pairs.iter().map(|&(l1, host)| (L1Page(l1), HostPage(host))).unzip();
    Runs::merge(&l1, &host).unwrap()
}

/// A small model with everything in it: two target layers, the second without index pages, and a draft layer.
fn mixed_layout(tile_pages: u32) -> Layout {
    let components =
        vec![(TargetKv, vec![32, 48]), (TargetIndex, vec![16, 0]), (DraftKv, vec![32]), (DraftIndex, vec![16])];
    Layout::new(64, components, tile_pages).unwrap()
}

/// What a copy must leave in the pool it writes: every page moved by itself, byte by byte.
fn model(
    pools: Pools,
    direction: Direction,
    track: Track,
    layer: u32,
    pairs: &[(u32, u32)],
    l1: &[u8],
    host: &[u8],
) -> Vec<u8> {
    let mut destination = match direction {
        Direction::Down => host.to_vec(),
        Direction::Up => l1.to_vec(),
    };
    for component in Component::ALL.into_iter().filter(|component| component.track() == track) {
        let Ok(piece) = pools.layout.piece(component, layer) else { continue };
        for &(l1_page, host_page) in pairs {
            let l1_start = pools.l1_layout.l1_offset(L1Page(l1_page), component, layer).unwrap() as usize;
            let host_start = pools.layout.host_offset(HostPage(host_page), component, layer).unwrap() as usize;
            for i in 0..piece.page_bytes as usize {
                match direction {
                    Direction::Down => destination[host_start + i] = l1[l1_start + i],
                    Direction::Up => destination[l1_start + i] = host[host_start + i],
                }
            }
        }
    }
    destination
}

#[test]
fn a_layer_goes_down_into_its_place_in_the_tile_and_nothing_else_changes() {
    let layout = mixed_layout(2);
    let l1_layout = L1Layout::packed(&layout, 4);
    let l1 = Memory::new(l1_layout.segment_bytes(), mark);
    let host = Memory::poisoned(layout.host_pool_bytes(4));
    let pools = Pools { layout: &layout, l1_layout: &l1_layout, l1: l1.shared(), host: host.shared(), host_pages: 4 };

    let moved = pools.copy_layer(Direction::Down, Track::Target, 0, &runs(&[(1, 1), (2, 2)]));

    assert_eq!(moved, Ok(96));
    let (l1, mut expected) = (l1.bytes(), vec![POISON; 4 * 144]);
    // Tile 0 holds host pages 0 and 1, tile 1 pages 2 and 3; a tile has 2 * 144 bytes.
    expected[32..64].copy_from_slice(&l1[32..64]); // kv of page 1 stands second in tile 0
    expected[288..320].copy_from_slice(&l1[64..96]); // kv of page 2 stands first in tile 1
    let index = 4 * 80; // the index region of the packed device pool
    expected[2 * 80 + 16..2 * 80 + 32].copy_from_slice(&l1[index + 16..index + 32]);
    expected[288 + 2 * 80..288 + 2 * 80 + 16].copy_from_slice(&l1[index + 32..index + 48]);
    assert_eq!(host.bytes(), expected);
}

#[test]
fn a_target_layer_never_moves_draft_bytes_nor_the_other_way() {
    let layout = mixed_layout(4);
    let l1_layout = L1Layout::packed(&layout, 6);
    let pairs = [(1, 3), (2, 4), (5, 0)];
    for direction in [Direction::Down, Direction::Up] {
        for (track, layer, bytes) in [(Track::Target, 0, 144), (Track::Target, 1, 144), (Track::Draft, 0, 144)] {
            let l1 = Memory::new(l1_layout.segment_bytes(), mark);
            let host = Memory::new(layout.host_pool_bytes(5), |place| mark(place + 1_000_003));
            let pools =
                Pools { layout: &layout, l1_layout: &l1_layout, l1: l1.shared(), host: host.shared(), host_pages: 5 };
            let (l1_before, host_before) = (l1.bytes(), host.bytes());
            let expected = model(pools, direction, track, layer, &pairs, &l1_before, &host_before);
            assert_eq!(pools.copy_layer(direction, track, layer, &runs(&pairs)), Ok(bytes));
            let (written, read, read_before) = match direction {
                Direction::Down => (host.bytes(), l1.bytes(), l1_before),
                Direction::Up => (l1.bytes(), host.bytes(), host_before),
            };
            assert_eq!(written, expected, "{direction:?} {track} {layer}");
            assert_eq!(read, read_before, "{direction:?} {track} {layer}");
        }
    }
}

#[test]
fn no_runs_and_layers_without_bytes_move_nothing() {
    let none = Layout::new(64, vec![(TargetKv, vec![0])], 8).unwrap();
    let l1_layout = L1Layout::packed(&none, 100);
    // SAFETY: no bytes are named.
    let empty = unsafe { SharedBytes::new(NonNull::dangling(), 0) };
    let pools = Pools { layout: &none, l1_layout: &l1_layout, l1: empty, host: empty, host_pages: 100 };
    for direction in [Direction::Down, Direction::Up] {
        assert_eq!(pools.copy_layer(direction, Track::Target, 0, &runs(&[(99, 0), (3, 99)])), Ok(0));
        assert_eq!(pools.copy_layer(direction, Track::Target, 0, &runs(&[])), Ok(0));
    }
    assert_eq!(pools.fingerprint_host_record(HostPage(7)), pools.fingerprint_l1_page(L1Page(8)));
}

#[test]
fn a_fingerprint_is_the_same_wherever_the_page_stands_and_tells_one_changed_bit() {
    let mut fingerprints = Vec::new();
    for tile_pages in [1, 4] {
        let layout = mixed_layout(tile_pages);
        let l1_layout = L1Layout::packed(&layout, 3);
        let l1 = Memory::new(l1_layout.segment_bytes(), mark);
        let host = Memory::poisoned(layout.host_pool_bytes(8));
        let pools =
            Pools { layout: &layout, l1_layout: &l1_layout, l1: l1.shared(), host: host.shared(), host_pages: 8 };
        for (track, layer) in [(Track::Target, 0), (Track::Target, 1), (Track::Draft, 0)] {
            pools.copy_layer(Direction::Down, track, layer, &runs(&[(2, 5)])).unwrap();
        }
        let copied = pools.fingerprint_host_record(HostPage(5)).unwrap();
        assert_eq!(pools.fingerprint_l1_page(L1Page(2)), Ok(copied));
        assert_ne!(pools.fingerprint_l1_page(L1Page(1)), Ok(copied));
        fingerprints.push(copied);

        let last_byte = layout.host_offset(HostPage(5), DraftIndex, 0).unwrap() + 15;
        let changed =
            Memory::new(host.bytes().len() as u64, |place| host.bytes()[place as usize] ^ u8::from(place == last_byte));
        let changed = Pools { host: changed.shared(), ..pools }.fingerprint_host_record(HostPage(5));
        assert_ne!(changed, Ok(copied));
    }
    assert_eq!(fingerprints[0], fingerprints[1], "tiles do not change a page");
    assert_eq!(fingerprints[0], 0x448ABFC5995FC67, "computed apart from this code, from its documentation");
}
