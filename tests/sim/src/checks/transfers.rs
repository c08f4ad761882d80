//! What must be true of handovers, judged from what the machines of one group say and from what its ranks do.

use std::collections::{BTreeMap, BTreeSet};

use hicached_actors::host::Dest;
use hicached_actors::protocol::{
    Address, Answer, Arrived, Envelope, Expect, NotArriving, OpId, PageId, Refusal, SendOpen, SendOver, decode,
};

use super::{Truths, Violation};
use crate::engine::{Ask, Engine, Phase};
use crate::rank::{Name, Written};

/// What checks remember of the handovers of a control incarnation.
#[derive(Debug, Default)]
pub(super) struct TransferChecks {
    /// The highest attempt of each transfer that was begun, on the side that sends and on the one that receives.
    begun: BTreeMap<(OpId, Address), u32>,
    expected: BTreeMap<Name, Expect>,
    arrived: BTreeSet<Name>,
    failed: BTreeSet<Name>,
}

impl TransferChecks {
    /// Looks at what a machine says before it is said.
    ///
    /// # Errors
    /// The rule it breaks.
    pub(super) fn look(
        &mut self,
        from: Address,
        to: &Dest,
        envelope: &Envelope,
        truths: &Truths<'_>,
    ) -> Result<(), Violation> {
        let (op, body) = (envelope.op, &envelope.body.0);
        match (from, to, envelope.kind.as_str()) {
            (Address::Index, Dest::Actor(side @ Address::Sender), "send_open") => match decode::<SendOpen>(body) {
                Ok(open) => self.begins((op, *side), open.attempt),
                Err(_) => Ok(()),
            },
            (Address::Index, Dest::Actor(side @ Address::Receiver), "expect") => match decode::<Expect>(body) {
                Ok(expect) => {
                    let attempt = expect.attempt;
                    self.expected.insert((op, attempt), expect);
                    self.begins((op, *side), attempt)
                }
                Err(_) => Ok(()),
            },
            (Address::Receiver, _, "arrived") => match decode::<Arrived>(body) {
                Ok(arrived) => self.arrives((op, arrived.attempt), &arrived, truths),
                Err(_) => Ok(()),
            },
            (Address::Receiver, _, "not_arriving") => match decode::<NotArriving>(body) {
                Ok(ended) => self.does_not_arrive((op, ended.attempt), truths),
                Err(_) => Ok(()),
            },
            (Address::Sender, Dest::Actor(Address::Index), "send_over") => match decode::<SendOver>(body) {
                Ok(over) => nothing_is_read((op, over.attempt), truths),
                Err(_) => Ok(()),
            },
            (Address::Index, Dest::Reply(reply), "handed_over" | "refused") => {
                let number = reply.0.parse().unwrap_or(0);
                self.answers(number, &envelope.kind, body, truths.engine)
            }
            _ => Ok(()),
        }
    }

    /// C7: a lower attempt begins nothing.
    fn begins(&mut self, of: (OpId, Address), attempt: u32) -> Result<(), Violation> {
        let highest = self.begun.entry(of).or_insert(attempt);
        if attempt < *highest {
            let detail = format!("attempt {attempt} of {of:?} begins after attempt {highest}");
            return Err(Violation { checker: "C7", detail });
        }
        *highest = attempt;
        Ok(())
    }

    /// E1, C6: what has arrived is right, all of it, and nothing can land there any more.
    fn arrives(&mut self, name: Name, arrived: &Arrived, truths: &Truths<'_>) -> Result<(), Violation> {
        nothing_lands(name, "has arrived", truths)?;
        if self.failed.contains(&name) {
            return Err(Violation { checker: "C7", detail: format!("{name:?} arrives after it has failed") });
        }
        if !self.arrived.insert(name) {
            return Ok(());
        }
        let Some(expect) = self.expected.get(&name) else {
            return Err(Violation { checker: "C7", detail: format!("{name:?} arrives and nobody expects it") });
        };
        let layout = &truths.memory.layout;
        let session = truths.engine.sessions.values().find(|session| session.is_of(name));
        let Some(session) = session.filter(|session| session.waits && session.phase == Phase::Live) else {
            return Ok(());
        };
        for (at, page) in (expect.first..).zip(&expect.pages.0) {
            let (text, tokens) = (session.text(layout, at), arrived.tokens - at * layout.page_tokens);
            if let Some(part) = truths.memory.l1_wrong_before(*page, &text, tokens) {
                let part = &layout.parts[part];
                let (component, layer) = (&part.component, part.layer);
                let detail = format!("{name:?} has arrived: {component} layer {layer} of {at} at {page:?} is wrong");
                return Err(Violation { checker: "E1", detail });
            }
        }
        Ok(())
    }

    /// C6: what does not arrive is told only when nothing can land any more.
    fn does_not_arrive(&mut self, name: Name, truths: &Truths<'_>) -> Result<(), Violation> {
        nothing_lands(name, "has failed", truths)?;
        // Whoever asks again about an attempt below one that has begun is told that it is over, and no more.
        let newest = self.begun.get(&(name.0, Address::Receiver)).copied();
        if self.arrived.contains(&name) && newest == Some(name.1) {
            return Err(Violation { checker: "C7", detail: format!("{name:?} fails after it has arrived") });
        }
        self.failed.insert(name);
        Ok(())
    }

    /// C8: whoever waits hears of one end of an attempt, and that it is handed over only when all of it has arrived.
    fn answers(&self, number: u64, kind: &str, body: &[u8], engine: &Engine) -> Result<(), Violation> {
        let Some(Ask::Handover(session)) = engine.pending.get(&number).map(|pending| pending.ask) else {
            return Ok(());
        };
        let wish = engine.sessions.get(&session).and_then(|session| session.spec.handover.as_ref());
        let Some(name) = wish.map(|wish| (wish.transfer, wish.attempt)) else { return Ok(()) };
        let failed = || match Answer::decode_body(kind, body) {
            Some(Ok(Answer::Refused(Refusal::WrongState(refused)))) => refused.state.starts_with("failed"),
            _ => false,
        };
        let broken = match kind {
            "handed_over" if !self.arrived.contains(&name) => "is handed over and has not arrived",
            "refused" if self.arrived.contains(&name) && failed() => "has arrived and is said to have failed",
            _ => return Ok(()),
        };
        Err(Violation { checker: "C8", detail: format!("{name:?} {broken}") })
    }
}

/// C6: no rank lets bytes of this attempt land.
fn nothing_lands(name: Name, why: &str, truths: &Truths<'_>) -> Result<(), Violation> {
    match truths.ranks.iter().any(|rank| rank.is_alive() && rank.lets_land(name)) {
        true => Err(Violation { checker: "C6", detail: format!("{name:?} {why} and bytes of it can land") }),
        false => Ok(()),
    }
}

/// C6: no rank reads pages for this attempt.
fn nothing_is_read(name: Name, truths: &Truths<'_>) -> Result<(), Violation> {
    let reads = |rank: &crate::rank::RankProcess| rank.is_alive() && rank.pushed_pages().any(|(_, of)| of == name);
    match truths.ranks.iter().position(reads) {
        Some(rank) => {
            let detail = format!("{name:?} is over and rank {rank} reads its pages");
            Err(Violation { checker: "C6", detail })
        }
        None => Ok(()),
    }
}

/// C6: a page is given to nobody while bytes of a transfer can land in it or are read from it.
pub(super) fn untouched(l1: &[PageId], truths: &Truths<'_>, why: &str) -> Result<(), Violation> {
    for rank in truths.ranks.iter().filter(|rank| rank.is_alive()) {
        if let Some((page, of)) = rank.landing_pages().find(|(page, _)| l1.contains(page)) {
            let detail = format!("{page:?} is {why} while bytes of {of:?} can land in it");
            return Err(Violation { checker: "C6", detail });
        }
        if let Some((page, of)) = rank.pushed_pages().find(|(page, _)| l1.contains(page)) {
            let detail = format!("{page:?} is {why} while it is sent for {of:?}");
            return Err(Violation { checker: "C6", detail });
        }
    }
    Ok(())
}

/// C1, C6: a frame writes only what its attempt waits for.
///
/// # Errors
/// A page that somebody else uses, or that was here already.
pub(crate) fn landed(engine: &Engine, written: &Written) -> Result<(), Violation> {
    let Written { of, pages } = written;
    let used = engine.used_pages().filter(|(page, _)| pages.contains(page));
    for (page, number) in used {
        let Some(session) = engine.sessions.get(&number) else { continue };
        let here = (session.hit_pages + session.load_pages) as usize;
        let waits = session.waits && session.is_of(*of);
        if !waits || !session.pages.get(here..).is_some_and(|pages| pages.contains(&page)) {
            let detail = format!("bytes of {of:?} land in {page:?}, which session {number} uses: {:?}", session.phase);
            return Err(Violation { checker: "C6", detail });
        }
    }
    Ok(())
}
