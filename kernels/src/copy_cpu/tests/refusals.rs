//! Whatever is wrong with a call is told before the first byte moves.

use super::*;

/// What a call down and the same call up answer with pools of 4 device and 5 host pages. The destinations are
/// poisoned and must stay so.
fn refused(track: Track, layer: u32, pairs: &[(u32, u32)]) -> (Result<u64, CopyError>, Result<u64, CopyError>) {
    let layout = mixed_layout(4);
    let l1_layout = L1Layout::packed(&layout, 4);
    let l1 = Memory::poisoned(l1_layout.segment_bytes());
    let host = Memory::poisoned(layout.host_pool_bytes(5));
    let pools = Pools { layout: &layout, l1_layout: &l1_layout, l1: l1.shared(), host: host.shared(), host_pages: 5 };
    let results = [Direction::Down, Direction::Up].map(|direction| {
        let source = Memory::new(4096, mark);
        let pools = match direction {
            Direction::Down => Pools { l1: source.shared(), ..pools },
            Direction::Up => Pools { host: source.shared(), ..pools },
        };
        pools.copy_layer(direction, track, layer, &runs(pairs))
    });
    assert!(l1.bytes().iter().chain(&host.bytes()).all(|&byte| byte == POISON), "a refused copy wrote");
    results.into()
}

#[test]
fn one_bad_index_fails_the_call_and_nothing_is_written() {
    let out_of = |pool, page, pages| CopyError::PageOutOfPool { pool, page, pages };
    let rows: [(&[(u32, u32)], CopyError); 5] = [
        (&[(1, 1), (4, 2)], out_of(Pool::L1, 4, 4)),
        (&[(1, 1), (2, 5)], out_of(Pool::Host, 5, 5)),
        // The last tile has room for page 7, the pool does not have it.
        (&[(1, 1), (2, 7)], out_of(Pool::Host, 7, 5)),
        (&[(2, 0), (3, 1), (4, 2), (5, 3)], out_of(Pool::L1, 5, 4)),
        (&[(u32::MAX, 0), (0, 1)], out_of(Pool::L1, u64::from(u32::MAX), 4)),
    ];
    for (pairs, error) in rows {
        assert_eq!(refused(Track::Target, 0, pairs), (Err(error), Err(error)), "{pairs:?}");
    }
}

#[test]
fn a_layer_that_no_track_has_is_refused() {
    for (track, layer, layers) in [(Track::Target, 2, 2), (Track::Draft, 1, 1), (Track::Draft, u32::MAX, 1)] {
        let error = CopyError::NoSuchLayer(NoSuchLayer { component: track.kv(), layer, layers });
        assert_eq!(refused(track, layer, &[(1, 1)]), (Err(error), Err(error)), "{track} {layer}");
    }
}

#[test]
fn memory_that_does_not_fit_its_layout_is_refused() {
    let layout = mixed_layout(4);
    let l1_layout = L1Layout::packed(&layout, 4);
    let (l1_bytes, host_bytes) = (l1_layout.segment_bytes(), layout.host_pool_bytes(5));
    let l1 = Memory::new(l1_bytes + 16, mark);
    let host = Memory::poisoned(host_bytes + 16);
    let good = Pools { layout: &layout, l1_layout: &l1_layout, l1: l1.shared(), host: host.shared(), host_pages: 5 };
    let rows = [
        (
            Pools { l1: l1.shared_from(0, l1_bytes - 1), ..good },
            CopyError::PoolTooSmall { pool: Pool::L1, bytes: l1_bytes - 1, needed_bytes: l1_bytes },
        ),
        (
            Pools { host: host.shared_from(0, host_bytes - 16), ..good },
            CopyError::PoolTooSmall { pool: Pool::Host, bytes: host_bytes - 16, needed_bytes: host_bytes },
        ),
        (Pools { l1: l1.shared_from(8, l1_bytes), ..good }, CopyError::PoolMisaligned { pool: Pool::L1 }),
        (Pools { host: host.shared_from(1, host_bytes), ..good }, CopyError::PoolMisaligned { pool: Pool::Host }),
    ];
    for (pools, error) in rows {
        assert_eq!(pools.copy_layer(Direction::Down, Track::Target, 0, &runs(&[(1, 1)])), Err(error));
        assert_eq!(pools.fingerprint_host_record(HostPage(1)), Err(error));
        assert_eq!(pools.fingerprint_l1_page(L1Page(1)), Err(error));
    }
    assert!(host.bytes().iter().all(|&byte| byte == POISON));
    assert_eq!(good.copy_layer(Direction::Down, Track::Target, 0, &runs(&[(1, 1)])), Ok(48));
}

#[test]
fn pools_that_share_memory_are_refused() {
    let layout = mixed_layout(1);
    let l1_layout = L1Layout::packed(&layout, 2);
    let memory = Memory::new(4 * 144, mark);
    let l1 = memory.shared_from(0, 2 * 144);
    for (host_offset, result) in [(0, Err(CopyError::PoolsOverlap)), (272, Err(CopyError::PoolsOverlap)), (288, Ok(48))]
    {
        let host = memory.shared_from(host_offset, 2 * 144);
        let pools = Pools { layout: &layout, l1_layout: &l1_layout, l1, host, host_pages: 2 };
        let before = memory.bytes();
        assert_eq!(pools.copy_layer(Direction::Up, Track::Target, 0, &runs(&[(1, 1)])), result, "{host_offset}");
        assert_eq!(memory.bytes() == before, result.is_err(), "{host_offset}");
    }
}

#[test]
fn a_device_pool_described_for_other_pages_is_refused() {
    let layout = mixed_layout(1);
    let components = |kv, index| vec![(TargetKv, vec![32, kv]), (TargetIndex, index)];
    let l1 = Memory::new(4096, mark);
    let host = Memory::poisoned(layout.host_pool_bytes(2));
    let rows = [
        (
            components(64, vec![16, 0]),
            CopyError::PageBytesDiffer { component: TargetKv, layer: 1, l1_bytes: 64, host_bytes: 48 },
        ),
        (
            components(48, vec![16, 16]),
            CopyError::PageBytesDiffer { component: TargetIndex, layer: 1, l1_bytes: 16, host_bytes: 0 },
        ),
        (
            vec![(TargetKv, vec![32, 48])],
            CopyError::NoSuchLayer(NoSuchLayer { component: TargetIndex, layer: 1, layers: 0 }),
        ),
    ];
    for (components, error) in rows {
        let other = Layout::new(64, components, 1).unwrap();
        let l1_layout = L1Layout::packed(&other, 2);
        let pools =
            Pools { layout: &layout, l1_layout: &l1_layout, l1: l1.shared(), host: host.shared(), host_pages: 2 };
        assert_eq!(pools.copy_layer(Direction::Down, Track::Target, 1, &runs(&[(1, 1)])), Err(error));
        assert!(pools.fingerprint_l1_page(L1Page(1)).is_err());
    }
    assert!(host.bytes().iter().all(|&byte| byte == POISON));
}

#[test]
fn a_fingerprint_of_a_page_outside_its_pool_is_refused() {
    let layout = mixed_layout(8);
    let l1_layout = L1Layout::packed(&layout, 2);
    let l1 = Memory::new(l1_layout.segment_bytes(), mark);
    let host = Memory::new(layout.host_pool_bytes(3), mark);
    let pools = Pools { layout: &layout, l1_layout: &l1_layout, l1: l1.shared(), host: host.shared(), host_pages: 3 };
    let out_of = |pool, page, pages| CopyError::PageOutOfPool { pool, page, pages };
    assert_eq!(pools.fingerprint_l1_page(L1Page(2)), Err(out_of(Pool::L1, 2, 2)));
    assert_eq!(pools.fingerprint_host_record(HostPage(3)), Err(out_of(Pool::Host, 3, 3)));
}
