//! Leads the control group of a process that hosts the index: hears claims, begins and ends incarnations.

use std::sync::Arc;
use std::time::Duration;

use hicached_actors::protocol::{
    Bin, Envelope, Incarnation, Lead as Leads, LeadAnswer, LeadIn, Led, Malformed, OpId, OpIds, Refusal, VERSION,
    encode, lead_subject,
};
use tokio::sync::oneshot;

use super::build::{StartError, agreed};
use super::clock::Clock;
use super::lead::{Lead, Rival};
use super::seat::{Machines, Seat};
use crate::bus::{Bus, BusError, Connection, Frame, inbox};

/// How the rest of the process hears from the control thread, and it from the rest.
pub(super) struct Line {
    /// Told once, when every actor of the process can be reached.
    pub(super) ready: Option<oneshot::Sender<()>>,
    /// Resolves when the process ends.
    pub(super) stopped: oneshot::Receiver<()>,
}

impl Line {
    /// Every actor of this process can be reached.
    pub(super) fn tell_ready(&mut self) {
        if let Some(ready) = self.ready.take() {
            // Nobody waits any more when the process ends.
            ready.send(()).ok();
        }
    }
}

/// A message between processes of a control group.
pub(super) struct Letters {
    life: Incarnation,
    subject: Arc<str>,
    ids: OpIds,
}

impl Letters {
    /// Of a new life in the group of `seat`.
    pub(super) fn new(seat: &Seat) -> Self {
        let life = draw();
        Self { life, subject: lead_subject(&seat.group.config.group.name).into(), ids: OpIds::new(life) }
    }

    /// A message to the leader from a process that hosts under `control`.
    pub(super) fn letter(&mut self, control: Incarnation, said: &LeadIn) -> Frame {
        let bytes = self.envelope(control, OpId::default(), said.code(), said.encode_body());
        Frame::new(self.subject.clone(), bytes)
    }

    /// Reads what the leader answered.
    ///
    /// # Errors
    /// It is no answer.
    pub(super) fn read(reply: &Frame) -> Result<LeadAnswer, Refusal> {
        let envelope = Envelope::decode(&reply.payload)?;
        let answer = LeadAnswer::decode_body(&envelope.kind, &envelope.body.0);
        Ok(answer.ok_or_else(|| Malformed::new("kind", &envelope.kind, "led, taken or refused"))??)
    }

    fn envelope(&mut self, control: Incarnation, op: OpId, kind: &str, body: Vec<u8>) -> Vec<u8> {
        let envelope = Envelope {
            version: VERSION,
            kind: kind.to_owned(),
            id: self.ids.draw(),
            op,
            sender: "process".to_owned(),
            incarnation: self.life,
            control,
            seq: 0,
            urgent: false,
            remaining_ms: 0,
            body: Bin(body),
        };
        encode(&envelope)
    }
}

/// A life or an incarnation that nobody has had.
pub(super) fn draw() -> Incarnation {
    Incarnation(uuid::Uuid::new_v4().into_bytes())
}

/// Leads until the process ends; gives back what it hosts by then.
///
/// # Errors
/// Another process leads the group, the broker cannot be used, or a machine cannot be made.
pub(super) async fn lead(seat: &Seat, line: &mut Line) -> Result<Machines, StartError> {
    let bus = seat.post.bus().clone();
    let mut letters = Letters::new(seat);
    refuse_second(&*bus, &mut letters).await?;
    let (sender, mut inbox) = inbox(seat.group.config.bus.inbox_frames, None);
    let served = bus.serve(&letters.subject, sender).await;
    let _served = served.map_err(|source| StartError::Lead { source })?;
    let lease_ms = seat.group.config.leases.control_ms;
    let lead = Lead::new(letters.life, seat.machines(), agreed(&seat.group), lease_ms);
    let mut leading = Leading { seat, bus, letters, lead, machines: Machines::default(), has_index: false, beats: 0 };
    let mut connection = leading.bus.connection();
    let mut beat = tokio::time::interval(Duration::from_millis(lease_ms / BEATS_PER_LEASE));
    let mut has_begun = false;
    loop {
        if let Err(error) = leading.keep_up(line).await {
            let is_of_the_bus = matches!(error, StartError::Serve { .. });
            if !has_begun || !is_of_the_bus {
                return Err(error);
            }
            tracing::warn!(%error, "the control group begins again");
            leading.lead.end();
            tokio::time::sleep(AGAIN).await;
        }
        has_begun = true;
        tokio::select! {
            biased;
            _ = &mut line.stopped => return Ok(leading.machines),
            // What has come is read before anybody counts as silent.
            Some(frame) = inbox.recv() => leading.take(&frame).await?,
            () = seat.over.notified() => {
                tracing::error!("another control group had the ranks meanwhile: this incarnation is over");
                leading.lead.end();
            }
            Ok(()) = connection.changed() => leading.lead.heard_nobody(seat.clock.now()),
            _ = beat.tick() => leading.beat(),
            () = leading.silence() => {
                let now = seat.clock.now();
                if matches!(*connection.borrow(), Connection::Connected) {
                    leading.lead.wake(now);
                } else {
                    leading.lead.heard_nobody(now);
                }
            }
        }
    }
}

/// Asks whether somebody leads: a process that is killed takes its subscription with it, so only a living one answers.
async fn refuse_second(bus: &dyn Bus, letters: &mut Letters) -> Result<(), StartError> {
    let asked = letters.letter(Incarnation::default(), &Leads {}.into());
    match bus.request(asked, ANSWER_MAX).await {
        Ok(reply) => match Letters::read(&reply) {
            Ok(LeadAnswer::Led(led)) => Err(StartError::SecondLeader { control: led.control }),
            Ok(LeadAnswer::Taken(taken)) => Err(StartError::Taken { taken }),
            Ok(LeadAnswer::Refused(refusal)) | Err(refusal) => Err(StartError::Refused { refusal }),
        },
        Err(BusError::NoResponders { .. } | BusError::TimedOut { .. }) => Ok(()),
        Err(source) => Err(StartError::Lead { source }),
    }
}

struct Leading<'a> {
    seat: &'a Seat,
    bus: Arc<dyn Bus>,
    letters: Letters,
    lead: Lead,
    machines: Machines,
    has_index: bool,
    /// Since the incarnation began without its index.
    beats: u32,
}

impl Leading<'_> {
    /// Begins an incarnation when the last one is over, and its index when all the others are hosted.
    async fn keep_up(&mut self, line: &mut Line) -> Result<(), StartError> {
        if self.lead.is_over() {
            self.machines.stop().await;
            (self.has_index, self.beats) = (false, 0);
            let control = draw();
            tracing::info!(?control, "a control incarnation begins");
            self.lead.begin(control);
            self.machines.host(self.seat, &self.seat.machines(), control).await?;
        }
        if self.lead.is_complete() && !self.has_index {
            self.machines.host_index(self.seat, self.lead.control()).await?;
            self.has_index = true;
            line.tell_ready();
        }
        Ok(())
    }

    /// Takes one message; what is no message is answered and changes nothing.
    async fn take(&mut self, frame: &Frame) -> Result<(), StartError> {
        let (envelope, letter) = match read(frame) {
            Ok(read) => read,
            Err(refusal) => {
                self.answer(frame, OpId::default(), &refusal.into());
                return Ok(());
            }
        };
        match letter {
            LeadIn::Claim(claim) => {
                let (now, life) = (self.seat.clock.now(), envelope.incarnation);
                let answer: LeadAnswer = match self.lead.claim(now, life, envelope.control, &claim) {
                    Ok(control) => Led { control }.into(),
                    Err(answer) => answer,
                };
                self.answer(frame, envelope.op, &answer);
            }
            LeadIn::Leave(_) => {
                tracing::info!(life = ?envelope.incarnation, "a process of the control group ends");
                self.lead.leave(envelope.incarnation);
                self.answer(frame, envelope.op, &Led { control: self.lead.control() }.into());
            }
            LeadIn::Lead(_) => match self.lead.rival(envelope.incarnation) {
                Rival::Myself => {}
                Rival::Tell | Rival::GiveWay if frame.reply_to.is_some() => {
                    self.answer(frame, envelope.op, &Led { control: self.lead.control() }.into());
                }
                Rival::Tell => self.tell(),
                // A beat may be late, or repeated, or made up: only who answers leads.
                Rival::GiveWay => match refuse_second(&*self.bus, &mut self.letters).await {
                    Ok(()) | Err(StartError::Lead { .. }) => {}
                    Err(second) => return Err(second),
                },
            },
        }
        Ok(())
    }

    fn beat(&mut self) {
        self.tell();
        self.beats = self.beats.saturating_add(1);
        if !self.has_index && self.beats == WAITED_BEATS {
            let missing: Vec<String> = self.lead.missing().iter().map(ToString::to_string).collect();
            tracing::warn!(missing = missing.join(", "), "the control group waits for other processes");
        }
    }

    /// A sign of life to whoever believes to lead as well.
    fn tell(&mut self) {
        let beat = self.letters.letter(self.lead.control(), &Leads {}.into());
        if let Err(error) = self.bus.send(beat) {
            tracing::debug!(%error, "no sign of life");
        }
    }

    fn answer(&mut self, frame: &Frame, op: OpId, answer: &LeadAnswer) {
        let bytes = self.letters.envelope(self.lead.control(), op, answer.code(), answer.encode_body());
        if let Some(reply) = frame.reply(bytes)
            && let Err(error) = self.bus.send(reply)
        {
            tracing::debug!(%error, "no answer");
        }
    }

    /// Resolves when a process may have been silent for too long; never while there is none.
    async fn silence(&self) {
        match self.lead.next_deadline() {
            Some(at) => tokio::time::sleep(Clock::until(self.seat.clock.now(), at)).await,
            None => std::future::pending().await,
        }
    }
}

fn read(frame: &Frame) -> Result<(Envelope, LeadIn), Refusal> {
    let envelope = Envelope::decode(&frame.payload)?;
    let letter = LeadIn::decode_body(&envelope.kind, &envelope.body.0);
    let letter = letter.ok_or_else(|| Malformed::new("kind", &envelope.kind, "lead, claim or leave"))??;
    Ok((envelope, letter))
}

/// A leader that lives answers in much less.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// Of a leader to another one: there is none unless both began in the same moment.
const BEATS_PER_LEASE: u64 = 2;
/// Beats without a complete control group after which that is said: two leases.
const WAITED_BEATS: u32 = 4;
/// Between two tries to host what the broker did not allow to be served.
const AGAIN: Duration = Duration::from_millis(100);
