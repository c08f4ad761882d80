//! The growing end of a sequence: tokens come one by one, keys as soon as they can be known.

use hicached_actors::protocol::{Key, page_key};

use super::{PagePlan, Paging};

/// Keys of the pages after those a plan has keys for.
#[derive(Clone, Debug)]
pub struct Tail {
    paging: Paging,
    /// Position of the first page of `keys`.
    first: u32,
    parent: Key,
    /// Tokens that no key covers as its own yet.
    open: Vec<u32>,
    keys: Vec<Key>,
}

impl Tail {
    /// Begins with the tail of `plan`.
    pub fn of(plan: &PagePlan, paging: Paging) -> Self {
        let (first, parent) = (plan.pages(), plan.parent());
        let mut tail = Self { paging, first, parent, open: Vec::new(), keys: Vec::new() };
        plan.tail.iter().for_each(|token| tail.push(*token));
        tail
    }

    /// One more token.
    pub fn push(&mut self, token: u32) {
        let page = self.paging.page_tokens as usize;
        self.open.push(token);
        if self.open.len() == page + self.paging.lookahead_tokens as usize {
            self.parent = page_key(self.parent, &self.open, &[]);
            self.keys.push(self.parent);
            self.open.drain(..page);
        }
    }

    /// The key of page `position`; `None` while it is not known, or when it is before this tail.
    pub fn key(&self, position: u32) -> Option<Key> {
        self.keys.get(position.checked_sub(self.first)? as usize).copied()
    }

    /// The keys known by now of the pages from `position` on, which is not before this tail.
    pub fn keys_from(&self, position: u32) -> &[Key] {
        self.keys.get((position - self.first) as usize..).unwrap_or(&[])
    }
}
