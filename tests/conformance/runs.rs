//! How many runs a long prompt takes when both ends are contiguous.

use hicached::wire::tcp::Tcp;

use crate::world::{Plan, World};

/// 128K tokens are 2,048 pages. One chunk is 16 segments of 128 pages, two for each rank.
#[test]
fn a_chunk_of_2_048_pages_from_8_ranks_is_16_runs_a_buffer() {
    let segment = |position: u32| position / 128;
    let owners: Vec<u8> = (0..2_048).map(|position| segment(position).min(15 - segment(position)) as u8).collect();
    let world = World::new(&Tcp::default(), 8, 2_049);
    let plan = Plan::contiguous(&owners);
    let figures = world.transfer(&plan).expect("arrives");
    let buffers = world.pool.buffers().as_slice().len() as u64;
    let runs: u64 = figures.iter().map(|figures| figures.runs).sum();
    println!("{} runs a buffer over all ranks, {buffers} buffers", runs / buffers);
    assert!(runs <= 16 * buffers, "{runs} runs of {buffers} buffers");
    // Rank 7's two segments follow each other.
    assert_eq!(figures.iter().map(|figures| figures.runs / buffers).collect::<Vec<_>>(), [2, 2, 2, 2, 2, 2, 2, 1]);
    world.owners_are_reported(&plan).expect("all of it");
    world.bytes_are_right(&plan).expect("right bytes");
}
