//! Arguments that several commands share.

use std::path::PathBuf;

use clap::Args;

use crate::cli::Failure;
use crate::config::{Checked, Layers, load};
use crate::shell::check_pools;

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
    /// Reads all layers, checks what they say and looks for the pool folder.
    ///
    /// # Errors
    /// Every fault at once.
    pub fn checked(&self) -> Result<Checked, Failure> {
        let layers = Layers { file: self.config.clone(), set: self.set.clone(), ..Layers::default() };
        let group = load(&layers.with_environment())?.checked()?;
        check_pools(&group)?;
        Ok(group)
    }
}
