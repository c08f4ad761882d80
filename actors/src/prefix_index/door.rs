//! `open` and `extend`: what a request gets before it computes.

use super::session::{EndedSession, How, Opening, Phase, Session};
use super::spans::{OpenSpan, open_span, opening_over};
use super::tree::{Match, NodeId, PathError, SaltId};
use super::{CALL, Due, Index, reply};
use crate::allocator::owners::zigzag;
use crate::machine::{Effect, Sender};
use crate::protocol::{
    AllocatorIn, Answer, Busy, Expired, Key, KeyConflict, LoadTicket, Malformed, OpId, Open, Opened, OutOfPages,
    Outgoing, Owners, PageId, Pages, Refusal, Reserve, Time, TooLarge, Unknown, WrongState,
};
use crate::span::Span;

impl Index {
    pub(super) fn open(&mut self, now: Time, from: &Sender, msg: Open, out: &mut Vec<Effect>) -> Result<(), Refusal> {
        if self.open_again(from, &msg, out)? {
            return Ok(());
        }
        let mut span = open_span(now, from, &msg);
        let done = self.try_open(now, now, from, msg, &mut span, out);
        if let Err(refusal) = &done {
            opening_over(now, span, Some(refusal), out);
        }
        done
    }

    /// Answers a repeat from the state of its session; whether it was one.
    pub(super) fn open_again(&mut self, from: &Sender, msg: &Open, out: &mut Vec<Effect>) -> Result<bool, Refusal> {
        if let Some(session) = self.sessions.get_mut(&from.op) {
            if session.tenant != msg.tenant {
                return Err(Unknown::new("session", from.op).into());
            }
            match (&mut session.phase, &session.opened) {
                (Phase::Opening(opening), _) => opening.reply.clone_from(&from.reply),
                (Phase::Open { .. }, Some(answer)) => reply(from.reply.clone(), from.op, answer.clone(), out),
                (Phase::Open { .. } | Phase::Ending(_), _) => return Err(WrongState::new(from.op, "ending").into()),
            }
            return Ok(true);
        }
        if let Some(ended) = self.ended.get(from.op) {
            return Err(match &ended.answer {
                _ if ended.tenant != msg.tenant => Unknown::new("session", from.op).into(),
                Answer::Refused(refusal) => refusal.clone(),
                _ => WrongState::new(from.op, "ended").into(),
            });
        }
        self.parked_again(from, msg)
    }

    /// Begins the session of an `open` that came at `began`; refused, its span is left to the caller.
    pub(super) fn try_open(
        &mut self,
        now: Time,
        began: Time,
        from: &Sender,
        mut msg: Open,
        span: &mut OpenSpan,
        out: &mut Vec<Effect>,
    ) -> Result<(), Refusal> {
        Self::adjust_to_handover(&mut msg);
        self.check_open(from, &msg)?;
        // A salt that nothing is stored under yet gets its number when nothing can be refused any more.
        let salt = self.salts.get(msg.salt).unwrap_or(SaltId(u32::MAX));
        self.tree.validate_path(salt, None, &msg.keys.0).map_err(|error| self.path_refusal(error, msg.salt))?;
        let mut nodes = Vec::new();
        let found = self.matched(&msg, salt, &mut nodes);
        let load = nodes.get(found.l1 as usize).and_then(|node| self.load_of(*node));
        self.say_match(now, from, &msg, &found, &nodes, load, out);
        match load {
            Some(load) => self.park(now, began, from, msg, load, span),
            None => self.begin(now, began, from, msg, (&found, &nodes), span, out),
        }
    }

    fn check_open(&self, from: &Sender, msg: &Open) -> Result<(), Refusal> {
        let page = self.config.page_tokens();
        if !self.is_serving() {
            return Err(self.busy("recovery", 0));
        }
        if !self.members.knows_engine(from.incarnation) {
            return Err(Unknown::new("engine", from.incarnation).into());
        }
        if self.draining {
            return Err(WrongState::new("group", "draining").into());
        }
        if msg.tenant.is_empty() || msg.tenant.len() > TENANT_BYTES_MAX {
            return Err(Malformed::new("tenant", &msg.tenant, format_args!("1..={TENANT_BYTES_MAX} bytes")).into());
        }
        // With a lookahead the last token of a full page has to be known to key the page before it.
        let lookahead = self.config.manifest.draft_lookahead_tokens;
        let full = msg.tokens.saturating_sub(lookahead) / page;
        if msg.keys.0.len() as u64 > u64::from(full) {
            let limit = format!("{full} pages of {} tokens that can be keyed", msg.tokens);
            return Err(Malformed::new("keys", msg.keys.0.len(), limit).into());
        }
        let wanted = u64::from(msg.tokens.div_ceil(page)).max(u64::from(msg.reserve_tokens.div_ceil(page)));
        if wanted > u64::from(self.config.request_pages_max) {
            return Err(TooLarge::new("pages", wanted, self.config.request_pages_max.into()).into());
        }
        self.check_owners(&msg.owners.0)?;
        self.check_handover(msg)?;
        if self.sessions.len() >= self.config.sessions_max as usize {
            return Err(self.busy("sessions", self.config.sessions_max));
        }
        Ok(())
    }

    pub(super) fn check_owners(&self, owners: &[u8]) -> Result<(), Refusal> {
        match owners.iter().find(|owner| **owner >= self.config.cp_size()) {
            Some(owner) => Err(Malformed::new("owners", owner, format_args!("0..{}", self.config.cp_size())).into()),
            None => Ok(()),
        }
    }

    /// The owners that an engine wishes have to cover its first chunk, which begins behind `hit` pages.
    fn check_wished(&self, msg: &Open, hit: u32) -> Result<(), Refusal> {
        let wished = self.chunk_pages(msg, hit);
        if !msg.owners.0.is_empty() && msg.owners.0.len() < wished as usize {
            let limit = format!("one for each of {wished} pages, or none");
            return Err(Malformed::new("owners", msg.owners.0.len(), limit).into());
        }
        Ok(())
    }

    pub(super) fn busy(&self, queue: &str, bound: u32) -> Refusal {
        Busy { queue: queue.to_owned(), bound: bound.into(), retry_ms: self.config.retry_ms }.into()
    }

    /// One more request wants these pages: recency counts opens.
    fn want(&mut self, nodes: &[NodeId], priority: u8) {
        self.counts.opens += 1;
        self.tick += 1;
        for node in nodes {
            self.tree.touch(*node, self.tick);
            if priority > self.tree.page(*node).priority {
                self.tree.set_priority(*node, priority);
            }
        }
    }

    /// Pins what was found and asks for the pages of the first chunk.
    #[expect(clippy::too_many_arguments, reason = "an open and what was found for it, used once")]
    fn begin(
        &mut self,
        now: Time,
        began: Time,
        from: &Sender,
        msg: Open,
        (found, nodes): (&Match, &[NodeId]),
        span: &mut OpenSpan,
        out: &mut Vec<Effect>,
    ) -> Result<(), Refusal> {
        self.check_wished(&msg, found.l1)?;
        let salt = self.intern(msg.salt)?;
        self.pin_path(found, nodes)?;
        self.counts.cut_short += u64::from(found.cut_short.is_some());
        self.want(nodes, msg.priority);
        let hits = nodes[..found.l1 as usize].iter();
        let pages = hits.filter_map(|node| self.tree.page(*node).l1).collect::<Vec<PageId>>();
        assert_eq!(pages.len(), found.l1 as usize, "an L1 hit has an L1 page");
        let (hit_tokens, op) = (found.l1 * self.config.page_tokens(), self.ids.draw());
        let opening = Opening {
            op,
            reply: from.reply.clone(),
            l1: found.l1,
            reserve_tokens: msg.reserve_tokens,
            tokens: msg.tokens,
            owners: msg.owners.0,
            span: span.take(),
        };
        let session = Session {
            tenant: msg.tenant,
            salt,
            engine: from.incarnation,
            priority: msg.priority,
            trace: from.trace.clone(),
            began,
            steps: 0,
            tick: self.tick,
            keys: msg.keys.0,
            pages,
            committed: found.l1,
            tail: found.last_l1,
            l2_pin: self.l2_tail(found, nodes),
            duplicates: Vec::new(),
            frontier_tokens: hit_tokens,
            computed_tokens: hit_tokens,
            epoch: 0,
            lacks: None,
            blocked: None,
            backup_to: found.l1 + found.l2,
            backups: Vec::new(),
            load: None,
            ring: None,
            load_failed: false,
            last_step: 0,
            opened: None,
            extended: None,
            handover: Self::try_of(&msg.handover),
            phase: Phase::Opening(opening),
        };
        self.lease(now, session.engine);
        self.sessions.insert(from.op, session);
        self.join_handover(now, from.op, msg.handover, msg.tokens, out);
        if found.l2 > 0 {
            self.begin_load(now, from.op, op, &nodes[found.l1 as usize..], out);
        } else {
            self.reserve_first_chunk(now, from.op, op, out);
        }
        self.selective_backup(now, from.op, &nodes[..found.l1 as usize], out);
        Ok(())
    }

    /// The longest prefix that may be used: it leaves enough to compute, and ends before a rank that is silent.
    fn matched(&self, msg: &Open, salt: SaltId, nodes: &mut Vec<NodeId>) -> Match {
        if msg.no_match {
            return Match::default();
        }
        self.served(salt, self.matchable(msg), nodes)
    }

    /// The keys that a match may cover.
    pub(super) fn matchable<'a>(&self, msg: &'a Open) -> &'a [Key] {
        let most = msg.tokens.saturating_sub(self.tokens_behind_match(msg)) / self.config.page_tokens();
        &msg.keys.0[..msg.keys.0.len().min(most as usize)]
    }

    pub(super) fn served(&self, salt: SaltId, keys: &[Key], nodes: &mut Vec<NodeId>) -> Match {
        let mut found = self.tree.match_into(salt, keys, nodes);
        if !self.members.any_silent() && self.recovery.all_read() {
            return found;
        }
        let from = found.l1 as usize;
        let away = |rank| self.members.is_silent(rank) || !self.recovery.is_read(rank);
        let out_of_reach = |node: &NodeId| self.tree.page(*node).l2.is_some_and(|(rank, _)| away(rank));
        if let Some(at) = nodes[from..].iter().position(out_of_reach) {
            nodes.truncate(from + at);
            found.l2 = at as u32;
            found.last = nodes.last().copied();
        }
        found
    }

    /// Pages that the first chunk of a prompt needs behind `hit` pages.
    fn chunk_pages(&self, msg: &Open, hit: u32) -> u32 {
        let left = msg.tokens.saturating_sub(hit * self.config.page_tokens());
        msg.reserve_tokens.min(left).div_ceil(self.config.page_tokens())
    }

    /// Owners of the pages of the first chunk, which begins behind `hit` pages and ends with the prompt.
    pub(super) fn chunk_owners(&self, opening: &Opening, hit: u32) -> Result<Vec<u8>, Refusal> {
        let left = opening.tokens.saturating_sub(hit * self.config.page_tokens());
        let pages = opening.reserve_tokens.min(left).div_ceil(self.config.page_tokens());
        self.owners_for(pages, &opening.owners)
    }

    pub(super) fn owners_for(&self, pages: u32, wished: &[u8]) -> Result<Vec<u8>, Refusal> {
        if wished.is_empty() {
            let mut owners = Vec::new();
            if zigzag(self.config.cp_size(), pages.into(), &mut owners).is_err() {
                return Err(Malformed::new("cp_size", self.config.cp_size(), "1..=64").into());
            }
            return Ok(owners);
        }
        let wished = wished.get(..pages as usize);
        Ok(wished.ok_or_else(|| Malformed::new("owners", "too few", format_args!("{pages} pages")))?.to_vec())
    }

    /// Asks the allocator for the pages of the first chunk, or answers at once when there are none.
    pub(super) fn reserve_first_chunk(&mut self, now: Time, id: OpId, op: OpId, out: &mut Vec<Effect>) {
        let Some(session) = self.sessions.get(&id) else { return };
        let Phase::Opening(opening) = &session.phase else { return };
        let owners = match self.chunk_owners(opening, opening.l1) {
            Ok(owners) => owners,
            Err(refusal) => return self.open_refused(now, id, refusal, out),
        };
        if owners.is_empty() {
            return self.opened(now, id, Vec::new(), Vec::new(), 0, out);
        }
        let trace = session.trace.clone();
        self.reserving.insert(op, id);
        let msg = AllocatorIn::from(Reserve { tier: 1, owners: Owners(owners) });
        self.calls.call(now, (op, CALL), Outgoing::Allocator(msg), &trace, out);
    }

    /// Pages for a session have come, for its first chunk or for an extension.
    pub(super) fn reserved(&mut self, now: Time, op: OpId, pages: Vec<PageId>, out: &mut Vec<Effect>) {
        let wrong = self.wrong_pages(op, &pages);
        if !self.calls.answered((op, CALL)) {
            return;
        }
        if let Some(wrong) = wrong {
            return self.disown(now, op, wrong, out);
        }
        let id = self.reserving.remove(&op);
        let phase = id.and_then(|id| self.sessions.get_mut(&id)).map(|session| &mut session.phase);
        match (id, phase) {
            (Some(id), Some(Phase::Opening(_))) => self.opened(now, id, pages, Vec::new(), 0, out),
            (Some(id), Some(Phase::Open { extending })) if extending.as_ref().is_some_and(|e| e.op == op) => {
                let extending = extending.take();
                self.extended(id, extending, pages, out);
            }
            // The session ended while its pages were on the way.
            (_, Some(Phase::Opening(_) | Phase::Open { .. } | Phase::Ending(_)) | None) => {
                self.free(now, pages, Vec::new(), super::FreeThen::Nothing, out);
            }
        }
    }

    pub(super) fn short(&mut self, now: Time, op: OpId, short: Vec<u32>, out: &mut Vec<Effect>) {
        if !self.calls.answered((op, CALL)) {
            return;
        }
        self.not_reserved(now, op, OutOfPages { short, retry_ms: self.config.retry_ms }.into(), out);
    }

    /// Nothing was reserved for this op: whoever asked for pages is told why.
    pub(super) fn not_reserved(&mut self, now: Time, op: OpId, refusal: Refusal, out: &mut Vec<Effect>) {
        let Some(id) = self.reserving.remove(&op) else { return };
        let Some(session) = self.sessions.get_mut(&id) else { return };
        match &mut session.phase {
            Phase::Opening(_) => self.open_refused(now, id, refusal, out),
            Phase::Open { extending } => {
                if let Some(extending) = extending.take() {
                    self.counts.refusals += 1;
                    reply(extending.reply, extending.asked, refusal, out);
                }
            }
            Phase::Ending(_) => {}
        }
    }

    /// The session runs: `pages` are loaded ones, if any, then the first chunk.
    pub(super) fn opened(
        &mut self,
        now: Time,
        id: OpId,
        pages: Vec<PageId>,
        load: Vec<LoadTicket>,
        l2_hit: u32,
        out: &mut Vec<Effect>,
    ) {
        let (lease_ms, control) = (self.config.lease_ms, self.control);
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let Phase::Opening(opening) = std::mem::replace(&mut session.phase, Phase::Open { extending: None }) else {
            return;
        };
        let given = pages.len() as u64;
        session.pages.extend(pages);
        let l1_hit = opening.l1;
        let answer = Opened { control, lease_ms, l1_hit, l2_hit, pages: Pages(session.pages.clone()), load };
        self.counts.hits_l1 += u64::from(l1_hit);
        self.counts.hits_l2 += u64::from(l2_hit);
        out.push(Effect::Mark { op: id, name: "open.l1_hit_pages", value: l1_hit.into() });
        out.push(Effect::Mark { op: id, name: "open.l2_hit_pages", value: l2_hit.into() });
        session.opened = Some(answer.clone().into());
        let hits = |span: Box<Span>| {
            let span = span.count("hit.l1_pages", l1_hit).count("hit.l2_pages", l2_hit);
            Box::new(span.count("open.pages_given", given.saturating_sub(l2_hit.into())))
        };
        opening_over(now, opening.span.map(hits), None, out);
        reply(opening.reply, id, answer, out);
        self.handover_opened(now, id, out);
    }

    /// The session never ran: what it pinned is let go. A copy of its `open` that is still on its way is answered
    /// alike, since nobody would ever close what it opened.
    pub(super) fn open_refused(&mut self, now: Time, id: OpId, refusal: Refusal, out: &mut Vec<Effect>) {
        let Some(session) = self.sessions.remove(&id) else { return };
        self.withdraw_handover(&session, out);
        out.extend(self.session_span(now, id, &session, How::Refused).map(Effect::span));
        self.unpin_path(session.tail, session.l2_pin);
        self.drop_lease_if_last(session.engine);
        if let Phase::Opening(opening) = session.phase {
            opening_over(now, opening.span, Some(&refusal), out);
            self.counts.refusals += 1;
            reply(opening.reply, id, refusal.clone(), out);
        }
        let ended = EndedSession { tenant: session.tenant, answer: refusal.into(), how: How::Refused };
        self.ended.put(now, id, ended);
    }

    fn lease(&mut self, now: Time, engine: crate::protocol::Incarnation) {
        if !self.leases.contains_key(&engine) {
            let until = now.plus_ms(self.config.lease_ms);
            self.leases.insert(engine, until);
            self.deadlines.insert((until, Due::Lease(engine)));
        }
        self.renew(now, engine);
    }

    pub(super) fn drop_lease_if_last(&mut self, engine: crate::protocol::Incarnation) {
        if self.sessions.values().any(|session| session.engine == engine) {
            return;
        }
        if let Some(until) = self.leases.remove(&engine) {
            self.deadlines.remove(&(until, Due::Lease(engine)));
        }
    }

    /// The session of a request, if it is this tenant's and runs.
    pub(super) fn running(&mut self, id: OpId, tenant: &str) -> Result<&mut Session, Refusal> {
        let lease_ms = self.config.lease_ms;
        let session = self.sessions.get_mut(&id).filter(|session| session.tenant == tenant);
        let session = session.ok_or_else(|| Refusal::from(Unknown::new("session", id)))?;
        match &session.phase {
            Phase::Open { .. } => Ok(session),
            Phase::Opening(_) => Err(WrongState::new(id, "opening").into()),
            Phase::Ending(ending) if ending.how == super::session::How::Expired => {
                Err(Expired { session: id, lease_ms }.into())
            }
            Phase::Ending(_) => Err(WrongState::new(id, "ending").into()),
        }
    }

    pub(super) fn path_refusal(&self, error: PathError, salt: Key) -> Refusal {
        match error {
            PathError::Repeated { key } => {
                let (known, got) = ("earlier in the path".to_owned(), "again".to_owned());
                KeyConflict { key, what: "repeated".to_owned(), known, got }.into()
            }
            PathError::KeyConflict { key, known } => {
                let known_salt = self.salts.key(known.salt);
                let (what, known, got) = if known_salt == salt {
                    ("parent", format!("{:?} at position {}", known.parent, known.position), "another place".to_owned())
                } else {
                    ("salt", format!("{known_salt:?}"), format!("{salt:?}"))
                };
                KeyConflict { key, what: what.to_owned(), known, got }.into()
            }
        }
    }
}

/// Longest tenant name.
const TENANT_BYTES_MAX: usize = 256;
