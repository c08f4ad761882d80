//! Requests that both groups serve: an attempt opens a session on each side, a side that does not end well ends the
//! other one, or leaves that to the machines, and the next attempt begins.

use std::collections::BTreeMap;

use hicached_actors::protocol::{HandoverWish, Incarnation, OpId, OpIds, Time};

use super::{DECODE, Pair};
use crate::chance::Chance;
use crate::engine::traffic::Load;
use crate::engine::{Engine, Phase, Spec};
use crate::net::{Event, Net};
use crate::world::Sim;

/// Requests under way.
#[derive(Debug)]
pub(super) struct Router {
    /// What it is asked to do.
    pub(super) load: Load,
    requests: BTreeMap<u64, Request>,
    made: u64,
    transfers: OpIds,
    requests_max: usize,
}

#[derive(Debug)]
struct Request {
    spec: Spec,
    transfer: OpId,
    attempt: u32,
    prefill: Side,
    decode: Side,
    /// Whether prefill begins only when decode has room for the whole prompt.
    decode_first: bool,
    /// Whether a side that ends early is told to the other one; else the machines tell.
    tells: bool,
    came: bool,
    /// The attempt begins no earlier.
    not_before: Time,
}

/// How far one side of an attempt is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Waiting,
    Runs(u64),
    /// It is over: by `close`, or early.
    Over {
        closed: bool,
    },
}

impl Router {
    pub(super) fn new(chance: &mut Chance) -> Self {
        let transfers = OpIds::new(Incarnation(chance.uuid()));
        let requests_max = chance.within(1, 5) as usize;
        Self { load: Load::Open, requests: BTreeMap::new(), made: 0, transfers, requests_max }
    }

    /// Whether an attempt runs.
    pub(super) fn runs(&self) -> bool {
        self.requests.values().any(|request| matches!(request.decode, Side::Runs(_)) && !request.came)
    }

    /// Whether nothing is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.requests.is_empty()
    }

    /// One line about what has not ended.
    pub(super) fn unfinished(&self) -> String {
        let told = self.requests.values().map(|request| {
            let Request { transfer, attempt, prefill, decode, came, .. } = request;
            format!("{transfer:?} attempt {attempt}: {prefill:?} {decode:?} came {came}")
        });
        format!("handovers {:?}", told.collect::<Vec<_>>())
    }
}

impl Pair {
    /// Looks around: begins requests, sides and attempts, and ends them.
    pub(super) fn route(&mut self) {
        let numbers: Vec<u64> = self.router.requests.keys().copied().collect();
        for number in numbers {
            let Some(mut request) = self.router.requests.remove(&number) else { continue };
            if self.look_at(&mut request) {
                self.router.requests.insert(number, request);
            }
        }
        let Self { prefill, decode, between: net, router, .. } = self;
        let has_room = router.load == Load::Open && router.requests.len() < router.requests_max;
        if has_room && net.chance.happens(300) {
            let pages = [&*prefill, &*decode].map(|sim| u64::from(sim.sizes.l1_pages) * u64::from(sim.sizes.cp));
            let spec = decode.engine.draw_spec(net, &decode.memory.layout, pages[0].min(pages[1]));
            let transfer = router.transfers.draw();
            router.made += 1;
            net.transfers.requests += 1;
            router.requests.insert(router.made, Request::new(&mut net.chance, spec, transfer));
        }
        let us = net.chance.within(400, 3_000);
        net.after_us(us, Event::Engine);
    }

    /// Whether a request goes on.
    fn look_at(&mut self, request: &mut Request) -> bool {
        let Self { prefill, decode, between: net, .. } = self;
        request.came |= matches!(request.decode, Side::Runs(number)
            if decode.engine.sessions.get(&number).is_some_and(|session| session.came));
        request.prefill = request.prefill.looked_at(&mut prefill.engine);
        request.decode = request.decode.looked_at(&mut decode.engine);
        match (request.prefill, request.decode) {
            (_, Side::Waiting) if net.now < request.not_before => {}
            (_, Side::Waiting) => request.begin_decode(net, decode),
            (Side::Waiting, Side::Runs(number)) => {
                let phase = decode.engine.sessions.get(&number).map(|session| session.phase);
                if !request.decode_first || phase == Some(Phase::Live) {
                    request.begin_prefill(net, prefill);
                }
            }
            (Side::Waiting, Side::Over { .. }) => request.prefill = Side::Over { closed: false },
            (Side::Over { .. }, Side::Over { .. }) => {
                if request.came {
                    return false;
                }
                net.transfers.failed += 1;
                net.transfers.repeated += 1;
                request.raise(net.now, &mut net.chance);
            }
            (Side::Runs(number), Side::Over { .. }) if request.tells && !request.came => {
                give_up(prefill, number);
            }
            (Side::Over { closed: false }, Side::Runs(number)) if request.tells && !request.came => {
                give_up(decode, number);
            }
            (Side::Runs(of_prefill), Side::Runs(of_decode)) if !request.came => {
                if net.chance.happens(net.mix.abort / 8) {
                    net.transfers.aborted += 1;
                    match net.chance.happens(500) {
                        true => give_up(prefill, of_prefill),
                        false => give_up(decode, of_decode),
                    }
                }
            }
            (Side::Runs(_), Side::Over { .. }) | (Side::Over { .. } | Side::Runs(_), Side::Runs(_)) => {}
        }
        true
    }
}

impl Request {
    fn new(chance: &mut Chance, spec: Spec, transfer: OpId) -> Self {
        let (prefill, decode) = (Side::Waiting, Side::Waiting);
        let (decode_first, tells) = (chance.happens(700), chance.happens(500));
        let not_before = Time::ZERO;
        Self { spec, transfer, attempt: 1, prefill, decode, decode_first, tells, came: false, not_before }
    }

    /// The next attempt, after a pause that grows; behind one that no side has begun it may be the same again.
    fn raise(&mut self, now: Time, chance: &mut Chance) {
        let pause_ms = (PAUSE_MS << self.attempt.min(PAUSES_DOUBLED_MAX)) * chance.within(1, 4) / 4;
        self.not_before = now.plus_ms(pause_ms);
        self.attempt += u32::from(!chance.happens(200));
        // A request whose draft does not run is not handed over.
        self.spec.draft = true;
        (self.prefill, self.decode) = (Side::Waiting, Side::Waiting);
        self.decode_first = chance.happens(700);
        self.tells = chance.happens(500) || self.attempt > ATTEMPTS_UNTOLD_MAX;
    }

    /// What a side is asked to be. One that computes and finds no room again and again does without what its group
    /// has, which may stand in the very lanes that are short, and asks for all of its pages at once.
    fn spec(&self, attempt: u32, to: &str) -> Spec {
        let wish = HandoverWish { transfer: self.transfer, attempt, to: to.to_owned() };
        let mut spec = Spec { handover: Some(wish), ..self.spec.clone() };
        if !to.is_empty() && attempt > ATTEMPTS_UNTOLD_MAX {
            (spec.no_match, spec.chunk_tokens) = (true, spec.prompt_tokens);
        }
        spec
    }

    fn begin_decode(&mut self, net: &mut Net, decode: &mut Sim) {
        if let Some(number) = begin(decode, self.spec(self.attempt, ""), true) {
            self.decode = Side::Runs(number);
            self.ghost(net, decode, "");
        }
    }

    fn begin_prefill(&mut self, net: &mut Net, prefill: &mut Sim) {
        if let Some(number) = begin(prefill, self.spec(self.attempt, DECODE), true) {
            self.prefill = Side::Runs(number);
            self.ghost(net, prefill, DECODE);
        }
    }

    /// Somebody comes late with an attempt below this one.
    fn ghost(&self, net: &mut Net, sim: &mut Sim, to: &str) {
        if self.attempt > 1 && net.chance.happens(net.mix.chatter * 3) {
            net.transfers.ghosts += u64::from(begin(sim, self.spec(self.attempt - 1, to), false).is_some());
        }
    }
}

impl Side {
    fn looked_at(self, engine: &mut Engine) -> Self {
        let Self::Runs(number) = self else { return self };
        let closed = engine.closed.contains_key(&number);
        match engine.sessions.get_mut(&number) {
            None => Self::Over { closed: false },
            Some(session) if session.phase == Phase::Ended => {
                session.is_watched = false;
                Self::Over { closed }
            }
            Some(_) => self,
        }
    }
}

/// Opens one side of a request, when its engine can.
fn begin(sim: &mut Sim, spec: Spec, is_watched: bool) -> Option<u64> {
    if !sim.engine.is_ready(&sim.memory.layout) {
        return None;
    }
    let number = sim.engine.open(&mut sim.net, &sim.memory.layout, spec);
    if let Some(session) = sim.engine.sessions.get_mut(&number) {
        session.is_watched = is_watched;
    }
    Some(number)
}

/// Ends one side early, also one that has closed and waits for the other's end.
fn give_up(sim: &mut Sim, number: u64) {
    let is_given_up = sim.engine.pending.values().any(|pending| pending.ask == crate::engine::Ask::Abort(number));
    if !is_given_up {
        sim.engine.abort(&mut sim.net, number);
    }
}

/// The shortest pause behind an attempt that came to nothing.
const PAUSE_MS: u64 = 5;

/// How often a pause is doubled.
const PAUSES_DOUBLED_MAX: u32 = 7;

/// Attempts of which machines alone may have to find out that one side is over: that takes their longest timers.
const ATTEMPTS_UNTOLD_MAX: u32 = 4;
