//! What a seed draws before its world begins: sizes, policies and how unkind the world is.

use crate::chance::Chance;

/// Sizes and policies of a group.
#[derive(Clone, Debug)]
pub struct Sizes {
    /// Ranks.
    pub cp: u8,
    /// Usable L1 pages of each rank, without the padding page.
    pub l1_pages: u32,
    /// Host slots of each rank.
    pub l2_pages: u32,
    /// Tokens in a page.
    pub page_tokens: u32,
    /// Layers of the target track.
    pub target_layers: u32,
    /// Layers of the draft track, 0 without a draft model.
    pub draft_layers: u32,
    /// Whether index components exist.
    pub index_components: bool,
    /// Whether a page's key also covers the token after it.
    pub lookahead: u32,
    /// Tokens that a match leaves to compute.
    pub compute_tokens_min: u32,
    /// When host copies are made.
    pub write: Write,
    /// Whether the evictor works ahead of need.
    pub free_room: bool,
}

/// When host copies are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// With the step that computes the page.
    Through,
    /// From the second `open` that covers the page.
    Selective,
    /// When the page leaves L1.
    Back,
}

impl Default for Sizes {
    /// The sizes of a field case unless it says otherwise.
    fn default() -> Self {
        Self {
            cp: 1,
            l1_pages: 64,
            l2_pages: 64,
            page_tokens: 64,
            target_layers: 12,
            draft_layers: 1,
            index_components: false,
            lookahead: 0,
            compute_tokens_min: 0,
            write: Write::Through,
            free_room: false,
        }
    }
}

/// How unkind the world is: chances in a thousand, times in microseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mix {
    /// A message is lost.
    pub drop: u32,
    /// A message comes twice.
    pub repeat: u32,
    /// Messages overtake each other.
    pub reorder: bool,
    /// Longest delay of an ordinary message.
    pub delay_us: u64,
    /// A message is held up for up to two seconds.
    pub late: u32,
    /// Two members stop hearing each other, per fault tick.
    pub partition: u32,
    /// A rank dies, per fault tick.
    pub rank_death: u32,
    /// The engine dies, per fault tick.
    pub engine_death: u32,
    /// A rank's host loses everything: pool, process and engine, per fault tick.
    pub total_loss: u32,
    /// The control group dies, per fault tick.
    pub control_death: u32,
    /// A record is damaged, per fault tick.
    pub damage: u32,
    /// An operator flushes, pins or asks for room, per fault tick.
    pub operator: u32,
    /// Somebody sends bytes that are no message, per fault tick.
    pub garbage: u32,
    /// Longest copy of one layer.
    pub copy_us: u64,
    /// A rank tells how far a copy is, or says something of an attempt that was never made, per layer.
    pub chatter: u32,
    /// Most sessions at once.
    pub sessions: usize,
    /// A session is aborted, per look at it.
    pub abort: u32,
    /// A session stalls, per look at it.
    pub stall: u32,
    /// A session never runs its draft.
    pub no_draft: u32,
}

impl Mix {
    /// A world without faults in which messages take `delay_us`.
    pub const fn calm(delay_us: u64) -> Self {
        Self {
            drop: 0,
            repeat: 0,
            reorder: false,
            delay_us,
            late: 0,
            partition: 0,
            rank_death: 0,
            engine_death: 0,
            total_loss: 0,
            control_death: 0,
            damage: 0,
            operator: 0,
            garbage: 0,
            copy_us: 400,
            chatter: 0,
            sessions: 0,
            abort: 0,
            stall: 0,
            no_draft: 0,
        }
    }

    /// The mix of a seed: every fault is absent from some worlds, so that none hides another.
    pub fn draw(chance: &mut Chance) -> Self {
        let mut some = |of_ten: u64, most: u64| {
            if chance.within(1, 10) <= of_ten { chance.within(1, most) as u32 } else { 0 }
        };
        Self {
            drop: some(6, 60),
            repeat: some(6, 80),
            reorder: some(7, 2) > 0,
            delay_us: 1_000,
            late: some(4, 15),
            partition: some(4, 40),
            rank_death: some(4, 30),
            engine_death: some(3, 15),
            total_loss: some(2, 8),
            control_death: some(3, 15),
            damage: some(3, 30),
            operator: some(5, 40),
            garbage: some(3, 40),
            copy_us: if some(3, 1) > 0 { u64::from(some(10, 60)) * 1_000 } else { 400 },
            chatter: some(5, 60),
            sessions: some(10, 8) as usize,
            abort: some(6, 30),
            stall: some(5, 30),
            no_draft: some(5, 150),
        }
    }
}

impl Sizes {
    /// The sizes of a seed.
    pub fn draw(chance: &mut Chance) -> Self {
        let cp = chance.one_of(&[1, 1, 2, 2, 3, 4, 8]);
        let l1 = chance.one_of(&[8, 12, 16, 24, 48, 64]);
        Self {
            cp,
            l1_pages: (l1 / u32::from(cp)).max(4),
            l2_pages: chance.one_of(&[0, 2, 4, 8, 16, 32, 64]) / chance.one_of(&[1, u32::from(cp)]),
            page_tokens: if chance.happens(800) { 16 } else { 64 },
            target_layers: chance.within(2, 4) as u32,
            draft_layers: chance.one_of(&[0, 1, 1, 2]),
            index_components: false,
            lookahead: chance.within(0, 1) as u32,
            compute_tokens_min: chance.within(0, 1) as u32,
            write: chance.one_of(&[Write::Through, Write::Through, Write::Selective, Write::Back]),
            free_room: chance.happens(400),
        }
        .with_index(chance)
    }

    /// Index components need pages of 64 tokens.
    fn with_index(mut self, chance: &mut Chance) -> Self {
        self.index_components = self.page_tokens == 64 && chance.happens(500);
        if self.draft_layers == 0 {
            self.lookahead = 0;
        }
        self
    }
}
