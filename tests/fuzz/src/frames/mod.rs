//! The data plane of transfers, and whatever comes to it from outside: bytes of a connection to a rank that receives,
//! answers to a rank that sends, and the file of a grant that a peer has written over.
//!
//! The first byte says which of the three; each is judged by what is written down here about it, not by the code
//! under test.

mod answers;
mod boards;
mod landing;
mod model;
mod pools;

use landing::{CLOSE, FRAME, PLAIN, REVOKE, SEND};

use crate::recording::Inputs;
use crate::source::Source;

/// One of the three by the first byte; see `landing`, `answers` and `boards`.
pub fn frames(data: &[u8]) {
    let mut src = Source::new(data);
    match src.u8() % 4 {
        ANSWERS => answers::run(&mut src),
        BOARDS => boards::run(&mut src),
        _ => landing::run(&mut src),
    }
}

/// Connections that keep every rule, and one of each kind that does not.
pub(crate) fn inputs() -> Inputs {
    let all = |what: &[Vec<u8>]| [&[LANDING], what.concat().as_slice()].concat();
    let good = |buffer: u8, place: u8| frame(buffer, place, 0, 0);
    let whole: Vec<Vec<u8>> = (0..5).flat_map(|buffer| (0..5).map(move |place| good(buffer, place))).collect();
    let wrong: Vec<Vec<u8>> = (240..250).map(|wrong| frame(0, wrong - 240, wrong, 7)).collect();
    let cut = [good(0, 0), frame(0, 1, 248, 20), vec![CLOSE], good(0, 1)];
    let late = [good(0, 0), vec![REVOKE, 0], good(0, 1), vec![REVOKE, 1], vec![CLOSE]];
    let parts = [good(0, 0), vec![SEND], good(1, 0), vec![SEND], frame(2, 0, 248, 9), vec![SEND, CLOSE]];
    let plain = [good(0, 3), [&[PLAIN, 52, 0], b"GET / HTTP/1.1\r\n".as_slice(), &[0; 36]].concat(), good(0, 4)];
    let answers = |said: &[[u8; 3]]| [&[ANSWERS, 0b1011], said.concat().as_slice()].concat();
    let edits = [[0, 2, 1], [5, 2, 9], [20, 2, 240]].concat();
    vec![
        ("whole".to_owned(), all(&whole)),
        ("wrong".to_owned(), all(&wrong)),
        ("cut".to_owned(), all(&cut)),
        ("late".to_owned(), all(&late)),
        ("parts".to_owned(), all(&parts)),
        ("plain".to_owned(), all(&plain)),
        ("answered".to_owned(), answers(&[[0, 0, 0]; 5])),
        ("answered-too-often".to_owned(), answers(&[[0, 0, 0]; 7])),
        ("not-answered".to_owned(), answers(&[[0, 0, 0]; 4])),
        ("refused".to_owned(), answers(&[[0, 0, 0], [0, 200, 8], [0, 0, 0]])),
        ("board".to_owned(), vec![BOARDS]),
        ("board-written-over".to_owned(), [&[BOARDS], edits.as_slice()].concat()),
    ]
}

/// A step that says a frame of one page for the first grant.
fn frame(buffer: u8, place: u8, wrong: u8, odd: u8) -> Vec<u8> {
    let (grant, runs, count, tag, flags, rank, number) = (0, 0, 0, place * 16 + buffer, place, 1, place);
    let mut step = vec![FRAME, grant, buffer, runs, place, count, wrong, odd];
    // A further run is as long as one byte more says.
    step.extend((wrong == 240).then_some(1));
    step.extend([tag, flags, rank, number]);
    step
}

const LANDING: u8 = 0;
const ANSWERS: u8 = 2;
const BOARDS: u8 = 3;
