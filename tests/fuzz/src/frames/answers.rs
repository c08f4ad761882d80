//! Answers to a launch: a push ends, complete only when every frame of it was answered as landed, in order.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use hicached::wire::tcp::{Tcp, TcpSettings};
use hicached::wire::{Backend as _, Event, Events, LayersReady, Name, PushEnd, PushKey, PushOrder};
use hicached_actors::protocol::{OpId, Rank};

use super::model::answer;
use super::pools::Filled;
use crate::source::Source;

/// One push to a peer that takes all of it and answers as the input says: 0 to 3 an answer, mostly the right one, 4
/// any bytes. Then it closes.
pub(super) fn run(src: &mut Source<'_>) {
    let source = Filled::new("launch", 0xA5);
    let (to, events) = channel();
    let tcp = Tcp::new(TcpSettings { streams: 1, ..TcpSettings::default() }).expect("sound settings");
    let launch = tcp.launch(Events::new(to, Arc::new(|| ()))).expect("threads");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let order = order(&source, format!("tcp:{}", listener.local_addr().expect("a bound port")), src.u8());
    let (frames, bytes) = (source.pool.buffers().as_slice().len() as u32, stream_bytes(&order));
    let answers = answers(src);
    launch.push(order.clone()).expect("a good push");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = listener.accept().expect("the launch connects");
            let mut taken = vec![0; bytes];
            stream.read_exact(&mut taken).expect("every frame comes");
            // The launch may close at the first wrong answer.
            stream.write_all(&answers).ok();
        });
        let Event::Pushed(key, end, _) = events.recv_timeout(LONG).expect("a push ends") else { panic!("no end") };
        assert_eq!(key, order.key);
        match end {
            PushEnd::Complete => assert!(are_all_landed(&answers, frames), "complete by {answers:?}"),
            PushEnd::Failed(cause) => {
                assert!(!are_all_landed(&answers, frames), "{cause}: {answers:?}");
                assert!(!cause.to_string().is_empty());
            }
            PushEnd::Stopped => panic!("nobody has stopped it"),
        }
    });
    assert!(launch.is_still());
    assert!(source.bytes().iter().all(|byte| *byte == 0xA5), "the pool that is sent from was written");
}

/// Some of eight positions, from the page of the same number.
fn order(source: &Filled, endpoint: String, set: u8) -> PushOrder {
    let positions: Vec<u32> = (0..8).filter(|at| (set | 1) >> at & 1 != 0).collect();
    let pages: Vec<u32> = positions.iter().map(|at| at + 1).collect();
    PushOrder {
        key: PushKey { name: Name { transfer: OpId([0x71; 16]), attempt: 1 }, part: 0 },
        rank: Rank(0),
        source: source.pool.clone(),
        slots: pages.clone(),
        positions,
        pages,
        endpoint,
        secret: [7; 16],
        deadline: LONG,
        ready: LayersReady::ALL,
    }
}

/// Bytes of all frames of `order`: one a buffer, with a header and the rows of its positions.
fn stream_bytes(order: &PushOrder) -> usize {
    let rows = 1 + order.positions.windows(2).filter(|pair| pair[0] + 1 != pair[1]).count();
    let buffers = order.source.buffers().as_slice();
    buffers.iter().map(|buffer| 52 + 8 * rows + order.pages.len() * buffer.page_bytes as usize).sum()
}

fn answers(src: &mut Source<'_>) -> Vec<u8> {
    let mut answers = Vec::new();
    for nth in 1..=ANSWERS_MAX {
        if src.is_empty() {
            break;
        }
        match src.u8() % 5 {
            4 => answers.extend(src.counted()),
            _ => {
                let (wrong, odd) = (src.u8(), src.number());
                let (number, code) = match wrong {
                    0..=199 => (nth, 0),
                    200..=219 => (nth, odd as u8),
                    220..=239 => (odd as u32, 0),
                    _ => (0, 0),
                };
                answers.extend(answer(number, code, odd as u32));
            }
        }
    }
    answers
}

/// Whether these are the answers to `frames` frames that have landed: by their number, or by none.
fn are_all_landed(answers: &[u8], frames: u32) -> bool {
    let (answers, _) = answers.as_chunks::<12>();
    let is_landed = |(number, answer): (u32, &[u8; 12])| {
        let named = u32::from_le_bytes([answer[0], answer[1], answer[2], answer[3]]);
        (named == number || named == 0) && answer[4] == 0
    };
    answers.len() >= frames as usize && (1..=frames).zip(answers).all(is_landed)
}

/// Some more than a push has frames.
const ANSWERS_MAX: u32 = 8;
/// Longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(60);
