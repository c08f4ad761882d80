//! A pool file looked at from outside, beside the rank that holds it: what is sealed in it.

use std::path::Path;
use std::sync::Arc;

use hicached_client::shm::Segment;

use super::page_table::{PageTable, Row};
use super::pool_file::{PoolError, PoolFile};

/// The page table of a pool file, mapped for reading alone and without a lock.
#[derive(Debug)]
pub struct PoolView {
    table: PageTable,
}

impl PoolView {
    /// Looks at the file at `path`.
    ///
    /// # Errors
    /// [`PoolError::Torn`] when it is no pool file; [`PoolError::Shm`] when it cannot be mapped.
    pub fn open(path: &Path) -> Result<Self, PoolError> {
        let segment = Segment::open_to_read(path)?;
        let (offset, slots) = PoolFile::table_place(&segment)?;
        Ok(Self { table: PageTable::at(Arc::new(segment), offset, slots)? })
    }

    /// The rows that are sealed and whole at the moment they are read, with their slots.
    pub fn sealed(&self) -> impl Iterator<Item = (u32, Row)> {
        (0..self.table.slots()).filter_map(|slot| Some((slot, self.table.sealed(slot)?)))
    }
}
