//! What a run shows while it runs: a table that lives on a terminal, elsewhere a line for each change of state.

use std::io::{IsTerminal, Write};
use std::time::SystemTime;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use crate::fleet::{Event, Fleet, State};

/// The view of one fleet.
pub(super) struct View {
    rows: Option<(MultiProgress, Vec<ProgressBar>)>,
}

impl View {
    /// A table when somebody watches standard error.
    pub(super) fn new(fleet: &Fleet) -> Self {
        let rows = std::io::stderr().is_terminal().then(|| {
            let all = MultiProgress::new();
            let row = |_| {
                let bar = all.add(ProgressBar::no_length());
                bar.set_style(ProgressStyle::with_template("{msg}").unwrap_or_else(|_| ProgressStyle::default_bar()));
                bar
            };
            let mut bars: Vec<ProgressBar> = Vec::new();
            bars.extend((0..=fleet.members().len()).map(row));
            (all, bars)
        });
        Self { rows }
    }

    /// Says a line, with the time of day as logs have it.
    pub(super) fn say(&self, text: &str) {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let (seconds, ms) = (since.as_secs() % 86_400, since.subsec_millis());
        let (hours, minutes) = (seconds / 3_600, seconds / 60 % 60);
        let line = format!("hicached: {hours:02}:{minutes:02}:{:02}.{ms:03} {text}", seconds % 60);
        match &self.rows {
            // A table that cannot be drawn is no fault of the run.
            Some((all, _)) => all.println(line).unwrap_or(()),
            None => writeln!(std::io::stderr(), "{line}").unwrap_or(()),
        }
    }

    /// Says what happened to a process.
    pub(super) fn happened(&self, fleet: &Fleet, event: &Event) {
        let member = |place: usize| &fleet.members()[place];
        let pid = |place: usize| member(place).pid().map_or("-".to_owned(), |pid| pid.to_string());
        match event {
            Event::Started(place) => {
                self.say(&format!("{} is started again, pid {}", member(*place).name(), pid(*place)))
            }
            Event::Ready(place) => self.say(&format!("{} serves, pid {}", member(*place).name(), pid(*place))),
            Event::Ended { place, asked: false, status } => {
                self.say(&format!("{} ended by itself, {status}; {}", member(*place).name(), fleet.log_end(*place)));
            }
            Event::Ended { place, asked: true, status } => {
                self.say(&format!("{} ended, {status}", member(*place).name()));
            }
            Event::Line(..) => {}
        }
    }

    /// Takes the table away, so that others can write where it stood.
    pub(super) fn end_table(&mut self) {
        for bar in self.rows.take().iter().flat_map(|(_, bars)| bars) {
            bar.finish_and_clear();
        }
    }

    /// Draws the table; `figure` tells one telling figure of each process.
    pub(super) fn draw(&self, fleet: &Fleet, figure: impl Fn(usize) -> String) {
        let Some((_, bars)) = &self.rows else { return };
        let head = format!("{:<16}{:>9}  {:<10}{:>9}{:>10}  {}", "process", "pid", "state", "restarts", "MiB", "doing");
        bars[0].set_message(head);
        for (place, (member, bar)) in fleet.members().iter().zip(&bars[1..]).enumerate() {
            let pid = member.pid().map_or("-".to_owned(), |pid| pid.to_string());
            let mib = member.memory.now_bytes as f64 / f64::from(1 << 20);
            let (name, state, restarts) = (member.name(), member.state().name(), member.restarts);
            let doing = if member.state() == State::Serving { figure(place) } else { String::new() };
            bar.set_message(format!("{name:<16}{pid:>9}  {state:<10}{restarts:>9}{mib:>10.1}  {doing}"));
        }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.end_table();
    }
}
