//! The decode side of a handover: waits until the pages of the prompt are there, and compares all that came.
//!
//! Pages that are here already are hits like any other, those of the host tier loaded before anything is waited for;
//! a load that fails ends the attempt, because nobody sends what was said to be here.

use hicached_actors::protocol::{HandedOver, Handover, WrongState};
use tokio::time::Instant;

use super::{Over, Session, odd};
use crate::client::ClientError;
use crate::engine::Side;
use crate::engine::pools::Components;

impl Session<'_> {
    /// Takes the prompt over, if this session is the receiving side of a handover.
    pub(super) async fn receive(&mut self) -> Result<(), ClientError> {
        let Some(Side::Receive { transfer, attempt }) = self.prompt.handover else { return Ok(()) };
        let (tokens, held) = (self.prompt.plan.tokens, self.pages.len() as u32);
        let pages = tokens.div_ceil(self.page_tokens());
        if held != pages {
            return Err(odd("pages", held, pages));
        }
        if let Some(load) = self.load.take() {
            let load = self.with_pages(load);
            self.ended.load_ns = self.core.load(self.life, &load).await;
            if self.ended.load_ns.is_none() {
                self.core.report().loads_failed += 1;
                return Err(ClientError::Refused(WrongState::new(load.ticket.op, "failed").into()));
            }
            self.load_first = None;
        }
        let asked = Instant::now();
        let client = self.client.patient(self.core.config.handover_deadline);
        let handover = Handover { transfer, attempt, tenant: self.prompt.tenant.clone() };
        let handed = self.stop.or(self.id, client.handover(handover)).await?;
        let handover_ns = asked.elapsed().as_nanos() as u64;
        (self.ended.handover_ns, self.ended.handover_pages) = (Some(handover_ns), handed.received);
        self.core.report().latencies.handover.record(handover_ns);
        self.check(&handed, pages)?;
        if !handed.components.is_empty() {
            self.came = Some((pages - handed.received..pages, Components::named(&handed.components)));
        }
        let received = self.placed_until(pages - handed.received, tokens);
        self.core.verify_all(self.life, &received).await;
        let mut report = self.core.report();
        report.handovers += 1;
        report.handover_pages += u64::from(handed.received);
        self.frontier = tokens;
        Ok(())
    }

    /// Compares what was said with what follows from the request.
    fn check(&self, handed: &HandedOver, pages: u32) -> Result<(), ClientError> {
        let (tokens, here) = (self.prompt.plan.tokens, self.hit.l1 + self.hit.l2);
        if handed.tokens != tokens {
            return Err(odd("tokens", handed.tokens, tokens));
        }
        if handed.received != pages - here {
            return Err(odd("received", handed.received, pages - here));
        }
        match handed.blob.0 == self.prompt.blob() {
            true => Ok(()),
            false => Err(odd("blob", format_args!("{:?}", handed.blob.0), format_args!("{:?}", self.prompt.blob()))),
        }
    }

    /// Ends a session whose handover failed by `error`, so that the next attempt finds its pages free. Where no
    /// answer is to be had, the session is told of behind the scenes.
    pub(super) async fn give_handover_up(&self, error: ClientError) -> Result<Over, ClientError> {
        match error {
            ClientError::Refused(_) => self.abort(Over::WithoutPages(error)).await,
            ClientError::Decode(_)
            | ClientError::NewIncarnation { .. }
            | ClientError::Bus(_)
            | ClientError::Uncached { .. } => Err(error),
        }
    }
}
