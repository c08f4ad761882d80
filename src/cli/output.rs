//! What a command says. Nobody has to read it to the end: a reader that has gone is no fault of the run.

use std::io::{ErrorKind, Write};

use super::Failure;

/// Writes `text` and a newline to standard output.
///
/// # Errors
/// Figures that could not be written. A closed pipe is none: whoever read has seen enough.
pub(super) fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(Failure::Fault(format!("standard output: {error}"))),
    }
}

/// One JSON object on a line of its own at the end of standard output.
///
/// # Errors
/// As [`print`].
pub(super) fn print_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(value).map_err(|error| Failure::Fault(format!("figures as JSON: {error}")))?;
    print(&text)
}

/// One line for people on standard error. Where that is closed nobody listens, and there is nowhere left to say so.
pub(super) fn say(text: &str) {
    writeln!(std::io::stderr(), "hicached: {text}").ok();
}
