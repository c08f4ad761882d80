//! What stands at each place of a prompt, in as little memory as it was given in.

use std::sync::Arc;

use hicached_actors::calls::draw;
use hicached_actors::protocol::Key;

/// The tokens of one prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Text {
    /// As they are.
    Tokens(Arc<[u32]>),
    /// By blocks of a trace; all behind them are of block `own`.
    Blocks { ids: Arc<[u64]>, block_tokens: u32, own: u64 },
    /// Whole pages known by their keys alone.
    Keys { keys: Arc<[Key]>, page_tokens: u32 },
}

impl Text {
    pub(super) fn token(&self, place: u32) -> u32 {
        match self {
            Self::Tokens(tokens) => tokens[place as usize],
            Self::Blocks { ids, block_tokens, own } => {
                token_of(ids.get((place / block_tokens) as usize).copied().unwrap_or(*own), place)
            }
            Self::Keys { keys, page_tokens } => {
                let key = u128::from_le_bytes(keys[(place / page_tokens) as usize].0);
                token_of((key as u64).wrapping_add(((key >> 64) as u64).rotate_left(32)), place)
            }
        }
    }
}

/// The token at `place` of block `block`: equal blocks hold equal tokens.
pub(super) fn token_of(block: u64, place: u32) -> u32 {
    let mut state = block.rotate_left(32) ^ u64::from(place);
    draw(&mut state) as u32
}
