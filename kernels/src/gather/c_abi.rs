//! [`gather`] for engines of other languages; `include/hicached.h` has the contract.

use std::ffi::{c_char, c_void};
use std::ptr::NonNull;

use super::{GatherError, LogicalPage, gather};
use crate::shared_bytes::SharedBytes;

/// One rank's region, as C names it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Shard {
    start: *const c_void,
    bytes: u64,
}

/// See `include/hicached.h`.
///
/// # Safety
/// `shards` points to `ranks` shards, `pages` to `page_count` numbers, each shard and `view` to as many mapped bytes as
/// they say, and `why` to `why_bytes` bytes, or is null. Nothing else writes the view, and nobody writes the pages
/// that are named.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hicached_gather(
    shards: *const Shard,
    ranks: u32,
    page_bytes: u64,
    pages: *const u32,
    page_count: u64,
    view: *mut c_void,
    view_bytes: u64,
    why: *mut c_char,
    why_bytes: u64,
) -> i32 {
    // SAFETY: so many shards stand there (contract).
    let shards: Vec<SharedBytes> = unsafe { list(shards, u64::from(ranks)) }
        .iter()
        // SAFETY: each is mapped and not written meanwhile (contract); a shard is only ever read.
        .map(|shard| unsafe { memory(shard.start.cast_mut(), shard.bytes) })
        .collect();
    // SAFETY: so many numbers stand there (contract).
    let pages: Vec<LogicalPage> = unsafe { list(pages, page_count) }.iter().copied().map(LogicalPage).collect();
    // SAFETY: so many bytes are mapped and nobody's but this call's (contract).
    let view = unsafe { memory(view, view_bytes) };
    match gather(&shards, page_bytes, &pages, view) {
        Ok(_) => 0,
        Err(error) => {
            // SAFETY: so many bytes are there to be written (contract).
            unsafe { say(why, why_bytes, &error.to_string()) };
            code(error)
        }
    }
}

/// The list of `count` entries from `start` on; empty when there is none.
///
/// # Safety
/// They are there, and nobody writes them.
unsafe fn list<'a, T>(start: *const T, count: u64) -> &'a [T] {
    if start.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: the contract of this function.
    unsafe { std::slice::from_raw_parts(start, count as usize) }
}

/// # Safety
/// As [`SharedBytes::new`]; a null pointer stands for no bytes.
unsafe fn memory(start: *mut c_void, bytes: u64) -> SharedBytes {
    match NonNull::new(start.cast::<u8>()) {
        // SAFETY: the contract of this function.
        Some(start) => unsafe { SharedBytes::new(start, bytes) },
        // SAFETY: no byte of it is ever touched.
        None => unsafe { SharedBytes::new(NonNull::<u128>::dangling().cast(), 0) },
    }
}

/// Writes as much of `text` as fits, and a zero behind it.
///
/// # Safety
/// `into` has `bytes` bytes, or is null.
unsafe fn say(into: *mut c_char, bytes: u64, text: &str) {
    if into.is_null() || bytes == 0 {
        return;
    }
    let length = text.len().min(bytes as usize - 1);
    // SAFETY: the text and the zero fit (above), into memory of the caller alone (contract).
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast::<c_char>(), into, length);
        into.add(length).write(0);
    }
}

fn code(error: GatherError) -> i32 {
    match error {
        GatherError::Ranks { .. } => 1,
        GatherError::PageBytes { .. } => 2,
        GatherError::ShardBytes { .. } => 3,
        GatherError::Overlap { .. } => 4,
        GatherError::Misaligned => 5,
        GatherError::ViewBytes { .. } => 6,
        GatherError::Page { .. } => 7,
    }
}
