//! The receiving half over TCP.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use hicached_actors::protocol::Refusal;

use super::socket::Socket;
use super::tls::Tls;
use super::{NAME, TcpSettings, stream};
use crate::wire::board::Board;
use crate::wire::grants::Grants;
use crate::wire::listening::Listening;
use crate::wire::{Events, Grant, GrantSpec, Landing, LandingFigures, Name, Report, StartError};

/// The landing of one rank.
#[derive(Debug)]
pub(super) struct TcpLanding {
    /// Ended before the grants, which its threads use.
    listening: Listening,
    grants: Arc<Grants>,
}

impl TcpLanding {
    pub(super) fn start(settings: &TcpSettings, tls: Option<Tls>, events: Events) -> Result<Self, StartError> {
        let (grants, idle) = (Arc::new(Grants::start(events)?), settings.idle);
        let of_threads = grants.clone();
        let serve = Box::new(move |mut socket: Socket, _: &AtomicBool| {
            if let Some(tls) = &tls {
                socket.encrypt(tls.accept()?, idle)?;
            }
            stream::serve(&socket, &of_threads, idle)
        });
        let TcpSettings { listen, advertise, connections_max, .. } = settings;
        let listening = Listening::start(*listen, advertise.as_deref(), *connections_max, serve)?;
        Ok(Self { listening, grants })
    }
}

impl Landing for TcpLanding {
    fn accept(&self, spec: GrantSpec) -> Result<Grant, Refusal> {
        let make = |secret| Ok(Board::on_heap(&spec, secret));
        self.grants.accept(&spec, make, |_| format!("{NAME}:{}", self.listening.address()))
    }

    fn report(&self, name: Name) -> Option<Report> {
        self.grants.report(name)
    }

    fn revoke(&self, name: Name, _drained: bool) {
        self.grants.revoke(name);
    }

    fn revoke_all(&self) {
        self.grants.revoke_all();
    }

    fn is_still(&self) -> bool {
        self.grants.is_still()
    }

    fn figures(&self) -> LandingFigures {
        self.grants.figures(self.listening.broken())
    }
}
