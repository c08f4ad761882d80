//! Requests that wait for an answer: a bounded table with a generation per place.
//!
//! Invariants: a token names one request for ever; an answer to an old generation finds nobody. Every waiting
//! request ends once: by its answer, by [`Pending::fail_all`], or by its own future being dropped.

use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::oneshot;

use super::Headers;

/// What a request waits for.
pub type Answer = Result<(Headers, Bytes), Lost>;

/// Why no answer can come any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// Nobody serves the subject.
    NoResponders,
    /// The connection went down.
    Disconnected,
    /// The bus was closed.
    Closed,
}

/// One request: a place in the table and the generation of that place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    slot: u32,
    generation: u32,
}

impl Token {
    /// Digits of a token in a reply subject.
    pub const DIGITS: usize = 16;

    /// Writes the token as [`Token::DIGITS`] hexadecimal digits at the end of `subject`.
    pub fn write(self, subject: &mut String) {
        let packed = u64::from(self.slot) << 32 | u64::from(self.generation);
        for nibble in (0..Self::DIGITS as u32).rev() {
            let digit = (packed >> (nibble * 4) & 0xf) as u32;
            subject.push(char::from_digit(digit, 16).expect("four bits are one digit"));
        }
    }

    /// Reads what [`Token::write`] wrote; `None` for anything else.
    pub fn read(digits: &str) -> Option<Self> {
        if digits.len() != Self::DIGITS || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        let packed = u64::from_str_radix(digits, 16).ok()?;
        Some(Self { slot: (packed >> 32) as u32, generation: packed as u32 })
    }
}

/// The table of waiting requests.
#[derive(Debug)]
pub struct Pending {
    bound: usize,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    waiter: Option<oneshot::Sender<Answer>>,
}

/// A request in the table. Dropping it gives the place back.
#[derive(Debug)]
pub struct Waiting<'a> {
    /// Names the request in a reply subject.
    pub token: Token,
    /// Resolves with the answer.
    pub answer: oneshot::Receiver<Answer>,
    pending: &'a Pending,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.pending.take(self.token);
    }
}

impl Pending {
    /// A table for at most `bound` requests.
    pub fn new(bound: usize) -> Self {
        assert!(bound <= u32::MAX as usize, "places are numbered by u32");
        Self { bound, table: Mutex::default() }
    }

    /// The most requests that can wait.
    pub fn bound(&self) -> usize {
        self.bound
    }

    /// Enters one request; `None` at the bound.
    pub fn insert(&self) -> Option<Waiting<'_>> {
        let (waiter, answer) = oneshot::channel();
        let mut table = self.lock();
        let slot = match table.free.pop() {
            Some(slot) => slot,
            None if table.slots.len() < self.bound => {
                table.slots.push(Slot { generation: 0, waiter: None });
                (table.slots.len() - 1) as u32
            }
            None => return None,
        };
        let place = &mut table.slots[slot as usize];
        assert!(place.waiter.is_none(), "a free place has no waiter");
        place.waiter = Some(waiter);
        let token = Token { slot, generation: place.generation };
        drop(table);
        Some(Waiting { token, answer, pending: self })
    }

    /// Ends one request with `answer`; false when it had ended already.
    pub fn resolve(&self, token: Token, answer: Answer) -> bool {
        self.take(token).is_some_and(|waiter| waiter.send(answer).is_ok())
    }

    /// Ends every request with `lost` and says how many there were.
    pub fn fail_all(&self, lost: Lost) -> usize {
        let mut table = self.lock();
        let mut waiters = Vec::new();
        let Table { slots, free } = &mut *table;
        for (slot, place) in slots.iter_mut().enumerate() {
            if let Some(waiter) = place.waiter.take() {
                place.generation = place.generation.wrapping_add(1);
                free.push(slot as u32);
                waiters.push(waiter);
            }
        }
        drop(table);
        let ended = waiters.len();
        for waiter in waiters {
            // A future that was dropped in between wants no answer.
            waiter.send(Err(lost)).ok();
        }
        ended
    }

    fn take(&self, token: Token) -> Option<oneshot::Sender<Answer>> {
        let mut table = self.lock();
        let place = table.slots.get_mut(token.slot as usize).filter(|place| place.generation == token.generation)?;
        let waiter = place.waiter.take()?;
        place.generation = place.generation.wrapping_add(1);
        table.free.push(token.slot);
        Some(waiter)
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // Nothing in this file can panic between two writes that belong together.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_to_an_old_generation_finds_nobody() {
        let pending = Pending::new(1);
        let first = pending.insert().unwrap();
        let old = first.token;
        assert!(pending.insert().is_none(), "one place");
        drop(first);
        let mut second = pending.insert().unwrap();
        assert!(!pending.resolve(old, Err(Lost::NoResponders)));
        assert!(second.answer.try_recv().is_err(), "the second still waits");
        assert!(pending.resolve(second.token, Err(Lost::NoResponders)));
        assert!(!pending.resolve(second.token, Err(Lost::NoResponders)), "once");
    }

    #[test]
    fn all_fail_at_once_and_give_their_places_back() {
        let pending = Pending::new(3);
        let mut waiting: Vec<_> = (0..3).map(|_| pending.insert().unwrap()).collect();
        assert_eq!(pending.fail_all(Lost::Disconnected), 3);
        for one in &mut waiting {
            assert_eq!(one.answer.try_recv(), Ok(Err(Lost::Disconnected)));
        }
        drop(waiting);
        assert_eq!(pending.lock().free.len(), 3, "each place is given back once");
        assert_eq!(pending.fail_all(Lost::Disconnected), 0);
    }

    #[test]
    fn a_token_survives_its_digits() {
        for token in [Token { slot: 0, generation: 0 }, Token { slot: u32::MAX, generation: 7 }] {
            let mut digits = String::new();
            token.write(&mut digits);
            assert_eq!(Token::read(&digits), Some(token));
        }
        for not_a_token in ["", "1", "+000000000000001", "zzzzzzzzzzzzzzzz", "00000000000000000"] {
            assert_eq!(Token::read(not_a_token), None, "{not_a_token:?}");
        }
    }
}
