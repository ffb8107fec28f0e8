//! Which peers are Faultlines, and which of them exchange READY packets.
//!
//! READY (opcode 0xc0) tells a requester that a page is present, so that it does not wait for its RNR timer. An adapter of
//! another make must never get it. The caller says of each frame whether its sender is a Faultline; a connected queue
//! pair remembers what was said of the last packet of its peer.

/// What is known of the sender of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// Nothing: the frame comes from a wire that other adapters can be on, or software has built it.
    #[default]
    Unknown,
    /// It is a packet that a Faultline has built.
    Faultline,
}

/// With which peers a NIC exchanges READY.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ReadyMode {
    /// With peers that are known to be Faultlines.
    #[default]
    Known,
    /// With all peers: the operator says that they are Faultlines.
    Always,
    /// With none.
    Never,
}

impl ReadyMode {
    /// All modes.
    pub const ALL: [Self; 3] = [Self::Known, Self::Always, Self::Never];

    /// Its name in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Known => "known",
            Self::Always => "always",
            Self::Never => "never",
        }
    }

    /// True if a queue pair with this peer sends READY, and accepts it.
    pub(crate) const fn includes(self, peer: Origin) -> bool {
        match self {
            Self::Known => matches!(peer, Origin::Faultline),
            Self::Always => true,
            Self::Never => false,
        }
    }
}
