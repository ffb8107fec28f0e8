//! What is known of the sender of a frame: which peers are Faultlines, and whose MAC address is true.
//!
//! The switch of a process checks the source MAC address of all that its guests send. So a packet of a guest with its neighbour's IP address
//! has another MAC address than the neighbour, and is not taken for a packet of the neighbour's connection.
//!
//! READY (opcode 0xc0) tells a requester that a page is present, so that it does not wait for its RNR timer. An adapter of
//! another make must never get it. The caller says of each frame whether its sender is a Faultline; a connected queue
//! pair remembers what was said of the last packet of its peer.

/// What is known of the sender of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// Nothing: the frame comes from a wire that other adapters can be on.
    #[default]
    Unknown,
    /// Software in a guest of this process has built it. Its source MAC address has been checked.
    Guest,
    /// It is a packet that a Faultline of this process has built. Its source MAC address has been checked.
    Faultline,
}

impl Origin {
    /// True if the source MAC address of the frame has been checked.
    #[inline]
    pub(crate) const fn has_true_mac(self) -> bool {
        !matches!(self, Self::Unknown)
    }
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
