//! The raw request that everything else is measured against.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::bench::BenchError;
use crate::bus::{Bus, BusError, Frame, Inbox, Served, inbox};

/// Answers every frame with its own payload, on a thread of its own, as a group does.
pub(super) struct Echo {
    served: Served,
}

impl Echo {
    /// Answers on `bus`, beside the group of that name.
    pub(super) async fn start(bus: Arc<dyn Bus>, group: &str) -> Result<Self, BusError> {
        let (sender, mut inbox): (_, Inbox) = inbox(RAW_QUEUE, None);
        let served = bus.serve(&format!("hicached.v1.{group}.echo"), sender).await?;
        std::thread::spawn(move || {
            let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
            runtime.block_on(async {
                while let Some(frame) = inbox.recv().await {
                    let Some(reply) = frame.reply(frame.payload.clone()) else { continue };
                    // A reply that is not sent is a request that times out, which ends the bench.
                    bus.send(reply).ok();
                }
            });
        });
        Ok(Self { served })
    }

    /// Nanoseconds of each of `requests` requests on `bus`, one after the other.
    pub(super) async fn ask(&self, bus: &dyn Bus, requests: u32) -> Result<Vec<u64>, BenchError> {
        let body = vec![0; RAW_BYTES];
        let mut all_ns = Vec::new();
        for _ in 0..requests {
            let asked = Instant::now();
            bus.request(Frame::new(self.served.subject(), body.clone()), RAW_DEADLINE).await?;
            all_ns.push(asked.elapsed().as_nanos() as u64);
        }
        Ok(all_ns)
    }
}

/// About what an `open` of the pages of one request weighs.
const RAW_BYTES: usize = 512;
const RAW_DEADLINE: Duration = Duration::from_secs(5);
const RAW_QUEUE: usize = 1_024;
