//! Conversations of the allocator.

mod frees;
mod lines;
mod reservations;

use super::{Allocator, AllocatorConfig, FreeRoom, Marks};
use crate::protocol::{
    Address, EvictorIn, Free, HostSlot, IndexNews, LoaderIn, MakeRoom, OpId, OpenLanes, Outgoing, Owners, PageId,
    Pages, Reserve, Restore, RoomMade, Slots, Tier, WriterIn,
};
use crate::script::{CONTROL, Script, Sent, op};

/// An allocator whose lanes and pools are open; free room is off.
fn allocator_with(cp_size: u8, l1: u32, l2: u32, change: impl FnOnce(&mut AllocatorConfig)) -> Script<Allocator> {
    let mut config = AllocatorConfig { free_room: None, ..AllocatorConfig::new(cp_size, l1 + 1, l2) };
    change(&mut config);
    let mut allocator = Script::new(Allocator::new(config, CONTROL, 1).expect("pools that fit"));
    assert_eq!(said(&allocator.say(Address::Index, op(1), restore(0, &[], true))), ["index restored"]);
    assert_eq!(said(&allocator.say(Address::Index, op(2), OpenLanes {})), ["index freed"]);
    allocator
}

fn allocator(cp_size: u8, l1: u32, l2: u32) -> Script<Allocator> {
    allocator_with(cp_size, l1, l2, |_| ())
}

fn restore(part: u32, slots: &[(u8, u32)], last: bool) -> Restore {
    let (owners, slots) = slots.iter().map(|(owner, slot)| (*owner, HostSlot(*slot))).unzip();
    Restore { part, l2_owners: Owners(owners), l2: Slots(slots), last }
}

fn reserve(tier: u8, owners: &[u8]) -> Reserve {
    Reserve { tier, owners: Owners(owners.to_vec()) }
}

fn free_l1(pages: &[u32]) -> Free {
    let pages = Pages(pages.iter().copied().map(PageId).collect());
    Free { l1: pages, l2_owners: Owners::default(), l2: Slots::default() }
}

fn free_l2(slots: &[(u8, u32)]) -> Free {
    let (owners, slots) = slots.iter().map(|(owner, slot)| (*owner, HostSlot(*slot))).unzip();
    Free { l1: Pages::default(), l2_owners: Owners(owners), l2: Slots(slots) }
}

fn room(freed: &[u32]) -> RoomMade {
    RoomMade { freed: freed.to_vec(), pending: 0 }
}

/// Destination and code of what was sent.
fn said(sent: &Sent) -> Vec<String> {
    sent.iter().map(|(_, to)| format!("{} {}", to.address().expect("an address"), to.encode_body().0)).collect()
}

/// The ops that were given pages, with the pages.
fn given(sent: &Sent) -> Vec<(OpId, Vec<u32>)> {
    let pages = |to: &Outgoing| match to {
        Outgoing::Index(IndexNews::Reserved(reserved)) => Some(reserved.clone()),
        Outgoing::Writer(WriterIn::Reserved(reserved)) => Some(reserved.clone()),
        Outgoing::Loader(LoaderIn::Reserved(reserved)) => Some(reserved.clone()),
        _ => None,
    };
    let ids = |reserved: crate::protocol::Reserved| reserved.pages.0.iter().map(|page| page.0).collect();
    sent.iter().filter_map(|(op, to)| Some((*op, ids(pages(to)?)))).collect()
}

/// The ops that were told what is short.
fn short(sent: &Sent) -> Vec<(OpId, Vec<u32>)> {
    let short = |to: &Outgoing| match to {
        Outgoing::Index(IndexNews::Short(short)) => Some(short.short.clone()),
        Outgoing::Writer(WriterIn::Short(short)) => Some(short.short.clone()),
        Outgoing::Loader(LoaderIn::Short(short)) => Some(short.short.clone()),
        _ => None,
    };
    sent.iter().filter_map(|(op, to)| Some((*op, short(to)?))).collect()
}

/// The code of the only answer, which is a refusal.
fn refused(sent: &Sent) -> &'static str {
    match sent.as_slice() {
        [(_, Outgoing::Index(IndexNews::Rejected(rejected)))]
        | [(_, Outgoing::Writer(WriterIn::Rejected(rejected)))]
        | [(_, Outgoing::Loader(LoaderIn::Rejected(rejected)))] => rejected.refusal.code(),
        other => panic!("no refusal: {other:?}"),
    }
}

/// The rounds that began: op, tier and what is wanted.
fn rounds(sent: &Sent) -> Vec<(OpId, u8, Vec<u32>)> {
    let round = |to: &Outgoing| match to {
        Outgoing::Evictor(EvictorIn::MakeRoom(MakeRoom { tier, wants })) => Some((*tier, wants.clone())),
        _ => None,
    };
    sent.iter().filter_map(|(op, to)| round(to).map(|(tier, wants)| (*op, tier, wants))).collect()
}
