//! One suite for every backend of transfers. A backend that a group may use passes all of it; one that pairs by order
//! is refused by its contract, and is found out by the suite as well.

mod by_order;
mod frames;
mod hostile;
mod nixl;
mod nixl_processes;
mod runs;
mod shared;
mod suite;
mod tls;
mod vectors;
mod world;

use hicached::wire::shm::{Shm, ShmSettings};
use hicached::wire::tcp::{Tcp, TcpSettings};
use hicached::wire::{Backend, Contract};
use hicached_actors::protocol::Refusal;

use by_order::ByOrder;
use suite::CHECKS;
use tls::Authority;
use world::Scratch;

/// Backends that this build does not have, and why.
const ABSENT: [(&str, &str); 1] =
    [("mooncake", "what its peers have begun to write cannot be taken back, so that it has no fence")];

#[test]
fn every_backend_passes_the_suite() {
    let folder = Scratch::new();
    let checked = TcpSettings { checksum: true, frame_bytes: 4_096, window_bytes: 4_096, ..TcpSettings::default() };
    let narrow = TcpSettings { streams: 1, ..TcpSettings::default() };
    let backends: Vec<(&str, Box<dyn Backend>)> = vec![
        ("by default", Box::new(Tcp::default())),
        ("with checksums and small frames", Box::new(Tcp::new(checked).expect("sound settings"))),
        ("encrypted", Box::new(tls::backend(Some(Authority::new(&folder.0, "ours").settings(tls::HOST))))),
        ("over one connection", Box::new(Tcp::new(narrow).expect("sound settings"))),
        ("by default", Box::new(Shm::new(ShmSettings::new(&folder.0, "decode-0")).expect("sound settings"))),
    ];
    passes_the_suite(&backends);
    for (name, why) in ABSENT {
        println!("{name}: absent, {why}");
    }
}

/// Each of `backends`, which are set up so, passes every check.
fn passes_the_suite(backends: &[(&str, Box<dyn Backend>)]) {
    let mut faults = Vec::new();
    for (how, backend) in backends {
        for (name, check) in CHECKS {
            if let Err(fault) = check(backend.as_ref()) {
                faults.push(format!("{} {how}: {name}: {fault}", backend.name()));
            }
        }
        println!("{} {how}: {} checks", backend.name(), CHECKS.len());
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn a_backend_that_pairs_by_order_is_found_out() {
    // It is not merely broken: where order and position agree it does what it should.
    for (name, is_found_out) in [
        ("pages side by side arrive", false),
        ("the vectors arrive", true),
        ("scattered pages of 1, 2, 4 and 8 ranks arrive", true),
        ("a position lands once", true),
        ("a position that is not granted does not land", true),
    ] {
        let (_, check) = CHECKS.iter().find(|(check, _)| *check == name).expect("a check of this name");
        assert_eq!(check(&ByOrder::default()).is_err(), is_found_out, "{name}");
    }
}

#[test]
fn a_group_takes_a_backend_only_with_every_promise() {
    let whole = Contract { addressed: true, drain_proof: true, fence: true };
    for (contract, lacks) in [
        (whole, ""),
        (Contract { addressed: false, ..whole }, "x without addressed"),
        (Contract { drain_proof: false, ..whole }, "x without drain_proof"),
        (Contract { fence: false, ..whole }, "x without fence"),
        (Contract { addressed: false, drain_proof: false, fence: false }, "x without addressed, drain_proof, fence"),
    ] {
        assert!(contract.accepts_group("x", 1).is_ok(), "one rank pairs with itself");
        for cp_size in [2, 8, 64] {
            match contract.accepts_group("x", cp_size) {
                Ok(()) => assert_eq!(lacks, "", "taken"),
                Err(Refusal::Unsupported(refused)) => assert_eq!(refused.value, lacks),
                Err(other) => panic!("{other:?}"),
            }
        }
    }
    let by_order = ByOrder::default();
    assert!(by_order.contract().accepts_group(by_order.name(), 2).is_err());
}
