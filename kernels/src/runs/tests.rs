use super::*;
use proptest::prelude::*;

type Pairs<'a> = &'a [(u32, u32)];

fn merge(pairs: Pairs) -> Result<Runs, RunsError> {
    let (l1, host): (Vec<_>, Vec<_>) = pairs.iter().map(|&(l1, host)| (L1Page(l1), HostPage(host))).unzip();
    Runs::merge(&l1, &host)
}

fn run(l1_page: u32, host_page: u32, pages: u32) -> Run {
    Run { l1_page: L1Page(l1_page), host_page: HostPage(host_page), pages }
}

#[test]
fn pages_merge_only_while_both_sides_go_on() {
    let rows: [(Pairs, &[Run]); 7] = [
        (&[], &[]),
        (&[(7, 3)], &[run(7, 3, 1)]),
        (&[(7, 3), (8, 4), (9, 5)], &[run(7, 3, 3)]),
        (&[(7, 3), (8, 5)], &[run(7, 3, 1), run(8, 5, 1)]),
        (&[(7, 3), (9, 4)], &[run(7, 3, 1), run(9, 4, 1)]),
        (&[(8, 4), (7, 3)], &[run(8, 4, 1), run(7, 3, 1)]),
        (
            &[(u32::MAX - 1, u32::MAX - 1), (u32::MAX, u32::MAX), (0, 0)],
            &[run(u32::MAX - 1, u32::MAX - 1, 2), run(0, 0, 1)],
        ),
    ];
    for (pairs, expected) in rows {
        let runs = merge(pairs).unwrap();
        assert_eq!(runs.as_slice(), expected, "{pairs:?}");
        assert_eq!((runs.run_count(), runs.pages() as usize), (expected.len(), pairs.len()), "{pairs:?}");
    }
}

#[test]
fn the_ends_are_one_behind_the_highest_page_of_each_side() {
    let runs = merge(&[(u32::MAX, 1), (4, 90), (5, 91), (6, 0)]).unwrap();
    assert_eq!((runs.l1_end(), runs.host_end()), (1 << 32, 92));
    let none = merge(&[]).unwrap();
    assert_eq!((none.l1_end(), none.host_end()), (0, 0));
}

#[test]
fn pairs_that_are_no_pairs_are_refused() {
    let unpaired = Runs::merge(&[L1Page(1)], &[]);
    assert_eq!(unpaired, Err(RunsError::LengthsDiffer { l1_pages: 1, host_pages: 0 }));
    let rows: [(Pairs, RunsError); 4] = [
        (&[(5, 1), (5, 9)], RunsError::L1PageTwice { page: L1Page(5) }),
        (&[(4, 1), (5, 2), (6, 3), (5, 9)], RunsError::L1PageTwice { page: L1Page(5) }),
        (&[(5, 1), (6, 1)], RunsError::HostPageTwice { page: HostPage(1) }),
        (&[(1, 10), (2, 11), (9, 9), (10, 10)], RunsError::HostPageTwice { page: HostPage(10) }),
    ];
    for (pairs, error) in rows {
        assert_eq!(merge(pairs), Err(error), "{pairs:?}");
    }
}

#[test]
fn a_run_is_cut_where_its_host_pages_leave_a_tile() {
    let rows: [(Run, u32, &[Run]); 5] = [
        (run(20, 0, 3), 1, &[run(20, 0, 1), run(21, 1, 1), run(22, 2, 1)]),
        (run(20, 3, 10), 4, &[run(20, 3, 1), run(21, 4, 4), run(25, 8, 4), run(29, 12, 1)]),
        (run(20, 8, 8), 8, &[run(20, 8, 8)]),
        (run(20, 9, 2), 8, &[run(20, 9, 2)]),
        (run(0, u32::MAX - 1, 2), 16, &[run(0, u32::MAX - 1, 2)]),
    ];
    for (whole, tile_pages, parts) in rows {
        assert_eq!(whole.parts_in_tiles(tile_pages).collect::<Vec<_>>(), parts, "{whole:?} in tiles of {tile_pages}");
    }
}

proptest! {
    #[test]
    fn runs_name_the_pairs_they_were_made_of_and_no_neighbours_could_merge(
        starts in prop::collection::vec((0_u32..40, 0_u32..40), 0..12),
    ) {
        // Pairs from overlapping stretches, without those that would repeat a page.
        let mut pairs: Vec<(u32, u32)> = Vec::new();
        for (l1, host) in starts.iter().flat_map(|&(l1, host)| (0..4).map(move |i| (l1 + i, host + i))) {
            if pairs.iter().all(|&(other_l1, other_host)| other_l1 != l1 && other_host != host) {
                pairs.push((l1, host));
            }
        }
        let runs = merge(&pairs).unwrap();
        let named: Vec<(u32, u32)> = runs
            .as_slice()
            .iter()
            .flat_map(|run| (0..run.pages).map(|i| (run.l1_page.0 + i, run.host_page.0 + i)))
            .collect();
        prop_assert_eq!(&named, &pairs);
        for pair in runs.as_slice().windows(2) {
            let next = (u64::from(pair[1].l1_page.0), u64::from(pair[1].host_page.0));
            prop_assert_ne!((pair[0].l1_end(), pair[0].host_end()), next);
        }
    }
}
