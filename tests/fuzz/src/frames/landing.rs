//! Bytes of connections to a landing: answered, written and counted as the model says.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use hicached::wire::tcp::{Tcp, TcpSettings};
use hicached::wire::{Backend as _, Event, Events, Grant, GrantSpec, Landing, Name};
use hicached_actors::protocol::{Incarnation, OpId};

use super::model::{Model, crc32};
use super::pools::Filled;
use crate::source::Source;

/// A landing with two grants, and steps: 0 to 3 say a frame, mostly a good one, 4 any bytes, 5 sends what was said so
/// far, 6 closes the connection, 7 revokes a grant.
pub(super) fn run(src: &mut Source<'_>) {
    let mut world = world().lock().unwrap_or_else(PoisonError::into_inner);
    world.pool.fill();
    let mut input = Input::begin(&mut world);
    for _ in 0..STEPS_MAX {
        if src.is_empty() {
            break;
        }
        input.step(src);
    }
    input.end();
}

struct World {
    pool: Filled,
    landing: Box<dyn Landing>,
    events: Receiver<Event>,
}

fn world() -> &'static Mutex<World> {
    static WORLD: OnceLock<Mutex<World>> = OnceLock::new();
    WORLD.get_or_init(|| {
        let (to, events) = channel();
        let tcp = Tcp::new(TcpSettings::default()).expect("sound settings");
        let landing = tcp.landing(Events::new(to, Arc::new(|| ()))).expect("a port and threads");
        Mutex::new(World { pool: Filled::new("landing", 0x5A).unlinked(), landing, events })
    })
}

/// One input's grants, and the connection that is open.
struct Input<'w> {
    world: &'w mut World,
    model: Model,
    names: [Name; 2],
    grants: [Grant; 2],
    before: [u64; 4],
    connection: Option<TcpStream>,
    /// What the open connection has been given, and how much of it has left.
    said: Vec<u8>,
    sent: usize,
}

impl<'w> Input<'w> {
    fn begin(world: &'w mut World) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let mut model = Model::new(&world.pool.pool, world.pool.bytes());
        let of = Incarnation([0x71; 16]);
        let [first, second] = [1, 2].map(|attempt| {
            let transfer = OpId::new(of, NEXT.fetch_add(1, Ordering::Relaxed));
            (Name { transfer, attempt }, if attempt == 1 { FIRST } else { SECOND })
        });
        let [a, b] = [first, second].map(|(name, (positions, pages))| {
            let (pool, positions, pages) = (world.pool.pool.clone(), positions.to_vec(), pages.to_vec());
            let spec = GrantSpec { name, positions: positions.clone(), pages: pages.clone(), pool };
            let grant = world.landing.accept(spec).expect("a good grant");
            model.grant(grant.secret, name.attempt, &positions, &pages);
            grant
        });
        let before = figures(&*world.landing);
        let (connection, said) = (None, Vec::new());
        Self { world, model, names: [first.0, second.0], grants: [a, b], before, connection, said, sent: 0 }
    }

    fn step(&mut self, src: &mut Source<'_>) {
        match src.u8() % 8 {
            PLAIN => self.said.extend(src.counted()),
            SEND => self.send(),
            CLOSE => self.close(),
            REVOKE => {
                self.close();
                let at = usize::from(src.u8() % 2);
                if !self.model.grants[at].is_revoked {
                    self.revoke(at);
                }
            }
            _ => {
                let frame = frame(&self.model, src);
                self.said.extend(frame);
            }
        }
        if self.said.len() > CONNECTION_BYTES_MAX {
            self.close();
        }
    }

    /// What was said leaves: the landing reads it in parts.
    fn send(&mut self) {
        let connection = self.connection.get_or_insert_with(|| connect(&self.grants[0]));
        // A landing that has ended the connection reads no more; the answers tell.
        if connection.write_all(&self.said[self.sent..]).is_ok() {
            self.sent = self.said.len();
        }
    }

    /// Everything has been said: the answers and the memory are looked at.
    fn close(&mut self) {
        if self.said.is_empty() && self.connection.is_none() {
            return;
        }
        self.send();
        let Some(mut connection) = self.connection.take() else { return };
        connection.shutdown(Shutdown::Write).ok();
        let mut answered = Vec::new();
        match connection.read_to_end(&mut answered) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "the landing does not close: {error}"),
        }
        let broken = self.model.broken;
        let answers = self.model.take(&self.said).concat();
        if self.model.broken == broken {
            assert_eq!(answered, answers);
        } else {
            // Whoever stops in the middle of a frame waits for no answers.
            assert!(answers.starts_with(&answered), "{answered:?} for {answers:?}");
        }
        (self.said, self.sent) = (Vec::new(), 0);
        self.check();
    }

    /// Every byte of the pool, every mark and every count is what the model says.
    fn check(&self) {
        assert!(self.world.pool.bytes() == self.model.bytes, "a byte that nobody was to write");
        for (at, name) in self.names.iter().enumerate().filter(|(at, _)| !self.model.grants[*at].is_revoked) {
            let report = self.world.landing.report(*name).expect("a grant that lives");
            assert_eq!(report.owners, self.model.owners(at));
        }
        let counted = figures(&*self.world.landing);
        let counted: Vec<u64> = counted.iter().zip(self.before).map(|(after, before)| after - before).collect();
        let model = &self.model;
        assert_eq!(counted, [model.landed_bytes, model.refused, model.late, model.broken]);
    }

    fn revoke(&mut self, at: usize) {
        self.world.landing.revoke(self.names[at], false);
        let event = self.world.events.recv_timeout(LONG).expect("a grant without writers is revoked");
        assert_eq!(event, Event::Revoked(self.names[at]));
        self.model.grants[at].is_revoked = true;
    }

    fn end(mut self) {
        self.close();
        for at in 0..self.names.len() {
            if !self.model.grants[at].is_revoked {
                self.revoke(at);
            }
        }
        assert!(self.world.landing.is_still());
    }
}

fn figures(landing: &dyn Landing) -> [u64; 4] {
    let figures = landing.figures();
    [figures.bytes, figures.refused, figures.late, figures.broken]
}

fn connect(grant: &Grant) -> TcpStream {
    let address = grant.endpoint.strip_prefix("tcp:").expect("an endpoint of tcp");
    let stream = TcpStream::connect(address).expect("a landing that listens");
    stream.set_nodelay(true).expect("an open socket");
    stream.set_read_timeout(Some(LONG)).expect("an open socket");
    stream
}

/// A frame for one of the grants, of which one thing may be wrong.
fn frame(model: &Model, src: &mut Source<'_>) -> Vec<u8> {
    let grant = &model.grants[usize::from(src.u8() % 2)];
    let (component, layer, page_bytes) = model.named(src.u8());
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for _ in 0..1 + src.u8() % 4 / 3 {
        let first = grant.positions[usize::from(src.u8()) % grant.positions.len()];
        runs.push((first, 1 + u32::from(src.u8() % 8 / 6)));
    }
    let (wrong, odd) = (src.u8(), src.number());
    if wrong == 240 {
        runs.push((odd as u32, u32::from(src.u8() % 3)));
    } else if wrong == 241 {
        runs.push((grant.positions[0], odd as u32));
    }
    let pages: u64 = runs.iter().map(|(_, count)| u64::from(*count)).sum();
    let payload_bytes = pages.saturating_mul(page_bytes);
    let tag = src.u8();
    let mut payload: Vec<u8> = (0..payload_bytes.min(FRAME_BYTES_MAX)).map(|at| tag.wrapping_add(at as u8)).collect();
    let flags = u8::from(src.u8().is_multiple_of(4));
    let checksum = if flags == 1 { crc32(&payload) } else { 0 };
    let mut bytes = Vec::from(*b"HCfr");
    bytes.extend([1, 0, flags, src.u8() % 4]);
    bytes.extend(grant.secret);
    bytes.extend(grant.attempt.to_le_bytes());
    bytes.extend([component, 0]);
    bytes.extend((layer as u16).to_le_bytes());
    bytes.extend((runs.len() as u32).to_le_bytes());
    bytes.extend(u32::from(src.u8()).to_le_bytes());
    bytes.extend(payload_bytes.to_le_bytes());
    bytes.extend(checksum.to_le_bytes());
    match wrong {
        // Any byte of the header, and numbers as wide as their fields.
        242 => bytes[(odd % 52) as usize] = src.u8(),
        243 => bytes[24..28].copy_from_slice(&(odd as u32).to_le_bytes()),
        244 => bytes[32..36].copy_from_slice(&(odd as u32).to_le_bytes()),
        245 => bytes[40..48].copy_from_slice(&odd.to_le_bytes()),
        246 => bytes[48..52].copy_from_slice(&(odd as u32).to_le_bytes()),
        247 => bytes[7] = odd as u8,
        248 => payload.truncate((odd % FRAME_BYTES_MAX) as usize),
        249 => payload.extend(src.counted()),
        _ => {}
    }
    for (first, count) in runs {
        bytes.extend(first.to_le_bytes());
        bytes.extend(count.to_le_bytes());
    }
    bytes.extend(payload);
    bytes
}

/// Positions and pages of the two grants; page 6 and what lies behind belong to nobody.
const FIRST: (&[u32], &[u32]) = (&[0, 1, 2, 5, 9], &[3, 4, 7, 2, 11]);
const SECOND: (&[u32], &[u32]) = (&[1, 2, 3], &[1, 8, 5]);

pub(crate) const FRAME: u8 = 0;
pub(crate) const PLAIN: u8 = 4;
pub(crate) const SEND: u8 = 5;
pub(crate) const CLOSE: u8 = 6;
pub(crate) const REVOKE: u8 = 7;
/// Longer conversations find nothing that shorter ones do not.
const STEPS_MAX: usize = 200;
/// So much is taken from whoever reads no answers.
const CONNECTION_BYTES_MAX: usize = 32 << 10;
const FRAME_BYTES_MAX: u64 = 1 << 10;
/// Longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(60);
