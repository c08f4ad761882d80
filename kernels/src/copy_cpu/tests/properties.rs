//! Random pages, layouts and tiles against the byte-by-byte model.

use super::*;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

#[derive(Clone, Debug)]
struct Case {
    components: Vec<(Component, Vec<u64>)>,
    tile_pages: u32,
    l1_pages: u32,
    host_pages: u32,
    pairs: Vec<(u32, u32)>,
    /// Bytes left free before each device region: an engine's own table; none is the packed pool.
    gap_bytes: Option<u64>,
}

impl Case {
    fn layout(&self) -> Layout {
        Layout::new(64, self.components.clone(), self.tile_pages).unwrap()
    }

    fn l1_layout(&self, layout: &Layout) -> L1Layout {
        let packed = L1Layout::packed(layout, self.l1_pages);
        let Some(gap_bytes) = self.gap_bytes else { return packed };
        let mut regions = Vec::new();
        let mut end_bytes = 0;
        // Backwards, so that nothing can rely on record order in the device pool.
        for piece in layout.record().collect::<Vec<_>>().into_iter().rev() {
            let mut region = packed.region(piece.component, piece.layer).unwrap();
            region.base_offset_bytes = end_bytes + gap_bytes;
            end_bytes = region.base_offset_bytes + u64::from(self.l1_pages) * piece.page_bytes;
            regions.push(RegisteredRegion { component: piece.component, layer: piece.layer, region });
        }
        L1Layout::registered(layout, self.l1_pages, end_bytes + gap_bytes, &regions).unwrap()
    }
}

fn components() -> impl Strategy<Value = Vec<(Component, Vec<u64>)>> {
    let bytes = |layers| prop::collection::vec((0_u64..5).prop_map(|units| units * 16), layers);
    (1_usize..4, 1_usize..3, any::<[bool; 3]>()).prop_flat_map(move |(target, draft, present)| {
        let layers = (bytes(target), bytes(target), bytes(draft), bytes(draft));
        layers.prop_map(move |(target_kv, target_index, draft_kv, draft_index)| {
            let mut components = vec![(TargetKv, target_kv)];
            components.extend(present[0].then_some((TargetIndex, target_index)));
            components.extend(present[1].then_some((DraftKv, draft_kv)));
            components.extend((present[1] && present[2]).then_some((DraftIndex, draft_index)));
            components
        })
    })
}

/// Pairs in an order that has both runs and jumps: stretches of ascending pages, shuffled.
fn pairs(l1_pages: u32, host_pages: u32) -> impl Strategy<Value = Vec<(u32, u32)>> {
    let most = l1_pages.min(host_pages) as usize;
    (0..=most, 1_usize..6).prop_flat_map(move |(pages, stretch)| {
        let side = move |of: u32| {
            let chosen = subsequence((0..of).collect::<Vec<_>>(), pages);
            chosen.prop_map(move |pages| pages.chunks(stretch).map(<[u32]>::to_vec).collect::<Vec<_>>()).prop_shuffle()
        };
        (side(l1_pages), side(host_pages)).prop_map(|(l1, host)| l1.concat().into_iter().zip(host.concat()).collect())
    })
}

fn case() -> impl Strategy<Value = Case> {
    let gap_bytes = prop::option::of((0_u64..3).prop_map(|units| units * 16));
    let shape = (components(), select(vec![1, 2, 4, 8, 16]), 1_u32..40, 1_u32..40, gap_bytes);
    shape.prop_flat_map(|(components, tile_pages, l1_pages, host_pages, gap_bytes)| {
        pairs(l1_pages, host_pages).prop_map(move |pairs| Case {
            components: components.clone(),
            tile_pages,
            l1_pages,
            host_pages,
            pairs,
            gap_bytes,
        })
    })
}

fn every_layer(layout: &Layout) -> Vec<(Track, u32)> {
    Track::ALL.into_iter().flat_map(|track| (0..layout.track_layers(track)).map(move |layer| (track, layer))).collect()
}

proptest! {
    #[test]
    fn down_then_up_restores_every_page_and_touches_no_other_byte(case in case()) {
        let layout = case.layout();
        let l1_layout = case.l1_layout(&layout);
        let runs = runs(&case.pairs);
        let original = Memory::new(l1_layout.segment_bytes(), mark);
        let host = Memory::poisoned(layout.host_pool_bytes(case.host_pages));
        let restored = Memory::poisoned(l1_layout.segment_bytes());
        let down = Pools {
            layout: &layout,
            l1_layout: &l1_layout,
            l1: original.shared(),
            host: host.shared(),
            host_pages: case.host_pages,
        };
        let up = Pools { l1: restored.shared(), ..down };
        let (mut down_bytes, mut up_bytes) = (0, 0);
        let mut host_expected = host.bytes();
        let mut l1_expected = restored.bytes();
        for (track, layer) in every_layer(&layout) {
            host_expected = model(down, Direction::Down, track, layer, &case.pairs, &original.bytes(), &host_expected);
            down_bytes += down.copy_layer(Direction::Down, track, layer, &runs).unwrap();
            prop_assert_eq!(&host.bytes(), &host_expected, "down {} {}", track, layer);
        }
        for (track, layer) in every_layer(&layout) {
            l1_expected = model(up, Direction::Up, track, layer, &case.pairs, &l1_expected, &host_expected);
            up_bytes += up.copy_layer(Direction::Up, track, layer, &runs).unwrap();
            prop_assert_eq!(&restored.bytes(), &l1_expected, "up {} {}", track, layer);
        }
        prop_assert_eq!(&host.bytes(), &host_expected, "a load writes no host byte");
        prop_assert_eq!(down_bytes, u64::from(runs.pages()) * layout.record_bytes());
        prop_assert_eq!(up_bytes, down_bytes);
        for &(l1_page, host_page) in &case.pairs {
            let fingerprint = down.fingerprint_l1_page(L1Page(l1_page));
            prop_assert_eq!(up.fingerprint_l1_page(L1Page(l1_page)), fingerprint);
            prop_assert_eq!(down.fingerprint_host_record(HostPage(host_page)), fingerprint);
        }
    }

    #[test]
    fn no_two_pieces_of_a_host_pool_share_a_byte_and_together_they_fill_its_tiles(case in case()) {
        let layout = case.layout();
        let pages = case.host_pages.next_multiple_of(case.tile_pages);
        let mut owners = vec![0_u8; layout.host_pool_bytes(pages) as usize];
        for page in 0..pages {
            for piece in layout.record() {
                let start = layout.host_offset(HostPage(page), piece.component, piece.layer).unwrap() as usize;
                owners[start..start + piece.page_bytes as usize].iter_mut().for_each(|owner| *owner += 1);
            }
        }
        prop_assert!(owners.iter().all(|&owner| owner == 1));
    }
}
