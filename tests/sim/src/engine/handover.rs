//! Sessions that two engines serve together: one computes the prompt and hands it over, the other one waits for its
//! pages, compares all that came, and decodes behind it.

use hicached_actors::protocol::{Bin, HandedOver, Handover, HandoverWish, OpId};

use super::{Ask, Engine, Phase, Session};
use crate::checks::Violation;
use crate::memory::Memory;
use crate::net::Net;

impl Session {
    /// Whether it hands its prompt over.
    pub fn sends(&self) -> bool {
        self.spec.handover.as_ref().is_some_and(|wish| !wish.to.is_empty())
    }

    /// Whether it is one side of this attempt of a transfer.
    pub fn is_of(&self, name: (OpId, u32)) -> bool {
        self.spec.handover.as_ref().is_some_and(|wish| (wish.transfer, wish.attempt) == name)
    }
}

impl Engine {
    /// Asks for the pages of every session that waits for them; one whose load has failed is given up, since nobody
    /// sends what was said to be here.
    pub(crate) fn ask_for_pages(&mut self, net: &mut Net) {
        let waiting = self.sessions.iter().filter(|(_, session)| session.phase == Phase::Live && session.waits);
        let waiting: Vec<(u64, bool)> = waiting.map(|(number, session)| (*number, session.epoch > 0)).collect();
        for (number, is_void) in waiting {
            if is_void {
                self.abort(net, number);
            } else if let Some(session) = self.sessions.get_mut(&number).filter(|session| !session.asked) {
                session.asked = true;
                let Some(wish) = session.spec.handover.clone() else { continue };
                let HandoverWish { transfer, attempt, .. } = wish;
                let handover = Handover { transfer, attempt, tenant: session.spec.tenant.clone() };
                let op = self.ids.draw();
                self.ask(net, Ask::Handover(number), op, handover.into());
            }
        }
    }

    /// The pages of a session have come: every byte of its prompt is what it must be (E1).
    pub(super) fn handed_over(
        &mut self,
        net: &mut Net,
        memory: &Memory,
        number: u64,
        handed: &HandedOver,
    ) -> Result<(), Violation> {
        self.read_load(net, memory, number);
        let Some(session) = self.sessions.get_mut(&number) else { return Ok(()) };
        let Some(wish) = session.spec.handover.clone() else { return Ok(()) };
        if session.phase != Phase::Live || !session.waits || session.epoch > 0 {
            return Ok(());
        }
        let (page_tokens, tokens) = (memory.layout.page_tokens, session.spec.prompt_tokens);
        let (pages, here) = (tokens.div_ceil(page_tokens), session.hit_pages + session.load_pages);
        // Both groups store the same: no component is named.
        let said = (handed.tokens, handed.received, &handed.blob, handed.components.len());
        if said != (tokens, pages - here, &blob(&wish), 0) {
            let detail = format!("{wish:?} of {tokens} tokens with {here} of {pages} pages here: {handed:?}");
            return Err(Violation { checker: "C8", detail });
        }
        for at in 0..pages {
            net.stats.pages_checked += 1;
            let (page, text) = (session.pages[at as usize], session.text(&memory.layout, at));
            if let Some(part) = memory.l1_wrong_before(page, &text, tokens - at * page_tokens) {
                let part = &memory.layout.parts[part];
                let detail = format!(
                    "{wish:?} is handed over with {here} of {pages} pages here: {} layer {} of {at} at {page:?} is wrong",
                    part.component, part.layer
                );
                return Err(Violation { checker: "E1", detail });
            }
        }
        session.waits = false;
        session.came = true;
        session.frontier = tokens;
        net.transfers.done += 1;
        net.transfers.pages += u64::from(handed.received);
        net.transfers.with_prefix += u64::from(here > 0);
        net.transfers.with_tail += u64::from(!tokens.is_multiple_of(page_tokens));
        Ok(())
    }
}

/// What a prefill engine has for the decode engine.
pub(super) fn blob(wish: &HandoverWish) -> Bin {
    let bytes = wish.transfer.0.iter().map(|byte| byte.wrapping_add(wish.attempt as u8));
    Bin(bytes.cycle().take(wish.transfer.0[15] as usize).collect())
}
