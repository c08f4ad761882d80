//! Checksums of stored records, one per component: a diagnostic that reads every byte, off in measured runs.

use hicached_kernels::layout::{Component, HostPage, Layout};

use super::page_table::{Sums, mix};
use super::pool_file::PoolFile;

/// The checksums of the record in `slot`, which the pool has.
pub(super) fn sums_of(pool: &PoolFile, layout: &Layout, slot: u32) -> Sums {
    Component::ALL.map(|component| sum_of(pool, layout, slot, component))
}

/// The first component of the record in `slot` that is not what `sums` say.
pub(super) fn damaged_component(pool: &PoolFile, layout: &Layout, slot: u32, sums: &Sums) -> Option<Component> {
    Component::ALL.into_iter().zip(sums).find(|(c, sum)| sum_of(pool, layout, slot, *c) != **sum).map(|(c, _)| c)
}

fn sum_of(pool: &PoolFile, layout: &Layout, slot: u32, component: Component) -> u64 {
    let mut sum = 0;
    for layer in 0..layout.layers(component) {
        let piece = layout.piece(component, layer).expect("a layer of this layout");
        let offset = layout.host_offset(HostPage(slot), component, layer).expect("a layer of this layout");
        let mut bytes = vec![0; piece.page_bytes as usize];
        pool.read_records(offset, &mut bytes).expect("records of the pool's slots lie inside it");
        let words: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        sum = mix(sum, &words);
    }
    sum
}
