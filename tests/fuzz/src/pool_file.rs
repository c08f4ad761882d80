//! A pool file that something has written over: attaching it is refused with a reason, or gives the rows whose
//! seal is right and no others.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use hicached::rank::{CopyThreads, PoolFile, PoolSpec, RankHost, RankSetup, layout_of};
use hicached_actors::host::Output;
use hicached_actors::machine::Machine as _;
use hicached_actors::protocol::*;

use crate::rank::{LIFE, SLOTS, manifest};
use crate::scratch::Scratch;
use crate::source::Source;
use crate::speaker::Speaker;

/// Edits of a whole pool file, then an attempt to attach it; see `edit`. The first byte says whether sums are
/// mended afterwards: bit 0 that of the header, the other bits those of as many rows.
pub fn pool_file(data: &[u8]) {
    let mut src = Source::new(data);
    let mended = src.u8();
    let mut bytes = image().clone();
    for _ in 0..EDITS_MAX {
        if src.is_empty() {
            break;
        }
        edit(&mut bytes, &mut src);
    }
    if mended & 1 != 0 {
        mend(&mut bytes, 0, HEADER_WORDS - 1, 0, 0);
    }
    for slot in 0..SLOTS.min(7) {
        if mended >> (slot + 1) & 1 != 0 {
            mend(&mut bytes, row_at(slot), SEAL_WORD, u64::from(slot), 1);
        }
    }
    let wanted: Vec<Row> = (0..SLOTS).filter_map(|slot| sealed(&bytes, slot)).collect();
    let boot_is_kept = words::<2>(&bytes, BOOT_AT) == words::<2>(image(), BOOT_AT);
    let scratch = Scratch::holding("pool", &bytes);
    if let Some(found) = inventory(scratch.path()) {
        // A pool of another boot is void.
        let wanted = if boot_is_kept { wanted } else { Vec::new() };
        assert_eq!(found, wanted);
    }
}

/// Writes over words or bytes, copies a part over another, or cuts or stretches the file.
fn edit(bytes: &mut Vec<u8>, src: &mut Source<'_>) {
    let kind = src.u8();
    let at = usize::from(src.u16()) % bytes.len().max(1);
    match kind % 5 {
        0 => write(bytes, at / 8 * 8, &src.number().to_ne_bytes()),
        1 => {
            let len = usize::from(src.u8());
            write(bytes, at, src.take(len));
        }
        2 => {
            let from = usize::from(src.u16()) % bytes.len().max(1);
            let part = bytes[from..(from + 128).min(bytes.len())].to_vec();
            write(bytes, at, &part);
        }
        // The header and the table alone: what lies behind is not read.
        3 => write(bytes, at % (HEADER_WORDS * 8), &[src.u8()]),
        _ => bytes.resize(usize::from(src.u16()), 0xff),
    }
}

fn write(bytes: &mut [u8], at: usize, with: &[u8]) {
    let len = with.len().min(bytes.len().saturating_sub(at));
    if let Some(part) = bytes.get_mut(at..at + len) {
        part.copy_from_slice(&with[..len]);
    }
}

type Row = (u32, Key, Key, Key, u32, u32);

/// What a rank that starts on the file says of it; nothing when it does not start.
fn inventory(path: &Path) -> Option<Vec<Row>> {
    static COPIES: OnceLock<Arc<CopyThreads>> = OnceLock::new();
    let copies = COPIES.get_or_init(|| CopyThreads::start(1).expect("threads")).clone();
    let setup = RankSetup {
        manifest: manifest(),
        rank: Rank(0),
        incarnation: LIFE,
        pool_file: path.to_owned(),
        host_slots: SLOTS,
        fingerprints: false,
        payload_bytes_max: 1 << 20,
        wire: None,
    };
    let mut host = match RankHost::start(setup, copies, Arc::new(|| ())) {
        Ok(host) => host,
        Err(refused) => {
            assert!(!refused.to_string().is_empty());
            return None;
        }
    };
    let (control, mut speaker) = (Incarnation([0xC0; 16]), Speaker::default());
    let mut out = Output::default();
    let messages: [RankIn; 2] = [Adopt { lease_ms: 1_000 }.into(), Inventory { cursor: 0 }.into()];
    for message in messages {
        let (kind, body) = (message.code().to_owned(), message.encode_body());
        let said = speaker.plain(Address::Index, control, OpId::default(), kind, body);
        host.deliver(Time::ZERO, &said.bytes, None, None, &mut out);
    }
    host.machine().check_invariants();
    let part = out.parcels.iter().find_map(|parcel| {
        let envelope = Envelope::decode(&parcel.bytes).ok()?;
        match IndexNews::decode_body(&envelope.kind, &envelope.body.0)?.ok()? {
            IndexNews::InventoryPart(part) => Some(part),
            _ => None,
        }
    });
    let rows = part.expect("an adopted rank shows its page table").rows;
    Some(rows.iter().map(|row| (row.slot, row.key, row.parent, row.salt, row.position, row.generation)).collect())
}

/// A whole pool file with two sealed rows, made once.
fn image() -> &'static Vec<u8> {
    static IMAGE: OnceLock<Vec<u8>> = OnceLock::new();
    IMAGE.get_or_init(|| {
        let (scratch, manifest) = (Scratch::new("whole"), manifest());
        let layout = layout_of(&manifest).expect("a layout of these sizes");
        let spec = PoolSpec { manifest: &manifest, layout: &layout, rank: Rank(0), slots: SLOTS };
        let pool = PoolFile::create(scratch.path(), spec).expect("room for a small file");
        for slot in [1, 4] {
            let generation = pool.table().reserve(slot);
            let [key, parent, salt] = [1, 2, 3].map(|of| Key([slot as u8 * 16 + of; 16]));
            let sums = (slot == 4).then_some([5; 4]);
            pool.table().seal(slot, &hicached::rank::Row { key, parent, salt, position: slot, generation, sums });
        }
        drop(pool);
        let bytes = std::fs::read(scratch.path()).expect("it was just made");
        assert_eq!((0..SLOTS).filter_map(|slot| sealed(&bytes, slot)).count(), 2, "the format is the one written here");
        bytes
    })
}

/// The row of `slot` in the bytes of a file when its seal is right, read without the code that is under test.
fn sealed(bytes: &[u8], slot: u32) -> Option<Row> {
    let at = row_at(slot);
    let words = words::<{ SEAL_WORD + 1 }>(bytes, at)?;
    let sum = sum(u64::from(slot), &words[..SEAL_WORD]) | 1;
    let key = |of: usize| Key((u128::from(words[of]) | u128::from(words[of + 1]) << 64).to_le_bytes());
    (words[SEAL_WORD] == sum).then(|| (slot, key(0), key(2), key(4), words[6] as u32, words[7] as u32))
}

/// Puts the right sum behind `count` words at `at`.
fn mend(bytes: &mut [u8], at: usize, count: usize, seed: u64, least: u64) {
    let end = at + count * 8;
    let Some(part) = bytes.get(at..end) else { return };
    let words: Vec<u64> = part.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
    write(bytes, end, &(sum(seed, &words) | least).to_ne_bytes());
}

fn words<const N: usize>(bytes: &[u8], at: usize) -> Option<[u64; N]> {
    let part = bytes.get(at..at + N * 8)?;
    let words = part.as_chunks::<8>().0;
    Some(std::array::from_fn(|of| u64::from_ne_bytes(words[of])))
}

fn row_at(slot: u32) -> usize {
    TABLE_AT + slot as usize * 128
}

/// The sum of a header and of a row.
fn sum(seed: u64, words: &[u64]) -> u64 {
    let mut hash = seed ^ u64::from_be_bytes(*b"hicached");
    for word in words {
        hash = (hash ^ word).rotate_left(29).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
    hash ^= hash >> 32;
    hash.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (hash >> 29)
}

/// Header, words and load ring stand before it, each from a page on.
const TABLE_AT: usize = 3 * 4_096;
/// 16 compared fields, two words of the boot, the sum.
const HEADER_WORDS: usize = 19;
const BOOT_AT: usize = 16 * 8;
/// Words of a row before its seal.
const SEAL_WORD: usize = 13;
const EDITS_MAX: usize = 200;
