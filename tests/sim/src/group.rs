//! The machines under attack, as one control group.

use hicached_actors::allocator::{Allocator, AllocatorConfig};
use hicached_actors::evictor::{Evictor, EvictorConfig};
use hicached_actors::faults::{Fault, Faults};
use hicached_actors::host::{Host, Output};
use hicached_actors::loader::{Loader, LoaderConfig};
use hicached_actors::machine::Machine;
use hicached_actors::prefix_index::{Index, IndexConfig, WritePolicy};
use hicached_actors::protocol::{Address, Tier};
use hicached_actors::receiver::{Receiver, ReceiverConfig};
use hicached_actors::sender::{Sender, SenderConfig};
use hicached_actors::writer::{Writer, WriterConfig};

use crate::control::{Actor, Control};
use crate::layout::Layout;
use crate::mix::{Sizes, Write};
use crate::world::{Birth, MakeControl, PAYLOAD_BYTES_MAX, Sim};

/// Makes control groups with a fault planted in their machines.
pub(crate) fn maker(fault: Fault) -> MakeControl {
    Box::new(move |sizes, birth| control(sizes, birth, planted(fault)))
}

/// How long handovers are waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// From the first word of a transfer to the last.
    pub(crate) wait_ms: u64,
    /// One push, the time in its queue left out.
    pub(crate) deadline_ms: u64,
}

/// Makes control groups of this name that hand over and take over, with a fault planted in their machines.
pub(crate) fn maker_of_pair(fault: Fault, name: &'static str, patience: Patience) -> MakeControl {
    Box::new(move |sizes, birth| {
        let (faults, manifest) = (planted(fault), Layout::new(sizes).manifest);
        let (mut control, first) = control(sizes, birth, faults);
        let Patience { wait_ms: wait_ms_max, deadline_ms } = patience;
        let sender = SenderConfig { wait_ms_max, deadline_ms, faults, ..SenderConfig::new(name.into(), &manifest) };
        let receiver = ReceiverConfig { wait_ms_max, faults, ..ReceiverConfig::new(&manifest) };
        host_carriers(&mut control, birth, sender, receiver);
        (control, first)
    })
}

#[cfg(feature = "planted-faults")]
fn planted(fault: Fault) -> Faults {
    Faults::planted(fault)
}

#[cfg(not(feature = "planted-faults"))]
fn planted(fault: Fault) -> Faults {
    assert_eq!(fault, Fault::None, "faults are planted with the feature `planted-faults`");
    Faults::NONE
}

/// The machines of a group of these sizes, hosted, and what the first of them says at its birth: all of them, also
/// the two of transfers, which a world of one group has no use for.
pub fn machines(sizes: &Sizes, birth: &Birth) -> (Control, Output) {
    let (mut control, first) = control(sizes, birth, Faults::NONE);
    let manifest = Layout::new(sizes).manifest;
    let (sender, receiver) = (SenderConfig::new(GROUP.into(), &manifest), ReceiverConfig::new(&manifest));
    host_carriers(&mut control, birth, sender, receiver);
    (control, first)
}

/// The two that carry pages from group to group.
fn host_carriers(control: &mut Control, birth: &Birth, sender: SenderConfig, receiver: ReceiverConfig) {
    let sender = Sender::new(sender, birth.life, birth.seed ^ 5);
    let receiver = Receiver::new(receiver, birth.seed ^ 6);
    control.host(Address::Sender, hosted(sender, Address::Sender, birth));
    control.host(Address::Receiver, hosted(receiver, Address::Receiver, birth));
}

fn control(sizes: &Sizes, birth: &Birth, faults: Faults) -> (Control, Output) {
    let Birth { life, number, seed, now } = *birth;
    let manifest = Layout::new(sizes).manifest;
    let index = IndexConfig {
        write_policy: match sizes.write {
            Write::Through => WritePolicy::WriteThrough,
            Write::Selective => WritePolicy::Selective,
            Write::Back => WritePolicy::WriteBack,
        },
        compute_tokens_min: sizes.compute_tokens_min,
        faults,
        ..IndexConfig::new(manifest.clone(), sizes.l1_pages + 1, sizes.l2_pages)
    };
    let defaults = AllocatorConfig::new(sizes.cp, sizes.l1_pages + 1, sizes.l2_pages);
    let free_room = defaults.free_room.filter(|_| sizes.free_room);
    let allocator = AllocatorConfig { free_room, faults, ..defaults };
    let writer = WriterConfig { faults, ..WriterConfig::new(&manifest) };
    // Words outlive their loader and never fall.
    let loader = LoaderConfig { faults, first_use: u64::from(number) << 32, ..LoaderConfig::new(&manifest) };
    let mut first = Output::default();
    let mut host = Host::new(Index::new(index, life, seed), Address::Index, life, life, PAYLOAD_BYTES_MAX);
    host.with(&mut first, |index, effects| index.start(now, effects));
    let index: Box<dyn Actor> = Box::new(host);
    let actors = [
        (Address::Index, index),
        (
            Address::Allocator,
            hosted(Allocator::new(allocator, life, seed ^ 1).expect("drawn sizes fit"), Address::Allocator, birth),
        ),
        (Address::Evictor, hosted(Evictor::new(EvictorConfig::new(sizes.cp), life, seed ^ 2), Address::Evictor, birth)),
        (Address::Writer, hosted(Writer::new(writer, life, seed ^ 3), Address::Writer, birth)),
        (Address::Loader, hosted(Loader::new(loader, life, seed ^ 4), Address::Loader, birth)),
    ];
    (Control::new(life, actors), first)
}

fn hosted<M: Machine + 'static>(machine: M, at: Address, birth: &Birth) -> Box<dyn Actor> {
    Box::new(Host::new(machine, at, birth.life, birth.life, PAYLOAD_BYTES_MAX))
}

/// The index of a world.
pub(crate) fn index(sim: &Sim) -> &Index {
    sim.control.machine(Address::Index).expect("every group has an index")
}

/// Free pages of each lane of a tier.
pub(crate) fn free_pages(sim: &Sim, tier: u8) -> Vec<u32> {
    let tier = if tier == 1 { Tier::L1 } else { Tier::L2 };
    let allocator = sim.control.machine::<Allocator>(Address::Allocator);
    allocator.expect("every group has an allocator").free_pages(tier)
}

/// What is left although everything has ended and was flushed.
pub(crate) fn leaks(sim: &Sim) -> Vec<String> {
    let mut left = Vec::new();
    for (tier, capacity) in [(1, sim.sizes.l1_pages), (2, sim.sizes.l2_pages)] {
        let free = free_pages(sim, tier);
        if free.iter().any(|free| *free != capacity) {
            left.push(format!("L{tier} has {free:?} free of {capacity} on each rank"));
        }
    }
    for (rank, pool) in sim.memory.pools.iter().enumerate() {
        let sealed = pool.rows.iter().filter(|row| row.sealed).count();
        if sealed > 0 {
            left.push(format!("a restart of rank {rank} brings {sealed} flushed pages back"));
        }
    }
    let index = index(sim);
    let figure = |at, name: &str| sim.control.figure(at, name);
    let sender = ["sender.running", "sender.peers"].map(|name| figure(Address::Sender, name));
    let receiver = ["receiver.running", "receiver.offers"].map(|name| figure(Address::Receiver, name));
    if [sender, receiver] != [[0; 2]; 2] {
        left.push(format!("sender and receiver have {sender:?} and {receiver:?} transfers and peers or offers"));
    }
    if let Some(rank) = sim.ranks.iter().position(|rank| !rank.has_no_transfers()) {
        left.push(format!("rank {rank} sends, or lets land"));
    }
    if index.in_flight() > 0 || !index.private_pages().is_empty() {
        left.push(format!("the index has {} in flight and {:?}", index.in_flight(), index.private_pages()));
    }
    left
}

/// The group's name where nobody gives one.
const GROUP: &str = "group";
