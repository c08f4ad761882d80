//! Random traffic: prompts with shared prefixes, chunked prefill, growing decode, aborts and stalls.

use hicached_actors::protocol::Time;

use super::{Engine, Phase, Spec};
use crate::checks::Violation;
use crate::layout::Layout;
use crate::memory::Memory;
use crate::net::Net;

/// What the engine is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// New sessions come.
    Open,
    /// What runs is to end.
    Finish,
}

impl Engine {
    /// Looks around: opens, extends, steps, stalls, closes, aborts.
    pub fn look(&mut self, net: &mut Net, memory: &mut Memory, load: Load) -> Result<(), Violation> {
        self.repeat_due(net);
        self.keep_alive(net, &memory.layout);
        self.forget_ended();
        if !self.is_ready(&memory.layout) {
            return Ok(());
        }
        if load == Load::Open && self.sessions.len() < net.mix.sessions && net.chance.happens(400) {
            let pages = u64::from((self.pages - 1) * u32::from(memory.layout.cp));
            let spec = self.draw_spec(net, &memory.layout, pages);
            self.open(net, &memory.layout, spec);
        }
        self.look_at_sessions(net, &memory.layout);
        self.ask_for_pages(net);
        let margin = Time { ns: net.now.ns + self.lease_ms * 300_000 };
        let running = self.steps.values().filter(|step| !step.entries.is_empty()).count();
        if running >= STEPS_IN_FLIGHT_MAX || self.steps.len() >= STEPS_UNANSWERED_MAX || margin > self.lease_until {
            return Ok(());
        }
        let runs = self.choose_runs(net, &memory.layout);
        if !runs.is_empty() {
            self.step(net, memory, &runs)?;
        }
        Ok(())
    }

    fn look_at_sessions(&mut self, net: &mut Net, layout: &Layout) {
        let unheard: Vec<u64> = self
            .pending
            .values()
            .filter_map(|p| if let super::Ask::Step(step) = p.ask { Some(step) } else { None })
            .collect();
        for number in self.with_phase(Phase::Live) {
            let Some(session) = self.sessions.get_mut(&number) else { continue };
            // A close rarely overtakes a step: what the index has not heard of is not cached.
            let heard = !unheard.contains(&session.last_step) || net.chance.happens(10);
            if session.extending || session.stalled_until > net.now {
                continue;
            }
            let done = session.frontier >= session.end();
            if net.chance.happens(net.mix.abort) {
                self.abort(net, number);
            } else if session.waits {
                // Only its pages let it go on.
            } else if heard && (done || net.chance.happens(net.mix.abort / 4)) {
                // A load that is running must have been read first: its void steps run again.
                if session.load.is_none() || net.chance.happens(20) {
                    self.close(net, layout, number);
                }
            } else if net.chance.happens(net.mix.stall) {
                session.stalled_until = net.now.plus_ms(net.chance.within(1, 200));
            } else if !done && session.next_tokens(layout) == 0 {
                let left = session.end() - session.frontier;
                let tokens = left.min(session.spec.chunk_tokens.max(net.chance.within(1, 40) as u32));
                self.extend(net, number, tokens, Vec::new());
            }
        }
    }

    fn choose_runs(&mut self, net: &mut Net, layout: &Layout) -> Vec<(u64, u32, bool)> {
        let mut runs = Vec::new();
        for number in self.with_phase(Phase::Live) {
            let session = &self.sessions[&number];
            let tokens = session.next_tokens(layout);
            let stalled = session.stalled_until > net.now || session.extending && net.chance.happens(500);
            if tokens > 0 && !stalled && runs.len() < SESSIONS_IN_STEP_MAX && net.chance.happens(700) {
                let jump = if session.frontier >= session.spec.prompt_tokens && net.chance.happens(500) {
                    // Several tokens at once: accepted drafts.
                    (session.end() - session.frontier).min(4)
                } else {
                    tokens
                };
                let room = (session.pages.len() as u32 * layout.page_tokens) - session.frontier;
                runs.push((number, jump.min(room).max(1), session.spec.draft));
            }
        }
        runs
    }

    /// A request for groups that have so many pages.
    pub(crate) fn draw_spec(&self, net: &mut Net, layout: &Layout, capacity: u64) -> Spec {
        let (tenant, salt) = net.chance.one_of(&[("a", "x"), ("b", "x"), ("a", "y")]);
        let pages_max = (capacity / 3).clamp(2, 12);
        let page = u64::from(layout.page_tokens);
        let document = net.chance.within(0, 3);
        let shared = net.chance.within(1, pages_max * page);
        let own = if net.chance.happens(500) { net.chance.within(1, 2 * page) } else { 0 };
        let decode = if net.chance.happens(700) { net.chance.within(0, page + page / 2) } else { 0 };
        let whole = if net.chance.happens(300) { shared.div_ceil(page) * page } else { shared };
        let mut tokens: Vec<u32> = (0..whole).map(|at| (document * 10_000 + at) as u32).collect();
        tokens.extend((0..own).map(|at| (1_000_000 + self.sessions_made * 1_000 + at) as u32));
        let prompt_tokens = tokens.len() as u32;
        // Half of the answers are the same for the same prompt, so that decoded pages are met again.
        let stem = if own == 0 { 500_000 + document * 1_000 } else { 2_000_000 + self.sessions_made * 1_000 };
        tokens.extend((0..decode).map(|at| (stem + at) as u32));
        Spec {
            tenant: tenant.to_owned(),
            salt: Self::salt(layout, salt.as_bytes()),
            tokens,
            prompt_tokens,
            chunk_tokens: net.chance.within(page / 2, 4 * page) as u32,
            draft: !net.chance.happens(net.mix.no_draft) || layout.layers.1 == 0,
            owners: Vec::new(),
            no_match: net.chance.happens(30),
            priority: net.chance.within(0, 2) as u8,
            handover: None,
        }
    }

    fn forget_ended(&mut self) {
        let named: Vec<u64> =
            self.steps.values().flat_map(|step| step.entries.iter().map(|entry| entry.session)).collect();
        let asked = |number: &u64| {
            self.pending.values().any(|pending| match pending.ask {
                super::Ask::Open(of)
                | super::Ask::Extend(of)
                | super::Ask::Close(of)
                | super::Ask::Abort(of)
                | super::Ask::Handover(of) => of == *number,
                super::Ask::Register(_) | super::Ask::Step(_) | super::Ask::Heartbeat(_) | super::Ask::Plain => false,
            })
        };
        let gone: Vec<u64> = self
            .with_phase(Phase::Ended)
            .into_iter()
            .filter(|number| !named.contains(number) && !asked(number))
            .filter(|number| self.sessions.get(number).is_some_and(|session| !session.is_watched))
            .collect();
        for number in gone {
            self.sessions.remove(&number);
            self.refused.remove(&number);
            self.closed.remove(&number);
        }
    }
}

/// Forwards an engine has in flight.
const STEPS_IN_FLIGHT_MAX: usize = 3;

/// Forwards that have run or run without an answer of the index.
const STEPS_UNANSWERED_MAX: usize = 8;

/// Sessions of one forward.
const SESSIONS_IN_STEP_MAX: usize = 4;
