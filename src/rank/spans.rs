//! What a rank says of a copy when it is over: one span with a row of numbers for each figure of its layers, and the
//! layers themselves as parts for whoever wants that much.

use std::time::Duration;

use hicached_actors::machine::Sender;
use hicached_actors::protocol::{Refusal, Time};
use hicached_actors::span::{Fact, Span, SpanPart};
use hicached_kernels::layout::Piece;

use super::copies::{End, LayerTimes};
use super::machine::{RankMachine, Running};
use super::ops::OpKind;

impl RankMachine {
    /// The span of a copy that has ended. Rows have one number per (component, layer) that has bytes, in record
    /// order; the components of a layer are copied together and share its times. 0 stands for what was not copied.
    pub(super) fn copy_span(&self, now: Time, running: &Running, end: &End) -> Option<Span> {
        let (job, parent) = (&running.job, running.trace.clone()?);
        let pages = u64::from(job.runs().pages());
        let runs = job.runs().run_count() as u64;
        let span = Span::new(name(running.kind), running.op, parent, running.began, now)
            .nth(self.nth(running.attempt))
            .count("copy.rank", self.rank.0)
            .count("copy.attempt", running.attempt)
            .count("copy.pages", pages)
            .count("copy.runs", runs)
            .count("copy.bytes", end.tally.bytes)
            .count("copy.queue_us", micros(end.tally.waiting))
            .count("copy.copy_us", micros(end.tally.copying))
            .fault(end.failed.as_ref().map(Refusal::code));
        let mut by_index = vec![None; self.layers.total() as usize];
        end.layers.iter().for_each(|times| by_index[times.index as usize] = Some(times));
        let of_piece = |piece: Piece| {
            let index = self.layers.index(piece.component.track(), piece.layer);
            by_index.get(index as usize).copied().flatten()
        };
        let pieces: Vec<(Piece, Option<&LayerTimes>)> =
            self.layout.record().filter(|piece| piece.page_bytes > 0).map(|piece| (piece, of_piece(piece))).collect();
        let row = |of: &dyn Fn(Piece, &LayerTimes) -> u64| {
            let numbers = pieces.iter().map(|(piece, times)| times.map_or(0, |times| of(*piece, times)));
            numbers.collect::<Vec<u64>>()
        };
        let span = span
            .counts("layer.ready_us", row(&|_, times| micros(times.ready)))
            .counts("layer.wait_us", row(&|_, times| micros(times.waited)))
            .counts("layer.copy_us", row(&|_, times| micros(times.copying)))
            .counts("layer.bytes", row(&|piece, _| pages * piece.page_bytes))
            .counts("layer.runs", row(&|_, _| runs));
        let span = match end.layers.iter().max_by_key(|times| times.ready + times.waited + times.copying) {
            Some(last) => span.text("copy.straggler_layer", self.layer_text(last.index)),
            None => span,
        };
        let parts = end.layers.iter().map(|times| self.layer_part(running.began, pages, times)).collect();
        Some(Span { parts, ..span })
    }

    /// The span of a copy that was refused before it began.
    pub(super) fn refused_span(
        &self,
        now: Time,
        kind: OpKind,
        from: &Sender,
        attempt: u32,
        refusal: &Refusal,
    ) -> Option<Span> {
        let span = Span::new(name(kind), from.op, from.trace.clone()?, now, now)
            .nth(self.nth(attempt))
            .count("copy.rank", self.rank.0)
            .count("copy.attempt", attempt);
        Some(span.fault(Some(refusal.code())))
    }

    fn layer_part(&self, began: Time, pages: u64, times: &LayerTimes) -> SpanPart {
        let (track, layer) = self.layers.at(times.index);
        let started = after(began, times.ready + times.waited);
        let pieces = || self.layout.pieces(track, layer).into_iter().flatten().filter(|piece| piece.page_bytes > 0);
        let components: Vec<&str> = pieces().map(|piece| piece.component.name()).collect();
        let facts = vec![
            ("layer.components", Fact::Text(components.join(","))),
            ("layer.number", Fact::Count(layer.into())),
            ("layer.wait_us", Fact::Count(micros(times.waited))),
            ("layer.bytes", Fact::Count(pieces().map(|piece| pages * piece.page_bytes).sum())),
        ];
        SpanPart { name: "layer", began: started, ended: after(started, times.copying), facts }
    }

    fn layer_text(&self, index: u32) -> String {
        let (track, layer) = self.layers.at(index);
        format!("{} {layer}", track.name())
    }

    /// Tells this rank's tries of an op from each other and from those of other ranks.
    fn nth(&self, attempt: u32) -> u64 {
        u64::from(attempt) << 8 | u64::from(self.rank.0)
    }
}

const fn name(kind: OpKind) -> &'static str {
    match kind {
        OpKind::Backup => "backup.rank",
        OpKind::Load => "load.rank",
    }
}

fn micros(time: Duration) -> u64 {
    time.as_micros() as u64
}

fn after(began: Time, time: Duration) -> Time {
    Time { ns: began.ns.saturating_add(time.as_nanos() as u64) }
}
