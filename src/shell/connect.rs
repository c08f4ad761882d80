//! The bus that a configuration names.

use std::sync::Arc;

use crate::bus::Bus;
use crate::bus::memory::{MemoryBus, MemoryConfig};
use crate::bus::nats::{NatsBus, NatsConfig, NatsError};
use crate::config::{BusConfig, BusKind, masked};

/// No broker can be reached.
#[derive(Debug, thiserror::Error)]
#[error("bus.url is {url}: {why}")]
pub struct NoBroker {
    /// Where it should be, without credentials.
    url: String,
    /// What was tried and what came of it.
    why: String,
}

impl NoBroker {
    fn new(url: &str, error: &NatsError) -> Self {
        let why = match error {
            NatsError::Address { source, .. } => format!("not the address of a NATS server: {source}"),
            NatsError::Connect { source } => format!("{error}: {source}"),
            NatsError::Gone => error.to_string(),
        };
        Self { url: masked(url), why }
    }
}

/// Opens the bus. Has to run inside a tokio runtime, which drives a connection to NATS from then on.
///
/// # Errors
/// No broker can be reached.
pub async fn connect(config: &BusConfig) -> Result<Arc<dyn Bus>, NoBroker> {
    Ok(match config.kind {
        BusKind::Memory => {
            let bounds = MemoryConfig { payload_bytes_max: config.payload_bytes_max, ..MemoryConfig::default() };
            Arc::new(MemoryBus::new(bounds))
        }
        BusKind::Nats => {
            let bus = NatsBus::connect(&NatsConfig::new(config.url.clone())).await;
            Arc::new(bus.map_err(|error| NoBroker::new(&config.url, &error))?)
        }
    })
}
