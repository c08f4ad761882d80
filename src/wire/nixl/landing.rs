//! The receiving half over NIXL: berths that senders write to, and the copy of what was announced into the pool.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hicached_actors::protocol::Refusal;

use super::agent::{Agent, Side};
use super::berths::Berths;
use super::{NAME, NixlSettings, Runtime, greeting};
use crate::wire::board::Board;
use crate::wire::claim::Claim;
use crate::wire::grants::Grants;
use crate::wire::listening::Listening;
use crate::wire::pool::Span;
use crate::wire::tcp::frame::{Ack, HEADER_BYTES, Header, RUN_BYTES, decode_runs};
use crate::wire::tcp::socket::{Moved, Socket, Wait, span_of};
use crate::wire::{Events, FrameRefusal, Grant, GrantSpec, Landing, LandingFigures, Name, Report, StartError};

/// The landing of one rank.
#[derive(Debug)]
pub(super) struct NixlLanding {
    /// Ended before the grants, which its threads use.
    listening: Listening,
    grants: Arc<Grants>,
}

impl NixlLanding {
    pub(super) fn start(settings: &NixlSettings, runtime: &Runtime, events: Events) -> Result<Self, StartError> {
        let grants = Arc::new(Grants::start(events)?);
        let (of_threads, runtime, idle) = (grants.clone(), runtime.clone(), settings.idle);
        let serve =
            Box::new(move |socket: Socket, closed: &AtomicBool| serve(&socket, &of_threads, &runtime, idle, closed));
        let NixlSettings { listen, advertise, connections_max, .. } = settings;
        let listening = Listening::start(*listen, advertise.as_deref(), *connections_max, serve)?;
        Ok(Self { listening, grants })
    }
}

impl Landing for NixlLanding {
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

/// Serves a connection until the other side closes it between two frames.
///
/// # Errors
/// The connection broke, stopped in the middle of a frame, went unread, or brought what is no frame; or NIXL failed.
fn serve(socket: &Socket, grants: &Grants, runtime: &Runtime, idle: Duration, closed: &AtomicBool) -> io::Result<()> {
    let mut greeted = [0; greeting::BYTES];
    socket.read_all(&mut greeted, idle)?;
    // Dropped in this order: the agent first, then what it writes to.
    let mut berths = Berths::new(greeting::asked(&greeted)?)?;
    let mut agent = runtime.agent(Side::Receives)?;
    let served = welcome(socket, &mut agent, &berths, idle).and_then(|()| frames(socket, grants, &berths, idle));
    drop(agent);
    // A sender that closes between two frames has nothing on its way; one that is closed upon may have.
    berths.is_quiet = served.is_ok() && !closed.load(Ordering::Acquire);
    served
}

fn welcome(socket: &Socket, agent: &mut Agent, berths: &Berths, idle: Duration) -> io::Result<()> {
    // Given back with the agent.
    let _registration = agent.register(berths.span())?;
    let address = berths.span().start.as_ptr() as u64;
    socket.write_all(&greeting::answer(address, &agent.description()?)?, idle)
}

fn frames(socket: &Socket, grants: &Grants, berths: &Berths, idle: Duration) -> io::Result<()> {
    while let Some(head) = next_head(socket, idle)? {
        let answer = |number, refusal| socket.write_all(&Ack { number, refusal }.encode(), idle);
        let header = match Header::decode(&head) {
            Ok(header) => header,
            Err(refusal) => {
                answer(0, Some(refusal))?;
                return Err(io::ErrorKind::InvalidData.into());
            }
        };
        let mut runs = vec![0; RUN_BYTES * header.runs as usize];
        socket.read_all(&mut runs, idle)?;
        let runs = decode_runs(&runs);
        let claim = grants.find(&header.secret).and_then(|board| Claim::take(&board, &header.claiming(&runs)));
        let landed = claim.and_then(|claim| match berths.of(header.number, header.payload_bytes) {
            Some(arrived) => land(claim, arrived),
            None => Err(FrameRefusal::Bytes),
        });
        answer(header.number, landed.err())?;
    }
    Ok(())
}

/// The next header. It may be long in coming; `None` when the other side closes instead.
fn next_head(socket: &Socket, idle: Duration) -> io::Result<Option<[u8; HEADER_BYTES]>> {
    let mut head = [0; HEADER_BYTES];
    let begun = loop {
        match socket.read(&[span_of(&mut head)]) {
            Ok(Moved::Bytes(bytes)) => break bytes,
            Ok(Moved::Later) => drop(socket.wait(Wait::Read, LONG)?),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(error),
        }
    };
    socket.read_all(&mut head[begun..], idle)?;
    Ok(Some(head))
}

/// Copies what has arrived to where it belongs. The grant is held open for the time of a copy.
fn land(claim: Claim, arrived: Span) -> Result<(), FrameRefusal> {
    let mut left = arrived;
    for to in claim.spans() {
        let writing = claim.enter()?;
        to.copy_from(left, to.bytes);
        drop(writing);
        left = left.skip(to.bytes);
    }
    claim.land()
}

/// Between two looks at a connection on which nothing has begun.
const LONG: Duration = Duration::from_secs(60);
