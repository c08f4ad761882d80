//! One request of an engine: its tokens, its block table, and how far it has run.

use hicached_actors::protocol::{HandoverWish, Key, LoadTicket, OpId, PageId, Time, page_keys};

use crate::layout::{Layout, PageText};

/// What a session is asked to be.
#[derive(Clone, Debug)]
pub struct Spec {
    /// The tenant.
    pub tenant: String,
    /// Root of its keys.
    pub salt: Key,
    /// Prompt and what will be decoded.
    pub tokens: Vec<u32>,
    /// How many of them are the prompt.
    pub prompt_tokens: u32,
    /// Tokens of one prefill chunk.
    pub chunk_tokens: u32,
    /// Whether its draft runs.
    pub draft: bool,
    /// Own owner sequence of the first reservation; empty means zigzag.
    pub owners: Vec<u8>,
    /// Computes the whole prompt again.
    pub no_match: bool,
    /// Eviction priority.
    pub priority: u8,
    /// The handover it takes part in.
    pub handover: Option<HandoverWish>,
}

/// Life of a session, seen from the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// `open` is not answered.
    Opening,
    /// It runs.
    Live,
    /// `close` or `abort` is not answered.
    Ending,
    /// Nothing of it is left.
    Ended,
}

/// A request of the engine.
#[derive(Clone, Debug)]
pub struct Session {
    /// Its id.
    pub id: OpId,
    /// What it was asked to be.
    pub spec: Spec,
    /// Keys of all its tokens.
    pub keys: Vec<Key>,
    /// How far it is.
    pub phase: Phase,
    /// Block table.
    pub pages: Vec<PageId>,
    /// Pages that were there when it opened.
    pub hit_pages: u32,
    /// Pages that a load brought.
    pub load_pages: u32,
    /// A load whose final status was not read yet.
    pub load: Option<LoadTicket>,
    /// The load's status was read and the next step says so.
    pub load_read: bool,
    /// Loads of it that have failed.
    pub epoch: u32,
    /// When the load is given up.
    pub load_until: Time,
    /// Token positions below this are computed or launched.
    pub frontier: u32,
    /// Keys below this position were sent.
    pub keys_sent: u32,
    /// An `extend` is not answered.
    pub extending: bool,
    /// It does nothing before.
    pub stalled_until: Time,
    /// The last step that named it, 0 for none.
    pub last_step: u64,
    /// Some step of it ran without draft.
    pub draftless: bool,
    /// Its pages are on their way from another group: nothing runs before they are there.
    pub waits: bool,
    /// It has asked for them.
    pub asked: bool,
    /// They have come.
    pub came: bool,
    /// Somebody looks at it when it has ended: it is not forgotten before.
    pub is_watched: bool,
}

impl Session {
    /// A session that is about to open.
    pub fn new(id: OpId, spec: Spec, layout: &Layout) -> Self {
        let waits = spec.handover.as_ref().is_some_and(|wish| wish.to.is_empty());
        let keys = page_keys(spec.salt, &spec.tokens, layout.page_tokens, layout.lookahead, |_| &[]);
        Self {
            id,
            keys,
            phase: Phase::Opening,
            pages: Vec::new(),
            hit_pages: 0,
            load_pages: 0,
            load: None,
            load_read: false,
            epoch: 0,
            load_until: Time::ZERO,
            frontier: 0,
            keys_sent: 0,
            extending: false,
            stalled_until: Time::ZERO,
            last_step: 0,
            draftless: !spec.draft,
            waits,
            asked: false,
            came: false,
            is_watched: false,
            spec,
        }
    }

    /// Keys of pages whose tokens are all among the first `tokens`.
    pub fn keyable(&self, layout: &Layout, tokens: u32) -> u32 {
        (tokens.saturating_sub(layout.lookahead) / layout.page_tokens).min(self.keys.len() as u32)
    }

    /// What page `at` of the block table stands for.
    pub fn text(&self, layout: &Layout, at: u32) -> PageText<'_> {
        let first = (at * layout.page_tokens) as usize;
        let end = (first + (layout.page_tokens + layout.lookahead) as usize).min(self.spec.tokens.len());
        let parent = if at == 0 { self.spec.salt } else { self.keys[at as usize - 1] };
        PageText { parent, tokens: &self.spec.tokens[first.min(end)..end] }
    }

    /// Tokens it will have in the end: of a prompt that is handed over the other engine has the rest.
    pub fn end(&self) -> u32 {
        if self.sends() { self.spec.prompt_tokens } else { self.spec.tokens.len() as u32 }
    }

    /// How many tokens the next step can run: whole chunks of the prompt, then one by one, as far as its
    /// pages reach.
    pub fn next_tokens(&self, layout: &Layout) -> u32 {
        if self.waits {
            return 0;
        }
        let wanted = if self.frontier < self.spec.prompt_tokens {
            (self.spec.prompt_tokens - self.frontier).min(self.spec.chunk_tokens)
        } else {
            (self.end() - self.frontier).min(1)
        };
        wanted.min((self.pages.len() as u32 * layout.page_tokens).saturating_sub(self.frontier))
    }
}
