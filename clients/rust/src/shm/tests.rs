use super::*;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A file of one test, removed at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("hicached-shm-{}-{test}", std::process::id()));
        std::fs::remove_file(&path).ok();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).ok();
    }
}

#[test]
fn two_mappings_of_a_file_see_the_same_words_and_bytes() {
    let scratch = Scratch::new("two-mappings");
    let rank = Arc::new(Segment::create(&scratch.0, 8_192).unwrap());
    let engine = Arc::new(Segment::open(&scratch.0).unwrap());
    let (mine, theirs) = (Words::at(rank.clone(), 4_096).unwrap(), Words::at(engine.clone(), 4_096).unwrap());
    theirs.advance(Track::Draft, word_value(3, 1, 1));
    assert_eq!((mine.value(Track::Target), mine.value(Track::Draft)), (0, 7));
    theirs.advance(Track::Draft, 5);
    assert_eq!(mine.value(Track::Draft), 7, "words never fall");
    engine.write(8, &[7; 16]).unwrap();
    let mut bytes = [0; 32];
    rank.read(0, &mut bytes).unwrap();
    assert_eq!(bytes[..], [[0; 8], [7; 8], [7; 8], [0; 8]].concat());
}

#[test]
fn places_outside_a_segment_or_across_words_are_refused_and_nothing_is_written() {
    let scratch = Scratch::new("ranges");
    let segment = Arc::new(Segment::create(&scratch.0, 4_096).unwrap());
    for (offset, bytes) in [(4_096, 8), (4_092, 8), (4, 8), (0, 12), (u64::MAX - 7, 8), (4_088, 16)] {
        assert!(matches!(segment.write(offset, &vec![1; bytes]), Err(ShmError::Range { .. })), "{offset}+{bytes}");
    }
    let mut all = vec![1; 4_096];
    segment.read(0, &mut all).unwrap();
    assert_eq!(all, vec![0; 4_096]);
    assert!(Words::at(segment.clone(), 4_096 - 64).is_err() && Words::at(segment.clone(), u64::MAX).is_err());
    assert!(LoadRing::at(segment.clone(), 8).is_err() && LoadRing::at(segment, 0).is_ok());
    assert!(matches!(Segment::create(&scratch.0, 16), Err(ShmError::Io { doing: "create", .. })));
    assert!(matches!(Segment::open(Path::new("/nonexistent")), Err(ShmError::Io { doing: "open", .. })));
}

#[test]
fn one_segment_at_a_time_holds_the_lock() {
    let scratch = Scratch::new("lock");
    let first = Segment::create(&scratch.0, 64).unwrap();
    let second = Segment::open(&scratch.0).unwrap();
    assert!(first.try_lock().unwrap());
    assert!(!second.try_lock().unwrap());
    drop(first);
    assert!(second.try_lock().unwrap());
}

#[test]
fn a_step_is_passed_at_its_end_value_and_not_before() {
    for (step, layers) in [(1, 1), (1, 12), (7, 78), (1_000_000, 3)] {
        assert_eq!(passed_step(word_value(step, layers, layers), layers), step);
        assert_eq!(passed_step(word_value(step, layers, layers) - 1, layers), step - 1);
        assert_eq!(passed_step(word_value(step + 1, layers, 0), layers), step);
    }
    assert_eq!((passed_step(0, 12), passed_step(0, 0)), (0, u64::MAX));
    assert_eq!(word_value(u64::MAX, 12, 3), u64::MAX);
}

#[test]
fn a_load_status_changes_once_and_who_loses_is_told() {
    let scratch = Scratch::new("ring");
    let ring = LoadRing::at(Arc::new(Segment::create(&scratch.0, LOAD_RING_BYTES).unwrap()), 0).unwrap();
    let taken = |state| Err(SlotTaken { state });
    assert_eq!(ring.state(63, 5), LoadState::Pending, "not begun is pending");

    assert_eq!(ring.begin(63, 5), Ok(()));
    ring.advance(63, 5 * 14 + 3);
    assert_eq!(ring.finish(63, 5), Ok(()));
    assert_eq!(ring.fail(63, 5, 5 * 14 + 13), taken(LoadState::Done));
    assert_eq!((ring.value(63), ring.state(63, 5)), (5 * 14 + 13, LoadState::Done));

    assert_eq!(ring.fail(63, 6, 6 * 14 + 13), Ok(()), "the client gives up before the rank has begun");
    assert_eq!(ring.begin(63, 6), taken(LoadState::Failed));
    assert_eq!(ring.finish(63, 6), taken(LoadState::Failed));
    assert_eq!(ring.value(63), 6 * 14 + 13, "nobody waits on");

    assert_eq!(ring.fail(63, 4, 4 * 14 + 13), taken(LoadState::Superseded));
    ring.begin_anew(63, 1, 14);
    assert_eq!((ring.value(63), ring.state(63, 1)), (14, LoadState::Pending));
    assert_eq!((ring.value(62), ring.state(62, 1)), (0, LoadState::Pending), "its neighbour is untouched");
}
