//! What a conversation has spoken of: a fuzzer that guesses 16 bytes never names an op that exists.

use hicached_actors::protocol::Incarnation;

use crate::source::Source;

/// Names and values worth saying again.
#[derive(Debug)]
pub(crate) struct Known {
    /// Ops, keys and lives alike: 16 bytes each, in the order in which they were first said.
    ids: Vec<[u8; 16]>,
    /// The manifest of the group, encoded.
    pub(crate) manifest: Vec<u8>,
    /// Regions of an engine's pool, encoded; empty where nobody has a pool.
    pub(crate) regions: Vec<u8>,
    /// Path of an engine's pool.
    pub(crate) segment: String,
    /// Ranks of the group.
    pub(crate) cp_size: u8,
}

impl Known {
    pub(crate) fn new(life: Incarnation, cp_size: u8, manifest: Vec<u8>) -> Self {
        let (regions, segment) = (Vec::new(), String::new());
        Self { ids: vec![[0; 16], life.0], manifest, regions, segment, cp_size }
    }

    /// Keeps every id that stands in an encoded message.
    pub(crate) fn learn(&mut self, message: &[u8]) {
        for (at, _) in message.iter().enumerate().filter(|(_, byte)| **byte == BIN_8) {
            match message.get(at + 1..) {
                Some([16, rest @ ..]) if rest.len() >= 16 => self.keep(&rest[..16]),
                // Envelopes carry their body as one such list, keys several at once.
                Some(_) | None => {}
            }
        }
    }

    fn keep(&mut self, id: &[u8]) {
        let Ok(id) = id.try_into() else { return };
        if self.ids.len() < IDS_MAX && !self.ids.contains(&id) {
            self.ids.push(id);
        }
    }

    /// An id that was said before, the newest ones first; or one of a few that were not.
    pub(crate) fn id(&self, src: &mut Source<'_>) -> [u8; 16] {
        match src.u8() {
            255 => src.array(),
            fresh @ 224..=254 => [fresh; 16],
            zero @ 222..=223 => self.ids[usize::from(zero - 222)],
            back => self.ids[self.ids.len() - 1 - usize::from(back) % self.ids.len()],
        }
    }
}

/// The marker of a short list of bytes in MessagePack.
const BIN_8: u8 = 0xc4;
/// As many as one byte can choose from, and less.
const IDS_MAX: usize = 200;
