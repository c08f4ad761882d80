//! Hosts machines of a control group that another process leads, under the incarnation which that one names.

use std::time::Duration;

use hicached_actors::calls::draw as draw_chance;
use hicached_actors::protocol::{Claim, Incarnation, LeadAnswer, LeadIn, Leave};
use tokio::time::sleep;

use super::build::{StartError, agreed};
use super::follow::{Follow, Follows};
use super::leading::{Letters, Line, draw};
use super::seat::{Machines, Seat};

/// Follows until the process ends, and says so; gives back what it hosts by then.
///
/// # Errors
/// A living process has the place of one of its machines, or the configurations differ.
pub(super) async fn follow(seat: &Seat, line: &mut Line) -> Result<Machines, StartError> {
    let lease_ms = seat.group.config.leases.control_ms;
    let (mut letters, mut follow, mut hosted) = (Letters::new(seat), Follow::new(lease_ms), Machines::default());
    let ended = claim_on(seat, line, &mut letters, &mut follow, &mut hosted).await;
    say_goodbye(seat, &mut letters, follow.hosted()).await;
    match ended {
        Ok(()) => Ok(hosted),
        Err(error) => {
            hosted.stop().await;
            Err(error)
        }
    }
}

/// Claims the places of this process, again and again until it ends.
async fn claim_on(
    seat: &Seat,
    line: &mut Line,
    letters: &mut Letters,
    follow: &mut Follow,
    hosted: &mut Machines,
) -> Result<(), StartError> {
    let machines = seat.machines();
    let claim = Claim { actors: machines.iter().map(ToString::to_string).collect(), agreed: agreed(&seat.group) };
    let claim = LeadIn::from(claim);
    let lease_ms = seat.group.config.leases.control_ms;
    let [seed, ..] = draw().0;
    let (mut chance, mut unheard) = (u64::from(seed), 0_u32);
    loop {
        let asked = ask(seat, letters, follow.hosted(), &claim, lease_ms);
        let answer = tokio::select! {
            _ = &mut line.stopped => return Ok(()),
            answer = asked => answer,
        };
        unheard = if answer.is_some() { 0 } else { unheard.saturating_add(1) };
        if unheard == UNHEARD_BEATS {
            tracing::warn!("the process with the index does not answer");
        }
        match answer.map_or(Follows::Keep, |answer| follow.heard(seat.clock.now(), answer)) {
            Follows::Keep => {}
            Follows::Host(control) => {
                tracing::info!(?control, "hosts under another control incarnation");
                hosted.stop().await;
                follow.hosts(Incarnation::default());
                match hosted.host(seat, &machines, control).await {
                    Ok(()) => {
                        follow.hosts(control);
                        line.tell_ready();
                        // The leader waits to hear of it.
                        continue;
                    }
                    Err(error) => tracing::warn!(%error, "hosts nothing and tries again"),
                }
            }
            Follows::GiveUp(error) => return Err(error),
        }
        let beat_ms = (lease_ms / BEATS_PER_LEASE).max(1);
        let pause = Duration::from_millis(beat_ms - draw_chance(&mut chance) % beat_ms.div_ceil(4));
        tokio::select! {
            _ = &mut line.stopped => return Ok(()),
            () = sleep(pause) => {}
        }
    }
}

/// Nobody waits for a lease of this process then. The answer only says that the goodbye was heard before this process
/// ends: one that is lost costs just that lease.
async fn say_goodbye(seat: &Seat, letters: &mut Letters, hosted: Incarnation) {
    let goodbye = letters.letter(hosted, &Leave {}.into());
    if let Err(error) = seat.post.bus().request(goodbye, GOODBYE_MAX).await {
        tracing::debug!(%error, "no goodbye");
    }
}

/// What the leader says, `None` when nobody answers.
async fn ask(
    seat: &Seat,
    letters: &mut Letters,
    hosted: Incarnation,
    claim: &LeadIn,
    lease_ms: u64,
) -> Option<LeadAnswer> {
    let patience = Duration::from_millis(lease_ms / 4);
    match seat.post.bus().request(letters.letter(hosted, claim), patience).await {
        Ok(reply) => Some(Letters::read(&reply).unwrap_or_else(LeadAnswer::Refused)),
        Err(error) => {
            tracing::debug!(%error, "no leader");
            None
        }
    }
}

/// A leader that lives answers in less; without one the broker says so.
const GOODBYE_MAX: Duration = Duration::from_secs(1);
/// Claims without an answer after which that is said: about two leases.
const UNHEARD_BEATS: u32 = 32;
/// Claims of one lease: several may be lost before a process counts as gone.
const BEATS_PER_LEASE: u64 = 16;
