//! How a request ends, drawn from the seed of the run and the number of the request.

use hicached_actors::calls::draw;

use super::{EngineConfig, Side};

/// What is decided about a request before it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fate {
    /// Whether the draft track runs for it.
    pub(super) draft: bool,
    /// How it ends.
    pub(super) end: End,
}

/// The end of a request. `at` is drawn over all of `u64` and scaled to the forwards the request turns out to need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// With its last token.
    Whole,
    /// Closed after some forwards, at least one.
    Early { at: u64 },
    /// Aborted after some forwards, perhaps none.
    Abort { at: u64 },
}

impl Fate {
    /// The fate of request `number`. Of a request that two engines serve the draft always runs, and its prompt is
    /// computed whole or not at all: nobody decodes behind less.
    pub(super) fn draw(config: &EngineConfig, number: usize, side: Option<&Side>) -> Self {
        let mut state = config.seed ^ (number as u64).wrapping_mul(0xd134_2543_de82_ef95);
        let mut is_one_of = |permille: u32| draw(&mut state) % 1_000 < u64::from(permille);
        let (abort, early) = (is_one_of(config.abort_permille), is_one_of(config.close_early_permille));
        let draft = !is_one_of(config.draftless_permille) || side.is_some();
        let at = draw(&mut state);
        let early = early && !matches!(side, Some(Side::Send { .. }));
        let end = match (abort, early) {
            (true, _) => End::Abort { at },
            (false, true) => End::Early { at },
            (false, false) => End::Whole,
        };
        Self { draft, end }
    }
}

impl End {
    /// After how many of `forwards` forwards the request stops; `None` when it runs to its end.
    pub(super) fn after(self, forwards: u64) -> Option<u64> {
        match self {
            Self::Whole => None,
            Self::Early { at } => Some(1 + at % forwards.max(1)).filter(|after| *after < forwards),
            Self::Abort { at } => Some(at % (forwards + 1)),
        }
    }
}
