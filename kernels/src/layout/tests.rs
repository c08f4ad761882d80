use super::*;
use Component::{DraftIndex, DraftKv, TargetIndex, TargetKv};
use serde_json::Value;

type Described<'a> = &'a [(Component, &'a [u64])];

fn layout(components: Described, tile_pages: u32) -> Layout {
    Layout::new(64, owned(components), tile_pages).unwrap()
}

fn owned(components: Described) -> Vec<(Component, Vec<u64>)> {
    components.iter().map(|(component, bytes)| (*component, bytes.to_vec())).collect()
}

fn numbers(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|number| number.as_u64().unwrap()).collect()
}

fn component(value: &Value) -> Component {
    Component::from_name(value.as_str().unwrap()).unwrap()
}

#[test]
fn records_and_tiles_stand_where_the_vectors_say() {
    let vectors: Value = serde_json::from_str(include_str!("../../../tests/data/layout.json")).unwrap();
    let page_tokens = vectors["page_tokens"].as_u64().unwrap() as u32;
    let mut rows = 0;
    for (model, vector) in vectors["models"].as_object().unwrap() {
        let described = vector["components"].as_array().unwrap();
        let components: Vec<_> =
            described.iter().map(|c| (component(&c["component"]), numbers(&c["page_bytes_per_layer"]))).collect();
        let plain = Layout::new(page_tokens, components.clone(), 1).unwrap();
        assert_eq!(plain.record_bytes(), vector["record_bytes"].as_u64().unwrap(), "{model}");
        for vector in described {
            let component = component(&vector["component"]);
            for (layer, offset) in (0..).zip(numbers(&vector["offset_of_layer"])) {
                assert_eq!(plain.offset_of_layer(component, layer), Ok(offset), "{model} {component} {layer}");
            }
        }
        for row in vector["tiles"].as_array().unwrap() {
            let number = |name: &str| row[name].as_u64().unwrap();
            let tiled = Layout::new(page_tokens, components.clone(), number("tile_pages") as u32).unwrap();
            let (component, layer) = (component(&row["component"]), number("layer") as u32);
            let host_page = HostPage(number("host_page") as u32);
            let offset = tiled.host_offset(host_page, component, layer);
            assert_eq!(offset, Ok(number("byte_offset_in_pool")), "{model} {row}");
            assert_eq!(tiled.piece(component, layer).unwrap().page_bytes, number("bytes"), "{model} {row}");
            rows += 1;
        }
    }
    assert_eq!(rows, 48, "four models with twelve rows each");
}

#[test]
fn a_faulty_description_is_refused_with_every_fault_at_once() {
    let kv = (TargetKv, &[32_u64][..]);
    let rows: &[(u32, Described, u32, &[LayoutError])] = &[
        (48, &[kv], 1, &[LayoutError::PageTokens { page_tokens: 48 }]),
        (8, &[kv], 1, &[LayoutError::PageTokens { page_tokens: 8 }]),
        (1024, &[kv], 1, &[LayoutError::PageTokens { page_tokens: 1024 }]),
        (64, &[kv], 0, &[LayoutError::TilePages { tile_pages: 0 }]),
        (64, &[kv], 3, &[LayoutError::TilePages { tile_pages: 3 }]),
        (64, &[kv], 32, &[LayoutError::TilePages { tile_pages: 32 }]),
        (64, &[], 1, &[LayoutError::KvMissing { component: TargetKv }]),
        (64, &[kv, kv], 1, &[LayoutError::ComponentTwice { component: TargetKv }]),
        (64, &[(DraftKv, &[16]), kv], 1, &[LayoutError::ComponentOutOfOrder { component: TargetKv, after: DraftKv }]),
        (64, &[kv, (DraftIndex, &[16])], 1, &[LayoutError::KvMissing { component: DraftKv }]),
        (64, &[(TargetIndex, &[16])], 1, &[LayoutError::KvMissing { component: TargetKv }]),
        (
            32,
            &[kv, (TargetIndex, &[16])],
            1,
            &[LayoutError::IndexPageTokens { component: TargetIndex, page_tokens: 32 }],
        ),
        (64, &[(TargetKv, &[])], 1, &[LayoutError::Layers { component: TargetKv, layers: 0 }]),
        (64, &[(TargetKv, &[0; 1025])], 1, &[LayoutError::Layers { component: TargetKv, layers: 1025 }]),
        (
            64,
            &[kv, (TargetIndex, &[16, 16])],
            1,
            &[LayoutError::LayersDiffer { component: TargetIndex, layers: 2, kv_layers: 1 }],
        ),
        (64, &[(TargetKv, &[16, 24])], 1, &[LayoutError::PageBytes { component: TargetKv, layer: 1, page_bytes: 24 }]),
        (64, &[(TargetKv, &[1 << 31, 16])], 1, &[LayoutError::RecordTooLarge { record_bytes: (1 << 31) + 16 }]),
        (
            64,
            &[(TargetKv, &[u64::MAX - 15, u64::MAX - 15])],
            1,
            &[LayoutError::RecordTooLarge { record_bytes: 2 * (u64::MAX as u128 - 15) }],
        ),
        (
            7,
            &[(TargetKv, &[5])],
            9,
            &[
                LayoutError::PageTokens { page_tokens: 7 },
                LayoutError::TilePages { tile_pages: 9 },
                LayoutError::PageBytes { component: TargetKv, layer: 0, page_bytes: 5 },
            ],
        ),
    ];
    for (page_tokens, components, tile_pages, faults) in rows {
        let refused = Layout::new(*page_tokens, owned(components), *tile_pages).unwrap_err();
        assert_eq!(refused.faults, *faults, "{page_tokens} {components:?} {tile_pages}");
    }
}

#[test]
fn a_refusal_reads_as_one_line_that_says_what_to_change() {
    let refused = Layout::new(64, vec![(TargetKv, vec![8])], 3).unwrap_err();
    let line = "tile_pages is 3: make it a power of two in 1..=16; \
                target.kv layer 0 has 8 bytes per page: make it a multiple of 16";
    assert_eq!(refused.to_string(), line);
}

#[test]
fn every_supported_page_and_tile_size_is_accepted() {
    for page_tokens in [16, 32, 64, 128, 256, 512] {
        for tile_pages in [1, 2, 4, 8, 16] {
            let built = Layout::new(page_tokens, vec![(TargetKv, vec![16])], tile_pages).unwrap();
            assert_eq!((built.page_tokens(), built.tile_pages()), (page_tokens, tile_pages));
        }
    }
}

#[test]
fn the_largest_record_in_the_last_host_page_has_a_64_bit_offset() {
    let layout = layout(&[(TargetKv, &[RECORD_BYTES_MAX - 16, 16])], 16);
    let last = layout.host_offset(HostPage(u32::MAX), TargetKv, 1).unwrap();
    assert_eq!(last + 16, layout.host_pool_bytes(u32::MAX));
    assert_eq!(layout.host_pool_bytes(u32::MAX), 1 << 63);
    assert_eq!(L1Layout::packed(&layout, u32::MAX).segment_bytes(), u64::from(u32::MAX) << 31);
}

#[test]
fn a_host_pool_is_rounded_up_to_whole_tiles() {
    let layout = layout(&[(TargetKv, &[16, 32])], 4);
    for (pages, bytes) in [(0, 0), (1, 192), (4, 192), (5, 384), (8, 384)] {
        assert_eq!(layout.host_pool_bytes(pages), bytes, "{pages} pages");
    }
}

#[test]
fn a_record_without_bytes_is_legal_and_stands_nowhere() {
    let layout = layout(&[(TargetKv, &[0, 0])], 8);
    assert_eq!((layout.record_bytes(), layout.host_pool_bytes(1000)), (0, 0));
    assert_eq!(layout.host_offset(HostPage(999), TargetKv, 1), Ok(0));
}

#[test]
fn a_track_layer_has_the_pieces_of_its_own_components_only() {
    let layout = layout(&[(TargetKv, &[32, 32]), (TargetIndex, &[16, 0]), (DraftKv, &[48]), (DraftIndex, &[16])], 1);
    assert_eq!(Track::ALL.map(|track| layout.track_layers(track)), [2, 1]);
    let rows = [
        (Track::Target, 0, [(TargetKv, 32), (TargetIndex, 16)]),
        (Track::Target, 1, [(TargetKv, 32), (TargetIndex, 0)]),
        (Track::Draft, 0, [(DraftKv, 48), (DraftIndex, 16)]),
    ];
    for (track, layer, expected) in rows {
        let pieces: Vec<_> = layout.pieces(track, layer).unwrap().map(|p| (p.component, p.page_bytes)).collect();
        assert_eq!(pieces, expected, "{track} {layer}");
    }
    let missing = NoSuchLayer { component: DraftKv, layer: 1, layers: 1 };
    assert_eq!(layout.pieces(Track::Draft, 1).err(), Some(missing));
}

#[test]
fn a_layout_without_a_draft_has_no_draft_layer() {
    let layout = layout(&[(TargetKv, &[32])], 1);
    let missing = NoSuchLayer { component: DraftKv, layer: 0, layers: 0 };
    assert_eq!(layout.track_layers(Track::Draft), 0);
    assert_eq!(layout.pieces(Track::Draft, 0).err(), Some(missing));
    assert_eq!(layout.host_offset(HostPage(0), DraftKv, 0), Err(missing));
}

#[test]
fn names_and_components_answer_each_other() {
    for component in Component::ALL {
        assert_eq!(Component::from_name(component.name()), Some(component));
        let track = component.track();
        assert_eq!(component, if component.is_index() { track.index() } else { track.kv() });
    }
    assert_eq!(Component::from_name("target"), None);
}

#[test]
fn a_packed_pool_is_layer_first_in_record_order() {
    let layout = layout(&[(TargetKv, &[32, 16]), (TargetIndex, &[16, 0])], 8);
    let l1 = L1Layout::packed(&layout, 10);
    let rows =
        [(TargetKv, 0, 3, 96), (TargetKv, 1, 3, 320 + 48), (TargetIndex, 0, 9, 480 + 144), (TargetIndex, 1, 9, 640)];
    for (component, layer, page, offset) in rows {
        assert_eq!(l1.l1_offset(L1Page(page), component, layer), Ok(offset), "{component} {layer} {page}");
    }
    assert_eq!((l1.pages(), l1.segment_bytes()), (10, 640));
    let outside = L1LayoutError::NoSuchPage { page: L1Page(10), pages: 10 };
    assert_eq!(l1.l1_offset(L1Page(10), TargetKv, 0), Err(outside));
}

fn registered(component: Component, layer: u32, base_offset_bytes: u64, stride_bytes: u64) -> RegisteredRegion {
    RegisteredRegion { component, layer, region: L1Region { base_offset_bytes, stride_bytes } }
}

#[test]
fn registered_regions_may_stand_anywhere_in_any_order() {
    let layout = layout(&[(TargetKv, &[32, 32]), (TargetIndex, &[16, 0])], 1);
    let regions =
        [registered(TargetIndex, 0, 16, 16), registered(TargetKv, 1, 256, 32), registered(TargetKv, 0, 128, 32)];
    let l1 = L1Layout::registered(&layout, 4, 384, &regions).unwrap();
    for (component, layer, offset) in [(TargetKv, 0, 224), (TargetKv, 1, 352), (TargetIndex, 0, 64)] {
        assert_eq!(l1.l1_offset(L1Page(3), component, layer), Ok(offset), "{component} {layer}");
    }
    let packed = L1Layout::packed(&layout, 4);
    let same: Vec<_> = layout
        .record()
        .map(|p| RegisteredRegion {
            component: p.component,
            layer: p.layer,
            region: packed.region(p.component, p.layer).unwrap(),
        })
        .collect();
    assert_eq!(L1Layout::registered(&layout, 4, packed.segment_bytes(), &same), Ok(packed));
}

#[test]
fn a_faulty_registered_region_is_refused_by_name_and_value() {
    let layout = layout(&[(TargetKv, &[32, 32])], 1);
    let first = registered(TargetKv, 0, 0, 32);
    let second = |base_offset_bytes| registered(TargetKv, 1, base_offset_bytes, 32);
    let at = (TargetKv, 1);
    let rows: [(&[RegisteredRegion], L1LayoutError); 8] = [
        (&[first], L1LayoutError::Missing { component: at.0, layer: 1 }),
        (&[first, second(128), second(128)], L1LayoutError::Twice { component: at.0, layer: 1 }),
        (&[first, second(136)], L1LayoutError::Misaligned { component: at.0, layer: 1, base_offset_bytes: 136 }),
        (
            &[first, registered(TargetKv, 1, 128, 48)],
            L1LayoutError::Stride { component: at.0, layer: 1, stride_bytes: 48, page_bytes: 32 },
        ),
        (
            &[first, second(144)],
            L1LayoutError::OutOfSegment { component: at.0, layer: 1, end_bytes: 272, segment_bytes: 256 },
        ),
        (
            &[first, second(u64::MAX - 15)],
            L1LayoutError::OutOfSegment {
                component: at.0,
                layer: 1,
                end_bytes: u128::from(u64::MAX) + 113,
                segment_bytes: 256,
            },
        ),
        (
            &[second(112), first],
            L1LayoutError::Overlap { component: at.0, layer: 0, other_component: at.0, other_layer: 1 },
        ),
        (
            &[first, registered(DraftKv, 0, 128, 32)],
            L1LayoutError::NoSuchLayer(NoSuchLayer { component: DraftKv, layer: 0, layers: 0 }),
        ),
    ];
    for (regions, error) in rows {
        assert_eq!(L1Layout::registered(&layout, 4, 256, regions), Err(error), "{regions:?}");
    }
}
