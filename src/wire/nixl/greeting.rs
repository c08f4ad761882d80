//! How a connection begins, in the order of bytes that it crosses. All numbers are little-endian.
//!
//! ```text
//! sender    magic 4 | version 2 | 0 2 | berths 4 | bytes of one berth 8
//! receiver  magic 4 | version 2 | 0 2 | bytes of the description 4 | address of the berths 8 | description
//! ```
//!
//! Behind it come frames of the backend `tcp` without the bytes of their pages, and back their acknowledgements.

use std::io;

use super::berths::Cut;

/// The receiver's half, without the description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Welcome {
    pub(super) description_bytes: usize,
    pub(super) address: u64,
}

/// The sender's half.
pub(super) fn ask(cut: Cut) -> [u8; BYTES] {
    encode(cut.berths, cut.berth_bytes)
}

/// Reads the sender's half.
///
/// # Errors
/// It is none of this version, or asks for more memory than there may be.
pub(super) fn asked(bytes: &[u8; BYTES]) -> io::Result<Cut> {
    let (berths, berth_bytes) = decode(bytes)?;
    let cut = Cut { berth_bytes, berths };
    cut.bytes().map(|_| cut).ok_or_else(|| wrong("a greeting that asks for no memory, or for too much"))
}

/// The receiver's half.
///
/// # Errors
/// A description that is longer than any.
pub(super) fn answer(address: u64, description: &[u8]) -> io::Result<Vec<u8>> {
    if description.len() > DESCRIPTION_BYTES_MAX {
        return Err(wrong("a description that is too long"));
    }
    Ok([&encode(description.len() as u32, address)[..], description].concat())
}

/// Reads the receiver's half.
///
/// # Errors
/// It is none of this version.
pub(super) fn answered(bytes: &[u8; BYTES]) -> io::Result<Welcome> {
    let (description_bytes, address) = decode(bytes)?;
    let description_bytes = description_bytes as usize;
    if description_bytes > DESCRIPTION_BYTES_MAX {
        return Err(wrong("a description that is too long"));
    }
    Ok(Welcome { description_bytes, address })
}

fn encode(short: u32, long: u64) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
    bytes[8..12].copy_from_slice(&short.to_le_bytes());
    bytes[12..].copy_from_slice(&long.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8; BYTES]) -> io::Result<(u32, u64)> {
    let (head, rest) = bytes.split_at(8);
    if head[..4] != MAGIC || head[4..6] != VERSION.to_le_bytes() {
        return Err(wrong("no greeting of this version"));
    }
    let (short, long) = rest.split_at(4);
    let short = u32::from_le_bytes(short.try_into().expect("four bytes"));
    Ok((short, u64::from_le_bytes(long.try_into().expect("eight bytes"))))
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Bytes of either half, without the description.
pub(super) const BYTES: usize = 20;
const MAGIC: [u8; 4] = *b"HCnx";
const VERSION: u16 = 1;
/// An agent with many devices describes itself in some thousand bytes.
const DESCRIPTION_BYTES_MAX: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_read_back_and_what_is_no_greeting_is_refused() {
        let cut = Cut { berth_bytes: 1 << 20, berths: 16 };
        assert_eq!(asked(&ask(cut)).expect("a greeting"), cut);
        let welcome = answer(0xdead_beef, b"me").expect("short");
        let (head, description) = welcome.split_first_chunk().expect("a head");
        assert_eq!(answered(head).expect("a welcome"), Welcome { description_bytes: 2, address: 0xdead_beef });
        assert_eq!(description, b"me");
        assert!(answer(1, &vec![0; DESCRIPTION_BYTES_MAX + 1]).is_err());
        for (at, byte, what) in [(0, b'G', "magic"), (4, 9, "version"), (19, 1, "bytes"), (11, 255, "berths")] {
            let mut bytes = ask(cut);
            bytes[at] = byte;
            assert!(asked(&bytes).is_err(), "{what}");
        }
        assert!(asked(&ask(Cut { berths: 0, ..cut })).is_err(), "no berths");
        assert!(answered(&encode(u32::MAX, 1)).is_err(), "a description without end");
    }
}
