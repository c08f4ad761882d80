//! The kinds of bytes a page is made of, in the one order in which a record holds them.

use std::fmt;

/// One kind of bytes of a page. The order of the variants is the order inside a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Component {
    /// KV of the target model.
    TargetKv,
    /// Sparse-attention index keys and scales of the target model.
    TargetIndex,
    /// KV of the draft model.
    DraftKv,
    /// Sparse-attention index keys and scales of the draft model.
    DraftIndex,
}

impl Component {
    /// Every component, in record order.
    pub const ALL: [Self; 4] = [Self::TargetKv, Self::TargetIndex, Self::DraftKv, Self::DraftIndex];

    /// The name used in manifests: `target.kv`, `target.index`, `draft.kv` or `draft.index`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::TargetKv => "target.kv",
            Self::TargetIndex => "target.index",
            Self::DraftKv => "draft.kv",
            Self::DraftIndex => "draft.index",
        }
    }

    /// The component of that name; `None` for a name that is none of the four.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|component| component.name() == name)
    }

    /// Who announces that a layer of this component is done.
    pub const fn track(self) -> Track {
        match self {
            Self::TargetKv | Self::TargetIndex => Track::Target,
            Self::DraftKv | Self::DraftIndex => Track::Draft,
        }
    }

    /// Whether this component holds index keys, which exist for pages of [`super::INDEX_PAGE_TOKENS`] only.
    pub const fn is_index(self) -> bool {
        match self {
            Self::TargetIndex | Self::DraftIndex => true,
            Self::TargetKv | Self::DraftKv => false,
        }
    }
}

impl fmt::Display for Component {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Who announces that a layer is done: the target model or the draft model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Track {
    /// Layers of `target.kv` and `target.index`.
    Target,
    /// Layers of `draft.kv` and `draft.index`.
    Draft,
}

impl Track {
    /// Both tracks, in record order.
    pub const ALL: [Self; 2] = [Self::Target, Self::Draft];

    /// `target` or `draft`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Target => "target",
            Self::Draft => "draft",
        }
    }

    /// The component whose layers count the layers of this track.
    pub const fn kv(self) -> Component {
        match self {
            Self::Target => Component::TargetKv,
            Self::Draft => Component::DraftKv,
        }
    }

    /// The index component of this track.
    pub const fn index(self) -> Component {
        match self {
            Self::Target => Component::TargetIndex,
            Self::Draft => Component::DraftIndex,
        }
    }
}

impl fmt::Display for Track {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
