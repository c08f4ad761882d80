//! The device pools of the engine's ranks: one file each, layer-first.
//!
//! For every (component, layer) a pool has a region of `pages` pages, side by side in the order of a record. Pages
//! are named by group-wide ids; owner and physical page follow from the id.

use std::time::SystemTime;

use hicached_actors::protocol::{Incarnation, PageId, Rank, Region, Register};

use super::content::{Grain, Rows, difference};
use super::{EngineConfig, EngineError, left_over};
use crate::shm::{Segment, Track};

/// Where one layer of one component stands in every rank's pool.
#[derive(Clone, Copy, Debug)]
struct Piece {
    /// Place in [`COMPONENTS`].
    component: u8,
    layer: u32,
    offset: u64,
    page_bytes: u32,
    grain: Grain,
}

/// The pools of all ranks.
pub(super) struct Pools {
    cp_size: u8,
    pages: u32,
    /// Pieces with bytes, of each layer of the target track, then of the draft track.
    layers: [Vec<Vec<Piece>>; 2],
    regions: Vec<Region>,
    segments: Vec<Segment>,
    /// When the engine began, in milliseconds since 1970.
    born_ms: u64,
}

/// What a forward adds to one page.
#[derive(Clone, Debug)]
pub(super) struct Fill {
    pub(super) page: PageId,
    /// What the page holds afterwards.
    pub(super) rows: Rows,
    /// The first token that is added; those before it stand there.
    pub(super) from_token: u32,
}

/// One piece that does not hold what it must.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wrong {
    pub(super) component: &'static str,
    pub(super) layer: u32,
    pub(super) offset_bytes: u32,
    pub(super) words: u64,
}

/// Room for one layer of a page, twice.
#[derive(Default)]
pub(super) struct Buffers {
    got: Vec<u8>,
    want: Vec<u8>,
}

impl Pools {
    /// Makes one pool file for each of `engines`, the lives of the engine's ranks.
    pub(super) fn create(config: &EngineConfig, engines: &[Incarnation]) -> Result<Self, EngineError> {
        let manifest = &config.manifest;
        let (target, draft) = manifest.layers();
        let mut layers = [vec![Vec::new(); target as usize], vec![Vec::new(); draft as usize]];
        let (mut regions, mut offset) = (Vec::new(), 0u64);
        for (component, name) in (0..).zip(COMPONENTS) {
            let Some(spec) = manifest.components.iter().find(|spec| spec.name == name) else { continue };
            let track = &mut layers[usize::from(component / 2)];
            for (layer, &page_bytes) in (0..).zip(&spec.page_bytes).filter(|(_, bytes)| **bytes > 0) {
                let grain = Grain::new(component, layer, manifest.page_tokens, page_bytes);
                track[layer as usize].push(Piece { component, layer, offset, page_bytes, grain });
                let stride = u64::from(page_bytes);
                regions.push(Region { component: name.to_owned(), layer, offset, stride, page_bytes });
                offset += u64::from(config.pages) * stride;
            }
        }
        match left_over::remove_left_over(&config.folder, &config.group) {
            Ok(0) => {}
            Ok(files) => tracing::info!(files, "pools of engines that are gone were removed"),
            Err(error) => tracing::debug!(%error, "nobody looked for pools of engines that are gone"),
        }
        let born_ms = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_millis() as u64);
        let (cp_size, pages, segments) = (manifest.cp_size, config.pages, Vec::new());
        let mut pools = Self { cp_size, pages, layers, regions, segments, born_ms };
        for (rank, engine) in engines.iter().enumerate() {
            let life = u64::from_be_bytes(engine.0[..8].try_into().unwrap_or_default());
            let path = left_over::pool_file(&config.folder, &config.group, rank, life);
            // Pushed one by one: what was made before a failure is removed by the drop of `pools`.
            pools.segments.push(left_over::create_locked(&path, offset.max(SEGMENT_BYTES_MIN))?);
        }
        Ok(pools)
    }

    /// What rank `rank` brings.
    pub(super) fn register(&self, config: &EngineConfig, rank: u8, engine: Incarnation, last_step: u64) -> Register {
        let segment = &self.segments[usize::from(rank)];
        Register {
            rank: Rank(rank),
            engine,
            manifest: config.manifest.clone(),
            pages: self.pages,
            segment: segment.path().display().to_string(),
            segment_bytes: segment.len_bytes(),
            regions: self.regions.clone(),
            last_step,
            born_ms: self.born_ms,
        }
    }

    /// Layers of `track`.
    pub(super) fn layers(&self, track: Track) -> u32 {
        self.layers[track as usize].len() as u32
    }

    /// Layers of both tracks: those of a load.
    pub(super) fn layers_of_load(&self) -> u32 {
        self.layers(Track::Target) + self.layers(Track::Draft)
    }

    /// Which layer of which track is layer `layer` of a load: target layers, then draft layers.
    pub(super) fn layer_of_load(&self, layer: u32) -> (Track, u32) {
        match layer.checked_sub(self.layers(Track::Target)) {
            Some(layer) => (Track::Draft, layer),
            None => (Track::Target, layer),
        }
    }

    /// Whether there are bytes at all.
    pub(super) fn have_bytes(&self) -> bool {
        !self.regions.is_empty()
    }

    /// Whether the daemon may give out `page`: it is in the pool, and not the padding page of its rank.
    pub(super) fn holds(&self, page: PageId) -> bool {
        (1..self.pages).contains(&page.physical(self.cp_size))
    }

    /// Writes one layer of the tokens that `fill` adds to its page.
    pub(super) fn write(&self, fill: &Fill, (track, layer): (Track, u32), buffers: &mut Buffers) {
        let Fill { page, ref rows, from_token } = *fill;
        for piece in &self.layers[track as usize][layer as usize] {
            let bytes = piece.grain.bytes(from_token, rows.tokens());
            let offset = self.offset(page, piece) + bytes.start as u64;
            let want = buffer(&mut buffers.want, bytes.len());
            piece.grain.fill(rows, from_token, want);
            self.segment(page).write(offset, want).expect("regions lie inside their segment");
        }
    }

    /// Compares one layer of what `page` holds by `rows` in these components; returns the bytes compared.
    pub(super) fn verify(
        &self,
        page: PageId,
        (rows, components): (&Rows, Components),
        (track, layer): (Track, u32),
        buffers: &mut Buffers,
        mut wrong: impl FnMut(Wrong),
    ) -> u64 {
        let mut bytes = 0;
        let pieces = self.layers[track as usize][layer as usize].iter();
        for piece in pieces.filter(|piece| components.have(piece.component)) {
            let held = piece.grain.bytes(0, rows.tokens()).end;
            let want = buffer(&mut buffers.want, held);
            let got = buffer(&mut buffers.got, held);
            piece.grain.fill(rows, 0, want);
            self.segment(page).read(self.offset(page, piece), got).expect("regions lie inside their segment");
            bytes += held as u64;
            if let Some((offset_bytes, words)) = difference(got, want) {
                let component = COMPONENTS[usize::from(piece.component)];
                wrong(Wrong { component, layer: piece.layer, offset_bytes, words });
            }
        }
        bytes
    }

    fn segment(&self, page: PageId) -> &Segment {
        &self.segments[usize::from(page.owner(self.cp_size).0)]
    }

    fn offset(&self, page: PageId, piece: &Piece) -> u64 {
        piece.offset + u64::from(page.physical(self.cp_size)) * u64::from(piece.page_bytes)
    }
}

impl Drop for Pools {
    fn drop(&mut self) {
        for segment in &self.segments {
            if let Err(error) = std::fs::remove_file(segment.path()) {
                tracing::debug!(path = %segment.path().display(), %error, "a pool file stays behind");
            }
        }
    }
}

fn buffer(bytes: &mut Vec<u8>, len_bytes: usize) -> &mut [u8] {
    if bytes.len() < len_bytes {
        bytes.resize(len_bytes, 0);
    }
    &mut bytes[..len_bytes]
}

/// Some of the components, or all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Components(u8);

impl Components {
    pub(super) const ALL: Self = Self(u8::MAX);

    /// Those of these names; all where there are none.
    pub(super) fn named(names: &[String]) -> Self {
        if names.is_empty() {
            return Self::ALL;
        }
        let bits = (0..).zip(COMPONENTS).filter(|(_, known)| names.iter().any(|name| name == known));
        Self(bits.map(|(bit, _)| 1 << bit).sum())
    }

    fn have(self, component: u8) -> bool {
        self.0 & 1 << component != 0
    }
}

/// Components in the order of a record, those of the target track first.
const COMPONENTS: [&str; 4] = ["target.kv", "target.index", "draft.kv", "draft.index"];

/// A pool without bytes is a file all the same: an empty one cannot be mapped.
const SEGMENT_BYTES_MIN: u64 = 4_096;
