//! What the pages of a session hold.

use hicached_actors::protocol::LoadTicket;

use super::Session;
use crate::engine::Verify;
use crate::engine::content::Rows;
use crate::engine::core::{Load, Placed};
use crate::engine::pools::{Components, Fill};

impl Session<'_> {
    pub(super) fn with_pages(&self, ticket: LoadTicket) -> Load {
        let pages = self.placed(ticket.first, ticket.first + ticket.pages);
        Load { ticket, pages }
    }

    /// The pages at `from..to`, which are full, with what they hold; none when nothing is compared.
    pub(super) fn placed(&self, from: u32, to: u32) -> Vec<Placed> {
        self.placed_until(from, to * self.page_tokens())
    }

    /// The pages from position `from` to the one of the token before `end`, which may not be full.
    pub(super) fn placed_until(&self, from: u32, end: u32) -> Vec<Placed> {
        if self.core.config.verify == Verify::Off || !self.core.pools.have_bytes() {
            return Vec::new();
        }
        let place = |position: u32| {
            let page = self.pages[position as usize];
            Placed { position, page, rows: self.rows(position, end), components: self.components_of(position) }
        };
        (from..end.div_ceil(self.page_tokens())).map(place).collect()
    }

    /// What a forward writes that computes the tokens `from..end`.
    pub(super) fn fills(&self, from: u32, end: u32) -> Vec<Fill> {
        if !self.core.pools.have_bytes() {
            return Vec::new();
        }
        let page_tokens = self.page_tokens();
        let fill = |position: u32| {
            let from_token = from.saturating_sub(position * page_tokens);
            Fill { page: self.pages[position as usize], rows: self.rows(position, end), from_token }
        };
        (from / page_tokens..end.div_ceil(page_tokens)).map(fill).collect()
    }

    /// What page `position` holds something in.
    fn components_of(&self, position: u32) -> Components {
        let came = self.came.iter().find(|(positions, _)| positions.contains(&position));
        came.map_or(Components::ALL, |(_, components)| *components)
    }

    /// What page `position` holds of the tokens before `end`.
    fn rows(&self, position: u32, end: u32) -> Rows {
        let plan = &self.prompt.plan;
        let key = |page: u32| plan.keys.get(page as usize).copied().or_else(|| self.tail.key(page));
        let parent = match position.checked_sub(1) {
            Some(before) => key(before).expect("a page that has a token follows one that has a key"),
            None => plan.salt,
        };
        let first = position * self.page_tokens();
        let tokens = first..end.min(first + self.page_tokens());
        Rows::new(parent, tokens.map(|place| self.prompt.token(place)))
    }
}
