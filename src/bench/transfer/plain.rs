//! What the same bytes cost without a protocol: copied by threads, and over sockets that say nothing but bytes.

use std::io;
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::TransferError;
use super::clock::{Clock, Spent};
use super::crew::Crew;
use super::scene::{Ends, Part, Scene};
use super::way::{Moved, Way};

/// Threads that copy, each the next unit that is left.
#[derive(Debug)]
pub(super) struct Memcpy {
    crew: Crew,
    next: Arc<AtomicUsize>,
    counts: [Counts; 2],
}

/// Connections between two threads each. The units of a rank go over its connections in turn; both threads know
/// which, and the receiving one reads them to where they belong.
#[derive(Debug)]
pub(super) struct Sockets {
    crew: Crew,
    streams: Vec<Arc<TcpStream>>,
    counts: [Counts; 2],
}

#[derive(Clone, Copy, Debug)]
struct Counts {
    units: u64,
    runs: u64,
}

impl Memcpy {
    /// `threads` threads for each rank.
    ///
    /// # Errors
    /// No threads.
    pub(super) fn new(scene: &Arc<Scene>, threads: usize) -> Result<Self, TransferError> {
        let units = all_units(scene)?;
        let counts = units.each_ref().map(|ranks| counts_of(ranks));
        let units = Arc::new(units.map(|ranks| ranks.concat()));
        let next = Arc::new(AtomicUsize::new(0));
        let mut crew = Crew::new();
        for _ in 0..threads * usize::from(scene.shape.ranks) {
            let (scene, units, next) = (scene.clone(), units.clone(), next.clone());
            crew.add(move |ends| {
                while let Some(unit) = units[ends as usize].get(next.fetch_add(1, Ordering::Relaxed)) {
                    unit.iter().for_each(|part| scene.copy(*part));
                }
                Ok(())
            })?;
        }
        Ok(Self { crew, next, counts })
    }
}

impl Way for Memcpy {
    fn name(&self) -> &'static str {
        "memcpy"
    }

    fn transfer(&mut self, ends: Ends) -> Result<Moved, TransferError> {
        self.next.store(0, Ordering::Relaxed);
        let clock = Clock::start();
        self.crew.transfer(ends)?;
        Ok(self.counts[ends as usize].moved(clock.stop()))
    }
}

impl Sockets {
    /// `streams` connections for each rank.
    ///
    /// # Errors
    /// No threads, or no connections on the loopback.
    pub(super) fn new(scene: &Arc<Scene>, streams: usize) -> Result<Self, TransferError> {
        let failed = || TransferError::io("connect on the loopback");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed())?;
        let address = listener.local_addr().map_err(failed())?;
        let units = all_units(scene)?;
        let counts = units.each_ref().map(|ranks| counts_of(ranks));
        let mut made = Self { crew: Crew::new(), streams: Vec::new(), counts };
        let shares = units[0].len();
        for (share, stream) in (0..shares).flat_map(|share| (0..streams).map(move |stream| (share, stream))) {
            let sends = TcpStream::connect(address).map_err(failed())?;
            let (takes, _) = listener.accept().map_err(failed())?;
            sends.set_nodelay(true).map_err(failed())?;
            let of_stream = |ranks: &Vec<Vec<Vec<Part>>>| -> Vec<Vec<Part>> {
                ranks[share].iter().skip(stream).step_by(streams).cloned().collect()
            };
            let units = Arc::new(units.each_ref().map(of_stream));
            let (sends, takes) = (Arc::new(sends), Arc::new(takes));
            made.streams.extend([sends.clone(), takes.clone()]);
            let (of_send, of_take) = (scene.clone(), scene.clone());
            let units_taken = units.clone();
            made.crew.add(move |ends| {
                units[ends as usize].iter().try_for_each(|unit| {
                    let parts = unit.iter().map(|part| of_send.source(*part)).collect();
                    // SAFETY: every part is mapped memory that stays so for the call; the descriptor is open.
                    all_of(parts, |parts, count| unsafe { libc::writev(sends.as_raw_fd(), parts, count) })
                })
            })?;
            made.crew.add(move |ends| {
                units_taken[ends as usize].iter().try_for_each(|unit| {
                    let parts = unit.iter().map(|part| of_take.destination(*part)).collect();
                    // SAFETY: as above, and no other thread writes these bytes meanwhile.
                    all_of(parts, |parts, count| unsafe { libc::readv(takes.as_raw_fd(), parts, count) })
                })
            })?;
        }
        Ok(made)
    }
}

impl Way for Sockets {
    fn name(&self) -> &'static str {
        "sockets"
    }

    fn transfer(&mut self, ends: Ends) -> Result<Moved, TransferError> {
        let clock = Clock::start();
        self.crew.transfer(ends)?;
        Ok(self.counts[ends as usize].moved(clock.stop()))
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        for stream in &self.streams {
            // Whoever still waits in one is woken; one that is closed already wakes nobody.
            stream.shutdown(Shutdown::Both).ok();
        }
    }
}

impl Counts {
    fn moved(self, spent: Spent) -> Moved {
        Moved { spent, whole: spent.wall, descriptors: self.units, runs: self.runs }
    }
}

/// The units of each share, of both plans.
fn all_units(scene: &Scene) -> Result<[Vec<Vec<Vec<Part>>>; 2], TransferError> {
    let of = |ends| scene.shares(ends).iter().map(|share| scene.units(share)).collect::<Result<Vec<_>, _>>();
    Ok([of(Ends::Contiguous)?, of(Ends::Scattered)?])
}

fn counts_of(ranks: &[Vec<Vec<Part>>]) -> Counts {
    let units = ranks.iter().map(Vec::len).sum::<usize>() as u64;
    let runs = ranks.iter().flatten().map(Vec::len).sum::<usize>() as u64;
    Counts { units, runs }
}

/// Moves all bytes of `parts` with as many calls as it takes.
fn all_of(
    mut parts: Vec<libc::iovec>,
    mut call: impl FnMut(*const libc::iovec, libc::c_int) -> isize,
) -> io::Result<()> {
    let mut first = 0;
    while first < parts.len() {
        let left = &parts[first..];
        let moved = call(left.as_ptr(), left.len().min(PARTS_MAX) as libc::c_int);
        let mut moved = match usize::try_from(moved) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(moved) => moved,
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => continue,
                error => return Err(error),
            },
        };
        while moved > 0 {
            let part = &mut parts[first];
            let step = moved.min(part.iov_len);
            // SAFETY: the step stays inside the part, or ends directly behind it.
            part.iov_base = unsafe { part.iov_base.cast::<u8>().add(step) }.cast();
            part.iov_len -= step;
            moved -= step;
            if part.iov_len == 0 {
                first += 1;
            }
        }
    }
    Ok(())
}

/// Pieces of memory one call takes.
const PARTS_MAX: usize = 1_024;
