//! Faults that tests plant, to see that they are found. Without the feature `planted-faults` none can be
//! planted and [`Faults::is`] is a constant.

/// Whether this build can be given faults: never one that serves.
pub const PLANTABLE: bool = cfg!(feature = "planted-faults");

/// One fault that a machine can be made to have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    /// None at all.
    #[default]
    None,
    /// The writer reports a backup complete while its last owner has not acknowledged it.
    VisibleBeforeLastAck,
    /// The writer takes an acknowledgement for complete although layers of the draft are missing.
    DraftAckNotNeeded,
    /// The loader reserves pages whose owners are those of the host slots, rotated by one.
    OwnersRotatedByOne,
    /// The allocator carries a repeated free out again.
    DoubleFree,
    /// The writer frees the host slots of a failed backup before the other ranks have stopped.
    FreedWhileCopyCanStillWrite,
    /// The index gives up a page that still has children.
    ParentEvictedBeforeChild,
    /// The index leaves the seals of records that leave L2.
    SealOutlivesItsPage,
    /// Writer and loader take acknowledgements of other attempts and of dead ranks.
    StaleAttemptAccepted,
    /// The receiver gives the pages of a transfer up when its time is over, without proof that nothing writes them.
    TransferFreedByTimer,
    /// The receiver takes a transfer for complete when as many entries are reported as were wanted.
    TransferCountForSet,
    /// The sender pairs a position with the slot of the next one.
    TransferPositionOffByOne,
    /// Sender and receiver take what is said of an older attempt of a transfer for the one that runs.
    StaleTransferAccepted,
}

/// The fault planted in one machine; takes no space without the feature.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    #[cfg(feature = "planted-faults")]
    planted: Fault,
}

impl Faults {
    /// A machine without faults.
    pub const NONE: Self = Self {
        #[cfg(feature = "planted-faults")]
        planted: Fault::None,
    };

    /// A machine with this fault.
    #[cfg(feature = "planted-faults")]
    pub const fn planted(fault: Fault) -> Self {
        Self { planted: fault }
    }

    /// Whether this fault was planted.
    #[cfg(feature = "planted-faults")]
    pub fn is(self, fault: Fault) -> bool {
        self.planted == fault
    }

    /// Whether this fault was planted: never.
    #[cfg(not(feature = "planted-faults"))]
    pub const fn is(self, _fault: Fault) -> bool {
        false
    }
}
