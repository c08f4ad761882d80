//! A host record that changes behind the back of its rank, under a whole group with checksums.

use futures_util::stream;
use hicached_actors::protocol::{Address, Flush, Keys};
use hicached_client::engine::{Engine, Prompt, Report};

use super::group::Group;
use super::*;

/// Pages of each tier.
const PAGES: u32 = 16;

async fn serve(engine: &mut Engine, prompt: &Prompt) -> Report {
    let report = engine.run(stream::iter([prompt.clone()]), |_, _| ()).await;
    assert!(report.is_clean(), "{report:?}");
    report
}

fn flush(tier: u8, quarantined: bool) -> Flush {
    Flush { tier, salt: Vec::new(), prefix: Keys::default(), quarantined }
}

/// Serves `prompt` and leaves all four pages of it on the hosts alone.
async fn store(group: &Group, engine: &mut Engine, prompt: &Prompt) {
    serve(engine, prompt).await;
    group.until("stored", async || group.figure(Address::Index, "index.cached_l2").await == 4).await;
    group.until("sealed", async || group.figure(Address::Index, "index.in_flight").await == 0).await;
    assert_eq!(engine.client().flush(flush(1, false)).await.unwrap().l1_kept, 0);
}

pub(crate) async fn a_record_that_was_damaged_on_its_host_is_computed_again_and_set_aside(rig: Rig) {
    let on = |config: &mut hicached::config::Config| config.cache.fingerprints = true;
    let group = Group::start_with(rig.server.clone(), 2, PAGES, PAGES, on).await;
    let mut engine = group.engine(rig.caller.clone(), 2).await;
    for (nth, position) in [0_u64, 1, 3].into_iter().enumerate() {
        let prompt = group.prompt(nth as u32 + 1, 4);
        store(&group, &mut engine, &prompt).await;
        group.damage(prompt.plan.keys[position as usize]);

        let report = serve(&mut engine, &prompt).await;
        assert_eq!((report.hit_pages.l2, report.loads, report.loads_failed), (4, 1, 1), "position {position}");
        group.until("set aside", async || group.figure(Address::Index, "index.quarantined").await == 1).await;
        assert_eq!(group.sum("rank.damaged").await, nth as u64 + 1);
        // What stood before it stays, what stood behind it leaves.
        let resident = position + 1;
        group.until("alone", async || group.figure(Address::Index, "index.cached_l2").await == resident).await;
        group.until("free", async || group.free_pages().await.1 == u64::from(PAGES) - resident).await;

        let again = serve(&mut engine, &prompt).await;
        assert_eq!((again.hit_pages.l1, again.mismatches), (4, 0), "what was computed is right");
        assert!(again.bytes_verified > 0);
        engine.client().flush(flush(1, false)).await.unwrap();
        let before = serve(&mut engine, &prompt).await;
        assert_eq!((before.hit_pages.l2, before.loads_failed), (position, 0), "a match ends before it");

        let freed = engine.client().flush(flush(2, true)).await.unwrap();
        assert_eq!((freed.l1, freed.l2, freed.l2_kept), (0, 1, 0), "freed whole by a flush of the quarantined");
        assert_eq!(group.figure(Address::Index, "index.quarantined").await, 0);
        group.gives_everything_back(&engine).await;
        store(&group, &mut engine, &prompt).await;
        let whole = serve(&mut engine, &prompt).await;
        assert_eq!((whole.hit_pages.l2, whole.loads_failed), (4, 0), "stored anew");
        group.gives_everything_back(&engine).await;
    }
    group.until("counted", async || group.figure(Address::Index, "index.leaked_pages").await == 0).await;
    engine.stop().await;
}
