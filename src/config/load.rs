//! Merges the layers and reads them key by key, so that every key at fault is named, not only the first.

use std::path::PathBuf;

use config::{Environment, File, FileFormat};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{Config, ConfigRefused};

/// The first layer: every key with its default, and the documented example.
pub const DEFAULTS: &str = include_str!("../../config/hicached.toml");

/// What lies above the defaults.
#[derive(Clone, Debug, Default)]
pub struct Layers {
    /// A file.
    pub file: Option<PathBuf>,
    /// `section.key=value`, the last word.
    pub set: Vec<String>,
    /// Environment variables as they stand; only those under `HICACHED__` are read.
    pub environment: Vec<(String, String)>,
}

impl Layers {
    /// The same, with the environment of this process.
    pub fn with_environment(self) -> Self {
        let environment = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        Self { environment, ..self }
    }

    /// What the environment and `set` say, as their writer knows it, and the key that each means.
    pub fn named(&self) -> Vec<(String, String)> {
        let variable = |name: &str| {
            let key = name.strip_prefix("HICACHED__")?.to_lowercase().replace("__", ".");
            Some((name.to_owned(), key))
        };
        let variables = self.environment.iter().filter_map(|(name, _)| variable(name));
        let flag = |set: &String| {
            let key = set.split_once('=')?.0.trim();
            Some((format!("--set {key}"), key.to_lowercase()))
        };
        variables.chain(self.set.iter().filter_map(flag)).collect()
    }
}

/// Merges the layers into one typed configuration. The result is not cross-checked: see [`Config::checked`].
///
/// # Errors
/// A file that cannot be read or parsed; otherwise every unknown key and every value of the wrong type at once,
/// with what the cross-check finds in the rest.
pub fn load(layers: &Layers) -> Result<Config, ConfigRefused> {
    let mut faults = Vec::new();
    let tree = merge(layers, &mut faults).map_err(|fault| ConfigRefused { faults: vec![fault] })?;
    let config = read(&tree, &mut faults);
    if faults.is_empty() {
        return Ok(config);
    }
    if let Err(more) = config.checked() {
        faults.extend(more.faults);
    }
    Err(ConfigRefused { faults })
}

fn merge(layers: &Layers, faults: &mut Vec<String>) -> Result<Map<String, Value>, String> {
    let mut environment = config::Map::new();
    for (name, value) in layers.environment.iter().filter(|(name, _)| name.starts_with("HICACHED__")) {
        match bounded(&name.replace("__", ".")) {
            Ok(()) => drop(environment.insert(name.clone(), value.clone())),
            Err(fault) => faults.push(format!("{}: {fault}", shown(name))),
        }
    }
    let mut builder = config::Config::builder().add_source(File::from_str(DEFAULTS, FileFormat::Toml));
    if let Some(file) = &layers.file {
        builder = builder.add_source(File::from(file.as_path()).format(FileFormat::Toml));
    }
    builder = builder.add_source(
        Environment::with_prefix("HICACHED")
            .prefix_separator("__")
            .separator("__")
            .try_parsing(true)
            .source(Some(environment)),
    );
    for set in &layers.set {
        let Some((key, value)) = set.split_once('=') else {
            faults.push(format!("--set {set}: write section.key=value"));
            continue;
        };
        if let Err(fault) = bounded(key) {
            faults.push(format!("--set {}: {fault}", shown(key)));
            continue;
        }
        match builder.clone().set_override(key.trim(), typed(value.trim())) {
            Ok(with) => builder = with,
            Err(error) => faults.push(format!("--set {key}: {error}")),
        }
    }
    let merged = builder.build().map_err(|error| format!("configuration: {error}"))?;
    merged.try_deserialize().map_err(|error| format!("configuration: {error}"))
}

/// Refuses a key that names more than any configuration has: merging makes every element up to an index and every
/// level up to a name.
fn bounded(key: &str) -> Result<(), String> {
    let levels = key.split('.').count();
    if levels > LEVELS_MAX {
        return Err(format!("names {levels} levels, at most {LEVELS_MAX} are known"));
    }
    let indices = key.split('[').skip(1).map(|rest| rest.split(']').next().unwrap_or(rest));
    for index in indices {
        if index.trim().parse::<usize>().map_or(true, |index| index >= ROWS_MAX) {
            return Err(format!("[{}] is no place in a list, write 0..={}", shown(index), ROWS_MAX - 1));
        }
    }
    Ok(())
}

/// As much of what was given as a sentence bears.
fn shown(text: &str) -> String {
    text.chars().take(SHOWN_CHARS_MAX).collect()
}

/// The value of a flag, as the environment layer reads its own.
fn typed(text: &str) -> config::Value {
    if let Ok(flag) = text.parse::<bool>() {
        flag.into()
    } else if let Ok(number) = text.parse::<i64>() {
        number.into()
    } else {
        text.into()
    }
}

/// Reads each key alone: what cannot be read is named and takes its default, so that the rest is still checked.
fn read(tree: &Map<String, Value>, faults: &mut Vec<String>) -> Config {
    let mut good = Map::new();
    for (section, value) in tree {
        let Value::Object(keys) = value else {
            faults.push(format!("{section}: is no section; sections are {SECTIONS}"));
            continue;
        };
        let mut kept = Map::new();
        for (key, value) in keys {
            let mut value = value.clone();
            if repair(section, key, &mut value, faults) {
                kept.insert(key.clone(), value);
            }
        }
        if SECTIONS.split(", ").any(|known| known == section) {
            good.insert(section.clone(), Value::Object(kept));
        }
    }
    Config::deserialize(Value::Object(good)).unwrap_or_else(|error| {
        faults.push(format!("configuration: {error}"));
        Config::default()
    })
}

/// Names what is wrong with one key, of a list of tables with each key of each table, and puts the default in its
/// place; of a list of tables that of its first row. `false` when the key is unknown and has none.
fn repair(section: &str, key: &str, value: &mut Value, faults: &mut Vec<String>) -> bool {
    let fault = |value| Config::deserialize(object(section, object(key, value))).err();
    match value {
        Value::Array(rows) if !rows.is_empty() && rows.iter().all(Value::is_object) => {
            let stand_in = default_of(section, key);
            for (at, row) in rows.iter_mut().enumerate() {
                let Value::Object(row) = row else { continue };
                row.retain(|name, value| {
                    let one = Value::Array(vec![object(name, value.clone())]);
                    let Some(error) = fault(one) else { return true };
                    faults.push(format!("{section}.{key}[{at}].{name}: {error}"));
                    let default = stand_in.as_ref().and_then(|rows| rows.get(0)?.get(name));
                    default.is_some_and(|default| {
                        *value = default.clone();
                        true
                    })
                });
            }
            true
        }
        _ => {
            let Some(error) = fault(value.clone()) else { return true };
            faults.push(format!("{section}.{key}: {error}"));
            default_of(section, key).is_some_and(|default| {
                *value = default;
                true
            })
        }
    }
}

fn object(key: &str, value: Value) -> Value {
    Value::Object(Map::from_iter([(key.to_owned(), value)]))
}

fn default_of(section: &str, key: &str) -> Option<Value> {
    let defaults = config::Config::builder().add_source(File::from_str(DEFAULTS, FileFormat::Toml)).build().ok()?;
    defaults.try_deserialize::<Value>().ok()?.get(section)?.get(key).cloned()
}

/// A section, a list in it with its index, a key: more than the deepest key has.
const LEVELS_MAX: usize = 8;
/// More rows than any list of a configuration may have.
const ROWS_MAX: usize = 16;
/// Of a key in a fault.
const SHOWN_CHARS_MAX: usize = 120;
const SECTIONS: &str = "group, actors, model, l1, l2, cache, storage, transfer, bus, rank, leases, trace";
