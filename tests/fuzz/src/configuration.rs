//! Configuration from everywhere at once: a file, the environment and `--set`.

use hicached::config::{Layers, load, masked};

use crate::scratch::Scratch;

/// Text of a file, a line with a zero byte, then one line for each variable (`NAME=value`) and each `--set`.
pub fn configuration(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (file, lines) = text.split_once('\0').unwrap_or((&text, ""));
    let scratch = Scratch::holding("config.toml", file.as_bytes());
    let (mut set, mut environment) = (Vec::new(), Vec::new());
    for line in lines.lines().take(LINES_MAX) {
        match line.split_once('=') {
            Some((name, value)) if name.starts_with("HICACHED__") => {
                environment.push((name.to_owned(), value.to_owned()));
            }
            Some(_) | None => set.push(line.to_owned()),
        }
    }
    let layers = Layers { file: Some(scratch.path().to_owned()), set, environment };
    layers.named();
    let config = match load(&layers) {
        Ok(config) => config,
        Err(refused) => return told(&refused.faults),
    };
    masked(&config.bus.url);
    match config.checked() {
        Ok(checked) => {
            let plan = checked.plan();
            assert!(plan.longest_request_tokens > 0, "a good configuration serves something");
        }
        Err(refused) => told(&refused.faults),
    }
}

fn told(faults: &[String]) {
    assert!(!faults.is_empty() && faults.iter().all(|fault| !fault.is_empty()), "a refusal says why");
}

/// Each is merged with what stands before it.
const LINES_MAX: usize = 64;
