//! What an engine does with the answers it gets.

use hicached_actors::protocol::{Answer, Extended, Incarnation, Opened, Refusal, Registered, Stepped};

use super::{Ask, Engine, Pending, Phase};
use crate::checks::Violation;
use crate::memory::Memory;
use crate::net::Net;

impl Engine {
    /// Takes the bytes of an answer to request `number`.
    pub fn take(&mut self, net: &mut Net, memory: &Memory, number: u64, bytes: &[u8]) -> Result<(), Violation> {
        let Some((pending, answer, _)) = self.answered(bytes, number) else { return Ok(()) };
        if let Answer::Refused(refusal) = answer {
            net.stats.refusals += 1;
            self.refused(net, memory, number, pending, refusal);
            return Ok(());
        }
        match (pending.ask, answer) {
            (Ask::Register(rank), Answer::Registered(registered)) => {
                self.joined(net, memory, &pending, rank, &registered)
            }
            (Ask::Open(session), Answer::Opened(opened)) => return self.opened(net, memory, session, opened),
            (Ask::Extend(session), Answer::Extended(extended)) => self.extended(memory, session, extended)?,
            (Ask::Step(step), Answer::Stepped(stepped)) => self.stepped(net, step, &stepped),
            (Ask::Close(session), Answer::Closed(closed)) => {
                self.end(session);
                self.closed.insert(session, closed);
            }
            (Ask::Abort(session), Answer::Done(_)) => self.end(session),
            // It was given up while it closed.
            (Ask::Close(session), Answer::Done(_)) | (Ask::Abort(session), Answer::Closed(_))
                if self.hands(session) =>
            {
                self.end(session);
            }
            (Ask::Handover(session), Answer::HandedOver(handed)) => {
                return self.handed_over(net, memory, session, &handed);
            }
            (Ask::Heartbeat(sent), Answer::Done(_)) => self.lease_until = sent.plus_ms(self.lease_ms),
            (Ask::Plain, answer) => {
                self.plain.insert(number, answer);
            }
            (ask, answer) => {
                let detail = format!("{ask:?} was answered with {}", answer.code());
                return Err(Violation { checker: "conversation", detail });
            }
        }
        Ok(())
    }

    fn joined(&mut self, net: &mut Net, memory: &Memory, pending: &Pending, rank: u8, registered: &Registered) {
        if registered.control != self.control {
            self.control_is(net, memory, registered.control);
        }
        self.registered |= 1 << rank;
        self.lease_ms = registered.lease_ms;
        let next = if self.tells_launched { self.launched + 1 } else { self.next_step };
        self.next_step = next.max(registered.next_step);
        self.lease_until = pending.since.plus_ms(self.lease_ms);
        self.heartbeat_at = net.now;
    }

    /// Another control group answers: sessions of the old one are over.
    fn control_is(&mut self, net: &mut Net, memory: &Memory, control: Incarnation) {
        let first = self.control == Incarnation::default();
        self.control = control;
        if first {
            return;
        }
        self.registered = 0;
        for session in self.sessions.values_mut() {
            session.phase = Phase::Ended;
        }
        // Nobody answers for steps of the old group; those that still run end by themselves.
        self.steps.retain(|_, step| {
            step.answered = true;
            !step.entries.is_empty()
        });
        self.pending.retain(|_, pending| matches!(pending.ask, Ask::Register(_) | Ask::Plain));
        self.register_missing(net, memory);
    }

    fn opened(&mut self, net: &mut Net, memory: &Memory, number: u64, opened: Opened) -> Result<(), Violation> {
        net.stats.opens += 1;
        net.stats.l1_hits += u64::from(opened.l1_hit > 0);
        net.stats.l2_hits += u64::from(opened.l2_hit > 0);
        let (page_tokens, load_ms) = (memory.layout.page_tokens, self.load_ms);
        // One that was given up meanwhile stays given up.
        let opening = self.sessions.get_mut(&number).filter(|session| session.phase == Phase::Opening);
        let Some(session) = opening else { return Ok(()) };
        let hits = opened.l1_hit + opened.l2_hit;
        let wanted = hits + session.spec.chunk_tokens.min(session.spec.prompt_tokens).div_ceil(page_tokens);
        let enough = (session.spec.prompt_tokens.div_ceil(page_tokens)).min(wanted);
        if hits * page_tokens > session.spec.prompt_tokens || (opened.pages.0.len() as u32) < enough {
            let detail = format!(
                "{hits} hits and {} pages for {} tokens, {enough} pages wanted",
                opened.pages.0.len(),
                session.spec.prompt_tokens
            );
            return Err(Violation { checker: "conversation", detail });
        }
        if opened.load.len() != usize::from(opened.l2_hit > 0) {
            let detail = format!("{} load tickets for {} pages", opened.load.len(), opened.l2_hit);
            return Err(Violation { checker: "conversation", detail });
        }
        session.phase = Phase::Live;
        session.pages = opened.pages.0;
        (session.hit_pages, session.load_pages) = (opened.l1_hit, opened.l2_hit);
        session.load = opened.load.into_iter().next();
        session.load_until = net.now.plus_ms(load_ms);
        session.frontier = hits * page_tokens;
        owners_follow_ids(memory, &session.pages)
    }

    fn extended(&mut self, memory: &Memory, number: u64, extended: Extended) -> Result<(), Violation> {
        let Some(session) = self.sessions.get_mut(&number) else { return Ok(()) };
        session.extending = false;
        self.refused.remove(&number);
        session.pages.extend(extended.pages.0);
        owners_follow_ids(memory, &session.pages)
    }

    fn stepped(&mut self, net: &mut Net, number: u64, stepped: &Stepped) {
        let named = self.steps.get(&number).map(|step| step.named.clone()).unwrap_or_default();
        let done = self.steps.get(&number).is_some_and(|step| step.entries.is_empty());
        if done {
            self.steps.remove(&number);
        } else if let Some(step) = self.steps.get_mut(&number) {
            step.answered = true;
        }
        // What was launched before a load failed is void, and the engine has seen why in the ring. Anything
        // else that is void says that the index and the engine disagree: the session is given up.
        let over: Vec<u64> = named
            .into_iter()
            .filter(|(number, epoch)| {
                self.sessions.get(number).is_some_and(|session| {
                    let live = session.phase == Phase::Live && stepped.void.contains(&session.id);
                    live && session.load.is_none() && session.epoch == *epoch
                })
            })
            .map(|(number, _)| number)
            .collect();
        over.into_iter().for_each(|number| self.abort(net, number));
    }

    fn refused(&mut self, net: &mut Net, memory: &Memory, number: u64, pending: Pending, refusal: Refusal) {
        if let Refusal::NewIncarnation(change) = &refusal {
            let again = matches!(pending.ask, Ask::Register(_) | Ask::Plain);
            if change.new != self.control {
                self.control_is(net, memory, change.new);
            }
            if again {
                self.ask_again(net, number, pending, 20);
            }
            return;
        }
        match pending.ask {
            Ask::Register(_) => self.ask_again(net, number, pending, 50),
            // Taken so long ago that its answer is gone.
            Ask::Step(step) if matches!(&refusal, Refusal::Gap(gap) if gap.got == step && gap.expected > step) => {
                self.stepped(net, step, &Stepped { number: step, backups: Vec::new(), void: Vec::new() });
            }
            Ask::Step(_) => {
                if let Refusal::Gap(gap) = &refusal {
                    self.hurry_step(net, gap.expected);
                }
                self.ask_again(net, number, pending, 100);
            }
            Ask::Heartbeat(_) => {}
            Ask::Plain => {
                self.plain.insert(number, Answer::Refused(refusal));
            }
            Ask::Close(session) | Ask::Abort(session) => match refusal {
                Refusal::Busy(busy) => self.ask_again(net, number, pending, u64::from(busy.retry_ms)),
                // What it could write drains until its last step is named.
                Refusal::Expired(_) if matches!(pending.ask, Ask::Close(_)) => self.abort(net, session),
                refusal => {
                    self.refused.insert(session, refusal);
                    self.end(session);
                }
            },
            Ask::Open(session) => {
                self.refused.insert(session, refusal);
                // A copy of the request may still be on its way: whoever gives an open up says so.
                self.abort(net, session);
            }
            Ask::Extend(session) => self.extend_refused(net, session, refusal),
            Ask::Handover(session) => {
                if self.sessions.get(&session).is_some_and(|session| session.phase == Phase::Live && session.waits) {
                    self.refused.insert(session, refusal);
                    self.abort(net, session);
                }
            }
        }
    }

    fn extend_refused(&mut self, net: &mut Net, number: u64, refusal: Refusal) {
        let for_good = !matches!(refusal, Refusal::OutOfPages(_) | Refusal::Busy(_));
        self.refused.insert(number, refusal);
        let give_up = !self.patient && net.chance.happens(300);
        let until = net.now.plus_ms(net.chance.within(1, 20));
        let Some(session) = self.sessions.get_mut(&number) else { return };
        session.extending = false;
        session.stalled_until = until;
        if session.phase == Phase::Live && (for_good || give_up) {
            self.abort(net, number);
        }
    }

    /// Whether a session is one of two that serve a request.
    fn hands(&self, number: u64) -> bool {
        self.sessions.get(&number).is_some_and(|session| session.spec.handover.is_some())
    }

    fn end(&mut self, number: u64) {
        if let Some(session) = self.sessions.get_mut(&number) {
            session.phase = Phase::Ended;
        }
    }
}

/// No id below `cp` is ever given out, and none twice in one table.
fn owners_follow_ids(memory: &Memory, pages: &[hicached_actors::protocol::PageId]) -> Result<(), Violation> {
    let mut seen: Vec<_> = pages.to_vec();
    seen.sort_unstable();
    seen.dedup();
    if seen.len() == pages.len() && pages.iter().all(|page| memory.holds(Some(*page), None)) {
        return Ok(());
    }
    Err(Violation { checker: "A3", detail: format!("a block table of {pages:?}") })
}
