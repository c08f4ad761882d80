//! Arguments that several commands share.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::cli::Failure;
use crate::config::{Checked, Config, ConfigRefused, Layers, load, pair_faults};
use crate::shell::check_pools;

/// Where the configurations of several groups come from.
#[derive(Clone, Debug, Default, Args)]
pub struct GroupsArgs {
    /// A TOML file above the defaults; may be repeated, for one group each
    #[arg(long, value_name = "FILE")]
    pub config: Vec<PathBuf>,
    /// One key above everything else, in every group; may be repeated
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    pub set: Vec<String>,
}

impl GroupsArgs {
    /// Reads all layers of every group, checks what they say and looks for the pool folders. At least one group.
    ///
    /// # Errors
    /// Every fault at once, of several files each with its file.
    pub fn checked(&self) -> Result<Vec<Checked>, Failure> {
        let files: Vec<Option<&Path>> =
            if self.config.is_empty() { vec![None] } else { self.config.iter().map(|file| Some(&**file)).collect() };
        let (mut read, mut groups, mut faults) = (Vec::new(), Vec::new(), Vec::new());
        let mut named: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for file in &files {
            let shown = file.map(|file| file.display().to_string()).unwrap_or_default();
            let checked = layers(*file, &self.set).and_then(|config| {
                read.push(config.clone());
                group(&config)
            });
            match checked {
                Ok(checked) => {
                    named.entry(checked.config.group.name.clone()).or_default().push(shown);
                    groups.push(checked);
                }
                Err(refused) if files.len() == 1 => faults.extend(refused.faults),
                Err(refused) => faults.extend(refused.faults.iter().map(|fault| format!("{shown}: {fault}"))),
            }
        }
        faults.extend(pair_faults(&read));
        for (name, files) in named.iter().filter(|(_, files)| files.len() > 1) {
            faults
                .push(format!("group.name is {name:?} in {}: give each group a name of its own", files.join(" and ")));
        }
        if faults.is_empty() { Ok(groups) } else { Err(ConfigRefused { faults }.into()) }
    }
}

fn layers(file: Option<&Path>, set: &[String]) -> Result<Config, ConfigRefused> {
    let layers = Layers { file: file.map(Path::to_owned), set: set.to_vec(), ..Layers::default() };
    load(&layers.with_environment())
}

fn group(config: &Config) -> Result<Checked, ConfigRefused> {
    let group = config.checked()?;
    check_pools(&group)?;
    Ok(group)
}
