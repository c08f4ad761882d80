//! The grants of a receiving rank: given, found by their secret, revoked, and forgotten when nothing writes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use hicached_actors::protocol::{Busy, Malformed, Refusal, TooLarge, WrongState};

use super::board::Board;
use super::{
    Event, Events, FrameRefusal, GRANTS_MAX, Grant, GrantSpec, LandingFigures, Name, POSITIONS_MAX, Report,
    SECRET_BYTES, StartError,
};

/// The grants of one rank, and the thread that waits for writes into revoked ones.
#[derive(Debug)]
pub(super) struct Grants {
    shared: Arc<Shared>,
    fence: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    table: Mutex<Table>,
    changed: Condvar,
    events: Events,
    unknown: AtomicU64,
}

#[derive(Debug, Default)]
struct Table {
    live: BTreeMap<Name, Live>,
    by_secret: BTreeMap<[u8; SECRET_BYTES], Arc<Board>>,
    /// Revoked ones that count what comes late, oldest first.
    retired: VecDeque<Arc<Board>>,
    /// Counts of those that are forgotten.
    forgotten: [u64; 3],
    closed: bool,
}

#[derive(Debug)]
struct Live {
    grant: Grant,
    board: Arc<Board>,
    revoking: bool,
}

impl Grants {
    /// No grants yet.
    ///
    /// # Errors
    /// The operating system gives no thread.
    pub(super) fn start(events: Events) -> Result<Self, StartError> {
        let (table, changed, unknown) = (Mutex::default(), Condvar::new(), AtomicU64::new(0));
        let shared = Arc::new(Shared { table, changed, events, unknown });
        let of_thread = shared.clone();
        let fence = super::spawn("wire-fence", move || of_thread.fence())?;
        Ok(Self { shared, fence: Some(fence) })
    }

    /// Gives a grant; `make` makes its board, `endpoint` says where it is reached.
    ///
    /// # Errors
    /// As [`super::Landing::accept`].
    pub(super) fn accept(
        &self,
        spec: &GrantSpec,
        make: impl FnOnce([u8; SECRET_BYTES]) -> Result<Board, Refusal>,
        endpoint: impl FnOnce(&Board) -> String,
    ) -> Result<Grant, Refusal> {
        check(spec)?;
        let mut table = self.shared.lock();
        if let Some(live) = table.live.get(&spec.name) {
            let same = live.board.positions == spec.positions && live.board.pages == spec.pages;
            let same_pool = live.board.pool.as_ref().is_some_and(|pool| Arc::ptr_eq(pool, &spec.pool));
            if same && same_pool && !live.revoking {
                return Ok(live.grant.clone());
            }
            let state = if live.revoking { "being revoked" } else { "granted for other pages" };
            return Err(WrongState::new(spec.name, state).into());
        }
        if table.live.len() >= GRANTS_MAX {
            let (queue, bound) = ("grants".to_owned(), GRANTS_MAX as u64);
            return Err(Busy { queue, bound, retry_ms: BUSY_RETRY_MS }.into());
        }
        let secret = uuid::Uuid::new_v4().into_bytes();
        let board = Arc::new(make(secret)?);
        let grant = Grant { endpoint: endpoint(&board), secret };
        table.by_secret.insert(secret, board.clone());
        table.live.insert(spec.name, Live { grant: grant.clone(), board, revoking: false });
        Ok(grant)
    }

    /// Takes over a board that an older life of this rank left, to revoke it.
    pub(super) fn inherit(&self, board: Board) {
        let (name, board) = (board.name, Arc::new(board));
        board.close();
        let grant = Grant { endpoint: String::new(), secret: board.secret };
        let mut table = self.shared.lock();
        table.by_secret.insert(board.secret, board.clone());
        table.live.insert(name, Live { grant, board, revoking: true });
        drop(table);
        self.shared.changed.notify_all();
    }

    /// The board with this secret, also while late frames for it are counted.
    ///
    /// # Errors
    /// [`FrameRefusal::Grant`], counted.
    pub(super) fn find(&self, secret: &[u8; SECRET_BYTES]) -> Result<Arc<Board>, FrameRefusal> {
        self.shared.lock().by_secret.get(secret).cloned().ok_or_else(|| {
            self.shared.unknown.fetch_add(1, Ordering::Relaxed);
            FrameRefusal::Grant
        })
    }

    pub(super) fn report(&self, name: Name) -> Option<Report> {
        let board = self.shared.lock().live.get(&name).map(|live| live.board.clone());
        board.map(|board| board.report())
    }

    pub(super) fn revoke(&self, name: Name) {
        let mut table = self.shared.lock();
        let is_over = match table.live.get_mut(&name) {
            None => true,
            Some(live) => {
                live.revoking = true;
                live.board.close();
                live.board.is_still() && table.retire(name)
            }
        };
        drop(table);
        if is_over {
            self.shared.events.send(Event::Revoked(name));
        } else {
            self.shared.changed.notify_all();
        }
    }

    pub(super) fn revoke_all(&self) {
        let names: Vec<Name> = self.shared.lock().live.keys().copied().collect();
        names.into_iter().for_each(|name| self.revoke(name));
    }

    pub(super) fn is_still(&self) -> bool {
        self.shared.lock().live.is_empty()
    }

    /// Counts of all grants, with `broken` connections.
    pub(super) fn figures(&self, broken: u64) -> LandingFigures {
        let table = self.shared.lock();
        let boards = table.live.values().map(|live| &live.board).chain(&table.retired);
        let [bytes, refused, late] = boards.map(|board| board.counts()).fold(table.forgotten, sum);
        let refused = refused + self.shared.unknown.load(Ordering::Relaxed);
        LandingFigures { bytes, refused, late, broken }
    }
}

impl Drop for Grants {
    fn drop(&mut self) {
        let mut table = self.shared.lock();
        table.closed = true;
        for live in table.live.values() {
            live.board.close();
            if live.board.is_still() {
                live.board.remove();
            }
        }
        drop(table);
        self.shared.changed.notify_all();
        if let Some(fence) = self.fence.take() {
            // A panic of that thread has ended the process.
            fence.join().ok();
        }
    }
}

impl Shared {
    /// Waits for the writes into revoked grants until closed.
    fn fence(&self) {
        let mut table = self.lock();
        while !table.closed {
            let mut revoking = table.live.iter().filter(|(_, live)| live.revoking).peekable();
            if revoking.peek().is_none() {
                table = self.changed.wait(table).expect(NO_PANIC);
                continue;
            }
            let still = revoking.filter(|(_, live)| live.board.is_still()).map(|(name, _)| *name);
            let mut still: Vec<Name> = still.collect();
            still.retain(|name| table.retire(*name));
            if still.is_empty() {
                table = self.changed.wait_timeout(table, FENCE_PAUSE).expect(NO_PANIC).0;
                continue;
            }
            drop(table);
            still.into_iter().for_each(|name| self.events.send(Event::Revoked(name)));
            table = self.lock();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().expect(NO_PANIC)
    }
}

impl Table {
    /// Nothing writes into this one any more; whether it was there.
    fn retire(&mut self, name: Name) -> bool {
        let Some(live) = self.live.remove(&name) else { return false };
        live.board.remove();
        self.retired.push_back(live.board);
        if self.retired.len() > RETIRED_MAX
            && let Some(oldest) = self.retired.pop_front()
        {
            self.by_secret.remove(&oldest.secret);
            self.forgotten = sum(self.forgotten, oldest.counts());
        }
        true
    }
}

fn sum(a: [u64; 3], b: [u64; 3]) -> [u64; 3] {
    std::array::from_fn(|at| a[at] + b[at])
}

fn check(spec: &GrantSpec) -> Result<(), Refusal> {
    let (positions, pages) = (&spec.positions, &spec.pages);
    if positions.len() > POSITIONS_MAX {
        return Err(TooLarge::new("positions", positions.len() as u64, POSITIONS_MAX as u64).into());
    }
    if positions.len() != pages.len() {
        let limit = format!("{}, as the positions", positions.len());
        return Err(Malformed::new("pages", format_args!("{} entries", pages.len()), limit).into());
    }
    if let Some(pair) = positions.windows(2).find(|pair| pair[0] >= pair[1]) {
        return Err(Malformed::new("positions", pair[1], format_args!("more than {}", pair[0])).into());
    }
    if let Some(page) = pages.iter().find(|page| !spec.pool.holds(**page)) {
        return Err(Malformed::new("pages", page, format_args!("1..{}", spec.pool.buffers().pages())).into());
    }
    let mut sorted = pages.clone();
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(Malformed::new("pages", pair[0], "each page once").into()),
        None => Ok(()),
    }
}

/// Revoked grants that go on counting what comes late; of older ones it counts as of no grant.
const RETIRED_MAX: usize = 32;
/// Between two looks at writes that go on: a write is one read of a socket, or one copy of a piece.
const FENCE_PAUSE: Duration = Duration::from_micros(200);
/// A transfer is over in less.
const BUSY_RETRY_MS: u32 = 50;
const NO_PANIC: &str = "no thread panics with the grants locked";
