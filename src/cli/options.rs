//! Arguments that several commands share.

use std::path::PathBuf;

use clap::Args;

use crate::cli::Failure;
use crate::config::{Checked, Layers, load};

/// Where the configuration comes from.
#[derive(Clone, Debug, Default, Args)]
pub struct ConfigArgs {
    /// A TOML file above the defaults
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// One key above everything else; may be repeated
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    pub set: Vec<String>,
}

impl ConfigArgs {
    /// Reads all layers and checks what they say.
    ///
    /// # Errors
    /// Every fault at once.
    pub fn checked(&self) -> Result<Checked, Failure> {
        let environment = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        let layers = Layers { file: self.config.clone(), set: self.set.clone(), environment };
        Ok(load(&layers)?.checked()?)
    }
}
