//! `extend`: further pages for a session that runs.

use super::session::{Extending, Phase};
use super::{CALL, Index, reply};
use crate::machine::{Effect, Sender};
use crate::protocol::{
    AllocatorIn, Extend, Extended, Gap, Malformed, OpId, Outgoing, Owners, PageId, Pages, Refusal, Reserve, Time,
    TooLarge, WrongState,
};

impl Index {
    pub(super) fn extend(
        &mut self,
        now: Time,
        from: &Sender,
        msg: Extend,
        out: &mut Vec<Effect>,
    ) -> Result<(), Refusal> {
        self.check_owners(&msg.owners.0)?;
        let (page, most) = (self.config.page_tokens(), self.config.request_pages_max);
        let session = self.running(msg.session, &msg.tenant)?;
        if let Some((_, first, pages)) = session.extended.filter(|(op, ..)| *op == from.op) {
            let pages = session.pages[first as usize..(first + pages) as usize].to_vec();
            reply(from.reply.clone(), from.op, Extended { pages: Pages(pages) }, out);
            return Ok(());
        }
        let held = session.pages.len() as u32;
        let trace = session.trace.clone();
        if let Phase::Open { extending: Some(extending) } = &mut session.phase {
            if extending.asked != from.op {
                return Err(WrongState::new(msg.session, "extending").into());
            }
            extending.reply.clone_from(&from.reply);
            return Ok(());
        }
        if msg.first != held {
            return Err(Gap { expected: held.into(), got: msg.first.into() }.into());
        }
        let pages = msg.tokens.div_ceil(page);
        if pages == 0 {
            return Err(Malformed::new("tokens", msg.tokens, "1 or more").into());
        }
        if u64::from(held) + u64::from(pages) > most.into() {
            return Err(TooLarge::new("pages", u64::from(held) + u64::from(pages), most.into()).into());
        }
        if !msg.owners.0.is_empty() && msg.owners.0.len() != pages as usize {
            let limit = format!("one for each of {pages} pages, or none");
            return Err(Malformed::new("owners", msg.owners.0.len(), limit).into());
        }
        let owners = self.owners_for(pages, &msg.owners.0)?;
        let op = self.ids.draw();
        let session = self.running(msg.session, &msg.tenant)?;
        session.phase =
            Phase::Open { extending: Some(Extending { asked: from.op, op, reply: from.reply.clone(), pages }) };
        self.reserving.insert(op, msg.session);
        let ask = AllocatorIn::from(Reserve { tier: 1, owners: Owners(owners) });
        self.calls.call(now, (op, CALL), Outgoing::Allocator(ask), &trace, out);
        Ok(())
    }

    pub(super) fn extended(
        &mut self,
        id: OpId,
        extending: Option<Extending>,
        pages: Vec<PageId>,
        out: &mut Vec<Effect>,
    ) {
        let Some(extending) = extending else { return };
        let Some(session) = self.sessions.get_mut(&id) else { return };
        assert_eq!(pages.len(), extending.pages as usize, "a reservation has the pages asked for");
        session.extended = Some((extending.asked, session.pages.len() as u32, extending.pages));
        session.pages.extend(&pages);
        reply(extending.reply, extending.asked, Extended { pages: Pages(pages) }, out);
    }
}
