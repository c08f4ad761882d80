//! A backend as none may be: it pairs what it is given with what it is granted by their order.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use hicached::wire::{
    Backend, Contract, Event, Events, Grant, GrantSpec, Landing, LandingFigures, Launch, LayersReady, NOBODY, Name,
    PushEnd, PushKey, PushOrder, Report, StartError,
};
use hicached_actors::protocol::{LandFigures, PushFigures, Refusal, Unknown};

use crate::world::{read, write};

/// The next place of each grant.
type Fills = Arc<Mutex<BTreeMap<[u8; 16], (GrantSpec, Vec<u8>)>>>;

#[derive(Debug, Default)]
pub(crate) struct ByOrder {
    fills: Fills,
}

impl Backend for ByOrder {
    fn name(&self) -> &'static str {
        "by-order"
    }

    fn contract(&self) -> Contract {
        Contract { addressed: false, drain_proof: true, fence: false }
    }

    fn landing(&self, events: Events) -> Result<Box<dyn Landing>, StartError> {
        Ok(Box::new(Half { fills: self.fills.clone(), events }))
    }

    fn launch(&self, events: Events) -> Result<Box<dyn Launch>, StartError> {
        Ok(Box::new(Half { fills: self.fills.clone(), events }))
    }
}

#[derive(Debug)]
struct Half {
    fills: Fills,
    events: Events,
}

impl Landing for Half {
    fn accept(&self, spec: GrantSpec) -> Result<Grant, Refusal> {
        let mut fills = self.fills.lock().expect("no panic");
        let secret = [fills.len() as u8; 16];
        fills.insert(secret, (spec, Vec::new()));
        Ok(Grant { endpoint: "by-order:".to_owned(), secret })
    }

    fn report(&self, name: Name) -> Option<Report> {
        let fills = self.fills.lock().expect("no panic");
        let (spec, owners) = fills.values().find(|(spec, _)| spec.name == name)?;
        let (mut owners, buffers) = (owners.clone(), spec.pool.buffers().as_slice());
        owners.resize(spec.positions.len(), NOBODY);
        let page_bytes: u64 = buffers.iter().map(|buffer| buffer.page_bytes).sum();
        let bytes = owners.iter().filter(|owner| **owner != NOBODY).count() as u64 * page_bytes;
        let figures = LandFigures { bytes, buffers: buffers.len() as u64, refused: 0 };
        Some(Report { owners, missing: None, figures })
    }

    fn revoke(&self, name: Name, _: bool) {
        self.events.send(Event::Revoked(name));
    }

    fn revoke_all(&self) {}

    fn is_still(&self) -> bool {
        true
    }

    fn figures(&self) -> LandingFigures {
        LandingFigures::default()
    }
}

impl Launch for Half {
    fn push(&self, order: PushOrder) -> Result<(), Refusal> {
        let mut fills = self.fills.lock().expect("no panic");
        let (spec, owners) = fills.get_mut(&order.secret).ok_or_else(|| Unknown::new("grant", order.key))?;
        let mut bytes = 0;
        for page in order.pages {
            let Some(slot) = spec.pages.get(owners.len()) else { break };
            for (from, to) in order.source.buffers().as_slice().iter().zip(spec.pool.buffers().as_slice()) {
                write(&spec.pool, to, *slot, &read(&order.source, from, page));
                bytes += to.page_bytes;
            }
            owners.push(order.rank.0);
        }
        drop(fills);
        let figures =
            PushFigures { bytes, runs: 1, descriptors: 1, queue_us: 0, layers_us: 0, wire_us: 0, total_us: 0 };
        self.events.send(Event::Pushed(order.key, PushEnd::Complete, figures));
        Ok(())
    }

    fn ready(&self, _: PushKey, _: LayersReady) {}

    fn stop(&self, name: Name) {
        self.events.send(Event::Stopped(name));
    }

    fn stop_all(&self) {}

    fn is_still(&self) -> bool {
        true
    }
}
