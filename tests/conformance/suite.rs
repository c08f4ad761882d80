//! What every backend that a group may use has to do, whatever it is made of.

use hicached::wire::{
    Backend, Cause, Event, FrameRefusal, GrantSpec, LayersReady, NOBODY, Name, PushEnd, PushKey, PushOrder,
};
use hicached_actors::protocol::{OpId, PushFigures, Rank};
use hicached_kernels::layout::{Component, L1Layout, Layout};

use crate::vectors;
use crate::world::{Plan, Scratch, TARGET_LAYERS, Verdict, World, pattern, pool, shuffled, until, write};

/// A name and what it runs.
pub(crate) type Check = (&'static str, fn(&dyn Backend) -> Verdict);

/// Every check of the suite.
pub(crate) const CHECKS: [Check; 19] = [
    ("pages side by side arrive", side_by_side),
    ("the vectors arrive", vectors_arrive),
    ("scattered pages of 1, 2, 4 and 8 ranks arrive", scattered),
    ("a prefix that is there is not touched", prefix),
    ("a rank that owns nothing is done", nothing_owned),
    ("an empty part is done", empty_part),
    ("layers leave while later ones are computed", progressive),
    ("what is missing is named", missing),
    ("nothing lands once revoked", revoked_in_the_middle),
    ("an older attempt does not land", stale_attempt),
    ("another secret does not land", wrong_secret),
    ("a position lands once", twice),
    ("a position that is not granted does not land", foreign_position),
    ("pages of another size do not land", other_size),
    ("a push that is stopped ends, and the next attempt works", stopped),
    ("time in which layers are missing is not transfer time", deadline_waits_for_layers),
    ("orders that make no sense are refused", senseless_orders),
    ("grants that make no sense are refused", senseless_grants),
    ("many transfers at a time arrive", many),
];

const PAGES: u32 = 64;

fn side_by_side(backend: &dyn Backend) -> Verdict {
    let world = World::new(backend, 1, PAGES);
    arrives(&world, &Plan::contiguous(&[0; 9])).map(drop)
}

fn vectors_arrive(backend: &dyn Backend) -> Verdict {
    for vector in vectors::positions() {
        let world = World::new(backend, vector.cp_size, 4_096);
        let plan = vector.plan();
        let figures = arrives(&world, &plan).map_err(|fault| format!("{} tokens: {fault}", vector.tokens))?;
        let page_bytes: u64 = world.pool.buffers().as_slice().iter().map(|buffer| buffer.page_bytes).sum();
        for send in &vector.sends {
            let (bytes, sent) = (figures[usize::from(send.rank)].bytes, send.positions.len() as u64 * page_bytes);
            if bytes != sent {
                return Err(format!("{} tokens: rank {} counts {bytes} bytes of {sent}", vector.tokens, send.rank));
            }
        }
    }
    Ok(())
}

fn scattered(backend: &dyn Backend) -> Verdict {
    for cp_size in [1_u8, 2, 4, 8] {
        let world = World::new(backend, cp_size, PAGES);
        let owners: Vec<u8> = (0..41).map(|position| (position * 5 / 3 % u32::from(cp_size)) as u8).collect();
        let plan = Plan::contiguous(&owners).scattered(PAGES, u64::from(cp_size));
        arrives(&world, &plan).map_err(|fault| format!("{cp_size} ranks: {fault}"))?;
    }
    Ok(())
}

fn prefix(backend: &dyn Backend) -> Verdict {
    let world = World::new(backend, 2, PAGES);
    let mut plan = Plan::contiguous(&[0, 0, 1, 1, 1, 0]).scattered(PAGES, 5);
    (plan.prefix, plan.slots) = (2, plan.slots[2..].to_vec());
    arrives(&world, &plan).map(drop)
}

fn nothing_owned(backend: &dyn Backend) -> Verdict {
    let world = World::new(backend, 4, PAGES);
    let plan = Plan::contiguous(&[0, 2, 2, 0]);
    let figures = arrives(&world, &plan)?;
    let bytes: Vec<bool> = figures.iter().map(|figures| figures.bytes > 0).collect();
    is(&bytes, &vec![true, false, true, false], "ranks that sent")
}

fn empty_part(backend: &dyn Backend) -> Verdict {
    let world = World::new(backend, 1, PAGES);
    let plan = Plan::contiguous(&[0; 3]);
    let last = PushOrder { positions: Vec::new(), pages: Vec::new(), slots: Vec::new(), ..first_order(&world, &plan)? };
    let last = PushOrder { key: PushKey { name: plan.name, part: 1 }, ready: NONE_READY, ..last };
    ends_with(&world.push(last)?, &PushEnd::Complete)?;
    arrives(&world, &plan).map(drop)
}

fn progressive(backend: &dyn Backend) -> Verdict {
    let world = World::new(backend, 1, PAGES);
    let plan = Plan::contiguous(&[0; 6]).scattered(PAGES, 3);
    // What is not computed is stale: a layer that left too early would show it.
    let order = PushOrder { ready: NONE_READY, ..granted_order(&world, &plan)? };
    let key = order.key;
    world.begin(order)?;
    let launch = &world.senders[0].launch;
    for layer in 0..TARGET_LAYERS {
        // Draft layers have a track of their own: layer 0 of the target is not layer 0 of the draft.
        world.compute_track(&plan, layer, false);
        launch.ready(key, LayersReady { target: layer + 1, draft: 0 });
        let landed = world.bytes_up_to(layer) * 6;
        until("the bytes of a finished layer", || bytes_landed(&world, plan.name) == landed)?;
    }
    if world.senders[0].events.try_recv().is_ok() {
        return Err("ended without the draft".to_owned());
    }
    world.compute_track(&plan, 0, true);
    launch.ready(key, LayersReady { target: TARGET_LAYERS, draft: 1 });
    ends_with(&world.end_of(Rank(0))?, &PushEnd::Complete)?;
    world.owners_are_reported(&plan)?;
    world.bytes_are_right(&plan)
}

fn missing(backend: &dyn Backend) -> Verdict {
    let world = World::new(backend, 2, PAGES);
    let plan = Plan::contiguous(&[0, 1, 0]);
    let order = first_order(&world, &plan)?;
    ends_with(&world.push(order)?, &PushEnd::Complete)?;
    let report = world.landing.report(plan.name).ok_or("no report")?;
    is(&report.owners, &vec![0, NOBODY, 0], "owners")?;
    is(&report.missing.map(|missing| (missing.position, missing.component)), &Some((1, "target.kv")), "missing")
}

fn revoked_in_the_middle(backend: &dyn Backend) -> Verdict {
    let world = World::new(backend, 1, PAGES);
    let plan = Plan::contiguous(&[0; 5]).scattered(PAGES, 8);
    let order = PushOrder { ready: LayersReady { target: 1, draft: 0 }, ..first_order(&world, &plan)? };
    let key = order.key;
    world.begin(order)?;
    until("the first layer", || bytes_landed(&world, plan.name) == world.bytes_up_to(0) * 5)?;
    world.revoke(plan.name)?;
    is(&world.landing.is_still(), &true, "the landing is still")?;
    world.senders[0].launch.ready(key, LayersReady::ALL);
    is_refused(&world.end_of(Rank(0))?, FrameRefusal::Late)?;
    if world.landing.figures().late == 0 {
        return Err("late bytes are not counted".to_owned());
    }
    world.bytes_are(|buffer, page| {
        let at = plan.slots.iter().position(|slot| *slot == page)?;
        let landed = buffer.layer == 0 && buffer.component.name().starts_with("target");
        landed.then(|| pattern(plan.name, buffer, at as u32))
    })
}

fn stale_attempt(backend: &dyn Backend) -> Verdict {
    let world = World::new(backend, 1, PAGES);
    let plan = Plan::contiguous(&[0; 2]);
    let newer = Plan { name: Name { attempt: 2, ..plan.name }, ..plan.clone() };
    let (old, new) = (world.grant(&plan)?, world.grant(&newer).map_err(|fault| format!("the newer: {fault}"))?);
    world.revoke(plan.name)?;
    // With its own grant, which is gone, and with the newer one's.
    is_refused(&world.push(world.order(&plan, &old, 0))?, FrameRefusal::Late)?;
    is_refused(&world.push(world.order(&plan, &new, 0))?, FrameRefusal::Attempt)?;
    world.is_untouched()?;
    arrives(&world, &newer).map(drop)
}

fn wrong_secret(backend: &dyn Backend) -> Verdict {
    let world = World::new(backend, 1, PAGES);
    let plan = Plan::contiguous(&[0; 2]);
    let order = PushOrder { secret: [9; 16], ..first_order(&world, &plan)? };
    is_refused(&world.push(order)?, FrameRefusal::Grant)?;
    world.is_untouched()
}

fn twice(backend: &dyn Backend) -> Verdict {
    let world = World::new(backend, 1, PAGES);
    let plan = Plan::contiguous(&[0; 4]);
    let order = first_order(&world, &plan)?;
    let mut again = PushOrder { key: PushKey { name: plan.name, part: 1 }, ..order.clone() };
    (again.positions, again.pages, again.slots) = (vec![2], vec![plan.sources[2]], vec![plan.slots[2]]);
    ends_with(&world.push(order)?, &PushEnd::Complete)?;
    for buffer in world.senders[0].pool.buffers().as_slice() {
        write(&world.senders[0].pool, buffer, plan.sources[2], &vec![0xEE; buffer.page_bytes as usize]);
    }
    is_refused(&world.push(again)?, FrameRefusal::Twice(2))?;
    world.owners_are_reported(&plan)?;
    world.bytes_are_right(&plan)
}

fn foreign_position(backend: &dyn Backend) -> Verdict {
    let world = World::new(backend, 1, PAGES);
    let plan = Plan::contiguous(&[0; 4]);
    let mut order = first_order(&world, &plan)?;
    (order.positions, order.pages, order.slots) = (vec![3, 4], vec![1, 2], vec![4, 5]);
    is_refused(&world.push(order)?, FrameRefusal::Position(4))?;
    world.is_untouched()
}

fn other_size(backend: &dyn Backend) -> Verdict {
    for (component, sizes, refusal) in [
        (Component::TargetKv, vec![128], FrameRefusal::Bytes),
        (Component::TargetKv, vec![64, 32, 64, 16], FrameRefusal::Buffer),
    ] {
        let (world, folder) = (World::new(backend, 1, PAGES), Scratch::new());
        let layout = Layout::new(64, vec![(component, sizes)], 1).map_err(|fault| fault.to_string())?;
        let other = pool(&folder, "other", &layout, &L1Layout::packed(&layout, PAGES), 1);
        let plan = Plan::contiguous(&[0; 2]);
        let order = PushOrder { source: other, ..first_order(&world, &plan)? };
        is_refused(&world.push(order)?, refusal)?;
        let report = world.landing.report(plan.name).ok_or("no report")?;
        is(&report.owners, &vec![NOBODY; 2], "owners")?;
    }
    Ok(())
}

fn stopped(backend: &dyn Backend) -> Verdict {
    let world = World::new(backend, 1, PAGES);
    let plan = Plan::contiguous(&[0; 5]);
    let order = PushOrder { ready: LayersReady { target: 1, draft: 0 }, ..first_order(&world, &plan)? };
    let launch = &world.senders[0].launch;
    world.begin(order)?;
    until("the first layer", || bytes_landed(&world, plan.name) > 0)?;
    launch.stop(plan.name);
    ends_with(&world.end_of(Rank(0))?, &PushEnd::Stopped)?;
    is(&world.event_of(Rank(0))?, &Event::Stopped(plan.name), "the end of the attempt")?;
    is(&launch.is_still(), &true, "the launch is still")?;
    // A stop of what does not run is answered as well.
    launch.stop(plan.name);
    is(&world.event_of(Rank(0))?, &Event::Stopped(plan.name), "the end of nothing")?;
    world.revoke(plan.name)?;
    arrives(&world, &Plan { name: Name { attempt: 2, ..plan.name }, ..plan }).map(drop)
}

fn deadline_waits_for_layers(backend: &dyn Backend) -> Verdict {
    let world = World::new(backend, 1, PAGES);
    let plan = Plan::contiguous(&[0; 2]);
    let deadline = std::time::Duration::from_millis(100);
    let ready = LayersReady { target: 1, draft: 0 };
    let order = PushOrder { deadline, ready, ..first_order(&world, &plan)? };
    let key = order.key;
    world.begin(order)?;
    if let Ok(event) = world.senders[0].events.recv_timeout(deadline * 3) {
        return Err(format!("ended while layers were missing: {event:?}"));
    }
    world.senders[0].launch.ready(key, LayersReady::ALL);
    ends_with(&world.end_of(Rank(0))?, &PushEnd::Complete)?;
    world.bytes_are_right(&plan)
}

fn senseless_orders(backend: &dyn Backend) -> Verdict {
    let world = World::new(backend, 1, PAGES);
    let plan = Plan::contiguous(&[0; 3]);
    let order = first_order(&world, &plan)?;
    let wrong = [
        ("fewer slots", PushOrder { slots: vec![1, 2], ..order.clone() }),
        ("fewer positions", PushOrder { positions: vec![0, 1], ..order.clone() }),
        ("out of order", PushOrder { positions: vec![0, 2, 1], ..order.clone() }),
        ("the padding page", PushOrder { pages: vec![0, 1, 2], ..order.clone() }),
        ("a page behind the pool", PushOrder { pages: vec![1, 2, PAGES], ..order.clone() }),
        ("a page twice", PushOrder { pages: vec![1, 2, 1], ..order.clone() }),
        ("an endpoint of nobody", PushOrder { endpoint: "nowhere".to_owned(), ..order }),
    ];
    for (what, order) in wrong {
        if world.senders[0].launch.push(order).is_ok() {
            return Err(format!("{what} is taken"));
        }
    }
    is(&world.senders[0].launch.is_still(), &true, "the launch is still")?;
    world.is_untouched()
}

fn senseless_grants(backend: &dyn Backend) -> Verdict {
    let world = World::new(backend, 1, PAGES);
    let name = Name { transfer: OpId([3; 16]), attempt: 1 };
    let spec = |positions: &[u32], pages: &[u32]| {
        let (positions, pages) = (positions.to_vec(), pages.to_vec());
        world.landing.accept(GrantSpec { name, positions, pages, pool: world.pool.clone() })
    };
    for (what, positions, pages) in [
        ("fewer pages", &[0, 1][..], &[1][..]),
        ("out of order", &[1, 0], &[1, 2]),
        ("a position twice", &[1, 1], &[1, 2]),
        ("a page twice", &[0, 1], &[2, 2]),
        ("the padding page", &[0], &[0]),
        ("a page behind the pool", &[0], &[PAGES]),
    ] {
        if spec(positions, pages).is_ok() {
            return Err(format!("{what} is granted"));
        }
    }
    let grant = spec(&[0, 1], &[1, 2]).map_err(|refusal| format!("{refusal:?}"))?;
    is(&spec(&[0, 1], &[1, 2]).ok(), &Some(grant), "the same spec gives the same grant")?;
    is(&spec(&[0, 1], &[1, 3]).is_err(), &true, "another spec of the same name is refused")?;
    is(&world.landing.report(Name { attempt: 9, ..name }), &None, "a report of no grant")?;
    world.revoke(Name { attempt: 9, ..name })?;
    is(&world.landing.is_still(), &false, "a grant lives")?;
    world.landing.revoke_all();
    world.is_revoked(name)?;
    is(&world.landing.is_still(), &true, "none lives")
}

fn many(backend: &dyn Backend) -> Verdict {
    let world = World::new(backend, 2, 256);
    let pages = shuffled(256, 11);
    let plans = pages.chunks(5).take(40).enumerate().map(|(nth, slots)| {
        let name = Name { transfer: OpId([nth as u8; 16]), attempt: nth as u32 + 1 };
        let owners: Vec<u8> = (0..slots.len()).map(|position| (position % 2) as u8).collect();
        Plan { name, sources: slots.to_vec(), owners, prefix: 0, slots: slots.to_vec() }
    });
    let plans: Vec<Plan> = plans.collect();
    for plan in &plans {
        world.compute(plan, 0..u32::MAX);
        let grant = world.grant(plan)?;
        for rank in 0..2 {
            world.begin(world.order(plan, &grant, rank))?;
        }
    }
    for rank in 0..2 {
        for _ in &plans {
            ends_with(&world.end_of(Rank(rank))?, &PushEnd::Complete)?;
        }
    }
    plans.iter().try_for_each(|plan| world.owners_are_reported(plan))?;
    world.bytes_are(|buffer, page| {
        let plan = plans.iter().find(|plan| plan.slots.contains(&page))?;
        let at = plan.slots.iter().position(|slot| *slot == page)?;
        Some(pattern(plan.name, buffer, at as u32))
    })
}

impl World {
    /// Writes one layer of one track of `plan`, which all of rank 0 owns.
    fn compute_track(&self, plan: &Plan, layer: u32, draft: bool) {
        let pool = &self.senders[0].pool;
        let of_track = |name: &str| name.starts_with(if draft { "draft" } else { "target" });
        for buffer in pool.buffers().as_slice() {
            if buffer.layer == layer && of_track(buffer.component.name()) {
                for (at, position) in plan.wanted() {
                    write(pool, buffer, plan.sources[at], &pattern(plan.name, buffer, position));
                }
            }
        }
    }

    /// Bytes of one page in target layers up to `layer`.
    fn bytes_up_to(&self, layer: u32) -> u64 {
        let buffers = self.pool.buffers().as_slice().iter();
        let counted = buffers.filter(|buffer| buffer.layer <= layer && buffer.component.name().starts_with("target"));
        counted.map(|buffer| buffer.page_bytes).sum()
    }
}

fn bytes_landed(world: &World, name: Name) -> u64 {
    world.landing.report(name).map_or(0, |report| report.figures.bytes)
}

/// Transfers `plan` and looks at everything there is to see.
fn arrives(world: &World, plan: &Plan) -> Result<Vec<PushFigures>, String> {
    let figures = world.transfer(plan)?;
    world.owners_are_reported(plan)?;
    world.bytes_are_right(plan)?;
    let buffers = world.pool.buffers().as_slice();
    let report = world.landing.report(plan.name).ok_or("no report")?;
    is(&report.figures.buffers, &(buffers.len() as u64), "buffers")?;
    is(&report.figures.bytes, &figures.iter().map(|figures| figures.bytes).sum(), "bytes")?;
    Ok(figures)
}

/// The order of rank 0 for a plan that is granted and computed.
fn first_order(world: &World, plan: &Plan) -> Result<PushOrder, String> {
    world.compute(plan, 0..u32::MAX);
    granted_order(world, plan)
}

/// The order of rank 0 for a plan that is granted.
fn granted_order(world: &World, plan: &Plan) -> Result<PushOrder, String> {
    let grant = world.grant(plan)?;
    Ok(world.order(plan, &grant, 0))
}

fn ends_with((end, _): &(PushEnd, PushFigures), wanted: &PushEnd) -> Verdict {
    is(end, wanted, "the end of a push")
}

fn is_refused((end, _): &(PushEnd, PushFigures), wanted: FrameRefusal) -> Verdict {
    match end {
        PushEnd::Failed(Cause::Refused { refusal, .. }) if *refusal == wanted => Ok(()),
        other => Err(format!("{other:?} for a refusal with {wanted:?}")),
    }
}

fn is<T: PartialEq + std::fmt::Debug>(found: &T, wanted: &T, what: &str) -> Verdict {
    if found == wanted { Ok(()) } else { Err(format!("{what}: {found:?} for {wanted:?}")) }
}

const NONE_READY: LayersReady = LayersReady { target: 0, draft: 0 };
