//! The receiving side of a rank: grants are given, looked at and taken back.

use std::sync::Arc;

use hicached_actors::machine::{Effect, Sender};
use hicached_actors::protocol::{
    Accept, Accepting, Bin, Landed, Malformed, OpId, Outgoing, Owners, PageId, Rank, ReceiverIn, Refusal, Report,
    Revoke, Revoked, Unknown, WrongState,
};
use hicached_kernels::layout::Component;

use super::{GrantState, Granted, ascending, over};
use crate::rank::machine::RankMachine;
use crate::rank::orders::same_length;
use crate::wire::{GrantSpec, Name, Pool};

impl RankMachine {
    /// Lets bytes of an attempt land; the same again is answered from the grant.
    pub(in crate::rank) fn accept(&mut self, from: &Sender, msg: &Accept, out: &mut Vec<Effect>) {
        let name = Name { transfer: from.op, attempt: msg.attempt };
        match self.granted(name, msg) {
            Ok(()) => self.say_accepting(from, name, out),
            Err(refusal) => self.reject(from, refusal, out),
        }
    }

    fn granted(&mut self, name: Name, msg: &Accept) -> Result<(), Refusal> {
        let positions: Vec<u32> = msg.positions.0.iter().map(|position| position.0).collect();
        let pages = self.own_pages(&msg.pages.0)?;
        let wire = self.wire()?;
        if wire.revoked.covers(name) {
            return Err(over(name, "was revoked"));
        }
        if let Some(granted) = wire.grants.get(&name) {
            let is_same =
                granted.positions == positions && granted.pages == pages && granted.components == msg.components;
            return match (&granted.state, is_same) {
                (GrantState::Open, true) => Ok(()),
                (GrantState::Open, false) => Err(over(name, "has other pages")),
                (GrantState::Revoking { .. }, _) => Err(over(name, "is being revoked")),
            };
        }
        self.room()?;
        same_length("positions", positions.len(), pages.len())?;
        ascending(&positions)?;
        let pool = self.pool_of(&msg.components)?;
        let claim = self.claims.up(&pages, &[])?;
        let spec = GrantSpec { name, positions: positions.clone(), pages: pages.clone(), pool };
        match self.wire().and_then(|wire| wire.landing.accept(spec)) {
            Ok(grant) => {
                let (components, state) = (msg.components.clone(), GrantState::Open);
                let granted = Granted { grant, positions, pages, components, claim, state };
                let wire = self.wire()?;
                wire.counts.grants += 1;
                wire.grants.insert(name, granted);
                Ok(())
            }
            Err(refusal) => {
                self.claims.give_back(claim);
                Err(refusal)
            }
        }
    }

    fn say_accepting(&mut self, from: &Sender, name: Name, out: &mut Vec<Effect>) {
        let rank = self.rank;
        let Some(granted) = self.wire.as_ref().and_then(|wire| wire.grants.get(&name)) else { return };
        let (endpoint, grant) = (granted.grant.endpoint.clone(), Bin(granted.grant.secret.to_vec()));
        let accepting = Accepting { attempt: name.attempt, rank, endpoint, grant };
        out.push(to_receiver(accepting.into(), from));
    }

    /// Says what has landed.
    pub(in crate::rank) fn report(&mut self, from: &Sender, msg: &Report, out: &mut Vec<Effect>) {
        let name = Name { transfer: from.op, attempt: msg.attempt };
        let report = self.wire().map(|wire| wire.landing.report(name));
        match report {
            Ok(Some(report)) => {
                let (rank, owners) = (self.rank, Owners(report.owners));
                let landed = Landed { attempt: name.attempt, rank, owners, figures: report.figures };
                out.push(to_receiver(landed.into(), from));
            }
            Ok(None) => self.reject(from, Unknown::new("transfer", name.transfer).into(), out),
            Err(refusal) => self.reject(from, refusal, out),
        }
    }

    /// Takes a grant back; the answer comes when nothing of it can be written.
    pub(in crate::rank) fn revoke(&mut self, from: &Sender, msg: &Revoke, out: &mut Vec<Effect>) {
        let name = Name { transfer: from.op, attempt: msg.attempt };
        let wire = match self.wire() {
            Ok(wire) => wire,
            Err(refusal) => return self.reject(from, refusal, out),
        };
        wire.revoked.put_highest(name.transfer, name.attempt);
        let Some(granted) = wire.grants.get_mut(&name) else { return self.say_revoked(from, name, out) };
        if let GrantState::Open = granted.state {
            wire.landing.revoke(name, msg.drained);
        }
        granted.state = GrantState::Revoking { asked: Some(from.trace.clone()) };
    }

    fn say_revoked(&self, from: &Sender, name: Name, out: &mut Vec<Effect>) {
        let revoked = Revoked { attempt: name.attempt, rank: self.rank };
        out.push(to_receiver(revoked.into(), from));
    }

    /// Nothing of a grant can be written any more.
    pub(super) fn grant_gone(&mut self, name: Name, out: &mut Vec<Effect>) {
        let Some(granted) = self.wire.as_mut().and_then(|wire| wire.grants.remove(&name)) else { return };
        self.claims.give_back(granted.claim);
        let revoked = Revoked { attempt: name.attempt, rank: self.rank };
        match granted.state {
            GrantState::Revoking { asked: Some(trace) } => {
                let to = Outgoing::Receiver(revoked.into());
                out.push(Effect::Send { to, op: name.transfer, trace });
            }
            // Whoever asks later is answered then.
            GrantState::Open | GrantState::Revoking { asked: None } => {}
        }
    }

    /// The physical pages of this rank, each once.
    pub(super) fn own_pages(&self, pages: &[PageId]) -> Result<Vec<u32>, Refusal> {
        self.lane().l1_pages(pages)
    }

    /// The pool that pages are sent from and land in, with the buffers of `components`, or all where none are named.
    pub(super) fn pool_of(&self, components: &[String]) -> Result<Arc<Pool>, Refusal> {
        let l1 = self.l1.as_ref().ok_or_else(|| Refusal::from(no_engine(self.rank)))?;
        if components.is_empty() {
            return Ok(l1.pool().clone());
        }
        let known = |name: &String| {
            let found = Component::from_name(name).filter(|known| l1.pool().buffers().has(*known));
            found.ok_or_else(|| Malformed::new("components", name, "one that this rank stores"))
        };
        let named = components.iter().map(known).collect::<Result<Vec<Component>, Malformed>>()?;
        Ok(Arc::new(l1.pool().only(&named)))
    }
}

fn no_engine(rank: Rank) -> WrongState {
    WrongState { what: format!("{rank:?}"), state: "no engine attached".to_owned() }
}

fn to_receiver(msg: ReceiverIn, of: &Sender) -> Effect {
    let op: OpId = of.op;
    Effect::Send { to: Outgoing::Receiver(msg), op, trace: of.trace.clone() }
}
