//! Known properties of the sender of a frame: whether it is a Faultline, and whether its MAC address was checked.
//!
//! The switch of a process checks the source MAC addresses of all frames of its guests. So a packet of a guest with its neighbour's IP
//! address has another MAC address than the neighbour, and is not accepted for the neighbour's connection.
//!
//! READY (opcode 0xc0) tells a requester that a page is present, so that it does not wait for its RNR timer. An adapter of another make
//! must never get it. The caller passes the origin of each frame; a connected queue pair stores that of its peer's last packet. A peer whose
//! packets come from a wire is asked ([`Peers`](crate::peers::Peers)).

/// Known properties of the sender of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// The sender is unknown: the frame comes from a wire with other adapters.
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

/// Peers with which a NIC exchanges READY.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ReadyMode {
    /// With peers that are known to be Faultlines: those of the process, and those on wires that have answered a peer query.
    #[default]
    Known,
    /// With all peers: the operator says that they are Faultlines.
    Always,
    /// With none. Peer queries are not answered, as by an adapter of another make.
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
}
