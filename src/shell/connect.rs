//! The bus that a configuration names.

use std::sync::Arc;

use crate::bus::Bus;
use crate::bus::memory::{MemoryBus, MemoryConfig};
use crate::bus::nats::{NatsBus, NatsConfig, NatsError};
use crate::config::{BusConfig, BusKind};

/// Opens the bus. Has to run inside a tokio runtime, which drives a connection to NATS from then on.
///
/// # Errors
/// No broker can be reached.
pub async fn connect(config: &BusConfig) -> Result<Arc<dyn Bus>, NatsError> {
    Ok(match config.kind {
        BusKind::Memory => {
            let bounds = MemoryConfig { payload_bytes_max: config.payload_bytes_max, ..MemoryConfig::default() };
            Arc::new(MemoryBus::new(bounds))
        }
        BusKind::Nats => Arc::new(NatsBus::connect(&NatsConfig::new(config.url.clone())).await?),
    })
}
